//! A remote machine at the host: a source of sightings on the host's timeline.

use crate::command::{CommandNews, Commanded};
use crate::dial::{dial, Line};
use crate::frame::{FrameReader, AGENT_MAGIC};
use crate::inbox::Inbox;
use crate::message::{Empty, Message, Observe, RunCommand, Start};
use crate::observation::Observed;
use crate::profile::Profiled;
use crate::session::{Session, Shared, State};
use crate::settings::MachineReading;
use crate::vms::ReportedVms;
use crate::windows::MAX_WINDOWS;
use crate::{Address, CommandKey, Facts, GuestWindow, Hypervisor, StartRequest, Stream};
use latpath_clock::{ClockState, Method};
use latpath_flight::Figures;
use latpath_linux::monotonic;
use latpath_model::text::cut;
use latpath_model::{Counters, DropNote, Ns, PointInfo, SenderAt, Sighting, Source, SourceNote};
use latpath_profile::{has_debug_files, Moment, Samples};
use latpath_settings::Reading;
use latpath_timesync::Monitor;
use latpath_vms::Vm;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time since the last completed time exchange after which the missing reply is reported, ns.
const OVERDUE: Ns = 1_000_000_000;

/// Timeouts of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the connection to the agent's hello.
    pub connect: Duration,
    /// For attaching the probe.
    pub start: Duration,
    /// Maximum silence of the agent, which replies many times a second.
    pub silence: Duration,
    /// From the stop request to the agent's goodbye.
    pub stop: Duration,
    /// From the stop request to the goodbye if a profile is being taken, because its remaining samples must arrive
    /// first; also from the end of an observation's window to the observation's arrival.
    pub profile: Duration,
    /// For a window of the flight recorder.
    pub window: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { connect: s(10), start: s(60), silence: s(10), stop: s(5), profile: s(30), window: s(5) }
    }
}

/// An error on a remote machine, or in the connection to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{machine} ({address}): {why}")]
pub struct MachineError {
    /// Name given by the user.
    pub machine: String,
    /// Address given by the user.
    pub address: String,
    /// Cause and next step.
    pub why: String,
}

/// A remote machine with an agent. It is a [`Source`] with sightings on the host's timeline (`CLOCK_MONOTONIC` of the
/// host).
///
/// A machine that dies remains a source: it returns the received sightings, and its watermark follows the host's clock
/// so that it delays no other source; [`Self::fault`] returns the error. Dropping it ends the session; the agent then
/// detaches its programs.
pub struct Machine {
    name: String,
    address: String,
    timeouts: Timeouts,
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    facts: Facts,
    watermark: Ns,
    /// Number of windows requested.
    requested: u64,
    /// Whether a stop request was sent.
    stopping: bool,
    /// Key sent with each command; may be empty.
    command_key: Vec<u8>,
}

impl Machine {
    /// Connects to an agent, exchanges hellos, and estimates the offset of its clock by a burst of time exchanges (half
    /// a second).
    ///
    /// # Errors
    /// If the agent cannot be reached or does not reply.
    pub fn connect(name: &str, address: &Address, timeouts: Timeouts) -> Result<Self, MachineError> {
        Self::reach(name, address, timeouts, false, None)
    }

    /// Like [`Self::connect`], but for a guest that runs on another machine of the run: `/dev/ptp_kvm` shows the guest
    /// that machine's time of day.
    ///
    /// # Errors
    /// If the agent cannot be reached or does not reply.
    pub fn connect_guest_of(
        hypervisor: &Hypervisor,
        name: &str,
        address: &Address,
        timeouts: Timeouts,
    ) -> Result<Self, MachineError> {
        Self::reach(name, address, timeouts, false, Some(hypervisor))
    }

    /// Like [`Self::connect`], but for running commands: an agent started over ssh gets the flag that permits them.
    ///
    /// # Errors
    /// If the agent cannot be reached or does not reply.
    pub fn connect_for_commands(name: &str, address: &Address, timeouts: Timeouts) -> Result<Self, MachineError> {
        Self::reach(name, address, timeouts, true, None)
    }

