//! The host's end of a session: one thread that writes requests, reads answers, and fills the machine's box.

use crate::cost::Cost;
use crate::dial::{Carrier, Line};
use crate::frame::{preamble, FrameReader, Item, Outgoing, AGENT_MAGIC, HOST_MAGIC};
use crate::inbox::{Event, Inbox};
use crate::message::*;
use crate::stream::{Got, Stream};
use crate::windows::Answer;
use crate::{Facts, Timeouts};
use latpath_clock::ClockState;
use latpath_flight::Figures;
use latpath_linux::monotonic;
use latpath_model::{Counters, DropNote, Ns, PointInfo, Sighting};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Sightings that wait for whoever drains; more are dropped, and counted. 24 MiB.
const MAX_SIGHTINGS: usize = 1 << 20;
/// How often the preamble is repeated until the agent answers.
const KNOCK: Duration = Duration::from_millis(250);
/// Exchanges of the first burst, their distance, and how long it may take.
const BURST: u64 = 64;
const BURST_STEP: Duration = Duration::from_millis(7);
const BURST_TIME: Duration = Duration::from_millis(500);
/// Exchanges without which nothing is known.
const LEAST_EXCHANGES: u64 = 3;
/// How often the state of the clock is made known.
const CLOCK_EVERY: Duration = Duration::from_millis(100);
/// How long a command's last words are waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The same where its stream has ended: it is about to die, as soon as it may run.
const LAST_WORDS_AT_THE_END: Duration = Duration::from_secs(5);
/// What is said then.
const CLOSED: &str = "the agent closed the stream";

/// What the machine's owner and the session's thread share.
#[derive(Default)]
pub(crate) struct Shared {
    pub state: Mutex<State>,
    pub changed: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the other side leaves nothing half done here: each change is one assignment.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// See [`Shared`].
#[derive(Default)]
pub(crate) struct State {
    pub facts: Option<Facts>,
    /// The first burst is done: times can be mapped.
    pub ready: bool,
    pub started: bool,
    /// The thread is over.
    pub over: bool,
    /// Why, unless the agent said goodbye.
    pub fault: Option<String>,
    pub sightings: Vec<Sighting>,
    pub watermark: Option<Ns>,
    pub points: Vec<PointInfo>,
    pub notes: Vec<DropNote>,
    pub counters: Counters,
    /// What the agent costs its machine; `None` until it is reported.
    pub cost: Option<Cost>,
    pub refused: u64,
    /// Dropped here since nobody drained.
    pub overflow: u64,
    pub clock: ClockState,
    /// When the last exchange came, host clock.
    pub last_exchange: Ns,
    /// Whether the agent was asked to run its flight recorder.
    pub records: bool,
    /// How that does, or why there is none; `None` until it is reported.
    pub recorder: Option<Result<Figures, String>>,
    /// For the session: windows to ask for, by number, from then to then on the host's clock.
    pub requests: VecDeque<(u64, Ns, Ns)>,
    /// Windows asked for that nobody has fetched, whether they have come or not.
    pub unfetched: usize,
    /// Those that have come.
    pub windows: Vec<(u64, Answer)>,
    /// For the session: to be sent.
    pub commands: VecDeque<Message>,
    /// For the session: streams asked for.
    pub streams: usize,
    /// For the session: to end, whatever the agent does.
    pub close: bool,
}

pub(crate) struct Session {
    stream: Stream,
    carrier: Option<Carrier>,
    shared: Arc<Shared>,
    wake: UnixStream,
    timeouts: Timeouts,
    inbox: Inbox,
    reader: FrameReader,
    out: Outgoing,
    nonce: u64,
    open: bool,
    greeted: Option<Instant>,
    began: Instant,
    knocked: Option<Instant>,
    next_question: Instant,
    heard: Instant,
    clock_told: Instant,
    stopping: bool,
}

impl Session {
    pub fn new(machine: &str, line: Line, shared: Arc<Shared>, wake: UnixStream, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        // Only to distinguish sessions on one device, not a secret; never 0.
        let nonce = (monotonic() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id()) << 17 | 1;
        Self {
            stream: line.stream,
            carrier: line.command,
            shared,
            wake,
            timeouts,
            inbox: Inbox::new(machine),
            reader: FrameReader::new(AGENT_MAGIC),
            out: Outgoing::default(),
            nonce,
            open: false,
            greeted: None,
            began: now,
            knocked: None,
            next_question: now,
            heard: now,
            clock_told: now,
            stopping: false,
        }
    }

