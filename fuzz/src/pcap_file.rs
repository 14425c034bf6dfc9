//! Reads arbitrary bytes as a pcap or pcapng file. Reading ends, possibly with an error.

use latpath_traffic::{CaptureFile, Discovery};
use std::path::Path;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(mut capture) = CaptureFile::read(Path::new("fuzz"), bytes) else { return };
    let mut found = Discovery::default();
    while let Ok(Some(packet)) = capture.next_packet() {
        found.note_packet(&packet);
        assert!(found.frames <= bytes.len() as u64, "a packet takes at least one byte of the file");
    }
}
