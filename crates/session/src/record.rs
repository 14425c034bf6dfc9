//! A recording: all journeys on disk, and captures of all machines around late packets.

mod trace;

pub use trace::TraceOptions;

use crate::absent::Absent;
use crate::event::{Event, EventQueue};
use crate::{EndReason, Session, State, StopAfter};
use latpath_capture::CaptureKind;
use latpath_follow::{sum, Follow, FollowError, JourneySink, Options};
use latpath_journey::Journey;
use latpath_linux::background::Background;
use latpath_linux::{monotonic, Directory};
use latpath_model::{PointInfo, SynchChange, HOST};
use latpath_run::{ClockSample, Manifest, Mark, Replaced, RunError, SpikesRecord, Writer, MANIFEST};
use latpath_settings::{read_host, Reading};
use latpath_stats::units::{bytes, number_of};
use latpath_timesync::{Monitor, SurveyOptions, SyncRecord};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace::Trace;

/// Interval between checks of clocks and counters, and for absent packets.
const UPDATE: Duration = Duration::from_secs(1);

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Options for following the streams.
    pub follow: Options,
    /// The user's own segments in `follow`; reported if no packet is seen at one of their ends.
    pub named_segments: Vec<String>,
    /// Path at which the run's directory is created.
    pub output: PathBuf,
    /// Whether to replace an earlier run at that path once this one begins; if not, an earlier run is an error.
    pub replace: bool,
    /// Conditions that end the session.
    pub stop_after: StopAfter,
    /// Size on disk at which the recording ends, bytes; journeys in progress are still written.
    pub max_size: Option<u64>,
    /// Whether the recording ends after the first capture that has late packets.
    pub stop_on_spike: bool,
    /// Options of the kernel's own trace, if it runs during the recording.
    pub trace: Option<TraceOptions>,
    /// The monitor of this host's clocks, if one is running; otherwise the recording starts its own.
    pub clocks: Option<Arc<Monitor>>,
}

impl RecordOptions {
    /// Options for recording to this path until the session is stopped.
    pub fn new(follow: Options, output: PathBuf) -> Self {
        Self {
            follow,
            named_segments: Vec::new(),
            output,
            replace: false,
            stop_after: StopAfter::default(),
            max_size: None,
            stop_on_spike: false,
            trace: None,
            clocks: None,
        }
    }
}

/// Progress of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordProgress {
    /// Time since the counting of packets began, ns.
    pub elapsed_ns: u64,
    /// Number of journeys written.
    pub journeys: u64,
    /// Size of the captures, and of the journeys before merging, bytes.
    pub bytes: u64,
    /// Number of sightings lost because a buffer was full.
    pub sightings_dropped: u64,
    /// Counts of late packets and of their captures; `None` without a flight recorder.
    pub spikes: Option<SpikesRecord>,
}

/// Reason why a recording did not start, or is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The streams cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The run cannot be created.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The kernel's own trace cannot be used.
    #[error(transparent)]
    Trace(#[from] latpath_tracefs::Error),
    /// The run could no longer be written.
    #[error("recording stopped; {}", directory.what_is_left(path, *stored))]
    Stopped {
        /// The run's directory.
        path: PathBuf,
        /// Number of journeys on disk.
        stored: u64,
        /// State of the directory.
        directory: DirectoryState,
        /// The write error.
        source: RunError,
    },
    /// The run could not be completed.
    #[error("closing {}", path.display())]
    Closing {
        /// The run's directory.
        path: PathBuf,
        /// The error.
        source: RunError,
    },
    /// The run is complete, but its directory was renamed.
    #[error("somebody renamed {} while it was recorded: the run is whole, under another name", .0.display())]
    Renamed(PathBuf),
    /// The session has already been stopped.
    #[error("the recording was stopped before")]
    StoppedBefore,
}

/// State of a run's directory at the end of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryState {
    /// It still has its original name.
    InPlace,
    /// It was renamed.
    Renamed,
    /// It was removed.
    Removed,
}

