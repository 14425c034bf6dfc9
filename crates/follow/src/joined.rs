//! Live figures across machines: journeys joined here and counted as they are done.

use crate::follow::{sum, Follow, FollowError, Options};
use latpath_journey::{Journey, Segment};
use latpath_model::{Ns, PointId, StreamId};
use latpath_stats::lost::explain;
use latpath_stats::{figures::error_bound, Aggregate, Context, Setup, Summary};

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

    /// Where the journeys come from.
    pub fn follow(&mut self) -> &mut Follow {
        &mut self.follow
    }

    /// One round. Figures begin anew when the way changes.
    pub fn step(&mut self) {
        let Self { follow, figures, seen, since, .. } = self;
        let changed = follow.step(|journey, _| take(journey, figures, seen, *since));
        if !changed {
            return;
        }
        let (setup, layout) = (self.figures.setup(), self.follow.layout());
        let all = |s: &Segment| layout.segments.contains(s);
        if setup.lines != self.lines() || !setup.segments.iter().all(all) {
            return self.reset();
        }
        // What is counted goes on where points and segments only come on top.
        let new = layout.segments.iter().filter(|s| !setup.segments.contains(s)).cloned();
        let new: Vec<Segment> = new.collect();
        self.figures.extend(self.follow.points(), &new);
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
        self.follow.layout().route.lines_of(self.names.len())
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
        self.figures.fill(&mut summary, context, |from, to| error_bound(bound(from), bound(to)));
        for ((stream, now), before) in summary.streams.iter_mut().zip(self.totals()).zip(&self.before) {
            stream.never_seen = now.never_seen.saturating_sub(before.never_seen);
            stream.duplicates = now.duplicates.saturating_sub(before.duplicates);
        }
        summary.duplicates = summary.streams.iter().map(|s| s.duplicates).sum();
        if !summary.lost.is_empty() {
            explain(&mut summary, points, Some(&self.follow.counted()));
        }
        summary.notes = self.follow.notes();
        summary.machines = machines;
        summary.tool = self.follow.cost();
        summary
    }

    /// Detaches everything and counts what is done.
    pub fn stop(&mut self) {
        let Self { follow, figures, seen, since, .. } = self;
        follow.stop(|journey, _| take(journey, figures, seen, *since));
    }
}

/// Counts a journey; in the figures only if it began after they did.
fn take(journey: &Journey, figures: &mut Aggregate, seen: &mut [u64], since: Ns) {
    seen[usize::from(journey.stream)] += 1;
    if journey.first().is_some_and(|t| t >= since) {
        figures.add(journey);
    }
}
