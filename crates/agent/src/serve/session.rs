//! One session of the agent: handles the host's messages, runs the source, and schedules the writes.

use super::reporter::Reporter;
use super::{Attached, Ended, ServeError, ServeOptions};
use crate::command;
use crate::frame::{preamble, FrameError, Item, Outgoing, AGENT_MAGIC};
use crate::message::*;
use crate::observation::Observing;
use crate::profile::{MakeSampler, Profiling};
use crate::recorder;
use crate::settings::MachineReading;
use crate::stream::{Got, Stream};
use crate::vms::{self, VmList};
use latpath_clock::ptp_kvm::read_pair;
use latpath_clock::{ClockTie, RealtimeWatch, TscTie};
use latpath_flight::Record;
use latpath_model::text::cut;
use latpath_model::{Ns, Source};
use latpath_timesync::Monitor;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Maximum number of bytes queued for the host; above it, the source is not drained (the kernel's ring then fills and
/// counts drops).
const MAX_WAITING: usize = 4 << 20;
/// Maximum number of queued time requests.
const MAX_TIME_REQUESTS: usize = 256;
/// Interval between readings of the hypervisor's clock.
const PAIR_EVERY: Duration = Duration::from_millis(250);
/// Number of chunks written before reading from the host again.
const PIECES: usize = 8;
/// Maximum time to write the last message.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Result of the thread that attaches the probe.
struct Attachment<S> {
    /// The machine's settings, if requested.
    settings: Option<MachineReading>,
    /// The list of the machine's virtual machines, if requested.
    vms: Vec<VmList>,
    attached: Result<Attached<S>, String>,
}

/// State of the source.
enum Probe<S, F> {
    /// Not requested yet.
    NotAsked(F),
    /// Another thread attaches the source, which can take seconds.
    Attaching(Receiver<Attachment<S>>),
    Running(S),
    /// In transition, or ended.
    Gone,
}

/// One session of the agent; dropping it drops the source.
pub(super) struct Session<'a, S, F> {
    stream: &'a mut Stream,
    options: &'a mut ServeOptions,
    nonce: u64,
    greeted: bool,
    probe: Probe<S, F>,
    recording: Option<recorder::Recording>,
    profiling: Option<Profiling>,
    observing: Option<Observing>,
    /// Whether the host has requested a stop and only waits for the rest of the profile.
    stopping: bool,
    command: Option<command::Running>,
    out: Outgoing,
    /// Queued time requests: id, and time of receipt.
    time_requests: VecDeque<(u64, Ns)>,
    reporter: Reporter,
    realtime: RealtimeWatch,
    paired: Instant,
    /// Whether the host asked for this machine's time of day.
    reports_time_of_day: bool,
    /// Monitor of this machine's clocks, if the host asked for the grandmaster's time.
    clocks: Option<Monitor>,
    sent_time: Ns,
    heard: Instant,
    moved: Instant,
}