    /// Runs until the agent says goodbye, something fails, or the owner closes.
    pub fn run(mut self) {
        let result = self.speak();
        self.publish(true);
        let Self { stream, mut carrier, shared, stopping, mut inbox, .. } = self;
        drop(stream);
        let fault = result.err().map(|why| match &mut carrier {
            Some(carrier) => match carrier.last_words(if why == CLOSED { LAST_WORDS_AT_THE_END } else { LAST_WORDS }) {
                words if words.is_empty() => why,
                words => format!("{why}; {words}"),
            },
            None => why,
        });
        let mut state = shared.lock();
        state.over = true;
        let why = fault.as_deref().unwrap_or("the session is over");
        inbox.windows.end(why);
        state.windows.append(&mut inbox.windows.done);
        let unsent = std::mem::take(&mut state.requests);
        state.windows.extend(unsent.into_iter().map(|(id, ..)| (id, Err(why.to_string()))));
        // Once asked to stop, an agent may go as it likes.
        state.fault = fault.filter(|_| !(state.close || stopping && state.started && state.fault.is_none()));
        drop(state);
        shared.changed.notify_all();
        drop(carrier);
    }

    fn speak(&mut self) -> Result<(), String> {
        self.wake.set_nonblocking(true).map_err(|e| e.to_string())?;
        loop {
            if self.take_commands() {
                return Ok(());
            }
            self.check_waits()?;
            self.inbox.windows.expire(monotonic());
            if !self.inbox.windows.done.is_empty() {
                self.publish(false);
            }
            self.knock();
            let flushed = self.flush();
            let timeout = self.next_wait();
            let ready = self
                .stream
                .wait(self.out.waiting() > 0, Some(self.wake.as_fd()), timeout)
                .map_err(|e| format!("waiting for the agent failed: {e}"))?;
            if ready.other {
                use std::io::Read;
                let _ = self.wake.read(&mut [0; 64]);
            }
            if ready.read || ready.hangup {
                let got = self.stream.read();
                let now = monotonic();
                match got.map_err(|e| format!("reading from the agent failed: {e}"))? {
                    Got::Bytes(n) => {
                        self.heard = Instant::now();
                        self.reader.push(self.stream.bytes(n));
                        if self.take_items(now)? {
                            return Ok(());
                        }
                        continue;
                    }
                    Got::Nothing => {}
                    Got::End => return Err(CLOSED.into()),
                }
            }
            // An error of writing counts only once all that the agent said before is read.
            flushed?;
        }
    }

    /// True if the owner wants to end.
    fn take_commands(&mut self) -> bool {
        let mut state = self.shared.lock();
        (self.inbox.streams, self.inbox.records) = (state.streams, state.records);
        let commands = std::mem::take(&mut state.commands);
        let requests = std::mem::take(&mut state.requests);
        let close = state.close;
        drop(state);
        let within = self.timeouts.window.as_nanos() as Ns;
        for (id, from, to) in requests {
            let Inbox { windows, timeline, .. } = &mut self.inbox;
            let request = windows.ask(id, (from, to), timeline, (monotonic(), within));
            request.into_iter().for_each(|request| self.out.push(Message::WindowRequest(request)));
        }
        for command in commands {
            self.stopping |= matches!(command, Message::Stop(_));
            self.out.push(command);
        }
        close
    }

