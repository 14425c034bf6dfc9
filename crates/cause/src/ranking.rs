//! The ranking of causes over all late packets of a run, by delay.

use crate::actor::Actor;
use crate::attribution::{Attribution, CauseShare};
use crate::sums::{add, longest_first, plus};
use crate::Cause;
use latpath_model::Ns;
use std::collections::HashMap;
use std::ops::Deref;

/// Maximum number of rows. A new row replaces the smallest one, which is added to [`Others`].
const MAX_ROWS: usize = 512;
/// Maximum number of culprits, CPUs, hops and notes per row.
const MAX_PER_ROW: usize = 16;

/// The effect of one cause with one actor and one culprit on all late packets. Its [`CauseShare`] sums those of the
/// packets; the times in its lists are parts of the excess. The machine is empty for `unexplained`; the first culprit
/// is the same for all packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Sum of the packets' shares.
    pub share: CauseShare,
    /// Number of late packets with this cause beyond the baseline.
    pub packets: u64,
    /// Number of late packets whose first cause this is.
    pub first: u64,
    /// Largest excess of one packet, ns.
    pub worst_ns: Ns,
    firsts: Sample,
    all: Sample,
}

impl Deref for Row {
    type Target = CauseShare;

    fn deref(&self) -> &CauseShare {
        &self.share
    }
}

impl Row {
    fn new(share: &CauseShare) -> Self {
        let machine = if share.cause == Cause::Unexplained { String::new() } else { share.machine.clone() };
        Self {
            share: CauseShare {
                waiter: share.waiter.clone(),
                ..CauseShare::new(share.cause, machine, share.actor.clone())
            },
            packets: 0,
            first: 0,
            worst_ns: 0,
            firsts: Sample::default(),
            all: Sample::default(),
        }
    }

    /// Median excess, ns: over the packets whose first cause this is or, if there are none, over all packets with this
    /// cause.
    pub fn median_ns(&self) -> Ns {
        self.firsts.median().or_else(|| self.all.median()).unwrap_or(0)
    }

    fn take(&mut self, share: &CauseShare, is_first: bool) {
        self.packets += 1;
        self.worst_ns = self.worst_ns.max(share.excess_ns);
        self.all.add(share.excess_ns);
        if is_first {
            self.first += 1;
            self.firsts.add(share.excess_ns);
        }
        let sum = &mut self.share;
        plus(&mut sum.time_ns, share.time_ns);
        plus(&mut sum.excess_ns, share.excess_ns);
        sum.update_actor(share.actor.as_ref());
        // Distributes the excess in proportion to the times.
        let of = |ns: Ns| (i128::from(ns) * i128::from(share.excess_ns) / i128::from(share.time_ns.max(1))) as Ns;
        for (by, ns) in &share.by {
            sum.add_culprit(by, of(*ns), MAX_PER_ROW);
        }
        share.cpus.iter().for_each(|(cpu, ns)| add(&mut sum.cpus, *cpu, of(*ns), MAX_PER_ROW));
        share.hops.iter().for_each(|(hop, ns)| add(&mut sum.hops, *hop, of(*ns), MAX_PER_ROW));
        share.notes.iter().for_each(|(note, ns)| add(&mut sum.notes, note.clone(), of(*ns), MAX_PER_ROW));
        sum.keep_greatest(share.number, &share.state);
    }

    /// A copy with sorted lists.
    fn sorted(&self) -> Self {
        let mut row = self.clone();
        if let [_, rest @ ..] = row.share.by.as_mut_slice() {
            longest_first(rest);
        }
        longest_first(&mut row.share.cpus);
        longest_first(&mut row.share.hops);
        longest_first(&mut row.share.notes);
        row
    }
}

/// Sum of the rows that were replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Number of rows.
    pub rows: u64,
    /// Sum of their excesses, ns.
    pub excess_ns: Ns,
    /// Number of packets whose first cause was in one of these rows.
    pub first: u64,
}

/// Key of a row: cause, machine, and the names of actor, culprit and waiter.
type Key = (Cause, String, [Option<String>; 3]);

/// The ranking of causes.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    rows: HashMap<Key, Row>,
    others: Others,
    late: u64,
    time_ns: Ns,
    excess_ns: Ns,
    without_baseline: u64,
    unexplained: Sample,
}

