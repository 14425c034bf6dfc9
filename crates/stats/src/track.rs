//! Times over the course of a recording: a histogram per interval of whole seconds, and spikes over the threshold.

use crate::times::are_within;
use latpath_histogram::compact::{Compact, Counter};
use latpath_model::Ns;
use std::collections::BTreeMap;

const SECOND: Ns = 1_000_000_000;
/// Maximum number of intervals of a recording.
const MAX_INTERVALS: i64 = 4096;
/// Maximum distance between successive late packets of one spike, ns.
pub const SPIKE_GAP: Ns = 100_000_000;
/// Maximum number of spikes that can be distinguished.
const MAX_SPIKES: usize = 1 << 18;

/// Divides a recording into intervals of equal length: a whole number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    begin: Ns,
    length: Ns,
}

impl Intervals {
    /// Intervals for a recording with its first and last packet at these times of any clock: one second long, or longer
    /// if there would be more than 4096, or if several `tracks` are kept in parallel.
    pub fn of(first: Ns, last: Ns, tracks: usize) -> Self {
        let most = (8 * MAX_INTERVALS / tracks.max(1) as i64).clamp(MAX_INTERVALS / 16, MAX_INTERVALS);
        let seconds = last.saturating_sub(first).max(0) / SECOND + 1;
        let length = (seconds as u64).div_ceil(most as u64) as Ns;
        Self { begin: first, length: length.saturating_mul(SECOND) }
    }

    /// Length of an interval, ns.
    pub fn length(&self) -> Ns {
        self.length
    }

    fn number(&self, at: Ns) -> i64 {
        (at.saturating_sub(self.begin) / self.length).clamp(0, MAX_INTERVALS)
    }
}

/// The times in one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Number of times.
    pub count: u64,
    /// Sum of the times, ns.
    pub sum: i128,
    /// Histogram of the times.
    pub times: Compact,
}

/// The times of one segment, or of round trips, by interval.
#[derive(Clone, Debug)]
pub struct Track {
    intervals: Intervals,
    threshold: Ns,
    all: BTreeMap<i64, Interval>,
    open: i64,
    /// Start and end of the open interval.
    bounds: (Ns, Ns),
    count: u64,
    sum: i128,
    counter: Counter,
    /// Spikes over the threshold.
    pub spikes: Spikes,
}

impl Track {
    /// A track without times.
    pub fn new(intervals: Intervals, threshold: Ns) -> Self {
        Self {
            intervals,
            threshold,
            all: BTreeMap::new(),
            open: 0,
            bounds: (Ns::MAX, Ns::MIN),
            count: 0,
            sum: 0,
            counter: Counter::default(),
            spikes: Spikes::default(),
        }
    }

    /// Adds the time of a packet that arrived at `at`.
    pub fn add(&mut self, at: Ns, time: Ns) {
        self.add_all(&[at], &[time]);
    }

    /// Adds the times of packets that arrived at the times `at`.
    pub fn add_all(&mut self, mut at: &[Ns], mut times: &[Ns]) {
        // The sum of `AT_ONCE` times below `LARGE` fits into 64 bits.
        const AT_ONCE: usize = 256;
        const LARGE: Ns = 1 << 54;
        while let Some(first) = at.first() {
            if *first < self.bounds.0 || *first >= self.bounds.1 {
                self.turn_to(*first);
            }
            let (begin, end) = self.bounds;
            let next = &at[..at.len().min(AT_ONCE)];
            let here = match are_within(next, begin, end) {
                true => next.len(),
                false => next.iter().take_while(|at| **at >= begin && **at < end).count().max(1).min(times.len()),
            };
            let (chunk, rest) = times.split_at(here);
            let (least, greatest) = chunk.iter().fold((Ns::MAX, Ns::MIN), |(min, max), v| (min.min(*v), max.max(*v)));
            self.count += here as u64;
            self.sum += match -LARGE < least && greatest < LARGE {
                true => i128::from(chunk.iter().sum::<Ns>()),
                false => chunk.iter().map(|time| i128::from(*time)).sum::<i128>(),
            };
            self.counter.record_all(chunk, least, greatest);
            if greatest > self.threshold {
                let late = at.iter().zip(chunk).filter(|(_, time)| **time > self.threshold);
                late.for_each(|(at, _)| self.spikes.add(*at));
            }
            (at, times) = (&at[here..], rest);
        }
    }

    #[cold]
    fn turn_to(&mut self, at: Ns) {
        self.close();
        self.open = self.intervals.number(at);
        let begin = self.intervals.begin.saturating_add(self.open.saturating_mul(self.intervals.length));
        self.bounds = (begin, begin.saturating_add(self.intervals.length));
        if self.open == 0 {
            self.bounds.0 = Ns::MIN;
        }
        if self.open == MAX_INTERVALS {
            self.bounds.1 = Ns::MAX;
        }
    }

    fn close(&mut self) {
        if self.count > 0 {
            let before = self.all.entry(self.open).or_default();
            self.counter.add_all(&before.times);
            before.times = self.counter.take();
            before.count += std::mem::take(&mut self.count);
            before.sum += std::mem::take(&mut self.sum);
        }
        self.bounds = (Ns::MAX, Ns::MIN);
    }

    /// Adds the times of another track of the same recording.
    pub fn merge(&mut self, mut other: Self) {
        self.close();
        other.close();
        for (at, interval) in other.all {
            let own = self.all.entry(at).or_default();
            self.counter.add_all(&own.times);
            self.counter.add_all(&interval.times);
            own.times = self.counter.take();
            own.count += interval.count;
            own.sum += interval.sum;
        }
        self.spikes.merge(other.spikes);
    }

