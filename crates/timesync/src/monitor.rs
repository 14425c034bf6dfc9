//! Watches the clocks in a separate thread, so that measuring threads do not wait for daemons.

use crate::events::{EventDetector, SyncEvent};
use crate::sample::{Sampler, SyncRecord};
use crate::state::{ClockReport, PtpTime};
use crate::survey::{Survey, SurveyOptions};
use latpath_model::Ns;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between two readings.
const EVERY: Duration = Duration::from_millis(500);
/// Maximum number of queued records; beyond it, the oldest are dropped and counted.
const MAX_WAITING: usize = 4096;
/// Time for which the bound must hold before a gate opens.
const STEADY: Duration = Duration::from_secs(2);
/// Interval at which a gate reports why it is still waiting.
const REMIND: Duration = Duration::from_secs(2);
/// Interval at which a gate checks the last report.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Shared {
    latest: Option<ClockReport>,
    records: VecDeque<SyncRecord>,
    dropped: u64,
    readings: u64,
    broken: u64,
}

/// Handle of the watching thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why a gate did not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateError {
    /// The bound was not reached in time, for this reason.
    Late(String),
    /// The user stopped the wait.
    Stopped,
}

impl Monitor {
    /// Starts the thread. With `required_ns`, an event is reported while the system clock exceeds this bound, once it
    /// has been within the bound.
    pub fn start(options: SurveyOptions, required_ns: Option<Ns>) -> Self {
        let (shared, stop) = (Arc::new(Mutex::new(Shared::default())), Arc::new(AtomicBool::new(false)));
        let (its_shared, its_stop) = (shared.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("latpath-sync".into());
        let thread = thread.spawn(move || watch(Survey::new(options), required_ns, &its_shared, &its_stop)).ok();
        Self { shared, stop, thread: Mutex::new(thread) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest report; `None` before the first.
    pub fn latest(&self) -> Option<ClockReport> {
        self.lock().latest.clone()
    }

    /// The grandmaster's time according to the latest report; `None` unless the system clock or a NIC's clock follows
    /// one.
    pub fn ptp_time(&self) -> Option<PtpTime> {
        self.lock().latest.as_ref()?.grandmaster_time
    }

    /// Number of readings at which the required bound was exceeded.
    pub fn broken(&self) -> u64 {
        self.lock().broken
    }

    /// Samples and events since the last call, in order.
    pub fn take(&self) -> Vec<SyncRecord> {
        self.lock().records.drain(..).collect()
    }

    /// Number of records that were dropped because they were not taken in time.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Waits until the system clock has been within the bound for two seconds. `waiting` is called with the reason, at
    /// most every two seconds.
    ///
    /// # Errors
    /// The time limit has passed, or `stop` is set.
    pub fn wait_within(
        &self,
        bound_ns: Ns,
        limit: Duration,
        stop: &AtomicBool,
        mut waiting: impl FnMut(&str),
    ) -> Result<ClockReport, GateError> {
        let begun = Instant::now();
        let (mut since, mut reminded) = (None, None::<Instant>);
        let mut seen = self.lock().readings;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(GateError::Stopped);
            }
            let (latest, readings) = {
                let shared = self.lock();
                (shared.latest.clone(), shared.readings)
            };
            if let Some(report) = latest.filter(|_| readings != seen) {
                seen = readings;
                match report.why_not_within(bound_ns) {
                    None => {
                        let since: &mut Instant = since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= STEADY {
                            return Ok(report);
                        }
                    }
                    Some(why) => {
                        since = None;
                        if begun.elapsed() >= limit {
                            return Err(GateError::Late(why));
                        }
                        if reminded.is_none_or(|at| at.elapsed() >= REMIND) {
                            reminded = Some(Instant::now());
                            waiting(&why);
                        }
                    }
                }
            }
            if begun.elapsed() >= limit + STEADY {
                return Err(GateError::Late("the bound did not hold for two seconds".into()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Ends the thread; the last samples and events can still be taken afterwards.
    pub fn finish(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.finish();
    }
}

fn watch(mut survey: Survey, required_ns: Option<Ns>, shared: &Mutex<Shared>, stop: &AtomicBool) {
    let (mut detector, mut sampler) = (EventDetector::default(), Sampler::default());
    // A gate waits for the bound before the measurement, so only violations after the bound was first met are events.
    let mut is_required = false;
    loop {
        let begun = Instant::now();
        let report = survey.read();
        if let Some(required) = required_ns {
            let is_within = report.is_within(required);
            if is_within && !is_required {
                is_required = true;
                detector.require(required);
            }
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.broken += u64::from(is_required && !is_within);
        }
        let events: Vec<SyncEvent> = detector.observe(&report);
        let samples = sampler.add(&report);
        keep(shared, samples.into_iter().map(SyncRecord::Sample).chain(events.into_iter().map(SyncRecord::Event)));
        {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.latest = Some(report);
            shared.readings += 1;
        }
        while begun.elapsed() < EVERY && !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(EVERY.saturating_sub(begun.elapsed()));
        }
        if stop.load(Ordering::Relaxed) {
            keep(shared, sampler.finish().into_iter().map(SyncRecord::Sample));
            return;
        }
    }
}

fn keep(shared: &Mutex<Shared>, records: impl Iterator<Item = SyncRecord>) {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    for record in records {
        if shared.records.len() == MAX_WAITING {
            shared.records.pop_front();
            shared.dropped += 1;
        }
        shared.records.push_back(record);
    }
}
