//! Runs the flight recorder on its own thread, so that measuring need not wait while events are copied and names
//! resolved.

use crate::recorder::{Figures, Recorder};
use crate::snapshot::Snapshot;
use latpath_linux::background::lower_priority;
use latpath_model::Ns;
use std::sync::mpsc::{
    channel, sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of waiting requests.
const WAITING: usize = 64;
/// Interval at which figures are read.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

/// A recorder: [`Recorder`], or a substitute in tests.
pub trait Record: Send {
    /// The events in `from..to`, both of the machine's `CLOCK_MONOTONIC`, ns.
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot;
    /// Figures of the recorder.
    fn figures(&self) -> Figures;
}

impl Record for Recorder {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        Self::snapshot(self, from, to)
    }

    fn figures(&self) -> Figures {
        Self::figures(self)
    }
}

/// Why a request is rejected, or has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSnapshot {
    /// Too many requests are waiting.
    #[error("the flight recorder was still busy with other times")]
    Busy,
    /// The thread has ended.
    #[error("the flight recorder failed within latpath (a panic)")]
    Ended,
}

struct Request {
    id: u64,
    from: Ns,
    to: Ns,
}

#[derive(Default)]
struct Shared {
    figures: Figures,
    is_new: bool,
}

/// The recorder's thread. Each result is a [`Snapshot`] that `finish` converts on the thread. Dropping this ends the
/// recording.
pub struct RecorderThread<T = Snapshot> {
    requests: Option<SyncSender<Request>>,
    results: Receiver<(u64, T)>,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send + 'static> RecorderThread<T> {
    /// Starts the thread, which runs at nice 19 and also calls `finish`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(record: Box<dyn Record>, finish: fn(Snapshot) -> T) -> std::io::Result<Self> {
        let (requests, come) = sync_channel(WAITING);
        let (done, results) = channel();
        let shared = Arc::new(Mutex::new(Shared { figures: record.figures(), is_new: true }));
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lp-flight".into()).spawn(move || {
            lower_priority();
            run(record.as_ref(), &come, &of_thread, &done, finish);
        })?;
        Ok(Self { requests: Some(requests), results, shared, thread: Some(thread) })
    }

    /// Requests the events in `from..to`, both `CLOCK_MONOTONIC`, without waiting.
    ///
    /// # Errors
    /// Too many requests are waiting, or the thread has ended.
    pub fn request(&self, id: u64, from: Ns, to: Ns) -> Result<(), NoSnapshot> {
        let requests = self.requests.as_ref().ok_or(NoSnapshot::Ended)?;
        requests.try_send(Request { id, from, to }).map_err(|e| match e {
            TrySendError::Full(_) => NoSnapshot::Busy,
            TrySendError::Disconnected(_) => NoSnapshot::Ended,
        })
    }

    /// The next available result, with the ID of its request; `None` if there is none yet.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn result(&self) -> Result<Option<(u64, T)>, NoSnapshot> {
        match self.results.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(NoSnapshot::Ended),
        }
    }

    /// Waits for the next result. Returns it with the ID of its request.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn wait(&self) -> Result<(u64, T), NoSnapshot> {
        self.results.recv().map_err(|_| NoSnapshot::Ended)
    }

    /// Figures of the recorder, at most a second old.
    pub fn figures(&self) -> Figures {
        lock(&self.shared).figures.clone()
    }

    /// The figures if they were read since the last call.
    pub fn new_figures(&self) -> Option<Figures> {
        let mut shared = lock(&self.shared);
        std::mem::take(&mut shared.is_new).then(|| shared.figures.clone())
    }
}

impl<T> Drop for RecorderThread<T> {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<T>(
    record: &dyn Record,
    requests: &Receiver<Request>,
    shared: &Mutex<Shared>,
    done: &Sender<(u64, T)>,
    finish: fn(Snapshot) -> T,
) {
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        // Checked here so that the figures are read even if requests arrive faster.
        if now >= due {
            due = now + FIGURES_EVERY;
            let figures = record.figures();
            *lock(shared) = Shared { figures, is_new: true };
        }
        match requests.recv_timeout(due.saturating_duration_since(now)) {
            // The receiver may be gone.
            Ok(Request { id, from, to }) => drop(done.send((id, finish(record.snapshot(from, to))))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
