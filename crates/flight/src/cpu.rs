//! The timeline of a CPU: contiguous tiles.

use crate::event::{Class, Event, EventKind, Vector};
use crate::window::CpuRecord;
use latpath_model::Ns;
use std::collections::HashMap;

/// Maximum depth of nested contexts. Deeper nesting in hostile input is ignored.
const DEEPEST: usize = 16;

/// A thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Running {
    /// Thread ID.
    pub pid: u32,
    /// Its scheduling class, if a switch recorded it.
    pub class: Option<Class>,
    /// Whether it runs guest code, as a vCPU.
    pub guest: bool,
    /// The function of a kworker's work item.
    pub work: Option<u64>,
}

/// The activity of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// A thread runs.
    Thread(Running),
    /// Idle.
    Idle {
        /// Number of the idle state in its driver, if one was entered.
        state: Option<u32>,
    },
    /// A device's interrupt, by number.
    Irq(u32),
    /// A softirq, by number.
    Softirq(u32),
    /// Another kind of interrupt.
    Vector(Vector),
    /// A timer's function, by its address; it runs within an interrupt or softirq.
    Timer(u64),
    /// An NMI.
    Nmi,
    /// Unknown.
    Unknown,
}

impl EventKind {
    /// The context that begins (`true`) or ends (`false`): an interrupt, a softirq, or a timer's function. The end of a
    /// timer's function does not contain its address.
    pub fn edge(&self) -> Option<(bool, Doing)> {
        Some(match *self {
            Self::IrqEntry(number) => (true, Doing::Irq(number)),
            Self::IrqExit(number) => (false, Doing::Irq(number)),
            Self::SoftirqEntry(vector) => (true, Doing::Softirq(vector)),
            Self::SoftirqExit(vector) => (false, Doing::Softirq(vector)),
            Self::VectorEntry(vector) => (true, Doing::Vector(vector)),
            Self::VectorExit(vector) => (false, Doing::Vector(vector)),
            Self::TimerEntry(function) | Self::HrtimerEntry(function) => (true, Doing::Timer(function)),
            Self::TimerExit | Self::HrtimerExit => (false, Doing::Timer(0)),
            _ => return None,
        })
    }
}

impl Doing {
    /// Whether it is an interrupt of any kind, or runs in one.
    pub fn interrupts(&self) -> bool {
        matches!(self, Self::Irq(_) | Self::Softirq(_) | Self::Vector(_) | Self::Timer(_) | Self::Nmi)
    }

    /// The running thread, 0 when idle; `None` for interrupts and unknown activity.
    pub fn thread(&self) -> Option<u32> {
        match self {
            Self::Thread(running) => Some(running.pid),
            _ => None,
        }
    }
}

/// An interval in which a CPU had one activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTile {
    /// `CLOCK_MONOTONIC`, ns.
    pub from: Ns,
    /// Equals the next tile's `from`.
    pub to: Ns,
    /// The activity.
    pub doing: Doing,
    /// The current thread, also during an interrupt; 0 for idle, `None` if unknown.
    pub thread: Option<u32>,
}

impl CpuTile {
    /// Whether the activity is assumed to be the last thread switched to, because the switch away from it was not
    /// recorded.
    pub fn is_assumed(&self) -> bool {
        self.thread.is_none() && self.doing.thread().is_some()
    }
}

/// The known activity of a CPU.
#[derive(Clone, Debug, Default)]
pub struct CpuTimeline {
    /// The CPU.
    pub cpu: u32,
    /// Contiguous tiles, from the beginning of the record.
    tiles: Vec<CpuTile>,
    /// Number of interrupts with a missing beginning or end.
    pub garbled: u64,
    /// Number of events whose thread is not the one that the last switch put on the CPU. Some kernels do not record all
    /// switches; the time in between is unknown.
    pub missed_switches: u64,
}

/// Removes the ended context from a stack, and all contexts above it, whose ends are missing. Returns the number of
/// missing ends, or 1 if the beginning is missing.
fn end(stack: &mut Vec<Doing>, ended: Doing) -> u64 {
    let at = match ended {
        // A timer's function ends within the interrupt or softirq in which it began.
        Doing::Timer(_) => stack.len().checked_sub(1).filter(|top| matches!(stack[*top], Doing::Timer(_))),
        ended => stack.iter().rposition(|context| *context == ended),
    };
    let Some(at) = at else { return 1 };
    let lost = stack.len() - at - 1;
    stack.truncate(at);
    lost as u64
}

