//! The host's end of a session: one thread that writes requests, reads replies, and updates the shared state.

use crate::columns::MAX_BATCH;
use crate::dial::{Carrier, Line};
use crate::frame::{preamble, FrameReader, Item, Outgoing, AGENT_MAGIC, HOST_MAGIC};
use crate::inbox::Inbox;
use crate::message::*;
use crate::stream::{Got, Stream};
use crate::Timeouts;
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum number of undrained sightings (3 MiB: one second at 100,000/s); further ones are dropped and counted.
const MAX_SIGHTINGS: usize = (1 << 17) - 2 * MAX_BATCH;
/// Interval at which the preamble is repeated until the agent replies.
const KNOCK: Duration = Duration::from_millis(250);
/// Number of time exchanges of the first burst, their interval, and the burst's maximum duration.
const BURST: u64 = 64;
const BURST_STEP: Duration = Duration::from_millis(7);
const BURST_TIME: Duration = Duration::from_millis(500);
/// Minimum number of exchanges of the first burst.
const MIN_EXCHANGES: u64 = 3;
/// Maximum wait for the agent before commands and timeouts are checked.
const ROUND: Duration = Duration::from_millis(100);
/// Maximum wait for the last output of a carrier command.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Maximum wait for the last output if the agent has closed the stream, because the command is then about to end.
const LAST_WORDS_AT_THE_END: Duration = Duration::from_secs(5);
/// Error when the agent closes the stream.
const CLOSED: &str = "the agent closed the stream";

/// State shared by the owner of the machine and the session thread.
pub(crate) struct Shared {
    state: Mutex<State>,
    pub changed: Condvar,
}

impl Shared {
    pub fn new(machine: &str) -> Self {
        let state = State {
            inbox: Inbox::new(machine),
            ready: false,
            over: false,
            fault: None,
            overflow: 0,
            unfetched: 0,
            commands: VecDeque::new(),
            close: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the other thread ends the session, but its results can still be read.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// State in [`Shared`].
pub(crate) struct State {
    /// Received state of the agent.
    pub inbox: Inbox,
    /// Whether the first burst is complete, so that times can be mapped.
    pub ready: bool,
    pub over: bool,
    /// Error that ended the session; `None` if the agent ended it regularly.
    pub fault: Option<String>,
    /// Number of sightings dropped here because they were not drained in time.
    pub overflow: u64,
    /// Number of requested windows that have not been fetched yet.
    pub unfetched: usize,
    /// Messages to be sent to the agent.
    pub commands: VecDeque<Message>,
    /// Whether the session thread must end unconditionally.
    pub close: bool,
}

impl State {
    /// Handles all complete messages, received at `now`.
    ///
    /// # Errors
    /// A message is invalid; the error describes the problem.
    pub fn take_items(&mut self, reader: &mut FrameReader, session: u64, now: Ns) -> Result<(), String> {
        loop {
            match reader.next().map_err(|e| format!("the agent sent {e}"))? {
                None => break,
                // The reply to a repeated preamble.
                Some(Item::Preamble(nonce)) if nonce == session => {}
                Some(Item::Preamble(_)) => {
                    return Err("another agent took over in the middle of the session; was it restarted?".into())
                }
                Some(Item::Message(message)) => self.inbox.take(*message, now)?,
            }
        }
        let too_many = self.inbox.fresh.len().saturating_sub(MAX_SIGHTINGS);
        self.overflow += too_many as u64;
        self.inbox.fresh.truncate(MAX_SIGHTINGS);
        Ok(())
    }

    /// Marks the session as ended.
    pub fn end(&mut self, fault: Option<String>) {
        self.over = true;
        self.inbox.windows.end(fault.as_deref().unwrap_or("the session is over"));
        self.fault = fault;
    }
}

pub(crate) struct Session {
    stream: Stream,
    carrier: Option<Carrier>,
    shared: Arc<Shared>,
    wake: UnixStream,
    timeouts: Timeouts,
    out: Outgoing,
    nonce: u64,
    open: bool,
    greeted: Option<Instant>,
    began: Instant,
    knocked: Option<Instant>,
    next_question: Instant,
    heard: Instant,
    stopping: bool,
}

impl Session {
    pub fn new(mut line: Line, shared: Arc<Shared>, wake: UnixStream, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        line.stream.reader = FrameReader::new(AGENT_MAGIC);
        // Distinguishes the sessions on one device; need not be secret, but is never 0.
        let nonce = (monotonic() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id()) << 17 | 1;
        Self {
            stream: line.stream,
            carrier: line.command,
            shared,
            wake,
            timeouts,
            out: Outgoing::default(),
            nonce,
            open: false,
            greeted: None,
            began: now,
            knocked: None,
            next_question: now,
            heard: now,
            stopping: false,
        }
    }

    /// Runs until the agent's goodbye, an error, or until the owner closes the session.
    pub fn run(mut self) {
        let result = self.speak();
        let Self { stream, mut carrier, shared, stopping, .. } = self;
        drop(stream);
        let fault = result.err().map(|why| match &mut carrier {
            Some(carrier) => match carrier.last_words(if why == CLOSED { LAST_WORDS_AT_THE_END } else { LAST_WORDS }) {
                words if words.is_empty() => why,
                words => format!("{why}; {words}"),
            },
            None => why,
        });
        let mut state = shared.lock();
        state.end(fault);
        // After a stop request, any end of the agent is regular.
        if state.close || stopping && state.inbox.started {
            state.fault = None;
        }
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
                    Got::Bytes => {
                        self.heard = Instant::now();
                        if self.take_items(now)? {
                            return Ok(());
                        }
                        self.check_waits()?;
                        continue;
                    }
                    Got::Nothing => {}
                    Got::End => return Err(CLOSED.into()),
                }
            }
            // A write error counts only once all messages that the agent sent before have been read. So does silence:
            // this thread may have had no CPU in the meantime.
            flushed?;
            self.check_waits()?;
        }
    }

