//! Whose hands a packet was in between two of its sightings, and what kept them.

use crate::{
    compact::compact,
    machine::Machine,
    queue::{lies_between, By, Sightings},
    walk::{Context, End, Question, Walk},
    Cause,
};
use latpath_flight::{Class, Doing};
use latpath_spike::{Packet, Scene, Seen};
use latpath_vms::Vm;
use latpath_words::{Link, Ns, PointInfo, PointKind};

/// What is known beside the scene.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The run's points.
    pub points: &'a [PointInfo],
    /// The host's virtual machines.
    pub vms: &'a [Vm],
}

/// Who held a packet, or kept another from acting.
///
/// The same one is equal everywhere in a scene, so pieces can be grouped by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// As it is shown: `rustc (18491)`, `softirq NET_RX`.
    pub name: String,
    /// What it is. Numbers of threads are those of the piece's machine.
    pub doing: Doing,
    /// How it was scheduled, where it is a thread and that is known.
    pub class: Option<Class>,
}

/// A part of the time between two sightings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Host's timeline.
    pub from: Ns,
    /// The next piece's `from`.
    pub to: Ns,
    /// What it was.
    pub cause: Cause,
    /// Whose hands the packet was in: the thread, softirq or interrupt that had to act for it to move on. `None` where that is
    /// not known.
    pub actor: Option<Who>,
    /// Who kept it from acting: ran instead, interrupted it, ended its sleep. Of an idle exit the idle CPU with its state, of a
    /// poll interval or a queueing discipline the timer.
    pub by: Option<Who>,
    /// The machine, by its place in the scene. Actor, culprit and CPU are this one's.
    pub machine: usize,
    /// The CPU, where one is known: where the actor ran or was to run.
    pub cpu: Option<u32>,
    /// A number that belongs to the cause:
    ///
    /// | cause | number |
    /// |---|---|
    /// | queued-behind, upcall | packets that were served before, in all (each piece of one queue has the same) |
    /// | idle-exit | the idle state, by the driver's number |
    /// | poll-interval | ns that the reader slept, from its going to sleep on |
    /// | vm-exit | the exit's reason, by the number of the CPU's vendor |
    pub number: Option<u64>,
    /// What the reader must know: why it is unexplained, that two machines' times were joined, what put an end to it.
    pub note: Option<String>,
}

impl Piece {
    /// How long, in ns.
    pub fn took(&self) -> Ns {
        self.to - self.from
    }

    /// The same at another time.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let what = |p: &Self| (p.cause, p.machine, p.cpu, p.number);
        what(self) == what(other) && self.actor == other.actor && self.by == other.by && self.note == other.note
    }
}

/// Explains the packets of one scene.
pub struct Analyst<'a> {
    ground: Ground<'a>,
    machines: Vec<Machine>,
    sightings: Sightings,
}

impl<'a> Analyst<'a> {
    /// Prepares all machines' rows: the work of some ten milliseconds for 100,000 events.
    pub fn new(scene: &'a Scene, ground: Ground<'a>) -> Self {
        Self { ground, machines: scene.machines.iter().map(Machine::new).collect(), sightings: Sightings::of(scene) }
    }

    /// What held the packet between two of its sightings: pieces without a gap, from exactly `a.t` to exactly `b.t`; none
    /// where `b` is not later. There are some hundreds of pieces at most where time is short of threads and interrupts: what
    /// alternates more often is summed, and the pieces' notes say so.
    pub fn explain(&self, _packet: &Packet, a: &Seen, b: &Seen) -> Vec<Piece> {
        if b.t <= a.t {
            return Vec::new();
        }
        let (mut pieces, rest) = self.walk(a, b);
        let to = pieces.last().map_or(b.t, |piece| piece.from);
        if to > a.t {
            let (cause, machine, note) = rest;
            pieces.push(Piece {
                from: a.t,
                to,
                cause,
                actor: None,
                by: None,
                machine,
                cpu: None,
                number: None,
                note: Some(note),
            });
        }
        pieces.reverse();
        compact(pieces)
    }

    /// The place of a point's machine in the scene.
    fn machine_of(&self, point: &PointInfo) -> Option<usize> {
        let name = &point.point.machine;
        let named = self.machines.iter().position(|machine| machine.name == *name);
        named.or_else(|| (name == "host" && !self.machines.is_empty()).then_some(0))
    }

    /// The latest piece first; and what the rest is, if it does not come to `a`.
    fn walk(&self, a: &Seen, b: &Seen) -> (Vec<Piece>, (Cause, usize, String)) {
        let points = self.ground.points;
        let point = |seen: &Seen| points.get(usize::from(seen.point));
        let (Some(at_a), Some(at_b)) = (point(a), point(b)) else {
            return (Vec::new(), (Cause::Unexplained, 0, "the run does not name this point".into()));
        };
        let (Some(before), Some(place)) = (self.machine_of(at_a), self.machine_of(at_b)) else {
            let machine = &at_b.point.machine;
            return (Vec::new(), (Cause::Unexplained, 0, format!("no record of {machine}: it is not in this scene")));
        };
        let machine = &self.machines[place];
        if let Some(why) = &machine.without {
            return (Vec::new(), (Cause::Unexplained, place, format!("no record of {}: {why}", machine.name)));
        }
        let context = context_of(machine, at_b, b);
        let served_by = match context {
            Context::Thread(tid) => By::Thread(tid),
            _ => By::Cpu(b.cpu),
        };
        let question = Question {
            a: a.t,
            b: b.t,
            cpu_of_a: (before == place).then_some(u32::from(a.cpu)),
            queue: lies_between(at_a, at_b),
            upcall: matches!(at_a.point.kind, PointKind::OvsUpcall | PointKind::OvsSlow),
            ahead: self.sightings.between(b.point, a.t, b.t, served_by),
        };
        let mut walk = Walk::new(machine, place, &question, b.t);
        let end = walk.go(context);
        let rest = match end {
            End::There => (Cause::Unexplained, place, String::new()),
            End::Outside(why) if is_wire(at_a, at_b) => (Cause::Device, place, why),
            End::Outside(why) | End::Lost(why) => (Cause::Unexplained, place, why),
        };
        (walk.pieces, rest)
    }
}

/// Who took a sighting.
fn context_of(machine: &Machine, point: &PointInfo, seen: &Seen) -> Context {
    let cpu = u32::from(seen.cpu);
    let doing = machine.at(cpu, seen.t);
    let by_thread = matches!(point.point.kind, PointKind::VmRead | PointKind::AppRead);
    match doing {
        // A timer's function hands on packets that were held.
        Doing::Timer(_) => {
            let spells = machine.spells(cpu);
            let interrupt = spells.and_then(|s| s.interrupt(seen.t)).filter(|s| s.to > seen.t);
            let spell = interrupt.or_else(|| spells.and_then(|s| s.any_softirq(seen.t)));
            spell.map_or(Context::Timer { cpu, doing }, |spell| Context::of(cpu, spell.doing))
        }
        // The sighting asked the kernel itself who ran.
        Doing::Thread(_) if seen.tid != 0 => Context::Thread(seen.tid),
        Doing::Unknown if seen.tid != 0 && by_thread => Context::Thread(seen.tid),
        doing => Context::of(cpu, doing),
    }
}

/// Only devices lie between.
fn is_wire(a: &PointInfo, b: &PointInfo) -> bool {
    use PointKind::{NicRx, Tx, TxDone, XdpRedirect};
    matches!(a.point.kind, Tx | TxDone)
        && matches!(b.point.kind, NicRx | XdpRedirect | TxDone)
        && a.link == Link::Nic
        && b.link == Link::Nic
}
