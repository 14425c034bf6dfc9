//! A capture as bytes, for files.
//!
//! ```text
//! "LPSPIKE" VERSION  length and bytes of the head  length and bytes of the packets  machines …  sum
//! ```
//! Numbers are LEB128, signed ones folded (zigzag); the sum is FNV-1a over all before it, 8 bytes, little end first. Whatever
//! the bytes are, reading them takes bounded memory, and ends.

use crate::{Capture, CaptureKind, MachineRecord, Packet, PacketSighting, RankedCapture};
use latpath_flight::bytes::{put, put_block, put_signed, Bytes};
use latpath_flight::Snapshot;
use latpath_model::text::{cut, printable};
use latpath_model::Ns;

const MAGIC: &[u8; 7] = b"LPSPIKE";
/// The version that is written, and the newest that is read.
pub const VERSION: u8 = 1;
/// A longer file is none of latpath's.
pub const MAX_ENCODED: usize = 64 << 20;
const MAX_STREAMS: u64 = 256;
const MAX_MACHINES: u64 = 256;
const MAX_PACKETS: u64 = 1 << 16;
const MAX_SIGHTINGS: u64 = 64;
const MAX_TEXT: u64 = 4096;

/// Why bytes are no capture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCapture {
    /// Something else.
    #[error("this is no spike of latpath's")]
    Other,
    /// A later latpath wrote it.
    #[error(
        "the spike is of version {0}, this latpath reads up to {VERSION}: read it with the latpath that recorded it"
    )]
    Newer(u8),
    /// Cut off, or changed.
    #[error("the spike is damaged: {0}")]
    Damaged(&'static str),
}

/// What a file of captures says without being read as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The capture's number in its run.
    pub number: u32,
    /// Why it was frozen.
    pub kind: CaptureKind,
    /// The host's `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// Likewise.
    pub to: Ns,
    /// What its latest packet took.
    pub worst: Ns,
    /// Packets in it.
    pub packets: u64,
    /// Late packets of each stream, also those without room in it.
    pub late: Vec<u64>,
    /// Late packets that are not in it.
    pub more_late: u64,
}

