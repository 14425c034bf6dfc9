//! latpath's own threads run in the background, so that they are not what makes packets late.
//!
//! [`Background`] is the process's place. It keeps the process off the CPUs that the user isolated, and, as far as others are
//! left, off those that the route uses. Its threads run as `SCHED_IDLE`: every other thread that wakes takes the CPU from
//! them at once, where nice 19 keeps it for a slice of some ms (Linux 6.6 and later), and a waker takes a CPU that runs only
//! them for idle. `SCHED_IDLE` gets next to nothing of a busy CPU. So the threads return to normal priority for a while
//! where the main loop is late, or the ring would be full too soon for one that can be late. A thread that starves cannot
//! raise itself: a watchdog, which keeps normal priority and sleeps nearly always, does.

use crate::proc::{capabilities, line, Root};
use crate::Cpus;
use latpath_model::Sighting;
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A round that begins this much after the one before finds its CPU busy.
const STARVED: Duration = Duration::from_millis(200);
/// The ring must last this long at the rate that it fills with: `SCHED_IDLE` may wait a second for a busy CPU.
const RING_LASTS: Duration = Duration::from_secs(4);
/// How long normal priority is kept. Twice as long each time that the CPU is found busy again.
const NORMAL_FOR: Duration = Duration::from_secs(2);
const NORMAL_AT_MOST: Duration = Duration::from_secs(64);
/// How often the watchdog checks for a main loop that starves.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Threads of this process that are looked at.
const MOST_THREADS: usize = 4096;
/// A CPU that has less than this share of the sightings is not one of the route: 1 / this.
const LEAST_SHARE: u64 = 100;
/// How often the route's CPUs are looked at.
const ROUTE_EVERY: Duration = Duration::from_secs(1);

/// Lets other threads go before the calling one, for good: nice 19. Names, packing, files and explanations can wait some ms.
pub fn lower_priority() {
    // SAFETY: takes plain numbers; 0 is the calling thread, which may always ask for less.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

/// How urgent the process's threads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    Idle,
    Normal,
}

/// When threads may run as `SCHED_IDLE`. Apart from the threads themselves, so that it can be tested.
#[derive(Debug)]
struct Governor {
    now: Priority,
    /// Normal priority until then.
    until: Instant,
    keep: Duration,
    last: Instant,
}

impl Governor {
    fn new(now: Instant) -> Self {
        Self { now: Priority::Idle, until: now, keep: NORMAL_FOR, last: now }
    }

    /// A round that begins `now` and takes `filled` of the ring, from 0 to 1. The priority from now on.
    fn round(&mut self, now: Instant, filled: f64) -> Priority {
        let since = now.saturating_duration_since(self.last);
        self.last = now;
        let fills = filled * RING_LASTS.as_secs_f64() > since.as_secs_f64().max(0.001);
        match self.now {
            Priority::Idle if since > STARVED => {
                // Soon after it was tried last.
                let again = now < self.until + NORMAL_AT_MOST;
                self.keep = if again { (self.keep * 2).min(NORMAL_AT_MOST) } else { NORMAL_FOR };
                (self.now, self.until) = (Priority::Normal, now + self.keep);
            }
            _ if fills => (self.now, self.until) = (Priority::Normal, self.until.max(now + NORMAL_FOR)),
            Priority::Normal if now >= self.until => self.now = Priority::Idle,
            _ => {}
        }
        self.now
    }
}

/// This process's place in the background. All its threads have it, also those that are started later. Dropping it returns
/// to normal priority.
pub struct Background {
    governor: Option<Governor>,
    watchdog: Option<Watchdog>,
    route: RouteCpus,
    route_due: Instant,
    /// Sightings that the ring holds.
    ring: usize,
    set: Priority,
    isolated: Cpus,
    /// The CPUs that the process may use: those that it was given, without the isolated ones.
    home: Cpus,
    used: Cpus,
}

