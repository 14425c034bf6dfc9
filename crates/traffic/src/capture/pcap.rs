//! pcap: a header, followed by records. The variants differ in the length of a record's header, and some share a magic
//! number: the first records then show which variant it is.

use super::input::{Fault, Input, Order};
use super::Record;
use latpath_model::Ns;

/// Maximum length of a packet, bytes: writers limit Ethernet packets to it, so a longer one means that the file is
/// damaged.
pub(super) const MAX_PACKET: u32 = 262_144;
/// Number of records examined to determine the variant.
const TRIED: usize = 3;

/// Magic numbers, as read in the writer's byte order.
const STANDARD: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Format written with Kuznetzov's patches of 1999.
const MODIFIED: u32 = 0xa1b2_cd34;
/// Ixia's formats, with four additional bytes after the file header; times in nanoseconds (hardware) or microseconds
/// (software).
const IXIA_HARDWARE: u32 = 0x1c00_01ac;
const IXIA_SOFTWARE: u32 = 0x1c00_01ab;

/// Length of a record's header in each variant, bytes.
const PLAIN: usize = 16;
const NOKIA: usize = 20;
const PATCHED: usize = 24;
const PATCHED_WITH_CPUS: usize = 28;

/// Order of a record's two lengths.
#[derive(Clone, Copy)]
enum Lengths {
    CapturedFirst,
    OriginalFirst,
    /// Version 2.3: the greater of the two is the original length.
    Either,
}

pub(super) struct Pcap {
    order: Order,
    /// Unit of the fraction of a second in a record's header, ns.
    unit: Ns,
    /// Length of a record's header, bytes.
    header: usize,
    lengths: Lengths,
    snap_len: u32,
    pub link: u16,
}

/// The magic number and byte order of a pcap file; `None` for other files.
fn magic(bytes: &[u8]) -> Option<(u32, Order)> {
    [false, true].into_iter().find_map(|is_big| {
        let order = Order { is_big };
        let magic = order.u32(bytes, 0);
        [STANDARD, NANOSECONDS, MODIFIED, IXIA_HARDWARE, IXIA_SOFTWARE].contains(&magic).then_some((magic, order))
    })
}

/// Whether the bytes are the beginning of a pcap file.
pub(super) fn is_pcap(bytes: &[u8]) -> bool {
    bytes.len() >= 4 && magic(bytes).is_some()
}

impl Pcap {
    /// Reads the header.
    pub fn open(input: &mut Input<'_>) -> Result<Self, Fault> {
        let Some((magic, order)) = magic(input.need(4)?) else {
            return Err(Fault::Broken("unknown first bytes".into()));
        };
        let is_ixia = matches!(magic, IXIA_HARDWARE | IXIA_SOFTWARE);
        let len = if is_ixia { 28 } else { 24 };
        let bytes = input.need(len)?;
        let version = (order.u16(bytes, 4), order.u16(bytes, 6));
        let (snap_len, mut network) = (order.u32(bytes, 16), order.u32(bytes, 20));
        let mut unit = if matches!(magic, NANOSECONDS | IXIA_HARDWARE) { 1 } else { 1000 };
        if version.0 < 2 {
            return Err(Fault::Broken(format!("pcap version {}.{}; 2.0 and later are known", version.0, version.1)));
        }
        // AIX stores interface types (RFC 1573) instead of link types, and times in nanoseconds.
        let is_aix = magic == STANDARD && version == (2, 2) && matches!(network, 6 | 9 | 15 | 24);
        if is_aix {
            unit = 1;
            network = if network == 6 { 1 } else { u32::from(u16::MAX) };
        }
        // The upper bits encode the length of the frame check sequence; ten of them must be zero.
        if network & 0x03ff_0000 != 0 {
            return Err(Fault::Broken(format!("link type {network:#010x} has unknown bits set")));
        }
        let lengths = match version {
            (2, 0..=2) | (543, _) => Lengths::OriginalFirst,
            (2, 3) => Lengths::Either,
            _ => Lengths::CapturedFirst,
        };
        input.take(len);
        let mut pcap = Self { order, unit, header: PLAIN, lengths, snap_len, link: network as u16 };
        let headers: &[usize] = match magic {
            STANDARD if !is_aix => &[PLAIN, PATCHED, NOKIA],
            MODIFIED => &[PATCHED, PATCHED_WITH_CPUS],
            _ => &[PLAIN],
        };
        if let [_, _, ..] = headers {
            // Of the header lengths with the fewest faults, the first is used.
            let faults = |header: &&usize| pcap.faults(input, **header);
            pcap.header = headers.iter().min_by_key(faults).copied().unwrap_or(PLAIN);
        }
        Ok(pcap)
    }

    /// Counts the faults of the first implausible record, out of the first few, if record headers have this length.
    fn faults(&self, input: &mut Input<'_>, header: usize) -> u32 {
        let mut at = 0;
        for _ in 0..TRIED {
            let bytes = input.peek(at + header);
            let bytes = bytes.get(at..).unwrap_or(&[]);
            if bytes.is_empty() {
                return 0;
            }
            if bytes.len() < header {
                return 1;
            }
            let fraction = self.order.u32(bytes, 4);
            let (captured, original) = self.lengths(bytes);
            let faults = [
                fraction >= 1_000_000,
                captured > MAX_PACKET,
                captured > self.snap_len,
                original > 128 << 20,
                captured > original,
            ];
            if faults.contains(&true) {
                return faults.map(u32::from).iter().sum();
            }
            at += header + captured as usize;
            if input.peek(at).len() < at {
                return 1;
            }
        }
        0
    }

    /// Captured and original length of a record, bytes.
    fn lengths(&self, header: &[u8]) -> (u32, u32) {
        let [first, second] = [8, 12].map(|at| self.order.u32(header, at));
        match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::OriginalFirst => (second, first),
            Lengths::Either => (first.min(second), first.max(second)),
        }
    }

    /// The next record; `None` at the end.
    pub fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Record>, Fault> {
        if input.is_empty()? {
            return Ok(None);
        }
        let bytes = input.need(self.header)?;
        let [seconds, fraction] = [0, 4].map(|at| self.order.u32(bytes, at));
        let (captured, original) = self.lengths(bytes);
        if captured > MAX_PACKET {
            return Err(Fault::Broken(format!("a packet of {captured} bytes; none is longer than {MAX_PACKET}")));
        }
        let (header, len) = (self.header, captured as usize);
        let bytes = input.need(header + len)?[header..].to_vec();
        input.take(header + len);
        let t = Ns::from(seconds) * 1_000_000_000 + Ns::from(fraction) * self.unit;
        Ok(Some(Record { t, interface: 0, len: original as usize, bytes }))
    }
}
