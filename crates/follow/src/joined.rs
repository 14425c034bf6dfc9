//! Live figures across machines: journeys joined here and counted as they are done.

use crate::follow::{sum, Follow, FollowError, Options};
use latpath_stats::{Aggregate, Context, Setup, Summary};
use latpath_words::{Ns, PointId, StreamId};

/// What of the joiner's totals is counted since.
#[derive(Clone, Copy, Default)]
struct Before {
    never_seen: u64,
    duplicates: u64,
}

/// Streams being followed and counted. Dropping it detaches everything.
pub struct Joined {
    follow: Follow,
    names: Vec<String>,
    threshold: Ns,
    figures: Aggregate,
    seen: Vec<u64>,
    since: Ns,
    before: Vec<Before>,
}

impl Joined {
    /// Reaches the machines and attaches the programs.
    ///
    /// # Errors
    /// As [`Follow::start`].
    pub fn start(options: Options) -> Result<Self, FollowError> {
        let names: Vec<String> = options.streams.iter().map(ToString::to_string).collect();
        let (streams, threshold) = (names.len(), options.threshold);
        let follow = Follow::start(options)?;
        Ok(Self {
            since: follow.begin(),
            follow,
            names,
            threshold,
            figures: Aggregate::new(Setup::default()),
            seen: vec![0; streams],
            before: vec![Before::default(); streams],
        })
    }

    /// One round. Figures begin anew when the way changes.
    pub fn step(&mut self) {
        let Self { figures, seen, since, .. } = self;
        let changed = self.follow.step(|journey, _| {
            seen[usize::from(journey.stream)] += 1;
            if journey.first().is_some_and(|t| t >= *since) {
                figures.add(journey);
            }
        });
        let setup = self.figures.setup();
        if changed && (setup.lines != self.lines() || setup.segments != self.follow.layout().segments) {
            self.reset();
        }
    }

    /// Starts all figures anew.
    pub fn reset(&mut self) {
        let layout = self.follow.layout();
        self.figures = Aggregate::new(Setup {
            streams: self.names.len(),
            points: self.follow.points().to_vec(),
            lines: self.lines(),
            segments: layout.segments.clone(),
            threshold: self.threshold,
            worst: 0,
        });
        self.since = self.follow.now();
        self.before = self.totals();
    }

    fn lines(&self) -> Vec<Vec<PointId>> {
        let route = &self.follow.layout().route;
        (0..self.names.len()).map(|id| route.line_of(id as StreamId).to_vec()).collect()
    }

    fn totals(&self) -> Vec<Before> {
        let total = |id| {
            let totals = self.follow.totals(id as StreamId);
            Before { never_seen: totals.never_seen, duplicates: totals.duplicates }
        };
        (0..self.names.len()).map(total).collect()
    }

    /// Packets of each stream seen since the start.
    pub fn seen(&self) -> Vec<u64> {
        self.seen.clone()
    }

    /// All figures as of now.
    pub fn summary(&mut self) -> Summary {
        let counters = sum(&self.follow.counters());
        let machines = self.follow.machines();
        let points = self.follow.points();
        let mut summary = Summary {
            points: self.follow.layout().line(points),
            aside: self.follow.layout().aside(points),
            malformed: counters.malformed,
            ..Default::default()
        };
        let bound = |p: u16| {
            let machine = points.get(usize::from(p)).map_or("", |info| info.point.machine.as_str());
            let clock = machines.iter().find(|m| m.machine == machine);
            (machine, clock.map_or(0, |m| m.error_bound_ns))
        };
        let context = Context {
            streams: &self.names,
            drop_notes: self.follow.drop_notes(),
            elapsed: (self.follow.now() - self.since).max(1),
            utc_offset: 0,
        };
        self.figures.fill(&mut summary, context, |from, to| {
            let ((a, bound_a), (b, bound_b)) = (bound(from), bound(to));
            if a == b {
                0
            } else {
                bound_a.saturating_add(bound_b)
            }
        });
        for ((stream, now), before) in summary.streams.iter_mut().zip(self.totals()).zip(&self.before) {
            stream.never_seen = now.never_seen.saturating_sub(before.never_seen);
            stream.duplicates = now.duplicates.saturating_sub(before.duplicates);
        }
        summary.duplicates = summary.streams.iter().map(|s| s.duplicates).sum();
        summary.notes = self.follow.notes();
        summary.machines = machines;
        summary.tool = self.follow.cost();
        summary
    }

    /// Detaches everything and counts what is done.
    pub fn stop(&mut self) {
        let Self { figures, seen, since, follow, .. } = self;
        follow.stop(|journey, _| {
            seen[usize::from(journey.stream)] += 1;
            if journey.first().is_some_and(|t| t >= *since) {
                figures.add(journey);
            }
        });
    }
}
