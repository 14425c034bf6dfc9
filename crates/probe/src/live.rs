//! Live mode: the in-kernel journey table and histograms, read from shared memory.

use crate::held_up::HeldUp;
use crate::layout::{from_bytes, DropKey, EndedKey, Hist, SegmentsTo, Slot, StreamState};
use crate::layout::{ENDED_NEAR, MAX_SEGMENTS, POINTS_NEAR, SEGMENTS_TO};
use crate::probe::Probe;
use latpath_linux::monotonic;
use latpath_model::{Ns, PointId, StreamId};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::mem::offset_of;

/// Clearing the tables takes less than this, ns.
const CLEARING: Ns = 5_000_000;

/// One segment's times in the kernel, since the segments were set.
#[derive(Clone, Debug)]
pub struct KernelHist {
    /// Times.
    pub count: u64,
    /// Their sum, ns.
    pub sum: u64,
    /// Shortest, ns; 0 if there is none.
    pub min: u64,
    /// Longest, ns.
    pub max: u64,
    /// Times above the threshold.
    pub over: u64,
    /// Times that were negative.
    pub negative: u64,
    /// Log-linear buckets: 0 to 127 ns one by one, then 64 an octave.
    pub buckets: Vec<u64>,
}

/// One stream's counters: totals since the programs were attached, but for the journeys' fates, which are counted since
/// [`Probe::count_anew`].
#[derive(Clone, Debug, Default)]
pub struct LiveStream {
    /// Packets seen at any point.
    pub journeys: u64,
    /// Of these, packets still on their way: seen less than a window ago.
    pub open: HashMap<u64, u64>,
    /// Packets whose journey is over, by the set of points (bit per `PointId`) that saw them.
    pub ended: HashMap<u64, u64>,
    /// Further sightings at a point that had seen the packet already.
    pub duplicates: u64,
    /// Sightings that came out of order.
    pub out_of_order: u64,
    /// Sightings that came after their journey's window.
    pub late: u64,
    /// Time of the last sighting, 0 if there was none.
    pub last_t: Ns,
    /// Drops: (point, note) and how many.
    pub drops: HashMap<(PointId, u16), u64>,
}

/// A journey in the table, as the route finder wants it.
#[derive(Clone, Debug)]
pub struct LiveJourney {
    /// The stream.
    pub stream: StreamId,
    /// The packet's key.
    pub key: u32,
    /// Order of first sighting.
    pub number: u32,
    /// Points that saw it, bit per `PointId`.
    pub seen: u64,
    /// Times by `PointId`.
    pub t: Vec<Ns>,
}

/// A journey in the table with all that is known of its sightings, by `PointId`.
#[derive(Clone, Debug)]
pub struct LiveSightings {
    /// The packet's key.
    pub key: u32,
    /// When it was seen first.
    pub first: Ns,
    /// Points that saw it, bit per `PointId`.
    pub seen: u64,
    /// When each did.
    pub t: [Ns; 64],
    /// On which CPU.
    pub cpu: [u16; 64],
    /// In which thread.
    pub tid: [u32; 64],
}

impl Default for LiveSightings {
    fn default() -> Self {
        Self { key: 0, first: 0, seen: 0, t: [0; 64], cpu: [0; 64], tid: [0; 64] }
    }
}

fn entries<K: crate::layout::Plain>(map: &MapHandle) -> Vec<(K, u64)> {
    let value = |k: &[u8]| map.lookup(k, MapFlags::ANY).ok().flatten().and_then(|v| from_bytes::<u64>(&v));
    map.keys().filter_map(|k| Some((from_bytes(&k)?, value(&k)?))).collect()
}

impl Probe {
    /// Says which segments to count, as (from, to). The first `kept` are those that are being counted, and go on; of the others
    /// nothing is counted yet. Segments beyond what the kernel's table holds are left out; how many were taken is returned.
    pub fn set_segments(&mut self, segments: &[(PointId, PointId)], kept: usize) -> usize {
        let mut table = [SegmentsTo::default(); crate::layout::MAX_POINTS];
        let mut taken = 0;
        for (hist, (from, to)) in segments.iter().take(MAX_SEGMENTS).enumerate() {
            let (Some(from), Some(to)) = (self.points.index(*from), self.points.index(*to)) else { break };
            let row = &mut table[to];
            let at = usize::from(row.count);
            if at == SEGMENTS_TO {
                break;
            }
            (row.from[at], row.hist[at]) = (from as u8, hist as u8);
            row.count += 1;
            taken += 1;
        }
        let Some(live) = &self.attached.live else { return 0 };
        if kept == 0 {
            (0..table.len()).for_each(|i| live.segments.set(i, SegmentsTo::default()));
        }
        let new = (0..live.hists.len()).filter(|i| i % MAX_SEGMENTS >= kept);
        new.for_each(|i| live.hists.set(i, Hist::default()));
        table.iter().enumerate().for_each(|(i, row)| live.segments.set(i, *row));
        taken
    }

