//! A sighting: one packet seen at one point.

use crate::{Ns, Point, PointId, PointInfo, SenderAt, SourceNote, StreamId};
use serde::{Deserialize, Serialize};

/// One packet seen at one point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Time in the machine's `CLOCK_MONOTONIC`, ns; on the host's timeline once the crate `clock` has mapped it.
    pub t: Ns,
    /// The packet's key in its stream: a sequence number, or a hash.
    pub key: u32,
    /// ID of the running thread (in softirqs the interrupted one).
    pub tid: u32,
    /// The packet's stream.
    pub stream: StreamId,
    /// The point; an index into the source's table of points.
    pub point: PointId,
    /// The CPU.
    pub cpu: u16,
    /// For `drop`: index into the source's [`DropNote`]s, plus one. Otherwise 0.
    pub note: u16,
}

/// The send time in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedSend {
    /// Stream of the packet.
    pub stream: StreamId,
    /// The packet's key.
    pub key: u32,
    /// Time of the sighting at which it was read, `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// The send time, on the same clock, ns.
    pub planned: Ns,
    /// Whether the send time was given in this clock itself: the talker runs on this machine, and the error against UTC
    /// does not matter.
    pub is_own_clock: bool,
}

/// A sighting of a known packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSighting {
    /// Index into the run's points.
    pub point: PointId,
    /// Time on the host's timeline, ns.
    pub t: Ns,
    /// CPU of the point's machine on which the packet was seen; `None` if unknown, as in most imported files.
    pub cpu: Option<u16>,
    /// ID of the running thread; in softirqs the interrupted one, 0 for an idle CPU. `None` if unknown.
    pub tid: Option<u32>,
}

impl PacketSighting {
    /// ID of the running thread; `None` for an idle CPU, or if unknown.
    pub fn thread(&self) -> Option<u32> {
        self.tid.filter(|tid| *tid != 0)
    }
}

/// Why and where the kernel dropped a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DropNote {
    /// The kernel's drop reason, e.g. `FULL_RING`, or `unknown` if the kernel reports none (before 5.17).
    pub reason: String,
    /// The kernel function that freed the packet.
    pub function: String,
    /// The `drop` point. Unset in a source's own notes, and in runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Point>,
}

/// Maximum plausible count; a run with a greater count is damaged.
pub const MAX_COUNT: u64 = 1 << 53;

/// Totals of a source since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Sightings delivered.
    pub sightings: u64,
    /// Sightings lost because a buffer was full.
    pub dropped: u64,
    /// Frames with the right ethertype that no parser could read.
    pub malformed: u64,
    /// Sightings lost because the table of points was full.
    pub points_overflow: u64,
    /// Packets whose bytes could not be read in place (paged data on kernels that do not permit it).
    pub unreadable: u64,
    /// Sightings of packets outside the sample; packets are sampled when the rate is too high to follow every one.
    #[serde(default)]
    pub left_out: u64,
    /// Program runs that the kernel skipped because the CPU was already running the program. At most this many
    /// sightings are missing.
    #[serde(default)]
    pub skipped: u64,
    /// Mean time of the programs per sighting, sampled, without the tracepoint's own entry, ns.
    pub ns_per_sighting: u64,
    /// Packets of any kind that the programs examined.
    pub packets_seen: u64,
}

impl Counters {
    /// Limits each count to [`MAX_COUNT`], since a machine may report any number.
    pub fn bounded(self) -> Self {
        let mut bounded = Self { ns_per_sighting: self.ns_per_sighting.min(MAX_COUNT), ..Self::default() };
        bounded.add(&self);
        bounded
    }

    /// Adds the counts of another source. Sums are limited to [`MAX_COUNT`].
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

/// A source of sightings: the kernel programs of this machine, or an agent's stream. A source cannot fail after its
/// creation: if it is dead, the sightings that it has delivered remain valid.
pub trait Source: Send {
    /// The points found so far. Indexes are stable; later calls may return more.
    fn points(&mut self) -> Vec<PointInfo>;

    /// The drop notes found so far. Indexes are stable; later calls may return more.
    fn drop_notes(&mut self) -> Vec<DropNote>;

    /// Appends the available sightings, ordered by time, and returns the watermark: no later call returns an older
    /// sighting.
    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns;

    /// The counts so far.
    fn counters(&mut self) -> Counters;

    /// Notes for the user on the limits of what this source can see.
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
    fn huge_counters_of_a_machine_do_not_overflow_a_sum() {
        let mut all = Counters { sightings: 1, dropped: 2, ..Counters::default() };
        all.add(&Counters { sightings: u64::MAX, dropped: 3, ..Counters::default() });
        assert_eq!((all.sightings, all.dropped), (MAX_COUNT, 5));
        let most = Counters { ns_per_sighting: u64::MAX, skipped: u64::MAX, ..Counters::default() }.bounded();
        assert_eq!((most.ns_per_sighting, most.skipped), (MAX_COUNT, MAX_COUNT));
    }
}
