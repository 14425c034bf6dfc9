//! The emitter: sends probes, takes answers, closes transactions.

mod closing;
mod hello;

use self::hello::Hello;
use crate::clocks::Clocks;
use crate::table::{Counts, End, MatchResult, Table};
use crate::timeline::{Relation, Timeline};
use crate::transaction::{Stamp, Stamps, Transaction};
use crate::transport::{at_reflector, Arrived, Got, Sent, Transport, Wait};
use crate::wire::{self, Answer, Header, Kind, ReflectorCounters, Welcome, AFTERWARDS, CONTROL, HEADER};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_traffic::Pace;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Looks for a message between two looks at the clock.
const SPINS: u32 = 64;
/// Rest after the kernel refused a message.
const REFUSED_REST: Duration = Duration::from_millis(1);
/// Longest message.
pub const LONGEST: usize = 65_507;

/// When probes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Each when the answer to the one before has come, or is lost.
    AsAnswersCome,
    /// By absolute deadlines, whatever comes back.
    Every(Pace),
    /// As fast as the kernel takes them, whatever comes back.
    Flood,
}

/// What to send, for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of the session, chosen at random.
    pub session: u32,
    /// Bytes of a message, at least [`HEADER`].
    pub size: usize,
    pub pacing: Pacing,
    /// Look for answers without ever sleeping.
    pub spin: bool,
    /// Probes before the first that counts.
    pub warm_up: u64,
    pub count: Option<u64>,
    /// How long probes that count are sent.
    pub duration: Option<Ns>,
    /// A probe without an answer for so long is lost.
    pub lost_after: Ns,
    /// Without any answer for so long, the other end is dead.
    pub timeout: Ns,
    /// The ends' PHCs show the same time, within this.
    pub together: Option<Ns>,
    /// A round trip over this is a breach.
    pub threshold: Option<Ns>,
    /// The first breach ends the run.
    pub stop_on_breach: bool,
}

/// Is called as things happen, in the thread that measures.
pub trait Observer {
    /// A transaction has all that will ever be known of it.
    fn closed(&mut self, transaction: &Transaction, end: End);
    /// A round trip was over the threshold: reported at once, while the reflector's last stamps are still under way.
    fn breach(&mut self, transaction: &Transaction);
    /// The line of stamps is known: those that both ends take.
    fn route(&mut self, taken: u16);
    /// Between two probes, every now and then.
    fn tick(&mut self, _counts: &Counts) {}
    /// The probes so far were the warm-up: nothing of them counts.
    fn warm(&mut self) {}
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// As many probes as were asked for, or as long.
    Done,
    /// The user ended it.
    Stopped,
    /// A round trip was over the threshold.
    Breach,
    /// No answer for as long as the plan says.
    Dead,
    /// Nobody answered the first hello. The other end's kernel said that nobody listens.
    NobodyListens,
    /// Nobody answered the first hello.
    NobodyAnswers,
    /// The other end speaks this version of the format.
    OtherVersion(u8),
}

impl Why {
    pub fn key(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Breach => "breach",
            Self::Dead => "dead",
            Self::NobodyListens => "nobody_listens",
            Self::NobodyAnswers => "nobody_answers",
            Self::OtherVersion(_) => "other_version",
        }
    }
}

/// What a run was, whatever ended it.
pub struct Ended {
    pub why: Result<Why, String>,
    /// The emitter's counts.
    pub counts: Counts,
    /// The reflector's, of the same probes; `None` where it did not live to report.
    pub seen: Option<ReflectorCounters>,
    /// Times that the reflector was restarted during the run.
    pub restarts: u64,
    /// The reflector as it said last.
    pub welcome: Option<Welcome>,
    pub timeline: Timeline,
    /// When the first probe that counts was due, `CLOCK_MONOTONIC`; 0 where none was.
    pub started: Ns,
    /// From then to the end.
    pub elapsed: Ns,
    /// Disturbances of this machine's clocks that the timeline knows of: [`Clocks::disturbances_since`] goes on from here.
    pub clocks_seen: u64,
    /// Answers that the kernel dropped here.
    pub dropped: u64,
    /// Why the kernel refused a probe last.
    pub refusal: Option<std::io::Error>,
}

