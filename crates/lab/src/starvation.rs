//! Measures whether a machine in QEMU got the CPU time that it needed: a starved emulated machine is slower than any
//! real one.

use std::{
    fmt, fs,
    path::Path,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc,
    },
    thread,
    time::{Duration, Instant},
};

/// Interval at which a thread of this process checks that it still gets the CPU.
const TICK: Duration = Duration::from_millis(10);
/// Maximum share of its CPUs' runnable time that a machine may wait for a CPU without being starved.
const MAX_WAITING: f64 = 0.3;
/// Maximum delay of a wake-up in this process that does not count as starvation.
const LONGEST_GAP: Duration = Duration::from_millis(700);

/// A measurement of one QEMU process, from its creation to [`Watch::end`].
pub struct Watch {
    pid: u32,
    before: Times,
    stop: Arc<AtomicBool>,
    gap_ns: Arc<AtomicU64>,
    ticking: Option<thread::JoinHandle<()>>,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Starvation {
    /// Share of the CPUs' runnable time in which they waited for a CPU, 0 to 1.
    pub waiting: f64,
    /// Maximum delay of a sleeping thread's wake-up in this process.
    pub gap: Duration,
}

impl Starvation {
    /// Whether the starvation may cause a test to fail.
    pub fn is_severe(&self) -> bool {
        self.waiting > MAX_WAITING || self.gap > LONGEST_GAP
    }
}

impl fmt::Display for Starvation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.waiting * 100.0;
        write!(f, "its CPUs waited for {percent:.0} % of their time, and a thread woke {:?} late", self.gap)
    }
}

impl Watch {
    pub(crate) fn new(pid: u32) -> Self {
        let (stop, gap_ns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, gap) = (stop.clone(), gap_ns.clone());
        let ticking = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let due = Instant::now() + TICK;
                thread::sleep(TICK);
                gap.fetch_max(due.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        });
        Self { pid, before: Times::of(pid), stop, gap_ns, ticking: Some(ticking) }
    }

    /// Ends the measurement.
    pub fn end(self) -> Starvation {
        let now = Times::of(self.pid);
        // The times of a process that has ended are 0, which would make the differences negative.
        let (ran, waited) = ((now.ran - self.before.ran).max(0.0), (now.waited - self.before.waited).max(0.0));
        let waiting = if ran + waited > 0.0 { waited / (ran + waited) } else { 0.0 };
        Starvation { waiting, gap: Duration::from_nanos(self.gap_ns.load(Ordering::Relaxed)) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(ticking) = self.ticking.take() {
            let _ = ticking.join();
        }
    }
}

/// Times of the machine's vCPU threads, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    ran: f64,
    waited: f64,
}

impl Times {
    fn of(pid: u32) -> Self {
        Self::in_folder(Path::new(&format!("/proc/{pid}/task")))
    }

    /// Sums the times of the threads; 0 without schedstat in the kernel, or if the process has ended.
    fn in_folder(threads: &Path) -> Self {
        let folders = fs::read_dir(threads).into_iter().flatten().flatten().map(|thread| thread.path());
        let cpus = folders.filter(|f| fs::read_to_string(f.join("comm")).is_ok_and(|name| name.starts_with("CPU ")));
        let texts = cpus.filter_map(|f| fs::read_to_string(f.join("schedstat")).ok());
        texts.fold(Self::default(), |sum, text| {
            let mut ns = text.split_whitespace().map(|n| n.parse::<f64>().unwrap_or(0.0) / 1e9);
            let (ran, waited) = (ns.next().unwrap_or(0.0), ns.next().unwrap_or(0.0));
            Self { ran: sum.ran + ran, waited: sum.waited + waited }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_cpus_count() {
        let folder = tempfile::tempdir().unwrap();
        for (tid, name, times) in
            [("1", "qemu", "9000000000 9000000000 5"), ("2", "CPU 0/TCG", "3000000000 1000000000 7")]
        {
            let thread = folder.path().join(tid);
            fs::create_dir(&thread).unwrap();
            fs::write(thread.join("comm"), name).unwrap();
            fs::write(thread.join("schedstat"), times).unwrap();
        }
        assert_eq!(Times::in_folder(folder.path()), Times { ran: 3.0, waited: 1.0 });
        assert_eq!(Times::in_folder(&folder.path().join("gone")), Times::default());
    }

    #[test]
    fn a_crowded_machine_and_one_that_stood_still_are_starved() {
        let got = |waiting, gap| Starvation { waiting, gap: Duration::from_millis(gap) };
        assert!(!got(0.29, 100).is_severe());
        assert!(got(0.31, 100).is_severe());
        assert!(got(0.1, 1500).is_severe());
        assert_eq!(got(0.456, 12).to_string(), "its CPUs waited for 46 % of their time, and a thread woke 12ms late");
    }
}