    /// Sends the owner's messages; returns whether the owner closed the session.
    fn take_commands(&mut self) -> bool {
        let mut state = self.shared.lock();
        state.inbox.windows.expire(monotonic());
        for command in state.commands.drain(..) {
            self.stopping |= matches!(command, Message::Stop(_));
            self.out.push(command);
        }
        state.close
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
            return Err(format!("no answer for {:.1} s: considered dead", self.heard.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    /// Repeats the preamble until the agent replies: the agent may take the first one for part of an older session's
    /// frame.
    fn knock(&mut self) {
        if !self.open && self.knocked.is_none_or(|at| at.elapsed() >= KNOCK) && self.out.waiting() == 0 {
            self.out.push_bytes(&preamble(HOST_MAGIC, self.nonce));
            self.knocked = Some(Instant::now());
        }
    }

    fn next_wait(&self) -> Duration {
        match self.greeted {
            None => KNOCK,
            Some(_) => self.next_question.saturating_duration_since(Instant::now()).min(ROUND),
        }
    }

    fn flush(&mut self) -> Result<(), String> {
        let Self { out, stream, shared, greeted, next_question, stopping, .. } = self;
        let question = || {
            let now = Instant::now();
            let inbox = &mut shared.lock().inbox;
            // While the rest of a profile is awaited, requests continue, so that the agent does not consider its host
            // dead.
            let is_over = *stopping && inbox.profile.is_none();
            if greeted.is_none() || is_over || now < *next_question {
                return None;
            }
            let (requested, under_way) = inbox.requested();
            *next_question = now
                + match requested {
                    requested if requested < BURST && under_way > 3 => BURST_STEP * 4,
                    requested if requested < BURST => BURST_STEP,
                    // After the burst, 12 to 20 requests per second, out of step with the agent's own interval.
                    requested => Duration::from_micros(50_000 + requested.wrapping_mul(0x9e37_79b9) % 32_768),
                };
            inbox.request_time(monotonic()).map(Message::TimeRequest)
        };
        let written = out.flush(|bytes| stream.write(bytes), question, || None);
        written.map(|_| ()).map_err(|e| format!("writing to the agent failed: {e}"))
    }

    /// Handles all received messages; returns whether the agent said goodbye.
    fn take_items(&mut self, now: Ns) -> Result<bool, String> {
        if !self.open {
            while let Some(nonce) = self.stream.reader.scan() {
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
        let mut state = self.shared.lock();
        state.take_items(&mut self.stream.reader, self.nonce, now)?;
        if state.inbox.facts.is_some() {
            self.greeted.get_or_insert_with(Instant::now);
        }
        let (requested, under_way) = state.inbox.requested();
        let exchanges = requested - under_way as u64;
        let burst_over = self.greeted.is_some_and(|at| at.elapsed() >= BURST_TIME) || exchanges >= BURST;
        state.ready |= burst_over && exchanges >= MIN_EXCHANGES;
        let bye = state.inbox.ended;
        drop(state);
        self.shared.changed.notify_all();
        Ok(bye)
    }
}
