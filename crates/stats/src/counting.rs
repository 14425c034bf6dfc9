//! Figures of journeys for live views and replays, which restart on request or when the route changes.

use crate::{Aggregate, Batches, Pacing, Pattern, Patterns, Setup, Summary};
use latpath_journey::{Journey, Layout, Segment};
use latpath_model::{Ns, PointInfo, StreamSpec};
use latpath_run::Rows;

/// Number of worst packets to keep.
const WORST: usize = 10;
/// Maximum number of journeys waiting to be counted.
const MAX_WAITING: usize = 1024;
/// Length of a batch in the search for patterns, ns: times are compared with the usual times of the same second, as in
/// the parts of a run.
const PATTERN_BATCH: Ns = 1_000_000_000;
/// Maximum number of journeys of such a batch.
const MAX_PATTERN_BATCH: usize = 1 << 16;
/// Interval between searches for patterns, in packet time, ns.
const FIND_EVERY: Ns = 10_000_000_000;

/// The figures since the last restart, and the journeys waiting to be counted.
pub struct Counting {
    aggregate: Aggregate,
    batches: Batches,
    /// Journeys that [`Counting::flush`] will count.
    waiting: Rows,
    /// Pacing and patterns; `None` if only the packets' durations are known.
    over_time: Option<CountedOverTime>,
    /// Number of journeys per stream since the start, including those before restarts.
    pub seen: Vec<u64>,
    /// Start of the figures, ns; journeys that began earlier are excluded.
    pub since: Ns,
    /// Times of first sighting of the first and the last counted journey, ns.
    pub span: Option<(Ns, Ns)>,
    /// Further thresholds for runs of late packets, ns; they take effect at the next restart.
    pub row_limits: Vec<Ns>,
    threshold: Ns,
}

/// Figures over time: pacing and patterns.
struct CountedOverTime {
    pacing: Pacing,
    patterns: Patterns,
    /// Journeys that have not been added to the patterns yet.
    waiting: Rows,
    /// `found`: the patterns found by the last search. `searched`: time of the last packet before that search.
    found: Vec<Pattern>,
    searched: Ns,
}

impl CountedOverTime {
    fn new(setup: &Setup, since: Ns) -> Self {
        Self {
            pacing: Pacing::in_order(setup.streams, setup.points.len()),
            patterns: Patterns::growing(setup, since),
            waiting: times_alone(setup.points.len()),
            found: Vec::new(),
            searched: since,
        }
    }

    fn extend(&mut self, batches: &mut Batches, setup: &Setup) {
        self.gather(batches);
        self.pacing.extend(setup.points.len());
        self.patterns.extend(setup);
        self.waiting = times_alone(setup.points.len().max(self.waiting.t.len()));
    }

    /// Adds the waiting journeys to the patterns.
    fn gather(&mut self, batches: &mut Batches) {
        self.waiting.sort_by_stream();
        batches.each(&self.waiting, |batch| self.patterns.add(batch));
        self.waiting.clear(self.waiting.t.len());
        self.waiting.leave_out_details();
    }
}

/// Returns an empty batch of rows for this number of points, without CPUs and threads.
fn times_alone(points: usize) -> Rows {
    let mut rows = Rows::new(points);
    rows.leave_out_details();
    rows
}

impl Counting {
    /// Figures that count times over `threshold`, ns, as late.
    pub fn new(streams: usize, threshold: Ns, since: Ns) -> Self {
        let setup = Setup { threshold, ..Setup::default() };
        Self {
            batches: Batches::new(&setup),
            over_time: Some(CountedOverTime::new(&setup, since)),
            aggregate: Aggregate::new(setup),
            waiting: Rows::new(0),
            seen: vec![0; streams],
            since,
            span: None,
            row_limits: Vec::new(),
            threshold,
        }
    }

    /// Like [`Counting::new`], but for packets of which only durations are known: without pacing and patterns.
    pub fn of_durations(streams: usize, threshold: Ns, since: Ns) -> Self {
        Self { over_time: None, ..Self::new(streams, threshold, since) }
    }

