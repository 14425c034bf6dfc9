//! Explains the time between two sightings of a packet: which actors had to act for it, and what delayed them.

use crate::{
    causality::{self, GuestCausality},
    compact::compact,
    cross_machine::{unexplained, CrossMachineWalk, ResolvedSighting},
    guests::Guests,
    machine::Machine,
    queue::{PacketsAhead, SightingsByPoint, Spacing},
    Cause, DaemonVisit, Detail, NoFlow, Note, RunContext,
};
use latpath_capture::{Capture, Packet};
use latpath_flight::{Class, Doing};
use latpath_model::{Ns, PacketSighting, PointId, PointInfo, HOST};
use std::{cell::RefCell, collections::HashMap};

/// Maximum depth of a backlog, in packets: each one waited behind the next.
const MAX_BACKLOG: usize = 256;

/// A thread, softirq, interrupt or idle CPU that held a packet, or delayed another executor.
///
/// Values for the same executor are equal throughout a capture, so that intervals can be grouped by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Executor {
    /// Display name: `rustc (18491)`, `softirq NET_RX`.
    pub name: String,
    /// Kind of executor. Thread IDs are those of the interval's machine.
    pub doing: Doing,
    /// Scheduling class of a thread, if known.
    pub class: Option<Class>,
}

/// A part of the time between two sightings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CauseInterval {
    /// Start, on the host's timeline.
    pub from: Ns,
    /// End: the `from` of the next interval.
    pub to: Ns,
    /// Why the packet did not proceed during this time.
    pub cause: Cause,
    /// The thread, softirq or interrupt that had to act for the packet to proceed; `None` if unknown.
    pub actor: Option<Executor>,
    /// The executor that delayed the actor: the one that ran instead, interrupted it, or ended its sleep. For an idle
    /// exit, the idle CPU with its state; for a poll interval or a queueing discipline, the timer.
    pub by: Option<Executor>,
    /// A thread that slept until the actor had acted.
    pub waiter: Option<Executor>,
    /// Index in the capture of the machine to which actor, culprit and CPU belong.
    pub machine: usize,
    /// CPU on which the actor ran or was to run, if known.
    pub cpu: Option<u32>,
    /// A number whose meaning depends on the cause:
    ///
    /// | cause | number |
    /// |---|---|
    /// | queued-behind, upcall | total number of packets served before (equal for all intervals of one queue) |
    /// | idle-exit | index of the idle state in the driver |
    /// | poll-interval | time that the reader slept, ns |
    /// | vm-exit | exit reason, as numbered by the CPU's vendor |
    pub number: Option<u64>,
    /// Name of the idle state that an idle exit left, if known.
    pub state: Option<String>,
    /// Notes for the reader: why time is unexplained, where the times of two machines meet, what ended a wait.
    pub notes: Vec<Note>,
}

impl CauseInterval {
    /// The notes as a sentence, if there are any.
    pub fn note(&self) -> Option<String> {
        let notes: Vec<String> = self.notes.iter().map(Note::to_string).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Length, ns.
    pub fn took(&self) -> Ns {
        self.to - self.from
    }

    /// Whether the CPU was idle.
    pub(crate) fn is_idle(&self) -> bool {
        let idles = |executor: &Option<Executor>| {
            executor.as_ref().is_some_and(|executor| matches!(executor.doing, Doing::Idle { .. }))
        };
        self.cause.info().detail == Detail::IdleState || idles(&self.by)
    }

    /// Whether the intervals differ only in time.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let what = |p: &Self| (p.cause, p.machine, p.cpu, p.number);
        what(self) == what(other) && self.actor == other.actor && self.by == other.by && self.notes == other.notes
    }
}

