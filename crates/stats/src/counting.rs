//! Figures of journeys as they come, which begin again whenever the user or the route says so: what live and a replay count.

use crate::{Aggregate, Setup};
use latpath_journey::{Journey, Layout, Segment};
use latpath_model::{Ns, PointInfo};

/// Worst packets that are kept.
const WORST: usize = 10;

pub struct Counting {
    pub aggregate: Aggregate,
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
        let aggregate = Aggregate::new(Setup { threshold, ..Setup::default() });
        Self { aggregate, seen: vec![0; streams], since, span: None, row_limits: Vec::new(), threshold }
    }

    fn setup(&self, points: &[PointInfo], layout: &Layout) -> Setup {
        Setup {
            row_limits: self.row_limits.clone(),
            ..Setup::new(self.seen.len(), points, layout, self.threshold, WORST)
        }
    }

    /// Starts all figures from zero.
    pub fn restart(&mut self, points: &[PointInfo], layout: &Layout, now: Ns) {
        self.aggregate = Aggregate::new(self.setup(points, layout));
        (self.since, self.span) = (now, None);
    }

    /// Counts by another layout. Figures go on where points and segments are only added: a first upcall after hours must not cost the
    /// hours. Returns whether they began again.
    pub fn set_layout(&mut self, points: &[PointInfo], layout: &Layout, now: Ns) -> bool {
        let setup = self.aggregate.setup();
        if setup.routes.iter().all(Vec::is_empty) {
            // Nothing was counted before.
            self.aggregate = Aggregate::new(self.setup(points, layout));
            return false;
        }
        let all = |s: &Segment| layout.segments.contains(s);
        if setup.routes != layout.route.by_streams(self.seen.len()) || !setup.segments.iter().all(all) {
            self.restart(points, layout, now);
            return true;
        }
        let new: Vec<Segment> = layout.segments.iter().filter(|s| !setup.segments.contains(s)).cloned().collect();
        self.aggregate.extend(points, &new);
        false
    }

    /// Counts a journey; in the figures only if it began after they did.
    pub fn add(&mut self, journey: &Journey) {
        if let Some(seen) = self.seen.get_mut(usize::from(journey.stream)) {
            *seen += 1;
        }
        if let Some(first) = journey.first().filter(|t| *t >= self.since) {
            self.span = Some(self.span.map_or((first, first), |(from, to)| (from.min(first), to.max(first))));
            self.aggregate.add(journey);
        }
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
