//! The application that answers: for each event in a received stream, it sends a GOOSE message with a new state after a
//! fixed time, like the trip of a protection relay.

use latpath_linux::{monotonic, realtime};
use latpath_model::Ns;
use latpath_protocols::protocol::{FrameLink, Order, Outgoing};
use latpath_protocols::{Condition, Matcher, ReactionRule, Tag, Watch};
use latpath_wire::thread::wait_until;
use latpath_wire::{DeviceError, PacketSocket, Received};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time from a new state to its first repetition, ns. Each further interval is twice the previous one, up to `LONGEST`.
const FIRST: Ns = 2_000_000;
const LONGEST: Ns = 1_000_000_000;
/// Time for which the BOOLEAN of an answer stays true, ns.
const HOLD: Ns = 50_000_000;
/// How long before an answer the thread stops receiving events and waits with an absolute timer instead, ns.
const PUNCTUAL: Ns = 200_000;
/// Maximum number of responses kept.
const KEPT: usize = 1 << 16;

/// A response, with its times by `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Key of the received packet.
    pub cause: u32,
    /// Key of the message sent.
    pub effect: u32,
    /// Time at which the application received the packet, ns.
    pub had: Ns,
    /// Time just before the system call that sent the message, ns.
    pub sending: Ns,
    /// Time just after that system call, ns.
    pub sent: Ns,
}

/// The messages that a responder sent.
#[derive(Debug, Default)]
pub struct Responses {
    /// The first 65,536 responses.
    pub all: Vec<Response>,
    /// Number of all responses.
    pub count: u64,
    /// Number of messages lost because the kernel refused them: a queue was full.
    pub refused: u64,
}

/// Answers the events of a received stream.
pub struct Responder {
    watch: Watch,
    events: Sender<(u32, Ns)>,
    thread: JoinHandle<Result<Responses, DeviceError>>,
}

impl Responder {
    /// Answers each cause of `rule` by sending its effect on this socket, `after` ns after the application received the
    /// packet. A separate thread sends, so that responses can be pending while packets are received; it calls `prepare`
    /// first.
    ///
    /// # Errors
    /// latpath cannot send the effect; the error is a sentence.
    pub fn start(
        rule: &ReactionRule,
        socket: PacketSocket,
        after: Ns,
        prepare: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let is_boolean = match &rule.effect {
            Condition::Becomes { path, value: true } if path.to_string() == "1" => true,
            Condition::NewState => false,
            _ => {
                let name = &rule.output;
                return Err(format!(
                    "{name}: what is sent is a new state, as {name}, or its first value, as {name}[1]"
                ));
            }
        };
        if rule.output.key.order() != Some(Order::States) {
            return Err(format!("{}: what is sent is a message of a stream that has states", rule.output));
        }
        let tags = rule.output.link.vlan.filter(|vlan| *vlan > 0).map(|vlan| Tag::new(vlan, 4)).into_iter().collect();
        let link = FrameLink { dst: rule.output.link.dst, src: socket.mac(), tags };
        let state = State { number: 1, repetition: 0, began: realtime(), value: false };
        let mut sending =
            Sending { socket, stream: rule.output.matcher.clone(), link, state, responses: Responses::default() };
        sending.frame(FIRST)?;
        let (events, received) = channel();
        let thread = std::thread::spawn(move || {
            prepare();
            let ended = sending.run(&received, after, is_boolean);
            ended.map(|()| sending.responses)
        });
        Ok(Self { watch: Watch::new(rule.input.clone(), rule.cause.clone()), events, thread })
    }

    /// Checks a received frame for events, and queues the answer.
    pub fn note(&mut self, received: &Received<'_>) {
        let had = monotonic();
        let t = received.arrival.unwrap_or(received.had);
        if let Some(key) = self.watch.event_in(t, received.frame, received.tag) {
            // Fails only if the thread has ended because it cannot send; `stop` returns that error.
            let _ = self.events.send((key, had));
        }
    }

