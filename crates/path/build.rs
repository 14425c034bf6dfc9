//! Compiles the eBPF programs, as the probe's are.

#[path = "../probe/compile.rs"]
mod compile;

fn main() {
    println!("cargo:rerun-if-changed=../probe/compile.rs");
    // The streams are recognised by the same code as everywhere.
    println!("cargo:rerun-if-changed=../probe/bpf");
    compile::compile("path");
}
