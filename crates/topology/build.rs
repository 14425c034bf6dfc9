//! Compiles the eBPF programs.

fn main() {
    latpath_bpf::compile("redirect");
}
