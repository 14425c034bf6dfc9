//! Explains late packets while they come: in a thread of its own, since figures must not wait for it.

use latpath_follow::Layout;
use latpath_report::{late_figures, Explainer, Scenery};
use latpath_run::{facts::HostFacts, Stamp};
use latpath_spike::{Frozen, Kind};
use latpath_stats::{units::Letters, LateFigures};
use latpath_words::{PointInfo, StreamSpec, HOST};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for packets that are still on their way when their time is frozen: who looks on waits for the cause.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Scenes that may wait. Where more come, the worst explanation is none that comes a minute late.
const WAITING: usize = 16;
/// Virtual machines come and go.
const LOOK_FOR_VMS: Duration = Duration::from_secs(30);

enum Order {
    Scene(Box<Frozen>, Vec<PointInfo>, Box<Layout>),
    Reset,
}

/// The running explanation. Dropping it lets the thread end after what it has at hand.
pub struct Explaining {
    orders: SyncSender<Order>,
    shown: Arc<Mutex<LateFigures>>,
    skipped: u64,
}

impl Explaining {
    /// Begins.
    ///
    /// # Errors
    /// Where there can be no more threads.
    pub fn begin(streams: &[StreamSpec]) -> std::io::Result<Self> {
        let (orders, come) = sync_channel(WAITING);
        let shown = Arc::new(Mutex::new(LateFigures::default()));
        let (streams, to) = (streams.to_vec(), Arc::clone(&shown));
        std::thread::Builder::new().name("lp-explain".into()).spawn(move || explain(&come, &to, streams))?;
        Ok(Self { orders, shown, skipped: 0 })
    }

    /// A scene, with the points and the way as they are known now.
    pub fn take(&mut self, frozen: Frozen, points: Vec<PointInfo>, layout: Layout) {
        let spike = frozen.scene.kind == Kind::Spike;
        let order = Order::Scene(Box::new(frozen), points, Box::new(layout));
        match self.orders.try_send(order) {
            Err(TrySendError::Full(_)) if spike => self.skipped += 1,
            _ => {}
        }
    }

    /// Counts anew.
    pub fn reset(&mut self) {
        self.skipped = 0;
        // Where so many wait, the count is that of some before too.
        let _ = self.orders.try_send(Order::Reset);
    }

    /// What is known by now. `late` packets there were in all.
    pub fn figures(&self, late: u64) -> LateFigures {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        LateFigures { late: late.max(shown.explained), skipped: self.skipped, ..shown }
    }
}

fn explain(come: &Receiver<Order>, shown: &Mutex<LateFigures>, streams: Vec<StreamSpec>) {
    // What it explains must not be what it did itself.
    latpath_flight::give_way();
    let (facts, start) = (HostFacts::read(), Stamp::now());
    let scenery = Scenery {
        streams,
        cpus: facts.cpus_online.parse().ok().map(|cpus| (HOST.to_owned(), cpus)).into_iter().collect(),
        governors: facts.governors,
        start_ns: start.monotonic_ns,
        utc_offset_ns: start.utc_ns - start.monotonic_ns,
        ..Scenery::default()
    };
    let mut explainer = Explainer::new(scenery, 0);
    let mut looked: Option<Instant> = None;
    let letters = Letters::from_env();
    for order in come {
        match order {
            Order::Reset => explainer.reset(),
            Order::Scene(frozen, points, layout) => {
                if looked.is_none_or(|looked| looked.elapsed() > LOOK_FOR_VMS) {
                    looked = Some(Instant::now());
                    explainer.scenery_mut().vms = latpath_vms::find().map_or(Vec::new(), |found| found.vms);
                }
                let scenery = explainer.scenery_mut();
                scenery.lines = layout.route.lines_of(scenery.streams.len());
                scenery.segments = layout.segments;
                scenery.points = points;
                match frozen.scene.kind {
                    Kind::OnTime => explainer.learn(&frozen.scene),
                    Kind::Spike => explainer.add(&frozen.scene),
                }
            }
        }
        let figures = late_figures(&explainer.explanation(), explainer.latest(), explainer.scenery(), letters);
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }
}
