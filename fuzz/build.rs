//! Compiles the kernel programs' parser for user space.

fn main() {
    latpath_bpf::compile_for_user_space("src/kernel_parser.c");
}
