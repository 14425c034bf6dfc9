//! The recorder, running.

use crate::attach::{attach, shift, Memory};
use crate::budget::{Budget, Ppm};
use crate::hooks::Scope;
use crate::idle::IdleStates;
use crate::keeper::{lock, Control, Keeper};
use crate::layout::{RawName, NAMES, UNKNOWN};
use crate::learnt::Learnt;
use crate::names::Thread;
use crate::window::{Rings, Window};
use latpath_bpf::{Mapped, Missing, Standing, StartError};
use latpath_linux::proc::{self, field};
use latpath_linux::{monotonic, Cpus};
use latpath_model::text::{of_field, printable};
use latpath_model::Ns;
use libbpf_rs::MapHandle;
use std::io;
use std::sync::{Arc, Mutex};

/// Records until it is dropped.
pub struct Recorder {
    control: Arc<Mutex<Control>>,
    /// Enforces the budget, where one is set.
    keeper: Option<Keeper>,
    stops: MapHandle,
    memory: Memory,
    names: Mapped<RawName>,
    started: Ns,
    learnt: Learnt,
    idle: IdleStates,
}

/// What one program costs, as far as the kernel has measured it ([`latpath_bpf::measure`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    pub name: &'static str,
    /// How often it ran.
    pub runs: u64,
    /// How long in all, with what measuring it adds.
    pub ns: u64,
}

/// How a recorder does, this machine's or another's: plain numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Events so far.
    pub events: u64,
    /// Events that were missed because the same program was running already on that CPU.
    pub missed: u64,
    /// Memory for events and names, in bytes.
    pub bytes: u64,
    /// What an event cost within its program on average, as one in 64 shows; `None` until enough have come.
    pub ns_per_event: Option<u64>,
    /// CPU time that it may take, in millionths of all CPUs' time; `None` from a latpath without a budget.
    pub budget_ppm: Option<Ppm>,
    /// What it took of that, on average over the recording.
    pub cost_ppm: Option<Ppm>,
    /// Time in which it recorded fewer events to stay within the budget, ns.
    pub reduced_ns: u64,
    /// Time in which it recorded nothing for the same reason, ns.
    pub paused_ns: u64,
    /// Windows that it has sent to another machine.
    pub windows: u64,
    /// What its kernel does not offer: lines for people.
    pub missing: Vec<String>,
}

impl Figures {
    /// What the budget made the recorder leave out, for people; `None` where that is nothing.
    pub fn left_out(&self) -> Option<String> {
        let seconds = |ns: u64| format!("{:.1} s", ns as f64 / 1e9);
        let what = match (self.reduced_ns, self.paused_ns) {
            (0, 0) => return None,
            (reduced, 0) => format!("recorded fewer events for {}", seconds(reduced)),
            (0, paused) => format!("recorded nothing for {}", seconds(paused)),
            (reduced, paused) => {
                format!("recorded fewer events for {} and nothing for {}", seconds(reduced), seconds(paused))
            }
        };
        let budget = self.budget_ppm.unwrap_or_default() as f64 / 1e4;
        Some(format!(
            "the flight recorder {what}: this machine switched threads so often that recording all would have cost more \
             than its budget of {budget} % of all CPUs (--flight-budget); causes of late packets of that time are unknown or \
             less exact"
        ))
    }
}

impl Recorder {
    /// Memory for each CPU's events that is enough for some tenths of a second of a busy CPU: 1 MiB.
    pub const BYTES_PER_CPU: usize = 1 << 20;

    /// Loads the programs and attaches those that this kernel takes. `bytes_per_cpu` is the memory for each CPU's events, rounded
    /// down to a power of two, at least 64 KiB and at most 256 MiB. An event takes 32 bytes.
    ///
    /// # Errors
    /// Where this kernel or user cannot trace at all, or the kernel does not say which thread runs.
    pub fn start(bytes_per_cpu: usize) -> Result<Self, StartError> {
        Self::start_for(Scope::Causes, bytes_per_cpu)
    }

