//! A live view: current figures and causes of late packets, of streams or of a recorded run.

use crate::absent::Absent;
use crate::event::{Event, EventQueue};
use crate::{EndReason, FigureSource, Replay, Session, State, StopAfter};
use latpath_analysis::{LiveExplainer, SummaryOptions};
use latpath_cause::RunContext;
use latpath_follow::{FollowError, Live, Options};
use latpath_journey::Layout;
use latpath_linux::background::Background;
use latpath_linux::monotonic;
use latpath_model::{Ns, StreamSpec};
use latpath_run::Run;
use latpath_stats::{ClockFigures, Summary};
use latpath_timesync::{Monitor, SyncHistory, SyncRecord};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between checks for absent packets.
const CHECK: Duration = Duration::from_secs(1);

/// Options of a live view of streams.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// Options for following the streams.
    pub follow: Options,
    /// The user's own segments in `follow`; reported if no packet is seen at one of their ends.
    pub named_segments: Vec<String>,
    /// Limits for which to find the longest run of consecutive packets over the limit.
    pub row_limits: Vec<Ns>,
    /// Conditions that end the session.
    pub stop_after: StopAfter,
    /// The monitor of this host's clocks; `None` to omit them.
    pub clocks: Option<Arc<Monitor>>,
}

impl LiveOptions {
    /// Options for following streams until the session is stopped.
    pub fn new(follow: Options) -> Self {
        Self {
            follow,
            named_segments: Vec::new(),
            row_limits: Vec::new(),
            stop_after: StopAfter::default(),
            clocks: None,
        }
    }
}

/// Options for replaying a run.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Additional segments, `NAME=FROM..TO`.
    pub segments: Vec<String>,
    /// Segments of a profile; each is added if the run has its points and no segment of the same name.
    pub possible_segments: Vec<String>,
    /// Threshold above which packets are late; `None` for the run's own.
    pub threshold: Option<Ns>,
    /// Speed as a multiple of real time; infinite to replay as fast as the run can be read.
    pub speed: f64,
    /// Limits for which to find the longest run of consecutive packets over the limit.
    pub row_limits: Vec<Ns>,
    /// Conditions that end the session.
    pub stop_after: StopAfter,
}

impl ReplayOptions {
    /// Options for replaying the whole run at this speed, with its own segments and threshold.
    pub fn new(speed: f64) -> Self {
        let (segments, possible_segments, row_limits) = (Vec::new(), Vec::new(), Vec::new());
        Self { segments, possible_segments, threshold: None, speed, row_limits, stop_after: StopAfter::default() }
    }
}

/// Reason why a live view did not start.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The streams cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// One of the user's segments is invalid.
    #[error("{0}")]
    Segment(String),
    /// The thread that explains late packets cannot be started.
    #[error("starting the thread that explains late packets: {0}")]
    Explainer(#[from] std::io::Error),
}

/// A live view. Dropping it detaches everything.
pub struct LiveSession {
    source: Box<dyn FigureSource>,
    streams: Vec<StreamSpec>,
    explainer: Option<LiveExplainer>,
    /// Reports streams, points and segments without packets; `None` if the figures come from a stored run.
    absent: Option<Absent>,
    clocks: Option<Arc<Monitor>>,
    history: SyncHistory,
    events: EventQueue,
    stop_after: StopAfter,
    began: Instant,
    began_ns: Ns,
    checked: Instant,
}

impl LiveSession {
    /// Maximum time for which a capture should wait for packets in flight (`FlightOptions::max_wait`); short, because
    /// the user is waiting for the cause.
    pub const MAX_WAIT: Duration = LiveExplainer::MAX_WAIT;

    /// Follows streams of this host and other machines. If `background` is given, the process's threads stay at
    /// background priority until the session is stopped, so that they do not delay packets.
    ///
    /// # Errors
    /// If a machine cannot be reached, or the programs cannot be attached.
    pub fn follow(options: LiveOptions, background: Option<Background>) -> Result<Self, LiveError> {
        let LiveOptions { follow, named_segments, row_limits, stop_after, clocks } = options;
        let streams = follow.streams.clone();
        let explains = follow.flight.is_some();
        let mut live = Live::start(Options { clocks: clocks.clone(), ..follow })?;
        live.find_rows_over(row_limits);
        let context = || RunContext {
            streams: streams.clone(),
            qdiscs: live.follow.qdiscs(),
            vms: live.vms().clone(),
            named_hypervisors: live.follow.options().hypervisors.clone(),
            ..RunContext::default()
        };
        let explainer = explains.then(|| LiveExplainer::start(context())).transpose()?;
        if let Some(background) = background {
            live.follow.keep_background(background);
        }
        let absent = Some(Absent::new(streams.clone(), named_segments, live.follow.options().window));
        Ok(Self { absent, clocks, ..Self::of(live, streams, explainer, stop_after) })
    }