impl Background {
    /// Moves the calling thread, and those that it starts from now on, off the CPUs that the user isolated, or lets run without
    /// a tick. Stays where no other CPU is left.
    pub fn new() -> Self {
        let read = |name: &str| line(format!("/sys/devices/system/cpu/{name}")).parse::<Cpus>().unwrap_or_default();
        let mut isolated = read("isolated");
        isolated.join(read("nohz_full"));
        let allowed = allowed();
        let mut home = allowed.without(&isolated);
        if home.is_empty() || isolated.is_empty() || !pin(Pid::from_raw(0), &home) {
            (isolated, home) = (Cpus::default(), allowed);
        }
        Self {
            governor: None,
            watchdog: None,
            route: RouteCpus::default(),
            route_due: Instant::now() + ROUTE_EVERY,
            ring: 1,
            set: Priority::Normal,
            isolated,
            used: home.clone(),
            home,
        }
    }

    /// The isolated CPUs that the process keeps off.
    pub fn isolated(&self) -> &Cpus {
        &self.isolated
    }

    /// Goes to the background: when all is attached, since a busy machine would delay that. `ring` is how many sightings the
    /// kernel's rings hold. Priority stays as it is where the user gave the process another policy, or it may not return.
    pub fn enter(&mut self, ring: usize) {
        self.ring = ring.max(1);
        if may_return() {
            // Without a watchdog a main loop that starves could not come back.
            self.watchdog = Watchdog::start().ok();
            if self.watchdog.is_some() {
                self.governor = Some(Governor::new(Instant::now()));
                self.set(Priority::Idle);
            }
        }
    }

    /// Call it in each round of the main loop, at least five times a second, with the sightings of this machine that the round
    /// took out of the rings.
    pub fn round(&mut self, sightings: &[Sighting]) {
        let now = Instant::now();
        self.watchdog.iter().for_each(Watchdog::saw_round);
        if let Some(governor) = &mut self.governor {
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

    /// Keeps all threads off these CPUs, as far as others are left.
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
        if priority == self.set {
            return;
        }
        self.set = priority;
        set_priority(priority, self.watchdog.as_ref().map(|w| w.tid));
    }
}

/// Gives all threads of this process that latpath has set before this priority, all but one.
fn set_priority(priority: Priority, except: Option<Pid>) {
    let (from, to) = match priority {
        Priority::Idle => (libc::SCHED_OTHER, libc::SCHED_IDLE),
        Priority::Normal => (libc::SCHED_IDLE, libc::SCHED_OTHER),
    };
    for thread in threads().filter(|thread| Some(*thread) != except) {
        // SAFETY: both take plain numbers and a value that lives on; threads that have ended are an error, and no harm.
        unsafe {
            if libc::sched_getscheduler(thread.as_raw()) == from {
                libc::sched_setscheduler(thread.as_raw(), to, &libc::sched_param { sched_priority: 0 });
            }
        }
    }
}

/// Raises the process's threads where the main loop has not begun a round for [`STARVED`]. Dropping it ends its thread.
struct Watchdog {
    tid: Pid,
    rounds: Arc<AtomicU64>,
    _end: Sender<()>,
}

impl Watchdog {
    fn start() -> std::io::Result<Self> {
        let rounds = Arc::new(AtomicU64::new(0));
        let (end, ended) = channel::<()>();
        let (announce, tid) = channel();
        let seen = Arc::clone(&rounds);
        let watch = move || {
            let _ = announce.send(nix::unistd::gettid());
            let (mut last, mut since) = (0, Instant::now());
            while matches!(ended.recv_timeout(WATCH_EVERY), Err(RecvTimeoutError::Timeout)) {
                let round = seen.load(Ordering::Relaxed);
                if round != last {
                    (last, since) = (round, Instant::now());
                } else if since.elapsed() >= STARVED {
                    set_priority(Priority::Normal, None);
                }
            }
        };
        std::thread::Builder::new().name("lp-watchdog".into()).spawn(watch)?;
        let tid = tid.recv().map_err(std::io::Error::other)?;
        Ok(Self { tid, rounds, _end: end })
    }

    fn saw_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for Background {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.set(Priority::Normal);
    }
}

fn threads() -> impl Iterator<Item = Pid> {
    let numbers = Root::of(Path::new("/")).numbers("proc/self/task", MOST_THREADS).unwrap_or_default();
    numbers.into_iter().filter_map(|tid| i32::try_from(tid).ok()).map(Pid::from_raw)
}

fn allowed() -> Cpus {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Cpus::default() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).map(|cpu| cpu as u32).collect()
}

fn pin(thread: Pid, cpus: &Cpus) -> bool {
    let mut set = CpuSet::new();
    cpus.iter().all(|cpu| set.set(cpu as usize).is_ok()) && sched_setaffinity(thread, &set).is_ok()
}

