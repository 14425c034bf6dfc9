//! The times of one segment, under construction.

use crate::Histogram;
use latpath_journey::journey::MAX_POINTS;
use latpath_journey::Segment;
use latpath_model::{Ns, PointId, PointInfo};

/// A segment's ends, and the bits of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub both: u64,
    pub from: usize,
    pub to: usize,
    /// Counted for each path by itself too.
    pub by_path: bool,
    /// Who was at its end first has not crossed it.
    pub in_order: bool,
}

/// A point's bit.
///
/// # Panics
/// If a journey cannot have that point.
pub(crate) fn bit(p: PointId) -> u64 {
    assert!(usize::from(p) < MAX_POINTS, "point {p}: a journey has {MAX_POINTS} at most");
    1 << p
}

impl Ends {
    pub fn of(s: &Segment, points: &[PointInfo]) -> Self {
        Self {
            both: bit(s.from) | bit(s.to),
            from: s.from.into(),
            to: s.to.into(),
            by_path: s.kind.is_counted_by_path(),
            in_order: s.is_with_daemon(points),
        }
    }

    /// Whether a packet that took this time from one end to the other has crossed it.
    #[inline]
    pub fn counts(&self, time: Ns) -> bool {
        time >= 0 || !self.in_order
    }
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
