//! The file format of captures: `LPSPIKE`, a version, then two frames of messages ([`latpath_flight::packed`]). The
//! first frame contains the [`Head`], the second the packets and the machines. A machine's snapshot is encoded as in
//! its agent's messages.

use crate::{Capture, CaptureKind, MachineSnapshot, Packet, RankedCapture};
use latpath_flight::packed::{messages, number, pack, put, put_number, put_signed, signed, unpack};
use latpath_flight::Snapshot;
use latpath_model::text::{cut, printable};
use latpath_model::{stream::MAX_STREAMS, Ns, PacketSighting, PointId};

const MAGIC: &[u8; 7] = b"LPSPIKE";
/// The version that is written, which is also the newest that can be read.
pub const VERSION: u8 = 1;
/// Maximum size of a file, bytes.
pub const MAX_ENCODED: usize = 64 << 20;
/// Maximum uncompressed size of the head and of the rest, bytes. Snapshots are already compressed; packets take a few
/// MiB.
const MAX_HEAD: usize = 8192;
const MAX_PLAIN: usize = MAX_ENCODED + (16 << 20);
const MAX_MACHINES: usize = 256;
const MAX_PACKETS: u64 = 1 << 16;
const MAX_SIGHTINGS: usize = 64;
const MAX_TEXT: usize = 4096;

/// Why bytes are not a capture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCapture {
    /// The bytes have another format.
    #[error("not a capture of latpath")]
    Other,
    /// The capture was written by a newer version of latpath.
    #[error(
        "the capture is of version {0}, this latpath reads up to {VERSION}: read it with the latpath that recorded it"
    )]
    Newer(u8),
    /// The capture is truncated or modified.
    #[error("the capture is damaged: {0}")]
    Damaged(&'static str),
}

/// The summary of a capture, which can be read without the rest.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Head {
    /// Number of the capture in its run.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// Spike or baseline.
    #[prost(enumeration = "CaptureKind", tag = "2")]
    pub kind: i32,
    /// Start of the interval, host's `CLOCK_MONOTONIC`, ns.
    #[prost(sint64, tag = "3")]
    pub from: Ns,
    /// End of the interval, host's `CLOCK_MONOTONIC`, ns.
    #[prost(sint64, tag = "4")]
    pub to: Ns,
    /// Time of its slowest packet, ns.
    #[prost(sint64, tag = "5")]
    pub worst: Ns,
    /// Number of packets in the file, late or not.
    #[prost(uint64, tag = "6")]
    pub packets: u64,
    /// Number of late packets that the capture omits.
    #[prost(uint64, tag = "7")]
    pub more_late: u64,
    /// Number of late packets per stream, including omitted ones.
    #[prost(uint64, repeated, tag = "8")]
    pub late: Vec<u64>,
}

impl From<&'static str> for BadCapture {
    fn from(what: &'static str) -> Self {
        Self::Damaged(what)
    }
}

/// A message of the second frame. Readers skip unknown ones.
#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(oneof = "Content", tags = "1, 2")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Content {
    #[prost(message, tag = "1")]
    Packet(PacketMessage),
    #[prost(message, tag = "2")]
    Machine(MachineMessage),
}

