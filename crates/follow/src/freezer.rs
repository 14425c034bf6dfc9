//! The flight recorder of this machine, on a thread of its own: copying and naming what it has recorded must not keep
//! sightings waiting.

use latpath_flight::{give_way, Figures, Options, Recorder, Snapshot};
use latpath_model::Ns;
use std::sync::mpsc::{channel, sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Times that may wait to be frozen.
const WAITING: usize = 64;
/// How long it is measured at the start what an event costs.
const SAMPLED: Duration = Duration::from_millis(200);
/// How often figures are taken.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

struct Asked {
    number: u32,
    from: Ns,
    to: Ns,
}

/// Dropping it ends the recording.
pub(crate) struct Freezer {
    orders: Option<SyncSender<Asked>>,
    frozen: Receiver<(u32, Snapshot)>,
    figures: Arc<Mutex<Figures>>,
    thread: Option<JoinHandle<()>>,
}

impl Freezer {
    /// Starts recording.
    ///
    /// # Errors
    /// Why this machine cannot.
    pub fn start(options: &Options) -> Result<Self, String> {
        let recorder = Recorder::start(options).map_err(|e| e.to_string())?;
        recorder.learn();
        let (orders, come) = sync_channel(WAITING);
        let (done, frozen) = channel();
        let figures = Arc::new(Mutex::new(recorder.figures()));
        let of_thread = Arc::clone(&figures);
        let thread = std::thread::Builder::new().name("latpath-freeze".into());
        let thread = thread.spawn(move || run(&recorder, &come, &done, &of_thread)).map_err(|e| e.to_string())?;
        Ok(Self { orders: Some(orders), frozen, figures, thread: Some(thread) })
    }

    /// Asks for a time. Returns at once.
    pub fn ask(&self, number: u32, from: Ns, to: Ns) -> Result<(), String> {
        let Some(orders) = &self.orders else { return Err("the recorder has been stopped".into()) };
        orders.try_send(Asked { number, from, to }).map_err(|e| match e {
            TrySendError::Full(_) => "it was still busy with other spikes".into(),
            TrySendError::Disconnected(_) => "the recorder has ended".into(),
        })
    }

    /// What has been frozen.
    pub fn answer(&self) -> Option<(u32, Snapshot)> {
        self.frozen.try_recv().ok()
    }

    /// What was recorded so far; up to a second old.
    pub fn figures(&self) -> Figures {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(recorder: &Recorder, orders: &Receiver<Asked>, done: &Sender<(u32, Snapshot)>, figures: &Mutex<Figures>) {
    give_way();
    recorder.sample(SAMPLED);
    let tell = || *figures.lock().unwrap_or_else(PoisonError::into_inner) = recorder.figures();
    tell();
    let mut told = Instant::now();
    loop {
        match orders.recv_timeout(FIGURES_EVERY) {
            Ok(Asked { number, from, to }) => {
                // Who asked may be gone.
                let _ = done.send((number, recorder.snapshot(from, to)));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Also where spikes come faster than that.
        if told.elapsed() >= FIGURES_EVERY {
            tell();
            told = Instant::now();
        }
    }
}
