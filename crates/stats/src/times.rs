//! The times of one segment, under construction.

use crate::batch::{Batch, Crossings};
use crate::{Band, Histogram};
use latpath_journey::journey::MAX_POINTS;
use latpath_journey::Segment;
use latpath_model::{Ns, PointId, PointInfo, StreamId};
use std::cmp::Reverse;

/// The ends of a segment, and the bits of both points.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub both: u64,
    pub from: usize,
    pub to: usize,
    /// Whether the segment is also counted per path.
    pub by_path: bool,
    /// Whether to exclude packets that reached the segment's end first.
    pub in_order: bool,
}

/// A point's bit.
///
/// # Panics
/// The point is beyond the limit of journeys.
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

    /// Whether a packet with this time between the ends is counted.
    #[inline]
    pub fn counts(&self, time: Ns) -> bool {
        time >= 0 || !self.in_order
    }
}

/// A packet at the start of a segment; ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crossing {
    pub t: Ns,
    pub stream: StreamId,
    pub number: u64,
    pub key: u32,
}

/// The packets with the minimum and the maximum time; of several, the earliest, regardless of the order of counting.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extremes {
    least: Option<(Ns, Crossing)>,
    most: Option<(Reverse<Ns>, Crossing)>,
}

impl Extremes {
    /// Whether packets with times between these may replace the current ones.
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

    /// The packets with the minimum and the maximum time.
    pub fn packets(&self) -> (Option<Crossing>, Option<Crossing>) {
        (self.least.map(|(_, packet)| packet), self.most.map(|(_, packet)| packet))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub histogram: Histogram,
    pub over: u64,
    /// Number of times in the setup's band; not counted per path.
    pub in_band: u64,
    /// Packets with the extreme times; not kept per path.
    pub extremes: Extremes,
}

impl Times {
    /// Adds the packets of a batch that crossed the segment; `from`: the point at which the segment starts.
    pub fn add(&mut self, crossings: &Crossings, batch: &Batch, from: usize, threshold: Ns, band: Option<Band>) {
        let Some((min, max)) = crossings.extremes() else { return };
        self.histogram.record_all(&crossings.times, min, max);
        if self.extremes.may_take(min, max) {
            let is_extreme = |(_, (least, greatest)): &(_, (Ns, Ns))| *least == min || *greatest == max;
            for at in crossings.pieces().filter(is_extreme).flat_map(|(places, _)| places) {
                let (time, row) = (crossings.times[at], crossings.row(at));
                if time == min || time == max {
                    let Batch { rows, stream, .. } = *batch;
                    let (t, number, key) = (rows.t[from][row], rows.number[row], rows.key[row]);
                    self.extremes.offer(time, Crossing { t, stream, number, key });
                }
            }
        }
        for (places, _) in crossings.pieces().filter(|(_, (_, greatest))| *greatest > threshold) {
            self.over += crossings.times[places].iter().filter(|time| **time > threshold).count() as u64;
        }
        if let Some(band) = band {
            self.in_band += crossings.times.iter().filter(|time| band.contains(**time)).count() as u64;
        }
    }

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

/// The time from one to the other. It saturates only with a faulty clock or a hostile file.
#[inline]
pub(crate) fn between(from: Ns, to: Ns) -> Ns {
    to.saturating_sub(from)
}

/// Whether all times are at or after `begin` and before `end`. May wrongly return false if the span exceeds half of the
/// range.
#[inline]
pub(crate) fn are_within(instants: &[Ns], begin: Ns, end: Ns) -> bool {
    let last = end.wrapping_sub(begin).wrapping_sub(1);
    // Combine the signs of all differences: faster than comparing each of them.
    let sign = |all, t: &Ns| {
        let since = t.wrapping_sub(begin);
        all | since | last.wrapping_sub(since)
    };
    begin < end && last >= 0 && instants.iter().fold(0, sign) >= 0
}
