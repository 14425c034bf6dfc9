//! Explains the late packets of a recording in progress in a separate thread, so that the figures are not delayed.

use super::{late_figures, Explainer};
use latpath_capture::{BoundedCaptures, Capture, CaptureKind, RankedCapture, WaitingCaptures};
use latpath_cause::RunContext;
use latpath_clock::TimeOfDay;
use latpath_journey::Layout;
use latpath_model::{Ns, PointInfo, HOST};
use latpath_run::facts::HostFacts;
use latpath_stats::{units::CharacterSet, Histogram, LateFigures, ShownAfter};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of waiting captures; further ones are skipped, because a cause shown a minute late is useless.
const QUEUED: usize = 16;
/// Interval between searches for virtual machines, made while no capture is waiting.
const FIND_VMS_EVERY: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_millis(500);
/// Interval at which [`LiveExplainer::finish`] checks for waiting captures.
const POLL: Duration = Duration::from_millis(5);

enum Request {
    /// A capture, with the points, layout and time of day at the time of the request.
    Capture(Box<(RankedCapture, Vec<PointInfo>, Layout, TimeOfDay)>),
    Reset,
}

#[derive(Default)]
struct Shared {
    figures: LateFigures,
    /// Number of captures that wait or are being explained.
    waiting: usize,
    /// Times at which the first late packet of each explained spike arrived, for spikes not shown yet, ns.
    not_shown: Vec<Ns>,
}

/// Explains the captures of a recording in progress. After a drop, the thread ends once it has handled all waiting
/// captures.
pub struct LiveExplainer {
    requests: BoundedCaptures<Request>,
    shared: Arc<Mutex<Shared>>,
    skipped: u64,
    shown_after: Histogram,
    latest: Ns,
}

impl LiveExplainer {
    /// Maximum time that a capture waits for late packets in flight; short, because the user waits for the cause.
    pub const MAX_WAIT: Duration = Duration::from_millis(300);

