//! This machine's clocks, watched while a run goes on: by a thread of its own, so that the measuring one only reads.

use crate::timeline::Disturbance;
use crate::transaction::Source;
use crate::transport::{KernelClock, Left};
use crate::wire::NicClock;
use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_model::Ns;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two looks where there is a NIC's clock to read.
const EVERY: Duration = Duration::from_millis(50);
/// And where there is none: a step of the time of day shows no sooner.
const WITHOUT_NIC_EVERY: Duration = Duration::from_millis(500);

/// Where the NIC's clock is read.
pub trait NicClockSource: Send {
    /// A reading, and what was wrong with the clock since the last one.
    fn read(&mut self) -> (Option<NicClock>, Vec<Disturbance>);

    /// What the last readings say that only later ones would have settled.
    fn finish(&mut self) -> Vec<Disturbance> {
        Vec::new()
    }
}

#[derive(Default)]
struct Shared {
    /// `CLOCK_REALTIME` − `CLOCK_MONOTONIC`.
    ahead: AtomicI64,
    nic: Mutex<(u64, VecDeque<NicClock>)>,
    disturbances: Mutex<Vec<Disturbance>>,
    stop: AtomicBool,
}

impl Shared {
    /// The NIC's clock's last readings, and how many there were.
    fn readings(&self) -> std::sync::MutexGuard<'_, (u64, VecDeque<NicClock>)> {
        self.nic.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The watch; it ends when this is dropped.
pub struct Clocks {
    shared: Arc<Shared>,
    boot_id: [u8; 16],
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Clocks {
    /// Begins to watch. `nic` reads the NIC's clock, where there is one.
    pub fn watch(nic: Option<Box<dyn NicClockSource>>) -> Self {
        let shared = Arc::new(Shared::default());
        let mut watcher = Watcher::new(nic, Arc::clone(&shared));
        // The first reading may have been delayed, and the drift that would help is not known yet.
        for _ in 0..FIRST_LOOKS {
            watcher.read_clocks();
        }
        let thread = std::thread::Builder::new().name("latpath-clocks".into()).spawn(move || watcher.run()).ok();
        Self { shared, boot_id: boot_id(), thread }
    }

    /// The kernel's `CLOCK_REALTIME` stamp as `CLOCK_MONOTONIC`.
    #[inline]
    pub fn monotonic_of(&self, realtime: Ns) -> Ns {
        realtime.saturating_sub(self.shared.ahead.load(Ordering::Relaxed))
    }

    /// The `CLOCK_MONOTONIC` time of a stamp of the kernel's.
    #[inline]
    pub fn of_kernel(&self, clock: KernelClock, time: Ns) -> Ns {
        match clock {
            KernelClock::Realtime => self.monotonic_of(time),
            KernelClock::Monotonic => time,
        }
    }

    /// The time of a message that left: the kernel's as `CLOCK_MONOTONIC`, the NIC's as it is.
    #[inline]
    pub fn of_left(&self, left: &Left<'_>) -> Ns {
        match left.stamp.source() {
            Source::Kernel => self.monotonic_of(left.time),
            _ => left.time,
        }
    }

    /// The NIC's clock as it was read last.
    pub fn nic(&self) -> Option<NicClock> {
        self.shared.readings().1.back().copied()
    }

    /// Readings of it since the last call with the same counter; those of the last minute, if it was longer ago.
    pub fn nic_since(&self, seen: &mut u64) -> Vec<NicClock> {
        let readings = self.shared.readings();
        let new = readings.0.saturating_sub(*seen).min(readings.1.len() as u64) as usize;
        *seen = readings.0;
        readings.1.iter().skip(readings.1.len() - new).copied().collect()
    }

    /// Waits for so many more readings of it: as long as they mostly take, and longer where there is one and they do not come.
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

    /// Looks once more, and ends the watch: nothing that happened until now stays unsaid.
    pub fn finish(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// How many there were.
    pub fn disturbances(&self) -> usize {
        self.shared.disturbances.lock().unwrap_or_else(|e| e.into_inner()).len()
    }

    /// What names this kernel's clock, as it is since its boot and in this time namespace.
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

/// Looks before the first probe.
const FIRST_LOOKS: usize = 5;
/// Readings of the NIC's clock that are kept: of a minute.
const READINGS: usize = 1200;
/// Disturbances that are kept.
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
        // The time of day that 0 ns of the monotonic clock would have.
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

/// `/proc/sys/kernel/random/boot_id` and the time namespace as bytes; random where it cannot be read, so that no two machines are taken for one.
fn boot_id() -> [u8; 16] {
    let text = latpath_linux::proc::boot_id();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    if digits.len() == 32 {
        digits.chunks(2).zip(&mut id).for_each(|(pair, byte)| *byte = pair[0] << 4 | pair[1]);
        // Another time namespace has another CLOCK_MONOTONIC: it is as good as another machine.
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
        fn read(&mut self) -> (Option<NicClock>, Vec<Disturbance>) {
            (Some(NicClock::default()), vec![Disturbance::new(1, "step".into())])
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
        assert_eq!(clocks.nic(), Some(NicClock::default()));
    }
}
