//! What user space and the kernel programs share: the build makes types and numbers of bpf/event.h.

pub(crate) use crate::skel::types::{counts as KernelCounts, event as Event, trial as Trial};
use crate::skel::types::{name_short, selection, trial};

pub(crate) mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// Packets of one search.
pub const MAX_PACKETS: u32 = constants::MAX_PACKETS as u32;
pub(crate) use constants::{CAPTURE, MAX_CODE};

latpath_bpf::plain!(Event, KernelCounts, name_short, selection, trial);

/// What was not seen, or not reported.
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
    /// Packets of which the filter asked for more bytes than the programs read (2048).
    pub beyond: u64,
    /// Packets that the filter was asked about.
    pub looked_at: u64,
    /// Runs of a program that the kernel left out because the same program was at work on that CPU.
    pub recursion_misses: u64,
}

impl From<KernelCounts> for Counts {
    fn from(c: KernelCounts) -> Self {
        Self {
            events_lost: c.events_lost,
            skbs_lost: c.skbs_lost,
            packets_over: c.packets_over,
            unreadable: c.unreadable,
            beyond: c.beyond,
            looked_at: c.looked_at,
            recursion_misses: 0,
        }
    }
}