    /// Ends the responder after sending the pending responses.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// The sending thread panicked.
    pub fn stop(self) -> Result<Responses, DeviceError> {
        drop(self.events);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The state that messages report.
#[derive(Clone, Copy, Debug)]
struct State {
    number: u32,
    repetition: u32,
    /// Start of the state, `CLOCK_REALTIME`, ns.
    began: Ns,
    value: bool,
}

struct Sending {
    socket: PacketSocket,
    stream: Matcher,
    link: FrameLink,
    state: State,
    responses: Responses,
}

impl Sending {
    fn frame(&self, next: Ns) -> Result<Vec<u8>, String> {
        self.frame_of(self.state, next)
    }

    fn frame_of(&self, state: State, next: Ns) -> Result<Vec<u8>, String> {
        let State { number, repetition, began, value } = state;
        let packet = Outgoing { event: number, number: repetition, event_time: began, next, value };
        self.stream.frame(&self.link, &packet).unwrap_or_else(|| Err("streams of this protocol are not sent".into()))
    }

    fn run(&mut self, events: &Receiver<(u32, Ns)>, after: Ns, is_boolean: bool) -> Result<(), DeviceError> {
        let (mut next, mut reset): (Ns, Option<Ns>) = (monotonic(), None);
        // Keys of the received packets, and the times at which the application received them; several answers can be
        // pending.
        let mut pending: VecDeque<(u32, Ns)> = VecDeque::new();
        let mut is_open = true;
        while is_open || !pending.is_empty() {
            let answer = pending.front().map(|(_, had)| had.saturating_add(after));
            let due = [answer, reset].into_iter().flatten().fold(next, Ns::min);
            let wait = if is_open { due } else { answer.unwrap_or(due) } - monotonic();
            match events.recv_timeout(Duration::from_nanos((wait - PUNCTUAL).max(0) as u64)) {
                Ok(event) => pending.push_back(event),
                Err(RecvTimeoutError::Timeout) => {}
                // Events pending when the user stops are still answered.
                Err(RecvTimeoutError::Disconnected) => {
                    is_open = false;
                    answer.map(|answer| wait_until(answer, 0, &AtomicBool::new(false)));
                }
            }
            let now = monotonic();
            let answer = pending.front().copied().filter(|(_, had)| had.saturating_add(after) <= now + PUNCTUAL);
            if let Some((cause, had)) = answer {
                pending.pop_front();
                wait_until(had.saturating_add(after), 0, &AtomicBool::new(false));
                self.change(true);
                let (sending, sent) = self.send(FIRST)?;
                reset = is_boolean.then(|| sent.saturating_add(HOLD));
                next = sent.saturating_add(FIRST);
                self.responses.count += 1;
                if self.responses.all.len() < KEPT {
                    let effect = self.key();
                    self.responses.all.push(Response { cause, effect, had, sending, sent });
                }
                continue;
            }
            if reset.is_some_and(|reset| reset <= now) {
                (reset, next) = (None, now);
                self.change(false);
            }
            if next <= now {
                let pause = FIRST.saturating_mul(1 << self.state.repetition.min(30)).min(LONGEST);
                let (_, sent) = self.send(pause)?;
                next = sent.saturating_add(pause);
            }
        }
        Ok(())
    }

    /// Key of the first message of the state.
    fn key(&self) -> u32 {
        let first = State { repetition: 0, ..self.state };
        let message = self.frame_of(first, FIRST).unwrap_or_default();
        Matcher::read(&message).ok().and_then(|(_, found)| Some(found.first()?.key)).unwrap_or_default()
    }

    /// Begins a new state.
    fn change(&mut self, value: bool) {
        self.state = State { number: self.state.number.wrapping_add(1), repetition: 0, began: realtime(), value };
    }

    /// Sends the next message of the state; returns the times just before and after the system call.
    fn send(&mut self, next: Ns) -> Result<(Ns, Ns), DeviceError> {
        // Cannot fail: the same message was built before the thread started.
        let frame = self.frame(next).unwrap_or_default();
        let sending = monotonic();
        let sent = self.socket.send(&[IoSlice::new(&frame)])?;
        let times = (sending, monotonic());
        self.responses.refused += u64::from(sent.refused);
        self.state.repetition = self.state.repetition.wrapping_add(1);
        Ok(times)
    }
}
