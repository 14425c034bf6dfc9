//! The recorder, running.

use crate::attach::{attach, Attached, Options, StartError};
use crate::hooks::Missing;
use crate::idle::IdleStates;
use crate::learnt::Learnt;
use crate::names::Names;
use crate::window::{Rings, Window};
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Of fewer runs it is not said what one costs.
const FEWEST: u64 = 64;

/// Records until it is dropped.
pub struct Recorder {
    attached: Attached,
    shift: u32,
    started: Ns,
    learnt: Learnt,
    idle: IdleStates,
    /// While it is open the kernel measures its eBPF programs.
    measuring: Option<OwnedFd>,
    /// What an event cost while that was measured for a moment, ns.
    sampled: OnceLock<u64>,
}

/// What recording costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Events so far.
    pub events: u64,
    /// Events that were missed because the same program was running already on that CPU.
    pub missed: u64,
    /// Memory for events and names, in bytes.
    pub bytes: u64,
    /// Where it is measured: each program's runs and time.
    pub programs: Vec<ProgramCost>,
}

/// What one program costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// Its name.
    pub name: &'static str,
    /// How often it ran.
    pub runs: u64,
    /// How long in all, with what measuring it adds.
    pub ns: u64,
}

impl Cost {
    /// What an event costs, where that is measured.
    pub fn ns_per_event(&self) -> Option<u64> {
        let (runs, ns) = self.programs.iter().fold((0, 0), |(r, n), p| (r + p.runs, n + p.ns));
        (ns > 0).then(|| ns / runs.max(1))
    }
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
    /// Windows that it has sent to another machine.
    pub windows: u64,
    /// What its kernel does not offer: lines for people.
    pub missing: Vec<String>,
}

/// Lets the kernel measure.
fn measure() -> std::io::Result<OwnedFd> {
    // SAFETY: takes a number, gives a descriptor or an error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Recorder {
    /// Loads the programs and attaches those that this kernel takes.
    ///
    /// # Errors
    /// Where this kernel or user cannot trace at all, or the kernel does not say which thread runs.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        let measuring = options.measured.then(measure).transpose()?;
        let attached = attach(options)?;
        let (started, shift, sampled) = (monotonic(), options.shift(), OnceLock::new());
        let idle = IdleStates::of_this_machine();
        Ok(Self { attached, shift, started, learnt: Learnt::default(), idle, measuring, sampled })
    }

    /// What is not recorded on this kernel.
    pub fn missing(&self) -> &[Missing] {
        &self.attached.missing
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

    fn rings(&self) -> Rings<'_> {
        let Attached { ring, heads, rings, .. } = &self.attached;
        Rings { ring, heads, cpus: *rings, shift: self.shift, started: self.started }
    }

    /// What all CPUs did from one time to another, both `CLOCK_MONOTONIC`, without stopping the recording. Takes some 0.1 ms for
    /// each CPU if that was just now; no system call for events.
    pub fn window(&self, from: Ns, to: Ns) -> Window {
        let rings = self.rings();
        // A CPU that has never recorded is none: possible CPUs need not be there.
        let cpus = (0..self.attached.cpus)
            .filter(|cpu| rings.written(*cpu) > 0)
            .map(|cpu| rings.read(cpu, from, to))
            .collect();
        Window { from, to, cpus }
    }

    /// The names, as they are when they are asked for.
    pub fn names(&self) -> Names<'_> {
        Names::of_table(&self.attached.names, &self.idle)
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
        let infos = self.attached.programs.iter().filter_map(|program| info(program.fd.as_raw_fd()));
        infos.fold((0, 0), |(runs, ns), info| (runs + info.run_cnt, ns + info.run_time_ns))
    }

    /// How it does.
    pub fn figures(&self) -> Figures {
        let cost = self.cost();
        Figures {
            events: cost.events,
            missed: cost.missed,
            bytes: cost.bytes,
            ns_per_event: cost.ns_per_event().or_else(|| self.sampled.get().copied()),
            windows: 0,
            missing: self.missing().iter().map(ToString::to_string).collect(),
        }
    }

    /// What it has cost so far.
    pub fn cost(&self) -> Cost {
        let rings = self.rings();
        let mut cost = Cost {
            events: (0..self.attached.cpus).map(|cpu| rings.written(cpu)).sum(),
            bytes: (((self.attached.rings as u64) << self.shift) + crate::layout::NAMES as u64) * 32,
            ..Cost::default()
        };
        for program in &self.attached.programs {
            let Some(info) = info(program.fd.as_raw_fd()) else { continue };
            cost.missed += info.recursion_misses;
            if self.measuring.is_some() {
                cost.programs.push(ProgramCost { name: program.name, runs: info.run_cnt, ns: info.run_time_ns });
            }
        }
        cost
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Programs first, then what they write to.
        self.attached.links.clear();
    }
}

/// What the kernel says of a program.
fn info(program: std::os::fd::RawFd) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `len` bytes to a value of that size, whose pointers are null.
    let said = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program, &mut info, &mut len) };
    (said == 0).then_some(info)
}
