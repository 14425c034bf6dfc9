//! What user space and the kernel programs share: bpf/event.h.

/// Packets of one search.
pub const MAX_PACKETS: u32 = 4096;
/// Instructions of a pcap filter.
pub const MAX_CODE: usize = 1024;
/// Bytes of a frame that a pcap filter sees.
pub const CAPTURE: usize = 2048;

pub(crate) const FLAG_NEW: u8 = 1;
pub(crate) const FLAG_ADOPTED: u8 = 2;
pub(crate) const FLAG_TAP: u8 = 4;
pub(crate) const FLAG_MACVTAP: u8 = 8;
pub(crate) const FLAG_SOCKET: u8 = 16;
pub(crate) const FLAG_ARRIVED: u8 = 32;

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Function,
    Tracepoint,
    Copy,
}

/// `struct event`.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub t: u64,
    pub skb: u64,
    pub at: u64,
    pub aux: u64,
    pub reason: u32,
    pub packet: u32,
    pub netns: u32,
    pub ifindex: u32,
    pub pid: u32,
    pub tid: u32,
    pub len: u32,
    pub cpu: u16,
    pub kind: EventKind,
    pub flags: u8,
    pub comm: [u8; 16],
    pub device: [u8; 16],
}

/// Bytes of `struct event`.
pub(crate) const EVENT_BYTES: usize = 96;

impl Event {
    /// Reads an event as the programs wrote it.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < EVENT_BYTES {
            return None;
        }
        let u64_at = |i: usize| u64::from_ne_bytes(bytes[i..i + 8].try_into().expect("eight bytes"));
        let u32_at = |i: usize| u32::from_ne_bytes(bytes[i..i + 4].try_into().expect("four bytes"));
        let text = |i: usize| bytes[i..i + 16].try_into().expect("sixteen bytes");
        Some(Self {
            t: u64_at(0),
            skb: u64_at(8),
            at: u64_at(16),
            aux: u64_at(24),
            reason: u32_at(32),
            packet: u32_at(36),
            netns: u32_at(40),
            ifindex: u32_at(44),
            pid: u32_at(48),
            tid: u32_at(52),
            len: u32_at(56),
            cpu: u16::from_ne_bytes([bytes[60], bytes[61]]),
            kind: match bytes[62] {
                0 => EventKind::Function,
                1 => EventKind::Tracepoint,
                _ => EventKind::Copy,
            },
            flags: bytes[63],
            comm: text(64),
            device: text(80),
        })
    }
}

/// What was not seen, or not told: `struct counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that found the buffer to user space full.
    pub events_lost: u64,
    /// Copies of packets that found the table of followed packets full.
    pub skbs_lost: u64,
    /// Packets that would have been chosen, had there not been enough.
    pub packets_over: u64,
    /// Packets whose bytes could not be read where they lay.
    pub unreadable: u64,
    /// Packets of which the filter asked for more bytes than the programs read ([`CAPTURE`]).
    pub beyond: u64,
    /// Packets that the filter was asked about.
    pub looked_at: u64,
    /// Runs of a program that the kernel left out because the same program was at work on that CPU.
    pub recursion_misses: u64,
}

/// Bytes of `struct counts`, with what user space says in front.
pub(crate) const COUNTS_BYTES: usize = 72;

impl Counts {
    /// Reads the counters as the programs keep them.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let at = |i: usize| {
            bytes.get(i * 8..i * 8 + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight bytes")))
        };
        Self {
            events_lost: at(3),
            skbs_lost: at(4),
            packets_over: at(5),
            unreadable: at(6),
            beyond: at(7),
            looked_at: at(8),
            recursion_misses: 0,
        }
    }

    /// The counters as they are when the programs may begin. `pages`: where the kernel keeps the addresses of its struct
    /// pages and of its pages.
    pub(crate) fn open(pages: [u64; 2]) -> [u8; COUNTS_BYTES] {
        let mut bytes = [0; COUNTS_BYTES];
        for (i, v) in [1, pages[0], pages[1]].into_iter().enumerate() {
            bytes[i * 8..i * 8 + 8].copy_from_slice(&v.to_ne_bytes());
        }
        bytes
    }
}