    /// Starts anew what is counted of journeys: histograms, and the fates of journeys that begin from the returned time on
    /// (`CLOCK_MONOTONIC`). Duplicates, overtaken packets and late sightings count on.
    pub fn count_anew(&mut self) -> Ns {
        let from = monotonic() + CLEARING;
        let Some(live) = &self.attached.live else { return from };
        for i in 0..live.states.len() {
            live.states.set_field(i, offset_of!(StreamState, count_from), from as u64);
            for n in 0..ENDED_NEAR {
                live.states.set_field(i, offset_of!(StreamState, ended) + n * size_of::<u64>(), 0_u64);
            }
        }
        (0..live.hists.len()).for_each(|i| live.hists.set(i, Hist::default()));
        for map in [&live.ended, &live.drops] {
            map.keys().for_each(|key| drop(map.delete(&key)));
        }
        from
    }

    /// The times of segment `segment` (as numbered in [`Probe::set_segments`]) of one stream's packets that were held up so
    /// when the segment ended.
    pub fn histogram(&self, stream: StreamId, segment: usize, held_up: HeldUp) -> Option<KernelHist> {
        let live = self.attached.live.as_ref()?;
        let kernel = self.attached.table.user.iter().position(|s| *s == stream)?;
        let class = Some(held_up as usize).filter(|class| *class < live.path_classes)?;
        let h = live.hists.get((kernel * live.path_classes + class) * MAX_SEGMENTS + segment);
        Some(KernelHist {
            count: h.bucket.iter().sum(),
            sum: h.sum,
            min: if h.min == 0 { 0 } else { !h.min },
            max: h.max,
            over: h.over,
            negative: h.negative,
            buckets: h.bucket.to_vec(),
        })
    }

    /// A set of the kernel's points as a set of `PointId`s.
    fn seen(&self, kernel: u32) -> u64 {
        let bits = (0..32).filter(|i| kernel >> i & 1 == 1);
        bits.filter_map(|i| self.points.id(i)).fold(0, |set, id| set | 1 << id)
    }

    /// The counters of every stream, in the user's order, as of now.
    pub fn live_streams(&mut self) -> Vec<LiveStream> {
        let mut streams = vec![LiveStream::default(); self.attached.table.user.len()];
        self.points.refresh(&self.options.machine, &self.attached.points);
        let Some(live) = &self.attached.live else { return streams };
        let (ended, drops) = (entries::<EndedKey>(&live.ended), entries::<DropKey>(&live.drops));
        let now = monotonic();
        for (kernel, user) in self.attached.table.user.iter().enumerate() {
            let state = live.states.get(kernel);
            let s = &mut streams[usize::from(*user)];
            s.journeys = state.next;
            (s.duplicates, s.out_of_order, s.late) = (state.duplicates, state.out_of_order, state.late);
            s.last_t = state.last_t as Ns;
            for (seen, count) in state.ended_seen.iter().zip(state.ended).filter(|(_, count)| *count != 0) {
                *s.ended.entry(self.seen(*seen)).or_default() += count;
            }
            for i in 0..live.slots_each {
                let slot: Slot = live.slots.get(kernel * live.slots_each + i);
                if slot.number != 0 && slot.t0 >= state.count_from {
                    let over = now - slot.t0 as Ns > self.options.window;
                    let set = if over { &mut s.ended } else { &mut s.open };
                    *set.entry(self.seen(slot.seen)).or_default() += 1;
                }
            }
        }
        for (key, count) in ended {
            if let Some(user) = self.stream(key.stream as usize) {
                *streams[usize::from(user)].ended.entry(self.seen(key.seen)).or_default() += count;
            }
        }
        for (key, count) in drops {
            let note = self.notes.note(key.at);
            if let (Some(user), Some(point)) = (self.stream(key.stream as usize), self.points.id(key.point as usize)) {
                *streams[usize::from(user)].drops.entry((point, note)).or_default() += count;
            }
        }
        streams
    }

