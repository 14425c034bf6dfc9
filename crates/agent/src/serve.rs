//! The agent's end of a session.

use crate::columns::{Encoder, BATCH};
use crate::frame::{preamble, FrameError, FrameReader, Item, Outgoing, AGENT_MAGIC, HOST_MAGIC};
use crate::message::*;
use crate::recorder::{self, Record};
use crate::stream::{Got, Stream};
use crate::Facts;
use latpath_clock::ptp_kvm::{read_pair, Reader};
use latpath_clock::{now_monotonic, ClockTie, RealtimeWatch};
use latpath_words::text::cut;
use latpath_words::{Ns, Sighting, Source};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Bytes that may wait for the host before the source is no longer emptied (the kernel's buffer then fills, and counts).
const MAX_WAITING: usize = 4 << 20;
/// Questions about the time that may wait.
const MAX_QUESTIONS: usize = 256;
/// How often the source's tables and totals are looked at.
const TOTALS_EVERY: Duration = Duration::from_millis(200);
/// How often the hypervisor's clock is read.
const PAIR_EVERY: Duration = Duration::from_millis(250);
/// How often a watermark alone is worth a message.
const WATERMARK_EVERY: Duration = Duration::from_millis(40);
/// Pieces of a window that are written before the host is listened to again.
const PIECES: usize = 8;
/// How long a source may take to tell what it has seen by the time it is told to stop.
const SETTLING: Duration = Duration::from_millis(100);
/// How long a last word may take.
const LAST_WORD: Duration = Duration::from_secs(2);

/// What was attached for a host.
pub struct Attached<S> {
    /// The probe.
    pub source: S,
    /// The flight recorder, where the host asked for one; or why there is none.
    pub recorder: Option<Result<Box<dyn Record>, String>>,
}

impl<S: Source> From<S> for Attached<S> {
    fn from(source: S) -> Self {
        Self { source, recorder: None }
    }
}

/// What an agent needs beside its stream and source.
pub struct ServeOptions {
    /// The clock that the source's times are taken from, `CLOCK_MONOTONIC`; another in tests.
    pub clock: Box<dyn Fn() -> Ns + Send>,
    /// What is told about this machine.
    pub facts: Facts,
    /// The hypervisor's clock, where there is one.
    pub hypervisor: Option<Box<dyn Reader>>,
    /// The host is taken for dead when nothing came from it for this long.
    pub silence: Duration,
    /// How long to wait for a host to open the session; `None` for ever.
    pub opening: Option<Duration>,
    /// How often the source is emptied.
    pub every: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            clock: Box::new(now_monotonic),
            facts: Facts::of_this_machine(),
            hypervisor: None,
            silence: Duration::from_secs(10),
            opening: None,
            every: Duration::from_millis(10),
        }
    }
}

/// How a session ended, when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The host said that it needs no more.
    Stopped,
    /// The host closed the stream.
    HostGone,
    /// Another session opened on the same stream: it is to be served next.
    NewSession,
    /// This process was told to end.
    Quit,
}

/// Why a session failed. The host was told where possible.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nobody opened a session.
    #[error("no host opened a session within {0:?}")]
    NobodyCame(Duration),
    /// Nothing came for too long.
    #[error("nothing was heard of the host for {0:?}: taken for dead")]
    Silent(Duration),
    /// The host does not take what is written.
    #[error("the host has taken nothing for {0:?}: taken for dead")]
    Stuck(Duration),
    /// Bytes that are no protocol.
    #[error("the host sent what is no message of latpath's: {0}")]
    Frame(String),
    /// A message that has no place here.
    #[error("the host broke the protocol: {0}")]
    Protocol(String),
    /// Versions that do not meet.
    #[error("{0}")]
    Version(String),
    /// The probe could not be attached, or failed.
    #[error("{0}")]
    Source(String),
    /// Reading or writing failed.
    #[error("the stream to the host failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves one session: waits for a host, attaches what it asks for by `make_source`, hands on the sightings until it is told