struct Fold {
    tiles: Vec<CpuTile>,
    cursor: Ns,
    thread: Option<u32>,
    class: Option<Class>,
    idle: Option<u32>,
    guest: bool,
    /// Nested contexts on top of the running thread: interrupts, softirqs, timers' functions.
    stack: Vec<Doing>,
    /// Softirqs interrupted by a thread switch, which is possible on PREEMPT_RT; by TID.
    put_aside: HashMap<u32, Vec<Doing>>,
    work: HashMap<u32, u64>,
    garbled: u64,
    missed_switches: u64,
}

impl Fold {
    /// Determines the state before the first event.
    fn before(record: &CpuRecord) -> Self {
        let mut fold = Self {
            tiles: Vec::new(),
            cursor: record.since,
            thread: record.events.first().map(|e| e.pid),
            class: None,
            idle: None,
            guest: false,
            stack: Vec::new(),
            put_aside: HashMap::new(),
            work: HashMap::new(),
            garbled: 0,
            missed_switches: 0,
        };
        let mut depth = 0usize;
        for event in &record.events {
            match event.what {
                EventKind::Switch { prev, .. } => {
                    fold.class = Some(prev);
                    break;
                }
                EventKind::KvmEntry { .. } => break,
                EventKind::KvmExit { .. } => {
                    fold.guest = true;
                    break;
                }
                _ => {}
            }
        }
        // A context that ends but never began was active before the first event.
        for event in &record.events {
            if matches!(event.what, EventKind::Switch { .. }) || fold.stack.len() == DEEPEST {
                break;
            }
            match event.what.edge() {
                Some((true, _)) => depth += 1,
                Some((false, _)) if depth > 0 => depth -= 1,
                // The innermost ends first.
                Some((false, ended)) => fold.stack.insert(0, ended),
                None => {}
            }
        }
        fold
    }

    fn doing(&self) -> Doing {
        if let Some(context) = self.stack.last() {
            return *context;
        }
        match self.thread {
            None => Doing::Unknown,
            Some(0) => Doing::Idle { state: self.idle },
            Some(pid) => {
                Doing::Thread(Running { pid, class: self.class, guest: self.guest, work: self.work.get(&pid).copied() })
            }
        }
    }

    /// The assumed activity if the switch away from a thread is missing: it most likely ran until the next event of
    /// another thread.
    fn last_switched_to(&self) -> Doing {
        match (self.doing(), self.class) {
            (Doing::Thread(r), Some(_)) => Doing::Thread(Running { guest: false, work: None, ..r }),
            _ => Doing::Unknown,
        }
    }

    fn push(&mut self, to: Ns, doing: Doing) {
        if to <= self.cursor {
            return;
        }
        let tile = CpuTile { from: self.cursor, to, doing, thread: self.thread };
        self.cursor = to;
        match self.tiles.last_mut() {
            Some(last) if last.doing == tile.doing && last.thread == tile.thread => last.to = to,
            _ => self.tiles.push(tile),
        }
    }

    fn event(&mut self, event: &Event) {
        if let EventKind::Nmi { took } = event.what {
            self.push(event.t.saturating_sub(took.max(0)), self.doing());
            self.push(event.t, Doing::Nmi);
            return;
        }
        if self.thread.is_some_and(|pid| pid != event.pid) {
            self.missed_switches += 1;
            let last = self.last_switched_to();
            self.thread = None;
            self.push(event.t, last);
        }
        if self.thread.is_none() {
            self.push(event.t, Doing::Unknown);
            (self.thread, self.class, self.idle, self.guest) = (Some(event.pid), None, None, false);
            self.stack.clear();
        }
        self.push(event.t, self.doing());
        match event.what {
            EventKind::Switch { next, prev, next_class, .. } => {
                self.was(event.pid, prev);
                self.switch(event.pid, next, next_class);
            }
            EventKind::Idle(state) => self.idle = state,
            EventKind::KvmEntry { .. } => self.guest = true,
            EventKind::KvmExit { .. } => self.guest = false,
            EventKind::WorkStart(function) => drop(self.work.insert(event.pid, function)),
            EventKind::WorkEnd => drop(self.work.remove(&event.pid)),
            what => match what.edge() {
                Some((true, context)) if self.stack.len() < DEEPEST => self.stack.push(context),
                Some((true, _)) => self.garbled += 1,
                Some((false, ended)) => self.garbled += end(&mut self.stack, ended),
                None => {}
            },
        }
    }

