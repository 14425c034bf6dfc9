//! The recorder, running.

use crate::attach::{attach, shift, Attached};
use crate::budget::{Budget, Counts, Gaps, Level, Mix, Ppm};
use crate::hooks::Scope;
use crate::idle::IdleStates;
use crate::layout::{NAMES, UNKNOWN};
use crate::learnt::Learnt;
use crate::names::Thread;
use crate::window::{Rings, Window};
use latpath_bpf::{measure, Missing, Standing, StartError};
use latpath_linux::proc::{self, field};
use latpath_linux::{monotonic, Cpus};
use latpath_model::text::{of_field, printable};
use latpath_model::Ns;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Least number of runs for a measurement of what one costs.
const FEWEST: u64 = 64;
/// Interval at which the machine's activity is read, ns: the file is long on machines with many interrupts. The second is for
/// times in which fewer events are recorded.
const ACTIVITY_EVERY: [Ns; 2] = [1_000_000_000, 200_000_000];
/// Time of the events from which their mix is known, ns.
const LATEST: Ns = 50_000_000;

/// Records until it is dropped.
pub struct Recorder {
    attached: Attached,
    shift: u32,
    started: Ns,
    gaps: Gaps,
    budget: Option<Budget>,
    activity_due: Ns,
    learnt: Learnt,
    idle: IdleStates,
    /// What an event cost while that was measured for a moment, ns.
    sampled: OnceLock<u64>,
}

