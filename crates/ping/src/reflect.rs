//! The reflector: answers the probes of any number of emitters, and reports its counts to each.

use crate::clocks::Clocks;
use crate::emit::{reflectors, LONGEST};
use crate::fixed_width::HistogramAxis;
use crate::session::{Arrival, Session};
use crate::transaction::Stamp;
use crate::transport::{at_reflector, Arrived, Got, Sent, Transport, Wait};
use crate::turnaround::{AllTurnarounds, Turnaround};
use crate::wire::{self, Answer, Header, Kind, NicReading, Welcome, CONTROL};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_timesync::SurveyOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of concurrent sessions, each of which takes some 60 KiB.
const MAX_SESSIONS: usize = 256;
/// Silence after which a session ends, ns.
const IDLE_NS: Ns = 30_000_000_000;
/// Maximum number of sessions per host, so that one host cannot use up all of them.
const MAX_OF_A_HOST: usize = 64;
/// Minimum silence of a session before a new one may replace it, ns; the session that has been silent longest is
/// replaced.
const SILENT_NS: Ns = 1_000_000_000;
/// Maximum age of a NIC clock reading, ns.
const FRESH_NS: Ns = 500_000_000;
/// Number of polls for a message between two readings of the clock, if the thread never sleeps.
const SPINS: u32 = 1024;

/// Settings of a reflector.
#[derive(Clone, Debug, Default)]
pub struct ReflectPlan {
    /// Whether to poll for probes without sleeping.
    pub spin: bool,
    /// Name of the device, shown by emitters.
    pub device: String,
    /// Time of a probe at the reflector above which there is a breach, ns: measured between the two stamps of one clock
    /// that are nearest to the wire.
    pub threshold: Option<Ns>,
    /// Whether the first breach ends the reflector.
    pub stop_on_breach: bool,
    /// Number of ended sessions after which the reflector ends.
    pub sessions: Option<u64>,
    /// Axis of the histogram of all sessions' times, if one is requested.
    pub drawn: Option<HistogramAxis>,
}

/// Callbacks of the reflector, in its thread.
pub trait Witness<P> {
    /// Called when a session begins with an emitter's first hello.
    fn begins(&mut self, peer: &P, session: u32);
    /// Called when a session ends, including at the end of the reflector.
    fn ends(&mut self, peer: &P, session: &Session);
    /// Called when an emitter reports that the round trip of this probe was a breach. The session has already counted
    /// it.
    fn breach(&mut self, peer: &P, session: &Session, sequence: u64);
    /// Called when the time of a probe at the reflector exceeds the reflector's own threshold.
    fn slow(&mut self, peer: &P, session: u32, held: &Turnaround);
    /// Called once a second with the times of all sessions so far.
    fn tick(&mut self, _all: &AllTurnarounds) {}
    /// Called at the end with the times of all sessions.
    fn sum(&mut self, _all: AllTurnarounds) {}
}

/// Result of a reflector, all sessions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reflected {
    /// Number of sessions.
    #[serde(skip)]
    pub sessions: u64,
    /// Number of messages that were neither hellos nor probes of a known session.
    pub foreign: u64,
    /// Number of probes and hellos without an answer because too many sessions were open.
    pub turned_away: u64,
    /// Number of messages dropped by the kernel.
    pub dropped: u64,
    /// Whether a probe's time at the reflector exceeded the threshold.
    pub breached: bool,
}

/// Runs the reflector until it is stopped.
///
/// # Errors
/// If the transport fails.
pub fn reflect<T: Transport, W: Witness<T::Peer>>(
    transport: &mut T,
    plan: &ReflectPlan,
    clocks: &Clocks,
    witness: &mut W,
    stop: &AtomicBool,
) -> Result<Reflected, (T::Error, Reflected)> {
    let mut reflector = Reflector {
        all: AllTurnarounds::new(reflectors(transport.takes()), plan.drawn),
        taken: reflectors(transport.takes()),
        stamps_leaving: transport.takes() & (Stamp::T1Sched.bit() | Stamp::T1Driver.bit() | Stamp::T1Nic.bit()) != 0,
        transport,
        plan,
        clocks,
        witness,
        sessions: Vec::new(),
        by_name: HashMap::new(),
        current: 0,
        buffer: vec![0; LONGEST.max(CONTROL) + 1],
        sum: Reflected::default(),
        ended: 0,
        kept_house_at: monotonic(),
    };
    let result = reflector.run(stop);
    // The stamps of the last answers may have arrived by now.
    let _ = reflector.take_stamps();
    reflector.end_all();
    reflector.sum.dropped = reflector.transport.dropped();
    let (all, sum) = (reflector.all, reflector.sum);
    witness.sum(all);
    result.map(|()| sum).map_err(|e| (e, sum))
}