    fn reach(
        name: &str,
        address: &Address,
        timeouts: Timeouts,
        runs_commands: bool,
        hypervisor: Option<&Hypervisor>,
    ) -> Result<Self, MachineError> {
        let error = |why| MachineError { machine: name.into(), address: address.to_string(), why };
        let line = dial(address, timeouts.connect, runs_commands).map_err(error)?;
        Self::speak(name, address.to_string(), line, timeouts, hypervisor)
    }

    /// Like [`Self::connect`], over an existing stream; error messages show `address`.
    ///
    /// # Errors
    /// If the agent does not reply.
    pub fn on_stream(name: &str, address: &str, stream: Stream, timeouts: Timeouts) -> Result<Self, MachineError> {
        Self::speak(name, address.into(), Line { stream, command: None }, timeouts, None)
    }

    /// Like [`Self::on_stream`], for a guest of this machine.
    ///
    /// # Errors
    /// If the agent does not reply.
    pub fn guest_on_stream(
        hypervisor: &Hypervisor,
        name: &str,
        stream: Stream,
        timeouts: Timeouts,
    ) -> Result<Self, MachineError> {
        Self::speak(name, "stream".into(), Line { stream, command: None }, timeouts, Some(hypervisor))
    }

    fn speak(
        name: &str,
        address: String,
        line: Line,
        timeouts: Timeouts,
        hypervisor: Option<&Hypervisor>,
    ) -> Result<Self, MachineError> {
        let error = |why: String| MachineError { machine: name.into(), address: address.clone(), why };
        let (wake, woken) = UnixStream::pair().map_err(|e| error(e.to_string()))?;
        wake.set_nonblocking(true).map_err(|e| error(e.to_string()))?;
        let shared = Arc::new(Shared::new(name));
        // Set before the session starts, because the agent sends clock pairs right after its hello.
        shared.lock().inbox.hypervisor = hypervisor.cloned();
        let session = Session::new(line, shared.clone(), woken, timeouts);
        // The kernel limits thread names to 15 bytes.
        let thread = std::thread::Builder::new().name(format!("lp-{}", name.chars().take(12).collect::<String>()));
        let thread = thread.spawn(move || session.run()).map_err(|e| error(format!("no thread for it: {e}")))?;
        let mut machine = Self {
            name: name.into(),
            address: address.clone(),
            timeouts,
            shared,
            wake,
            thread: Some(thread),
            facts: Facts::default(),
            watermark: Ns::MIN,
            requested: 0,
            stopping: false,
            command_key: Vec::new(),
        };
        let long = timeouts.connect + Duration::from_secs(2);
        machine.facts = machine
            .wait(long, "answer a time request", |state| state.ready.then(|| state.inbox.facts.clone()).flatten())?;
        Ok(machine)
    }

    /// Creates a machine without a connection that follows `streams` streams. [`ScriptedAgent::send`] feeds it the
    /// bytes of its agent. For tests of the host's message handling.
    #[doc(hidden)]
    pub fn scripted(name: &str, streams: usize) -> (Self, ScriptedAgent) {
        let shared = Arc::new(Shared::new(name));
        let inbox = &mut shared.lock().inbox;
        (inbox.streams, inbox.records) = (streams, true);
        inbox.reports_notes = true;
        // The machine is its own hypervisor, so that its clock pairs exercise the whole chain of clocks.
        let itself = Hypervisor::new(name);
        (inbox.published, inbox.hypervisor) = (Some(itself.clone()), Some(itself));
        inbox.vms = Some(ReportedVms::default());
        inbox.profile = Some(Profiled::new(Samples::of_another(true)));
        let (wake, _) = UnixStream::pair().expect("a socket pair");
        let machine = Self {
            name: name.into(),
            address: "no line".into(),
            timeouts: Timeouts::default(),
            shared: shared.clone(),
            wake,
            thread: None,
            facts: Facts { records: true, ..Facts::default() },
            watermark: Ns::MIN,
            requested: 0,
            stopping: false,
            command_key: Vec::new(),
        };
        (machine, ScriptedAgent { shared: shared.clone(), reader: FrameReader::new(AGENT_MAGIC) })
    }

    /// Sets the monitor of this host's clocks. With [`StartRequest::GRANDMASTER`], the machine's clock is then tied by
    /// PTP if its system clock follows the same grandmaster.
    pub fn use_clocks(&mut self, clocks: Arc<Monitor>) {
        self.shared.lock().inbox.clocks = Some(clocks);
    }

