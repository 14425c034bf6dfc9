//! The kept journeys of one stream: flat rings indexed by a journey's number, and an index by key.
//!
//! Numbers `tail..emit` are tombstones (handed out, kept to recognise late and duplicate packets), `emit..head` are
//! open. A head of 32 bytes is kept for all of them, times only for the open ones. The index is a table of buckets;
//! each bucket names the newest journey of a chain through the heads, from newer to older. Chains end at the tail, so
//! journeys need not be unlinked.

use crate::copies::CopyPoints;
use crate::journey::{bits, Journey};
use latpath_model::{Ns, PointId, Sighting, StreamId};
use std::collections::VecDeque;

/// Minimum capacity of a ring, journeys.
pub(crate) const MIN_SLOTS: usize = 64;
/// Maximum number of steps along a chain for one sighting; a stream needs more only if its keys repeat within a few
/// packets.
const MAX_CHAIN: usize = 256;

/// The fixed-size part of a journey.
#[derive(Clone, Copy, Default)]
pub(crate) struct Head {
    pub seen: u64,
    pub first: Ns,
    pub key: u32,
    /// Distance in numbers to the next older journey of the bucket; 0 for none.
    pub older: u32,
    pub drop_note: u16,
    /// Whether a point other than a drop has seen the packet.
    pub placed: bool,
    /// Whether the number gives the packet's place in the stream: it was first seen at or near the head of the stream.
    pub in_place: bool,
    /// Whether the packet was first seen at the lead, where most packets are first seen.
    pub by_lead: bool,
}

#[derive(Default)]
pub(crate) struct Ring {
    pub tail: u64,
    pub emit: u64,
    pub head: u64,
    heads: Vec<Head>,
    /// Low 32 bits of the newest number of each bucket; as many buckets as heads.
    buckets: Vec<u32>,
    /// Capacity of a row of times, points.
    stride: usize,
    slots: usize,
    t: Vec<Ns>,
    cpu: Vec<u16>,
    tid: Vec<u32>,
    /// Number of repeated sightings at each point, and the flag [`OVERTAKEN`].
    again: Vec<u16>,
    /// Open journeys directly after a gap, and the number of packets missing there.
    gaps: VecDeque<(u64, u32)>,
}

/// The packet reached the point after a later one.
const OVERTAKEN: u16 = 1 << 15;

/// Size of an open journey's sightings, bytes: time, CPU, thread and duplicates for each point.
pub(crate) fn row_bytes(stride: usize) -> usize {
    stride * (8 + 2 + 4 + 2)
}

impl Ring {
    pub fn new(stride: usize) -> Self {
        let (heads, buckets) = (vec![Head::default(); MIN_SLOTS], vec![u32::MAX; MIN_SLOTS]);
        let mut ring = Self { heads, buckets, ..Self::default() };
        ring.resize_rows(stride, MIN_SLOTS);
        ring
    }

    /// Capacity for open journeys.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Capacity for heads.
    pub fn head_slots(&self) -> usize {
        self.heads.len()
    }

    pub fn open(&self) -> u64 {
        self.head - self.emit
    }

    pub fn bytes(&self) -> usize {
        self.heads.len() * (size_of::<Head>() + 4) + self.slots * row_bytes(self.stride)
    }

    pub fn get(&self, number: u64) -> &Head {
        &self.heads[number as usize & (self.heads.len() - 1)]
    }

    pub fn get_mut(&mut self, number: u64) -> &mut Head {
        let mask = self.heads.len() - 1;
        &mut self.heads[number as usize & mask]
    }

    fn bucket(&self, key: u32) -> usize {
        // Fibonacci hashing: neighbouring keys fall into different buckets, whatever the step between them.
        let spread = u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (spread >> 32) as usize & (self.heads.len() - 1)
    }

    /// The newest journey in the bucket of this key, whatever its own key. It may no longer be kept; the bucket has no
    /// newer journey with this key.
    pub fn newest_with_hash_of(&self, key: u32) -> Option<u64> {
        let newest = self.buckets[self.bucket(key)];
        // The bucket stores the low 32 bits; the journey is the greatest number that has them. A stale bucket may name
        // a journey of another chain, which is harmless because keys are compared.
        let back = (self.head as u32).wrapping_sub(newest);
        self.head.checked_sub(u64::from(back)).filter(|_| back != 0)
    }