    /// What each journey of a stream after number `after` was first seen as, in order: key, time, and the points that saw
    /// it. Returns the number of the last one; those that left the table before are skipped, and told by the first of the
    /// pair returned.
    pub fn live_since(&self, stream: StreamId, after: u32, each: &mut dyn FnMut(u32, Ns, u64)) -> (u32, u32) {
        let Some(live) = &self.attached.live else { return (0, after) };
        let Some(kernel) = self.attached.table.user.iter().position(|s| *s == stream) else { return (0, after) };
        let next = live.states.get(kernel).next as u32;
        let held = (live.slots_each as u32 - 1).min(next.wrapping_sub(after));
        let skipped = next.wrapping_sub(after) - held;
        for back in (0..held).rev() {
            let number = next.wrapping_sub(back);
            let slot: Slot = live.slots.get(kernel * live.slots_each + number as usize % live.slots_each);
            if slot.number == number {
                each(slot.key, slot.t0 as Ns, self.seen(slot.seen));
            } else if number != 0 {
                // It is being written just now: the next look takes it.
                return (skipped, number.wrapping_sub(1));
            }
        }
        (skipped, next)
    }

    /// The last journey of a stream, by number: 0 if there was none.
    pub fn live_last(&self, stream: StreamId) -> u32 {
        let kernel = self.attached.table.user.iter().position(|s| *s == stream);
        let state = self.attached.live.as_ref().zip(kernel);
        state.map_or(0, |(live, kernel)| live.states.field::<u64>(kernel, offset_of!(StreamState, next)) as u32)
    }

    /// A journey of a stream by its number, with CPUs and threads, for those who asked to keep them. None if it is not in the
    /// table any more, or not yet.
    pub fn live_journey(&mut self, stream: StreamId, number: u32, into: &mut LiveSightings) -> bool {
        into.seen = 0;
        let Some(kernel) = self.attached.table.user.iter().position(|s| *s == stream) else { return false };
        let Some(live) = &self.attached.live else { return false };
        let Some(who) = &live.slots_who else { return false };
        let at = kernel * live.slots_each + number as usize % live.slots_each;
        let slot = live.slots.get(at);
        if number == 0 || slot.number != number {
            return false;
        }
        let is_known = |i: &usize| self.points.id(*i).is_some();
        if (0..32).filter(|i| slot.seen >> i & 1 == 1).any(|i| !is_known(&i)) {
            self.points.refresh(&self.options.machine, &self.attached.points);
        }
        let Some(live) = &self.attached.live else { return false };
        let far = (slot.seen >> POINTS_NEAR != 0).then(|| live.slots_far.get(at));
        (into.key, into.first) = (slot.key, slot.t0 as Ns);
        for i in (0..32).filter(|i| slot.seen >> i & 1 == 1) {
            let Some(id) = self.points.id(i).map(usize::from).filter(|id| *id < into.t.len()) else { continue };
            let dt = far.filter(|_| i >= POINTS_NEAR).map_or_else(|| slot.dt[i], |far| far.dt[i]);
            let whose = who.field::<u64>(at, i * size_of::<u64>());
            into.seen |= 1 << id;
            into.t[id] = slot.t0 as Ns + Ns::from(dt);
            (into.cpu[id], into.tid[id]) = ((whose >> 32) as u16, whose as u32);
        }
        // Another journey may have taken the place meanwhile.
        live.slots.field::<u32>(at, offset_of!(Slot, number)) == number
    }

    /// Up to `most` of the youngest journeys of each stream that are at least `age` old.
    pub fn live_journeys(&mut self, most: usize, age: Ns) -> Vec<LiveJourney> {
        self.points.refresh(&self.options.machine, &self.attached.points);
        let mut found = Vec::new();
        let Some(live) = &self.attached.live else { return found };
        let now = monotonic();
        for (kernel, user) in self.attached.table.user.iter().enumerate() {
            let last = live.states.get(kernel).next as u32;
            let mut taken = 0;
            for back in 0..live.slots_each as u32 {
                let number = last.wrapping_sub(back);
                let at = kernel * live.slots_each + number as usize % live.slots_each;
                let slot = live.slots.get(at);
                if slot.number != number || number == 0 || taken == most {
                    break;
                }
                if now - slot.t0 as Ns >= age {
                    let mut t = vec![0; self.points.known().len()];
                    let far = (slot.seen >> POINTS_NEAR != 0).then(|| live.slots_far.get(at));
                    for i in (0..32).filter(|i| slot.seen >> i & 1 == 1) {
                        let dt = far.filter(|_| i >= POINTS_NEAR).map_or_else(|| slot.dt[i], |far| far.dt[i]);
                        if let Some(id) = self.points.id(i) {
                            t[usize::from(id)] = slot.t0 as Ns + Ns::from(dt);
                        }
                    }
                    let seen = self.seen(slot.seen);
                    found.push(LiveJourney { stream: *user, key: slot.key, number, seen, t });
                    taken += 1;
                }
            }
        }
        found
    }
}