struct Reflector<'a, T: Transport, W> {
    transport: &'a mut T,
    plan: &'a ReflectPlan,
    clocks: &'a Clocks,
    witness: &'a mut W,
    taken: u16,
    stamps_leaving: bool,
    /// Times of all sessions, including ended ones.
    all: AllTurnarounds,
    sessions: Vec<(T::Peer, Session)>,
    by_name: HashMap<(T::Peer, u32), usize>,
    /// Index of the session of the last message, which is usually that of the next one too.
    current: usize,
    buffer: Vec<u8>,
    sum: Reflected,
    ended: u64,
    kept_house_at: Ns,
}

impl<T: Transport, W: Witness<T::Peer>> Reflector<'_, T, W> {
    fn run(&mut self, stop: &AtomicBool) -> Result<(), T::Error> {
        let mut idle = 0_u32;
        loop {
            let wait = if self.plan.spin { Wait::No } else { Wait::Some };
            match self.transport.receive(&mut self.buffer, wait)? {
                Got::Message(arrived) => self.message_came(&arrived)?,
                // Stamps of the last answer may have arrived since.
                Got::Nothing | Got::NobodyThere if !self.plan.spin || idle.is_multiple_of(SPINS) => {
                    self.take_stamps()?
                }
                Got::Nothing | Got::NobodyThere => {}
            }
            if self.sum.breached && self.plan.stop_on_breach {
                return Ok(());
            }
            idle += 1;
            if !self.plan.spin || idle.is_multiple_of(SPINS) {
                if stop.load(Ordering::Relaxed) || self.plan.sessions.is_some_and(|n| self.ended >= n) {
                    return Ok(());
                }
                self.do_housekeeping()?;
            }
        }
    }

    /// Once a second: ends silent sessions, and reports the times so far.
    #[inline]
    fn do_housekeeping(&mut self) -> Result<(), T::Error> {
        let now = monotonic();
        if now - self.kept_house_at < 1_000_000_000 {
            return Ok(());
        }
        self.kept_house_at = now;
        self.take_stamps()?;
        for i in (0..self.sessions.len()).rev() {
            if now - self.sessions[i].1.last_heard > IDLE_NS {
                self.end(i);
            }
        }
        self.witness.tick(&self.all);
        Ok(())
    }

    fn end(&mut self, i: usize) {
        let (peer, session) = self.sessions.swap_remove(i);
        self.by_name.remove(&(peer, session.number));
        if let Some((moved, other)) = self.sessions.get(i) {
            self.by_name.insert((*moved, other.number), i);
        }
        self.current = 0;
        self.ended += 1;
        self.witness.ends(&peer, &session);
    }

    /// Whether there is room for a session if at most `most` are allowed; if there is none, ends the session that has
    /// been silent longest, if it is silent enough. An attacker who forges hellos must therefore keep sending to
    /// exclude others.
    fn has_place(&mut self, most: usize, now: Ns, counts: impl Fn(&T::Peer) -> bool) -> bool {
        let counted = || self.sessions.iter().enumerate().filter(|(_, (peer, _))| counts(peer));
        if counted().count() < most {
            return true;
        }
        let silent = counted().filter(|(_, (_, s))| now - s.last_heard > SILENT_NS);
        let longest = silent.min_by_key(|(_, (_, s))| s.last_heard).map(|(i, _)| i);
        longest.into_iter().for_each(|i| self.end(i));
        longest.is_some()
    }

    fn end_all(&mut self) {
        while !self.sessions.is_empty() {
            self.end(self.sessions.len() - 1);
        }
    }

    #[inline]
    fn message_came(&mut self, arrived: &Arrived<T::Peer>) -> Result<(), T::Error> {
        let t2 = monotonic();
        let bytes = &self.buffer[..arrived.len.min(self.buffer.len())];
        match Header::read(bytes) {
            Some(h) if h.kind == Kind::Probe => self.answer(arrived, &h, t2),
            Some(h) if h.kind == Kind::Hello && bytes.len() == CONTROL => self.welcome(arrived, &h, t2),
            Some(h) if h.kind == Kind::Breach => {
                if let Some(i) = self.known(arrived.from, h.session) {
                    let (peer, session) = &mut self.sessions[i];
                    session.breaches += 1;
                    self.witness.breach(peer, session, h.sequence);
                }
                Ok(())
            }
            _ => {
                self.sum.foreign += 1;
                // Tell an emitter of another version the version of this reflector.
                if wire::other_version(bytes).is_some() && bytes.len() >= CONTROL && bytes[3] == Kind::Hello as u8 {
                    let mut message = [0; CONTROL];
                    let session = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
                    Header { kind: Kind::Welcome, session, sequence: 0, first: t2, second: t2 }.write(&mut message);
                    send(self.transport, arrived.from, &message)?;
                }
                Ok(())
            }
        }
    }

    #[inline]
    fn known(&mut self, peer: T::Peer, session: u32) -> Option<usize> {
        let is_it = |(p, s): &(T::Peer, Session)| s.number == session && *p == peer;
        if self.sessions.get(self.current).is_some_and(is_it) {
            return Some(self.current);
        }
        self.current = *self.by_name.get(&(peer, session))?;
        Some(self.current)
    }

    fn begun(&mut self, peer: T::Peer, number: u32, now: Ns) -> Option<usize> {
        if let Some(i) = self.known(peer, number) {
            return Some(i);
        }
        let has_place = self.has_place(MAX_OF_A_HOST, now, |other| T::are_of_one_host(other, &peer))
            && self.has_place(MAX_SESSIONS, now, |_| true);
        if !has_place {
            self.sum.turned_away += 1;
            return None;
        }
        self.sum.sessions += 1;
        self.witness.begins(&peer, number);
        self.sessions.push((peer, Session::new(number, self.taken, self.plan.threshold, now)));
        self.current = self.sessions.len() - 1;
        self.by_name.insert((peer, number), self.current);
        Some(self.current)
    }

    /// Answers a probe with its stamps, in a message of the same length as the probe.
    #[inline]
    fn answer(&mut self, arrived: &Arrived<T::Peer>, h: &Header, t2: Ns) -> Result<(), T::Error> {
        // Only probes of sessions that began with a hello get answers. Both can be forged, but an answer is as long as
        // its probe, so traffic is not amplified.
        let Some(i) = self.known(arrived.from, h.session) else {
            self.sum.foreign += 1;
            return Ok(());
        };
        let session = &mut self.sessions[i].1;
        let message = &mut self.buffer[..arrived.len];
        let clock = self.transport.kernel_clock();
        let kernel = arrived.kernel.map(|k| self.clocks.of_kernel(clock, k));
        Answer { nic: arrived.nic, kernel, afterwards: session.next_afterwards() }.write(message);
        let t3 = monotonic();
        Header { kind: Kind::Answer, first: t2, second: t3, ..*h }.write(message);
        let sent = send(self.transport, arrived.from, message)?;
        let probe = Arrival { sequence: h.sequence, nic: arrived.nic, kernel, app: t2 };
        if let Some(held) = session.answered(probe, t3, sent == Sent::Taken, &mut self.all) {
            self.sum.breached = true;
            self.witness.slow(&arrived.from, h.session, &held);
        }
        self.take_stamps()
    }

    fn welcome(&mut self, arrived: &Arrived<T::Peer>, h: &Header, t2: Ns) -> Result<(), T::Error> {
        self.take_stamps()?;
        let Some(i) = self.begun(arrived.from, h.session, t2) else { return Ok(()) };
        let ptp = wire::asks_for_ptp(&self.buffer[..arrived.len.min(self.buffer.len())]);
        if ptp {
            self.clocks.follow_ptp(SurveyOptions::default);
        }
        // A clock without recent readings counts as missing.
        let nic: Option<NicReading> = self.clocks.nic().filter(|clock| t2 - clock.at < FRESH_NS);
        let mut seen = self.sessions[i].1.seen;
        (seen.foreign, seen.dropped) = (self.sum.foreign, self.transport.dropped());
        let welcome = Welcome {
            boot_id: self.clocks.boot_id(),
            taken: self.taken,
            device: self.plan.device.clone(),
            nic,
            disturbances: self.clocks.disturbances() as u32,
            seen,
            afterwards: self.sessions[i].1.any_afterwards(),
            ptp: if ptp { self.clocks.ptp_time() } else { None },
            begun: self.sessions[i].1.begun,
        };
        self.sessions[i].1.last_heard = t2;
        let mut message = [0; CONTROL];
        welcome.write(&mut message);
        let t3 = monotonic();
        Header { kind: Kind::Welcome, first: t2, second: t3, ..*h }.write(&mut message);
        send(self.transport, arrived.from, &message).map(drop)
    }

    /// Reads the stamps of sent answers, which later answers carry back.
    #[inline]
    fn take_stamps(&mut self) -> Result<(), T::Error> {
        if !self.stamps_leaving {
            return Ok(());
        }
        let Self { sessions, clocks, all, witness, sum, transport, .. } = self;
        transport.left(&mut |left| {
            let Some(h) = Header::read(left.message).filter(|h| h.kind == Kind::Answer) else { return };
            let time = clocks.of_left(&left);
            // Session numbers are random: the probability that two emitters share one is 1 in 4 billion.
            let Some((peer, session)) = sessions.iter_mut().find(|(_, s)| s.number == h.session) else { return };
            if let Some(held) = session.left(h.sequence, at_reflector(left.stamp), time, all) {
                sum.breached = true;
                witness.slow(peer, h.session, &held);
            }
        })
    }
}

/// Sends a message. One that does not fit is dropped: a foreign frame can carry a longer probe than latpath's framing.
#[inline]
fn send<T: Transport>(transport: &mut T, to: T::Peer, message: &[u8]) -> Result<Sent, T::Error> {
    match transport.send(to, message) {
        Err(e) if T::is_of_message(&e) => Ok(Sent::Refused),
        sent => sent,
    }
}