    /// Starts the thread for streams that are being followed now. `context` describes the machines at the start; this
    /// host's own facts are added, and its virtual machines are searched for again from time to time.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(context: RunContext) -> std::io::Result<Self> {
        Self::spawn(on_this_host(context), true)
    }

    /// Starts the thread for captures of a run, whose virtual machines and CPUs are taken from the context.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn for_run(context: RunContext) -> std::io::Result<Self> {
        Self::spawn(context, false)
    }

    fn spawn(context: RunContext, is_live: bool) -> std::io::Result<Self> {
        let (requests, receiver) = BoundedCaptures::new(QUEUED);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let to = Arc::clone(&shared);
        let run = move || explain(&receiver, &to, context, is_live);
        std::thread::Builder::new().name("lp-explain".into()).spawn(run)?;
        Ok(Self { requests, shared, skipped: 0, shown_after: Histogram::new(), latest: 0 })
    }

    /// Queues a capture to be explained or learnt from, with the current points, layout and time of day.
    pub fn take(&mut self, capture: RankedCapture, points: &[PointInfo], layout: &Layout, time_of_day: TimeOfDay) {
        let (is_spike, bytes) = (capture.capture.kind == CaptureKind::Spike, capture.capture.record_bytes());
        let request = Request::Capture(Box::new((capture, points.to_vec(), layout.clone(), time_of_day)));
        // Lock first: the thread decrements `waiting` after each capture.
        let mut shared = lock(&self.shared);
        match self.requests.offer(bytes, request) {
            true => shared.waiting += 1,
            false => self.skipped += u64::from(is_spike),
        }
    }

    /// Resets all counts, but keeps the baseline.
    pub fn reset(&mut self) {
        self.skipped = 0;
        self.shown_after = Histogram::new();
        // If the queue is full, the explainer's counts are not reset.
        self.requests.offer(0, Request::Reset);
    }

    /// Waits until all queued captures are explained, or `within` has passed.
    pub fn finish(&self, within: Duration) {
        let began = Instant::now();
        while lock(&self.shared).waiting > 0 && began.elapsed() < within {
            std::thread::sleep(POLL);
        }
    }

    /// Whether there is an explanation that [`figures`](Self::figures) has not returned yet.
    pub fn has_news(&self) -> bool {
        !lock(&self.shared).not_shown.is_empty()
    }

    /// The current causes, which the caller must show at once. `late` is the number of late packets so far.
    pub fn figures(&mut self, late: u64) -> LateFigures {
        let (figures, not_shown) = {
            let mut shared = lock(&self.shared);
            (shared.figures.clone(), std::mem::take(&mut shared.not_shown))
        };
        let now = latpath_linux::monotonic();
        for end in not_shown {
            self.latest = now.saturating_sub(end);
            self.shown_after.record(self.latest);
        }
        let shown_after = (self.shown_after.count() > 0).then(|| ShownAfter {
            spikes: self.shown_after.count(),
            latest_ns: self.latest,
            median_ns: self.shown_after.percentile(500_000),
            worst_ns: self.shown_after.max(),
        });
        LateFigures { late: late.max(figures.explained), skipped: self.skipped, shown_after, ..figures }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arrival time of the late packet that arrived first.
fn first_end(capture: &Capture) -> Option<Ns> {
    let late = capture.packets.iter().filter(|packet| packet.late);
    late.filter_map(|packet| packet.sightings.last()).map(|seen| seen.t).min()
}

fn on_this_host(context: RunContext) -> RunContext {
    let facts = HostFacts::read();
    RunContext {
        cpus: facts.cpus_online.parse().ok().map(|cpus| (HOST.to_owned(), cpus)).into_iter().collect(),
        governors: facts.governors,
        is_virtual: facts.is_virtual,
        start_ns: latpath_linux::monotonic(),
        ..context
    }
}

fn explain(requests: &WaitingCaptures<Request>, shared: &Mutex<Shared>, context: RunContext, is_live: bool) {
    // Explaining must not delay packets.
    latpath_linux::background::lower_priority();
    let mut explainer = Explainer::new(context, 0);
    let mut found_vms: Option<Instant> = None;
    let letters = CharacterSet::from_env();
    loop {
        if is_live && found_vms.is_none() {
            found_vms = Some(Instant::now());
            let found = latpath_vms::find().map_or(Vec::new(), |found| found.vms);
            explainer.context_mut().vms.set(HOST, found);
        }
        let request = match requests.next_within(QUIET) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => {
                found_vms = found_vms.filter(|found| found.elapsed() < FIND_VMS_EVERY);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let (mut end, mut explained) = (None, 0);
        match request {
            Request::Reset => explainer.reset(),
            Request::Capture(request) => {
                explained = 1;
                let (RankedCapture { capture, .. }, points, layout, time_of_day) = *request;
                let context = explainer.context_mut();
                context.routes = layout.route.by_streams(context.streams.len());
                (context.segments, context.points, context.time_of_day) = (layout.segments, points, time_of_day);
                match capture.kind {
                    CaptureKind::Baseline => explainer.learn(&capture),
                    CaptureKind::Spike => {
                        explainer.add(&capture);
                        end = first_end(&capture);
                    }
                }
            }
        }
        let figures = late_figures(&explainer.explanation(), explainer.latest(), explainer.context(), letters);
        let mut shared = lock(shared);
        shared.figures = figures;
        shared.waiting -= explained;
        shared.not_shown.extend(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_capture::{MachineSnapshot, MAX_WAITING_BYTES};
    use latpath_flight::{CpuRecord, Event, Snapshot, Window};

    fn spike(number: u32, bytes: usize) -> RankedCapture {
        let cpu = CpuRecord { events: Vec::with_capacity(bytes / size_of::<Event>()), ..CpuRecord::default() };
        let window = Window { from: 0, to: 1, cpus: vec![cpu] };
        let record = Ok(Snapshot { window, ..Snapshot::default() });
        let machines = vec![MachineSnapshot { machine: "guest0".into(), offset_ns: 0, error_bound_ns: 0, record }];
        let (kind, packets) = (CaptureKind::Spike, Vec::new());
        let capture = Capture { number, kind, from: 0, to: 1, machines, packets, more_late: 0 };
        RankedCapture { capture, worst: 1, late: vec![1] }
    }

    #[test]
    fn a_capture_that_finds_no_room_is_counted_and_those_that_wait_are_explained() {
        let (requests, receiver) = BoundedCaptures::new(QUEUED);
        let shared = Arc::<Mutex<Shared>>::default();
        let mut explainer = LiveExplainer { requests, shared, skipped: 0, shown_after: Histogram::new(), latest: 0 };
        let take = |explainer: &mut LiveExplainer, number, bytes| {
            explainer.take(spike(number, bytes), &[], &Layout::default(), TimeOfDay::default());
        };
        for (number, bytes) in [(1, 3), (2, 3), (3, 1)] {
            take(&mut explainer, number, bytes * MAX_WAITING_BYTES / 5);
        }
        assert_eq!(explainer.figures(0).skipped, 1, "the second is too much beside the first");
        let shared = Arc::clone(&explainer.shared);
        let LiveExplainer { requests, .. } = explainer;
        drop(requests);
        explain(&receiver, &shared, RunContext::default(), false);
        assert_eq!(lock(&shared).waiting, 0, "none waits to be explained");
    }
}
