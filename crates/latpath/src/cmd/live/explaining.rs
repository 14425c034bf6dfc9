//! Explains late packets while they come: in a thread of its own, since figures must not wait for it.

use latpath_capture::{Capture, CaptureKind, RankedCapture};
use latpath_cause::RunContext;
use latpath_follow::Layout;
use latpath_model::{Ns, PointInfo, StreamSpec, HOST};
use latpath_report::{late_figures, Explainer};
use latpath_run::{facts::HostFacts, Stamp};
use latpath_stats::{units::Letters, Histogram, LateFigures, ShownAfter};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for packets that are still on their way when their time is frozen: who looks on waits for the cause.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Captures that may wait. Where more come, the worst explanation is none that comes a minute late.
const WAITING: usize = 16;
/// Virtual machines come and go; they are looked for while no late packet waits, which takes its time.
const LOOK_FOR_VMS: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_millis(500);

enum Order {
    Capture(Box<RankedCapture>, Vec<PointInfo>, Box<Layout>),
    Reset,
}

/// What is known, and from when: the first late packet of each spike that was explained and not shown yet had come then.
#[derive(Default)]
struct Known {
    figures: LateFigures,
    fresh: Vec<Ns>,
}

/// The running explanation. Dropping it lets the thread end after what it has at hand.
pub struct Explaining {
    orders: SyncSender<Order>,
    known: Arc<Mutex<Known>>,
    skipped: u64,
    after: Histogram,
    latest: Ns,
}

impl Explaining {
    /// Begins.
    ///
    /// # Errors
    /// Where there can be no more threads.
    pub fn begin(streams: &[StreamSpec]) -> std::io::Result<Self> {
        let (orders, come) = sync_channel(WAITING);
        let known = Arc::new(Mutex::new(Known::default()));
        let (streams, to) = (streams.to_vec(), Arc::clone(&known));
        std::thread::Builder::new().name("lp-explain".into()).spawn(move || explain(&come, &to, streams))?;
        Ok(Self { orders, known, skipped: 0, after: Histogram::new(), latest: 0 })
    }

    /// A capture, with the points and the way as they are known now.
    pub fn take(&mut self, frozen: RankedCapture, points: Vec<PointInfo>, layout: Layout) {
        let spike = frozen.capture.kind == CaptureKind::Spike;
        let order = Order::Capture(Box::new(frozen), points, Box::new(layout));
        match self.orders.try_send(order) {
            Err(TrySendError::Full(_)) if spike => self.skipped += 1,
            _ => {}
        }
    }

    /// Counts anew.
    pub fn reset(&mut self) {
        self.skipped = 0;
        self.after = Histogram::new();
        // Where so many wait, the count is that of some before too.
        let _ = self.orders.try_send(Order::Reset);
    }

    /// Whether more is known than was shown.
    pub fn has_news(&self) -> bool {
        !locked(&self.known).fresh.is_empty()
    }

    /// What is known by now, to be shown at once. `late` packets there were in all.
    pub fn figures(&mut self, late: u64) -> LateFigures {
        let (figures, fresh) = {
            let mut known = locked(&self.known);
            (known.figures.clone(), std::mem::take(&mut known.fresh))
        };
        let now = latpath_linux::monotonic();
        for end in fresh {
            self.latest = now.saturating_sub(end);
            self.after.record(self.latest);
        }
        let shown_after = (self.after.count() > 0).then(|| ShownAfter {
            spikes: self.after.count(),
            latest_ns: self.latest,
            median_ns: self.after.percentile(500_000),
            worst_ns: self.after.max(),
        });
        LateFigures { late: late.max(figures.explained), skipped: self.skipped, shown_after, ..figures }
    }
}

fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When the first late packet of a capture had come.
fn first_end(capture: &Capture) -> Option<Ns> {
    let late = capture.packets.iter().filter(|packet| packet.late);
    late.filter_map(|packet| packet.sightings.last()).map(|seen| seen.t).min()
}

fn explain(come: &Receiver<Order>, known: &Mutex<Known>, streams: Vec<StreamSpec>) {
    // What it explains must not be what it did itself.
    latpath_linux::background::lower_priority();
    let (facts, start) = (HostFacts::read(), Stamp::now());
    let context = RunContext {
        streams,
        cpus: facts.cpus_online.parse().ok().map(|cpus| (HOST.to_owned(), cpus)).into_iter().collect(),
        governors: facts.governors,
        start_ns: start.monotonic_ns,
        utc_offset_ns: start.utc_ns - start.monotonic_ns,
        ..RunContext::default()
    };
    let mut explainer = Explainer::new(context, 0);
    let mut looked: Option<Instant> = None;
    let letters = Letters::from_env();
    loop {
        if looked.is_none() {
            looked = Some(Instant::now());
            explainer.context_mut().vms = latpath_vms::find().map_or(Vec::new(), |found| found.vms);
        }
        let order = match come.recv_timeout(QUIET) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => {
                looked = looked.filter(|looked| looked.elapsed() < LOOK_FOR_VMS);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut end = None;
        match order {
            Order::Reset => explainer.reset(),
            Order::Capture(frozen, points, layout) => {
                let context = explainer.context_mut();
                context.routes = layout.route.lines_of(context.streams.len());
                context.segments = layout.segments;
                context.points = points;
                match frozen.capture.kind {
                    CaptureKind::Baseline => explainer.learn(&frozen.capture),
                    CaptureKind::Spike => {
                        explainer.add(&frozen.capture);
                        end = first_end(&frozen.capture);
                    }
                }
            }
        }
        let figures = late_figures(&explainer.explanation(), explainer.latest(), explainer.context(), letters);
        let mut known = locked(known);
        known.figures = figures;
        known.fresh.extend(end);
    }
}