impl DirectoryState {
    fn of(directory: &Directory) -> Self {
        match directory.open_file(MANIFEST) {
            Ok(_) if directory.has_its_name() => Self::InPlace,
            Ok(_) => Self::Renamed,
            Err(_) => Self::Removed,
        }
    }

    fn what_is_left(self, path: &Path, stored: u64) -> String {
        let (path, kept) = (path.display(), number_of(stored, "journey"));
        match self {
            Self::InPlace => format!("what came before is in {path}: {kept}"),
            Self::Renamed => {
                format!("somebody renamed {path} while it was recorded; what came before is in it: {kept}")
            }
            Self::Removed => format!("somebody removed {path} while it was recorded"),
        }
    }
}

/// A recording in progress. Dropping it detaches everything, and leaves an interrupted run.
pub struct RecordSession {
    options: RecordOptions,
    follow: Follow,
    trace: Option<Trace>,
    /// The host's settings, until they are written to the run.
    settings: Option<Reading>,
    /// The run; `None` until packets are counted.
    recorder: Option<Recorder>,
    absent: Absent,
    clocks: Option<Arc<Monitor>>,
    events: EventQueue,
    began: Instant,
    updated: Instant,
    state: State,
    /// Error that occurred while creating the run.
    refused: Option<RunError>,
}

impl RecordSession {
    /// Connects to the machines and attaches the programs. If `background` is given, the process's threads stay at
    /// background priority until the recording is stopped, so that they do not delay packets.
    ///
    /// # Errors
    /// If the run's directory is in use, a machine cannot be reached, the trace cannot be used, or the programs cannot
    /// be attached.
    pub fn start(options: RecordOptions, background: Option<Background>) -> Result<Self, RecordError> {
        match options.replace {
            true => Replaced::check(&options.output)?,
            false => Writer::refuse_existing(&options.output)?,
        }
        let mut events = EventQueue::default();
        let trace = options.trace.as_ref().map(|trace| Trace::prepare(trace, &mut events)).transpose()?;
        // Read the settings before packets are counted, so that reading them delays no counted packet.
        let settings = Some(read_host(&[]));
        let clocks = options.clocks.clone();
        let clocks = clocks.unwrap_or_else(|| Arc::new(Monitor::start(SurveyOptions::default(), None)));
        let following = Options { settings: true, clocks: Some(Arc::clone(&clocks)), ..options.follow.clone() };
        let mut follow = Follow::start(following)?;
        if let Some(background) = background {
            if !background.isolated().is_empty() {
                follow.note(format!("latpath kept off the isolated CPUs {}", background.isolated()));
            }
            follow.keep_background(background);
        }
        Ok(Self { trace, events, settings, clocks: Some(clocks), ..Self::of(options, follow) })
    }

    /// A recording of `follow`, which was started with these options. The kernel's own trace is not used.
    pub fn of(options: RecordOptions, follow: Follow) -> Self {
        Self {
            absent: Absent::new(options.follow.streams.clone(), options.named_segments.clone(), options.follow.window),
            clocks: None,
            options,
            follow,
            trace: None,
            settings: None,
            recorder: None,
            events: EventQueue::default(),
            began: Instant::now(),
            updated: Instant::now(),
            state: State::Settling,
            refused: None,
        }
    }

    /// Progress of the recording; all zero until packets are counted.
    pub fn progress(&mut self) -> RecordProgress {
        let sightings_dropped = sum(&self.follow.counters()).dropped;
        let Some(recorder) = &self.recorder else { return RecordProgress::default() };
        let manifest = recorder.writer.manifest();
        RecordProgress {
            elapsed_ns: self.began.elapsed().as_nanos() as u64,
            journeys: manifest.journeys,
            bytes: recorder.writer.bytes(),
            sightings_dropped,
            spikes: manifest.spikes.clone(),
        }
    }