impl From<&'static str> for BadCapture {
    fn from(what: &'static str) -> Self {
        Self::Damaged(what)
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

const TOO_GREAT: &str = "a number is too great";

fn small<T: TryFrom<u64>>(bytes: &mut Bytes<'_>) -> Result<T, &'static str> {
    T::try_from(bytes.number()?).map_err(|_| TOO_GREAT)
}

/// How many follow, each of at least a byte.
fn count(bytes: &mut Bytes<'_>, most: u64) -> Result<u64, &'static str> {
    let n = bytes.number()?;
    if n > most || n > bytes.0.len() as u64 {
        return Err("it counts more than there can be");
    }
    Ok(n)
}

fn text(bytes: &mut Bytes<'_>) -> Result<String, &'static str> {
    let n = count(bytes, MAX_TEXT)?;
    Ok(printable(&String::from_utf8_lossy(bytes.take(n)?)))
}

fn bounded(text: &str) -> &[u8] {
    cut(text, MAX_TEXT as usize).as_bytes()
}

impl RankedCapture {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Capture { number, kind, from, to, machines, packets, more_late } = &self.capture;
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        let mut head = Vec::new();
        put(&mut head, (*number).into());
        head.push(match kind {
            CaptureKind::Spike => 0,
            CaptureKind::Baseline => 1,
        });
        put_signed(&mut head, *from);
        put_signed(&mut head, to.wrapping_sub(*from));
        put_signed(&mut head, self.worst);
        put(&mut head, packets.len() as u64);
        put(&mut head, *more_late);
        put(&mut head, self.late.len() as u64);
        self.late.iter().for_each(|n| put(&mut head, *n));
        put_block(&mut out, &head);

        let mut body = Vec::new();
        let mut last = *from;
        for p in packets {
            put(&mut body, u64::from(p.stream) << 1 | u64::from(p.late));
            put(&mut body, p.key.into());
            put(&mut body, p.number);
            put(&mut body, p.sightings.len() as u64);
            for s in &p.sightings {
                put_signed(&mut body, s.t.wrapping_sub(last));
                last = s.t;
                put(&mut body, s.point.into());
                put(&mut body, s.cpu.into());
                put(&mut body, s.tid.into());
            }
        }
        put_block(&mut out, &body);

        put(&mut out, machines.len() as u64);
        for m in machines {
            put_block(&mut out, bounded(&m.machine));
            put_signed(&mut out, m.offset_ns);
            put_signed(&mut out, m.error_bound_ns);
            match &m.record {
                Ok(snapshot) => {
                    out.push(1);
                    put_block(&mut out, &snapshot.encode());
                }
                Err(why) => {
                    out.push(0);
                    put_block(&mut out, bounded(why));
                }
            }
        }
        let sum = sum(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Reads what [`Self::encode`] wrote. A machine's record that cannot be read is an error of that machine alone.
    ///
    /// # Errors
    /// Where the bytes are something else, a newer version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadCapture> {
        let (head, mut rest) = head(bytes)?;
        let whole = bytes.split_last_chunk::<8>().filter(|(all, said)| sum(all) == u64::from_le_bytes(**said));
        if bytes.len() > MAX_ENCODED || whole.is_none() {
            return Err(BadCapture::Damaged("its sum is wrong"));
        }
        let mut body = Bytes(rest.block()?);
        let mut packets = Vec::new();
        let mut last = head.from;
        for _ in 0..head.packets {
            let stream = body.number()?;
            let (late, stream) = (stream & 1 == 1, stream >> 1);
            let stream = u16::try_from(stream).map_err(|_| TOO_GREAT)?;
            let (key, number) = (small(&mut body)?, body.number()?);
            let mut sightings = Vec::new();
            for _ in 0..count(&mut body, MAX_SIGHTINGS)? {
                last = last.wrapping_add(body.signed()?);
                sightings.push(PacketSighting {
                    t: last,
                    point: small(&mut body)?,
                    cpu: small(&mut body)?,
                    tid: small(&mut body)?,
                });
            }
            packets.push(Packet { stream, key, number, late, sightings });
        }
        let mut machines = Vec::new();
        for _ in 0..count(&mut rest, MAX_MACHINES)? {
            let machine = text(&mut rest)?;
            let (offset_ns, error_bound_ns) = (rest.signed()?, rest.signed()?);
            let record = match rest.byte()? {
                1 => Snapshot::decode(rest.block()?).map_err(|e| e.to_string()),
                0 => Err(text(&mut rest)?),
                _ => return Err(BadCapture::Damaged("a machine has no record and no reason")),
            };
            machines.push(MachineRecord { machine, offset_ns, error_bound_ns, record });
        }
        let Head { number, kind, from, to, worst, late, more_late, .. } = head;
        Ok(Self { capture: Capture { number, kind, from, to, machines, packets, more_late }, worst, late })
    }
}

impl Head {
    /// The head of a file, from its first bytes.
    ///
    /// # Errors
    /// Where they are something else, a newer version, or too few.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadCapture> {
        head(bytes).map(|(head, _)| head)
    }

    /// Bytes at the beginning of a file that have the whole head.
    pub const MOST_BYTES: usize = 4096;
}

fn head(bytes: &[u8]) -> Result<(Head, Bytes<'_>), BadCapture> {
    let (version, rest) = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first).ok_or(BadCapture::Other)?;
    if *version > VERSION {
        return Err(BadCapture::Newer(*version));
    }
    let mut rest = Bytes(rest);
    let mut r = Bytes(rest.block()?);
    let number = small(&mut r)?;
    let kind = match r.byte()? {
        0 => CaptureKind::Spike,
        1 => CaptureKind::Baseline,
        _ => return Err(BadCapture::Damaged("of no known kind")),
    };
    let from = r.signed()?;
    let to = from.wrapping_add(r.signed()?);
    let worst = r.signed()?;
    let packets = r.number()?;
    if packets > MAX_PACKETS {
        return Err(BadCapture::Damaged("it counts more than there can be"));
    }
    let more_late = r.number()?;
    let late = (0..count(&mut r, MAX_STREAMS)?).map(|_| r.number()).collect::<Result<_, _>>()?;
    Ok((Head { number, kind, from, to, worst, packets, late, more_late }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_flight::{CpuRecord, Event, What, Window};
    use proptest::prelude::*;

    fn frozen(packets: Vec<Packet>, why: &str) -> RankedCapture {
        let events = (0..100).map(|n| Event { t: 1000 + n * 17, pid: n as u32, what: What::SoftirqEntry(3) }).collect();
        let cpu = CpuRecord { cpu: 1, events, since: 1000, overwritten: 5, unfinished: 0 };
        let window = Window { from: 1000, to: 9000, cpus: vec![cpu] };
        let snapshot = Snapshot { window, ..Snapshot::default() };
        let machine =
            |name: &str, record| MachineRecord { machine: name.into(), offset_ns: -5, error_bound_ns: 70, record };
        let machines = vec![machine("host", Ok(snapshot)), machine("guest0", Err(why.into()))];
        let capture =
            Capture { number: 7, kind: CaptureKind::Spike, from: 1000, to: 9000, machines, packets, more_late: 3 };
        RankedCapture { capture, worst: 1234, late: vec![1, 0, 9] }
    }

    prop_compose! {
        fn packet()(
            stream: u16, key: u32, number: u64, late: bool,
            sightings in prop::collection::vec((0..64_u16, any::<i64>(), any::<u16>(), any::<u32>()), 0..8),
        ) -> Packet {
            let sightings = sightings.into_iter().map(|(point, t, cpu, tid)| PacketSighting { point, t, cpu, tid }).collect();
            Packet { stream, key, number, late, sightings }
        }
    }

    proptest! {
        #[test]
        fn a_capture_reads_back_as_it_was_written(packets in prop::collection::vec(packet(), 0..20), why in "[ -~]{0,40}") {
            let bytes = frozen(packets.clone(), &why).encode();
            let back = RankedCapture::decode(&bytes).unwrap();
            let was = frozen(packets, &why);
            prop_assert_eq!(&back.capture.packets, &was.capture.packets);
            let records = |f: &RankedCapture| -> Vec<_> {
                let one = |m: &MachineRecord| (m.machine.clone(), m.offset_ns, m.error_bound_ns, m.record.clone());
                f.capture.machines.iter().map(one).collect()
            };
            prop_assert_eq!(records(&back), records(&was));
            prop_assert_eq!((back.capture.number, back.capture.from, back.capture.to), (7, 1000, 9000));
            prop_assert_eq!((back.capture.more_late, back.worst, &back.late), (3, 1234, &was.late));
            let head = Head::decode(&bytes[..bytes.len().min(Head::MOST_BYTES)]).unwrap();
            prop_assert_eq!((head.number, head.packets, head.late), (7, was.capture.packets.len() as u64, was.late));
        }

        #[test]
        fn bytes_of_any_kind_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index) {
            prop_assert!(RankedCapture::decode(&bytes).is_err());
            let mut whole = frozen(Vec::new(), "gone").encode();
            // What was changed is noticed by the sum; with a sum that is right it is read, or refused, as it comes.
            let at = at.index(whole.len() - 8);
            whole.truncate(at);
            whole.extend(&bytes);
            prop_assert!(RankedCapture::decode(&whole).is_err());
            let sum = sum(&whole);
            whole.extend(sum.to_le_bytes());
            let _ = RankedCapture::decode(&whole);
        }

        #[test]
        fn a_changed_byte_is_noticed(at: prop::sample::Index, by in 1..=255_u8) {
            let mut bytes = frozen(Vec::new(), "gone").encode();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(RankedCapture::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let mut bytes = frozen(Vec::new(), "").encode();
        bytes[MAGIC.len()] = VERSION + 1;
        assert_eq!(RankedCapture::decode(&bytes).unwrap_err(), BadCapture::Newer(VERSION + 1));
    }

    #[test]
    fn a_text_cannot_command_the_terminal() {
        let back = RankedCapture::decode(&frozen(Vec::new(), "a\x1b[2J").encode()).unwrap();
        assert_eq!(back.capture.machines[1].record, Err("a?[2J".into()));
    }
}