    fn begin(&mut self, points: &[PointInfo], layout: &Layout, since: Ns) {
        let setup = Setup {
            row_limits: self.row_limits.clone(),
            ..Setup::new(self.seen.len(), points, layout, self.threshold, WORST)
        };
        self.batches = Batches::new(&setup);
        self.over_time = self.over_time.is_some().then(|| CountedOverTime::new(&setup, since));
        self.aggregate = Aggregate::new(setup);
        self.waiting.clear(points.len());
    }

    /// Resets all figures to zero.
    pub fn restart(&mut self, points: &[PointInfo], layout: &Layout, now: Ns) {
        self.begin(points, layout, now);
        (self.since, self.span) = (now, None);
    }

    /// Changes the layout. If points and segments are only added, the figures continue, so that the first upcall after
    /// hours does not discard them. Returns whether they were restarted.
    pub fn set_layout(&mut self, points: &[PointInfo], layout: &Layout, now: Ns) -> bool {
        self.flush();
        let setup = self.aggregate.setup();
        if setup.routes.iter().all(Vec::is_empty) {
            // There was no route yet, so nothing is discarded.
            self.begin(points, layout, self.since);
            return false;
        }
        let all = |s: &Segment| layout.segments.contains(s);
        if setup.routes != layout.route.by_streams(self.seen.len()) || !setup.segments.iter().all(all) {
            self.restart(points, layout, now);
            return true;
        }
        let new: Vec<Segment> = layout.segments.iter().filter(|s| !setup.segments.contains(s)).cloned().collect();
        self.aggregate.extend(points, &new);
        if let Some(over_time) = &mut self.over_time {
            over_time.extend(&mut self.batches, self.aggregate.setup());
        }
        self.batches.extend(points, &new);
        self.waiting.clear(self.waiting.t.len().max(points.len()));
        false
    }

    /// Counts a journey. The figures include it only if it began after their start.
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

    /// Counts all waiting journeys.
    pub fn flush(&mut self) {
        let Self { waiting, batches, aggregate, over_time, .. } = self;
        if waiting.is_empty() {
            return;
        }
        if let Some(over_time) = over_time {
            if over_time.waiting.t.len() != waiting.t.len() {
                over_time.gather(batches);
                over_time.waiting = times_alone(waiting.t.len());
            }
            over_time.waiting.extend(waiting);
            let first = over_time.waiting.first_time(0);
            let last = waiting.first_time(waiting.len() - 1);
            if last.saturating_sub(first) >= PATTERN_BATCH || over_time.waiting.len() >= MAX_PATTERN_BATCH {
                over_time.gather(batches);
            }
        }
        waiting.sort_by_stream();
        batches.each(waiting, |batch| {
            aggregate.add(batch);
            over_time.iter_mut().for_each(|over_time| over_time.pacing.add(batch));
        });
        waiting.clear(waiting.t.len());
    }

    /// The figures of all journeys up to the last [`Counting::flush`].
    pub fn figures(&self) -> &Aggregate {
        &self.aggregate
    }

    /// Adds pacing and patterns to a summary, as of the last [`Counting::flush`] and the last search. If `is_last`,
    /// searches again. `start`: start of the recording, ns.
    pub fn fill(&mut self, summary: &mut Summary, streams: &[StreamSpec], start: Ns, is_last: bool) {
        let Some(over_time) = &mut self.over_time else { return };
        let setup = self.aggregate.setup();
        over_time.pacing.fill(summary, &setup.points);
        let last = self.span.map_or(over_time.searched, |(_, last)| last);
        let passed = last.saturating_sub(over_time.searched);
        if passed >= FIND_EVERY || (is_last && passed > 0) {
            over_time.searched = last;
            if is_last {
                over_time.gather(&mut self.batches);
            }
            let names: Vec<String> = streams.iter().map(ToString::to_string).collect();
            let found = over_time.patterns.find(setup, start, &names);
            over_time.found = found.into_iter().map(|found| found.pattern).collect();
        }
        summary.patterns.clone_from(&over_time.found);
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
