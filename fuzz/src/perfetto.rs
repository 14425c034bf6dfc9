//! Any messages as a capture's file, as a trace: it is written without a panic, and Perfetto's format can read all of it.
//!
//! Input: as that of `capture`.

use latpath_capture::RankedCapture;
use latpath_cause::RunContext;
use latpath_perfetto::{proto::TracePacket, Export};
use prost::Message;

#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let Ok(ranked) = RankedCapture::decode(&crate::capture::file(bytes)) else { return };
    let mut trace = Vec::new();
    let mut export = Export::begin(&mut trace, RunContext::default()).expect("memory takes any bytes");
    // Another capture of the same machines, and the same one around other packets.
    export.capture(&ranked.capture, |_| true).expect("memory takes any bytes");
    export.capture_around(&ranked.capture, |packet| !packet.late).expect("memory takes any bytes");
    let summary = export.finish().expect("memory takes any bytes");
    assert_eq!(summary.bytes, trace.len() as u64);
    Trace::decode(&trace[..]).expect("a trace");
}
