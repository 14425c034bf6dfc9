//! An in-memory wire between an emitter and a reflector. It applies the faults of real wires, kernels and NICs to
//! messages and stamps, and counts them.

use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_ping::transport::{Arrived, Got, Sent, SentStamp, Transport, Wait};
use latpath_ping::wire::{Header, Kind};
use latpath_ping::Stamp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The NICs' shared clock minus `CLOCK_MONOTONIC`, ns.
pub const PHC_AHEAD: Ns = 37_000_000_000;
/// Maximum duration of a run, ns; calls after this time fail.
const LONGEST: Ns = 30_000_000_000;

/// Fate of a message.
pub enum Fate {
    /// It arrives.
    Comes,
    /// It is lost.
    Lost,
    /// It arrives twice.
    Twice,
    /// It arrives after the next message.
    Overtaken,
    /// It is held until [`Wire::release`].
    Held,
    /// It arrives, followed by these bytes.
    And(Vec<u8>),
    /// The sender's kernel refuses it.
    Refused,
    /// It is too long.
    TooLong,
}

/// Fate of a stamp on a sent message.
pub enum StampFate {
    /// It arrives.
    Comes,
    /// It never arrives.
    Never,
    /// It arrives after this number of further messages.
    After(u64),
    /// It arrives twice, the second one with a later time.
    Twice,
    /// It arrives with this time.
    Is(Ns),
    /// It arrives after stamps of messages that were never sent.
    AndUnknown,
}

/// Decides the fate of messages in one direction.
pub type OnMessage = Box<dyn FnMut(&mut Vec<u8>) -> Fate + Send>;
/// Decides the fate of the stamps of sent probes or answers.
pub type OnStamp = Box<dyn FnMut(Stamp, &Header) -> StampFate + Send>;

/// Error of a call to the transport.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// The run exceeded [`LONGEST`].
    #[error("the run did not end by itself")]
    TooLong,
    /// The device vanished, or the process was killed.
    #[error("gone")]
    Gone,
    /// The message is too long.
    #[error("it does not fit")]
    Message,
}

/// The wire's counts.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Number of probes accepted from the emitter.
    pub probes: u64,
    /// Number of probes that the emitter's kernel refused.
    pub refused: u64,
    /// Number of answers that the reflector's kernel refused.
    pub answers_refused: u64,
    /// Sequence numbers of the probes that the reflector received, in order.
    pub there: Vec<u64>,
    /// Sequence numbers of the answers that the emitter received, in order.
    pub back: Vec<u64>,
    /// Number of foreign messages that the reflector received.
    pub foreign_there: u64,
    /// Number of foreign messages that the emitter received.
    pub foreign_back: u64,
    /// Number of messages lost; the three fields below count those duplicated, overtaken and held.
    pub lost: u64,
    pub twice: u64,
    pub overtaken: u64,
    pub held: u64,
    /// Number of the emitter's hellos; `waits_ended` counts its waits that ended because of a stamp in the error queue.
    pub hellos: u64,
    pub waits_ended: u64,
    /// The reflector's messages to peers other than the emitter.
    pub to_others: Vec<(u32, Vec<u8>)>,
}

struct Message {
    from: u32,
    bytes: Vec<u8>,
    /// Time of arrival, `CLOCK_MONOTONIC`, ns; `nic` is the NIC's stamp.
    came: Ns,
    nic: Ns,
}

#[derive(Default)]
struct Direction {
    fate: Option<OnMessage>,
    queue: VecDeque<Message>,
    overtaken: Option<Message>,
    held: Vec<Message>,
}

#[derive(Default)]
struct State {
    there: Direction,
    back: Direction,
    ledger: Ledger,
    /// Whether there is no reflector at its end.
    dead: bool,
    /// Whether the emitter then receives the report of a closed port.
    says_nobody_there: bool,
    nobody_there: bool,
    /// Number of probes after which the reflector dies.
    lives_for: Option<u64>,
    emitters_device_gone: bool,
}

