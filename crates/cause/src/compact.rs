//! Sums many short, alternating intervals into a few longer ones.

use crate::{CauseInterval, Detail, Note};

/// Number of intervals above which intervals are summed.
const MANY: usize = 256;
/// Maximum number of consecutive intervals of one actor that remain separate.
const FEW: usize = 24;

/// Sums alternating intervals if there are many: more than [`FEW`] consecutive intervals of one actor become one
/// interval per cause, culprit and CPU, in order of first occurrence. The total time of each is preserved.
pub(crate) fn compact(intervals: Vec<CauseInterval>) -> Vec<CauseInterval> {
    if intervals.len() <= MANY {
        return intervals;
    }
    let mut all: Vec<CauseInterval> = Vec::new();
    for stretch in intervals.chunk_by(|a, b| a.actor == b.actor && a.machine == b.machine) {
        if stretch.len() <= FEW {
            all.extend_from_slice(stretch);
            continue;
        }
        let mut sums: Vec<(CauseInterval, i64, usize)> = Vec::new();
        for interval in stretch {
            let took = interval.to - interval.from;
            // For VM exits, the number is the exit reason, so intervals with different numbers are kept apart.
            let reason = |p: &CauseInterval| p.number.filter(|_| p.cause.info().detail == Detail::ExitReason);
            let same = |p: &CauseInterval| {
                p.cause == interval.cause
                    && p.by == interval.by
                    && p.cpu == interval.cpu
                    && reason(p) == reason(interval)
            };
            match sums.iter_mut().find(|(p, ..)| same(p)) {
                Some((_, sum, times)) => (*sum, *times) = (*sum + took, *times + 1),
                None => sums.push((interval.clone(), took, 1)),
            }
        }
        let mut cursor = stretch[0].from;
        for (mut interval, sum, times) in sums {
            (interval.from, interval.to) = (cursor, cursor + sum);
            cursor = interval.to;
            if times > 1 {
                interval.notes.push(Note::Summed(times));
            }
            all.push(interval);
        }
    }
    all
}
