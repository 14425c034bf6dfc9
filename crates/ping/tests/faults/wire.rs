//! A wire in memory between an emitter and a reflector, which does to messages and stamps what real wires, kernels and NICs do,
//! and keeps count of it.

use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_ping::transport::{Arrived, Got, Left, Sent, Transport, Wait};
use latpath_ping::wire::{Header, Kind};
use latpath_ping::Stamp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The NICs' clock, which both share, is ahead of `CLOCK_MONOTONIC` by this.
pub const PHC_AHEAD: Ns = 37_000_000_000;
/// A run that takes longer does not end by itself: every call then fails.
const LONGEST: Ns = 30_000_000_000;

/// What becomes of a message.
pub enum Fate {
    /// It arrives.
    Comes,
    /// It does not.
    Lost,
    /// It arrives, and once more.
    Twice,
    /// The next one arrives first.
    Overtaken,
    /// It waits until [`Wire::release`].
    Held,
    /// It arrives, and these bytes as well.
    And(Vec<u8>),
    /// The sender's kernel does not take it.
    Refused,
    /// It does not fit.
    TooLong,
}

/// What becomes of a stamp of a message that was sent.
pub enum StampFate {
    /// It comes.
    Comes,
    /// It does not.
    Never,
    /// It comes when so many more messages have been sent.
    After(u64),
    /// It comes, and once more with a later time.
    Twice,
    /// It comes with this time in its place.
    Is(Ns),
    /// It comes, and one of a message that was never sent.
    AndUnknown,
}

/// What happens to messages in one direction, and to what of them.
pub type OnMessage = Box<dyn FnMut(&mut Vec<u8>) -> Fate + Send>;
/// What happens to the stamps of probes or answers that leave.
pub type OnStamp = Box<dyn FnMut(Stamp, &Header) -> StampFate + Send>;

/// What fails a call of a transport.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// The run went on for too long.
    #[error("the run did not end by itself")]
    TooLong,
    /// The device vanished, or the process was killed.
    #[error("gone")]
    Gone,
    /// The message does not fit.
    #[error("it does not fit")]
    Message,
}

/// What went over the wire.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Probes that were taken from the emitter.
    pub probes: u64,
    /// Probes that were not.
    pub refused: u64,
    /// Answers that were not taken from the reflector.
    pub answers_refused: u64,
    /// Numbers of the probes that the reflector got, in order.
    pub there: Vec<u64>,
    /// Numbers of the answers that the emitter got, in order.
    pub back: Vec<u64>,
    /// Foreign messages that the reflector got.
    pub foreign_there: u64,
    /// Foreign messages that the emitter got.
    pub foreign_back: u64,
    /// Messages lost, come twice, overtaken, held.
    pub lost: u64,
    pub twice: u64,
    pub overtaken: u64,
    pub held: u64,
    /// The emitter's hellos, and its waits that a stamp in its socket's error queue ended.
    pub hellos: u64,
    pub waits_ended: u64,
    /// What the reflector said to others than the emitter.
    pub to_others: Vec<(u32, Vec<u8>)>,
}

struct Message {
    from: u32,
    bytes: Vec<u8>,
    /// When it came, `CLOCK_MONOTONIC`, and the NIC's stamp.
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
    /// Nobody listens at the reflector's end.
    dead: bool,
    /// The emitter hears of it.
    says_nobody_there: bool,
    nobody_there: bool,
    /// The reflector goes when it has got so many probes.
    lives_for: Option<u64>,
    emitters_device_gone: bool,
}

/// See the module's text.
pub struct Wire {
    state: Mutex<State>,
    moved: Condvar,
    until: Ns,
    /// The NICs' clock was set by this.
    pub phc_set: Arc<AtomicI64>,
}

/// `CLOCK_REALTIME`.
pub fn realtime() -> Ns {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_nanos() as Ns
}

/// `CLOCK_REALTIME` when `CLOCK_MONOTONIC` was this.
pub fn realtime_at(at: Ns) -> Ns {
    realtime() - (monotonic() - at)
}

