//! Whose hands a packet was in between two of its sightings, and what kept them.

use crate::{
    compact::compact,
    cross_machine::{unexplained, CrossMachineWalk, ResolvedSighting},
    guests::Guests,
    machine::Machine,
    queue::SightingsByPoint,
    Cause, RunContext,
};
use latpath_capture::{Capture, Packet, PacketSighting};
use latpath_flight::{Class, Doing};
use latpath_model::{Ns, PointInfo, HOST};

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
    /// What it was.
    pub cause: Cause,
    /// Whose hands the packet was in: the thread, softirq or interrupt that had to act for it to move on. `None` where that is
    /// not known.
    pub actor: Option<Executor>,
    /// What kept it from acting: ran instead, interrupted it, ended its sleep. Of an idle exit the idle CPU with its state, of a
    /// poll interval or a queueing discipline the timer.
    pub by: Option<Executor>,
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
    pub note: Option<String>,
}

impl CauseInterval {
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
        what(self) == what(other) && self.actor == other.actor && self.by == other.by && self.note == other.note
    }
}

/// Explains the packets of one capture.
pub struct Analyst<'a> {
    points: &'a [PointInfo],
    machines: Vec<Machine>,
    guests: Guests,
    sightings: SightingsByPoint,
}

impl<'a> Analyst<'a> {
    /// Prepares all machines' rows: the work of some ten milliseconds for 100,000 events.
    pub fn new(capture: &'a Capture, context: &'a RunContext) -> Self {
        Self {
            points: &context.points,
            machines: capture.machines.iter().map(Machine::new).collect(),
            guests: Guests::of(capture, context),
            sightings: SightingsByPoint::of(capture),
        }
    }

    /// What held the packet between two of its sightings: intervals without a gap, from exactly `a.t` to exactly `b.t`; none
    /// where `b` is not later. There are some hundreds at most: what alternates more often is summed, and the intervals' notes say
    /// so.
    pub fn explain(&self, _packet: &Packet, a: &PacketSighting, b: &PacketSighting) -> Vec<CauseInterval> {
        if b.t <= a.t {
            return Vec::new();
        }
        let mut intervals = match (self.sighting(a), self.sighting(b)) {
            (Ok(a), Ok(b)) => CrossMachineWalk::new(&self.machines, &self.guests, &self.sightings, a, b).follow(),
            (Err(why), _) | (_, Err(why)) => vec![unexplained(Cause::Unexplained, 0, a.t, b.t, why)],
        };
        intervals.reverse();
        compact(intervals)
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