/// Explains the packets of one capture.
pub struct Analyst<'a> {
    capture: &'a Capture,
    points: &'a [PointInfo],
    machines: Vec<Machine>,
    guests: Guests,
    sightings: SightingsByPoint,
    spacing: Spacing,
    /// The interval that caused a queue between two points; the key also contains the first packet in the queue.
    fillers: RefCell<HashMap<(PointId, PointId, usize), Option<CauseInterval>>>,
}

impl<'a> Analyst<'a> {
    /// Prepares the timelines of all machines; takes some 10 ms per 100,000 events.
    pub fn new(capture: &'a Capture, context: &'a RunContext) -> Self {
        Self {
            capture,
            points: &context.points,
            machines: capture.machines.iter().map(Machine::new).collect(),
            guests: Guests::of(capture, context),
            sightings: SightingsByPoint::of(capture),
            spacing: Spacing::of(capture),
            fillers: RefCell::default(),
        }
    }

    /// Explains the time between two sightings by adjoining intervals, from exactly `a.t` to exactly `b.t`; empty if
    /// `b` is not later. There are a few hundred intervals at most: if many alternate, they are summed, as their notes
    /// state.
    pub fn explain(&self, packet: &Packet, a: &PacketSighting, b: &PacketSighting) -> Vec<CauseInterval> {
        if b.t <= a.t {
            return Vec::new();
        }
        compact(match self.walk(a, b) {
            Ok((intervals, ahead)) => self.without_backlog(intervals, &ahead, packet, a, b),
            Err(why) => vec![unexplained(Cause::Unexplained, 0, a.t, b.t, why)],
        })
    }

    /// The packet's visit to ovs-vswitchd between two sightings, from the upcall (because no flow matched) to its
    /// return; `None` if there was no visit, or none was recorded.
    pub fn visit(&self, a: &PacketSighting, b: &PacketSighting) -> Option<DaemonVisit> {
        let (a, b) = (self.sighting(a).ok()?, self.sighting(b).ok()?);
        if !a.info.point.kind.misses_flow() {
            return None;
        }
        let machine = self.machines.get(a.place)?;
        let upcall = machine.upcall_at(a.seen.cpu?.into(), a.seen.t)?;
        let is_back = a.place == b.place && b.info.point.kind.is_back_in_datapath();
        let parts = is_back.then(|| machine.visit_parts(upcall, a.seen.t, b.seen.t, b.seen.thread())).flatten();
        let limits = machine.flow_limits;
        let reason = NoFlow::of(upcall, limits.unwrap_or_default());
        Some(DaemonVisit { machine: a.place, reason, upcall: upcall.clone(), limits, parts })
    }

    /// Checks each guest's events against the host's record of its vCPUs. Guests without enough events are omitted.
    pub fn causality(&self) -> Vec<GuestCausality> {
        causality::of_guests(&self.machines, &self.guests.vcpus)
    }

    /// The intervals between two sightings, the earliest first, and the packets served before this one in that time.
    fn walk(&self, a: &PacketSighting, b: &PacketSighting) -> Result<(Vec<CauseInterval>, PacketsAhead), String> {
        let b = self.sighting(b)?;
        let a = match self.points.get(usize::from(a.point)).filter(|info| info.point.kind.is_computed()) {
            // A computed sighting is the talker's, which is on the machine that sees the packet first.
            Some(info) => ResolvedSighting { seen: a, info, place: b.place },
            None => self.sighting(a)?,
        };
        let walk = CrossMachineWalk::new(&self.machines, &self.guests, &self.sightings, a, b);
        let ahead = walk.ahead().clone();
        let mut intervals = walk.follow();
        intervals.reverse();
        Ok((intervals, ahead))
    }