impl Wire {
    /// Without a fault.
    pub fn new() -> Arc<Self> {
        let until = monotonic() + LONGEST;
        Arc::new(Self { state: Mutex::default(), moved: Condvar::new(), until, phc_set: Arc::default() })
    }

    /// What the NICs' clock shows at this moment of `CLOCK_MONOTONIC`.
    pub fn phc(&self, monotonic: Ns) -> Ns {
        monotonic + PHC_AHEAD + self.phc_set.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What happens to what the emitter sends.
    pub fn there(&self, fate: impl FnMut(&mut Vec<u8>) -> Fate + Send + 'static) {
        self.state().there.fate = Some(Box::new(fate));
    }

    /// What happens to what the reflector sends.
    pub fn back(&self, fate: impl FnMut(&mut Vec<u8>) -> Fate + Send + 'static) {
        self.state().back.fate = Some(Box::new(fate));
    }

    /// What was held arrives now.
    pub fn release(&self) {
        let state = &mut *self.state();
        state.there.queue.extend(state.there.held.drain(..));
        state.back.queue.extend(state.back.held.drain(..));
        self.moved.notify_all();
    }

    /// The reflector goes when it has got so many probes.
    pub fn reflector_lives_for(&self, probes: u64, says_nobody_there: bool) {
        let mut state = self.state();
        (state.lives_for, state.dead) = (Some(probes), probes == 0);
        state.says_nobody_there = says_nobody_there;
    }

    /// Another reflector is there.
    pub fn revive(&self) {
        let mut state = self.state();
        (state.dead, state.lives_for) = (false, None);
    }

    /// The emitter's device vanishes.
    pub fn take_device_away(&self) {
        self.state().emitters_device_gone = true;
        self.moved.notify_all();
    }

    /// Another than the emitter says this to the reflector.
    pub fn another_says(&self, from: u32, bytes: &[u8]) {
        let came = monotonic();
        self.state().there.queue.push_back(Message { from, bytes: bytes.to_vec(), came, nic: self.phc(came) });
        self.moved.notify_all();
    }

    /// What went over it so far.
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

    /// The next message for one end, as a socket would wait for it.
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
                // The process goes with this probe in its hands, and what waits for it is gone too.
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
    /// Stamps that come when so many messages have been sent.
    coming: Vec<(u64, Vec<u8>, Stamp, Ns)>,
    sent: u64,
}

/// All stamps that a transport can take.
pub const ALL: [Stamp; 5] = [Stamp::T1Sched, Stamp::T1Driver, Stamp::T1Nic, Stamp::T4Nic, Stamp::T4Kernel];

impl End {
    /// The emitter's or the reflector's end, with these stamps.
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
    /// 0 is the emitter, or the reflector.
    type Peer = u32;
    type Error = WireError;

    /// Those from 65536 on are ports of hosts.
    fn are_of_one_host(a: &u32, b: &u32) -> bool {
        a == b || (a >> 16 == b >> 16 && a >> 16 > 0)
    }

    fn send(&mut self, to: u32, message: &[u8]) -> Result<Sent, WireError> {
        if to != 0 {
            self.wire.state().ledger.to_others.push((to, message.to_vec()));
            return Ok(Sent::Taken);
        }
        // As the NIC does, before the message is there: an answer may otherwise be faster than the stamp.
        self.sent += 1;
        if let Some(header) = Header::read(message).filter(|h| matches!(h.kind, Kind::Probe | Kind::Answer)) {
            let takes = self.takes;
            for stamp in ALL.into_iter().take(3).filter(|s| s.bit() & takes != 0) {
                self.stamp(message, &header, stamp);
            }
        }
        // Sockets stamp all that they send.
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
        // As poll does, which looks at the error queue too.
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

    fn left(&mut self, each: &mut dyn FnMut(Left<'_>)) -> Result<(), WireError> {
        let sent = self.sent;
        self.coming.retain(|(when, message, stamp, time)| {
            if *when <= sent {
                each(Left { message, stamp: *stamp, time: *time });
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
