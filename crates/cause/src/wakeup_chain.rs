//! The wakeup chain: walks back from a packet's sighting to its previous one, on one machine.

mod softirq;
mod thread;
mod vcpu;

pub(crate) use vcpu::{Call, Hold};

use crate::{
    guests::Vcpus,
    machine::{Machine, HRTIMER, TIMER},
    queue::PacketsAhead,
    Cause, CauseInterval, Executor,
};
use latpath_flight::{CpuTile, Doing, Vector};
use latpath_model::{Ns, PacketSighting, PointInfo};

/// Maximum number of contexts per walk.
const MAX_STEPS: usize = 200;
/// Maximum number of intervals per walk.
pub(crate) const MAX_INTERVALS: usize = 4096;

/// A context in which the packet, or a wakeup for it, is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    Thread(u32),
    /// A softirq on a CPU.
    Softirq {
        cpu: u32,
        vector: u32,
    },
    Interrupt {
        cpu: u32,
        doing: Doing,
    },
    /// A timer function on a CPU.
    Timer {
        cpu: u32,
        doing: Doing,
    },
    /// The idle loop, or an unknown context.
    Nobody {
        cpu: u32,
        doing: Doing,
    },
    /// An unknown context on an unknown CPU.
    UnknownCpu,
}

impl Context {
    /// The context that corresponds to a CPU's activity.
    pub fn of(cpu: u32, doing: Doing) -> Self {
        match doing {
            Doing::Thread(running) => Self::Thread(running.pid),
            Doing::Softirq(vector) => Self::Softirq { cpu, vector },
            Doing::Irq(_) | Doing::Vector(_) | Doing::Nmi => Self::Interrupt { cpu, doing },
            Doing::Timer(_) => Self::Timer { cpu, doing },
            Doing::Idle { .. } | Doing::Unknown => Self::Nobody { cpu, doing },
        }
    }

    /// The context in which a CPU was at a time.
    pub fn on(cpu: Option<u32>, machine: &Machine, t: Ns) -> Self {
        cpu.map_or(Self::UnknownCpu, |cpu| Self::of(cpu, machine.at(cpu, t)))
    }

    pub fn of_sighting(machine: &Machine, point: &PointInfo, seen: &PacketSighting) -> Self {
        let by_thread = point.point.kind.info().by_thread;
        let thread_of_point = seen.thread().filter(|_| by_thread).map(Self::Thread);
        let Some(cpu) = seen.cpu.map(u32::from) else { return thread_of_point.unwrap_or(Self::UnknownCpu) };
        let doing = machine.at(cpu, seen.t);
        match doing {
            // A timer function releases packets that were held, so its interrupt or softirq counts.
            Doing::Timer(_) => {
                let irq_intervals = machine.irq_intervals(cpu);
                let interrupt = irq_intervals.and_then(|s| s.interrupt(seen.t)).filter(|s| s.to > seen.t);
                let irq = interrupt.or_else(|| irq_intervals.and_then(|s| s.any_softirq(seen.t)));
                irq.map_or(Self::Timer { cpu, doing }, |irq| Self::of(cpu, irq.doing))
            }
            // The sighting contains the current thread as read from the kernel itself.
            Doing::Thread(running) => Self::Thread(seen.thread().unwrap_or(running.pid)),
            Doing::Unknown => thread_of_point.unwrap_or(Self::of(cpu, doing)),
            doing => Self::of(cpu, doing),
        }
    }
}

/// The idle state that a CPU was in, or has just left. `tiles` are its activities, latest first.
fn idle_state(tiles: &[CpuTile]) -> Option<u32> {
    let states = tiles.iter().map_while(|tile| match tile.doing {
        Doing::Idle { state } => Some(state),
        doing => doing.interrupts().then_some(None),
    });
    states.flatten().next()
}

/// Two sightings of a packet, between which the walk looks for actors.
pub(crate) struct SightingPair {
    /// End of the walk: time of the earlier sighting.
    pub a: Ns,
    /// Start of the walk: time of the later sighting.
    pub b: Ns,
    /// CPU of the earlier sighting.
    pub cpu_of_a: Option<u32>,
    /// Index in the capture of the machine of the earlier sighting.
    pub machine_of_a: usize,
    /// Whether the packet was in a queue between the two sightings.
    pub queue: bool,
    /// Whether the later sighting is a transmission by a device.
    pub sends: bool,
    /// Whether ovs-vswitchd handled the packet between the two sightings.
    pub upcall: bool,
    /// Whether the earlier time is not a sighting, but the packet's planned send time.
    pub planned: bool,
    /// Packets that the actor of the later sighting served before this one.
    pub ahead: PacketsAhead,
}