    /// Creates the run; all journeys from here on are counted. Other processes regard the existence of the run as the
    /// start.
    fn begin(&mut self) -> Result<Recorder, RunError> {
        let Options { threshold, streams, .. } = &self.options.follow;
        let seen = vec![0; streams.len()];
        let manifest = Manifest { threshold_ns: *threshold, streams: streams.clone(), ..Manifest::begin() };
        let output = &self.options.output;
        let replaced = if self.options.replace { Replaced::set_aside(output)? } else { None };
        let mut recorder = Recorder { writer: Writer::create(output, manifest)?, seen, failed: None };
        replaced.into_iter().for_each(Replaced::remove);
        if let Some(retention) = self.follow.retention() {
            recorder.check(|writer| writer.begin_spikes(retention));
        }
        let settings = self.settings.take().unwrap_or_else(|| read_host(&[]));
        for (machine, settings) in [(HOST.to_owned(), settings)].into_iter().chain(self.follow.settings()) {
            recorder.check(|writer| writer.begin_settings(&machine, settings));
        }
        recorder.update(&mut self.follow);
        // VM threads can only be identified while they exist.
        let (vms, unknown) = self.follow.vms();
        recorder.check(|writer| writer.keep_vms(&vms));
        unknown.into_iter().for_each(|why| self.events.push(Event::VmsUnnamed { why }));
        (self.began, self.updated) = (Instant::now(), Instant::now());
        Ok(recorder)
    }

    /// Processes one step of a recording that has begun.
    fn round(&mut self, recorder: &mut Recorder) -> State {
        self.follow.step(recorder);
        while let Some(request) = self.follow.next_spotted() {
            let streams = &self.options.follow.streams;
            if let Some(trace) = &mut self.trace {
                trace.spotted(&request, streams, &mut self.events);
            }
            self.events.push(Event::late(&request, streams));
        }
        let spikes = recorder.take_captures(&mut self.follow, &mut self.events);
        recorder.check(|writer| writer.tick());
        if spikes > 0 && self.options.stop_on_spike {
            return State::Over(EndReason::Spike);
        }
        if let Some(max_bytes) = self.options.max_size.filter(|most| recorder.writer.bytes() >= *most) {
            self.follow.note(size_note(max_bytes));
            self.events.push(Event::SizeReached { max_bytes });
            return State::Over(EndReason::Size);
        }
        if self.updated.elapsed() >= UPDATE {
            self.updated = Instant::now();
            recorder.update(&mut self.follow);
            recorder.take_clocks(self.clocks.as_deref(), &mut self.events);
            self.absent.check(&self.follow, &recorder.seen, &mut self.events, false);
        }
        if recorder.failed.is_some() {
            return State::Over(EndReason::Failed);
        }
        let journeys = recorder.writer.manifest().journeys;
        self.options.stop_after.reached(self.began, journeys).map_or(State::Running, State::Over)
    }

    /// Ends the recording: writes the journeys in progress, closes the run, and restores the machine's state. This
    /// takes up to two seconds if the last packets were late. Further events may follow.
    ///
    /// # Errors
    /// If the run could not be created, written or closed, or was renamed.
    pub fn stop(&mut self) -> Result<Manifest, RecordError> {
        if let Some(error) = self.refused.take() {
            return Err(error.into());
        }
        let mut recorder = match self.recorder.take() {
            Some(recorder) => recorder,
            None if self.state == State::Settling => self.begin()?,
            None => return Err(RecordError::StoppedBefore),
        };
        if !matches!(self.state, State::Over(_)) {
            self.state = State::Running;
        }
        self.follow.stop(&mut recorder);
        recorder.take_captures(&mut self.follow, &mut self.events);
        recorder.update(&mut self.follow);
        self.clocks.iter().for_each(|clocks| clocks.finish());
        recorder.take_clocks(self.clocks.as_deref(), &mut self.events);
        let settings = read_host(&recorder.writer.manifest().points);
        recorder.check(|writer| writer.end_settings(HOST, settings));
        self.absent.check(&self.follow, &recorder.seen, &mut self.events, true);
        let counted = self.follow.counted();
        recorder.check(|writer| writer.update(|m| m.kernel = Some(counted)));
        let directory = recorder.writer.directory().clone();
        if let Some(trace) = self.trace.take() {
            trace.end(&directory, &mut self.events);
        }
        let path = self.options.output.clone();
        if let Some(source) = recorder.failed {
            let (stored, directory) = (recorder.writer.stored(), DirectoryState::of(&directory));
            return Err(RecordError::Stopped { path, stored, directory, source });
        }
        let closed = recorder.writer.finish();
        let manifest = closed.map_err(|source| RecordError::Closing { path: path.clone(), source })?;
        match directory.has_its_name() {
            true => Ok(manifest),
            false => Err(RecordError::Renamed(path)),
        }
    }
}