/// An in-memory wire: see the module.
pub struct Wire {
    state: Mutex<State>,
    moved: Condvar,
    until: Ns,
    /// Sum of the changes to the NICs' clock, ns.
    pub phc_set: Arc<AtomicI64>,
}

/// `CLOCK_REALTIME`, ns.
pub fn realtime() -> Ns {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_nanos() as Ns
}

/// `CLOCK_REALTIME` at a time of `CLOCK_MONOTONIC`.
pub fn realtime_at(at: Ns) -> Ns {
    realtime() - (monotonic() - at)
}

impl Wire {
    /// Creates a wire without faults.
    pub fn new() -> Arc<Self> {
        let until = monotonic() + LONGEST;
        Arc::new(Self { state: Mutex::default(), moved: Condvar::new(), until, phc_set: Arc::default() })
    }

    /// The NICs' clock at a time of `CLOCK_MONOTONIC`.
    pub fn phc(&self, monotonic: Ns) -> Ns {
        monotonic + PHC_AHEAD + self.phc_set.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets the fate of the emitter's messages.
    pub fn there(&self, fate: impl FnMut(&mut Vec<u8>) -> Fate + Send + 'static) {
        self.state().there.fate = Some(Box::new(fate));
    }

    /// Sets the fate of the reflector's messages.
    pub fn back(&self, fate: impl FnMut(&mut Vec<u8>) -> Fate + Send + 'static) {
        self.state().back.fate = Some(Box::new(fate));
    }

    /// Delivers the messages that are held.
    pub fn release(&self) {
        let state = &mut *self.state();
        state.there.queue.extend(state.there.held.drain(..));
        state.back.queue.extend(state.back.held.drain(..));
        self.moved.notify_all();
    }

    /// Lets the reflector die after this number of probes.
    pub fn reflector_lives_for(&self, probes: u64, says_nobody_there: bool) {
        let mut state = self.state();
        (state.lives_for, state.dead) = (Some(probes), probes == 0);
        state.says_nobody_there = says_nobody_there;
    }

    /// Starts another reflector.
    pub fn revive(&self) {
        let mut state = self.state();
        (state.dead, state.lives_for) = (false, None);
    }

    /// Removes the emitter's device.
    pub fn take_device_away(&self) {
        self.state().emitters_device_gone = true;
        self.moved.notify_all();
    }

    /// Sends bytes to the reflector from a peer other than the emitter.
    pub fn another_says(&self, from: u32, bytes: &[u8]) {
        let came = monotonic();
        self.state().there.queue.push_back(Message { from, bytes: bytes.to_vec(), came, nic: self.phc(came) });
        self.moved.notify_all();
    }

    /// The counts so far.
    pub fn ledger(&self) -> Ledger {
        self.state().ledger.clone()
    }

    fn send(&self, towards_reflector: bool, message: &[u8]) -> Result<Sent, WireError> {
        let state = &mut *self.state();
        let kind = Header::read(message).map(|h| h.kind);
        let (direction, ledger) = match towards_reflector {
            true => (&mut state.there, &mut state.ledger),
            false => (&mut state.back, &mut state.ledger),
        };
        let mut bytes = message.to_vec();
        let fate = direction.fate.as_mut().map_or(Fate::Comes, |fate| fate(&mut bytes));
        if matches!(fate, Fate::Refused) {
            ledger.refused += u64::from(kind == Some(Kind::Probe));
            ledger.answers_refused += u64::from(kind == Some(Kind::Answer));
            return Ok(Sent::Refused);
        }
        if matches!(fate, Fate::TooLong) {
            return Err(WireError::Message);
        }
        ledger.probes += u64::from(kind == Some(Kind::Probe) && towards_reflector);
        if towards_reflector && state.dead {
            state.nobody_there = state.says_nobody_there;
            self.moved.notify_all();
            return Ok(Sent::Taken);
        }
        let came = monotonic();
        let message = |bytes: Vec<u8>| Message { from: 0, bytes, came, nic: self.phc(came) };
        let before = direction.overtaken.take();
        match fate {
            Fate::Comes | Fate::Refused | Fate::TooLong => direction.queue.push_back(message(bytes)),
            Fate::Lost => ledger.lost += 1,
            Fate::Twice => {
                ledger.twice += 1;
                direction.queue.extend([message(bytes.clone()), message(bytes)]);
            }
            Fate::Overtaken => {
                ledger.overtaken += 1;
                direction.overtaken = Some(message(bytes));
            }
            Fate::Held => {
                ledger.held += 1;
                direction.held.push(message(bytes));
            }
            Fate::And(more) => direction.queue.extend([message(bytes), message(more)]),
        }
        direction.queue.extend(before);
        self.moved.notify_all();
        Ok(Sent::Taken)
    }

    /// Receives the next message for one end, waiting as a socket would.
    fn receive(&self, at_reflector: bool, buffer: &mut [u8], wait: Wait) -> Result<Got<u32>, WireError> {
        let begun = monotonic();
        if begun > self.until {
            return Err(WireError::TooLong);
        }
        let until = match wait {
            Wait::No => begun,
            Wait::Some => begun + 5_000_000,
            Wait::Until(deadline) => deadline,
        };
        let mut state = self.state();
        loop {
            let gone = if at_reflector { state.dead } else { state.emitters_device_gone };
            if gone {
                return Err(WireError::Gone);
            }
            let direction = if at_reflector { &mut state.there } else { &mut state.back };
            if let Some(message) = direction.queue.pop_front() {
                let len = message.bytes.len().min(buffer.len());
                buffer[..len].copy_from_slice(&message.bytes[..len]);
                state.delivered(at_reflector, &message);
                let (kernel, nic) = (Some(realtime_at(message.came)), Some(message.nic));
                return Ok(Got::Message(Arrived { from: message.from, len, kernel, nic }));
            }
            if !at_reflector && std::mem::take(&mut state.nobody_there) {
                return Ok(Got::NobodyThere);
            }
            let left = until - monotonic();
            if left <= 0 {
                return Ok(Got::Nothing);
            }
            let left = Duration::from_nanos(left as u64);
            state = self.moved.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

impl State {
    fn delivered(&mut self, at_reflector: bool, message: &Message) {
        let header = Header::read(&message.bytes);
        let ledger = &mut self.ledger;
        match (at_reflector, header) {
            (true, Some(h)) if h.kind == Kind::Probe && message.from == 0 => {
                ledger.there.push(h.sequence);
                // After `lives_for` probes, the process dies, and the messages waiting for it are lost.
                self.dead = self.lives_for.is_some_and(|n| ledger.there.len() as u64 >= n);
                if self.dead {
                    self.there.queue.clear();
                }
            }
            (false, Some(h)) if h.kind == Kind::Answer => ledger.back.push(h.sequence),
            (true, None) => ledger.foreign_there += 1,
            (false, None) => ledger.foreign_back += 1,
            _ => {}
        }
    }
}

/// One end of the wire, with its kernel and NIC.
pub struct End {
    wire: Arc<Wire>,
    is_reflector: bool,
    takes: u16,
    fate: Option<OnStamp>,
    /// Pending stamps; each arrives once this end has sent the given number of messages in total.
    coming: Vec<(u64, Vec<u8>, Stamp, Ns)>,
    sent: u64,
}

/// All stamps that a transport can take.
pub const ALL: [Stamp; 5] = [Stamp::T1Sched, Stamp::T1Driver, Stamp::T1Nic, Stamp::T4Nic, Stamp::T4Kernel];

impl End {
    /// Creates the emitter's or the reflector's end, which takes these stamps.
    pub fn new(wire: &Arc<Wire>, is_reflector: bool, takes: &[Stamp], fate: Option<OnStamp>) -> Self {
        let takes = takes.iter().fold(0, |mask, s| mask | s.bit());
        Self { wire: Arc::clone(wire), is_reflector, takes, fate, coming: Vec::new(), sent: 0 }
    }

    fn stamp(&mut self, message: &[u8], header: &Header, stamp: Stamp) {
        let now = if stamp == Stamp::T1Nic { self.wire.phc(monotonic()) } else { realtime() };
        let fate = self.fate.as_mut().map_or(StampFate::Comes, |fate| fate(stamp, header));
        let mut comes = |after, bytes: &[u8], time| self.coming.push((self.sent + after, bytes.to_vec(), stamp, time));
        match fate {
            StampFate::Never => {}
            StampFate::Comes => comes(0, message, now),
            StampFate::After(n) => comes(n, message, now),
            StampFate::Is(time) => comes(0, message, time),
            StampFate::Twice => {
                comes(0, message, now);
                comes(0, message, now + 1_000_000);
            }
            StampFate::AndUnknown => {
                let mut unknown = message.to_vec();
                Header { sequence: header.sequence + 1_000_000, ..*header }.write(&mut unknown);
                comes(0, &unknown, now);
                Header { session: header.session ^ 1, ..*header }.write(&mut unknown);
                comes(0, &unknown, now);
                comes(0, b"nothing that was ever sent", now);
                comes(0, message, now);
            }
        }
    }
}

impl Transport for End {
    /// 0 is the opposite end: the emitter or the reflector.
    type Peer = u32;
    type Error = WireError;

    /// Peers from 65536 on consist of a host (upper 16 bits) and a port.
    fn are_of_one_host(a: &u32, b: &u32) -> bool {
        a == b || (a >> 16 == b >> 16 && a >> 16 > 0)
    }

    fn send(&mut self, to: u32, message: &[u8]) -> Result<Sent, WireError> {
        if to != 0 {
            self.wire.state().ledger.to_others.push((to, message.to_vec()));
            return Ok(Sent::Taken);
        }
        // The stamps exist before the message arrives; otherwise, an answer might be faster than the stamp.
        self.sent += 1;
        if let Some(header) = Header::read(message).filter(|h| matches!(h.kind, Kind::Probe | Kind::Answer)) {
            let takes = self.takes;
            for stamp in ALL.into_iter().take(3).filter(|s| s.bit() & takes != 0) {
                self.stamp(message, &header, stamp);
            }
        }
        // A socket stamps all sent messages, including hellos.
        if !self.is_reflector && Header::read(message).is_some_and(|h| h.kind == Kind::Hello) {
            self.wire.state().ledger.hellos += 1;
            for stamp in ALL.into_iter().take(3).filter(|s| s.bit() & self.takes != 0) {
                self.coming.push((self.sent, message.to_vec(), stamp, realtime()));
            }
        }
        let state = self.wire.state();
        let gone = if self.is_reflector { state.dead } else { state.emitters_device_gone };
        drop(state);
        if gone {
            return Err(WireError::Gone);
        }
        self.wire.send(!self.is_reflector, message)
    }

    fn is_of_message(error: &WireError) -> bool {
        *error == WireError::Message
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<u32>, WireError> {
        let takes = |s: Stamp| self.takes & s.bit() != 0;
        // Like ppoll, which also returns if there is a stamp in the error queue.
        let is_stamped = self.coming.iter().any(|(when, ..)| *when <= self.sent);
        let wait = match wait {
            Wait::Until(_) if is_stamped => {
                self.wire.state().ledger.waits_ended += u64::from(!self.is_reflector);
                Wait::No
            }
            wait => wait,
        };
        let got = self.wire.receive(self.is_reflector, buffer, wait)?;
        let Got::Message(a) = got else { return Ok(got) };
        let kernel = a.kernel.filter(|_| takes(Stamp::T4Kernel));
        Ok(Got::Message(Arrived { kernel, nic: a.nic.filter(|_| takes(Stamp::T4Nic)), ..a }))
    }

    fn left(&mut self, each: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), WireError> {
        let sent = self.sent;
        self.coming.retain(|(when, message, stamp, time)| {
            if *when <= sent {
                each(SentStamp { message, stamp: *stamp, time: *time });
            }
            *when > sent
        });
        Ok(())
    }

    fn takes(&self) -> u16 {
        self.takes
    }

    fn dropped(&self) -> u64 {
        0
    }
}
