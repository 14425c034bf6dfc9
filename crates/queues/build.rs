//! Compiles the eBPF programs and, for tests, the code that they share with user space.

fn main() {
    latpath_bpf::compile("queues");
    latpath_bpf::compile_for_user_space("src/ring.c");
}
