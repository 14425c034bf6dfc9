//! Compiles the programs that test the headers, and from which the Rust counterparts of the shared types are generated.

// A build script cannot use the library that it is a part of.
#[path = "src/compile.rs"]
mod compile;

fn main() {
    if std::env::var_os("CARGO_FEATURE_LOADER").is_some() {
        compile::compile("streams");
    }
}
