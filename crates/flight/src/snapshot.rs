//! A window with all names that are needed to read it elsewhere, later.

mod codec;

pub use codec::{BadSnapshot, SnapshotLimits, MAX_ENCODED};

use crate::event::{Event, What};
use crate::idle::IdleStates;
use crate::names::{Names, Thread};
use crate::recorder::Recorder;
use crate::unit::unit_of;
use crate::window::{CpuRecord, Window};
use latpath_bpf::interrupts;
use latpath_bpf::Functions;
use latpath_model::{text::printable, Ns};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum threads whose names one snapshot reads from /proc, because the recorder has none: each costs a system call or two.
const ASKED: usize = 64;
/// Maximum processes whose control groups are read for one snapshot: each costs a system call or two.
const MAX_UNITS_READ: usize = 32;

/// A [`Window`], and the names for its numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What happened, in the machine's own `CLOCK_MONOTONIC`.
    pub window: Window,
    /// Threads that the window names, and the first threads of their processes.
    pub threads: BTreeMap<u32, Thread>,
    /// The systemd unit, or the control group, of each of these processes that has one and still ran, by the process's number;
    /// none from a latpath that did not read them.
    pub units: BTreeMap<u32, String>,
    /// Interrupts likewise, as /proc/interrupts calls them.
    pub irqs: BTreeMap<u32, String>,
    /// Functions of timers and works likewise, by address.
    pub functions: BTreeMap<u64, String>,
    /// Idle states of all CPUs, as they were called when the recorder began; none from a latpath that did not ask for them.
    pub idle_states: IdleStates,
    /// What the machine's kernel does not offer: lines for people.
    pub missing: Vec<String>,
}

impl Snapshot {
    /// Adds names of interrupts and functions, read from this machine's /proc now, which takes some 0.1 s.
    pub fn add_names(&mut self) {
        let Numbers { irqs, functions, places, .. } = Numbers::of(&self.window);
        let (names, known) = (interrupts(), Functions::read());
        self.irqs.extend(irqs.iter().filter_map(|n| Some((*n, names.get(n)?.clone()))));
        self.functions.extend(functions.iter().filter_map(|at| Some((*at, known.at(*at)?.to_owned()))));
        self.functions.extend(places.iter().filter_map(|at| Some((*at, known.find(*at)?.to_owned()))));
    }

    /// Approximate memory, bytes.
    pub fn bytes(&self) -> usize {
        /// A name's place in a map, and its allocation.
        const EACH: usize = 64;
        let events: usize = self.window.cpus.iter().map(|cpu| cpu.events.capacity()).sum();
        let threads = self.threads.values().map(|thread| EACH + thread.name.len());
        let names = self.irqs.values().chain(self.functions.values()).chain(self.units.values()).chain(&self.missing);
        let names = names.map(|name| EACH + name.len());
        let idle = self.idle_states.from.values().flatten().map(|name| EACH + name.len());
        events * size_of::<Event>()
            + self.window.cpus.len() * size_of::<CpuRecord>()
            + threads.chain(names).chain(idle).sum::<usize>()
    }

    /// The names, as they were.
    pub fn names(&self) -> Names {
        Names::recorded_with(self.threads.clone(), self.irqs.clone(), self.functions.clone(), self.idle_states.clone())
    }
}

/// What a window gives as numbers.
#[derive(Default)]
struct Numbers {
    threads: BTreeSet<u32>,
    irqs: BTreeSet<u32>,
    functions: BTreeSet<u64>,
    /// Addresses in functions.
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
                    What::Switch { next: pid, .. }
                    | What::Waking { pid, .. }
                    | What::Wakeup { pid, .. }
                    | What::Migrate { pid, .. } => drop(found.threads.insert(pid)),
                    What::IrqEntry(number) | What::IrqExit(number) => drop(found.irqs.insert(number)),
                    What::TimerEntry(function) | What::HrtimerEntry(function) | What::WorkStart(function) => {
                        found.functions.insert(function);
                    }
                    What::BlockedAt(places) => found.places.extend(places.into_iter().filter(|at| *at != 0)),
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
    /// A [`window`](Self::window), with the names of all that is in it. Waits for nothing: names of interrupts and
    /// functions are read in the background from [`learn`](Self::learn) on, or from the first snapshot on, which then lacks them; so
    /// does one with a new interrupt, or with a function of a module that has just been loaded.
    pub fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        let mut snapshot = self.snapshot_of_threads(from, to);
        let numbers = Numbers::of(&snapshot.window);
        (snapshot.irqs, snapshot.functions) = self.learnt().names(&numbers.irqs, &numbers.functions, &numbers.places);
        snapshot
    }

    /// The same with the names of threads alone: where the machine must not be disturbed by learning others.
    pub fn snapshot_of_threads(&self, from: Ns, to: Ns) -> Snapshot {
        let window = self.window(from, to);
        let numbers = Numbers::of(&window);
        let mut asked = 0;
        let mut thread = |pid: u32| {
            let known = self.recorded(pid).or_else(|| {
                asked += 1;
                (asked <= ASKED).then(|| self.thread(pid)).flatten()
            });
            Some((pid, known?))
        };
        let mut threads: BTreeMap<u32, Thread> = numbers.threads.into_iter().filter_map(&mut thread).collect();
        let processes: BTreeSet<u32> = threads.values().map(|thread| thread.tgid).collect();
        let leaders: Vec<u32> = processes.iter().copied().filter(|pid| !threads.contains_key(pid)).collect();
        threads.extend(leaders.into_iter().filter_map(thread));
        let units = processes.into_iter().take(MAX_UNITS_READ).filter_map(|pid| Some((pid, unit_of(pid)?))).collect();
        let missing = self.missing().iter().map(|missing| printable(&missing.to_string())).collect();
        let idle_states = self.idle().clone();
        Snapshot { window, threads, units, idle_states, missing, ..Snapshot::default() }
    }

    /// Begins to learn the names of interrupts and of the kernel's functions, in a thread of its own (some 0.1 s).
    pub fn learn(&self) {
        self.learnt().begin();
    }

    /// Whether [`learn`](Self::learn) is done.
    pub fn has_learnt(&self) -> bool {
        self.learnt().is_done()
    }
}

#[cfg(test)]
mod tests;