    /// The intervals with packets, in order, each with its index counted from 0; and the spikes.
    pub fn finish(mut self) -> (Vec<(usize, Interval)>, Spikes) {
        self.close();
        self.spikes.tidy();
        (self.all.into_iter().map(|(at, interval)| (at as usize, interval)).collect(), self.spikes)
    }
}

/// Lost packets: their number in each interval, and groups of packets close together.
#[derive(Clone, Debug)]
pub struct Lost {
    intervals: Intervals,
    each: BTreeMap<i64, u64>,
    events: Spikes,
}

impl Lost {
    /// No lost packets.
    pub fn new(intervals: Intervals) -> Self {
        Self { intervals, each: BTreeMap::new(), events: Spikes::default() }
    }

    /// Adds a lost packet; packets may be added in any order.
    pub fn add(&mut self, at: Ns) {
        *self.each.entry(self.intervals.number(at)).or_default() += 1;
        self.events.add(at);
    }

    /// Adds the lost packets of another object for the same recording.
    pub fn merge(&mut self, other: Self) {
        other.each.into_iter().for_each(|(at, n)| *self.each.entry(at).or_default() += n);
        self.events.merge(other.events);
    }

    /// Number of lost packets.
    pub fn count(&self) -> u64 {
        self.each.values().sum()
    }

    /// The intervals with lost packets, in order: index counted from 0, number of lost packets.
    pub fn each(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.each.iter().map(|(at, n)| (*at as usize, *n))
    }

    /// Loss events: groups of lost packets close together, in order and disjoint.
    pub fn events(&mut self) -> &Spikes {
        self.events.tidy();
        &self.events
    }
}

/// Groups of late or lost packets: successive packets no further apart than [`SPIKE_GAP`] belong to the same spike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spikes {
    /// First and last packet of each spike; in order and disjoint only after [`Spikes::tidy`].
    found: Vec<(Ns, Ns)>,
    tidy_at: usize,
    crowded: bool,
}

impl Spikes {
    /// Adds a packet; packets may be added in any order.
    #[inline]
    pub fn add(&mut self, at: Ns) {
        match self.found.last_mut() {
            Some((first, last)) if at >= first.saturating_sub(SPIKE_GAP) && at <= last.saturating_add(SPIKE_GAP) => {
                (*first, *last) = ((*first).min(at), (*last).max(at));
            }
            _ => self.push((at, at)),
        }
    }

    fn push(&mut self, spike: (Ns, Ns)) {
        self.found.push(spike);
        if self.found.len() > self.tidy_at {
            self.tidy();
            self.tidy_at = (2 * self.found.len()).max(4096);
        }
    }

    /// Adds the spikes of another object.
    pub fn merge(&mut self, other: Self) {
        self.crowded |= other.crowded;
        other.found.into_iter().for_each(|spike| self.push(spike));
        self.tidy();
    }

    /// Sorts and merges the spikes.
    pub fn tidy(&mut self) {
        self.found.sort_unstable();
        self.found.dedup_by(|next, one| {
            let same = next.0 <= one.1.saturating_add(SPIKE_GAP);
            if same {
                one.1 = one.1.max(next.1);
            }
            same
        });
        if self.found.len() > MAX_SPIKES {
            self.crowded = true;
            self.found.truncate(MAX_SPIKES);
        }
    }

    /// Number of spikes; `None` if there are too many to be distinguished.
    pub fn count(&self) -> Option<usize> {
        (!self.crowded).then_some(self.found.len())
    }

    /// Starts and ends of the spikes, in order.
    pub fn found(&self) -> &[(Ns, Ns)] {
        &self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_and_parts_change_nothing(
            packets in prop::collection::vec((-SECOND..90 * SECOND, -50..5_000_000_i64), 1..200),
            cut in any::<prop::sample::Index>(),
        ) {
            let track = || Track::new(Intervals::of(0, 60 * SECOND, 1), 4_000_000);
            let add = |packets: &[(Ns, Ns)]| {
                let mut one = track();
                packets.iter().for_each(|(at, time)| one.add(*at, *time));
                one
            };
            let mut in_order = packets.clone();
            in_order.sort_unstable();
            let (begin, end) = packets.split_at(cut.index(packets.len()));
            let mut parts = add(begin);
            parts.merge(add(end));
            let (intervals, spikes) = parts.finish();
            prop_assert_eq!(intervals.iter().map(|(_, s)| s.count).sum::<u64>(), packets.len() as u64);
            let late: Vec<Ns> = in_order.iter().filter(|(_, time)| *time > 4_000_000).map(|(at, _)| *at).collect();
            let apart = late.windows(2).filter(|pair| pair[1] - pair[0] > SPIKE_GAP).count() + usize::from(!late.is_empty());
            prop_assert_eq!(spikes.count(), Some(apart));
            let (again, spikes_again) = add(&in_order).finish();
            prop_assert_eq!((intervals, spikes.found()), (again, spikes_again.found()));
        }
    }

    #[test]
    fn a_long_recording_has_longer_stretches() {
        assert_eq!(Intervals::of(5, 5, 1).length(), SECOND);
        assert_eq!(Intervals::of(0, 14_400 * SECOND - 1, 6).length(), 4 * SECOND);
        assert_eq!(Intervals::of(0, 14_400 * SECOND - 1, 64).length(), 29 * SECOND);
        assert!(Intervals::of(Ns::MIN, Ns::MAX, 1).length() > 0);
    }

    #[test]
    fn spikes_beyond_the_limit_are_not_counted() {
        let mut spikes = Spikes::default();
        (0..MAX_SPIKES as i64 + 9000).for_each(|n| spikes.add(n * SECOND));
        spikes.tidy();
        assert_eq!(spikes.count(), None);
    }
}
