//! Reads arbitrary messages as a capture file. Either the file is refused, or the capture survives a round trip
//! unchanged and explaining its packets does not panic.
//!
//! Input: a byte with the length of the first frame, its bytes, and the bytes of the second frame. The target adds the
//! framing, because random frames would be invalid.

use latpath_capture::{BadCapture, Capture, CaptureKind, Head, MachineSnapshot, Packet, RankedCapture};
use latpath_cause::{Analyst, PacketTimeline, RunContext};
use latpath_flight::packed::{pack, unpack};
use latpath_model::PacketSighting;

/// The capture file that an input represents.
pub(crate) fn file(bytes: &[u8]) -> Vec<u8> {
    let (length, messages) = bytes.split_first().unwrap_or((&0, &[]));
    let (head, body) = messages.split_at(messages.len().min(usize::from(*length)));
    [b"LPSPIKE\x01", &pack(head)[..], &pack(body)[..]].concat()
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let file = file(bytes);
    let ranked = match RankedCapture::decode(&file) {
        Ok(ranked) => ranked,
        Err(BadCapture::Other | BadCapture::Newer(_) | BadCapture::Damaged(_)) => return,
    };
    let capture = &ranked.capture;
    let head = Head::decode(&file).expect("the whole was read");
    assert_eq!((head.number, head.packets, &head.late), (capture.number, capture.packets.len() as u64, &ranked.late));
    let again = RankedCapture::decode(&ranked.encode()).expect("what was read can be written and read");
    assert_eq!(
        (&again.capture.packets, again.worst, again.capture.from),
        (&capture.packets, ranked.worst, capture.from)
    );
    let context = RunContext::default();
    let analyst = Analyst::new(capture, &context);
    for packet in capture.packets.iter().filter(|packet| capture.has_all_of(packet)).take(4) {
        let _ = PacketTimeline::of(&analyst, capture, packet, &[], &[]);
    }
}

/// A spike with a late packet and a punctual one, on a machine with a flight record and one without.
pub fn seeds() -> Vec<Vec<u8>> {
    let sighting = |t| PacketSighting { point: (t % 7) as u16, t, cpu: Some(1), tid: Some(41) };
    let packet = |number, late| Packet {
        stream: 0,
        key: number as u32,
        number,
        late,
        sightings: [1_001_400, 1_004_000, 1_010_000].map(sighting).to_vec(),
    };
    let machine = |machine: &str, record| MachineSnapshot {
        machine: machine.into(),
        offset_ns: -12,
        error_bound_ns: 900,
        record,
    };
    let capture = Capture {
        number: 1,
        kind: CaptureKind::Spike,
        from: 1_000_000,
        to: 1_020_000,
        machines: vec![machine("host", Ok(crate::snapshot::some())), machine("guest0", Err("no recorder".into()))],
        packets: vec![packet(3, true), packet(4, false)],
        more_late: 2,
    };
    let file = RankedCapture { capture, worst: 9_000, late: vec![1] }.encode();
    let mut frames = file.strip_prefix(b"LPSPIKE\x01").expect("its magic and version");
    let [head, body] = [(); 2].map(|()| unpack(&mut frames, 1 << 20).expect("two frames"));
    vec![[&[head.len() as u8][..], &head, &body].concat()]
}
