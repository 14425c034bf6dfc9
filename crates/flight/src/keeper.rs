//! Enforces the budget: a thread that sleeps until the kernel programs have used up the budget, or until it is time to
//! check whether the machine is calm again.

use crate::attach::Memory;
use crate::budget::{Budget, Counts, Level, Mix, ACTIVITY_EVERY, BURST_NS};
use crate::gaps::Gaps;
use crate::hooks::NEEDED;
use crate::layout::{Allowance, Head};
use crate::window::Rings;
use latpath_bpf::{Mapped, Programs};
use latpath_linux::background::keep_prompt;
use latpath_linux::{monotonic, proc};
use latpath_model::Ns;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Minimum number of measured events for a mean cost to be given.
const MIN: u64 = 16;
/// Number of latest events per CPU from which their mix is determined.
const LATEST: usize = 1024;
/// Interval between attempts to attach programs that the kernel refused, ns.
const RETRY_EVERY: Ns = 10_000_000_000;
/// Interval at which the thread wakes up if there is nothing to do, ns.
const IDLE: Ns = 1_000_000_000;

/// Attaches and detaches programs, and records the gaps.
pub(crate) struct Control {
    pub programs: Programs,
    pub budget: Option<Budget>,
    gaps: Gaps,
    memory: Memory,
    allowance: Mapped<Allowance>,
    activity_read: Ns,
    retried: Ns,
}

pub(crate) fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    pub fn new(programs: Programs, memory: Memory, allowance: Mapped<Allowance>) -> Self {
        let (budget, gaps) = (None, Gaps::default());
        Self { programs, budget, gaps, memory, allowance, activity_read: 0, retried: 0 }
    }

    /// When the programs found the budget used up; `None` while recording.
    fn stopped(&self) -> Option<Ns> {
        let stopped: u64 = self.allowance.field(0, offset_of!(Allowance, stopped));
        (stopped > 0).then_some(stopped as Ns)
    }

    fn set_stopped(&self, stopped: Ns) {
        self.allowance.set_field(0, offset_of!(Allowance, stopped), stopped as u64);
    }

    /// The interval around `to` in which all programs were attached and recorded.
    pub fn recorded_around(&self, started: Ns, to: Ns) -> (Ns, Ns) {
        let mut gaps = self.gaps.clone();
        if let Some(stopped) = self.stopped() {
            gaps.begin(stopped);
        }
        gaps.around(started, to)
    }

    /// Sum of a field over all CPUs' heads.
    fn sum(&self, field: usize) -> u64 {
        (0..self.memory.cpus).map(|cpu| self.memory.heads.field::<u64>(cpu, field)).sum()
    }

    /// The counts so far, without the machine's activity.
    pub fn counted(&self) -> Counts {
        let unwritten = (self.memory.cpus as u64) << self.memory.shift;
        let events = self.sum(offset_of!(Head, next)).saturating_sub(unwritten);
        Counts { events, refused: self.sum(offset_of!(Head, refused)), activity: None }
    }

    /// Measured mean cost of an event within its program, ns.
    pub fn ns_per_event(&self) -> Option<u64> {
        let samples = self.sum(offset_of!(Head, cost_samples));
        (samples >= MIN).then(|| self.sum(offset_of!(Head, cost_ns)) / samples)
    }

    /// Sets the budget, and starts recording all events.
    pub fn set_budget(&mut self, budget: Budget) {
        self.allowance.set_field(0, offset_of!(Allowance, part_ns), budget.part_ns());
        self.allowance.set_field(0, offset_of!(Allowance, burst_ns), BURST_NS);
        self.allowance.set_field(0, offset_of!(Allowance, used_until), 0u64);
        for cpu in 0..self.memory.cpus {
            self.memory.heads.set_field(cpu, offset_of!(Head, limit), 0u64);
        }
        let before = self.budget.replace(budget);
        if before.is_some_and(|before| before.level() != Level::All) || self.stopped().is_some() {
            self.enter(Level::All);
        }
    }

    /// Attaches the programs that this level needs, and detaches the others. Recording starts only if thread switches
    /// can be recorded.
    fn enter(&mut self, level: Level) {
        if self.stopped().is_none() {
            self.set_stopped(monotonic());
        }
        self.gaps.begin(self.stopped().unwrap_or_else(monotonic));
        self.programs.attach_only(|program| Level::that_drops(program).is_none_or(|first| level < first));
        if level != Level::Paused && self.programs.stands_at(NEEDED) {
            self.set_stopped(0);
            self.gaps.end(monotonic());
        }
    }

    /// Compares the cost of recording with the budget, and records less or more. Returns when to call it next.
    fn keep(&mut self) -> Ns {
        let Some(mut level) = self.budget.as_ref().map(Budget::level) else { return monotonic() + IDLE };
        if level != Level::Paused && !self.programs.stands_at(NEEDED) {
            // The kernel refused to attach the program for thread switches again; retry.
            self.enter(level);
            return monotonic() + IDLE;
        }
        let stopped = self.stopped().filter(|_| level != Level::Paused);
        if stopped.is_some() {
            // Detach the programs at once, because each run costs time.
            level = Level::Paused;
            self.enter(level);
        }
        let Some(mut budget) = self.budget.take() else { return monotonic() + IDLE };
        let now = monotonic();
        let mut counted = self.counted();
        if stopped.is_some() || now >= self.activity_read + ACTIVITY_EVERY[usize::from(level != Level::All)] {
            self.activity_read = now;
            counted.activity = proc::activity(&proc::Root::of(Path::new("/")));
        }
        budget.set_cost(self.ns_per_event());
        self.allowance.set_field(0, offset_of!(Allowance, part_ns), budget.part_ns());
        let next = budget.tick(now, counted, stopped, || self.latest_mix(now));
        if next != level || (self.programs.lacks_some_for_now() && now >= self.retried + RETRY_EVERY) {
            self.retried = now;
            self.enter(next);
        }
        let due = budget.due(self.activity_read);
        self.budget = Some(budget);
        due
    }

    /// Determines the mix of the latest events.
    fn latest_mix(&self, now: Ns) -> Mix {
        let Memory { ring, heads, cpus, rings, shift } = &self.memory;
        let (cpus, rings) = (*cpus, Rings { ring, heads, cpus: *rings, shift: *shift, started: 0, until: now });
        let latest = |cpu| rings.read_on(cpu, rings.next(cpu).saturating_sub(LATEST as u64)).events;
        let events: Vec<_> = (0..cpus.min(rings.cpus)).flat_map(latest).collect();
        Mix::of(events.iter().map(|event| &event.what))
    }
}

