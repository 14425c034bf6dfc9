//! The times of one segment, under construction.

use crate::Histogram;
use latpath_words::Ns;

/// A segment's ends, and the bits of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub both: u64,
    pub from: usize,
    pub to: usize,
    /// Counted for each path by itself too.
    pub by_path: bool,
}

/// The times of one segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub histogram: Histogram,
    pub over: u64,
}

impl Times {
    pub fn record(&mut self, time: Ns, threshold: Ns) {
        self.histogram.record(time);
        self.over += u64::from(time > threshold);
    }

    pub fn merge(&mut self, other: &Self) {
        self.histogram.merge(&other.histogram);
        self.over += other.over;
    }
}

/// Only broken clocks, or a hostile file, come near the ends of the range.
#[inline]
pub(crate) fn between(from: Ns, to: Ns) -> Ns {
    to.saturating_sub(from)
}