/// to stop or the host is gone. The source is dropped, and so detached, before this returns; one that is still being attached
/// is dropped as soon as that is done.
///
/// `quit` becoming readable ends the session.
pub fn serve<S, F>(
    stream: &mut Stream,
    options: &mut ServeOptions,
    quit: Option<BorrowedFd>,
    make_source: F,
) -> Result<Ended, ServeError>
where
    S: Source + 'static,
    F: FnOnce(&StartRequest) -> Result<Attached<S>, String> + Send + 'static,
{
    let mut reader = FrameReader::new(HOST_MAGIC);
    serve_from(&mut reader, stream, options, quit, make_source)
}

/// As [`serve`]; bytes that an earlier session on this stream left in `reader` come first.
pub(crate) fn serve_from<S, F>(
    reader: &mut FrameReader,
    stream: &mut Stream,
    options: &mut ServeOptions,
    quit: Option<BorrowedFd>,
    make_source: F,
) -> Result<Ended, ServeError>
where
    S: Source + 'static,
    F: FnOnce(&StartRequest) -> Result<Attached<S>, String> + Send + 'static,
{
    let nonce = match wait_for_host(reader, stream, options.opening, quit)? {
        Opened::By(nonce) => nonce,
        Opened::Not(ended) => return Ok(ended),
    };
    let mut session = Session::new(stream, options, nonce, make_source);
    let result = session.run(reader, quit);
    let last_word = match &result {
        Ok(Ended::Stopped | Ended::HostGone | Ended::NewSession) => None,
        Ok(Ended::Quit) => Some("the agent was told to end".to_string()),
        Err(ServeError::Io(_) | ServeError::Silent(_) | ServeError::Stuck(_) | ServeError::NobodyCame(_)) => None,
        Err(e) => Some(e.to_string()),
    };
    if let Some(text) = last_word {
        session.out.push(Message::Error(ErrorText { text: cut(&text, MAX_TEXT).into() }));
    }
    session.say_the_rest();
    result
}

enum Opened {
    By(u64),
    Not(Ended),
}

fn wait_for_host(
    reader: &mut FrameReader,
    stream: &mut Stream,
    within: Option<Duration>,
    quit: Option<BorrowedFd>,
) -> Result<Opened, ServeError> {
    let began = Instant::now();
    loop {
        if let Some(nonce) = reader.scan() {
            return Ok(Opened::By(nonce));
        }
        let left = within.map(|w| w.saturating_sub(began.elapsed()));
        if let (Some(Duration::ZERO), Some(within)) = (left, within) {
            return Err(ServeError::NobodyCame(within));
        }
        let ready = stream.wait(false, quit, left.unwrap_or(Duration::MAX))?;
        if ready.other {
            return Ok(Opened::Not(Ended::Quit));
        }
        if ready.read || ready.hangup {
            match stream.read()? {
                Got::Bytes(n) => reader.push(stream.bytes(n)),
                Got::Nothing => {}
                Got::End => return Ok(Opened::Not(Ended::HostGone)),
            }
        }
    }
}

/// The source, and how far it is.
enum Probe<S, F> {
    /// The host has not asked yet.
    NotAsked(F),
    /// Another thread attaches it, since that can take seconds.
    Attaching(Receiver<Result<Attached<S>, String>>),
    Running(S),
    /// Being moved from one state to the next, or over.
    Gone,
}

struct Session<'a, S, F> {
    stream: &'a mut Stream,
    options: &'a mut ServeOptions,
    nonce: u64,
    greeted: bool,
    probe: Probe<S, F>,
    recording: Option<recorder::Recording>,
    out: Outgoing,
    /// Questions about the time: id, and when it was read.
    questions: VecDeque<(u64, Ns)>,
    encoder: Encoder,
    sightings: Vec<Sighting>,
    points: usize,
    notes: usize,
    left_out: u64,
    /// The watermark last told, and when.
    told: (Ns, Instant),
    /// The source's watermark.
    reached: Ns,
    totals: (Totals, Instant),
    realtime: RealtimeWatch,
    paired: Instant,
    heard: Instant,
    moved: Instant,
}

