//! Rows that are latpath's own: each is described once, when the first event on it is written.

use crate::proto::{ThreadDescriptor, TrackDescriptor};
use crate::writer::Writer;
use std::collections::HashMap;
use std::io::{self, Write};

/// `ChildTracksOrdering.EXPLICIT`: by rank.
const BY_RANK: i32 = 3;
/// `SiblingMergeBehavior.NONE`: rows of the same name are not one.
const NEVER_MERGED: i32 = 2;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Track {
    /// Of all captures.
    Recorded,
    /// Above those of the packets.
    Packets,
    /// A packet's journey.
    Packet(u64),
    /// What held it, below.
    Why(u64),
    /// Segments of a packet that overlap others, below; the number tells several apart.
    Beside(u64, usize),
    /// Above those of the points.
    Points,
    /// All packets at a point.
    Point(usize),
    /// Above those of contexts.
    Contexts,
    /// Packets that were seen on a machine's CPU, and in no thread of the host.
    Context(usize, u32),
    /// Above those of polls and timers.
    Polls,
    /// Polls of devices, and timers, on a machine's CPU.
    Poll(usize, u32),
    /// A thread of a machine: Perfetto's own row.
    Thread(usize, u32),
}

/// Rows by what they are.
#[derive(Default)]
pub(crate) struct Tracks {
    known: HashMap<Track, u64>,
}

impl Tracks {
    /// The row's number. `name` is asked only when the row is new.
    pub fn of<W: Write>(
        &mut self,
        out: &mut Writer<W>,
        track: Track,
        name: impl FnOnce() -> String,
    ) -> io::Result<u64> {
        if let Some(uuid) = self.known.get(&track) {
            return Ok(*uuid);
        }
        let root = |name: &str, description: &str, rank| TrackDescriptor {
            name: Some(name.into()),
            description: Some(description.into()),
            sibling_order_rank: Some(rank),
            child_ordering: Some(BY_RANK),
            ..TrackDescriptor::default()
        };
        let rank = i32::try_from(self.known.len()).unwrap_or(i32::MAX);
        let row = |name: String, rank| TrackDescriptor {
            name: Some(name),
            sibling_order_rank: Some(rank),
            sibling_merge_behavior: Some(NEVER_MERGED),
            child_ordering: Some(BY_RANK),
            ..TrackDescriptor::default()
        };
        let mut above = |track: Track| self.of(out, track, String::new).map(Some);
        let by_cpu = |machine: usize, cpu: u32| ((machine as i32) << 16) + (cpu as i32 & 0xffff);
        let (parent, mut descriptor) = match track {
            Track::Packets => (None, root("Late packets", "Each with its segments, and what held it.", -30)),
            Track::Points => (None, root("Points", "All packets, where they were seen.", -20)),
            Track::Contexts => {
                (None, root("Late packets on CPUs", "Seen in softirqs and interrupts, or in a guest.", -10))
            }
            Track::Polls => (None, root("Polls and timers", "Devices polled, and timers' functions.", 10)),
            Track::Recorded => (above(Track::Packets)?, row("recorded".into(), -1)),
            Track::Packet(_) => (above(Track::Packets)?, row(name(), rank)),
            Track::Why(packet) => (above(Track::Packet(packet))?, row("why".into(), 0)),
            Track::Beside(packet, n) => (above(Track::Packet(packet))?, row(name(), n as i32)),
            Track::Point(n) => (above(Track::Points)?, row(name(), n as i32)),
            Track::Context(machine, cpu) => (above(Track::Contexts)?, row(name(), by_cpu(machine, cpu))),
            Track::Poll(machine, cpu) => (above(Track::Polls)?, row(name(), by_cpu(machine, cpu))),
            Track::Thread(..) => unreachable!("threads have their process"),
        };
        descriptor.parent_uuid = parent;
        self.describe(out, 0, track, descriptor)
    }

    /// The row of a thread, of this process.
    pub fn thread<W: Write>(
        &mut self,
        out: &mut Writer<W>,
        machine: usize,
        tid: u32,
        process: impl FnOnce() -> Option<u32>,
    ) -> io::Result<Option<u64>> {
        let track = Track::Thread(machine, tid);
        if let Some(uuid) = self.known.get(&track) {
            return Ok(Some(*uuid));
        }
        let number = |n: u32| i32::try_from(n).ok().filter(|n| *n > 0);
        let (Some(tid), Some(pid)) = (number(tid), process().and_then(number)) else { return Ok(None) };
        let thread = Some(ThreadDescriptor { pid: Some(pid), tid: Some(tid) });
        self.describe(out, machine, track, TrackDescriptor { thread, ..TrackDescriptor::default() }).map(Some)
    }

    fn describe<W: Write>(
        &mut self,
        out: &mut Writer<W>,
        machine: usize,
        track: Track,
        descriptor: TrackDescriptor,
    ) -> io::Result<u64> {
        // 0 is Perfetto's own.
        let uuid = self.known.len() as u64 + 1;
        out.track(machine, TrackDescriptor { uuid: Some(uuid), ..descriptor })?;
        self.known.insert(track, uuid);
        Ok(uuid)
    }
}
