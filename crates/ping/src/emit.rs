//! The emitter: sends probes, receives answers, closes transactions.

mod closing;
mod hello;

use self::hello::Hello;
use crate::clocks::Clocks;
use crate::table::{Counts, End, MatchResult, Table};
use crate::timeline::{Relation, Timeline};
use crate::transaction::{Stamp, Stamps, Transaction};
use crate::transport::{at_reflector, Arrived, Got, Sent, Transport, Wait};
use crate::wire::{self, Answer, Header, Kind, ReflectorCounters, Welcome, CONTROL, HEADER, LATE_STAMPS};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_wire::Pace;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of polls for a message between two readings of the clock.
const SPINS: u32 = 64;
/// Pause after the kernel has refused a message.
const REFUSED_REST: Duration = Duration::from_millis(1);
/// Maximum length of a message, bytes.
pub const LONGEST: usize = 65_507;

/// How probes are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Each probe is sent after the answer to the previous one, or after its loss.
    AsAnswersCome,
    /// Probes are sent at absolute deadlines, regardless of answers.
    Every(Pace),
    /// Probes are sent as fast as the kernel accepts them, regardless of answers.
    Flood,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Session number, random.
    pub session: u32,
    /// Length of a message, bytes; at least [`HEADER`].
    pub size: usize,
    /// How the probes are paced.
    pub pacing: Pacing,
    /// Whether to poll for answers without sleeping.
    pub spin: bool,
    /// Number of warm-up probes, which do not count.
    pub warm_up: u64,
    /// Maximum number of probes, excluding the warm-up.
    pub count: Option<u64>,
    /// Maximum duration, excluding the warm-up, ns.
    pub duration: Option<Ns>,
    /// Time after which a probe without an answer is lost, ns.
    pub lost_after: Ns,
    /// Time without any answer after which the peer counts as dead, ns.
    pub timeout: Ns,
    /// Whether to relate the two ends' clocks by PTP if both follow the same grandmaster. [`Clocks::follow_ptp`] must
    /// have been called before the run.
    pub by_ptp: bool,
    /// Round trip above which there is a breach, ns.
    pub threshold: Option<Ns>,
    /// Whether the first breach ends the run.
    pub stop_on_breach: bool,
}

/// Callbacks of a run, in the measuring thread.
pub trait Observer {
    /// Called when a transaction is complete, or can receive no further stamps.
    fn closed(&mut self, transaction: &Transaction, end: End);
    /// Called when a round trip exceeds the threshold: immediately, before the reflector's last stamps arrive.
    fn breach(&mut self, transaction: &Transaction);
    /// Called when the stamps that both ends take are known.
    fn route(&mut self, taken: u16);
    /// Called periodically between probes.
    fn tick(&mut self, _counts: &Counts) {}
    /// Called when the warm-up has ended; earlier probes do not count.
    fn warm(&mut self) {}
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The requested number of probes, or the requested duration, was reached.
    Done,
    /// The user stopped the run.
    Stopped,
    /// A round trip exceeded the threshold.
    Breach,
    /// No answer within the plan's timeout.
    Dead,
    /// No answer to the first hello: the peer's kernel reported a closed port.
    NobodyListens,
    /// No answer to the first hello.
    NobodyAnswers,
    /// The peer uses this version of the format.
    OtherVersion(u8),
}

/// Result of a run.
pub struct Ended {
    /// Reason for the end, or the error.
    pub why: Result<EndReason, String>,
    /// The emitter's counts.
    pub counts: Counts,
    /// The reflector's counts for the same probes; `None` if it did not report them.
    pub seen: Option<ReflectorCounters>,
    /// Number of restarts of the reflector during the run.
    pub restarts: u64,
    /// The reflector's last welcome.
    pub welcome: Option<Welcome>,
    /// The relation of the reflector's clock to the emitter's.
    pub timeline: Timeline,
    /// Due time of the first probe after the warm-up, `CLOCK_MONOTONIC`, ns; 0 if there was none.
    pub started: Ns,
    /// Time from `started` to the end, ns.
    pub elapsed: Ns,
    /// Counter to pass to [`Clocks::disturbances_since`] to get the disturbances that the timeline does not contain
    /// yet.
    pub clocks_seen: u64,
    /// Number of answers dropped by the kernel.
    pub dropped: u64,
    /// Error of the last probe that the kernel refused.
    pub refusal: Option<std::io::Error>,
}

