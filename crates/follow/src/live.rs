//! Figures of the moment: the journeys that `record` would store, counted as they are finished.

use crate::follow::{Follow, FollowError, Found, JourneySink, Options};
use latpath_capture::RankedCapture;
use latpath_journey::Totals;
use latpath_journey::{Journey, Segment};
use latpath_linux::background::Background;
use latpath_model::{Ns, PointInfo};
use latpath_run::Manifest;
use latpath_stats::{summarise, Aggregate, Facts, Setup, Summary};
use latpath_vms::Vm;

/// Worst packets that are kept.
const WORST: usize = 10;

/// Streams being followed and counted. Dropping it detaches everything.
pub struct Live {
    follow: Follow,
    figures: Figures,
    manifest: Manifest,
    vms: Vec<Vm>,
}

/// What is counted since the start or the last reset.
struct Figures {
    streams: usize,
    threshold: Ns,
    aggregate: Aggregate,
    /// Journeys of each stream since the start.
    seen: Vec<u64>,
    since: Ns,
    /// First sightings of the first and the last journey that is counted.
    span: Option<(Ns, Ns)>,
    /// What the joiner had counted of each stream then.
    before: Vec<Totals>,
}

impl Live {
    /// Reaches the machines and attaches the programs.
    ///
    /// # Errors
    /// As [`Follow::start`].
    pub fn start(options: Options) -> Result<Self, FollowError> {
        Ok(Self::of(options.clone(), Follow::start(options)?))
    }

    /// The figures of journeys that come from `follow`, which was started with `options`.
    pub fn of(options: Options, follow: Follow) -> Self {
        let (streams, threshold) = (options.streams.len(), options.threshold);
        let manifest = Manifest { threshold_ns: threshold, streams: options.streams, ..Manifest::begin() };
        let figures = Figures {
            streams,
            threshold,
            aggregate: Aggregate::new(Setup::default()),
            seen: vec![0; streams],
            since: follow.begin(),
            span: None,
            before: vec![Totals::default(); streams],
        };
        // What the threads of the host's virtual machines do, while they are there to ask.
        let vms = latpath_vms::find().map_or_else(|_| Vec::new(), |found| found.vms);
        Self { follow, figures, manifest, vms }
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
        let Self { follow, figures, .. } = self;
        let (layout, points, totals) = (follow.layout(), follow.points(), follow.all_totals());
        figures.start_from_zero(Found { layout, points, totals: &totals, now: follow.now() });
    }

    /// Packets of each stream seen since the start.
    pub fn seen(&self) -> &[u64] {
        &self.figures.seen
    }

    /// All figures as of now.
    pub fn summary(&mut self) -> Summary {
        let elapsed = (self.follow.now() - self.figures.since).max(1);
        self.summary_over(elapsed)
    }

    /// All figures after [`Self::stop`], over the time from the first packet to the last, as a report of these packets has them.
    pub fn final_summary(&mut self) -> Summary {
        let elapsed = self.figures.span.map_or(0, |(first, last)| last.saturating_sub(first));
        self.summary_over(elapsed)
    }

    fn summary_over(&mut self, elapsed: Ns) -> Summary {
        let Self { follow, figures, manifest, vms } = self;
        follow.describe(manifest);
        if manifest.joined.iter().any(|joined| joined.journeys > 0) {
            manifest.kernel = Some(follow.counted());
        }
        let (points, route, before) = (follow.points(), &follow.layout().route, &figures.before[..]);
        let facts = Facts { manifest, points, route, before, whole: true, vms, elapsed };
        let mut summary = summarise(&figures.aggregate, &facts);
        summary.notes.splice(0..0, manifest.notes.iter().cloned());
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
            streams: self.streams,
            points: found.points.to_vec(),
            routes: found.layout.route.by_streams(self.streams),
            segments: found.layout.segments.clone(),
            threshold: self.threshold,
            worst: WORST,
        }
    }

    fn start_from_zero(&mut self, found: Found) {
        self.aggregate = Aggregate::new(self.setup(found));
        self.span = None;
        (self.since, self.before) = (found.now, found.totals.iter().map(|t| (*t).into()).collect());
    }
}

impl JourneySink for Figures {
    fn layout(&mut self, found: Found) {
        let (layout, setup) = (found.layout, self.aggregate.setup());
        if setup.routes.iter().all(Vec::is_empty) {
            // Nothing was counted before.
            self.aggregate = Aggregate::new(self.setup(found));
            return;
        }
        let all = |s: &Segment| layout.segments.contains(s);
        if setup.routes != layout.route.by_streams(self.streams) || !setup.segments.iter().all(all) {
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
        if let Some(first) = journey.first().filter(|t| *t >= self.since) {
            self.span = Some(self.span.map_or((first, first), |(from, to)| (from.min(first), to.max(first))));
            self.aggregate.add(journey);
        }
    }
}
