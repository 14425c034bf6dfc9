//! Which points saw the packets of a stream that arrived, in each slot of a recording.

use std::collections::BTreeMap;

/// Sets of points that are distinguished, over all slots.
const MOST: usize = 1 << 17;

/// How many packets were seen by each set of points, in each slot.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    counts: BTreeMap<(u32, u64), u64>,
    crowded: bool,
}

impl Taken {
    pub fn add(&mut self, slot: usize, points: u64, packets: u64) {
        let room = self.counts.len() < MOST;
        match self.counts.get_mut(&(slot as u32, points)) {
            Some(count) => *count += packets,
            None if room => drop(self.counts.insert((slot as u32, points), packets)),
            None => self.crowded = true,
        }
    }

    /// So many slots are one from now on.
    pub fn join_slots(&mut self, joined: usize) {
        let before = std::mem::take(&mut self.counts);
        before.into_iter().for_each(|((slot, points), n)| self.add(slot as usize / joined, points, n));
    }

    pub fn merge(&mut self, other: Self) {
        self.crowded |= other.crowded;
        other.counts.into_iter().for_each(|((slot, points), n)| self.add(slot as usize, points, n));
    }

    /// The sets of points in the order of the slots, and how many packets each saw; nothing where they were too many.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        let known = self.counts.iter().filter(|_| !self.crowded);
        known.map(|((slot, points), n)| (*slot as usize, *points, *n))
    }
}
