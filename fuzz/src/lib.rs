//! The fuzz targets. `make fuzz` runs them with libFuzzer; `make test` runs them on the kept inputs of `seeds` and on
//! variations of these (tests/kept.rs).
//!
//! Formats that only latpath writes have no kept inputs: [`seeds`] writes some with the current code.

pub mod agent;
pub mod capture;
pub mod import;
pub mod joiner;
pub mod kept;
pub mod kernel_parser;
pub mod pcap_file;
pub mod perfetto;
pub mod ping;
pub mod profile;
pub mod received;
pub mod run_directory;
pub mod snapshot;
pub mod sv_frame;
pub mod trace_text;
mod wire;

/// The targets by name, which is also the name of the target's folder in `seeds`.
pub const TARGETS: [(&str, fn(&[u8])); 15] = [
    ("agent", agent::run),
    ("capture", capture::run),
    ("import", import::run),
    ("joiner", joiner::run),
    ("kept", kept::run),
    ("kernel_parser", kernel_parser::run),
    ("pcap_file", pcap_file::run),
    ("perfetto", perfetto::run),
    ("ping", ping::run),
    ("profile", profile::run),
    ("received", received::run),
    ("run_directory", run_directory::run),
    ("snapshot", snapshot::run),
    ("sv_frame", sv_frame::run),
    ("trace_text", trace_text::run),
];

/// Inputs of a target, written by the code under test.
pub fn seeds(name: &str) -> Vec<Vec<u8>> {
    match name {
        "agent" => agent::seeds(),
        "capture" | "perfetto" => capture::seeds(),
        "import" => import::seeds(),
        "kept" => kept::seeds(),
        "kernel_parser" => kernel_parser::seeds(),
        "ping" => ping::seeds(),
        "profile" => profile::seeds(),
        "run_directory" => run_directory::seeds(),
        "snapshot" => snapshot::seeds(),
        _ => Vec::new(),
    }
}