    /// Replaces the time spent behind queued packets by the reason for the queue. If those packets arrived at the usual
    /// spacing, they were held up like this one: the actor did something else until it served the first of them, and
    /// the rest of the wait gets the cause that filled the queue. If they arrived closer together, the time before the
    /// first one may still be most of the wait.
    fn without_backlog(
        &self,
        intervals: Vec<CauseInterval>,
        ahead: &PacketsAhead,
        packet: &Packet,
        a: &PacketSighting,
        b: &PacketSighting,
    ) -> Vec<CauseInterval> {
        // Only queues served by a thread: a softirq may have served packets of any stream.
        let is_thread = |p: &CauseInterval| p.actor.as_ref().is_some_and(|actor| actor.doing.thread().is_some());
        let known = |p: &CauseInterval| p.cause == Cause::QueuedBehind && is_thread(p);
        let Some((first, served)) = ahead.first().filter(|_| intervals.iter().any(known)) else { return intervals };
        let waited = b.t - a.t;
        let early = ahead.came_early_by(self.capture, &self.spacing, a.point, packet, waited);
        let (filler, served) = match early.is_none_or(|early| early >= waited / 2) {
            true if served - a.t < waited / 2 => return intervals,
            // In a burst, the first packet is assumed to have occupied the actor as long as each of the others.
            true => (None, served - (b.t - served) / ahead.count()),
            false => (self.filler(a.point, b.point, first), served),
        };
        let mut all = Vec::with_capacity(intervals.len() + 1);
        for interval in intervals {
            if !known(&interval) {
                all.push(interval);
                continue;
            }
            let cut = served.clamp(interval.from, interval.to);
            let own = CauseInterval { to: cut, cause: Cause::Work, number: None, ..interval.clone() };
            let rest = match &filler {
                Some(filler) => CauseInterval { from: cut, to: interval.to, ..filler.clone() },
                None => CauseInterval { from: cut, ..interval },
            };
            all.extend([own, rest].into_iter().filter(|p| p.from < p.to));
        }
        all.dedup_by(|later, earlier| {
            let same = earlier.is_like(later);
            earlier.to = if same { later.to } else { earlier.to };
            same
        });
        all
    }

    /// The cause with the longest total time for the packets of a backlog, back to the packet that found the queue
    /// empty, other than waiting behind each other. `packet` is the index of the backlog's first packet.
    fn filler(&self, from: PointId, to: PointId, packet: usize) -> Option<CauseInterval> {
        if let Some(known) = self.fillers.borrow().get(&(from, to, packet)) {
            return known.clone();
        }
        let mut sums: Vec<(CauseInterval, Ns)> = Vec::new();
        let mut next = Some(packet);
        for _ in 0..MAX_BACKLOG {
            let Some(packet) = next.take().and_then(|place| self.capture.packets.get(place)) else { break };
            let seen = |point| packet.sightings.iter().find(|seen| seen.point == point);
            let Some((a, b)) = seen(from).zip(seen(to)) else { break };
            let Ok((intervals, ahead)) = self.walk(a, b) else { break };
            for interval in intervals.into_iter().filter(|p| p.cause != Cause::QueuedBehind) {
                let took = interval.took();
                let of = |p: &CauseInterval| (p.cause, p.machine, p.actor.clone(), p.by.clone());
                match sums.iter_mut().find(|(p, _)| of(p) == of(&interval)) {
                    Some((_, sum)) => *sum += took,
                    None => sums.push((interval, took)),
                }
            }
            next = ahead.first().map(|(place, _)| place);
        }
        let filler = sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(interval, _)| interval);
        self.fillers.borrow_mut().insert((from, to, packet), filler.clone());
        filler
    }

    fn sighting<'s>(&'s self, seen: &'s PacketSighting) -> Result<ResolvedSighting<'s>, String> {
        let Some(info) = self.points.get(usize::from(seen.point)) else {
            return Err("the run does not name this point".into());
        };
        let name = &info.point.machine;
        let named = self.machines.iter().position(|machine| machine.name == *name);
        let place = named.or_else(|| (name == HOST && !self.machines.is_empty()).then_some(0));
        Ok(ResolvedSighting {
            seen,
            info,
            place: place.ok_or_else(|| format!("no record of {name}: it is not in this capture"))?,
        })
    }
}
