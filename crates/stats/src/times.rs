//! The times of one segment, under construction.

use crate::Histogram;
use latpath_journey::journey::MAX_POINTS;
use latpath_journey::Segment;
use latpath_model::{Ns, PointId, PointInfo, StreamId};
use std::cmp::Reverse;

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

    /// Whether a packet that took this time between the two ends has crossed it.
    #[inline]
    pub fn counts(&self, time: Ns) -> bool {
        time >= 0 || !self.in_order
    }
}

/// A packet at the beginning of a segment. The earlier one is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crossing {
    pub t: Ns,
    pub stream: StreamId,
    pub number: u64,
    pub key: u32,
}

/// The packets with the least and the greatest time; of several with the same time the earliest, whoever counted which.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extremes {
    least: Option<(Ns, Crossing)>,
    most: Option<(Reverse<Ns>, Crossing)>,
}

impl Extremes {
    /// Whether packets with times between these may be among them.
    #[inline]
    pub fn may_take(&self, min: Ns, max: Ns) -> bool {
        self.least.is_none_or(|(least, _)| min <= least) || self.most.is_none_or(|(Reverse(most), _)| max >= most)
    }

    pub fn offer(&mut self, time: Ns, crossing: Crossing) {
        self.least = self.least.into_iter().chain([(time, crossing)]).min();
        self.most = self.most.into_iter().chain([(Reverse(time), crossing)]).min();
    }

    fn merge(&mut self, other: &Self) {
        self.least = self.least.into_iter().chain(other.least).min();
        self.most = self.most.into_iter().chain(other.most).min();
    }

    /// The packets with the least and the greatest time.
    pub fn packets(&self) -> (Option<Crossing>, Option<Crossing>) {
        (self.least.map(|(_, packet)| packet), self.most.map(|(_, packet)| packet))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub histogram: Histogram,
    pub over: u64,
    /// Those in the setup's band; not of each path by itself.
    pub in_band: u64,
    /// Not kept for each path by itself.
    pub extremes: Extremes,
}

impl Times {
    pub fn record(&mut self, time: Ns, threshold: Ns) {
        self.histogram.record(time);
        self.over += u64::from(time > threshold);
    }

    pub fn merge(&mut self, other: &Self) {
        self.histogram.merge(&other.histogram);
        self.over += other.over;
        self.in_band += other.in_band;
        self.extremes.merge(&other.extremes);
    }
}

/// Only broken clocks, or a hostile file, come near the ends of the range.
#[inline]
pub(crate) fn between(from: Ns, to: Ns) -> Ns {
    to.saturating_sub(from)
}
