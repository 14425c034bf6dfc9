//! Times with the sequence numbers of the fastest and slowest probes.

use latpath_model::Ns;
use latpath_stats::{Histogram, TimeFigures};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// A histogram of times that also keeps the sequence numbers of the fastest and slowest probes.
#[derive(Clone, Debug)]
pub struct SequencedHistogram {
    times: Histogram,
    min: (Ns, u64),
    max: (Ns, u64),
}

impl Default for SequencedHistogram {
    fn default() -> Self {
        Self { times: Histogram::new(), min: (Ns::MAX, 0), max: (Ns::MIN, 0) }
    }
}

impl SequencedHistogram {
    /// Adds a time. If several times are equal, the first one counts as the extreme.
    #[inline]
    pub fn record(&mut self, sequence: u64, time: Ns) {
        self.times.record(time);
        if time < self.min.0 {
            self.min = (time, sequence);
        }
        if time > self.max.0 {
            self.max = (time, sequence);
        }
    }

    /// The times.
    pub fn times(&self) -> &Histogram {
        &self.times
    }

    /// Adds another histogram's times. The sequence numbers of the extremes are those within the probes' own sessions.
    pub fn merge(&mut self, other: &Self) {
        self.times.merge(&other.times);
        if other.min.0 < self.min.0 {
            self.min = other.min;
        }
        if other.max.0 > self.max.0 {
            self.max = other.max;
        }
    }

    /// The figures.
    pub fn figures(&self) -> SequencedFigures {
        let number = |(_, sequence): (Ns, u64)| (self.times.count() > 0).then_some(sequence);
        SequencedFigures {
            times: TimeFigures::of(&self.times),
            min_sequence: number(self.min),
            max_sequence: number(self.max),
        }
    }

    /// The figures; `None` if there are no times.
    pub fn some_figures(&self) -> Option<SequencedFigures> {
        (self.times.count() > 0).then(|| self.figures())
    }
}

/// Figures of times, with the sequence numbers of the fastest and slowest probes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SequencedFigures {
    /// Distribution of the times.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Sequence number of the first probe with the minimum time; null without a time.
    pub min_sequence: Option<u64>,
    /// Sequence number of the first probe with the maximum time; null without a time.
    pub max_sequence: Option<u64>,
}

impl Deref for SequencedFigures {
    type Target = TimeFigures;

    fn deref(&self) -> &TimeFigures {
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_probes_with_the_extreme_times_are_named() {
        let mut h = SequencedHistogram::default();
        assert_eq!((h.figures().min_sequence, h.some_figures()), (None, None));
        [(3, 50), (4, 20), (5, 20), (6, 90), (7, 90)].into_iter().for_each(|(n, time)| h.record(n, time));
        let f = h.figures();
        assert_eq!((f.min_ns, f.min_sequence, f.max_ns, f.max_sequence), (20, Some(4), 90, Some(6)));
        let mut other = SequencedHistogram::default();
        other.record(1, 10);
        h.merge(&other);
        let f = h.figures();
        assert_eq!((f.count, f.min_sequence, f.max_sequence), (6, Some(1), Some(6)));
    }
}
