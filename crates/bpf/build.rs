//! Compiles the programs that test the headers and define the shared types of the Rust side.

// A build script cannot use the library of its own crate.
#[path = "src/compile.rs"]
mod compile;

fn main() {
    if std::env::var_os("CARGO_FEATURE_LOADER").is_some() {
        compile::compile("streams");
    }
}