    /// Sets the class of a thread that leaves the CPU. If its policy differs from that at its arrival, it was changed
    /// in the meantime (chrt); the tiles get the later policy, which matters if the thread caused a delay.
    fn was(&mut self, pid: u32, class: Class) {
        if self.class.is_none_or(|known| known.policy == class.policy) {
            return;
        }
        for tile in self.tiles.iter_mut().rev().take_while(|tile| tile.thread == Some(pid)) {
            if let Doing::Thread(running) = &mut tile.doing {
                running.class = Some(class);
            }
        }
    }

    fn switch(&mut self, prev: u32, next: u32, class: Class) {
        // Threads are not switched within an interrupt, so the end of an open interrupt was lost. Softirqs may be
        // interrupted by a switch on PREEMPT_RT.
        let (before, mut in_softirq) = (self.stack.len(), false);
        self.stack.retain(|context| {
            in_softirq = matches!(context, Doing::Softirq(_)) || in_softirq && matches!(context, Doing::Timer(_));
            in_softirq
        });
        self.garbled += (before - self.stack.len()) as u64;
        let aside = std::mem::take(&mut self.stack);
        if !aside.is_empty() && prev != 0 {
            self.put_aside.insert(prev, aside);
        }
        self.stack = self.put_aside.remove(&next).unwrap_or_default();
        (self.thread, self.class, self.guest, self.idle) = (Some(next), Some(class), false, None);
    }
}

impl CpuTimeline {
    /// Builds the timeline from a CPU's events; it ends at `to`.
    pub fn of(record: &CpuRecord, to: Ns) -> Self {
        let mut fold = Fold::before(record);
        for event in record.events.iter().take_while(|e| e.t < to) {
            fold.event(event);
        }
        fold.push(to, fold.doing());
        let Fold { tiles, garbled, missed_switches, .. } = fold;
        Self { cpu: record.cpu, tiles, garbled, missed_switches }
    }

    /// The tiles from exactly `from` to exactly `to`, without gaps.
    pub fn between(&self, from: Ns, to: Ns) -> Vec<CpuTile> {
        let mut found: Vec<CpuTile> = Vec::new();
        let mut cursor = from;
        let unknown = |from, to| CpuTile { from, to, doing: Doing::Unknown, thread: None };
        let first = self.tiles.partition_point(|tile| tile.to <= from);
        for tile in self.tiles[first..].iter().take_while(|tile| tile.from < to) {
            if tile.from > cursor {
                found.push(unknown(cursor, tile.from));
            }
            let cut = CpuTile { from: tile.from.max(from), to: tile.to.min(to), ..*tile };
            cursor = cut.to;
            found.push(cut);
        }
        if cursor < to {
            found.push(unknown(cursor, to));
        }
        found
    }

    /// The activity at `t`, if recorded.
    pub fn at(&self, t: Ns) -> Doing {
        let at = self.tiles.partition_point(|tile| tile.to <= t);
        let here = self.tiles.get(at).filter(|tile| tile.from <= t && !tile.is_assumed());
        here.map_or(Doing::Unknown, |tile| tile.doing)
    }

    /// Total time per activity, longest first. Time in a guest or in a work item is counted as the thread's.
    pub fn shares(&self, from: Ns, to: Ns) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        for tile in self.between(from, to) {
            let doing = match tile.doing {
                _ if tile.is_assumed() => Doing::Unknown,
                Doing::Thread(r) => Doing::Thread(Running { guest: false, work: None, ..r }),
                Doing::Idle { .. } => Doing::Idle { state: None },
                other => other,
            };
            let same = |s: &&mut Share| match (s.doing, doing) {
                (Doing::Thread(a), Doing::Thread(b)) => a.pid == b.pid,
                (a, b) => a == b,
            };
            match shares.iter_mut().find(same) {
                Some(share) => share.ns += tile.to - tile.from,
                None => shares.push(Share { doing, ns: tile.to - tile.from }),
            }
        }
        shares.sort_by_key(|s| std::cmp::Reverse(s.ns));
        shares
    }
}

/// Total time of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The activity.
    pub doing: Doing,
    /// Total time, ns.
    pub ns: Ns,
}
