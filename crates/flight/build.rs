//! Compiles the eBPF programs, as the probe's are.

#[path = "../probe/compile.rs"]
mod compile;

fn main() {
    println!("cargo:rerun-if-changed=../probe/compile.rs");
    compile::compile("flight");
}
