//! Counts the sets of points that saw the packets of a stream that arrived, in each slot of a recording.

use std::collections::BTreeMap;

/// Maximum number of distinct sets of points, summed over all slots.
const MAX: usize = 1 << 17;

/// Number of packets by slot and set of points.
#[derive(Clone, Debug, Default)]
pub struct PointSetCounts {
    counts: BTreeMap<(u32, u64), u64>,
    crowded: bool,
}

impl PointSetCounts {
    pub fn add(&mut self, slot: usize, points: u64, packets: u64) {
        let room = self.counts.len() < MAX;
        match self.counts.get_mut(&(slot as u32, points)) {
            Some(count) => *count += packets,
            None if room => drop(self.counts.insert((slot as u32, points), packets)),
            None => self.crowded = true,
        }
    }

    /// Joins every `joined` successive slots into one.
    pub fn join_slots(&mut self, joined: usize) {
        let before = std::mem::take(&mut self.counts);
        before.into_iter().for_each(|((slot, points), n)| self.add(slot as usize / joined, points, n));
    }

    pub fn merge(&mut self, other: Self) {
        self.crowded |= other.crowded;
        other.counts.into_iter().for_each(|((slot, points), n)| self.add(slot as usize, points, n));
    }

    /// Slot, set of points (as bits) and number of packets, in the order of slots; empty if there were too many sets.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        let known = self.counts.iter().filter(|_| !self.crowded);
        known.map(|((slot, points), n)| (*slot as usize, *points, *n))
    }
}