impl Ranking {
    /// Adds a late packet.
    pub fn add(&mut self, attribution: &Attribution) {
        self.late += 1;
        plus(&mut self.time_ns, attribution.time_ns);
        plus(&mut self.excess_ns, attribution.excess_ns);
        self.without_baseline += u64::from(attribution.without_baseline);
        if attribution.excess_ns > 0 {
            let unexplained =
                attribution.shares.iter().filter(|h| h.cause == Cause::Unexplained).map(|h| h.excess_ns).sum();
            self.unexplained.add(per_mille(unexplained, attribution.excess_ns));
        }
        for (at, share) in attribution.shares.iter().enumerate().filter(|(_, share)| share.excess_ns > 0) {
            let key = match share.cause == Cause::Unexplained {
                true => (share.cause, String::new(), [None, None, None]),
                false => {
                    let name = |m: &Actor| m.name.clone();
                    let by = share.by.first().map(|(m, _)| name(m));
                    (
                        share.cause,
                        share.machine.clone(),
                        [share.actor.as_ref().map(name), by, share.waiter.as_ref().map(name)],
                    )
                }
            };
            if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
                self.make_room();
            }
            self.rows.entry(key).or_insert_with(|| Row::new(share)).take(share, at == 0);
        }
    }

    fn make_room(&mut self) {
        let least = self.rows.iter().filter(|(key, _)| key.0 != Cause::Unexplained);
        let Some(key) = least.min_by_key(|(_, row)| row.excess_ns).map(|(key, _)| key.clone()) else { return };
        if let Some(row) = self.rows.remove(&key) {
            self.others.rows += 1;
            plus(&mut self.others.excess_ns, row.excess_ns);
            self.others.first += row.first;
        }
    }

    /// Number of late packets.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Total time of the late packets on their routes, ns.
    pub fn time_ns(&self) -> Ns {
        self.time_ns
    }

    /// Total time beyond the baseline, ns: the sum of all rows and the others.
    pub fn excess_ns(&self) -> Ns {
        self.excess_ns
    }

    /// Number of late packets with a hop that lacks a baseline, so that all time there counts as excess.
    pub fn without_baseline(&self) -> u64 {
        self.without_baseline
    }

    /// Median over the packets of the unexplained share of the excess, per mille.
    pub fn unexplained_per_mille(&self) -> u64 {
        self.unexplained.median().unwrap_or(0).unsigned_abs()
    }

    /// All rows, largest excess first; `unexplained` always last.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<(&Key, Row)> = self.rows.iter().map(|(key, row)| (key, row.sorted())).collect();
        let order = |row: &Row| (row.cause == Cause::Unexplained, std::cmp::Reverse((row.excess_ns, row.first)));
        rows.sort_by(|(a_key, a), (b_key, b)| order(a).cmp(&order(b)).then_with(|| a_key.cmp(b_key)));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Sum of the rows that were replaced.
    pub fn others(&self) -> Others {
        self.others
    }
}

fn per_mille(hop: Ns, all: Ns) -> Ns {
    (i128::from(hop) * 1000 / i128::from(all.max(1))) as Ns
}

/// A sample from which the median is computed: all values at first; once it is full, every second value, then every
/// fourth and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    kept: Vec<Ns>,
    every: u64,
    seen: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self { kept: Vec::new(), every: 1, seen: 0 }
    }
}

impl Sample {
    const MAX: usize = 2048;

    fn add(&mut self, value: Ns) {
        if self.seen.is_multiple_of(self.every) {
            if self.kept.len() == Self::MAX {
                let mut at = 0;
                self.kept.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.every *= 2;
            }
            if self.seen.is_multiple_of(self.every) {
                self.kept.push(value);
            }
        }
        self.seen += 1;
    }

    /// Median by nearest rank.
    fn median(&self) -> Option<Ns> {
        let mut kept = self.kept.clone();
        let middle = kept.len().checked_sub(1)? / 2;
        Some(*kept.select_nth_unstable(middle).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_many_is_near_that_of_all() {
        let mut sample = Sample::default();
        assert_eq!(sample.median(), None);
        (0..2048).for_each(|n| sample.add(n));
        assert_eq!(sample.median(), Some(1023));
        (2048..352_533).for_each(|n| sample.add(n));
        let median = sample.median().unwrap();
        assert!((median - 176_266).abs() < 1000, "{median}");
        assert!(sample.kept.len() <= Sample::MAX);
    }
}
