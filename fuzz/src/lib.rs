//! What the fuzz targets do with an input. libFuzzer feeds them at length (`make fuzz`); `make test` feeds them the kept inputs
//! of `seeds` and some that are made of these (tests/kept.rs).
//!
//! Formats that latpath alone writes have no kept file: [`seeds`] writes some with today's code.

pub mod capture;
pub mod joiner;
pub mod pcap_file;
pub mod received;
pub mod snapshot;
pub mod sv_frame;

/// Each target's name, which is also that of its folder in `seeds`.
pub const TARGETS: [(&str, fn(&[u8])); 6] = [
    ("capture", capture::run),
    ("joiner", joiner::run),
    ("pcap_file", pcap_file::run),
    ("received", received::run),
    ("snapshot", snapshot::run),
    ("sv_frame", sv_frame::run),
];

/// Inputs of a target that are written by the code under test.
pub fn seeds(name: &str) -> Vec<Vec<u8>> {
    match name {
        "capture" => capture::seeds(),
        "snapshot" => snapshot::seeds(),
        _ => Vec::new(),
    }
}
