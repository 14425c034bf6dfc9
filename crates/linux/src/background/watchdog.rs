//! A thread of normal priority that nearly always sleeps, and raises threads that cannot raise themselves.

use super::governor::STARVED;
use super::priority::{Priority, Setter};
use crate::proc::{Root, Stat};
use nix::unistd::{gettid, Pid};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of the watchdog's checks.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Total running time on CPUs and waiting time for CPUs of a thread, ns: `schedstat` in its folder of `/proc`.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    ran: u64,
    waited: u64,
}

impl Account {
    /// Returns `None` if the kernel does not count these times (`CONFIG_SCHED_INFO`).
    fn read(root: &Root, folder: &str) -> Option<Self> {
        let text = root.text(&format!("{folder}/schedstat"))?;
        let mut numbers = text.split_ascii_whitespace().map_while(|number| number.parse().ok());
        Some(Self { ran: numbers.next()?, waited: numbers.next()? })
    }
}

/// Detects that a thread has waited for its CPU most of the time.
struct Observer {
    root: Root,
    folder: String,
    last: Account,
    /// Waiting time since the thread last ran for half of an interval.
    starving: Duration,
    checked: Instant,
}

impl Observer {
    fn new(thread: Pid) -> Option<Self> {
        let (root, folder) = (Root::of(Path::new("/")), format!("proc/self/task/{thread}"));
        let last = Account::read(&root, &folder)?;
        Some(Self { root, folder, last, starving: Duration::ZERO, checked: Instant::now() })
    }

    fn is_starving(&mut self) -> bool {
        let interval = std::mem::replace(&mut self.checked, Instant::now()).elapsed();
        let Some(now) = Account::read(&self.root, &self.folder) else { return false };
        let last = std::mem::replace(&mut self.last, now);
        // The kernel adds a wait to the total only when the wait ends.
        let still = now.ran == last.ran && Stat::read(&self.root, &self.folder).is_some_and(|stat| stat.state == 'R');
        let waited = if still { interval } else { Duration::from_nanos(now.waited.saturating_sub(last.waited)) };
        self.starving = if waited * 2 >= interval { self.starving + waited } else { Duration::ZERO };
        self.starving >= STARVED
    }
}

/// Raises the process's threads to [`Priority::Low`] after the thread that started the watchdog has waited for a CPU
/// for [`STARVED`]. Dropping this value ends the watchdog's thread.
pub(super) struct Watchdog {
    pub tid: Pid,
    _end: Sender<()>,
}

impl Watchdog {
    /// `priority`: the threads' current priority, updated when they are raised. Returns `None` if the kernel does not
    /// count waiting times, or a thread cannot be started.
    pub fn start(setter: Setter, priority: Arc<AtomicU8>) -> Option<Self> {
        let mut observer = Observer::new(gettid())?;
        let (end, ended) = channel::<()>();
        let (announce, tid) = channel();
        let watch = move || {
            let _ = announce.send(gettid());
            while matches!(ended.recv_timeout(WATCH_EVERY), Err(RecvTimeoutError::Timeout)) {
                if observer.is_starving() && priority.load(Ordering::Relaxed) == Priority::Idle as u8 {
                    priority.store(Priority::Low as u8, Ordering::Relaxed);
                    setter.set(Priority::Low, Some(gettid()));
                }
            }
        };
        std::thread::Builder::new().name("lp-watchdog".into()).spawn(watch).ok()?;
        Some(Self { tid: tid.recv().ok()?, _end: end })
    }
}
