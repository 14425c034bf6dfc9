//! Compiles the eBPF programs, and for tests the state machine that they share with user space.

fn main() {
    latpath_bpf::compile("exits");
    latpath_bpf::compile("events");
    latpath_bpf::compile_for_user_space("src/vcpu_time.c");
}
