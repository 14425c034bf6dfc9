//! What was frozen around late packets: all machines' records of that time, and the packets.

use latpath_flight::Snapshot;
use latpath_model::{Ns, PointId, StreamId};

/// Why a time was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CaptureKind {
    /// A packet was late.
    Spike = 0,
    /// All packets were on time: baselines are learnt from these.
    Baseline = 1,
}

/// A time, frozen: what all machines did in it, and the packets that were on their way.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Its number in the run, from 1.
    pub number: u32,
    /// Why it was frozen.
    pub kind: CaptureKind,
    /// The host's `CLOCK_MONOTONIC`. The machines' records reach from here …
    pub from: Ns,
    pub to: Ns,
    /// The host first.
    pub machines: Vec<MachineSnapshot>,
    /// Packets that were seen anywhere in this time, each with all its sightings, by the time of the first.
    pub packets: Vec<Packet>,
    /// Late packets that `packets` omits.
    pub more_late: u64,
}

impl Capture {
    /// Whether all of the packet's sightings lie in this time, so that the records can explain it.
    pub fn has_all_of(&self, packet: &Packet) -> bool {
        packet.sightings.iter().all(|s| (self.from..=self.to).contains(&s.t))
    }
}

/// A capture, and its rank among others.
#[derive(Clone, Debug)]
pub struct RankedCapture {
    pub capture: Capture,
    /// What its latest packet took: over all, or in the longest of its segments.
    pub worst: Ns,
    /// Late packets of each stream, also omitted ones, without those that an earlier capture has.
    pub late: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct MachineSnapshot {
    /// The name that the user gave.
    pub machine: String,
    /// Its clock minus the host's, at this time.
    pub offset_ns: Ns,
    /// How wrong that can be.
    pub error_bound_ns: Ns,
    /// What its CPUs did, in its own clock; or why that is not here.
    pub record: Result<Snapshot, String>,
}

impl Capture {
    /// Memory of what the machines recorded.
    pub fn record_bytes(&self) -> usize {
        self.machines.iter().filter_map(|m| m.record.as_ref().ok()).map(Snapshot::bytes).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub stream: StreamId,
    /// The packet's key in its stream.
    pub key: u32,
    pub number: u64,
    /// It was over the threshold, and all its sightings lie in the capture's time: this capture explains it. A packet with a
    /// sighting outside is here since others may have waited for it.
    pub late: bool,
    /// In the order of their times.
    pub sightings: Vec<PacketSighting>,
}

/// The CPU of a sighting of which that is not known: of imported packets.
pub const UNKNOWN_CPU: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSighting {
    /// The point: an index into the run's points.
    pub point: PointId,
    /// When, on the host's timeline.
    pub t: Ns,
    /// The CPU that took it, of the point's machine; [`UNKNOWN_CPU`] where that is not known.
    pub cpu: u16,
    /// The thread that ran then; in softirqs the one that was interrupted, 0 for an idle CPU, or where
    /// it is not known.
    pub tid: u32,
}
