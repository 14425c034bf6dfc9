//! Watches this machine's clocks in a separate thread during a run, so that the measuring thread only reads the
//! results.

use crate::timeline::Disturbance;
use crate::transaction::Source;
use crate::transport::{KernelClock, SentStamp};
use crate::wire::NicReading;
use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_model::Ns;
use latpath_timesync::{Monitor, PtpTime, SurveyOptions};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Interval between readings with a NIC clock.
const EVERY: Duration = Duration::from_millis(50);
/// Interval between readings without a NIC clock; a step of the time of day is detected up to this much later.
const WITHOUT_NIC_EVERY: Duration = Duration::from_millis(500);

/// Reader of the NIC clock.
pub trait NicClockSource: Send {
    /// Reads the clock; returns the reading and the disturbances since the previous one.
    fn read(&mut self) -> (Option<NicReading>, Vec<Disturbance>);

    /// Disturbances that the last readings suggest but only later readings would have confirmed.
    fn finish(&mut self) -> Vec<Disturbance> {
        Vec::new()
    }
}

#[derive(Default)]
struct Shared {
    /// `CLOCK_REALTIME` − `CLOCK_MONOTONIC`, ns.
    ahead: AtomicI64,
    nic: Mutex<(u64, VecDeque<NicReading>)>,
    disturbances: Mutex<Vec<Disturbance>>,
    stop: AtomicBool,
}

impl Shared {
    /// Total number of readings of the NIC clock, and the latest ones.
    fn readings(&self) -> std::sync::MutexGuard<'_, (u64, VecDeque<NicReading>)> {
        self.nic.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The thread that watches the clocks; dropping this ends it.
pub struct Clocks {
    shared: Arc<Shared>,
    boot_id: [u8; 16],
    thread: Option<std::thread::JoinHandle<()>>,
    /// Monitor of the daemons that keep the clocks synchronised; started at the first use of the grandmaster's time.
    sync: OnceLock<Monitor>,
}

impl Clocks {
    /// Starts the watch. `nic` reads the NIC clock, if there is one.
    pub fn watch(nic: Option<Box<dyn NicClockSource>>) -> Self {
        let shared = Arc::new(Shared::default());
        let mut watcher = Watcher::new(nic, Arc::clone(&shared));
        // A single reading may be delayed, and the drift is not known yet.
        for _ in 0..FIRST_LOOKS {
            watcher.read_clocks();
        }
        let thread = std::thread::Builder::new().name("latpath-clocks".into()).spawn(move || watcher.run()).ok();
        Self { shared, boot_id: boot_id(), thread, sync: OnceLock::new() }
    }

    /// Converts a kernel stamp from `CLOCK_REALTIME` to `CLOCK_MONOTONIC`.
    #[inline]
    pub fn monotonic_of(&self, realtime: Ns) -> Ns {
        realtime.saturating_sub(self.shared.ahead.load(Ordering::Relaxed))
    }

    /// Converts a kernel stamp of the given clock to `CLOCK_MONOTONIC`.
    #[inline]
    pub fn of_kernel(&self, clock: KernelClock, time: Ns) -> Ns {
        match clock {
            KernelClock::Realtime => self.monotonic_of(time),
            KernelClock::Monotonic => time,
        }
    }

    /// Time at which a message was sent: a kernel stamp converted to `CLOCK_MONOTONIC`, a NIC stamp unchanged.
    #[inline]
    pub fn of_left(&self, left: &SentStamp<'_>) -> Ns {
        match left.stamp.source() {
            Source::Kernel => self.monotonic_of(left.time),
            _ => left.time,
        }
    }

    /// Latest reading of the NIC clock.
    pub fn nic(&self) -> Option<NicReading> {
        self.shared.readings().1.back().copied()
    }

    /// Readings of the NIC clock since the last call with the same counter, from at most the last minute.
    pub fn nic_since(&self, seen: &mut u64) -> Vec<NicReading> {
        let readings = self.shared.readings();
        let new = readings.0.saturating_sub(*seen).min(readings.1.len() as u64) as usize;
        *seen = readings.0;
        readings.1.iter().skip(readings.1.len() - new).copied().collect()
    }

    /// Starts to monitor the daemons that keep the clocks synchronised, unless they are already monitored.
    pub fn follow_ptp(&self, options: impl FnOnce() -> SurveyOptions) {
        self.sync.get_or_init(|| Monitor::start(options(), None));
    }

    /// The time of the grandmaster that a clock of this machine follows, as of the last reading.
    pub fn ptp_time(&self) -> Option<PtpTime> {
        self.sync.get()?.ptp_time()
    }

    /// Waits for `mostly`. If a NIC clock exists, then waits until it has been read `more` times since the call, at
    /// most until `longest` has passed.
    pub fn wait_for_readings(&self, more: u64, mostly: Duration, longest: Duration) {
        let (begun, requested) = (Instant::now(), self.shared.readings().0 + more);
        std::thread::sleep(mostly);
        while self.nic().is_some() && self.shared.readings().0 < requested && begun.elapsed() < longest {
            std::thread::sleep(EVERY / 5);
        }
    }

