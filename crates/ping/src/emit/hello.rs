//! Hellos and welcomes: they find the reflector, its clock and its counts, and detect its loss.

use super::{Emitter, EndReason, Halt, Observer, Pacing, Step};
use crate::timeline::{Relation, Timeline};
use crate::transaction::Stamp;
use crate::transport::{Sent, Transport, Wait};
use crate::wire::{ask_for_ptp, Header, Kind, Welcome, CONTROL, FULL};
use latpath_clock::Exchange;
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval between hellos during a run, ns.
const HELLO_EVERY_NS: Ns = 1_000_000_000;
/// Interval between hellos with NIC clocks, ns; welcomes carry the reflector's readings of its clock.
const HELLO_WITH_NIC_NS: Ns = 250_000_000;
/// Number of hellos before the first probe; the fastest exchange gives the tightest bounds on the peer's clock.
const FIRST_HELLOS: u32 = 16;
/// Maximum wait for a welcome before the next hello, ns.
pub(super) const HELLO_WAIT_NS: Ns = 100_000_000;
/// Maximum wait before the first probe until both ends know the grandmaster's time, ns: the daemons are polled twice a
/// second.
const PTP_WAIT_NS: Ns = 3_000_000_000;
/// Minimum number of unanswered probes with which the timeout ends a run even if hellos are answered.
const MAX_UNANSWERED: u64 = 3;
/// Maximum number of messages read in a row; exceeds what a socket's buffer holds.
const MAX_WAITING: usize = 1 << 14;

/// State of the hellos.
#[derive(Clone, Copy, Default)]
pub(super) struct Hello {
    pub(super) number: u64,
    /// Number of the latest hello that was answered.
    pub(super) answered: u64,
    pub(super) sent_at: Ns,
    waiting: bool,
    pub(super) next: Ns,
}

