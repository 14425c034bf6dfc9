//! A live view: figures of the moment, and why packets are late; of streams or of a recorded run.

use crate::absent::Absent;
use crate::event::{Event, EventQueue};
use crate::{EndReason, FigureSource, Replay, Session, State, StopAfter};
use latpath_analysis::{LiveExplainer, SummaryOptions};
use latpath_follow::{FollowError, Live, Options};
use latpath_journey::Layout;
use latpath_linux::background::Background;
use latpath_model::{Ns, StreamSpec};
use latpath_run::Run;
use latpath_stats::Summary;
use std::time::{Duration, Instant};

/// Interval at which absent packets are checked.
const CHECK: Duration = Duration::from_secs(1);

/// Options of a live view of streams.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    pub follow: Options,
    /// Those of its segments whose absence is reported: the user's own.
    pub named_segments: Vec<String>,
    /// The longest rows of packets that took longer than each of these are found too.
    pub row_limits: Vec<Ns>,
    pub stop_after: StopAfter,
}

impl LiveOptions {
    /// Until it is stopped.
    pub fn new(follow: Options) -> Self {
        Self { follow, named_segments: Vec::new(), row_limits: Vec::new(), stop_after: StopAfter::default() }
    }
}

/// Options of a replay of a run.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Segments beside those of the run, `NAME=FROM..TO`.
    pub segments: Vec<String>,
    /// Segments of a profile: those whose points the run has, and whose names are new, are added.
    pub possible_segments: Vec<String>,
    /// Times over this are counted; over the run's own threshold where there is none.
    pub threshold: Option<Ns>,
    /// Seconds of the run that pass in one second; infinite: as fast as it can be read.
    pub speed: f64,
    /// The longest rows of packets that took longer than each of these are found too.
    pub row_limits: Vec<Ns>,
    pub stop_after: StopAfter,
}

impl ReplayOptions {
    /// At this speed, to its end, with the run's own segments and threshold.
    pub fn new(speed: f64) -> Self {
        let (segments, possible_segments, row_limits) = (Vec::new(), Vec::new(), Vec::new());
        Self { segments, possible_segments, threshold: None, speed, row_limits, stop_after: StopAfter::default() }
    }
}

/// Why a live view did not start.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// One of the user's segments cannot be.
    #[error("{0}")]
    Segment(String),
    #[error("starting the thread that explains late packets: {0}")]
    Explainer(#[from] std::io::Error),
}

/// A live view. Dropping it detaches everything.
pub struct LiveSession {
    source: Box<dyn FigureSource>,
    streams: Vec<StreamSpec>,
    explainer: Option<LiveExplainer>,
    /// `None` where the figures are those of a run.
    absent: Option<Absent>,
    events: EventQueue,
    stop_after: StopAfter,
    began: Instant,
    checked: Instant,
}

impl LiveSession {
    /// The longest time that a capture should wait for late packets that are still on their way (`FlightOptions::max_wait`): the user
    /// waits for the cause.
    pub const MAX_WAIT: Duration = LiveExplainer::MAX_WAIT;

    /// Follows streams of this host and other machines. With `background` the process's threads stay in the background until it is
    /// stopped, so that they do not make packets late.
    ///
    /// # Errors
    /// Where a machine cannot be reached, or the programs cannot be attached.
    pub fn follow(options: LiveOptions, background: Option<Background>) -> Result<Self, LiveError> {
        let LiveOptions { follow, named_segments, row_limits, stop_after } = options;
        let streams = follow.streams.clone();
        let explains = follow.flight.is_some();
        let mut live = Live::start(follow)?;
        live.find_rows_over(row_limits);
        let explainer = explains.then(|| LiveExplainer::start(&streams, live.follow.qdiscs())).transpose()?;
        if let Some(background) = background {
            live.follow.keep_background(background);
        }
        let absent = Some(Absent::new(streams.clone(), named_segments));
        Ok(Self { absent, ..Self::of(live, streams, explainer, stop_after) })
    }

    /// Shows a recorded run as it was.
    ///
    /// # Errors
    /// Where one of the user's segments cannot be.
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

    /// Figures of any source. The explainer gets its captures.
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
            events: EventQueue::default(),
            stop_after,
            began: Instant::now(),
            checked: Instant::now(),
        }
    }

    /// Route and segments as they are known now.
    pub fn layout(&self) -> &Layout {
        self.source.layout()
    }

    /// Starts all figures from zero. The baseline stays.
    pub fn reset(&mut self) {
        self.source.reset();
        self.explainer.iter_mut().for_each(LiveExplainer::reset);
    }

    /// Whether a cause of late packets is known that no summary has shown yet.
    pub fn has_news(&self) -> bool {
        self.explainer.as_ref().is_some_and(LiveExplainer::has_news)
    }

    /// The figures, and what is known of late packets by now.
    pub fn summary(&mut self) -> Summary {
        let mut summary = self.source.summary();
        let late = self.source.late();
        summary.late = self.explainer.as_mut().map(|explainer| explainer.figures(late));
        summary
    }

    /// Ends it, and returns the figures of all packets. Waits `for_causes` at most until the last late packets are explained, and up to
    /// two seconds for what all machines did around them.
    pub fn stop(&mut self, for_causes: Duration) -> Summary {
        self.source.stop();
        self.explain();
        self.explainer.iter().for_each(|explainer| explainer.finish(for_causes));
        self.summary()
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
        let seen = source.seen().to_vec();
        let Some(follow) = source.followed() else { return };
        while let Some(request) = follow.next_spotted() {
            events.push(Event::late(&request, streams));
        }
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            absent.check(follow, &seen, events, false);
        }
    }
}

impl Session for LiveSession {
    /// As [`Session::step`]. Where a replayed run is over, its figures can still be stepped, reset and shown.
    fn step(&mut self) -> State {
        self.source.step();
        self.explain();
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