pub fn emit<T: Transport, O: Observer>(
    transport: &mut T,
    peer: T::Peer,
    plan: &Plan,
    clocks: &Clocks,
    observer: &mut O,
    stop: &AtomicBool,
) -> Ended {
    // As many probes as can be under way before the first of them is lost.
    let room = match plan.pacing {
        Pacing::Every(pace) => (pace.hz() * plan.lost_after as f64 / 1e9) as usize + 1024,
        _ => 1 << 16,
    };
    let size = plan.size.clamp(HEADER, LONGEST);
    let mut emitter = Emitter {
        peer,
        plan,
        clocks,
        observer,
        stop,
        table: Table::new(room.min(1 << 17), Stamp::T4App.bit()),
        timeline: Timeline::new(Relation::Estimated),
        message: vec![0; size],
        buffer: vec![0; size.max(CONTROL) + 1],
        welcome: None,
        baseline: ReflectorCounters::default(),
        reflector_is_done: false,
        restarts: 0,
        first: 0,
        hello: Hello::default(),
        settling: false,
        started: 0,
        last_heard: 0,
        asked_since: None,
        unanswered: 0,
        unanswered_since: 0,
        last_event: 0,
        breached: false,
        nobody_there: None,
        other_version: None,
        clocks_seen: 0,
        dropped_before: transport.dropped(),
        latest: 0,
        held: VecDeque::new(),
        readings_seen: 0,
        transport,
    };
    let why = emitter.run();
    emitter.ended(why)
}

struct Emitter<'a, T: Transport, O> {
    transport: &'a mut T,
    peer: T::Peer,
    plan: &'a Plan,
    clocks: &'a Clocks,
    observer: &'a mut O,
    stop: &'a AtomicBool,
    table: Table,
    timeline: Timeline,
    message: Vec<u8>,
    buffer: Vec<u8>,
    welcome: Option<Welcome>,
    /// What the reflector had seen before the first probe that counts.
    baseline: ReflectorCounters,
    /// The reflector has said what it saw of all these probes.
    reflector_is_done: bool,
    restarts: u64,
    /// The first probe that counts.
    first: u64,
    hello: Hello,
    /// Everything is sent: the user's wish to stop is fulfilled, and what is waited for now is waited for in any case.
    settling: bool,
    started: Ns,
    last_heard: Ns,
    /// When the first message was sent of those since anything was heard.
    asked_since: Option<Ns>,
    /// Probes since the last answer, and when the first of them was sent.
    unanswered: u64,
    unanswered_since: Ns,
    last_event: Ns,
    breached: bool,
    /// The hello after which the other end's kernel said that nobody listens there.
    nobody_there: Option<u64>,
    other_version: Option<u8>,
    clocks_seen: u64,
    dropped_before: u64,
    latest: Ns,
    /// Closed, and waiting for their place on the timeline.
    held: VecDeque<(Transaction, End)>,
    readings_seen: u64,
}

/// What ends an emitter's steps early.
enum Halt<E> {
    Why(Why),
    Failed(E),
}

impl<E> From<E> for Halt<E> {
    fn from(e: E) -> Self {
        Self::Failed(e)
    }
}

type Step<T> = Result<(), Halt<<T as Transport>::Error>>;

