//! A capture: the records of all machines around late packets, together with the packets.

use latpath_flight::Snapshot;
use latpath_model::{Ns, PacketSighting, StreamId};

/// Why a capture was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CaptureKind {
    /// A packet was late.
    Spike = 0,
    /// All packets were on time: the capture serves to learn a baseline.
    Baseline = 1,
}

/// An interval of time: the records of all machines, and the packets that were in flight.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Number of the capture in the run, from 1.
    pub number: u32,
    /// Why the capture was made.
    pub kind: CaptureKind,
    /// Start of the machines' records, host's `CLOCK_MONOTONIC`, ns.
    pub from: Ns,
    /// End of the machines' records, host's `CLOCK_MONOTONIC`, ns.
    pub to: Ns,
    /// The machines' records, the host's first.
    pub machines: Vec<MachineSnapshot>,
    /// Packets seen anywhere in this interval, each with all its sightings, ordered by their first sightings.
    pub packets: Vec<Packet>,
    /// Number of late packets omitted from `packets`.
    pub more_late: u64,
}

impl Capture {
    /// Whether all sightings of the packet are in the interval, so that the records can explain it.
    pub fn has_all_of(&self, packet: &Packet) -> bool {
        packet.sightings.iter().all(|s| (self.from..=self.to).contains(&s.t))
    }
}

/// A capture and its rank.
#[derive(Clone, Debug)]
pub struct RankedCapture {
    /// The capture.
    pub capture: Capture,
    /// Time of its slowest late packet, ns: the longest over any of the packet's segments.
    pub worst: Ns,
    /// Number of late packets per stream, including omitted ones, but not those already counted in an earlier capture.
    pub late: Vec<u64>,
}

/// The record of one machine.
#[derive(Clone, Debug)]
pub struct MachineSnapshot {
    /// Name of the machine, as given by the user.
    pub machine: String,
    /// Its clock minus the host's during the interval, ns.
    pub offset_ns: Ns,
    /// Maximum error of `offset_ns`, ns.
    pub error_bound_ns: Ns,
    /// Events of its CPUs, in its own clock; or the reason why there are none.
    pub record: Result<Snapshot, String>,
}

impl Capture {
    /// Memory of the machines' records, bytes.
    pub fn record_bytes(&self) -> usize {
        self.machines.iter().filter_map(|m| m.record.as_ref().ok()).map(Snapshot::bytes).sum()
    }
}

/// A packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its stream.
    pub stream: StreamId,
    /// Its key in the stream.
    pub key: u32,
    /// Its index in the stream.
    pub number: u64,
    /// Whether the packet was over the threshold and all its sightings are in the interval, so that this capture
    /// explains it. Packets with a sighting outside are included too, because others may have waited for them.
    pub late: bool,
    /// Sightings, in order of time.
    pub sightings: Vec<PacketSighting>,
}
