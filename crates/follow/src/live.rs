//! Figures of the moment: the journeys that `record` would store, counted as they are finished.

use crate::follow::{sum, Follow, FollowError, Found, JourneySink, Options};
use latpath_capture::RankedCapture;
use latpath_journey::{Journey, Segment, Totals};
use latpath_linux::background::Background;
use latpath_model::{Ns, PointInfo, StreamId};
use latpath_stats::lost::explain;
use latpath_stats::{figures::error_bound, Aggregate, Context, Setup, Summary};

/// Worst packets that are kept.
const WORST: usize = 10;

/// Streams being followed and counted. Dropping it detaches everything.
pub struct Live {
    follow: Follow,
    figures: Figures,
}

/// What is counted since the start or the last reset.
struct Figures {
    names: Vec<String>,
    threshold: Ns,
    aggregate: Aggregate,
    /// Journeys of each stream since the start.
    seen: Vec<u64>,
    since: Ns,
    /// What the joiner had counted of each stream then.
    before: Vec<Totals>,
}

impl Live {
    /// Reaches the machines and attaches the programs.
    ///
    /// # Errors
    /// As [`Follow::start`].
    pub fn start(options: Options) -> Result<Self, FollowError> {
        let names: Vec<String> = options.streams.iter().map(ToString::to_string).collect();
        let (streams, threshold) = (names.len(), options.threshold);
        let follow = Follow::start(options)?;
        let figures = Figures {
            names,
            threshold,
            aggregate: Aggregate::new(Setup::default()),
            seen: vec![0; streams],
            since: follow.begin(),
            before: vec![Totals::default(); streams],
        };
        Ok(Self { follow, figures })
    }

    /// Where the journeys come from.
    pub fn follow(&self) -> &Follow {
        &self.follow
    }

    /// As [`Follow::enter_background`].
    pub fn enter_background(&mut self, background: Background) {
        self.follow.enter_background(background);
    }

    /// A capture that is complete. Each is returned once; take them each round.
    pub fn next_capture(&mut self) -> Option<RankedCapture> {
        self.follow.next_capture()
    }

    /// One round; call it some fifty times a second. Figures start from zero when the route changes.
    pub fn step(&mut self) {
        self.follow.step(&mut self.figures);
    }

    /// Starts all figures from zero.
    pub fn reset(&mut self) {
        let Self { follow, figures } = self;
        let (layout, points, totals) = (follow.layout(), follow.points(), follow.all_totals());
        figures.start_from_zero(Found { layout, points, totals: &totals, now: follow.now() });
    }

    /// Packets of each stream seen since the start.
    pub fn seen(&self) -> &[u64] {
        &self.figures.seen
    }

    /// All figures as of now.
    pub fn summary(&mut self) -> Summary {
        let counters = sum(&self.follow.counters());
        let machines = self.follow.machines();
        let (figures, points) = (&self.figures, self.follow.points());
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
            streams: &figures.names,
            drop_notes: self.follow.drop_notes(),
            elapsed: (self.follow.now() - figures.since).max(1),
            utc_offset: 0,
        };
        figures.aggregate.fill(&mut summary, context, |from, to| error_bound(bound(from), bound(to)));
        for (id, (stream, before)) in summary.streams.iter_mut().zip(&figures.before).enumerate() {
            let now = self.follow.totals(id as StreamId);
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

    /// Detaches everything and counts what is finished.
    pub fn stop(&mut self) {
        self.follow.stop(&mut self.figures);
    }
}

impl Figures {
    fn setup(&self, found: Found) -> Setup {
        Setup {
            streams: self.names.len(),
            points: found.points.to_vec(),
            lines: found.layout.route.lines_of(self.names.len()),
            segments: found.layout.segments.clone(),
            threshold: self.threshold,
            worst: WORST,
        }
    }

    fn start_from_zero(&mut self, found: Found) {
        self.aggregate = Aggregate::new(self.setup(found));
        (self.since, self.before) = (found.now, found.totals.to_vec());
    }
}

impl JourneySink for Figures {
    fn layout(&mut self, found: Found) {
        let (layout, setup) = (found.layout, self.aggregate.setup());
        if setup.lines.iter().all(Vec::is_empty) {
            // Nothing was counted before.
            self.aggregate = Aggregate::new(self.setup(found));
            return;
        }
        let all = |s: &Segment| layout.segments.contains(s);
        if setup.lines != layout.route.lines_of(self.names.len()) || !setup.segments.iter().all(all) {
            return self.start_from_zero(found);
        }
        // Counting goes on where points and segments are only added: a first upcall after hours must not cost the hours.
        let new = layout.segments.iter().filter(|s| !setup.segments.contains(s)).cloned();
        let new: Vec<Segment> = new.collect();
        self.aggregate.extend(found.points, &new);
    }

    /// Counts a journey; in the figures only if it began after they did.
    fn journey(&mut self, journey: &Journey, _: &[PointInfo]) {
        self.seen[usize::from(journey.stream)] += 1;
        if journey.first().is_some_and(|t| t >= self.since) {
            self.aggregate.add(journey);
        }
    }
}