    /// Replays a recorded run.
    ///
    /// # Errors
    /// If one of the user's segments is invalid, or the explainer cannot start.
    pub fn replay(run: Run, options: ReplayOptions) -> Result<Self, LiveError> {
        let ReplayOptions { segments, possible_segments, threshold: threshold_ns, speed, row_limits, stop_after } =
            options;
        let (streams, has_captures) = (run.manifest().streams.clone(), run.manifest().spikes.is_some());
        let options = SummaryOptions { segments, possible_segments, threshold_ns, ..SummaryOptions::default() };
        let (mut replay, context) = Replay::start(run, options, speed).map_err(LiveError::Segment)?;
        let explainer = has_captures.then(|| LiveExplainer::for_run(context)).transpose()?;
        replay.find_rows_over(row_limits);
        Ok(Self::of(replay, streams, explainer, stop_after))
    }

    /// A live view of any source; its captures are passed to the explainer.
    pub fn of(
        source: impl FigureSource + 'static,
        streams: Vec<StreamSpec>,
        explainer: Option<LiveExplainer>,
        stop_after: StopAfter,
    ) -> Self {
        Self {
            source: Box::new(source),
            streams,
            explainer,
            absent: None,
            clocks: None,
            history: SyncHistory::default(),
            events: EventQueue::default(),
            stop_after,
            began: Instant::now(),
            began_ns: monotonic(),
            checked: Instant::now(),
        }
    }

    /// Route and segments as known so far.
    pub fn layout(&self) -> &Layout {
        self.source.layout()
    }

    /// Resets all figures to zero, but keeps the baseline.
    pub fn reset(&mut self) {
        self.source.reset();
        self.explainer.iter_mut().for_each(LiveExplainer::reset);
    }

    /// Whether a cause of late packets was found that no summary has included yet.
    pub fn has_news(&self) -> bool {
        self.explainer.as_ref().is_some_and(LiveExplainer::has_news)
    }

    /// The figures, and the causes of late packets found so far.
    pub fn summary(&mut self) -> Summary {
        let mut summary = self.source.summary();
        let late = self.source.late();
        summary.late = self.explainer.as_mut().map(|explainer| explainer.figures(late));
        if self.clocks.is_some() {
            summary.clocks = ClockFigures::of(&self.history, &self.source.time_of_day(), self.began_ns);
        }
        summary
    }

    /// Ends the session, and returns the figures of all packets. Waits up to two seconds for the captures of all
    /// machines around the last late packets, and then up to `for_causes` for the causes.
    pub fn stop(&mut self, for_causes: Duration) -> Summary {
        self.source.stop();
        self.clocks.iter().for_each(|clocks| clocks.finish());
        self.take_clocks();
        self.explain();
        self.explainer.iter().for_each(|explainer| explainer.finish(for_causes));
        self.summary()
    }

    fn take_clocks(&mut self) {
        for record in self.clocks.iter().flat_map(|clocks| clocks.take()) {
            if let SyncRecord::Event(event) = &record {
                self.events.push(Event::Clock { clock: event.clone() });
            }
            self.history.add(record);
        }
    }

    /// Passes complete captures to the explainer.
    fn explain(&mut self) {
        let Self { source, explainer: Some(explainer), events, .. } = self else { return };
        while let Some(capture) = source.next_capture() {
            events.push(Event::captured(&capture));
            explainer.take(capture, source.points(), source.layout(), source.time_of_day());
        }
    }

    fn report(&mut self) {
        let Self { source, streams, absent: Some(absent), events, .. } = self else { return };
        let seen = (self.checked.elapsed() >= CHECK).then(|| source.seen().to_vec());
        let Some(follow) = source.followed() else { return };
        while let Some(request) = follow.next_spotted() {
            events.push(Event::late(&request, streams));
        }
        if let Some(seen) = seen {
            self.checked = Instant::now();
            absent.check(follow, &seen, events, false);
        }
    }
}

impl Session for LiveSession {
    /// See [`Session::step`]. After the end of a replayed run, the session can still be stepped, reset and shown.
    fn step(&mut self) -> State {
        self.source.step();
        self.explain();
        self.take_clocks();
        self.report();
        let packets = self.source.seen().iter().sum();
        match self.stop_after.reached(self.began, packets) {
            Some(why) => State::Over(why),
            None if self.source.is_over() => State::Over(EndReason::EndOfRun),
            None => State::Running,
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }
}