/// What one program costs, as far as the kernel has measured it ([`Recorder::sample`]).
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
    /// What an event cost, where that was measured.
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
        let shift = shift(bytes_per_cpu);
        let attached = attach(shift, scope)?;
        let (started, sampled) = (monotonic(), OnceLock::new());
        let idle = IdleStates::of_this_machine();
        let (gaps, learnt) = (Gaps::default(), Learnt::default());
        Ok(Self { attached, shift, started, gaps, budget: None, activity_due: started, learnt, idle, sampled })
    }

    /// What is not recorded on this kernel.
    pub fn missing(&self) -> &[Missing] {
        &self.attached.programs.missing
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
        self.attached.programs.has(program)
    }

    /// The rings, for the time around `to` in which all programs stood.
    pub(crate) fn rings(&self, to: Ns) -> Rings<'_> {
        let Attached { ring, heads, rings, .. } = &self.attached;
        let (started, until) = self.gaps.around(self.started, to);
        Rings { ring, heads, cpus: *rings, shift: self.shift, started, until }
    }

    /// Events so far.
    fn events(&self) -> u64 {
        let rings = self.rings(Ns::MAX);
        (0..self.attached.cpus).map(|cpu| rings.written(cpu)).sum()
    }

    /// Sets the part of the machine's CPU time that recording may take from now on; [`Self::keep_budget`] enforces it.
    pub fn set_budget(&mut self, budget: Ppm) {
        let cpus = proc::line("/sys/devices/system/cpu/online").parse::<Cpus>().map_or(1, |cpus| cpus.iter().count());
        let before = self.budget.replace(Budget::new(budget, cpus.max(1), monotonic(), self.events()));
        if before.is_some_and(|before| before.level() != Level::All) {
            self.enter(Level::All);
        }
    }

    /// Records fewer events where they would cost more than the budget, and more again where there is room for them. Call it
    /// some ten times a second. Attaching and detaching take some ms of the calling thread.
    pub fn keep_budget(&mut self) {
        let Some(mut budget) = self.budget.take() else { return };
        let now = monotonic();
        let mut counted = Counts { events: self.events(), activity: None };
        if now >= self.activity_due {
            self.activity_due = now + ACTIVITY_EVERY[usize::from(budget.level() != Level::All)];
            counted.activity = proc::activity(&proc::Root::of(Path::new("/")));
        }
        budget.set_cost(self.sampled.get().copied());
        let before = budget.level();
        let level = budget.tick(now, counted, || self.latest_mix(now));
        if level != before {
            self.enter(level);
        }
        self.budget = Some(budget);
    }

    /// What kinds of events the latest are.
    fn latest_mix(&self, now: Ns) -> Mix {
        let window = self.window(now - LATEST, now);
        Mix::of(window.cpus.iter().flat_map(|cpu| &cpu.events).map(|event| &event.what))
    }

    /// Detaches the programs that this level does without, and attaches the others.
    fn enter(&mut self, level: Level) {
        self.gaps.begin(monotonic());
        let standing = &mut self.attached.programs.standing;
        let dropped = |program: &Standing| Level::that_drops(program.name).is_some_and(|first| first <= level);
        // The end of something without its begin is harmless, a begin without its end is not; the table lists begins first.
        standing.iter_mut().filter(|program| dropped(program)).for_each(Standing::detach);
        for program in standing.iter_mut().rev().filter(|program| !dropped(program) && !program.stands()) {
            // What the kernel refuses now is tried again at the next change; its events are missing until then.
            let _ = program.attach();
        }
        if level != Level::Paused {
            self.gaps.end(monotonic());
        }
    }

    /// What all CPUs did from one time to another, both `CLOCK_MONOTONIC`, without stopping the recording. Takes some 0.1 ms for
    /// each CPU if that was just now; no system call for events.
    pub fn window(&self, from: Ns, to: Ns) -> Window {
        let rings = self.rings(to);
        // A CPU that has never recorded is none: possible CPUs need not be there.
        let cpus = (0..self.attached.cpus)
            .filter(|cpu| rings.written(*cpu) > 0)
            .map(|cpu| rings.read(cpu, from, to))
            .collect();
        Window { from, to, cpus }
    }

    /// What the recorder's own table has of a thread.
    pub(crate) fn recorded(&self, pid: u32) -> Option<Thread> {
        let (table, place) = (&self.attached.names, pid as usize % NAMES);
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

    /// Lets the kernel measure for so long what an event costs, once, so that [`Self::figures`] has it; waits for it. It
    /// measures all eBPF programs of the machine then, which makes each dearer by two readings of the clock.
    pub fn sample(&self, time: Duration) {
        let Ok(measuring) = measure() else { return };
        let before = self.measured();
        std::thread::sleep(time);
        let after = self.measured();
        drop(measuring);
        let (runs, ns) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        if runs >= FEWEST {
            let _ = self.sampled.set(ns / runs);
        }
    }

    /// Runs of the programs that the kernel has measured, and their time, ns.
    fn measured(&self) -> (u64, u64) {
        self.programs().iter().fold((0, 0), |(runs, ns), program| (runs + program.runs, ns + program.ns))
    }

    /// What each program has cost while that was measured.
    pub fn programs(&self) -> Vec<ProgramCost> {
        let cost = |program: &Standing| {
            let info = program.info()?;
            Some(ProgramCost { name: program.name, runs: info.run_cnt, ns: info.run_time_ns })
        };
        self.attached.programs.standing.iter().filter_map(cost).collect()
    }

    /// How it does.
    pub fn figures(&self) -> Figures {
        let spent = self.budget.as_ref().map(|budget| budget.spent).unwrap_or_default();
        Figures {
            events: self.events(),
            missed: self.attached.programs.missed(),
            bytes: (((self.attached.rings as u64) << self.shift) + NAMES as u64) * 32,
            ns_per_event: self.sampled.get().copied(),
            budget_ppm: self.budget.as_ref().map(Budget::ppm),
            cost_ppm: self.budget.as_ref().map(|budget| budget.cost_ppm(monotonic() - self.started)),
            reduced_ns: spent.reduced_ns,
            paused_ns: spent.paused_ns,
            windows: 0,
            missing: self.missing().iter().map(ToString::to_string).collect(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Programs first, then what they write to.
        self.attached.programs.standing.clear();
    }
}
