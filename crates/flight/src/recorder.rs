//! A running recorder.

use crate::attach::{attach, shift, Memory};
use crate::budget::{Budget, Ppm};
use crate::hooks::Scope;
use crate::idle::IdleStates;
use crate::keeper::{lock, Control, Keeper};
use crate::layout::{RawName, NAMES, UNKNOWN};
use crate::learnt::Learnt;
use crate::names::Thread;
use crate::upcalls::{FlowLimits, Upcall, Upcalls};
use crate::window::{Rings, Window};
use latpath_bpf::{AttachedProgram, Mapped, Missing, StartError};
use latpath_linux::proc::{self, field};
use latpath_linux::{monotonic, Cpus};
use latpath_model::text::{of_field, printable};
use latpath_model::Ns;
use libbpf_rs::MapHandle;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records until it is dropped.
pub struct Recorder {
    control: Arc<Mutex<Control>>,
    /// Enforces the budget, if one is set.
    keeper: Option<Keeper>,
    stops: MapHandle,
    memory: Memory,
    names: Mapped<RawName>,
    started: Ns,
    learnt: Learnt,
    idle: IdleStates,
    /// `None` if upcalls are not requested or cannot be recorded, or if the kernel has no Open vSwitch.
    upcalls: Option<Mutex<Upcalls>>,
    /// Why upcalls are not recorded, although the kernel may have Open vSwitch.
    no_upcalls: Option<Missing>,
}

/// Cost of one program, if measured by the kernel ([`latpath_bpf::measure`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// Name of the program.
    pub name: &'static str,
    /// Number of runs.
    pub runs: u64,
    /// Total time, ns, including the overhead of measuring.
    pub ns: u64,
}

/// Figures of a recorder, on this machine or another.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Number of events so far.
    pub events: u64,
    /// Number of events missed because the same program was already running on that CPU.
    pub missed: u64,
    /// Memory for events and names, bytes.
    pub bytes: u64,
    /// Mean cost of an event within its program, ns, sampled from one in 64; `None` until enough were measured.
    pub ns_per_event: Option<u64>,
    /// Budget, ppm of all CPUs' time; `None` from versions without a budget.
    pub budget_ppm: Option<Ppm>,
    /// Mean share of CPU time used since the start of the recording, ppm.
    pub cost_ppm: Option<Ppm>,
    /// Time in which it recorded fewer events because of the budget, ns.
    pub reduced_ns: u64,
    /// Time in which it recorded nothing because of the budget, ns.
    pub paused_ns: u64,
    /// Number of windows sent to another machine.
    pub windows: u64,
    /// Features that its kernel lacks, formatted for display.
    pub missing: Vec<String>,
}

impl Figures {
    /// Describes what was omitted because of the budget; `None` if nothing was.
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
    /// Memory per CPU, bytes: 1 MiB, which holds the events of some tenths of a second on a busy CPU.
    pub const BYTES_PER_CPU: usize = 1 << 20;

    /// Loads the programs and attaches those that this kernel supports. `bytes_per_cpu`: memory for each CPU's events,
    /// rounded down to a power of two, 64 KiB to 256 MiB. An event takes 32 bytes.
    ///
    /// # Errors
    /// This kernel or user cannot trace, or the kernel does not report switches.
    pub fn start(bytes_per_cpu: usize) -> Result<Self, StartError> {
        Self::start_for(Scope::Causes, bytes_per_cpu)
    }

