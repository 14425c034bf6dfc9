//! Any bytes as a pcap or pcapng file: an error at worst, and an end.
#![no_main]

use latpath_traffic::{Capture, Discovery};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut capture) = Capture::read(Path::new("fuzz"), bytes) else { return };
    let mut found = Discovery::default();
    while let Ok(Some(packet)) = capture.next_packet() {
        found.note(packet.t, &packet.bytes, None);
        assert!(found.frames <= bytes.len() as u64, "a packet takes at least one byte of the file");
    }
});