impl<T: Transport, O: Observer> Emitter<'_, T, O> {
    /// Finds the reflector, its stamps and its clock.
    pub(super) fn greet(&mut self) -> Step<T> {
        let begun = monotonic();
        self.heard(begun);
        while self.welcome.is_none() {
            self.ask(HELLO_WAIT_NS)?;
            let now = monotonic();
            if self.stop.load(Ordering::Relaxed) {
                return Err(Halt::EndReason(EndReason::Stopped));
            }
            if self.welcome.is_none() && now - begun > self.plan.timeout {
                return Err(Halt::EndReason(match self.other_version {
                    Some(version) => EndReason::OtherVersion(version),
                    None if self.nobody_there.is_some() => EndReason::NobodyListens,
                    None => EndReason::NobodyAnswers,
                }));
            }
            if self.welcome.is_none() {
                self.rest();
            }
        }
        for _ in 1..FIRST_HELLOS {
            self.ask(HELLO_WAIT_NS)?;
        }
        // The first hello makes the reflector start polling its PTP daemons, so the grandmaster's time takes a while.
        while self.plan.by_ptp && !self.timeline.is_by_ptp() && monotonic() - begun < PTP_WAIT_NS {
            self.rest();
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.ask(HELLO_WAIT_NS)?;
        }
        let nics = Stamp::T2Nic.bit() | Stamp::T3Nic.bit();
        let theirs = self.welcome.as_ref().map_or(0, |w| if w.nic.is_some() { w.taken } else { w.taken & !nics });
        // Short probes have no room for the stamps of the reflector's kernel and NIC; only those of its application
        // remain.
        let reported = if self.message.len() >= FULL { theirs } else { Stamp::T2App.bit() | Stamp::T3App.bit() };
        let ours = self.transport.takes() | Stamp::T1App.bit() | Stamp::T4App.bit();
        self.table.expected = ours | reported;
        self.observer.route(ours | reported);
        Ok(())
    }

    /// Sends a hello and waits up to `wait` ns for its welcome; handles other messages meanwhile.
    pub(super) fn ask(&mut self, wait: Ns) -> Step<T> {
        self.follow_clocks();
        let mut message = [0; CONTROL];
        self.hello.number += 1;
        let sent_at = monotonic();
        let header = Header {
            kind: Kind::Hello,
            session: self.plan.session,
            sequence: self.hello.number,
            first: sent_at,
            second: 0,
        };
        header.write(&mut message);
        if self.plan.by_ptp {
            ask_for_ptp(&mut message);
        }
        self.asked_since.get_or_insert(sent_at);
        let sent = self.transport.send(self.peer, &message)?;
        let every = if self.timeline.has_nic_clocks() { HELLO_WITH_NIC_NS } else { HELLO_EVERY_NS };
        self.hello = Hello { sent_at, waiting: sent == Sent::Taken, next: sent_at + every, ..self.hello };
        while self.hello.waiting && (self.settling || !self.stop.load(Ordering::Relaxed)) {
            let left = sent_at + wait - monotonic();
            let nobody = self.welcome.is_none() && self.nobody_there == Some(self.hello.number);
            if left <= 0 || nobody {
                break;
            }
            if !self.take(if self.plan.spin { Wait::No } else { Wait::Until(sent_at + wait) })? {
                // Read the stamps, because each further wait would return immediately while a stamp of the hello is
                // unread.
                self.take_stamps()?;
            }
        }
        // This thread may not have run during the wait: handle the messages that arrived meanwhile before declaring a
        // timeout.
        if wait > 0 && self.hello.answered < self.hello.number {
            for _ in 0..MAX_WAITING {
                if !self.take(Wait::No)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sleeps until the wait for the last hello's welcome is over, so that a refusal or a closed port does not trigger
    /// hellos in quick succession.
    pub(super) fn rest(&self) {
        let left = self.hello.sent_at + HELLO_WAIT_NS - monotonic();
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left as u64));
        }
    }

    /// Periodic tasks: checks the stop flag and the peer's silence, sends hellos, follows the clocks.
    pub(super) fn do_housekeeping(&mut self, now: Ns) -> Step<T> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Halt::EndReason(EndReason::Stopped));
        }
        if self.breached && self.plan.stop_on_breach {
            return Err(Halt::EndReason(EndReason::Breach));
        }
        if self.no_answer(now) {
            // This thread may not have run during the silence: then the answer has already arrived, or this hello gets
            // one.
            self.ask(HELLO_WAIT_NS)?;
            if self.no_answer(now) {
                return Err(Halt::EndReason(EndReason::Dead));
            }
        }
        // A restarted reflector needs a hello to learn of the session, so silence triggers one.
        let silent = now - self.last_heard > HELLO_WAIT_NS;
        if now < self.hello.next && !(silent && now - self.hello.sent_at > HELLO_WAIT_NS) {
            return Ok(());
        }
        // If several probes may be in flight, do not wait for the welcome. If each probe waits for the previous answer,
        // wait: otherwise the hello would delay the next probe unnoticed.
        self.ask(if self.plan.pacing == Pacing::AsAnswersCome { HELLO_WAIT_NS } else { 0 })?;
        self.observer.tick(&self.table.counts);
        Ok(())
    }

    /// Whether the peer has been silent for the plan's timeout. If several probes are unanswered, welcomes alone do not
    /// count: a route may pass only short messages.
    fn no_answer(&self, now: Ns) -> bool {
        let unanswered = self.unanswered >= MAX_UNANSWERED && now - self.unanswered_since > self.plan.timeout;
        unanswered || self.asked_since.is_some_and(|since| now - since > self.plan.timeout)
    }

    /// Notes that the peer has sent something.
    #[inline]
    pub(super) fn heard(&mut self, at: Ns) {
        self.last_heard = at;
        self.asked_since = None;
    }

    pub(super) fn welcomed(&mut self, h: &Header, t4: Ns) {
        let Some(welcome) = Welcome::read(&self.buffer) else { return };
        // Ignore a welcome that a later one has overtaken, and one to an unknown hello.
        if !(self.hello.answered..=self.hello.number).contains(&h.sequence) {
            return;
        }
        self.hello.answered = h.sequence;
        self.heard(t4);
        self.nobody_there = None;
        self.afterwards(welcome.afterwards);
        let first = self.welcome.is_none();
        if first {
            let same = welcome.boot_id == self.clocks.boot_id();
            self.timeline = Timeline::new(if same { Relation::SameKernel } else { Relation::Estimated });
            // The new timeline contains no readings yet, so pass it all readings and disturbances again.
            (self.readings_seen, self.clocks_seen) = (0, 0);
        }
        let known = self.welcome.as_ref().map_or(welcome.disturbances, |w| w.disturbances);
        let disturbed = welcome.disturbances > known;
        if disturbed {
            self.timeline.disturbed(t4, "the reflector's clocks were disturbed (its own report says how)".into());
        }
        self.restarts += u64::from(self.welcome.as_ref().is_some_and(|w| w.begun != welcome.begun));
        self.follow_clocks();
        self.timeline.set_nic_clocks(None, welcome.nic);
        if self.plan.by_ptp {
            self.timeline.set_ptp(t4, self.clocks.ptp_time(), welcome.ptp);
        }
        if disturbed {
            self.timeline.reflectors_nic_was_set();
        }
        if self.hello.waiting && h.sequence == self.hello.number {
            self.hello.waiting = false;
            self.timeline.hello(Exchange { t1: self.hello.sent_at, t2: h.first, t3: h.second, t4 });
        }
        self.welcome = Some(welcome);
    }

    /// Applies the readings and disturbances of this machine's clocks to the timeline.
    pub(super) fn follow_clocks(&mut self) {
        for clock in self.clocks.nic_since(&mut self.readings_seen) {
            self.timeline.set_nic_clocks(Some(clock), None);
        }
        for d in self.clocks.disturbances_since(&mut self.clocks_seen) {
            if let Some((from, to)) = d.nic_set_between {
                self.timeline.nic_was_set(from, to);
            }
            self.timeline.disturbed(d.at_ns, d.what);
        }
    }
}