impl<'a, S, F> Session<'a, S, F>
where
    S: Source + 'static,
    F: FnOnce(&StartRequest) -> Result<Attached<S>, String> + Send + 'static,
{
    fn new(stream: &'a mut Stream, options: &'a mut ServeOptions, nonce: u64, make_source: F) -> Self {
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
            out,
            questions: VecDeque::new(),
            encoder: Encoder::new(),
            sightings: Vec::new(),
            points: 0,
            notes: 0,
            left_out: 0,
            told: (Ns::MIN, now),
            reached: Ns::MIN,
            totals: (Totals::default(), now),
            realtime: RealtimeWatch::new(&ClockTie::read()),
            paired: now,
            heard: now,
            moved: now,
        }
    }

    fn run(&mut self, reader: &mut FrameReader, quit: Option<BorrowedFd>) -> Result<Ended, ServeError> {
        let mut next_tick = Instant::now();
        loop {
            if let Some(ended) = self.take_messages(reader)? {
                return Ok(ended);
            }
            if Instant::now() >= next_tick {
                self.tick()?;
                next_tick = Instant::now() + self.pause();
            }
            match self.flush() {
                // It went while something was on its way to it.
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Ok(Ended::HostGone)
                }
                flushed => flushed?,
            }
            let telling = self.recording.as_ref().is_some_and(|recording| recording.is_telling());
            let waiting = telling || self.out.waiting() > 0 || !self.questions.is_empty();
            if waiting && self.moved.elapsed() > self.options.silence {
                return Err(ServeError::Stuck(self.options.silence));
            }
            if self.heard.elapsed() > self.options.silence {
                return Err(ServeError::Silent(self.options.silence));
            }
            let timeout = next_tick.saturating_duration_since(Instant::now());
            let ready = self.stream.wait(waiting, quit, timeout)?;
            if ready.other {
                return Ok(Ended::Quit);
            }
            if ready.read || ready.hangup {
                match self.stream.read()? {
                    Got::Bytes(n) => {
                        let now = (self.options.clock)();
                        self.heard = Instant::now();
                        reader.push(self.stream.bytes(n));
                        if let Some(ended) = self.take_read(reader, now)? {
                            return Ok(ended);
                        }
                    }
                    Got::Nothing if ready.hangup => return Ok(Ended::HostGone),
                    Got::Nothing => {}
                    Got::End => return Ok(Ended::HostGone),
                }
            }
        }
    }

    /// How long until the source is looked at again.
    fn pause(&self) -> Duration {
        match self.probe {
            Probe::Running(_) | Probe::Attaching(_) => self.options.every,
            Probe::NotAsked(_) | Probe::Gone => Duration::from_millis(200),
        }
    }

    /// Messages that came together with the preamble.
    fn take_messages(&mut self, reader: &mut FrameReader) -> Result<Option<Ended>, ServeError> {
        let now = (self.options.clock)();
        self.take_read(reader, now)
    }

    fn take_read(&mut self, reader: &mut FrameReader, now: Ns) -> Result<Option<Ended>, ServeError> {
        loop {
            if reader.peek_preamble().is_some_and(|nonce| nonce != self.nonce) {
                return Ok(Some(Ended::NewSession));
            }
            match reader.next() {
                Ok(Some(Item::Message(message))) => {
                    if let Some(ended) = self.take(*message, now)? {
                        return Ok(Some(ended));
                    }
                }
                // The host repeats its preamble until it is answered.
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
                if self.questions.len() >= MAX_QUESTIONS {
                    return broken("too many questions about the time at once");
                }
                self.questions.push_back((request.id, now));
            }
            Message::WindowRequest(request) => {
                let none = |id| WindowReply { id, error: "no flight recorder runs here".into(), ..Default::default() };
                let answer = match &mut self.recording {
                    Some(recording) => recording.ask(request, now),
                    None => Some(Message::WindowReply(none(request.id))),
                };
                answer.into_iter().for_each(|answer| self.out.push(answer));
            }
            Message::Start(start) => {
                let Probe::NotAsked(make) = std::mem::replace(&mut self.probe, Probe::Gone) else {
                    return broken("a second start");
                };
                let request = StartRequest::try_from(start).map_err(ServeError::Protocol)?;
                let (done, attached) = channel();
                std::thread::Builder::new()
                    .name("lp-attach".into())
                    .spawn(move || {
                        // The session may be over by now: then the source is dropped here.
                        let _ = done.send(make(&request));
                    })
                    .map_err(|e| ServeError::Source(format!("no thread to attach the probe: {e}")))?;
                self.probe = Probe::Attaching(attached);
            }
            Message::Stop(_) => {
                self.drain_up_to((self.options.clock)())?;
                self.tables_and_totals()?;
                self.probe = Probe::Gone;
                self.recording = None;
                self.out.push(Message::Bye(Empty {}));
                return Ok(Some(Ended::Stopped));
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
        let facts = &self.options.facts;
        self.out.push(Message::AgentHello(AgentHello {
            version: VERSION.min(hello.newest),
            program: cut(&facts.program, MAX_NAME).into(),
            kernel: cut(&facts.kernel, MAX_NAME).into(),
            hostname: cut(&facts.hostname, MAX_NAME).into(),
            cpus: facts.cpus,
            clocksource: cut(&facts.clocksource, MAX_NAME).into(),
            capabilities: cut(&facts.capabilities, MAX_TEXT).into(),
            records: facts.records,
        }));
        Ok(())
    }

    fn tick(&mut self) -> Result<(), ServeError> {
        if let Probe::Attaching(attached) = &self.probe {
            match attached.try_recv() {
                Ok(Ok(Attached { source, recorder })) => {
                    self.probe = Probe::Running(source);
                    self.out.push(Message::Started(Empty {}));
                    recorder.into_iter().for_each(|recorder| self.record(recorder));
                }
                Ok(Err(why)) => return Err(ServeError::Source(why)),
                Err(TryRecvError::Disconnected) => {
                    return Err(ServeError::Source("attaching the probe failed within latpath (a panic)".into()))
                }
                Err(TryRecvError::Empty) => {}
            }
        }
        if self.greeted && self.paired.elapsed() >= PAIR_EVERY {
            self.paired = Instant::now();
            self.read_hypervisor();
        }
        if let Some(recording) = &mut self.recording {
            let mut told = Vec::new();
            recording.tick((self.options.clock)(), &mut told);
            told.into_iter().for_each(|message| self.out.push(message));
        }
        if self.out.waiting() > MAX_WAITING {
            return Ok(());
        }
        if let Probe::Running(_) = self.probe {
            self.drain()?;
            if self.totals.1.elapsed() >= TOTALS_EVERY {
                self.tables_and_totals()?;
            }
        }
        Ok(())
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

    fn read_hypervisor(&mut self) {
        let Some(reader) = &mut self.options.hypervisor else { return };
        // A reading that fails is one pair less; the timed exchanges go on.
        if let Ok(pair) = read_pair(reader.as_mut(), &mut self.realtime) {
            self.out.push(Message::Pair(Pair {
                guest: pair.guest_ns,
                host_realtime: pair.host_realtime_ns,
                uncertainty: pair.uncertainty_ns,
            }));
        }
    }

    /// Drains until the source has told all up to a time: what is being seen right now is told a little later.
    fn drain_up_to(&mut self, until: Ns) -> Result<(), ServeError> {
        let began = Instant::now();
        while let Probe::Running(_) = self.probe {
            self.drain()?;
            if self.reached >= until || began.elapsed() >= SETTLING {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), ServeError> {
        let Probe::Running(source) = &mut self.probe else { return Ok(()) };
        let mut sightings = std::mem::take(&mut self.sightings);
        sightings.clear();
        let watermark = source.drain(&mut sightings).map_err(|e| ServeError::Source(e.to_string()))?;
        let known = |s: &Sighting| usize::from(s.point) < self.points && usize::from(s.note) <= self.notes;
        if !sightings.iter().all(known) {
            self.tables()?;
        }
        // A sighting that no table explains cannot be handed on.
        let before = sightings.len();
        let (points, notes) = (self.points, self.notes);
        sightings.retain(|s| usize::from(s.point) < points && usize::from(s.note) <= notes);
        self.left_out += (before - sightings.len()) as u64;
        let chunks = sightings.chunks(BATCH);
        let last = chunks.len();
        for (i, chunk) in chunks.enumerate() {
            // Only the last batch ends what this call covers; the others promise no more than their first sighting.
            let promise = if i + 1 == last { watermark } else { watermark.min(chunk[0].t) };
            let (batch, left_out) = self.encoder.pack(chunk, promise);
            self.left_out += left_out;
            self.out.push(Message::Batch(batch));
        }
        let due = watermark > self.told.0 && self.told.1.elapsed() >= WATERMARK_EVERY;
        if sightings.is_empty() && due {
            self.out.push(Message::Batch(Batch { watermark, ..Batch::default() }));
        }
        if due || !sightings.is_empty() {
            self.told = (watermark, Instant::now());
        }
        self.reached = self.reached.max(watermark);
        self.sightings = sightings;
        Ok(())
    }

    /// Announces points and drop notes that are new.
    fn tables(&mut self) -> Result<(), ServeError> {
        let Probe::Running(source) = &mut self.probe else { return Ok(()) };
        let failed = |e: S::Error| ServeError::Source(e.to_string());
        let points = source.points().map_err(failed)?;
        let points = &points[..points.len().min(MAX_POINTS)];
        if points.len() > self.points {
            let fresh = points[self.points..].iter().map(WirePoint::from).collect();
            self.out.push(Message::Points(Points { points: fresh }));
            self.points = points.len();
        }
        let notes = source.drop_notes().map_err(failed)?;
        let notes = &notes[..notes.len().min(MAX_NOTES)];
        if notes.len() > self.notes {
            let fresh = notes[self.notes..].iter().map(WireNote::from).collect();
            self.out.push(Message::DropNotes(DropNotes { notes: fresh }));
            self.notes = notes.len();
        }
        Ok(())
    }

    fn tables_and_totals(&mut self) -> Result<(), ServeError> {
        self.tables()?;
        let Probe::Running(source) = &mut self.probe else { return Ok(()) };
        let mut totals = Totals::from(source.counters().map_err(|e| ServeError::Source(e.to_string()))?);
        totals.dropped = totals.dropped.saturating_add(self.left_out);
        if totals != self.totals.0 {
            self.out.push(Message::Totals(totals));
        }
        self.totals = (totals, Instant::now());
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let (questions, clock, recording) = (&mut self.questions, &self.options.clock, &mut self.recording);
        let urgent = || {
            let (id, received) = questions.pop_front()?;
            Some(Message::TimeReply(TimeReply { id, received, sent: clock() }))
        };
        // A few pieces of a window, then the host is heard again.
        let mut pieces = 0..PIECES;
        let idle = || pieces.next().and_then(|_| recording.as_mut()?.chunk());
        let written = self.out.flush(|bytes| self.stream.write(bytes), urgent, idle)?;
        if written > 0 || self.out.waiting() == 0 {
            self.moved = Instant::now();
        }
        Ok(())
    }

    /// Writes what waits, as far as the host takes it within a moment.
    fn say_the_rest(&mut self) {
        let began = Instant::now();
        while self.flush().is_ok() && self.out.waiting() > 0 && began.elapsed() < LAST_WORD {
            match self.stream.wait(true, None, Duration::from_millis(50)) {
                Ok(ready) if !ready.hangup => {}
                _ => return,
            }
        }
    }
}
