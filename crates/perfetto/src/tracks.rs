//! latpath's rows: each is described once, before its first event.

use crate::proto::{Data, ThreadDescriptor, TrackDescriptor};
use crate::thread_names::ThreadNames;
use crate::writer::{Track, Writer};
use std::io;

/// `ChildTracksOrdering.EXPLICIT`: by rank.
const BY_RANK: i32 = 3;
/// `SiblingMergeBehavior.NONE`: rows with the same name stay separate.
const NEVER_MERGED: i32 = 2;

impl Writer<'_> {
    /// UUID of a row; describes the row if it is new. `name` is called only then.
    pub fn row(&mut self, track: Track, name: impl FnOnce() -> String) -> io::Result<u64> {
        if let Some(uuid) = self.tracks.get(&track) {
            return Ok(*uuid);
        }
        let new = |name: String, rank| TrackDescriptor {
            name: Some(name),
            sibling_order_rank: Some(rank),
            child_ordering: Some(BY_RANK),
            ..TrackDescriptor::default()
        };
        let root = |name: &str, description: &str, rank| {
            (None, TrackDescriptor { description: Some(description.into()), ..new(name.into(), rank) })
        };
        let rank = i32::try_from(self.tracks.len()).unwrap_or(i32::MAX);
        let mut below = |parent: Track, name: String, rank| {
            let row = TrackDescriptor { sibling_merge_behavior: Some(NEVER_MERGED), ..new(name, rank) };
            Ok::<_, io::Error>((Some(self.row(parent, String::new)?), row))
        };
        let by_cpu = |machine: usize, cpu: u32| ((machine as i32) << 16) + (cpu as i32 & 0xffff);
        let (parent_uuid, descriptor) = match track {
            Track::Packets => root("Late packets", "Each with its segments, and what held it.", -30),
            Track::Points => root("Points", "All packets, where they were seen.", -20),
            Track::Contexts => root("Late packets on CPUs", "Seen in softirqs and interrupts, or in a guest.", -10),
            Track::Polls => root("Polls and timers", "Devices polled, and timers' functions.", 10),
            Track::Recorded => below(Track::Packets, "recorded".into(), -1)?,
            Track::Packet(_) => below(Track::Packets, name(), rank)?,
            Track::Why(packet) => below(Track::Packet(packet), "why".into(), 0)?,
            Track::Beside(packet, n) => below(Track::Packet(packet), name(), n as i32)?,
            Track::Point(n) => below(Track::Points, name(), n as i32)?,
            Track::Context(machine, cpu) => below(Track::Contexts, name(), by_cpu(machine, cpu.unwrap_or(u32::MAX)))?,
            Track::Poll(machine, cpu) => below(Track::Polls, name(), by_cpu(machine, cpu))?,
            Track::Thread(..) => unreachable!("threads have their process"),
        };
        self.describe(0, track, TrackDescriptor { parent_uuid, ..descriptor })
    }

    /// UUID of a thread's row; `None` if the thread's process is unknown.
    pub fn thread(&mut self, machine: usize, tid: u32, names: &ThreadNames) -> io::Result<Option<u64>> {
        let track = Track::Thread(machine, tid);
        if let Some(uuid) = self.tracks.get(&track) {
            return Ok(Some(*uuid));
        }
        let number = |n: u32| i32::try_from(n).ok().filter(|n| *n > 0);
        let (Some(number_of), Some(pid)) = (number(tid), names.process(tid).and_then(number)) else { return Ok(None) };
        let thread = Some(ThreadDescriptor { pid: Some(pid), tid: Some(number_of) });
        self.describe(machine, track, TrackDescriptor { thread, ..TrackDescriptor::default() }).map(Some)
    }

    fn describe(&mut self, machine: usize, track: Track, descriptor: TrackDescriptor) -> io::Result<u64> {
        // Perfetto reserves UUID 0.
        let uuid = self.tracks.len() as u64 + 1;
        self.packet(machine, None, Data::TrackDescriptor(TrackDescriptor { uuid: Some(uuid), ..descriptor }))?;
        self.tracks.insert(track, uuid);
        Ok(uuid)
    }
}
