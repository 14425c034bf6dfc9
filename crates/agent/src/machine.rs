//! Another machine, as the host's crates see it: a source of sightings on the host's timeline.

use crate::command::{CommandNews, Commanded};
use crate::dial::{dial, Line};
use crate::frame::{FrameReader, AGENT_MAGIC};
use crate::inbox::Inbox;
use crate::message::{Empty, Message, RunCommand, Start};
use crate::profile::Profiled;
use crate::session::{Session, Shared, State};
use crate::windows::MAX_WINDOWS;
use crate::{Address, CommandKey, Facts, GuestWindow, StartRequest, Stream};
use latpath_clock::ClockState;
use latpath_flight::Figures;
use latpath_linux::monotonic;
use latpath_model::text::cut;
use latpath_model::{Counters, DropNote, Ns, PointInfo, SenderAt, Sighting, Source, SourceNote};
use latpath_profile::{has_debug_files, Moment, Samples};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An exchange that has been due for this long is worth a report.
const OVERDUE: Ns = 1_000_000_000;

/// How long to wait for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the agent has answered and greeted.
    pub connect: Duration,
    /// Until the probe is attached there.
    pub start: Duration,
    /// Without any word of the agent, which answers many times a second.
    pub silence: Duration,
    /// Until the agent has said goodbye.
    pub stop: Duration,
    /// The same of one that samples CPUs: until the rest of its profile has come.
    pub profile: Duration,
    /// Until a window of its flight recorder has come.
    pub window: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { connect: s(10), start: s(60), silence: s(10), stop: s(5), profile: s(30), window: s(5) }
    }
}

/// Why a machine cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{machine} ({address}): {why}")]
pub struct MachineError {
    /// The name that the user gave.
    pub machine: String,
    pub address: String,
    /// The cause, and what to do about it.
    pub why: String,
}

/// Another machine, watched by an agent there. See [`Source`]: its sightings lie on the host's timeline
/// (`CLOCK_MONOTONIC` of the host).
///
/// A machine that dies stays a source: it hands over what had come, then nothing, its watermark going with the host's clock
/// so that nobody waits for it; [`Self::fault`] says what happened. Dropping it ends the session; the agent then detaches.
pub struct Machine {
    name: String,
    address: String,
    timeouts: Timeouts,
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    facts: Facts,
    watermark: Ns,
    /// Windows requested so far.
    requested: u64,
    /// A request to stop was sent.
    stopping: bool,
    /// The key that goes with each command; empty without a key.
    command_key: Vec<u8>,
}

impl Machine {
    /// Reaches an agent, greets it, and learns its clock by a burst of exchanges (half a second).
    pub fn connect(name: &str, address: &Address, timeouts: Timeouts) -> Result<Self, MachineError> {
        Self::reach(name, address, timeouts, false)
    }

