//! Runs latpath's own threads in the background, so that they do not delay packets.
//!
//! [`Background`] controls the process from its start. It keeps the process off the CPUs that the user isolated and, if
//! others remain, off those that the route uses. Its threads run as `SCHED_IDLE`: any other thread that wakes takes the
//! CPU from them at once, and a waker treats a CPU that runs only such threads as idle. `SCHED_IDLE` gets almost
//! nothing of a busy CPU. If the main loop is late, or the rings could fill before a late main loop reads them, the
//! threads rise to nice 10 for a while, with slices so short that a waking thread hardly waits. They rise to normal
//! priority only if sightings are about to be lost. A starving thread cannot raise itself, so a watchdog does it, which
//! keeps normal priority and nearly always sleeps.

mod governor;
mod priority;
mod watchdog;

pub use priority::{keep_prompt, leave_at_exec, lower_priority};

use crate::proc::Root;
use crate::Cpus;
use governor::Governor;
use latpath_model::Sighting;
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use priority::{is_ordinary, may_return, threads, Priority, Setter};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use watchdog::Watchdog;

/// A CPU belongs to the route if it has at least 1/`MIN_SHARE` of the sightings.
const MIN_SHARE: u64 = 100;
/// Interval at which the route's CPUs are determined.
const ROUTE_EVERY: Duration = Duration::from_secs(1);

/// Background scheduling of this process, including threads that start later. Dropping it restores normal priority.
pub struct Background {
    governor: Option<Governor>,
    watchdog: Option<Watchdog>,
    route: RouteCpus,
    route_due: Instant,
    /// Capacity of the rings, sightings.
    ring: usize,
    setter: Setter,
    /// Current priority of the threads; the watchdog changes it too.
    priority: Arc<AtomicU8>,
    isolated: Cpus,
    /// The CPUs that the process may use: its initial ones without the isolated ones.
    home: Cpus,
    used: Cpus,
}

impl Background {
    /// Moves all threads of the process to the background, and off the CPUs that are isolated or run without a tick.
    /// The calling thread runs the main loop. If there are no other CPUs, the process keeps its CPUs. The priority is
    /// unchanged if the user gave the process another policy, or if the kernel would not allow the return to normal.
    pub fn begin() -> Self {
        let (mut isolated, allowed) = (Root::of(Path::new("/")).isolated_cpus(), allowed());
        let mut home = allowed.without(&isolated);
        if home.is_empty() || isolated.is_empty() || !pin(Pid::from_raw(0), &home) {
            (isolated, home) = (Cpus::default(), allowed);
        }
        let (setter, priority) = (Setter::new(), Arc::new(AtomicU8::new(Priority::Normal as u8)));
        let mut background = Self {
            governor: None,
            watchdog: None,
            route: RouteCpus::default(),
            route_due: Instant::now() + ROUTE_EVERY,
            ring: usize::MAX,
            setter,
            priority,
            isolated,
            used: home.clone(),
            home,
        };
        if may_return() && is_ordinary() {
            background.watchdog = Watchdog::start(setter, Arc::clone(&background.priority));
            // Without a watchdog a starving main loop could not recover.
            let priority = if background.watchdog.is_some() { Priority::Idle } else { Priority::Low };
            background.governor = background.watchdog.is_some().then(|| Governor::new(Instant::now()));
            background.set(priority);
        }
        background
    }

    /// The isolated CPUs that the process avoids.
    pub fn isolated(&self) -> &Cpus {
        &self.isolated
    }

    /// Sets the capacity of the kernel's rings, sightings.
    pub fn expect(&mut self, ring: usize) {
        self.ring = ring.max(1);
    }

    /// To be called in each round of the main loop, at least five times per second, with the sightings of this machine
    /// that the round took from the rings.
    pub fn round(&mut self, sightings: &[Sighting]) {
        let now = Instant::now();
        if let Some(governor) = &mut self.governor {
            if Priority::of(self.priority.load(Ordering::Relaxed)) == Priority::Low {
                governor.was_raised(now);
            }
            let priority = governor.round(now, sightings.len() as f64 / self.ring as f64);
            self.set(priority);
        }
        sightings.iter().for_each(|sighting| self.route.count(sighting.cpu));
        if now >= self.route_due {
            self.route_due = now + ROUTE_EVERY;
            let route = self.route.cpus();
            self.keep_off(&route);
        }
    }

    /// Raises all threads to nice 10 permanently: the user waits for the end, and the stream's threads still have
    /// precedence.
    pub fn hurry(&mut self) {
        self.governor = None;
        if Priority::of(self.priority.load(Ordering::Relaxed)) == Priority::Idle {
            self.set(Priority::Low);
        }
    }

    /// Keeps all threads off these CPUs, if others remain.
    fn keep_off(&mut self, route: &Cpus) {
        let off = self.home.without(route);
        let cpus = if off.is_empty() { &self.home } else { &off };
        if *cpus != self.used {
            self.used = cpus.clone();
            for thread in threads() {
                pin(thread, &self.used);
            }
        }
    }

    fn set(&mut self, priority: Priority) {
        if self.priority.swap(priority as u8, Ordering::Relaxed) != priority as u8 {
            self.setter.set(priority, self.watchdog.as_ref().map(|w| w.tid));
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.set(Priority::Normal);
    }
}

/// The CPUs for work that may wait: those of the calling thread, or else those of the machine, without the isolated ones
/// and those that run without a tick. `None` if no CPU is left.
pub fn housekeeping() -> Option<Cpus> {
    let root = Root::of(Path::new("/"));
    let isolated = root.isolated_cpus();
    let all = [allowed(), root.cpus("online")];
    all.iter().map(|cpus| cpus.without(&isolated)).find(|cpus| !cpus.is_empty())
}

fn allowed() -> Cpus {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Cpus::default() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).map(|cpu| cpu as u32).collect()
}

fn pin(thread: Pid, cpus: &Cpus) -> bool {
    let mut set = CpuSet::new();
    cpus.iter().all(|cpu| set.set(cpu as usize).is_ok()) && sched_setaffinity(thread, &set).is_ok()
}

/// Determines from sightings which CPUs the route uses.
#[derive(Debug, Default)]
struct RouteCpus {
    sightings: Vec<u64>,
}

impl RouteCpus {
    /// Counts a sighting of this machine.
    fn count(&mut self, cpu: u16) {
        let cpu = usize::from(cpu);
        if cpu >= self.sightings.len() {
            self.sightings.resize(cpu + 1, 0);
        }
        self.sightings[cpu] += 1;
    }

    /// The CPUs with at least 1 % of the sightings. To be called once per second: each call halves the earlier counts.
    fn cpus(&mut self) -> Cpus {
        let all: u64 = self.sightings.iter().sum();
        let used = self.sightings.iter().enumerate().filter(|(_, n)| **n > 0 && **n * MIN_SHARE >= all);
        let cpus = used.map(|(cpu, _)| cpu as u32).collect();
        self.sightings.iter_mut().for_each(|n| *n /= 2);
        cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_the_route_are_those_that_see_packets_now() {
        let mut route = RouteCpus::default();
        assert!(route.cpus().is_empty());
        (0..1000).for_each(|_| route.count(2));
        (0..100).for_each(|_| route.count(5));
        route.count(3);
        assert_eq!(route.cpus().to_string(), "2,5", "one of 1,101 was chance");
        (0..20).for_each(|_| {
            (0..1000).for_each(|_| route.count(7));
            route.cpus();
        });
        assert_eq!(route.cpus().to_string(), "7", "the stream has moved");
    }
}
