//! A window with all names needed to read it elsewhere or later.

mod codec;

pub use codec::{BadSnapshot, SnapshotLimits, MAX_ENCODED};

use crate::event::{Event, EventKind};
use crate::idle::IdleStates;
use crate::names::{Names, Thread};
use crate::recorder::Recorder;
use crate::unit::unit_and_owner;
use crate::upcalls::{FlowLimits, Upcall};
use crate::window::{CpuRecord, Window};
use latpath_bpf::interrupts;
use latpath_bpf::Functions;
use latpath_model::{text::printable, Ns};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of threads per snapshot whose names are read from /proc, because the recorder lacks them; each costs
/// 1 to 2 system calls.
const MAX_NAMES_READ: usize = 64;
/// Maximum number of processes per snapshot whose control groups are read; each costs 1 to 2 system calls.
const MAX_UNITS_READ: usize = 32;

/// A [`Window`], and names for the numbers in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The events, in the machine's own `CLOCK_MONOTONIC`.
    pub window: Window,
    /// Threads in the window, and the main threads of their processes, by TID.
    pub threads: BTreeMap<u32, Thread>,
    /// Systemd unit, or otherwise control group, of those processes that have one and were alive, by PID; empty from
    /// versions that did not record them.
    pub units: BTreeMap<u32, String>,
    /// Owners of these processes by PID, in the format of [`latpath_linux::Owner::label`]: `pod shop/web-0`; empty from
    /// versions that did not record them.
    pub owners: BTreeMap<u32, String>,
    /// Names of the interrupts in the window, from /proc/interrupts.
    pub irqs: BTreeMap<u32, String>,
    /// Names of the functions in the window, by address.
    pub functions: BTreeMap<u64, String>,
    /// Idle states of all CPUs when the recorder was started; empty from versions that did not record them.
    pub idle_states: IdleStates,
    /// Upcalls of Open vSwitch in the window: packets for which it had no flow; empty from versions that did not record
    /// them.
    pub upcalls: Vec<Upcall>,
    /// Open vSwitch's limits of flows, if they were requested, because of upcalls, and could be read.
    pub flow_limits: Option<FlowLimits>,
    /// Features that the machine's kernel lacks, formatted for display.
    pub missing: Vec<String>,
}

impl Snapshot {
    /// Adds names of interrupts and functions from this machine's /proc, which takes about 0.1 s.
    pub fn add_names(&mut self) {
        let Numbers { irqs, functions, places, .. } = Numbers::of(&self.window);
        let (names, known) = (interrupts(), Functions::read());
        self.irqs.extend(irqs.iter().filter_map(|n| Some((*n, names.get(n)?.clone()))));
        self.functions.extend(functions.iter().filter_map(|at| Some((*at, known.at(*at)?.to_owned()))));
        self.functions.extend(places.iter().filter_map(|at| Some((*at, known.find(*at)?.to_owned()))));
    }

    /// Approximate memory usage, bytes.
    pub fn bytes(&self) -> usize {
        /// Overhead of a name in a map, with its allocation, bytes.
        const EACH: usize = 64;
        let events: usize = self.window.cpus.iter().map(|cpu| cpu.events.capacity()).sum();
        let threads = self.threads.values().map(|thread| EACH + thread.name.len());
        let names =
            self.irqs.values().chain(self.functions.values()).chain(self.units.values()).chain(self.owners.values());
        let names = names.chain(&self.missing);
        let names = names.map(|name| EACH + name.len());
        let idle = self.idle_states.from.values().flatten().map(|name| EACH + name.len());
        events * size_of::<Event>()
            + self.window.cpus.len() * size_of::<CpuRecord>()
            + self.upcalls.len() * (size_of::<Upcall>() + EACH)
            + threads.chain(names).chain(idle).sum::<usize>()
    }

    /// The names of the snapshot.
    pub fn names(&self) -> Names {
        Names::recorded_with(self.threads.clone(), self.irqs.clone(), self.functions.clone(), self.idle_states.clone())
    }
}