    /// The kept journeys with this key, newest first.
    pub fn with_key(&self, key: u32) -> Chain<'_> {
        Chain { ring: self, next: self.newest_with_hash_of(key), key, steps: 0 }
    }

    /// Adds an open journey and returns its number. Both rings must have room.
    pub fn add(&mut self, head: Head) -> u64 {
        let number = self.head;
        debug_assert!(self.open() < self.slots as u64 && number - self.tail < self.heads.len() as u64);
        *self.get_mut(number) = head;
        self.head += 1;
        self.link(number);
        number
    }

    fn link(&mut self, number: u64) {
        let bucket = self.bucket(self.get(number).key);
        let back = (number as u32).wrapping_sub(self.buckets[bucket]);
        let known = number.checked_sub(u64::from(back)).is_some_and(|older| older >= self.tail);
        self.get_mut(number).older = if known { back } else { 0 };
        self.buckets[bucket] = number as u32;
    }

    fn row(&self, number: u64) -> usize {
        (number as usize & (self.slots - 1)) * self.stride
    }

    /// Records a sighting of an open journey.
    pub fn mark(&mut self, number: u64, s: &Sighting) {
        let at = self.row(number) + usize::from(s.point);
        self.t[at] = s.t;
        self.cpu[at] = s.cpu;
        self.tid[at] = s.tid;
        self.again[at] = 0;
        self.get_mut(number).seen |= 1 << s.point;
    }

    /// Sets the times of the first and the second copy of a packet from those of the LANs. Returns whether the first
    /// copy was just seen.
    pub fn mark_copies(&mut self, number: u64, at: &CopyPoints) -> bool {
        let (seen, row) = (self.get(number).seen, self.row(number));
        let earliest = |lan: u64| bits(seen & lan).min_by_key(|point| self.t[row + point]);
        let (first, second) = match at.lans.map(earliest) {
            [Some(a), Some(b)] if self.t[row + b] < self.t[row + a] => (Some(b), Some(a)),
            [None, b] => (b, None),
            [a, b] => (a, b),
        };
        for (from, to) in [(first, at.first), (second, at.second)] {
            let Some(from) = from else { continue };
            let (from, to_row) = (row + from, row + usize::from(to));
            (self.t[to_row], self.cpu[to_row], self.tid[to_row]) = (self.t[from], self.cpu[from], self.tid[from]);
            if seen >> to & 1 == 0 {
                self.again[to_row] = 0;
                self.get_mut(number).seen |= 1 << to;
            }
        }
        first.is_some() && seen >> at.first & 1 == 0
    }

    /// Records a repeated sighting of an open journey at a point.
    pub fn repeat(&mut self, number: u64, point: PointId) {
        let at = self.row(number) + usize::from(point);
        if self.again[at] & !OVERTAKEN < OVERTAKEN - 1 {
            self.again[at] += 1;
        }
    }

    /// Records that an open journey reached a point after a later packet.
    pub fn overtake(&mut self, number: u64, point: PointId) {
        let at = self.row(number) + usize::from(point);
        self.again[at] |= OVERTAKEN;
    }

    /// Number of repeated sightings of a journey at its reader, and whether it arrived there after a later journey.
    /// Without a reader: the maximum over all points, and whether at any point.
    fn again(&self, number: u64, reader: Option<PointId>) -> (u32, bool) {
        let (seen, row) = (self.get(number).seen, self.row(number));
        let points = bits(seen & reader.map_or(u64::MAX, |reader| 1 << reader));
        points.fold((0, false), |(most, overtaken), point| {
            let again = self.again[row + point];
            (most.max(u32::from(again & !OVERTAKEN)), overtaken || again & OVERTAKEN != 0)
        })
    }

    /// The view of an open journey.
    pub fn journey(&self, stream: StreamId, number: u64, reader: Option<PointId>) -> Journey<'_> {
        let (head, row) = (self.get(number), self.row(number));
        let (duplicates, out_of_order) = self.again(number, reader);
        Journey {
            stream,
            key: head.key,
            number,
            seen: head.seen,
            samples: 0,
            t: &self.t[row..row + self.stride],
            cpu: &self.cpu[row..row + self.stride],
            tid: &self.tid[row..row + self.stride],
            duplicates,
            out_of_order,
            drop_note: head.drop_note,
            missing_before: self.missing_before(number),
        }
    }

    /// Number of packets missing directly before a journey. The gaps are sorted by journey.
    fn missing_before(&self, number: u64) -> u32 {
        self.gaps.binary_search_by_key(&number, |(at, _)| *at).map_or(0, |found| self.gaps[found].1)
    }

    /// Records missing packets directly before the newest journey.
    pub fn note_gap(&mut self, missing: u64) {
        while self.gaps.front().is_some_and(|(number, _)| *number < self.emit) {
            self.gaps.pop_front();
        }
        self.gaps.push_back((self.head - 1, missing.try_into().unwrap_or(u32::MAX)));
    }

    /// Removes a late packet from the gap in which it was missing, if that is one of the last `most` gaps.
    /// `reaches(from, to, packets)`: whether the sequence gets from one key to another within this many packets.
    pub fn fill_gap(&mut self, key: u32, most: u64, reaches: impl Fn(u32, u32, u64) -> bool) {
        let (heads, mask) = (&self.heads, self.heads.len() - 1);
        let is_here = |(number, missing): &&mut (u64, u32)| {
            *missing > 0 && reaches(key, heads[*number as usize & mask].key, u64::from(*missing))
        };
        if let Some((_, missing)) = self.gaps.iter_mut().rev().take(most as usize).find(is_here) {
            *missing -= 1;
        }
    }

    /// Latest time at any point of an open journey.
    pub fn last_time(&self, number: u64) -> Ns {
        let row = self.row(number);
        bits(self.get(number).seen).map(|point| self.t[row + point]).max().unwrap_or(Ns::MIN)
    }

    /// Grows the capacity for heads to `slots`, a power of two.
    pub fn resize_heads(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.heads, vec![Head::default(); slots]);
        self.buckets = vec![u32::MAX; slots];
        let head = self.head;
        // A journey's number matches the value of an empty bucket only after 2^32 journeys; `link` then rejects that
        // journey as too old.
        for number in self.tail..head {
            *self.get_mut(number) = old[number as usize & (old.len() - 1)];
            self.link(number);
        }
    }

    /// Grows the rings of open journeys to `slots` journeys, a power of two, or to `stride` points.
    pub fn resize_rows(&mut self, stride: usize, slots: usize) {
        let mut t = vec![0; slots * stride];
        let mut cpu = vec![0; slots * stride];
        let mut tid = vec![0; slots * stride];
        let mut again = vec![0; slots * stride];
        for number in self.emit..self.head {
            let (from, to) = (self.row(number), (number as usize & (slots - 1)) * stride);
            t[to..to + self.stride].copy_from_slice(&self.t[from..from + self.stride]);
            cpu[to..to + self.stride].copy_from_slice(&self.cpu[from..from + self.stride]);
            tid[to..to + self.stride].copy_from_slice(&self.tid[from..from + self.stride]);
            again[to..to + self.stride].copy_from_slice(&self.again[from..from + self.stride]);
        }
        (self.t, self.cpu, self.tid, self.again, self.stride, self.slots) = (t, cpu, tid, again, stride, slots);
    }
}