/// The thread that enforces the budget. Dropping this ends the thread; the programs then record until their budget is
/// used up, and nothing afterwards.
pub(crate) struct Keeper {
    /// When this is dropped, its peer becomes readable, which ends the thread.
    _end: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. `stops` gets an entry each time the budget is used up.
    ///
    /// # Errors
    /// No descriptor or thread is available.
    pub fn start(control: Arc<Mutex<Control>>, stops: MapHandle) -> io::Result<Self> {
        let (end, ended) = UnixStream::pair()?;
        let run = move || {
            keep_prompt();
            // Entries must be consumed: if left in the buffer, they would wake the thread again and again.
            let entries = entries(&stops).ok();
            loop {
                let wait = (lock(&control).keep() - monotonic()).max(0) as u64;
                // Whole ms, rounded up.
                let wait =
                    PollTimeout::try_from(Duration::from_millis(wait.div_ceil(1_000_000))).unwrap_or(PollTimeout::MAX);
                let mut waited = vec![PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
                if entries.is_some() {
                    waited.push(PollFd::new(stops.as_fd(), PollFlags::POLLIN));
                }
                let woken = poll(&mut waited, wait);
                if woken.is_ok() && waited[0].any() == Some(true) {
                    return;
                }
                if let Some(entries) = &entries {
                    let _ = entries.consume();
                }
            }
        };
        let thread = std::thread::Builder::new().name("lp-flight-keep".into()).spawn(run)?;
        Ok(Self { _end: end, thread: Some(thread) })
    }
}

fn entries(stops: &MapHandle) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(stops, |_| 0)?;
    builder.build()
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self._end.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