    /// Disturbances since the last call with the same counter.
    pub fn disturbances_since(&self, seen: &mut u64) -> Vec<Disturbance> {
        let all = self.shared.disturbances.lock().unwrap_or_else(|e| e.into_inner());
        let new = all.iter().skip(*seen as usize).cloned().collect();
        *seen = all.len() as u64;
        new
    }

    /// Reads all clocks one last time, so that no disturbance is missed, and ends the watch.
    pub fn finish(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// Number of disturbances so far.
    pub fn disturbances(&self) -> usize {
        self.shared.disturbances.lock().unwrap_or_else(|e| e.into_inner()).len()
    }

    /// Identity of this machine's `CLOCK_MONOTONIC`: it combines the kernel's boot ID and the time namespace.
    pub fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Watcher {
    nic: Option<Box<dyn NicClockSource>>,
    realtime: RealtimeWatch,
    shared: Arc<Shared>,
}

/// Number of readings before the first probe.
const FIRST_LOOKS: usize = 5;
/// Number of NIC clock readings kept: those of one minute.
const READINGS: usize = 1200;
/// Maximum number of disturbances kept.
const KEPT: usize = 10_000;

impl Watcher {
    fn new(nic: Option<Box<dyn NicClockSource>>, shared: Arc<Shared>) -> Self {
        Self { nic, realtime: RealtimeWatch::new(&ClockTie::read()), shared }
    }

    fn read_clocks(&mut self) {
        let mut new = Vec::new();
        if let Some(step) = self.realtime.observe(&ClockTie::read()) {
            let what = format!("CLOCK_REALTIME was set, by {} ns: kernel stamps around then are wrong", step.by_ns);
            new.push(Disturbance::new(step.noticed_at_ns, what));
        }
        // `zero` is the time of day when the monotonic clock was at 0 ns.
        let (zero, _) = self.realtime.to_monotonic(0);
        self.shared.ahead.store(zero.saturating_neg(), Ordering::Relaxed);
        if let Some(nic) = &mut self.nic {
            let (reading, found) = nic.read();
            new.extend(found);
            if let Some(reading) = reading {
                let mut readings = self.shared.readings();
                readings.0 += 1;
                readings.1.push_back(reading);
                if readings.1.len() > READINGS {
                    readings.1.pop_front();
                }
            }
        }
        let mut all = self.shared.disturbances.lock().unwrap_or_else(|e| e.into_inner());
        let room = KEPT.saturating_sub(all.len());
        all.extend(new.into_iter().take(room));
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(if self.nic.is_some() { EVERY } else { WITHOUT_NIC_EVERY });
            self.read_clocks();
        }
        let last = self.nic.as_mut().map(|nic| nic.finish()).unwrap_or_default();
        self.shared.disturbances.lock().unwrap_or_else(|e| e.into_inner()).extend(last);
    }
}

/// `/proc/sys/kernel/random/boot_id` combined with the time namespace; random if it cannot be read, so that two
/// machines never seem to be the same.
fn boot_id() -> [u8; 16] {
    let text = latpath_linux::proc::boot_id();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    if digits.len() == 32 {
        digits.chunks(2).zip(&mut id).for_each(|(pair, byte)| *byte = pair[0] << 4 | pair[1]);
        // Another time namespace has another CLOCK_MONOTONIC, as another machine would.
        use std::os::unix::fs::MetadataExt;
        let inode = std::fs::metadata("/proc/self/ns/time").map_or(0, |m| m.ino());
        inode.to_be_bytes().iter().zip(&mut id[8..]).for_each(|(n, byte)| *byte ^= n);
        return id;
    }
    use std::hash::{BuildHasher, RandomState};
    for half in id.chunks_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(0u8).to_ne_bytes());
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::monotonic;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_kernels_times_become_monotonic_ones() {
        let clocks = Clocks::watch(None);
        let before = monotonic();
        let realtime = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as Ns;
        let after = monotonic();
        let converted = clocks.monotonic_of(realtime);
        assert!((before - 1_000..=after + 1_000).contains(&converted), "{before} {converted} {after}");
        assert_ne!(clocks.boot_id(), [0; 16]);
    }

    struct Disturbed;
    impl NicClockSource for Disturbed {
        fn read(&mut self) -> (Option<NicReading>, Vec<Disturbance>) {
            (Some(NicReading::default()), vec![Disturbance::new(1, "step".into())])
        }
    }

    #[test]
    fn each_disturbance_is_reported_once() {
        let clocks = Clocks::watch(Some(Box::new(Disturbed)));
        let mut seen = 0;
        assert!(!clocks.disturbances_since(&mut seen).is_empty());
        let before = seen;
        while clocks.disturbances() as u64 == before {
            std::thread::sleep(Duration::from_millis(5));
        }
        let more = clocks.disturbances_since(&mut seen);
        assert_eq!(more.len() as u64, seen - before);
        assert_eq!(clocks.nic(), Some(NicReading::default()));
    }
}