/// The iterator that [`Ring::with_key`] returns.
pub(crate) struct Chain<'a> {
    ring: &'a Ring,
    next: Option<u64>,
    key: u32,
    steps: usize,
}

impl Chain<'_> {
    /// Whether the walk was cut short.
    pub fn cut(&self) -> bool {
        self.steps > MAX_CHAIN
    }
}

impl<'a> Iterator for Chain<'a> {
    type Item = (u64, &'a Head);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let number = self.next.filter(|n| *n >= self.ring.tail)?;
            self.steps += 1;
            if self.cut() {
                return None;
            }
            let head = self.ring.get(number);
            self.next = match head.older {
                0 => None,
                back => number.checked_sub(u64::from(back)),
            };
            if head.key == self.key {
                return Some((number, head));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(ring: &mut Ring, key: u32) -> u64 {
        if ring.open() == ring.slots() as u64 {
            ring.emit += 1;
        }
        if ring.head - ring.tail == ring.head_slots() as u64 {
            ring.tail += 1;
        }
        ring.add(Head { key, ..Head::default() })
    }

    fn numbers(ring: &Ring, key: u32) -> Vec<u64> {
        ring.with_key(key).map(|(n, _)| n).collect()
    }

    #[test]
    fn journeys_are_found_by_key_newest_first_and_forgotten_behind_the_tail() {
        let mut ring = Ring::new(8);
        for n in 0..1000_u32 {
            add(&mut ring, n % 20);
        }
        // 64 heads are kept: 936 to 999.
        assert_eq!(numbers(&ring, 7), [987, 967, 947]);
        assert_eq!(numbers(&ring, 999), [0_u64; 0]);
    }

    #[test]
    fn growth_keeps_every_chain() {
        let mut ring = Ring::new(8);
        for n in 0..60_u32 {
            add(&mut ring, n % 20);
        }
        ring.resize_heads(256);
        ring.resize_rows(16, 128);
        for n in 60..120_u32 {
            add(&mut ring, n % 20);
        }
        assert_eq!(numbers(&ring, 7), [107, 87, 67, 47, 27, 7]);
    }

    #[test]
    fn an_empty_ring_finds_nothing() {
        let ring = Ring::new(8);
        assert_eq!(numbers(&ring, 0), [0_u64; 0]);
        assert_eq!(numbers(&ring, u32::MAX), [0_u64; 0]);
    }

    #[test]
    fn chains_survive_two_to_the_32_journeys() {
        let mut ring = Ring::new(8);
        let start = (1_u64 << 32) - 10;
        (ring.tail, ring.emit, ring.head) = (start, start, start);
        for n in 0..40_u32 {
            add(&mut ring, n % 20);
        }
        assert_eq!(numbers(&ring, 3), [start + 23, start + 3]);
    }

    #[test]
    fn times_survive_a_wider_row() {
        let mut ring = Ring::new(8);
        let n = add(&mut ring, 1);
        ring.mark(n, &Sighting { t: 5, key: 1, tid: 7, point: 3, cpu: 2, ..Sighting::default() });
        ring.resize_rows(16, 64);
        let journey = ring.journey(0, n, None);
        assert_eq!((journey.at(3), journey.cpu[3], journey.tid[3], journey.t.len()), (Some(5), 2, 7, 16));
        assert_eq!(ring.last_time(n), 5);
    }
}
