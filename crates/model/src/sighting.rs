//! A sighting: one packet seen at one point.

use crate::{Ns, Point, PointId, PointInfo, SenderAt, SourceNote, StreamId};
use serde::{Deserialize, Serialize};

/// One packet seen at one point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// When, in the machine's `CLOCK_MONOTONIC` (or on the host's timeline, once crate clock has mapped it).
    pub t: Ns,
    /// The packet's key in its stream: a sequence number, or a hash.
    pub key: u32,
    /// Thread that ran at the time (for softirqs: the interrupted one).
    pub tid: u32,
    pub stream: StreamId,
    /// The point; an index into the table of whoever hands the sighting over.
    pub point: PointId,
    pub cpu: u16,
    /// For `drop`: index into the source's [`DropNote`]s, plus one. Otherwise 0.
    pub note: u16,
}

/// Why and where the kernel gave a packet up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DropNote {
    /// The kernel's reason (`FULL_RING`), or `unknown` where the kernel gives none (before 5.17).
    pub reason: String,
    /// The kernel function that freed it.
    pub function: String,
    /// The `drop` point at which it did. A source's own notes have none, nor have those of runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Point>,
}

/// Counts beyond this are not of this world, and a run that holds one is damaged.
pub const MAX_COUNT: u64 = 1 << 53;

/// What a source counted since it was attached. All are totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub sightings: u64,
    /// Sightings lost because a buffer was full.
    pub dropped: u64,
    /// Frames of the right ethertype that no parser could read.
    pub malformed: u64,
    /// Sightings not made because the table of points was full.
    pub points_overflow: u64,
    /// Packets whose bytes could not be read where they lay (paged data on a kernel that does not let us).
    pub unreadable: u64,
    /// Sightings of packets that are not in the sample, where the rate was too high to follow every packet.
    #[serde(default)]
    pub left_out: u64,
    /// Times the kernel left a program out because the CPU was running it already: as many sightings at most are missing.
    #[serde(default)]
    pub skipped: u64,
    /// Time spent in the programs for one sighting, sampled; the tracepoint's own entry is not in it.
    pub ns_per_sighting: u64,
    /// Packets of any kind that the programs looked at.
    pub packets_seen: u64,
}

impl Counters {
    /// The same, none beyond [`MAX_COUNT`]: a machine may say any number of itself.
    pub fn bounded(self) -> Self {
        let mut bounded = Self { ns_per_sighting: self.ns_per_sighting.min(MAX_COUNT), ..Self::default() };
        bounded.add(&self);
        bounded
    }

    /// Adds what another source counted. A sum stays at [`MAX_COUNT`].
    pub fn add(&mut self, other: &Self) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b).min(MAX_COUNT);
        add(&mut self.sightings, other.sightings);
        add(&mut self.dropped, other.dropped);
        add(&mut self.malformed, other.malformed);
        add(&mut self.points_overflow, other.points_overflow);
        add(&mut self.unreadable, other.unreadable);
        add(&mut self.left_out, other.left_out);
        add(&mut self.skipped, other.skipped);
        add(&mut self.packets_seen, other.packets_seen);
    }
}

/// Anything that makes sightings: the kernel programs of this machine, or an agent's stream. It cannot fail once it is there: one that
/// died keeps what it had said.
pub trait Source: Send {
    /// The points found so far. Indexes stay; later calls may return more.
    fn points(&mut self) -> Vec<PointInfo>;

    /// The drop notes found so far. Indexes stay; later calls may return more.
    fn drop_notes(&mut self) -> Vec<DropNote>;

    /// Appends the sightings that are ready, ordered by time, and returns the watermark: no later call
    /// returns a sighting older than it.
    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns;

    /// What was counted so far.
    fn counters(&mut self) -> Counters;

    /// What the user must know by now of what this source sees, and cannot see.
    fn source_notes(&mut self) -> Vec<SourceNote> {
        Vec::new()
    }

    /// Senders of the streams, each with the points that have seen its packets so far.
    fn senders(&mut self) -> Vec<SenderAt> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_counts_without_end_does_not_overflow_a_sum() {
        let mut all = Counters { sightings: 1, dropped: 2, ..Counters::default() };
        all.add(&Counters { sightings: u64::MAX, dropped: 3, ..Counters::default() });
        assert_eq!((all.sightings, all.dropped), (MAX_COUNT, 5));
        let most = Counters { ns_per_sighting: u64::MAX, skipped: u64::MAX, ..Counters::default() }.bounded();
        assert_eq!((most.ns_per_sighting, most.skipped), (MAX_COUNT, MAX_COUNT));
    }
}