impl<T: Transport, O: Observer> Emitter<'_, T, O> {
    fn ended(self, why: Result<Why, T::Error>) -> Ended {
        // What it said before the last probe, or has forgotten, is not what it saw of these.
        let last = self.welcome.as_ref().filter(|_| self.reflector_is_done && self.restarts == 0);
        let seen = last.map(|w| difference(&w.seen, &self.baseline));
        Ended {
            why: why.map_err(|e| e.to_string()),
            counts: self.table.counts,
            seen,
            restarts: self.restarts,
            welcome: self.welcome,
            elapsed: if self.started == 0 { 0 } else { self.last_event - self.started },
            timeline: self.timeline,
            started: self.started,
            clocks_seen: self.clocks_seen,
            dropped: self.transport.dropped() - self.dropped_before,
            refusal: self.transport.last_refusal(),
        }
    }

    fn run(&mut self) -> Result<Why, T::Error> {
        let halted = self.greet().and_then(|()| self.warm_up()).and_then(|()| self.measure());
        let why = match halted {
            Ok(()) => Ok(Why::Done),
            Err(Halt::Why(why)) => Ok(why),
            Err(Halt::Failed(e)) => Err(e),
        };
        self.last_event = monotonic();
        let settled = match why {
            Ok(Why::NobodyListens | Why::NobodyAnswers | Why::OtherVersion(_)) | Err(_) => Ok(()),
            // Nobody was found whom to ask.
            Ok(_) if self.welcome.is_none() => Ok(()),
            // Nobody is there to report more.
            Ok(Why::Dead) => {
                self.close_all();
                Ok(())
            }
            Ok(_) => self.settle(),
        };
        self.close_all();
        match (why, settled) {
            (Ok(_), Err(Halt::Failed(e))) => Err(e),
            (why, _) => why,
        }
    }

    fn warm_up(&mut self) -> Step<T> {
        if self.plan.warm_up > 0 {
            self.send_many(Some(self.plan.warm_up), None)?;
            self.settle()?;
            self.table.counts = Counts::default();
            self.observer.warm();
        }
        (self.reflector_is_done, self.restarts, self.first) = (false, 0, self.table.next);
        self.baseline = self.welcome.as_ref().map(|w| w.seen).unwrap_or_default();
        self.dropped_before = self.transport.dropped();
        Ok(())
    }

    fn measure(&mut self) -> Step<T> {
        self.started = monotonic();
        let until = self.plan.duration.map(|d| self.started.saturating_add(d));
        self.send_many(self.plan.count, until)
    }

    /// Sends so many probes, or until then, and takes what comes back.
    fn send_many(&mut self, count: Option<u64>, until: Option<Ns>) -> Step<T> {
        let first = self.table.next;
        let last = count.map(|n| first + n);
        let refused = self.table.counts.refused;
        let begun = monotonic();
        self.heard(begun);
        loop {
            let now = monotonic();
            if last.is_some_and(|last| self.table.next >= last) || until.is_some_and(|until| now >= until) {
                return Ok(());
            }
            self.do_housekeeping(now)?;
            match self.plan.pacing {
                Pacing::AsAnswersCome => self.one_by_one()?,
                Pacing::Every(pace) => {
                    // A probe that the kernel refused has had its turn.
                    let refused = self.table.counts.refused - refused;
                    let due = begun + pace.due(self.table.next - first + refused);
                    self.on_time(now, due.min(until.unwrap_or(Ns::MAX)), due)?;
                }
                Pacing::Flood => self.on_time(now, now, now)?,
            }
        }
    }

    /// Sends a probe and waits for its answer.
    fn one_by_one(&mut self) -> Step<T> {
        self.make_room();
        let Some(t1) = self.send_probe()? else {
            std::thread::sleep(REFUSED_REST);
            self.close(monotonic() - self.plan.lost_after);
            return Ok(());
        };
        let give_up = t1 + self.plan.lost_after;
        let answered = self.table.counts.answered;
        let mut spins = 0;
        loop {
            if self.take(if self.plan.spin { Wait::No } else { Wait::Some })? {
                if self.table.counts.answered != answered {
                    break;
                }
                continue;
            }
            spins += 1;
            if !self.plan.spin || spins % SPINS == 0 {
                let now = monotonic();
                if now >= give_up || self.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        self.take_stamps()?;
        self.close(self.latest.max(t1) - self.plan.lost_after);
        Ok(())
    }

    /// Sends what is due, and takes what has come; sleeps until `wake` where there is neither.
    fn on_time(&mut self, now: Ns, wake: Ns, due: Ns) -> Step<T> {
        let mut idle = true;
        self.make_room();
        if now >= due && self.table.has_room() {
            idle = false;
            if self.send_probe()?.is_none() && self.plan.pacing == Pacing::Flood {
                idle = true;
            }
        }
        for _ in 0..SPINS {
            if !self.take(Wait::No)? {
                break;
            }
            idle = false;
        }
        self.take_stamps()?;
        let now = monotonic();
        self.close(now - self.plan.lost_after);
        if idle && !self.plan.spin {
            let latest = now + 50_000_000;
            let until = if wake > now { wake.min(latest) } else { now + REFUSED_REST.as_nanos() as Ns };
            self.take(Wait::Until(until.min(self.hello.next.max(now))))?;
        }
        Ok(())
    }

    /// Sends the next probe; its T1, or nothing where the kernel refused it.
    #[inline]
    fn send_probe(&mut self) -> Result<Option<Ns>, T::Error> {
        let sequence = self.table.next;
        let t1 = monotonic();
        let header = Header { kind: Kind::Probe, session: self.plan.session, sequence, first: t1, second: 0 };
        header.write(&mut self.message);
        if self.unanswered == 0 {
            self.unanswered_since = t1;
        }
        self.unanswered += 1;
        self.asked_since.get_or_insert(t1);
        match self.transport.send(self.peer, &self.message)? {
            Sent::Taken => {
                self.table.sent(t1);
                Ok(Some(t1))
            }
            Sent::Refused => {
                self.table.counts.refused += 1;
                Ok(None)
            }
        }
    }

    /// Takes one message, if one comes within the wait. Says whether one came.
    #[inline]
    fn take(&mut self, wait: Wait) -> Result<bool, T::Error> {
        match self.transport.receive(&mut self.buffer, wait)? {
            Got::Message(arrived) => {
                let t4 = monotonic();
                self.message_came(&arrived, t4);
                Ok(true)
            }
            Got::Nothing => Ok(false),
            Got::NobodyThere => {
                self.nobody_there = Some(self.hello.number);
                Ok(false)
            }
        }
    }

    #[inline]
    fn message_came(&mut self, arrived: &Arrived<T::Peer>, t4: Ns) {
        let bytes = &self.buffer[..arrived.len.min(self.buffer.len())];
        let header = Header::read(bytes).filter(|h| h.session == self.plan.session && arrived.from == self.peer);
        match header {
            // To a probe of the warm-up, of which nothing counts.
            Some(h) if h.kind == Kind::Answer && h.sequence < self.first => self.heard(t4),
            Some(h) if h.kind == Kind::Answer && bytes.len() == self.message.len() => {
                let (answer, clock) = (Answer::read(bytes), self.transport.kernel_clock());
                let mut came = Stamps::default();
                came.set(Stamp::T2App, h.first);
                came.set(Stamp::T3App, h.second);
                came.set(Stamp::T4App, t4);
                came.set_if(Stamp::T4Kernel, arrived.kernel.map(|k| self.clocks.of_kernel(clock, k)));
                came.set_if(Stamp::T4Nic, arrived.nic);
                answer.note(&mut came);
                let result = self.table.answer(h.sequence, &came);
                if result != MatchResult::Foreign {
                    self.unanswered = 0;
                    self.heard(t4);
                    self.latest = t4;
                }
                if result == MatchResult::Expected {
                    self.judge(h.sequence);
                }
                self.afterwards(answer.afterwards);
            }
            Some(h) if h.kind == Kind::Welcome && bytes.len() >= CONTROL => self.welcomed(&h, t4),
            _ => {
                self.other_version = wire::other_version(bytes).or(self.other_version);
                self.table.counts.foreign += 1;
            }
        }
    }

    /// Reports a breach at once.
    #[inline]
    fn judge(&mut self, sequence: u64) {
        let Some(threshold) = self.plan.threshold else { return };
        // Nothing of the warm-up counts, and of one breach that stops the run no second one comes.
        if self.started == 0 || (self.breached && self.plan.stop_on_breach) {
            return;
        }
        let Some(t) = self.table.peek(sequence) else { return };
        if t.round_trip().is_some_and(|rtt| rtt > threshold) {
            self.breached = true;
            // Its own stamps are mostly there by now; if reading them fails, the next look says so.
            let _ = self.take_stamps();
            let Some(mut t) = self.table.peek(sequence) else { return };
            self.timeline.map_now(&mut t);
            self.observer.breach(&t);
            let header = Header { kind: Kind::Breach, session: self.plan.session, sequence, first: 0, second: 0 };
            let mut message = [0; HEADER];
            header.write(&mut message);
            // It is a courtesy: the run's result does not depend on it.
            let _ = self.transport.send(self.peer, &message);
        }
    }

    fn afterwards(&mut self, afterwards: Option<wire::Afterwards>) {
        if let Some(a) = afterwards {
            for (stamp, time) in AFTERWARDS.into_iter().zip(a.stamps) {
                if let Some(time) = time {
                    self.table.stamp(a.sequence, stamp, time);
                }
            }
        }
    }

    /// Stamps of probes that left.
    #[inline]
    fn take_stamps(&mut self) -> Result<(), T::Error> {
        if self.transport.takes() & !(Stamp::T4Nic.bit() | Stamp::T4Kernel.bit()) == 0 {
            return Ok(());
        }
        let (table, clocks, session) = (&mut self.table, self.clocks, self.plan.session);
        self.transport.left(&mut |left| {
            let header = Header::read(left.message).filter(|h| h.kind == Kind::Probe && h.session == session);
            if let Some(h) = header {
                let time = clocks.of_left(&left);
                table.stamp(h.sequence, left.stamp, time);
            }
        })
    }
}

fn difference(now: &ReflectorCounters, before: &ReflectorCounters) -> ReflectorCounters {
    let d = u64::saturating_sub;
    ReflectorCounters {
        received: d(now.received, before.received),
        duplicates: d(now.duplicates, before.duplicates),
        reordered: d(now.reordered, before.reordered),
        refused: d(now.refused, before.refused),
        foreign: d(now.foreign, before.foreign),
        dropped: d(now.dropped, before.dropped),
    }
}

/// Stamps that a reflector takes, where its transport takes these.
pub fn reflectors(takes: u16) -> u16 {
    let app = Stamp::T2App.bit() | Stamp::T3App.bit();
    Stamp::ALL.into_iter().filter(|s| s.bit() & takes != 0).fold(app, |mask, s| mask | at_reflector(s).bit())
}