    fn check_waits(&self) -> Result<(), String> {
        if self.greeted.is_none() && self.began.elapsed() >= self.timeouts.connect {
            let within = self.timeouts.connect;
            return Err(match self.open {
                false => format!("no agent answered within {within:?}; is 'latpath agent' running at the other end?"),
                true => format!("the agent did not greet within {within:?}"),
            });
        }
        if self.greeted.is_some() && self.heard.elapsed() >= self.timeouts.silence {
            return Err(format!("no answer for {:.1} s: taken for dead", self.heard.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    /// Repeats the preamble until the agent answers: the first may fall into a frame that an older session left half written.
    fn knock(&mut self) {
        if !self.open && self.knocked.is_none_or(|at| at.elapsed() >= KNOCK) && self.out.waiting() == 0 {
            self.out.push_bytes(&preamble(HOST_MAGIC, self.nonce));
            self.knocked = Some(Instant::now());
        }
    }

    fn next_wait(&self) -> Duration {
        match self.greeted {
            None => KNOCK,
            Some(_) => self.next_question.saturating_duration_since(Instant::now()).min(CLOCK_EVERY),
        }
    }

    fn flush(&mut self) -> Result<(), String> {
        let Self { out, stream, inbox, greeted, next_question, stopping, .. } = self;
        let question = || {
            let now = Instant::now();
            if greeted.is_none() || *stopping || now < *next_question {
                return None;
            }
            let (asked, under_way) = inbox.asked();
            *next_question = now
                + match asked {
                    asked if asked < BURST && under_way > 3 => BURST_STEP * 4,
                    asked if asked < BURST => BURST_STEP,
                    // 12 to 20 a second, never in step with the agent's own rhythm.
                    asked => Duration::from_micros(50_000 + asked.wrapping_mul(0x9e37_79b9) % 32_768),
                };
            inbox.ask(monotonic()).map(Message::TimeRequest)
        };
        let written = out.flush(|bytes| stream.write(bytes), question, || None);
        written.map(|_| ()).map_err(|e| format!("writing to the agent failed: {e}"))
    }

    /// Takes all that came; true at the goodbye.
    fn take_items(&mut self, now: Ns) -> Result<bool, String> {
        if !self.open {
            while let Some(nonce) = self.reader.scan() {
                if nonce == self.nonce {
                    self.open = true;
                    self.out.push(Message::HostHello(HostHello {
                        oldest: OLDEST_VERSION,
                        newest: VERSION,
                        program: env!("CARGO_PKG_VERSION").into(),
                    }));
                    break;
                }
            }
            if !self.open {
                return Ok(false);
            }
        }
        let mut bye = false;
        loop {
            let item = self.reader.next().map_err(|e| format!("the agent sent {e}"))?;
            let message = match item {
                None => break,
                // The answer to a repeated knock.
                Some(Item::Preamble(nonce)) if nonce == self.nonce => continue,
                Some(Item::Preamble(_)) => {
                    return Err("another agent took over in the middle of the session; was it restarted?".into())
                }
                Some(Item::Message(message)) => *message,
            };
            let event = self.inbox.take(message, now);
            if event.is_err() {
                self.publish(true);
            }
            match event? {
                Event::Nothing => {}
                Event::Greeted => self.greeted = Some(Instant::now()),
                Event::Started => self.shared.lock().started = true,
                Event::Exchanged => self.shared.lock().last_exchange = now,
                Event::Bye => bye = true,
            }
        }
        let burst = self.greeted.is_some_and(|at| at.elapsed() < BURST_TIME) && self.inbox.asked().0 < BURST;
        self.publish(burst || self.clock_told.elapsed() >= CLOCK_EVERY);
        Ok(bye)
    }

    /// Makes known what came; the state of the clock only if `clock`, since it costs more.
    fn publish(&mut self, clock: bool) {
        let inbox = &mut self.inbox;
        let mut state = self.shared.lock();
        let room = MAX_SIGHTINGS.saturating_sub(state.sightings.len());
        if inbox.fresh.len() > room {
            state.overflow += (inbox.fresh.len() - room) as u64;
            inbox.fresh.truncate(room);
        }
        state.sightings.append(&mut inbox.fresh);
        if inbox.watermark > Ns::MIN {
            state.watermark = Some(inbox.watermark);
        }
        if state.points.len() < inbox.points.len() {
            let known = state.points.len();
            state.points.extend_from_slice(&inbox.points[known..]);
        }
        if state.notes.len() < inbox.notes.len() {
            let known = state.notes.len();
            state.notes.extend_from_slice(&inbox.notes[known..]);
        }
        state.windows.append(&mut inbox.windows.done);
        state.recorder.clone_from(&inbox.recorder);
        (state.counters, state.cost) = (inbox.counters, inbox.cost);
        state.refused = inbox.refused;
        if clock {
            state.clock = inbox.timeline.state(monotonic());
            self.clock_told = Instant::now();
        }
        if state.facts.is_none() {
            state.facts.clone_from(&inbox.facts);
        }
        let (asked, under_way) = inbox.asked();
        let exchanges = asked - under_way as u64;
        let burst_over = self.greeted.is_some_and(|at| at.elapsed() >= BURST_TIME) || exchanges >= BURST;
        state.ready |= burst_over && exchanges >= LEAST_EXCHANGES;
        drop(state);
        self.shared.changed.notify_all();
    }
}