/// State of a walk, which goes back in time.
pub(crate) struct WakeupChain<'w> {
    pub machine: &'w Machine,
    /// Index of the machine in the capture.
    pub place: usize,
    pub pair: &'w SightingPair,
    /// vCPU threads of all hypervisors.
    pub vcpus: &'w Vcpus,
    /// Time at which the walk ends.
    pub a: Ns,
    /// Time reached so far: the intervals cover the time from here to the later sighting.
    pub t: Ns,
    /// Intervals, latest first.
    pub intervals: Vec<CauseInterval>,
    /// Whether the current actor is still that of the later sighting.
    pub reader: bool,
    /// Current depth of nested waits.
    nested: u32,
    /// Thread whose sleep led to the current context, over any number of wakers.
    waiter: Option<u32>,
}

/// How a walk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The walk reached the earlier sighting.
    Done,
    /// The walk reached an interrupt of this CPU that came from outside the machine: from a device, or from the host.
    Outside { cpu: u32, doing: Doing, why: String },
    /// The walk reached this thread, which acted, as this vCPU, for the guest with the earlier sighting.
    Inside { thread: u32, vcpu: Option<u32> },
    /// The record does not show what preceded.
    Lost(String),
}

impl<'w> WakeupChain<'w> {
    pub fn new(machine: &'w Machine, place: usize, pair: &'w SightingPair, vcpus: &'w Vcpus, t: Ns) -> Self {
        Self { machine, place, pair, vcpus, a: pair.a, t, intervals: Vec::new(), reader: true, nested: 0, waiter: None }
    }

    pub fn is_done(&self) -> bool {
        self.t <= self.a
    }

    /// Adds an interval on this machine, from `from` to `self.t`.
    pub fn add(&mut self, from: Ns, cause: Cause, like: CauseInterval) {
        let waiter = self.waiter_for(&like.actor);
        self.add_interval(from, CauseInterval { cause, machine: self.place, waiter, ..like });
    }

    /// The thread that slept until the actor had acted, unless it is the actor.
    fn waiter_for(&self, actor: &Option<Executor>) -> Option<Executor> {
        let acts = actor.as_ref()?.doing.thread()?;
        let waiter = self.waiter.filter(|waiter| *waiter != acts)?;
        Some(self.machine.thread(waiter, self.t))
    }

    /// Adds an interval, from `from` to `self.t`, that already has its machine and cause.
    pub fn add_interval(&mut self, from: Ns, like: CauseInterval) {
        let from = from.max(self.a);
        if from >= self.t {
            return;
        }
        let to = std::mem::replace(&mut self.t, from);
        match self.intervals.last_mut() {
            Some(later) if later.is_like(&like) => later.from = from,
            _ => self.intervals.push(CauseInterval { from, to, ..like }),
        }
    }

    /// Whether the earlier sighting is on this walk's machine.
    fn has_a(&self) -> bool {
        self.pair.machine_of_a == self.place
    }

    /// Walks back as far as the record allows.
    pub fn go(&mut self, mut context: Context) -> End {
        for _ in 0..MAX_STEPS {
            if self.is_done() {
                return End::Done;
            }
            if self.intervals.len() >= MAX_INTERVALS {
                return End::Lost("more happened than latpath follows".into());
            }
            self.waiter = match context {
                Context::Thread(pid) => self.waiter.or(Some(pid)),
                _ => None,
            };
            let next = match context {
                Context::Thread(pid) if self.enters_guest(pid) => {
                    return End::Inside { thread: pid, vcpu: self.vcpus.number(self.place, pid) };
                }
                Context::Thread(pid) => self.thread(pid),
                Context::Softirq { cpu, vector } => self.softirq(cpu, vector),
                Context::Timer { cpu, doing } => self.timer(cpu, doing),
                Context::Interrupt { cpu, doing: doing @ Doing::Vector(Vector::LocalTimer) } => self.timer(cpu, doing),
                Context::Interrupt { cpu, doing } => self.interrupt(cpu, doing),
                Context::Nobody { cpu, doing: Doing::Idle { .. } } => {
                    Err(End::Lost(format!("an interrupt of CPU {cpu}, which was idle, is not recorded")))
                }
                Context::Nobody { cpu, .. } => Err(End::Lost(self.machine.why_unknown(Some(cpu), self.t))),
                Context::UnknownCpu => Err(End::Lost(self.machine.why_cpu_unknown(self.t))),
            };
            match next {
                Ok(next) => {
                    self.reader = false;
                    context = next;
                }
                Err(end) => return end,
            }
        }
        match self.is_done() {
            true => End::Done,
            false => End::Lost("more threads handed it on than latpath follows".into()),
        }
    }