impl Session for RecordSession {
    fn step(&mut self) -> State {
        if let (None, State::Settling) = (&self.recorder, self.state) {
            if monotonic() < self.follow.begin() {
                return self.state;
            }
            self.state = State::Running;
            match self.begin() {
                Ok(recorder) => self.recorder = Some(recorder),
                Err(error) => (self.refused, self.state) = (Some(error), State::Over(EndReason::Failed)),
            }
        }
        if self.state == State::Running {
            if let Some(mut recorder) = self.recorder.take() {
                self.state = self.round(&mut recorder);
                self.recorder = Some(recorder);
            }
        }
        self.state
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }
}

/// The note in a run that ended because it reached its maximum size on disk.
pub fn size_note(max_bytes: u64) -> String {
    format!("the recording ended because it had reached its --max-size of {}", bytes(max_bytes))
}

/// The run being written, and the first write error.
struct Recorder {
    writer: Writer,
    /// Number of packets of each stream.
    seen: Vec<u64>,
    failed: Option<RunError>,
}

impl JourneySink for Recorder {
    fn journey(&mut self, journey: &Journey, points: &[PointInfo]) {
        if points.len() > self.writer.manifest().points.len() {
            self.check(|writer| writer.update(|m| m.points = points.to_vec()));
        }
        self.seen[usize::from(journey.stream)] += 1;
        self.check(|writer| writer.push(journey));
    }

    fn synch(&mut self, before: u8, change: &SynchChange) {
        let mark = Mark::of_synch(&self.writer.manifest().streams[usize::from(change.stream)], before, change);
        self.check(|writer| writer.mark(&mark));
    }
}

impl Recorder {
    fn check(&mut self, write: impl FnOnce(&mut Writer) -> Result<(), RunError>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.writer).err();
        }
    }

    /// Passes complete captures to the writer; returns the number of captures with late packets.
    fn take_captures(&mut self, follow: &mut Follow, events: &mut EventQueue) -> usize {
        let mut spikes = 0;
        while let Some(ranked) = follow.next_capture() {
            spikes += usize::from(ranked.capture.kind == CaptureKind::Spike);
            events.push(Event::captured(&ranked));
            self.writer.push_capture(ranked);
        }
        spikes
    }

    /// Stores records of the clocks' synchronisation, and reports clock events.
    fn take_clocks(&mut self, clocks: Option<&Monitor>, events: &mut EventQueue) {
        let records = clocks.map(Monitor::take).unwrap_or_default();
        self.check(|writer| writer.sync_records(&records));
        for record in records {
            let SyncRecord::Event(event) = record else { continue };
            if event.until_ns.is_none() || event.until_ns == Some(event.noticed_ns) {
                let text = format!("{}, {}: {}", event.clock, event.kind.name(), event.text);
                self.check(|writer| writer.mark(&Mark::new(event.from_ns, &text)));
            }
            events.push(Event::Clock { clock: event });
        }
    }

    /// Updates the manifest, and adds a sample of each clock.
    fn update(&mut self, follow: &mut Follow) {
        if let Some(late) = follow.late() {
            self.writer.count_spikes(late);
        }
        self.check(|writer| writer.update(|manifest| follow.describe(manifest)));
        let t_ns = monotonic();
        for machine in self.writer.manifest().machines.clone().into_iter().skip(1) {
            let (clock, offset_ns, error_bound_ns) =
                (machine.clock.machine, machine.clock.offset_ns, machine.clock.error_bound_ns);
            self.writer.clock_sample(ClockSample { clock, t_ns, offset_ns, error_bound_ns });
        }
    }
}
