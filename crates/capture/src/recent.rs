//! The recent packets with all their sightings, in bounded memory.

use crate::Packet;
use latpath_journey::Journey;
use latpath_model::{Ns, PacketSighting, PointId, StreamId};
use std::collections::VecDeque;

/// Maximum memory of packets and sightings, bytes: some 100,000 packets, each seen at three points.
const BYTES: usize = 11 << 20;

/// CPU number that marks a computed time, which has no CPU.
const NO_CPU: u16 = u16::MAX;

/// A packet. Its sightings follow the previous packet's in [`Recent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecentPacket {
    pub number: u64,
    pub first: Ns,
    pub last: Ns,
    /// Its longest time over any segment of its stream, ns; `None` if it completed no segment.
    pub time: Option<Ns>,
    /// Index of its first sighting among all sightings ever added.
    at: u64,
    pub key: u32,
    pub stream: StreamId,
    sightings: u8,
    /// Whether all points of its route saw it.
    pub whole: bool,
    /// Whether it has been counted among the late packets of a capture.
    pub counted: bool,
}

impl RecentPacket {
    /// Whether it was in flight at any time in this interval.
    pub fn is_in(&self, from: Ns, to: Ns) -> bool {
        self.first <= to && self.last >= from
    }
}

#[derive(Clone, Copy, Debug)]
struct Compact {
    /// Time after the packet's first sighting, ns.
    dt: i64,
    tid: u32,
    cpu: u16,
    point: PointId,
}

/// Ring of recent packets.
#[derive(Debug)]
pub(crate) struct Recent {
    packets: VecDeque<RecentPacket>,
    sightings: VecDeque<Compact>,
    /// Number of evicted sightings.
    evicted: u64,
    most_bytes: usize,
}

impl Recent {
    pub fn new() -> Self {
        Self { packets: VecDeque::new(), sightings: VecDeque::new(), evicted: 0, most_bytes: BYTES }
    }

    /// Adds a packet, and evicts the oldest ones if the limit is exceeded. `first` is the time of its first sighting.
    pub fn push(&mut self, journey: &Journey, first: Ns, time: Option<Ns>, whole: bool) -> RecentPacket {
        let at = self.evicted + self.sightings.len() as u64;
        let (mut left, mut last, mut n) = (journey.seen, first, 0);
        while left != 0 {
            let point = left.trailing_zeros() as usize;
            left &= left - 1;
            let t = journey.t[point];
            last = last.max(t);
            n += 1;
            let dt = t.wrapping_sub(first);
            let is_computed = journey.samples >> point & 1 == 1;
            let (tid, cpu) = if is_computed { (0, NO_CPU) } else { (journey.tid[point], journey.cpu[point]) };
            room_for_one(&mut self.sightings);
            self.sightings.push_back(Compact { dt, tid, cpu, point: point as PointId });
        }
        let (number, key, stream) = (journey.number, journey.key, journey.stream);
        let held = RecentPacket { number, first, last, time, at, key, stream, sightings: n, whole, counted: false };
        room_for_one(&mut self.packets);
        self.packets.push_back(held);
        while self.bytes() > self.most_bytes && self.packets.len() > 1 {
            self.drop_oldest();
        }
        held
    }

    fn bytes(&self) -> usize {
        self.packets.len() * size_of::<RecentPacket>() + self.sightings.len() * size_of::<Compact>()
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.packets.pop_front() else { return };
        self.sightings.drain(..usize::from(oldest.sightings));
        self.evicted += u64::from(oldest.sightings);
    }

    /// Evicts packets that ended before this time.
    pub fn forget(&mut self, before: Ns) {
        while self.packets.front().is_some_and(|p| p.last < before) {
            self.drop_oldest();
        }
    }

    /// Packets that were in flight at any time in this interval.
    pub fn within(&self, from: Ns, to: Ns) -> impl Iterator<Item = &RecentPacket> {
        self.packets.iter().filter(move |p| p.is_in(from, to))
    }

    /// Like [`Self::within`], mutable.
    pub fn within_mut(&mut self, from: Ns, to: Ns) -> impl Iterator<Item = &mut RecentPacket> {
        self.packets.iter_mut().filter(move |p| p.is_in(from, to))
    }

    pub fn packet(&self, held: &RecentPacket, late: bool) -> Packet {
        let begin = held.at.saturating_sub(self.evicted) as usize;
        let seen = |s: &Compact| PacketSighting {
            point: s.point,
            t: held.first.wrapping_add(s.dt),
            cpu: Some(s.cpu).filter(|cpu| *cpu != NO_CPU),
            tid: Some(s.tid).filter(|_| s.cpu != NO_CPU),
        };
        let end = begin + usize::from(held.sightings);
        let mut sightings: Vec<PacketSighting> =
            self.sightings.range(begin..end.min(self.sightings.len())).map(seen).collect();
        sightings.sort_by_key(|s| (s.t, s.point));
        Packet { stream: held.stream, key: held.key, number: held.number, late, sightings }
    }
}

/// Makes room for one element. A long list grows by an eighth only, because doubling could use twice the intended
/// memory.
fn room_for_one<T>(list: &mut VecDeque<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journey<'a>(number: u64, t: &'a [Ns], cpu: &'a [u16], tid: &'a [u32]) -> Journey<'a> {
        let seen = (1 << t.len()) - 1;
        Journey {
            stream: 1,
            key: 7,
            number,
            seen,
            samples: 0,
            t,
            cpu,
            tid,
            duplicates: 0,
            out_of_order: false,
            drop_note: 0,
            missing_before: 0,
        }
    }

    #[test]
    fn a_packet_reads_back_with_its_sightings_in_order_of_time() {
        let mut recent = Recent::new();
        let held = recent.push(&journey(3, &[20, 10, 30], &[1, 2, 3], &[4, 5, 6]), 10, Some(20), true);
        let packet = recent.packet(&held, true);
        let times: Vec<_> = packet.sightings.iter().map(|s| (s.point, s.t, s.cpu, s.tid)).collect();
        assert_eq!(times, [(1, 10, Some(2), Some(5)), (0, 20, Some(1), Some(4)), (2, 30, Some(3), Some(6))]);
        assert_eq!((packet.stream, packet.key, packet.number, packet.late), (1, 7, 3, true));
    }

    #[test]
    fn without_room_the_oldest_are_evicted_and_the_rest_stays_correct() {
        let most_bytes = 3 * size_of::<RecentPacket>() + 6 * size_of::<Compact>();
        let mut recent = Recent { most_bytes, ..Recent::new() };
        for n in 0..5 {
            let t = n as Ns * 100;
            recent.push(&journey(n, &[t, t + 1], &[0, 1], &[n as u32, 9]), t, None, false);
        }
        let kept: Vec<_> = recent.within(0, 1000).map(|p| recent.packet(p, false)).collect();
        assert_eq!(kept.iter().map(|p| p.number).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(kept.iter().map(|p| p.sightings[0].tid).collect::<Vec<_>>(), [2, 3, 4].map(Some));
        recent.forget(302);
        assert_eq!(recent.within(0, 1000).map(|p| p.number).collect::<Vec<_>>(), [4]);
    }
}