    /// Publishes the machine's clock for its guests, once started with [`StartRequest::TIME_OF_DAY`].
    pub fn publish_clock(&mut self, hypervisor: &Hypervisor) {
        self.shared.lock().inbox.published = Some(hypervisor.clone());
    }

    /// Starts sampling the machine's CPUs `hz` times a second, and nothing else; returns after sending the request.
    /// With `one_by_one`, also keeps the time of each sample.
    ///
    /// # Errors
    /// If the agent does not support profiles, or the session has ended.
    pub fn start_profile(&mut self, hz: u32, one_by_one: bool) -> Result<(), MachineError> {
        if !self.facts.profiles {
            let program = cut(&self.facts.program, 64);
            return Err(self
                .error(format!("its agent (latpath {program}) cannot sample CPUs: install the same latpath on both")));
        }
        let mut options = BTreeMap::from([(StartRequest::PROFILE.to_owned(), hz.to_string())]);
        if has_debug_files() {
            options.insert(StartRequest::PLACES.into(), "1".into());
        }
        let request = StartRequest { options, ..StartRequest::default() };
        let mut state = self.shared.lock();
        state.inbox.profile = Some(Profiled::new(Samples::of_another(one_by_one)));
        state.commands.push_back(Message::Start(Start::from(&request)));
        drop(state);
        self.wake();
        self.wait(self.timeouts.start, "begin to sample", |state| state.inbox.started.then_some(()))
    }

    /// Returns the samples up to the end of the session.
    ///
    /// # Errors
    /// The profile was not started, or the agent reported an error.
    pub fn take_profile(&mut self) -> Result<Samples, String> {
        let mut state = self.shared.lock();
        let profile = state.inbox.profile.as_mut().ok_or("its profile was not started")?;
        match profile.error.take() {
            Some(why) => Err(why),
            None => Ok(std::mem::take(&mut profile.samples)),
        }
    }

    /// Sample times since the last call.
    pub fn take_moments(&mut self) -> Vec<Moment> {
        std::mem::take(&mut self.shared.lock().inbox.moments)
    }

    /// Time up to which samples have been received, in the machine's clock.
    pub fn profiled_until(&self) -> Option<Ns> {
        self.shared.lock().inbox.profile.as_ref()?.samples.span().map(|(_, until)| until)
    }

    /// Starts the agent's probe; returns when it is attached.
    ///
    /// # Errors
    /// If the request is invalid, or the agent cannot attach its probe.
    pub fn start(&mut self, request: &StartRequest) -> Result<(), MachineError> {
        let start = Start::from(request);
        // Makes the same check as the agent, to report an error here.
        StartRequest::try_from(start.clone()).map_err(|why| self.error(why))?;
        if request.streams.is_empty() {
            return Err(self.error("no stream to watch".into()));
        }
        let mut state = self.shared.lock();
        state.inbox.streams = request.streams.len();
        // Older agents ignore this option.
        state.inbox.records = request.option(StartRequest::FLIGHT).is_some();
        state.inbox.reports_notes = request.option(StartRequest::NOTES).is_some();
        // An agent sends the grandmaster's time only with this option; older agents never send it.
        if request.option(StartRequest::GRANDMASTER).is_none() {
            state.inbox.clocks = None;
        }
        if request.option(StartRequest::TIME_OF_DAY).is_none() {
            state.inbox.published = None;
        }
        state.inbox.reports_settings = request.option(StartRequest::SETTINGS).is_some();
        state.inbox.vms = request.option(StartRequest::VMS).map(|_| ReportedVms::default());
        state.commands.push_back(Message::Start(start));
        drop(state);
        self.wake();
        self.wait(self.timeouts.start, "attach its probe", |state| state.inbox.started.then_some(()))
    }

    /// Stops the agent, which detaches and sends its remaining sightings for [`Source::drain`].
    ///
    /// # Errors
    /// If the session fails or the agent does not end in time.
    pub fn stop(&mut self) -> Result<(), MachineError> {
        self.begin_stop();
        let (within, what) = match self.shared.lock().inbox.profile.is_some() {
            true => (self.timeouts.profile, "hand over its last samples"),
            false => (self.timeouts.stop, "say goodbye"),
        };
        if self.shared.lock().over {
            return Ok(());
        }
        self.wait(within, what, |state| state.over.then_some(()))
    }