    /// The same for other events than those that explain late packets.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_for(scope: Scope, bytes_per_cpu: usize) -> Result<Self, StartError> {
        let attached = attach(shift(bytes_per_cpu), scope)?;
        let started = monotonic();
        let control = Control::new(attached.programs, attached.keepers, attached.allowance);
        Ok(Self {
            control: Arc::new(Mutex::new(control)),
            keeper: None,
            stops: attached.stops,
            memory: attached.memory,
            names: attached.names,
            started,
            learnt: Learnt::default(),
            idle: IdleStates::of_this_machine(),
        })
    }

    /// What is not recorded on this kernel, or not now.
    pub fn missing(&self) -> Vec<Missing> {
        lock(&self.control).programs.missing.clone()
    }

    /// When it began, `CLOCK_MONOTONIC`.
    pub fn started(&self) -> Ns {
        self.started
    }

    pub(crate) fn learnt(&self) -> &Learnt {
        &self.learnt
    }

    pub(crate) fn idle(&self) -> &IdleStates {
        &self.idle
    }

    /// Whether this program of bpf/ stands.
    pub fn has(&self, program: &str) -> bool {
        lock(&self.control).programs.has(program)
    }

    /// The rings, for the time around `to` in which all programs stood.
    pub(crate) fn rings(&self, to: Ns) -> Rings<'_> {
        let Memory { ring, heads, rings, shift, .. } = &self.memory;
        let (started, until) = lock(&self.control).recorded_around(self.started, to);
        Rings { ring, heads, cpus: *rings, shift: *shift, started, until }
    }

    /// Sets the part of the machine's CPU time that recording may take from now on. A thread sees to it that fewer events are recorded
    /// where they would cost more, and more again where there is room for them.
    ///
    /// # Errors
    /// Where there can be no such thread.
    pub fn set_budget(&mut self, budget: Ppm) -> io::Result<()> {
        let cpus = proc::line("/sys/devices/system/cpu/online").parse::<Cpus>().map_or(1, |cpus| cpus.iter().count());
        let mut control = lock(&self.control);
        let budget = Budget::new(budget, cpus.max(1), monotonic(), control.counted());
        control.set_budget(budget);
        drop(control);
        if self.keeper.is_none() {
            let stops = MapHandle::try_from(&self.stops).map_err(io::Error::other)?;
            self.keeper = Some(Keeper::start(Arc::clone(&self.control), stops)?);
        }
        Ok(())
    }

    /// What all CPUs did from one time to another, both `CLOCK_MONOTONIC`, without stopping the recording. Takes some 0.1 ms for
    /// each CPU if that was just now; no system call for events.
    pub fn window(&self, from: Ns, to: Ns) -> Window {
        let rings = self.rings(to);
        // A CPU that has never recorded is none: possible CPUs need not be there.
        let cpus =
            (0..self.memory.cpus).filter(|cpu| rings.written(*cpu) > 0).map(|cpu| rings.read(cpu, from, to)).collect();
        Window { from, to, cpus }
    }

    /// What the recorder's own table has of a thread.
    pub(crate) fn recorded(&self, pid: u32) -> Option<Thread> {
        let (table, place) = (&self.names, pid as usize % NAMES);
        let raw = table.get(place);
        // The number was written last: a name that has changed since is not taken for this thread's.
        let whole = raw.pid == pid && pid != 0 && pid != UNKNOWN && table.get(place).pid == pid;
        whole.then(|| Thread { name: printable(&of_field(&raw.comm)), tgid: raw.tgid })
    }

    /// What is known of a thread, also of one that is gone: by the recorder's table, else by /proc.
    pub fn thread(&self, pid: u32) -> Option<Thread> {
        let ask = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            Some(Thread { name: printable(field(&status, "Name")?), tgid: field(&status, "Tgid")?.parse().ok()? })
        };
        self.recorded(pid).or_else(ask)
    }

    /// What each program has cost while that was measured.
    pub fn programs(&self) -> Vec<ProgramCost> {
        let cost = |program: &Standing| {
            let info = program.info()?;
            Some(ProgramCost { name: program.name, runs: info.run_cnt, ns: info.run_time_ns })
        };
        lock(&self.control).programs.standing.iter().filter_map(cost).collect()
    }

    /// How it does.
    pub fn figures(&self) -> Figures {
        let control = lock(&self.control);
        let budget = control.budget.as_ref();
        let spent = budget.map(|budget| budget.spent).unwrap_or_default();
        Figures {
            events: control.counted().events,
            missed: control.programs.missed(),
            bytes: (((self.memory.rings as u64) << self.memory.shift) + NAMES as u64) * 32,
            ns_per_event: control.ns_per_event(),
            budget_ppm: budget.map(Budget::ppm),
            cost_ppm: budget.map(|budget| budget.cost_ppm(monotonic() - self.started)),
            reduced_ns: spent.reduced_ns,
            paused_ns: spent.paused_ns,
            windows: 0,
            missing: control.programs.missing.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Programs first, then what they write to.
        self.keeper = None;
        lock(&self.control).programs.standing.clear();
    }
}
