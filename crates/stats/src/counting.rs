//! Figures of journeys as they come, which begin again whenever the user or the route says so: what live and a replay count.

use crate::{Aggregate, Batches, Setup};
use latpath_journey::{Journey, Layout, Segment};
use latpath_model::{Ns, PointInfo};
use latpath_run::Rows;

/// Worst packets that are kept.
const WORST: usize = 10;
/// Journeys that wait to be counted, at most.
const MAX_WAITING: usize = 1024;

pub struct Counting {
    aggregate: Aggregate,
    batches: Batches,
    /// Journeys that are in the figures once [`Counting::flush`] is called.
    waiting: Rows,
    /// Journeys of each stream since the start, however often the figures began again.
    pub seen: Vec<u64>,
    /// Journeys that began before are not in the figures.
    pub since: Ns,
    /// First sightings of the first and the last journey that is in them.
    pub span: Option<(Ns, Ns)>,
    /// The longest rows of packets that took longer than each of these are found too, from the next restart on.
    pub row_limits: Vec<Ns>,
    threshold: Ns,
}

impl Counting {
    /// Times over `threshold` are counted.
    pub fn new(streams: usize, threshold: Ns, since: Ns) -> Self {
        let setup = Setup { threshold, ..Setup::default() };
        Self {
            batches: Batches::new(&setup),
            aggregate: Aggregate::new(setup),
            waiting: Rows::new(0),
            seen: vec![0; streams],
            since,
            span: None,
            row_limits: Vec::new(),
            threshold,
        }
    }

    fn begin(&mut self, points: &[PointInfo], layout: &Layout) {
        let setup = Setup {
            row_limits: self.row_limits.clone(),
            ..Setup::new(self.seen.len(), points, layout, self.threshold, WORST)
        };
        self.batches = Batches::new(&setup);
        self.aggregate = Aggregate::new(setup);
        self.waiting.clear(points.len());
    }

    /// Starts all figures from zero.
    pub fn restart(&mut self, points: &[PointInfo], layout: &Layout, now: Ns) {
        self.begin(points, layout);
        (self.since, self.span) = (now, None);
    }

    /// Counts by another layout. Figures go on where points and segments are only added: a first upcall after hours must not cost the
    /// hours. Returns whether they began again.
    pub fn set_layout(&mut self, points: &[PointInfo], layout: &Layout, now: Ns) -> bool {
        self.flush();
        let setup = self.aggregate.setup();
        if setup.routes.iter().all(Vec::is_empty) {
            // Nothing was counted before.
            self.begin(points, layout);
            return false;
        }
        let all = |s: &Segment| layout.segments.contains(s);
        if setup.routes != layout.route.by_streams(self.seen.len()) || !setup.segments.iter().all(all) {
            self.restart(points, layout, now);
            return true;
        }
        let new: Vec<Segment> = layout.segments.iter().filter(|s| !setup.segments.contains(s)).cloned().collect();
        self.aggregate.extend(points, &new);
        self.batches.extend(points, &new);
        self.waiting.clear(self.waiting.t.len().max(points.len()));
        false
    }

    /// Counts a journey; in the figures only if it began after they did.
    pub fn add(&mut self, journey: &Journey) {
        if let Some(seen) = self.seen.get_mut(usize::from(journey.stream)) {
            *seen += 1;
        }
        if let Some(first) = journey.first().filter(|t| *t >= self.since) {
            self.span = Some(self.span.map_or((first, first), |(from, to)| (from.min(first), to.max(first))));
            let points = (u64::BITS - journey.seen.leading_zeros()) as usize;
            if points > self.waiting.t.len() {
                self.flush();
                self.waiting.clear(points);
            }
            self.waiting.push(journey);
            if self.waiting.len() >= MAX_WAITING {
                self.flush();
            }
        }
    }

    /// Brings all journeys that were added into the figures.
    pub fn flush(&mut self) {
        self.waiting.sort_by_stream();
        self.batches.each(&self.waiting, |batch| self.aggregate.add(batch));
        self.waiting.clear(self.waiting.t.len());
    }

    /// The figures of all journeys up to the last [`Counting::flush`].
    pub fn figures(&self) -> &Aggregate {
        &self.aggregate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Summary};
    use latpath_clock::TimeOfDay;

    #[test]
    fn the_threshold_is_the_users_before_any_packet_has_come() {
        let counting = Counting::new(1, 200_000, 0);
        let mut summary = Summary::default();
        let time_of_day = TimeOfDay::new(0, 0, &[]);
        let context = Context { streams: &[], drop_notes: &[], elapsed: 1, time_of_day: &time_of_day };
        counting.aggregate.fill(&mut summary, context, |_, _| 0);
        assert_eq!(summary.threshold_ns, 200_000);
    }
}