/// Whether the kernel lets this process leave `SCHED_IDLE` (sched(7)): CAP_SYS_NICE, or RLIMIT_NICE of 20 or more.
fn may_return() -> bool {
    const CAP_SYS_NICE: u32 = 23;
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NICE);
    capabilities() >> CAP_SYS_NICE & 1 == 1 || limit.is_ok_and(|(soft, _)| soft >= 20)
}

/// Learns from sightings which CPUs the route uses.
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

    /// The CPUs that saw at least 1 % of the sightings. Call it once a second: it forgets half of what was.
    fn cpus(&mut self) -> Cpus {
        let all: u64 = self.sightings.iter().sum();
        let used = self.sightings.iter().enumerate().filter(|(_, n)| **n > 0 && **n * LEAST_SHARE >= all);
        let cpus = used.map(|(cpu, _)| cpu as u32).collect();
        self.sightings.iter_mut().for_each(|n| *n /= 2);
        cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(20);

    /// The rounds, ms after the one before, in which the priority changes, counted from 1.
    fn changes(rounds: impl IntoIterator<Item = (u64, f64)>) -> Vec<(usize, Priority)> {
        let mut now = Instant::now();
        let mut governor = Governor::new(now);
        let mut before = Priority::Idle;
        let mut found = Vec::new();
        for (at, (ms, filled)) in rounds.into_iter().enumerate() {
            now += Duration::from_millis(ms);
            let priority = governor.round(now, filled);
            if std::mem::replace(&mut before, priority) != priority {
                found.push((at + 1, priority));
            }
        }
        found
    }

    #[test]
    fn threads_stay_in_the_background_while_rounds_are_in_time_and_the_ring_lasts() {
        assert_eq!(changes((0..1000).map(|_| (20, 0.0001))), []);
    }

    #[test]
    fn a_round_that_waited_for_its_cpu_makes_priority_normal_for_a_while() {
        let rounds = std::iter::once((500, 0.0)).chain((0..150).map(|_| (20, 0.0)));
        let back = 1 + (NORMAL_FOR.as_millis() / ROUND.as_millis()) as usize * 2;
        assert_eq!(changes(rounds.take(99)), [(1, Priority::Normal)]);
        let rounds = std::iter::once((500, 0.0)).chain((0..300).map(|_| (20, 0.0)));
        assert_eq!(changes(rounds), [(1, Priority::Normal), (back, Priority::Idle)]);
    }

    #[test]
    fn a_machine_that_stays_busy_is_tried_less_and_less_often() {
        let mut rounds = Vec::new();
        for _ in 0..3 {
            rounds.push((500, 0.0));
            rounds.extend((0..1000).map(|_| (20, 0.0)));
        }
        let found = changes(rounds);
        let lengths: Vec<usize> = found.chunks(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(lengths.is_sorted_by(|a, b| a * 2 == *b), "{lengths:?}");
    }

    #[test]
    fn a_ring_that_fills_fast_is_emptied_at_normal_priority() {
        // 1 % of the ring in 20 ms: it lasts 2 s.
        assert_eq!(changes((0..10).map(|_| (20, 0.01))), [(1, Priority::Normal)]);
        let then_calm = (0..10).map(|_| (20, 0.01)).chain((0..200).map(|_| (20, 0.0)));
        assert_eq!(changes(then_calm).len(), 2);
    }

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

    #[test]
    fn threads_go_to_the_background_and_are_raised_where_no_round_comes_and_at_the_end() {
        // Another thread of the test program may be measured: only what this test starts is looked at.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, tid) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            let _ = ended.recv();
        });
        let tid = tid.recv().unwrap();
        // SAFETY: takes a number.
        let policy = || unsafe { libc::sched_getscheduler(tid.as_raw()) };
        let mut background = Background::new();
        let before = policy();
        background.enter(1000);
        let expected = if may_return() && before == libc::SCHED_OTHER { libc::SCHED_IDLE } else { before };
        assert_eq!(policy(), expected);
        let limit = Instant::now() + Duration::from_secs(60);
        while policy() != before && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(policy(), before, "raised by the watchdog");
        drop(background);
        assert_eq!(policy(), before);
        drop(end);
        thread.join().unwrap();
    }
}
