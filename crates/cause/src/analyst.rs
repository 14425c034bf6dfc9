//! What had to act for a packet to move on between two of its sightings, and what kept that from acting.

use crate::{
    causality::{self, GuestCausality},
    compact::compact,
    cross_machine::{unexplained, CrossMachineWalk, ResolvedSighting},
    guests::Guests,
    machine::Machine,
    queue::{PacketsAhead, SightingsByPoint, Spacing},
    Cause, Note, RunContext,
};
use latpath_capture::{Capture, Packet, PacketSighting};
use latpath_flight::{Class, Doing};
use latpath_model::{Ns, PointId, PointInfo, HOST};
use std::{cell::RefCell, collections::HashMap};

/// Packets ahead of packets ahead that are looked at.
const MAX_BACKLOG: usize = 256;

/// What held a packet, or kept another from acting: a thread, a softirq, an interrupt, an idle CPU.
///
/// The same one is equal everywhere in a capture, so intervals can be grouped by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Executor {
    /// As it is shown: `rustc (18491)`, `softirq NET_RX`.
    pub name: String,
    /// What it is. Numbers of threads are those of the interval's machine.
    pub doing: Doing,
    /// How it was scheduled, where it is a thread and that is known.
    pub class: Option<Class>,
}

/// A part of the time between two sightings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CauseInterval {
    /// Host's timeline.
    pub from: Ns,
    /// The next interval's `from`.
    pub to: Ns,
    pub cause: Cause,
    /// The thread, softirq or interrupt that had to act for the packet to move on. `None` where that is
    /// not known.
    pub actor: Option<Executor>,
    /// What kept it from acting: ran instead, interrupted it, ended its sleep. Of an idle exit the idle CPU with its state, of a
    /// poll interval or a queueing discipline the timer.
    pub by: Option<Executor>,
    /// The thread that slept until the actor, another thread, had acted.
    pub waiter: Option<Executor>,
    /// The machine, by its place in the capture. Actor, culprit and CPU are this one's.
    pub machine: usize,
    /// The CPU, where one is known: where the actor ran or was to run.
    pub cpu: Option<u32>,
    /// A number that belongs to the cause:
    ///
    /// | cause | number |
    /// |---|---|
    /// | queued-behind, upcall | packets that were served before, in all (each interval of one queue has the same) |
    /// | idle-exit | the idle state, by the driver's number |
    /// | poll-interval | ns that the reader slept, from its going to sleep on |
    /// | vm-exit | the exit's reason, by the number of the CPU's vendor |
    pub number: Option<u64>,
    /// For an idle exit, the state's name where it is known.
    pub state: Option<String>,
    /// What the reader must know: why it is unexplained, that two machines' times were joined, what put an end to it.
    pub notes: Vec<Note>,
}

impl CauseInterval {
    /// Its notes as a sentence, if there are any.
    pub fn note(&self) -> Option<String> {
        let notes: Vec<String> = self.notes.iter().map(Note::to_string).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// How long, in ns.
    pub fn took(&self) -> Ns {
        self.to - self.from
    }

    /// The CPU on which it was did nothing.
    pub(crate) fn is_idle(&self) -> bool {
        let idles = |executor: &Option<Executor>| {
            executor.as_ref().is_some_and(|executor| matches!(executor.doing, Doing::Idle { .. }))
        };
        self.cause == Cause::IdleExit || idles(&self.by)
    }

    /// The same at another time.
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
    /// What filled a queue between two points, by the first packet in it.
    fillers: RefCell<HashMap<(PointId, PointId, usize), Option<CauseInterval>>>,
}

impl<'a> Analyst<'a> {
    /// Prepares all machines' rows: the work of some ten milliseconds for 100,000 events.
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

    /// What held the packet between two of its sightings: intervals without a gap, from exactly `a.t` to exactly `b.t`; none
    /// where `b` is not later. There are some hundreds at most: what alternates more often is summed, and the intervals' notes say
    /// so.
    pub fn explain(&self, packet: &Packet, a: &PacketSighting, b: &PacketSighting) -> Vec<CauseInterval> {
        if b.t <= a.t {
            return Vec::new();
        }
        compact(match self.walk(a, b) {
            Ok((intervals, ahead)) => self.without_backlog(intervals, &ahead, packet, a, b),
            Err(why) => vec![unexplained(Cause::Unexplained, 0, a.t, b.t, why)],
        })
    }

    /// How the events of each guest stand to what the host recorded of its vCPUs; without guests of which nothing can be said.
    pub fn causality(&self) -> Vec<GuestCausality> {
        causality::of_guests(&self.machines, &self.guests.vcpus)
    }

    /// The intervals between two sightings, the earliest first, and the packets that were served in that time.
    fn walk(&self, a: &PacketSighting, b: &PacketSighting) -> Result<(Vec<CauseInterval>, PacketsAhead), String> {
        let (a, b) = (self.sighting(a)?, self.sighting(b)?);
        let walk = CrossMachineWalk::new(&self.machines, &self.guests, &self.sightings, a, b);
        let ahead = walk.ahead().clone();
        let mut intervals = walk.follow();
        intervals.reverse();
        Ok((intervals, ahead))
    }

    /// Packets that were ahead, and came no closer together than usual, were held like this one. Until the first of them was
    /// served, the actor did something else; from then on, the queue was there for what had filled it. Where they came closer
    /// together, it may be most of the wait that the actor did something else.
    fn without_backlog(
        &self,
        intervals: Vec<CauseInterval>,
        ahead: &PacketsAhead,
        packet: &Packet,
        a: &PacketSighting,
        b: &PacketSighting,
    ) -> Vec<CauseInterval> {
        // What a softirq served may have been anyone's packets.
        let is_thread = |p: &CauseInterval| p.actor.as_ref().is_some_and(|actor| actor.doing.thread().is_some());
        let known = |p: &CauseInterval| p.cause == Cause::QueuedBehind && is_thread(p);
        let Some((first, served)) = ahead.first().filter(|_| intervals.iter().any(known)) else { return intervals };
        let waited = b.t - a.t;
        let early = ahead.came_early_by(self.capture, &self.spacing, a.point, packet, waited);
        let (filler, served) = match early.is_none_or(|early| early >= waited / 2) {
            true if served - a.t < waited / 2 => return intervals,
            // A burst: the actor was at the first of them for as long as at each of the others.
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

    /// What held the packets of a backlog longest, beside each other: from the first that found the queue empty on. `packet` is one
    /// of them.
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