#[derive(Clone, PartialEq, prost::Message)]
struct PacketMessage {
    #[prost(uint32, tag = "1")]
    stream: u32,
    #[prost(uint32, tag = "2")]
    key: u32,
    #[prost(uint64, tag = "3")]
    number: u64,
    #[prost(bool, tag = "4")]
    late: bool,
    /// Per sighting: time since the previous sighting (for the first one, since the start of the capture), ns, signed;
    /// then point, CPU and thread ID, unsigned.
    #[prost(bytes = "vec", tag = "5")]
    sightings: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MachineMessage {
    #[prost(string, tag = "1")]
    machine: String,
    #[prost(sint64, tag = "2")]
    offset_ns: i64,
    #[prost(sint64, tag = "3")]
    error_bound_ns: i64,
    #[prost(oneof = "Record", tags = "4, 5")]
    record: Option<Record>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Record {
    #[prost(bytes, tag = "4")]
    Snapshot(Vec<u8>),
    /// Why the snapshot is missing.
    #[prost(string, tag = "5")]
    Missing(String),
}

/// CPU of a sighting whose CPU is unknown.
const UNKNOWN_CPU: u16 = u16::MAX;
/// Thread ID of a sighting whose thread is unknown; not a valid TID in Linux.
const UNKNOWN_TID: u32 = u32::MAX;

fn sighting(point: PointId, t: Ns, cpu: u16, tid: u32) -> PacketSighting {
    // Earlier versions wrote TID 0 if neither the CPU nor the thread was known.
    let is_unknown = tid == UNKNOWN_TID || (tid, cpu) == (0, UNKNOWN_CPU);
    PacketSighting { point, t, cpu: (cpu != UNKNOWN_CPU).then_some(cpu), tid: (!is_unknown).then_some(tid) }
}

impl PacketMessage {
    fn of(packet: &Packet, from: Ns) -> Self {
        let (mut sightings, mut last) = (Vec::new(), from);
        for s in &packet.sightings {
            put_signed(&mut sightings, s.t.wrapping_sub(last));
            put_number(&mut sightings, s.point.into());
            put_number(&mut sightings, s.cpu.unwrap_or(UNKNOWN_CPU).into());
            put_number(&mut sightings, s.tid.unwrap_or(UNKNOWN_TID).into());
            last = s.t;
        }
        let Packet { stream, key, number, late, .. } = *packet;
        Self { stream: stream.into(), key, number, late, sightings }
    }

    fn packet(self, from: Ns) -> Result<Packet, BadCapture> {
        let Self { stream, key, number: packet_number, late, sightings } = self;
        let (mut left, mut last, mut sightings) = (&sightings[..], from, Vec::new());
        while !left.is_empty() {
            last = last.wrapping_add(signed(&mut left)?);
            let (point, cpu, tid) = (number(&mut left)?, number(&mut left)?, number(&mut left)?);
            sightings.push(sighting(point, last, cpu, tid));
            if sightings.len() > MAX_SIGHTINGS {
                return Err(TOO_MANY);
            }
        }
        let stream = u16::try_from(stream).map_err(|_| BadCapture::Damaged("a number is too large"))?;
        Ok(Packet { stream, key, number: packet_number, late, sightings })
    }
}

const TOO_MANY: BadCapture = BadCapture::Damaged("a count exceeds its limit");

fn text(text: &str) -> String {
    printable(cut(text, MAX_TEXT))
}

impl RankedCapture {
    /// Encodes the capture.
    pub fn encode(&self) -> Vec<u8> {
        let Capture { number, kind, from, to, machines, packets, more_late } = &self.capture;
        let (mut head, mut body) = (Vec::new(), Vec::new());
        let (count, late) = (packets.len() as u64, self.late.clone());
        let (number, kind, from, to, more_late) = (*number, (*kind).into(), *from, *to, *more_late);
        put(&mut head, &Head { number, kind, from, to, worst: self.worst, packets: count, more_late, late });
        let mut add = |content| put(&mut body, &Entry { content: Some(content) });
        packets.iter().for_each(|packet| add(Content::Packet(PacketMessage::of(packet, from))));
        for m in machines {
            let record = Some(match &m.record {
                Ok(snapshot) => Record::Snapshot(snapshot.encode()),
                Err(why) => Record::Missing(text(why)),
            });
            let (machine, offset_ns, error_bound_ns) = (text(&m.machine), m.offset_ns, m.error_bound_ns);
            add(Content::Machine(MachineMessage { machine, offset_ns, error_bound_ns, record }));
        }
        [MAGIC, &[VERSION][..], &pack(&head), &pack(&body)].concat()
    }

    /// Decodes the output of [`Self::encode`]. An unreadable record only affects its machine.
    ///
    /// # Errors
    /// The bytes have another format or a newer version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadCapture> {
        if bytes.len() > MAX_ENCODED {
            return Err(TOO_MANY);
        }
        let (head, mut rest) = head(bytes)?;
        let body = unpack(&mut rest, MAX_PLAIN)?;
        let (mut packets, mut machines) = (Vec::new(), Vec::new());
        for part in messages::<Entry>(&body) {
            match part?.content {
                Some(Content::Packet(packet)) => packets.push(packet.packet(head.from)?),
                Some(Content::Machine(m)) => machines.push(MachineSnapshot {
                    machine: text(&m.machine),
                    offset_ns: m.offset_ns,
                    error_bound_ns: m.error_bound_ns,
                    record: match m.record {
                        Some(Record::Snapshot(bytes)) => Snapshot::decode(&bytes).map_err(|e| e.to_string()),
                        Some(Record::Missing(why)) => Err(text(&why)),
                        None => return Err(BadCapture::Damaged("a machine has neither a record nor a reason")),
                    },
                }),
                None => {}
            }
            if packets.len() as u64 > head.packets || machines.len() > MAX_MACHINES {
                return Err(TOO_MANY);
            }
        }
        if packets.len() as u64 != head.packets || !rest.is_empty() {
            return Err(BadCapture::Damaged("its packets do not match its head"));
        }
        let kind = head.kind();
        let Head { number, from, to, worst, late, more_late, .. } = head;
        Ok(Self { capture: Capture { number, kind, from, to, machines, packets, more_late }, worst, late })
    }
}

impl Head {
    /// Decodes the head from the first bytes of a file.
    ///
    /// # Errors
    /// The bytes have another format or a newer version, or are too few.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadCapture> {
        head(bytes).map(|(head, _)| head)
    }

