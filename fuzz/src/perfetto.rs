//! Exports a capture file of arbitrary messages as a trace. Writing does not panic, and the complete trace is valid in
//! Perfetto's format.
//!
//! Input: as for `capture`.

use latpath_capture::RankedCapture;
use latpath_cause::RunContext;
use latpath_perfetto::{proto::TracePacket, Export};
use prost::Message;

#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(ranked) = RankedCapture::decode(&crate::capture::file(bytes)) else { return };
    let mut trace = Vec::new();
    let mut export = Export::begin(&mut trace, RunContext::default()).expect("memory takes any bytes");
    // Adds the capture twice: with all packets, and around the packets that are not late.
    export.capture(&ranked.capture, |_| true).expect("memory takes any bytes");
    export.capture_around(&ranked.capture, |packet| !packet.late).expect("memory takes any bytes");
    let summary = export.finish().expect("memory takes any bytes");
    assert_eq!(summary.bytes, trace.len() as u64);
    Trace::decode(&trace[..]).expect("a trace");
}