/// The IDs, numbers and addresses in a window that need names.
#[derive(Default)]
struct Numbers {
    threads: BTreeSet<u32>,
    irqs: BTreeSet<u32>,
    functions: BTreeSet<u64>,
    /// Addresses within functions.
    places: BTreeSet<u64>,
}

impl Numbers {
    fn of(window: &Window) -> Self {
        let mut found = Self::default();
        for cpu in &window.cpus {
            let mut last = 0;
            for event in &cpu.events {
                if event.pid != last {
                    last = event.pid;
                    found.threads.insert(last);
                }
                match event.what {
                    EventKind::Switch { next: pid, .. }
                    | EventKind::Waking { pid, .. }
                    | EventKind::Wakeup { pid, .. }
                    | EventKind::Migrate { pid, .. } => drop(found.threads.insert(pid)),
                    EventKind::IrqEntry(number) | EventKind::IrqExit(number) => drop(found.irqs.insert(number)),
                    EventKind::TimerEntry(function)
                    | EventKind::HrtimerEntry(function)
                    | EventKind::WorkStart(function) => {
                        found.functions.insert(function);
                    }
                    EventKind::BlockedAt(places) => found.places.extend(places.into_iter().filter(|at| *at != 0)),
                    _ => {}
                }
            }
        }
        // The idle thread has no name.
        found.threads.remove(&0);
        found
    }
}

impl Recorder {
    /// A [`window`](Self::window) with the names of everything in it. Never waits: names of interrupts and functions
    /// are read in the background, starting at [`learn`](Self::learn) or at the first snapshot. That snapshot lacks
    /// them, as does one with a new interrupt or with a function of a module just loaded.
    pub fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        let mut snapshot = self.snapshot_of_threads(from, to);
        let numbers = Numbers::of(&snapshot.window);
        (snapshot.irqs, snapshot.functions) = self.learnt().names(&numbers.irqs, &numbers.functions, &numbers.places);
        snapshot
    }

    /// Like [`snapshot`](Self::snapshot), with the names of threads only, for times when reading other names would
    /// disturb the machine.
    pub fn snapshot_of_threads(&self, from: Ns, to: Ns) -> Snapshot {
        let window = self.window(from, to);
        let (upcalls, flow_limits) = self.upcalls_between(from, to);
        let mut numbers = Numbers::of(&window);
        numbers.threads.extend(upcalls.iter().filter_map(|upcall| Some(upcall.read?.0)));
        let mut asked = 0;
        let mut thread = |pid: u32| {
            let known = self.recorded(pid).or_else(|| {
                asked += 1;
                (asked <= MAX_NAMES_READ).then(|| self.thread(pid)).flatten()
            });
            Some((pid, known?))
        };
        let mut threads: BTreeMap<u32, Thread> = numbers.threads.into_iter().filter_map(&mut thread).collect();
        let processes: BTreeSet<u32> = threads.values().map(|thread| thread.tgid).collect();
        let leaders: Vec<u32> = processes.iter().copied().filter(|pid| !threads.contains_key(pid)).collect();
        threads.extend(leaders.into_iter().filter_map(thread));
        let (mut units, mut owners) = (BTreeMap::new(), BTreeMap::new());
        for pid in processes.into_iter().take(MAX_UNITS_READ) {
            let (unit, owner) = unit_and_owner(pid);
            units.extend(unit.map(|unit| (pid, unit)));
            owners.extend(owner.map(|owner| (pid, owner)));
        }
        let missing = self.missing().iter().map(|missing| printable(&missing.to_string())).collect();
        let idle_states = self.idle().clone();
        Snapshot { window, threads, units, owners, idle_states, upcalls, flow_limits, missing, ..Snapshot::default() }
    }

    /// Starts reading the names of interrupts and of the kernel's functions on another thread (about 0.1 s).
    pub fn learn(&self) {
        self.learnt().begin();
    }

    /// Whether [`learn`](Self::learn) is complete.
    pub fn has_learnt(&self) -> bool {
        self.learnt().is_done()
    }
}

#[cfg(test)]
mod tests;