    /// Like [`Self::start`], with another set of events.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_for(scope: Scope, bytes_per_cpu: usize) -> Result<Self, StartError> {
        let attached = attach(shift(bytes_per_cpu), scope)?;
        let started = monotonic();
        let (upcalls, no_upcalls) = match scope {
            Scope::Causes => match Upcalls::start() {
                Ok(upcalls) => (upcalls.map(Mutex::new), None),
                Err(missing) => (None, Some(missing)),
            },
            Scope::Transfers | Scope::Door => (None, None),
        };
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
            upcalls,
            no_upcalls,
        })
    }

    /// Events that are not recorded on this kernel, or not at present.
    pub fn missing(&self) -> Vec<Missing> {
        let mut missing = lock(&self.control).programs.missing.clone();
        missing.extend(self.no_upcalls.clone());
        missing.extend(self.upcalls().iter().flat_map(|upcalls| upcalls.missing()).cloned());
        missing
    }

    fn upcalls(&self) -> Option<MutexGuard<'_, Upcalls>> {
        Some(self.upcalls.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The upcalls of Open vSwitch in `from..to`, both `CLOCK_MONOTONIC`, and its limits of flows, if they are known.
    pub(crate) fn upcalls_between(&self, from: Ns, to: Ns) -> (Vec<Upcall>, Option<FlowLimits>) {
        self.upcalls().map_or_else(Default::default, |mut upcalls| upcalls.between(from, to))
    }

    /// Time of the start, `CLOCK_MONOTONIC`, ns.
    pub fn started(&self) -> Ns {
        self.started
    }

    pub(crate) fn learnt(&self) -> &Learnt {
        &self.learnt
    }

    pub(crate) fn idle(&self) -> &IdleStates {
        &self.idle
    }

    /// Whether this program of bpf/ is attached.
    pub fn has(&self, program: &str) -> bool {
        lock(&self.control).programs.has(program)
    }

    /// The rings, limited to the interval around `to` in which all programs were attached.
    pub(crate) fn rings(&self, to: Ns) -> Rings<'_> {
        let Memory { ring, heads, rings, shift, .. } = &self.memory;
        let (started, until) = lock(&self.control).recorded_around(self.started, to);
        Rings { ring, heads, cpus: *rings, shift: *shift, started, until }
    }

    /// Sets the maximum share of the machine's CPU time for recording from now on. A thread reduces the recorded events
    /// if they would cost more, and restores them when possible.
    ///
    /// # Errors
    /// The thread cannot be started.
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

    /// Copies the events of all CPUs in `from..to`, both `CLOCK_MONOTONIC`, without stopping the recording. Takes about
    /// 0.1 ms per CPU for recent times; events are read without system calls.
    pub fn window(&self, from: Ns, to: Ns) -> Window {
        let rings = self.rings(to);
        // CPUs that never recorded are skipped: not every possible CPU exists.
        let cpus =
            (0..self.memory.cpus).filter(|cpu| rings.written(*cpu) > 0).map(|cpu| rings.read(cpu, from, to)).collect();
        Window { from, to, cpus }
    }

    /// A thread's entry in the recorder's own table.
    pub(crate) fn recorded(&self, pid: u32) -> Option<Thread> {
        let (table, place) = (&self.names, pid as usize % NAMES);
        let raw = table.get(place);
        // The TID is written last, so it differs if the entry was changed while it was read.
        let whole = raw.pid == pid && pid != 0 && pid != UNKNOWN && table.get(place).pid == pid;
        whole.then(|| Thread { name: printable(&of_field(&raw.comm)), tgid: raw.tgid })
    }

    /// The name of a thread, even one that has ended: from the recorder's table, otherwise from /proc.
    pub fn thread(&self, pid: u32) -> Option<Thread> {
        let ask = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            Some(Thread { name: printable(field(&status, "Name")?), tgid: field(&status, "Tgid")?.parse().ok()? })
        };
        self.recorded(pid).or_else(ask)
    }

    /// Measured costs of the programs.
    pub fn programs(&self) -> Vec<ProgramCost> {
        let cost = |program: &AttachedProgram| {
            let info = program.info()?;
            Some(ProgramCost { name: program.name, runs: info.run_cnt, ns: info.run_time_ns })
        };
        let mut costs: Vec<ProgramCost> = lock(&self.control).programs.attached.iter().filter_map(cost).collect();
        costs.extend(self.upcalls().iter().flat_map(|upcalls| upcalls.attached()).filter_map(cost));
        costs
    }

    /// Figures of the recorder.
    pub fn figures(&self) -> Figures {
        let mut upcalls = (0, 0);
        if let Some(mut recorded) = self.upcalls() {
            // Read the records regularly, before the programs' buffer is full.
            recorded.read();
            upcalls = (recorded.missed(), Upcalls::BYTES);
        }
        let missing = self.missing().iter().map(ToString::to_string).collect();
        let control = lock(&self.control);
        let budget = control.budget.as_ref();
        let spent = budget.map(|budget| budget.spent).unwrap_or_default();
        Figures {
            events: control.counted().events,
            missed: control.programs.missed() + upcalls.0,
            bytes: (((self.memory.rings as u64) << self.memory.shift) + NAMES as u64) * 32 + upcalls.1,
            ns_per_event: control.ns_per_event(),
            budget_ppm: budget.map(Budget::ppm),
            cost_ppm: budget.map(|budget| budget.cost_ppm(monotonic() - self.started)),
            reduced_ns: spent.reduced_ns,
            paused_ns: spent.paused_ns,
            windows: 0,
            missing,
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Detach the programs before their memory is freed.
        self.keeper = None;
        lock(&self.control).programs.attached.clear();
    }
}
