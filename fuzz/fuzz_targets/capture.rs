//! Any bytes as a spike's file: refused, or read, and then written and read again the same. Explaining what was read ends, without a
//! panic.
//!
//! Input: a file without its sum, which is added here: by chance it is never right.
#![no_main]

use latpath_cause::{Analyst, Explained, Ground};
use latpath_capture::{BadCapture, RankedCapture, Head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    // FNV-1a
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    file.extend(sum.to_le_bytes());
    let frozen = match RankedCapture::decode(&file) {
        Ok(frozen) => frozen,
        Err(BadCapture::Other | BadCapture::Newer(_) | BadCapture::Damaged(_)) => return,
    };
    let capture = &frozen.capture;
    let head = Head::decode(&file).expect("the whole was read");
    assert_eq!((head.number, head.packets, &head.late), (capture.number, capture.packets.len() as u64, &frozen.late));
    let again = RankedCapture::decode(&frozen.encode()).expect("what was read can be written and read");
    assert_eq!((&again.capture.packets, again.worst, again.capture.from), (&capture.packets, frozen.worst, capture.from));
    let analyst = Analyst::new(capture, Ground { points: &[], vms: &[] });
    for packet in capture.packets.iter().filter(|packet| capture.has_all_of(packet)).take(4) {
        let _ = Explained::of(&analyst, capture, packet, &[], &[]);
    }
});