/// Sends probes to `peer` and passes the transactions to `observer`, until the run ends.
pub fn emit<T: Transport, O: Observer>(
    transport: &mut T,
    peer: T::Peer,
    plan: &Plan,
    clocks: &Clocks,
    observer: &mut O,
    stop: &AtomicBool,
) -> Ended {
    // Capacity: the maximum number of probes in flight before the first of them counts as lost, with a margin.
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
    /// The reflector's counters before the first probe that counts.
    baseline: ReflectorCounters,
    /// Whether the reflector's latest counts cover all probes.
    reflector_is_done: bool,
    restarts: u64,
    /// Sequence number of the first probe that counts.
    first: u64,
    hello: Hello,
    /// Whether all probes were sent and only pending messages are awaited. If so, the stop flag is ignored, because the
    /// remaining waits are bounded.
    settling: bool,
    started: Ns,
    last_heard: Ns,
    /// Send time of the earliest message since one was last received.
    asked_since: Option<Ns>,
    /// Number of probes sent since the last answer.
    unanswered: u64,
    unanswered_since: Ns,
    last_event: Ns,
    breached: bool,
    /// Number of the latest hello at the time when the peer's kernel reported a closed port.
    nobody_there: Option<u64>,
    other_version: Option<u8>,
    clocks_seen: u64,
    dropped_before: u64,
    latest: Ns,
    /// Closed transactions that wait for later readings of the NIC clocks.
    held: VecDeque<(Transaction, End)>,
    readings_seen: u64,
}

/// Why the emitter stops early.
enum Halt<E> {
    EndReason(EndReason),
    Failed(E),
}

impl<E> From<E> for Halt<E> {
    fn from(e: E) -> Self {
        Self::Failed(e)
    }
}

type Step<T> = Result<(), Halt<<T as Transport>::Error>>;

impl<T: Transport, O: Observer> Emitter<'_, T, O> {
    fn ended(self, why: Result<EndReason, T::Error>) -> Ended {
        // The reflector's counts are used only if they include the last probe and it has not restarted.
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

    fn run(&mut self) -> Result<EndReason, T::Error> {
        let halted = self.greet().and_then(|()| self.warm_up()).and_then(|()| self.measure());
        let why = match halted {
            Ok(()) => Ok(EndReason::Done),
            Err(Halt::EndReason(why)) => Ok(why),
            Err(Halt::Failed(e)) => Err(e),
        };
        self.last_event = monotonic();
        let settled = match why {
            Ok(EndReason::NobodyListens | EndReason::NobodyAnswers | EndReason::OtherVersion(_)) | Err(_) => Ok(()),
            // No reflector was found.
            Ok(_) if self.welcome.is_none() => Ok(()),
            // The reflector is gone and will report nothing more.
            Ok(EndReason::Dead) => {
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

    /// Sends `count` probes, or sends until `until`, and receives answers.
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
                    // Refused probes keep their place in the schedule.
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

    /// Sends due probes and receives answers; sleeps until `wake` if there is nothing to do.
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

    /// Sends the next probe; returns its T1, or `None` if the kernel refused it.
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

    /// Receives one message, if one arrives in time. Returns whether one arrived.
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
            // The answer to a warm-up probe.
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

    /// Reports a breach immediately.
    #[inline]
    fn judge(&mut self, sequence: u64) {
        let Some(threshold) = self.plan.threshold else { return };
        // The warm-up does not count; if a breach stops the run, only the first one is reported.
        if self.started == 0 || (self.breached && self.plan.stop_on_breach) {
            return;
        }
        let Some(t) = self.table.peek(sequence) else { return };
        if t.round_trip().is_some_and(|rtt| rtt > threshold) {
            self.breached = true;
            // The stamps of the probe itself have usually arrived by now. An error will recur at the next reading.
            let _ = self.take_stamps();
            let Some(mut t) = self.table.peek(sequence) else { return };
            self.timeline.map_now(&mut t);
            self.observer.breach(&t);
            let header = Header { kind: Kind::Breach, session: self.plan.session, sequence, first: 0, second: 0 };
            let mut message = [0; HEADER];
            header.write(&mut message);
            // Best effort: the result of the run does not depend on it.
            let _ = self.transport.send(self.peer, &message);
        }
    }

    fn afterwards(&mut self, afterwards: Option<wire::LateStamps>) {
        if let Some(a) = afterwards {
            for (stamp, time) in LATE_STAMPS.into_iter().zip(a.stamps) {
                if let Some(time) = time {
                    self.table.stamp(a.sequence, stamp, time);
                }
            }
        }
    }

    /// Reads the stamps of sent probes.
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

/// The stamps taken by a reflector whose transport takes the stamps `takes`.
pub fn reflectors(takes: u16) -> u16 {
    let app = Stamp::T2App.bit() | Stamp::T3App.bit();
    Stamp::ALL.into_iter().filter(|s| s.bit() & takes != 0).fold(app, |mask, s| mask | at_reflector(s).bit())
}
