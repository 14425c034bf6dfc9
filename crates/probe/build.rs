//! Compiles the eBPF programs.

mod compile;

fn main() {
    println!("cargo:rerun-if-changed=compile.rs");
    compile::compile("probe");
}