    /// Sends a stop request without waiting, so that several machines can stop at the same time.
    pub fn begin_stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.shared.lock().commands.push_back(Message::Stop(Empty {}));
            self.wake();
        }
    }

    /// Makes the agent attach an instrument; returns when the instrument's window has begun.
    ///
    /// # Errors
    /// If the agent is too old for observations, or cannot attach the instrument.
    pub fn begin_observation(&mut self, instrument: &str) -> Result<(), MachineError> {
        if !self.facts.observes {
            let program = cut(&self.facts.program, 64);
            let why = format!("its agent (latpath {program}) has no instruments: install the same latpath on both");
            return Err(self.error(why));
        }
        let mut state = self.shared.lock();
        state.inbox.observation = Some(Observed::default());
        state.commands.push_back(Message::Observe(Observe { instrument: instrument.into() }));
        drop(state);
        self.wake();
        let begun = self.wait(self.timeouts.start, "begin to observe", |state| {
            let observation = state.inbox.observation.as_ref()?;
            match &observation.outcome {
                Some(Err(why)) => Some(Err(why.clone())),
                _ => observation.begun.then_some(Ok(())),
            }
        })?;
        begun.map_err(|why| self.error(why))
    }

    /// Ends the window and returns the encoded observation: at most [`MAX_OBSERVATION`](crate::MAX_OBSERVATION)
    /// unchecked bytes.
    ///
    /// # Errors
    /// The agent reported an error, or the observation does not arrive in time.
    pub fn end_observation(&mut self) -> Result<Vec<u8>, MachineError> {
        self.shared.lock().commands.push_back(Message::EndObservation(Empty {}));
        self.wake();
        let outcome = self.wait(self.timeouts.profile, "hand over its observation", |state| {
            state.inbox.observation.as_ref()?.outcome.clone()
        })?;
        self.shared.lock().inbox.observation = None;
        outcome.map_err(|why| self.error(why))
    }

    /// Sets the key that the agent requires for commands.
    pub fn set_command_key(&mut self, key: CommandKey) {
        self.command_key = key.0;
    }

    /// Runs a command on the agent's machine; [`Self::command`] returns its output and result. The command ends with
    /// the session at the latest.
    ///
    /// # Errors
    /// If the agent does not permit commands.
    pub fn run_command(&mut self, words: Vec<String>) -> Result<(), MachineError> {
        if !self.facts.runs_commands {
            return Err(self.error(
                "its agent runs no commands: start it there as 'latpath agent --allow-commands' (over vsock, it runs only those of a reserved port)".into(),
            ));
        }
        let mut state = self.shared.lock();
        state.inbox.command = Some(Commanded::default());
        state.commands.push_back(Message::RunCommand(RunCommand { words, key: self.command_key.clone() }));
        drop(state);
        self.wake();
        Ok(())
    }

    /// Returns the command's output since the last call, and its result once it has ended. It ends with the session at
    /// the latest.
    pub fn command(&mut self) -> CommandNews {
        let mut state = self.shared.lock();
        let (over, fault) = (state.over, state.fault.clone());
        let mut news = state.inbox.command.as_mut().map(Commanded::news).unwrap_or_default();
        if over && news.end.is_none() {
            news.end = Some(Err(fault.unwrap_or_else(|| "the session is over".into())));
        }
        news
    }

    /// Requests the end of the running command.
    pub fn end_command(&mut self) {
        self.shared.lock().commands.push_back(Message::EndCommand(Empty {}));
        self.wake();
    }

    /// Figures of the agent's flight recorder, or the reason for its absence; `None` without [`StartRequest::FLIGHT`].
    /// The first figures arrive within a second of the start.
    pub fn recorder(&self) -> Option<Result<Figures, String>> {
        let inbox = &self.shared.lock().inbox;
        inbox.records.then(|| match &inbox.recorder {
            _ if !self.facts.records => Err(self.too_old()),
            Some(recorder) => recorder.clone(),
            None => Ok(Figures::default()),
        })
    }

    fn too_old(&self) -> String {
        let program = cut(&self.facts.program, 64);
        format!("its agent (latpath {program}) has no flight recorder: install the same latpath on both")
    }

    /// Requests a window of the agent's flight recorder between two times of the host's clock; the end may be up to a
    /// second ahead. Returns at once, with the ID under which [`Self::take_windows`] will return the result. Requests
    /// should be prompt, because a recorder keeps only some tenths of a second of a busy CPU.
    pub fn request_window(&mut self, from: Ns, to: Ns) -> u64 {
        self.requested += 1;
        let id = self.requested;
        let mut state = self.shared.lock();
        let State { inbox, over, fault, unfetched, commands, .. } = &mut *state;
        let refusal = if !inbox.records || !inbox.started {
            Some("its flight recorder was not started".to_string())
        } else if !self.facts.records {
            Some(self.too_old())
        } else if let Some(Err(why)) = &inbox.recorder {
            Some(why.clone())
        } else if *over {
            Some(fault.clone().unwrap_or_else(|| "the session is over".into()))
        } else if *unfetched >= MAX_WINDOWS {
            Some(format!("{unfetched} windows were requested and not fetched"))
        } else {
            None
        };
        *unfetched += 1;
        let Inbox { windows, timeline, .. } = inbox;
        match refusal {
            Some(why) => windows.done.push((id, Err(why))),
            None => {
                let within = self.timeouts.window.as_nanos() as Ns;
                let request = windows.request(id, (from, to), timeline, (monotonic(), within));
                commands.extend(request.map(Message::WindowRequest));
            }
        }
        drop(state);
        self.wake();
        id
    }

    /// Returns the windows received since the last call, or their errors. Each request gets one result, at the latest
    /// at its timeout ([`Timeouts::window`]) or at the end of the session.
    pub fn take_windows(&mut self) -> Vec<(u64, Result<GuestWindow, String>)> {
        let mut state = self.shared.lock();
        let windows = std::mem::take(&mut state.inbox.windows.done);
        state.unfetched = state.unfetched.saturating_sub(windows.len());
        windows
    }

    fn error(&self, why: String) -> MachineError {
        MachineError { machine: self.name.clone(), address: self.address.clone(), why }
    }

    fn wake(&self) {
        // A full pipe means that a wakeup is already pending.
        let _ = (&self.wake).write(&[1]);
    }

    fn wait<T>(
        &self,
        within: Duration,
        what: &str,
        mut done: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, MachineError> {
        let began = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = done(&state) {
                return Ok(result);
            }
            if state.over {
                let why = state.fault.clone().unwrap_or_else(|| "the session is over".into());
                return Err(self.error(why));
            }
            let left = within.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(self.error(format!("the agent did not {what} within {within:?}")));
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Name given by the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes of the machine's source, prefixed with the machine's name. Empty without [`StartRequest::NOTES`], and from
    /// older agents.
    pub fn notes(&self) -> Vec<SourceNote> {
        self.shared.lock().inbox.source_notes.clone()
    }

    /// The machine's settings when its probe was attached. `None` without [`StartRequest::SETTINGS`], and from older
    /// agents.
    pub fn settings(&self) -> Option<Reading> {
        self.shared.lock().inbox.settings.as_ref().map(MachineReading::reading)
    }

    /// The virtual machines that the machine ran when its probe was attached, and why some may be missing. `None`
    /// without [`StartRequest::VMS`], and from older agents.
    pub fn vms(&self) -> Option<(Vec<Vm>, Option<String>)> {
        self.shared.lock().inbox.vms.as_ref().and_then(ReportedVms::complete)
    }

    /// Facts about the machine, from the agent's hello.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// State of the machine's clock relative to the host's.
    pub fn clock(&self) -> ClockState {
        let inbox = &self.shared.lock().inbox;
        inbox.timeline.state(inbox.last_exchange)
    }

    /// The machine on which this guest runs, if that is another machine of the run.
    pub fn hypervisor(&self) -> Option<String> {
        self.shared.lock().inbox.hypervisor.as_ref().map(|hypervisor| hypervisor.name().to_owned())
    }

    /// Source of the clock's offset: `timed exchanges`, `ptp_kvm`, `ptp_kvm through b`, `tsc-offset`, `PTP`.
    pub fn clock_method(&self) -> String {
        let method = self.clock().method;
        match &self.shared.lock().inbox.hypervisor {
            Some(hypervisor) if method == Method::PtpKvm => format!("{} through {}", method.name(), hypervisor.name()),
            _ => method.name().into(),
        }
    }

    /// The last fault of the machine or of its clock.
    pub fn clock_fault(&self) -> Option<String> {
        let clock = self.clock();
        let state = self.shared.lock();
        let since = monotonic().saturating_sub(state.inbox.last_exchange);
        if let Some(fault) = &state.fault {
            Some(fault.clone())
        } else if !state.over && since > OVERDUE {
            Some(format!("no answer for {:.1} s", since as f64 / 1e9))
        } else if let Some((at, what)) = &clock.last_fault {
            let ago = monotonic().saturating_sub(*at) as f64 / 1e9;
            Some(format!("{what} ({ago:.0} s ago, {} in all)", clock.faults))
        } else if state.inbox.refused > 0 {
            Some(format!("{} sightings had impossible times and were left out", state.inbox.refused))
        } else if let Some(hypervisor) =
            state.inbox.hypervisor.as_ref().filter(|_| state.inbox.chained.is_unconfirmed())
        {
            Some(format!(
                "its ptp_kvm is not used: {} reports no time of day; install the same latpath there",
                hypervisor.name()
            ))
        } else {
            clock.pairs_refused
        }
    }

    /// Cost of latpath on the machine in percent of one of its CPUs: agent process, sightings and flight recorder
    /// events. `None` if the agent does not report it.
    pub fn cpu_percent(&self) -> Option<f64> {
        let inbox = &self.shared.lock().inbox;
        let flight = inbox.recorder.as_ref().and_then(|recorder| recorder.as_ref().ok());
        Some(inbox.cost?.percent(&inbox.counters, flight))
    }

    /// The error that ended the session, if any.
    pub fn fault(&self) -> Option<MachineError> {
        let fault = self.shared.lock().fault.clone();
        fault.map(|why| self.error(why))
    }

    /// Whether the session is active.
    pub fn is_alive(&self) -> bool {
        !self.shared.lock().over
    }
}

/// The agent's end of [`Machine::scripted`].
#[doc(hidden)]
pub struct ScriptedAgent {
    shared: Arc<Shared>,
    reader: FrameReader,
}

#[doc(hidden)]
impl ScriptedAgent {
    /// Delivers bytes of the agent at `now` (the host's clock). Invalid bytes end the session.
    pub fn send(&mut self, bytes: &[u8], now: Ns) {
        let mut state = self.shared.lock();
        state.commands.clear();
        if !state.over {
            self.reader.push(bytes);
            match state.take_items(&mut self.reader, 0, now) {
                Ok(()) if !state.inbox.ended => {}
                Ok(()) => state.end(None),
                Err(why) => state.end(Some(why)),
            }
        }
    }

    /// Makes the host send a time request at `now`.
    pub fn request_time(&mut self, now: Ns) {
        self.shared.lock().inbox.request_time(now);
    }

    /// Makes all requested windows time out.
    pub fn expire(&mut self) {
        self.shared.lock().inbox.windows.expire(Ns::MAX);
    }
}

impl Source for Machine {
    fn points(&mut self) -> Vec<PointInfo> {
        self.shared.lock().inbox.points.clone()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        self.shared.lock().inbox.notes.clone()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let from = out.len();
        let mut state = self.shared.lock();
        let sightings = &mut state.inbox.fresh;
        // Moves the whole list if possible: a copy would grow as large in a flood, and neither list would return its
        // memory afterwards.
        match from {
            0 => *out = std::mem::take(sightings),
            _ => out.append(&mut std::mem::take(sightings)),
        }
        let (watermark, over) = (state.inbox.watermark, state.over);
        drop(state);
        let fresh = &mut out[from..];
        if !fresh.is_sorted_by_key(|s| s.t) {
            fresh.sort_by_key(|s| s.t);
        }
        self.watermark = self.watermark.max(if over { monotonic() } else { watermark });
        self.watermark
    }

    fn counters(&mut self) -> Counters {
        let state = self.shared.lock();
        let mut counters = state.inbox.counters;
        counters.dropped = counters.dropped.saturating_add(state.overflow).saturating_add(state.inbox.refused);
        counters.bounded()
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        self.notes()
    }

    fn senders(&mut self) -> Vec<SenderAt> {
        self.shared.lock().inbox.senders.clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.shared.lock().close = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