    /// Number of bytes at the beginning of a file that always contain the whole head.
    pub const MAX_BYTES: usize = 4096;
}

/// Decodes the head; returns it with the bytes that follow.
fn head(bytes: &[u8]) -> Result<(Head, &[u8]), BadCapture> {
    let (version, mut rest) = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first).ok_or(BadCapture::Other)?;
    if *version > VERSION {
        return Err(BadCapture::Newer(*version));
    }
    let plain = unpack(&mut rest, MAX_HEAD)?;
    let head: Head = messages(&plain).next().ok_or("it has no head")??;
    match head.packets > MAX_PACKETS || head.late.len() > MAX_STREAMS {
        true => Err(TOO_MANY),
        false => Ok((head, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_flight::{CpuRecord, Event, EventKind, Window};
    use proptest::prelude::*;

    fn ranked(packets: Vec<Packet>, why: &str) -> RankedCapture {
        let events =
            (0..100).map(|n| Event { t: 1000 + n * 17, pid: n as u32, what: EventKind::SoftirqEntry(3) }).collect();
        let cpu = CpuRecord { cpu: 1, events, since: 1000, overwritten: 5, unfinished: 0 };
        let window = Window { from: 1000, to: 9000, cpus: vec![cpu] };
        let snapshot = Snapshot { window, ..Snapshot::default() };
        let machine =
            |name: &str, record| MachineSnapshot { machine: name.into(), offset_ns: -5, error_bound_ns: 70, record };
        let machines = vec![machine("host", Ok(snapshot)), machine("guest0", Err(why.into()))];
        let capture =
            Capture { number: 7, kind: CaptureKind::Spike, from: 1000, to: 9000, machines, packets, more_late: 3 };
        RankedCapture { capture, worst: 1234, late: vec![1, 0, 9] }
    }

    prop_compose! {
        fn packet()(
            stream: u16, key: u32, number: u64, late: bool,
            sightings in prop::collection::vec((0..64_u16, any::<i64>(), prop::option::of(0..u16::MAX), prop::option::of(0..u32::MAX)), 0..8),
        ) -> Packet {
            let seen = |(point, t, cpu, tid): (_, _, Option<_>, Option<_>)| PacketSighting { point, t, cpu, tid };
            let is_kept = |s: &PacketSighting| (s.cpu, s.tid) != (None, Some(0));
            let sightings = sightings.into_iter().map(seen).filter(is_kept).collect();
            Packet { stream, key, number, late, sightings }
        }
    }

    #[test]
    fn an_idle_cpu_and_an_unknown_one_are_told_apart_also_in_captures_of_earlier_versions() {
        let seen = |cpu, tid| sighting(1, 2, cpu, tid);
        let expected = |cpu, tid| PacketSighting { point: 1, t: 2, cpu, tid };
        assert_eq!(seen(3, 0), expected(Some(3), Some(0)), "idle");
        assert_eq!(seen(UNKNOWN_CPU, 0), expected(None, None), "as earlier versions wrote it");
        assert_eq!(seen(UNKNOWN_CPU, 7), expected(None, Some(7)));
        assert_eq!(seen(3, UNKNOWN_TID), expected(Some(3), None));
        let packet = |sightings| Packet { stream: 0, key: 0, number: 0, late: true, sightings };
        let idle_and_unknown = packet(vec![expected(Some(3), Some(0)), expected(None, Some(0)), expected(None, None)]);
        let written = ranked(vec![idle_and_unknown], "").encode();
        let read = &RankedCapture::decode(&written).unwrap().capture.packets[0].sightings;
        let tids: Vec<_> = read.iter().map(|s| s.tid).collect();
        assert_eq!(tids, [Some(0), None, None], "thread 0 means an idle CPU only where the CPU is known");
    }

    proptest! {
        #[test]
        fn a_capture_reads_back_as_it_was_written(packets in prop::collection::vec(packet(), 0..20), why in "[ -~]{0,40}") {
            let bytes = ranked(packets.clone(), &why).encode();
            let back = RankedCapture::decode(&bytes).unwrap();
            let was = ranked(packets, &why);
            prop_assert_eq!(&back.capture.packets, &was.capture.packets);
            let records = |f: &RankedCapture| -> Vec<_> {
                let one = |m: &MachineSnapshot| (m.machine.clone(), m.offset_ns, m.error_bound_ns, m.record.clone());
                f.capture.machines.iter().map(one).collect()
            };
            prop_assert_eq!(records(&back), records(&was));
            prop_assert_eq!((back.capture.number, back.capture.from, back.capture.to), (7, 1000, 9000));
            prop_assert_eq!((back.capture.more_late, back.worst, &back.late), (3, 1234, &was.late));
            let head = Head::decode(&bytes[..bytes.len().min(Head::MAX_BYTES)]).unwrap();
            prop_assert_eq!((head.number, head.packets, head.late), (7, was.capture.packets.len() as u64, was.late));
        }

        #[test]
        fn bytes_of_any_kind_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index) {
            prop_assert!(RankedCapture::decode(&bytes).is_err());
            let good = ranked(Vec::new(), "gone").encode();
            let at = at.index(good.len());
            prop_assert!(RankedCapture::decode(&[&good[..at], &bytes].concat()).is_err());
            // With a valid checksum, random bytes in place of the head or the rest may be accepted, but must not cause
            // a panic.
            let (_, mut body) = head(&good).unwrap();
            let head = &good[..good.len() - body.len()];
            let plain = unpack(&mut body, MAX_PLAIN).unwrap();
            let other = pack(&[&plain[..at.min(plain.len())], &bytes].concat());
            let _ = RankedCapture::decode(&[head, &other].concat());
            let _ = Head::decode(&[MAGIC, &[VERSION][..], &pack(&bytes)].concat());
        }

        #[test]
        fn a_changed_byte_is_noticed(at: prop::sample::Index, by in 1..=255_u8) {
            let mut bytes = ranked(Vec::new(), "gone").encode();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(RankedCapture::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let mut bytes = ranked(Vec::new(), "").encode();
        bytes[MAGIC.len()] = VERSION + 1;
        assert_eq!(RankedCapture::decode(&bytes).unwrap_err(), BadCapture::Newer(VERSION + 1));
    }

    #[test]
    fn texts_cannot_control_the_terminal() {
        let back = RankedCapture::decode(&ranked(Vec::new(), "a\x1b[2J").encode()).unwrap();
        assert_eq!(back.capture.machines[1].record, Err("a?[2J".into()));
    }
}
