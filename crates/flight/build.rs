//! Compiles the eBPF programs.

fn main() {
    latpath_bpf::compile("flight");
    latpath_bpf::compile("upcalls");
}