    fn of_idle(&self, cpu: u32, state: Option<u32>, t: Ns, label: CauseInterval) -> CauseInterval {
        let by = Some(self.machine.executor(cpu, &Doing::Idle { state }, t));
        let named = state.and_then(|state| self.machine.names.idle_state(cpu, state)).map(str::to_owned);
        CauseInterval { by, number: state.map(u64::from), state: named, ..label }
    }

    /// Activities of a CPU from `from` to `self.t`, latest first.
    pub fn tiles_back(&self, cpu: u32, from: Ns) -> impl Iterator<Item = CpuTile> {
        self.machine.tiles(cpu, from.max(self.a), self.t).into_iter().rev()
    }

    /// Handles an interrupt. Unless another CPU sent it, its origin is outside this machine.
    fn interrupt(&mut self, cpu: u32, doing: Doing) -> Result<Context, End> {
        let irq = self.machine.irq_intervals(cpu).and_then(|s| s.interrupt(self.t)).copied();
        let from = irq.filter(|s| s.doing == doing).map_or(self.t, |s| s.from);
        let actor = self.machine.executor(cpu, &doing, self.t);
        for tile in self.tiles_back(cpu, from) {
            let label = CauseInterval { actor: Some(actor.clone()), cpu: Some(cpu), ..CauseInterval::default() };
            match tile.doing {
                Doing::Nmi => {
                    let by = Some(self.machine.executor(cpu, &tile.doing, tile.from));
                    self.add(tile.from, Cause::Interrupted, CauseInterval { by, ..label });
                }
                _ => self.add(tile.from, Cause::Work, label),
            }
        }
        if self.is_done() {
            return Err(End::Done);
        }
        if matches!(doing, Doing::Vector(_)) {
            if let Some(context) = self.sent_from(cpu, &actor) {
                return Ok(context);
            }
        }
        Err(End::Outside { cpu, doing, why: format!("what sent {} is not recorded", actor.name) })
    }

    /// Handles RPS, where one CPU sends another an IPI to process a packet: returns the softirq context on the CPU that
    /// steered the packet.
    fn sent_from(&mut self, cpu: u32, actor: &Executor) -> Option<Context> {
        let sender = self.pair.cpu_of_a.filter(|sender| self.has_a() && *sender != cpu)?;
        let irq = self.machine.irq_intervals(sender)?.any_softirq(self.a).copied()?;
        let Doing::Softirq(vector) = irq.doing else { return None };
        let label = CauseInterval { actor: Some(actor.clone()), cpu: Some(cpu), ..CauseInterval::default() };
        let tiles: Vec<_> = self.tiles_back(cpu, irq.to).collect();
        for (at, tile) in tiles.iter().enumerate() {
            let idle = matches!(tile.doing, Doing::Idle { .. });
            match idle_state(&tiles[at..]).filter(|_| idle) {
                Some(state) => {
                    let label = self.of_idle(cpu, Some(state), tile.from, label.clone());
                    self.add(tile.from, Cause::IdleExit, label);
                }
                None => self.add(tile.from, Cause::IrqWait, label.clone()),
            }
        }
        Some(Context::Softirq { cpu: sender, vector })
    }

    /// Handles a timer function: the packet waited for the timer to expire.
    fn timer(&mut self, cpu: u32, doing: Doing) -> Result<Context, End> {
        let timer = self.machine.executor(cpu, &doing, self.t);
        let cause = self.cause_of_timer(&doing);
        self.add(
            self.a,
            cause,
            CauseInterval { actor: Some(timer.clone()), by: Some(timer), cpu: Some(cpu), ..CauseInterval::default() },
        );
        Err(End::Done)
    }

    /// The cause of a wait for a timer: a queueing discipline, or a reader that polls.
    pub fn cause_of_timer(&self, doing: &Doing) -> Cause {
        const QDISCS: [&str; 5] = ["qdisc_watchdog", "advance_sched", "taprio", "gate_timer_func", "cake"];
        match doing {
            Doing::Timer(function) => {
                let name = self.machine.names.of_function(*function);
                if QDISCS.iter().any(|start| name.starts_with(start)) {
                    Cause::QdiscHeld
                } else {
                    Cause::PollInterval
                }
            }
            _ => Cause::PollInterval,
        }
    }

    /// Whether an activity is part of this softirq's work.
    pub fn is_part_of(doing: &Doing, vector: u32) -> bool {
        match doing {
            Doing::Softirq(v) => *v == vector,
            Doing::Timer(_) => matches!(vector, TIMER | HRTIMER),
            _ => false,
        }
    }
}