impl<'a, S, F> Session<'a, S, F>
where
    S: Source + 'static,
    F: FnOnce(&StartRequest) -> Result<Attached<S>, String> + Send + 'static,
{
    pub fn new(stream: &'a mut Stream, options: &'a mut ServeOptions, nonce: u64, make_source: F) -> Self {
        let now = Instant::now();
        let mut out = Outgoing::default();
        out.push_bytes(&preamble(AGENT_MAGIC, nonce));
        Self {
            stream,
            options,
            nonce,
            greeted: false,
            probe: Probe::NotAsked(make_source),
            recording: None,
            profiling: None,
            observing: None,
            stopping: false,
            command: None,
            out,
            time_requests: VecDeque::new(),
            reporter: Reporter::new(),
            realtime: RealtimeWatch::new(&ClockTie::read()),
            paired: now,
            reports_time_of_day: false,
            clocks: None,
            sent_time: Ns::MIN,
            heard: now,
            moved: now,
        }
    }

    pub fn run(&mut self, quit: Option<BorrowedFd>) -> Result<Ended, ServeError> {
        let mut next_tick = Instant::now();
        loop {
            // First handles the messages received together with the preamble.
            if let Some(ended) = self.take_read((self.options.clock)())? {
                return Ok(ended);
            }
            if self.stopping && self.profiling.as_mut().is_none_or(Profiling::is_over) {
                self.out.push(Message::Bye(Empty {}));
                return Ok(Ended::Stopped);
            }
            if Instant::now() >= next_tick {
                self.tick()?;
                next_tick = Instant::now() + self.pause();
            }
            match self.flush() {
                // The host closed the stream while this process was writing.
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Ok(Ended::HostGone)
                }
                flushed => flushed?,
            }
            let pieces = self.recording.as_ref().is_some_and(|recording| recording.has_chunks())
                || self.profiling.as_mut().is_some_and(Profiling::has_chunks)
                || self.observing.as_ref().is_some_and(Observing::has_chunks);
            let waiting = pieces || self.out.waiting() > 0 || !self.time_requests.is_empty();
            if waiting && self.moved.elapsed() > self.options.silence {
                return Err(ServeError::Stuck(self.options.silence));
            }
            let timeout = next_tick.saturating_duration_since(Instant::now());
            let ready = self.stream.wait(waiting, quit, timeout)?;
            if ready.other {
                return Ok(Ended::Quit);
            }
            if ready.read || ready.hangup {
                match self.stream.read()? {
                    Got::Bytes => {
                        let now = (self.options.clock)();
                        self.heard = Instant::now();
                        if let Some(ended) = self.take_read(now)? {
                            return Ok(ended);
                        }
                    }
                    Got::Nothing if ready.hangup => return Ok(Ended::HostGone),
                    Got::Nothing => {}
                    Got::End => return Ok(Ended::HostGone),
                }
            }
            // Checked only after reading: messages may have arrived while this thread had no CPU.
            if self.heard.elapsed() > self.options.silence {
                return Err(ServeError::Silent(self.options.silence));
            }
        }
    }

    /// Interval between ticks, which drain the source.
    fn pause(&self) -> Duration {
        match self.probe {
            _ if self.command.is_some() || self.observing.is_some() || self.stopping => self.options.every,
            Probe::Running(_) | Probe::Attaching(_) => self.options.every,
            Probe::NotAsked(_) | Probe::Gone => Duration::from_millis(200),
        }
    }

    fn take_read(&mut self, now: Ns) -> Result<Option<Ended>, ServeError> {
        loop {
            if self.stream.reader.peek_preamble().is_some_and(|nonce| nonce != self.nonce) {
                return Ok(Some(Ended::NewSession));
            }
            match self.stream.reader.next() {
                Ok(Some(Item::Message(message))) => {
                    if let Some(ended) = self.take(*message, now)? {
                        return Ok(Some(ended));
                    }
                }
                // The host repeats its preamble until it receives the reply.
                Ok(Some(Item::Preamble(_))) => {}
                Ok(None) => return Ok(None),
                Err(FrameError::Unknown) => return Err(ServeError::Protocol("an unknown message".into())),
                Err(e) => return Err(ServeError::Frame(e.to_string())),
            }
        }
    }

    fn take(&mut self, message: Message, now: Ns) -> Result<Option<Ended>, ServeError> {
        let broken = |what: &str| Err(ServeError::Protocol(what.into()));
        match message {
            Message::HostHello(hello) if !self.greeted => self.greet(&hello)?,
            _ if !self.greeted => return broken("a message before the greeting"),
            Message::TimeRequest(request) => {
                if self.time_requests.len() >= MAX_TIME_REQUESTS {
                    return broken("too many requests for the time at once");
                }
                self.time_requests.push_back((request.id, now));
            }
            Message::WindowRequest(request) => {
                let none = |id| WindowReply { id, error: "no flight recorder runs here".into(), ..Default::default() };
                let answer = match &mut self.recording {
                    Some(recording) => recording.request(request, now),
                    None => Some(Message::WindowReply(none(request.id))),
                };
                answer.into_iter().for_each(|answer| self.out.push(answer));
            }
            Message::Start(start) => {
                let Probe::NotAsked(make) = std::mem::replace(&mut self.probe, Probe::Gone) else {
                    return broken("a second start");
                };
                let request = StartRequest::try_from(start).map_err(ServeError::Protocol)?;
                // Not at background priority with a profile: if the guest's CPUs are never idle, its samples would not
                // be delivered.
                let samples = request.option(StartRequest::PROFILE).is_some();
                if let Some(ring) = self.options.background.filter(|_| !samples) {
                    self.reporter.begin_background(ring);
                }
                if request.option(StartRequest::NOTES).is_some() {
                    self.reporter.report_notes();
                }
                if request.option(StartRequest::GRANDMASTER).is_some() {
                    self.clocks = Some(Monitor::start(self.options.clocks.clone(), None));
                }
                self.reports_time_of_day = request.option(StartRequest::TIME_OF_DAY).is_some();
                let reports_settings = request.option(StartRequest::SETTINGS).is_some();
                let find_vms = request.option(StartRequest::VMS).map(|_| self.options.vms);
                let (done, attached) = channel();
                std::thread::Builder::new()
                    .name("lp-attach".into())
                    .spawn(move || {
                        // If the session has ended in the meantime, the source is dropped here. Settings and virtual
                        // machines are read before the source is attached, so that reading them delays no measured
                        // packet.
                        let settings = reports_settings.then(MachineReading::of_this_machine);
                        let vms = find_vms.map_or(Vec::new(), |find| vms::messages(find()));
                        let _ = done.send(Attachment { settings, vms, attached: make(&request) });
                    })
                    .map_err(|e| ServeError::Source(format!("no thread to attach the probe: {e}")))?;
                self.probe = Probe::Attaching(attached);
            }
            Message::RunCommand(run) if self.options.commands.are_allowed() => {
                if self.command.is_some() {
                    return broken("a second command");
                }
                if !self.options.commands.allow(&run.key) {
                    self.refuse_command(
                        "the agent requires its key, which differs from this one: name its file with --agent-key",
                    );
                    return Ok(None);
                }
                match command::Running::start(&run) {
                    Ok(running) => self.command = Some(running),
                    Err(why) => self.refuse_command(&why),
                }
            }
            Message::EndCommand(_) if self.options.commands.are_allowed() => {
                self.command.iter_mut().for_each(|c| c.end())
            }
            Message::Observe(observe) if self.options.observers.is_some() => {
                if self.observing.as_ref().is_some_and(|observing| !observing.is_over()) {
                    return broken("a second observation");
                }
                let found = self.options.observers.as_ref().and_then(|find| find(&observe.instrument));
                let begun = match found {
                    Some(make) => Observing::begin(make),
                    None => Observing::refused(format!(
                        "there is no instrument {:?} here: install the same latpath on both",
                        printable(cut(&observe.instrument, MAX_NAME))
                    )),
                };
                self.observing = Some(begun.map_err(|e| ServeError::Source(format!("no thread to observe: {e}")))?);
            }
            Message::EndObservation(_) => self.observing.iter().for_each(Observing::stop),
            Message::Stop(_) => {
                if let Probe::Running(source) = &mut self.probe {
                    self.reporter.up_to((self.options.clock)(), source, &mut self.out);
                }
                self.probe = Probe::Gone;
                self.recording = None;
                self.observing = None;
                // On a busy machine, the last samples can take a while; meanwhile the host still gets replies.
                self.profiling.iter().for_each(Profiling::stop);
                self.stopping = true;
            }
            Message::Error(e) => return Err(ServeError::Protocol(format!("the host gave up: {}", printable(&e.text)))),
            _ => return broken("a message out of place"),
        }
        Ok(None)
    }

    fn greet(&mut self, hello: &HostHello) -> Result<(), ServeError> {
        if hello.newest < OLDEST_VERSION || hello.oldest > VERSION || hello.oldest > hello.newest {
            return Err(ServeError::Version(format!(
                "the agent (latpath {}) speaks protocol {OLDEST_VERSION} to {VERSION}, the host (latpath {}) {} to {}: \
                 install the same latpath on both",
                self.options.facts.program,
                cut(&printable(&hello.program), 64),
                hello.oldest,
                hello.newest
            )));
        }
        self.greeted = true;
        let version = VERSION.min(hello.newest);
        let facts = self.options.facts.printable();
        self.out.push(Message::AgentHello(Facts {
            version,
            runs_commands: self.options.commands.are_allowed(),
            observes: self.options.observers.is_some(),
            ..facts
        }));
        Ok(())
    }

    fn tick(&mut self) -> Result<(), ServeError> {
        if let Probe::Attaching(attached) = &self.probe {
            match attached.try_recv() {
                Ok(Attachment { settings, vms, attached: Ok(Attached { source, recorder, sampler }) }) => {
                    self.probe = Probe::Running(source);
                    settings.into_iter().for_each(|settings| self.out.push(Message::Settings(settings)));
                    vms.into_iter().for_each(|part| self.out.push(Message::Vms(part)));
                    self.out.push(Message::Started(Empty {}));
                    recorder.into_iter().for_each(|recorder| self.record(recorder));
                    sampler.map_or(Ok(()), |sampler| self.sample(sampler))?;
                }
                Ok(Attachment { attached: Err(why), .. }) => return Err(ServeError::Source(why)),
                Err(TryRecvError::Disconnected) => {
                    return Err(ServeError::Source("attaching the probe failed within latpath (a panic)".into()))
                }
                Err(TryRecvError::Empty) => {}
            }
        }
        if self.greeted && self.paired.elapsed() >= PAIR_EVERY {
            self.paired = Instant::now();
            self.read_hypervisor();
            if self.reports_time_of_day {
                self.realtime.observe(&ClockTie::read());
                self.out.push(Message::TimeOfDay(self.realtime.range().into()));
            }
        }
        self.report_grandmaster();
        if let Some(recording) = &mut self.recording {
            let mut messages = Vec::new();
            recording.tick((self.options.clock)(), &mut messages);
            messages.into_iter().for_each(|message| self.out.push(message));
        }
        if self.out.waiting() > MAX_WAITING {
            return Ok(());
        }
        self.pass_on_command();
        let news = self.observing.as_mut().and_then(Observing::tick);
        news.into_iter().for_each(|message| self.out.push(message));
        if self.observing.as_ref().is_some_and(Observing::is_over) {
            self.observing = None;
        }
        if let Probe::Running(source) = &mut self.probe {
            self.reporter.round(source, &mut self.out);
        }
        Ok(())
    }

    /// Forwards the command's output, as far as the queue has room, and its exit code.
    fn pass_on_command(&mut self) {
        while self.out.waiting() <= MAX_WAITING {
            let Some(command) = &mut self.command else { return };
            match command.step() {
                Ok(None) => return,
                Ok(Some(message)) => {
                    if matches!(&message, Message::CommandChunk(piece) if piece.ended) {
                        self.command = None;
                    }
                    self.out.push(message);
                }
                Err(why) => {
                    self.command = None;
                    self.refuse_command(&why);
                }
            }
        }
    }

    fn refuse_command(&mut self, why: &str) {
        let error = cut(why, MAX_TEXT).into();
        self.out.push(Message::CommandChunk(CommandChunk { error, ..CommandChunk::default() }));
    }

    fn record(&mut self, recorder: Result<Box<dyn Record>, String>) {
        let begun = recorder.and_then(|record| {
            recorder::Recording::begin(record).map_err(|e| format!("no thread for the flight recorder: {e}"))
        });
        match begun {
            Ok(recording) => self.recording = Some(recording),
            Err(why) => self
                .out
                .push(Message::Recording(Recording { error: cut(&why, MAX_TEXT).into(), ..Recording::default() })),
        }
    }

    fn sample(&mut self, sampler: MakeSampler) -> Result<(), ServeError> {
        let begun = Profiling::begin(sampler);
        self.profiling = Some(begun.map_err(|e| ServeError::Source(format!("no thread to sample the CPUs: {e}")))?);
        Ok(())
    }

    fn report_grandmaster(&mut self) {
        let Some(time) = self.clocks.as_ref().and_then(Monitor::ptp_time) else { return };
        if std::mem::replace(&mut self.sent_time, time.monotonic_ns) != time.monotonic_ns {
            self.out.push(Message::GrandmasterTime(time.into()));
        }
    }

    fn read_hypervisor(&mut self) {
        let Some(reader) = &mut self.options.hypervisor else { return };
        // A failed reading costs only one pair; the timed exchanges continue.
        if let Ok(pair) = read_pair(reader.as_mut(), &mut self.realtime) {
            self.out.push(Message::Pair(Pair {
                guest: pair.guest_ns,
                host_realtime: pair.host_realtime_ns,
                uncertainty: pair.uncertainty_ns,
            }));
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let Self { time_requests, options, recording, profiling, observing, .. } = self;
        let clock = &options.clock;
        let urgent = || {
            let (id, received) = time_requests.pop_front()?;
            let tie = TscTie::read_beside(&**clock);
            let (tsc, tsc_at, tsc_uncertainty) =
                tie.map_or((0, 0, 0), |tie| (tie.tsc, tie.monotonic_ns, tie.uncertainty_ns));
            Some(Message::TimeReply(TimeReply { id, received, sent: clock(), tsc, tsc_at, tsc_uncertainty }))
        };
        // Writes a few chunks of a window, profile or observation before reading from the host again.
        let mut pieces = 0..PIECES;
        let idle = || {
            pieces.next()?;
            let window = recording.as_mut().and_then(recorder::Recording::chunk);
            let slice = window.or_else(|| profiling.as_mut()?.piece());
            slice.or_else(|| observing.as_mut()?.piece())
        };
        let written = self.out.flush(|bytes| self.stream.write(bytes), urgent, idle)?;
        if written > 0 || self.out.waiting() == 0 {
            self.moved = Instant::now();
        }
        Ok(())
    }

    /// Writes the last message and the rest of the queue, if the host reads them in time.
    pub fn end(&mut self, last_word: Option<String>) {
        if let Some(text) = last_word {
            self.out.push(Message::Error(ErrorText { text: cut(&text, MAX_TEXT).into() }));
        }
        let began = Instant::now();
        while self.flush().is_ok() && self.out.waiting() > 0 && began.elapsed() < LAST_WORD {
            match self.stream.wait(true, None, Duration::from_millis(50)) {
                Ok(ready) if !ready.hangup => {}
                _ => return,
            }
        }
    }
}
