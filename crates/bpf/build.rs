//! Compiles the programs by which the headers are tried, and which give the shared types their Rust twins.

// A build script cannot use the library that it is a part of.
#[path = "src/compile.rs"]
mod compile;

fn main() {
    if std::env::var_os("CARGO_FEATURE_LOADER").is_some() {
        compile::compile("streams");
    }
}