    /// The same, where commands are to run there: an agent that is started over ssh gets the flag that allows them.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub fn connect_for_commands(name: &str, address: &Address, timeouts: Timeouts) -> Result<Self, MachineError> {
        Self::reach(name, address, timeouts, true)
    }

    fn reach(name: &str, address: &Address, timeouts: Timeouts, runs_commands: bool) -> Result<Self, MachineError> {
        let error = |why| MachineError { machine: name.into(), address: address.to_string(), why };
        let line = dial(address, timeouts.connect, runs_commands).map_err(error)?;
        Self::speak(name, address.to_string(), line, timeouts)
    }

    /// As [`Self::connect`], over a stream that is there already; `address` is what errors call it.
    pub fn on_stream(name: &str, address: &str, stream: Stream, timeouts: Timeouts) -> Result<Self, MachineError> {
        Self::speak(name, address.into(), Line { stream, command: None }, timeouts)
    }

    fn speak(name: &str, address: String, line: Line, timeouts: Timeouts) -> Result<Self, MachineError> {
        let error = |why: String| MachineError { machine: name.into(), address: address.clone(), why };
        let (wake, woken) = UnixStream::pair().map_err(|e| error(e.to_string()))?;
        wake.set_nonblocking(true).map_err(|e| error(e.to_string()))?;
        let shared = Arc::new(Shared::new(name));
        let session = Session::new(line, shared.clone(), woken, timeouts);
        // The kernel shows 15 bytes of a thread's name.
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
        machine.facts =
            machine.wait(long, "say the time", |state| state.ready.then(|| state.inbox.facts.clone()).flatten())?;
        Ok(machine)
    }

    /// A machine without a line, asked to follow so many streams: what its agent says is handed over by [`Fed::say`]. For tests of
    /// all that the host makes of an agent's words.
    #[doc(hidden)]
    pub fn fed(name: &str, streams: usize) -> (Self, Fed) {
        let shared = Arc::new(Shared::new(name));
        let inbox = &mut shared.lock().inbox;
        (inbox.streams, inbox.records) = (streams, true);
        inbox.reports_notes = true;
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
        (machine, Fed { shared: shared.clone(), reader: FrameReader::new(AGENT_MAGIC) })
    }

    /// Has the agent sample its machine's CPUs `hz` times a second, and nothing else; returns once the request is sent. With `one_by_one` the
    /// time of each sample is kept too.
    ///
    /// # Errors
    /// Where the agent is older than profiles, or gives up.
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

    /// What it has sampled up to its end, or why it has nothing.
    ///
    /// # Errors
    /// With what the agent said.
    pub fn take_profile(&mut self) -> Result<Samples, String> {
        let mut state = self.shared.lock();
        let profile = state.inbox.profile.as_mut().ok_or("its profile was not started")?;
        match profile.error.take() {
            Some(why) => Err(why),
            None => Ok(std::mem::take(&mut profile.samples)),
        }
    }

    /// When its CPUs were sampled, since the last call.
    pub fn take_moments(&mut self) -> Vec<Moment> {
        std::mem::take(&mut self.shared.lock().inbox.moments)
    }

    /// Until when its samples have come, in the machine's clock.
    pub fn profiled_until(&self) -> Option<Ns> {
        self.shared.lock().inbox.profile.as_ref()?.samples.span().map(|(_, until)| until)
    }

    /// Has the agent attach its probe; returns once it is attached.
    pub fn start(&mut self, request: &StartRequest) -> Result<(), MachineError> {
        let start = Start::from(request);
        // Checked as the agent will, to report it here.
        StartRequest::try_from(start.clone()).map_err(|why| self.error(why))?;
        if request.streams.is_empty() {
            return Err(self.error("no stream to watch".into()));
        }
        let mut state = self.shared.lock();
        state.inbox.streams = request.streams.len();
        // Agents of before take no notice of the option.
        state.inbox.records = request.option(StartRequest::FLIGHT).is_some();
        state.inbox.reports_notes = request.option(StartRequest::NOTES).is_some();
        state.commands.push_back(Message::Start(start));
        drop(state);
        self.wake();
        self.wait(self.timeouts.start, "attach its probe", |state| state.inbox.started.then_some(()))
    }

    /// Has the agent detach and hand over the rest, which [`Source::drain`] then gives.
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

    /// Sends the agent a request to stop, without waiting: with several machines, all get the request first.
    pub fn begin_stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.shared.lock().commands.push_back(Message::Stop(Empty {}));
            self.wake();
        }
    }

    /// The key without which the agent runs no command.
    pub fn set_command_key(&mut self, key: CommandKey) {
        self.command_key = key.0;
    }

    /// Has the agent run a command on its machine; [`Self::command`] says what becomes of it. It ends with the session at the latest.
    ///
    /// # Errors
    /// Where the agent does not run commands.
    pub fn run_command(&mut self, words: Vec<String>) -> Result<(), MachineError> {
        if !self.facts.runs_commands {
            return Err(self.error(
                "its agent runs no commands: start it there as 'latpath agent --allow-commands' (over vsock it runs those of a reserved port alone)".into(),
            ));
        }
        let mut state = self.shared.lock();
        state.inbox.command = Some(Commanded::default());
        state.commands.push_back(Message::RunCommand(RunCommand { words, key: self.command_key.clone() }));
        drop(state);
        self.wake();
        Ok(())
    }

    /// What the command has printed since the last look, and how it ended: at the latest as the session does.
    pub fn command(&mut self) -> CommandNews {
        let mut state = self.shared.lock();
        let (over, fault) = (state.over, state.fault.clone());
        let mut news = state.inbox.command.as_mut().map(Commanded::news).unwrap_or_default();
        if over && news.end.is_none() {
            news.end = Some(Err(fault.unwrap_or_else(|| "the session is over".into())));
        }
        news
    }

    pub fn end_command(&mut self) {
        self.shared.lock().commands.push_back(Message::EndCommand(Empty {}));
        self.wake();
    }

    /// How the agent's flight recorder does, or why it has none; `None` where [`StartRequest::FLIGHT`] did not ask for it. Its
    /// first figures come within a second of the start.
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

    /// Asks the agent's flight recorder what its CPUs did, from one time to another of the host's clock; the end may lie up to
    /// a second ahead. Waits for nothing: [`Self::take_windows`] gives the answer under the number that this returns. Soon is
    /// well: a recorder keeps some tenths of a second of a busy CPU.
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
            Some(format!("{unfetched} windows were asked for and not fetched"))
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

    /// Windows that have come since the last look, or why they do not. Each that was asked for comes once, at the latest when its
    /// time ([`Timeouts::window`]) or the session is over.
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
        // Full: then it is awake already.
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

    /// The name that the user gave.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the machine's source reports beside sightings, each note with the machine's name before it: nothing from an agent that was not
    /// asked by [`StartRequest::NOTES`], or is older than that.
    pub fn notes(&self) -> Vec<SourceNote> {
        self.shared.lock().inbox.source_notes.clone()
    }

    /// What the agent said about its machine.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The machine's clock against the host's.
    pub fn clock(&self) -> ClockState {
        let inbox = &self.shared.lock().inbox;
        inbox.timeline.state(inbox.last_exchange)
    }

    /// What is, or was, wrong with its clock; or with the machine.
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
        } else {
            clock.pairs_refused
        }
    }

    /// What latpath costs there, in % of one of its CPUs: the agent's process, its sightings and its flight recorder's events.
    /// `None` where the agent does not say.
    pub fn cpu_percent(&self) -> Option<f64> {
        let inbox = &self.shared.lock().inbox;
        let flight = inbox.recorder.as_ref().and_then(|recorder| recorder.as_ref().ok());
        Some(inbox.cost?.percent(&inbox.counters, flight))
    }

    /// Why the machine is no longer heard, if it is not.
    pub fn fault(&self) -> Option<MachineError> {
        let fault = self.shared.lock().fault.clone();
        fault.map(|why| self.error(why))
    }

    /// True as long as the session lasts.
    pub fn is_alive(&self) -> bool {
        !self.shared.lock().over
    }
}

/// The other end of [`Machine::fed`].
#[doc(hidden)]
pub struct Fed {
    shared: Arc<Shared>,
    reader: FrameReader,
}

#[doc(hidden)]
impl Fed {
    /// The agent says these bytes, which arrive at `now` (the host's clock). A lie ends the session.
    pub fn say(&mut self, bytes: &[u8], now: Ns) {
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

    /// The host asks for the time, at `now`.
    pub fn request_time(&mut self, now: Ns) {
        self.shared.lock().inbox.request_time(now);
    }

    /// Windows that were asked for until now are not waited for any longer.
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
        // Taken as it is where it can be: a second list would grow as large, and neither give the memory back after a flood.
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
