//! A log of transactions: of all, of those over a limit, or of those in the last seconds before a breach or the end.
//!
//! The measuring thread copies transactions into buffers and never waits; a writer thread converts full buffers to CSV
//! or Parquet. If no buffer is free, the transaction is dropped and counted. docs/ping-log.md describes the files, and
//! their state after a kill.

mod columns;
mod csv;
mod format;
mod keep;
mod pages;
mod parts;
mod ring;
mod writer;

pub use keep::{BadKeep, Keep};

use crate::in_the_way::in_the_way;
use crate::transaction::{Route, Stamp, Transaction};
use latpath_model::Ns;
use latpath_partstore::StoreError;
use ring::Ring;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender},
        Arc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Number of transactions per buffer.
const BATCH: usize = 4096;
/// Number of buffers for a log of all transactions: 64 Ki transactions bridge a disk stall of 0.6 s at 100,000/s.
const BATCHES_ALL: usize = 16;
/// Number of buffers for other logs.
const BATCHES_FEW: usize = 4;
/// Age of a buffer's first transaction at which the buffer is sent to an idle writer although it is not full, ns.
const BATCH_NS: Ns = 250_000_000;
/// Maximum time without progress of the writer while the log is being finished.
const PATIENCE: Duration = Duration::from_secs(30);
/// After a breach: number of transactions moved from the ring to the writer per new transaction, which spreads the cost
/// for the measuring thread.
const DRAIN: usize = 8;

/// Options of a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Transactions per second, if known; determines the size of the ring of [`Keep::Last`].
    pub rate_hz: Option<f64>,
    /// Whether to allocate the ring in huge pages.
    pub huge_pages: bool,
}

/// Why a log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file name has no known extension.
    #[error("{}: a log is FILE.csv or FILE.parquet", .0.display())]
    Format(PathBuf),
    /// The path already exists.
    #[error("{}", in_the_way(.0, "name another file"))]
    Exists(PathBuf),
    /// A file could not be written or read.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// The parts of a Parquet log could not be merged.
    #[error("{}: {source}; the logged rows are in {}", path.display(), parts.display())]
    Parts {
        /// Path of the log.
        path: PathBuf,
        /// Pattern of the parts' names, with `*` for their numbers.
        parts: PathBuf,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// The ring for the last seconds does not fit into memory.
    #[error("a log of last:{time:?} at {rate_hz:.0} transactions/s takes {need} MiB of memory, {free} MiB are free; use a shorter time")]
    Memory {
        /// Requested time span.
        time: Duration,
        /// Transactions per second.
        rate_hz: f64,
        /// Memory of the ring, MiB.
        need: u64,
        /// Half of the available memory, MiB.
        free: u64,
    },
    /// The operating system did not provide the memory for the ring.
    #[error("memory for the log's ring: {source}; use a shorter time")]
    Ring {
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// Too few huge pages are free.
    #[error(
        "the log's ring takes {need} huge pages of {size_kb} kB, {free} are free: {source}; reserve them as root \
         (echo {reserve} > /proc/sys/vm/nr_hugepages), or do without"
    )]
    HugePages {
        /// Number of huge pages needed.
        need: u64,
        /// Number of free huge pages.
        free: u64,
        /// Value to which nr_hugepages must be set.
        reserve: u64,
        /// Size of a huge page, kB.
        size_kb: u64,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// The writer thread could not be started, ended early, or makes no progress.
    #[error("{}: the thread that writes it {why}", path.display())]
    Writer {
        /// Path of the log.
        path: PathBuf,
        /// The rest of the error message's sentence.
        why: String,
    },
}

impl LogError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::File { path, source }
    }

    fn ring(source: io::Error) -> Self {
        Self::Ring { source }
    }
}

impl From<StoreError> for LogError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Write { path, source } | StoreError::Read { path, source } => Self::File { path, source },
            StoreError::Damaged { path, why } => Self::File { path, source: io::Error::other(why) },
        }
    }
}

/// The log of a finished run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Files of the log; a single one if the log is complete.
    pub files: Vec<PathBuf>,
    /// Number of transactions in the files.
    pub rows: u64,
    /// Size of the files, bytes.
    pub bytes: u64,
    /// Number of transactions missing from the files, because no buffer was free or a write failed.
    pub dropped: u64,
    /// Notes for the reader; a session's document lists them among its own notes.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Why the log is incomplete, or null.
    pub error: Option<String>,
}

/// Messages to the writer.
enum Work {
    /// The route that divides transactions into segments; it must be the first message.
    Route(Route),
    Rows(Vec<Transaction>),
}

/// Progress of the writer.
#[derive(Debug, Default)]
struct Progress {
    /// Whether the writer has failed; it then needs no more buffers.
    failed: AtomicBool,
    rows: AtomicU64,
    /// Number of processed buffers.
    batches: AtomicU64,
    /// Counter of the writer's steps, to detect a stall.
    steps: AtomicU64,
}

/// A log during a run.
pub struct Log {
    path: PathBuf,
    keep: Keep,
    ring: Option<Ring>,
    batch: Vec<Transaction>,
    batch_since: Ns,
    work: Sender<Work>,
    free: Receiver<Vec<Transaction>>,
    writer: JoinHandle<Summary>,
    progress: Arc<Progress>,
    has_line: bool,
    /// Number of buffers sent to the writer.
    sent: u64,
    offered: u64,
    /// Number of transactions dropped because no buffer was free.
    dropped: u64,
    /// Number of rows that were to be written, but were overwritten in the ring before the writer could take them.
    overwritten: u64,
    notes: Vec<String>,
}

impl Log {
    /// Creates the file, all buffers and the writer thread. The writer inherits the CPUs and scheduling policy of the
    /// calling thread, so call this before pinning that thread or giving it real-time priority.
    ///
    /// # Errors
    /// If the file exists or cannot be created, or the memory or the thread cannot be obtained.
    pub fn open(path: &Path, keep: Keep, options: &LogOptions) -> Result<Self, LogError> {
        let format = writer::create(path)?;
        let mut notes = Vec::new();
        let ring = match keep {
            Keep::Last(time) => Some(Ring::new(time, options, &mut notes)?),
            _ => None,
        };
        let (work, todo) = std::sync::mpsc::channel();
        let (give_back, free) = std::sync::mpsc::channel();
        for _ in 1..if keep == Keep::All { BATCHES_ALL } else { BATCHES_FEW } {
            let _ = give_back.send(empty());
        }
        let progress = Arc::<Progress>::default();
        let thread = writer::Writer { format, todo, free: give_back, progress: Arc::clone(&progress) };
        let started = std::thread::Builder::new().name("latpath-log".into()).spawn(|| thread.run());
        let why = |e| LogError::Writer { path: path.into(), why: format!("cannot be started: {e}") };
        Ok(Self {
            path: path.into(),
            keep,
            ring,
            batch: empty(),
            batch_since: Ns::MAX,
            work,
            free,
            writer: started.map_err(why)?,
            progress,
            has_line: false,
            sent: 0,
            offered: 0,
            dropped: 0,
            overwritten: 0,
            notes,
        })
    }

    /// Sets the route, whose segments become columns. Only the first call takes effect; make it before the first
    /// transaction.
    pub fn begin(&mut self, route: &Route) {
        if !std::mem::replace(&mut self.has_line, true) {
            let _ = self.work.send(Work::Route(route.clone()));
        }
    }

    /// Adds a closed transaction if the log keeps it. A transaction without an answer counts as over any limit.
    #[inline]
    pub fn push(&mut self, transaction: &Transaction) {
        match self.keep {
            Keep::All => self.queue(transaction),
            Keep::Over(limit) => {
                if transaction.round_trip().is_none_or(|time| time > limit) {
                    self.queue(transaction);
                }
            }
            Keep::Last(_) => {
                if let Some(ring) = &mut self.ring {
                    self.overwritten += u64::from(ring.push(transaction));
                    if ring.is_draining() {
                        self.drain(DRAIN);
                    }
                }
            }
        }
    }

    /// Handles a breach: the transactions in the ring are written to the file, followed by this one once it is closed.
    pub fn breach(&mut self, transaction: &Transaction) {
        if let Some(ring) = &mut self.ring {
            ring.breach(transaction);
        }
    }

    /// Sends a partly filled buffer if it is old enough. Call this several times a second; `now` is `CLOCK_MONOTONIC`.
    pub fn tick(&mut self, now: Ns) {
        self.send_what_waits(now);
        self.drain(DRAIN * DRAIN);
    }

    /// Whether the log failed; [`Log::finish`] returns the error.
    pub fn failed(&self) -> bool {
        self.progress.failed.load(Ordering::Relaxed)
    }

    /// Number of transactions in the file so far, which survive a kill.
    pub fn rows(&self) -> u64 {
        self.progress.rows.load(Ordering::Relaxed)
    }

    /// Number of transactions dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.overwritten
    }

    fn queue(&mut self, transaction: &Transaction) {
        self.offered += 1;
        // A batch is still full at this point only if there was no empty one to replace it.
        if self.batch.len() == BATCH && !self.send() {
            self.dropped += 1;
            return;
        }
        self.batch.push(*transaction);
        let time = when(transaction);
        if self.batch.len() == 1 {
            self.batch_since = time;
        }
        if self.batch.len() == BATCH {
            self.send();
        } else {
            self.send_what_waits(time);
        }
    }

    /// Sends a partly filled buffer if it is old enough and the writer is idle. A busy writer gets only full buffers,
    /// to save buffers.
    fn send_what_waits(&mut self, now: Ns) {
        if now.saturating_sub(self.batch_since) >= BATCH_NS
            && self.progress.batches.load(Ordering::Relaxed) == self.sent
        {
            self.send();
        }
    }

    /// Sends the batch if an empty one can replace it. Returns whether it was sent.
    fn send(&mut self) -> bool {
        if self.batch.is_empty() {
            return true;
        }
        match self.free.try_recv() {
            Ok(empty) => {
                self.exchange(empty);
                true
            }
            Err(_) => false,
        }
    }

    fn exchange(&mut self, empty: Vec<Transaction>) {
        let full = std::mem::replace(&mut self.batch, empty);
        self.batch_since = Ns::MAX;
        self.sent += 1;
        // If the writer has ended, its result contains the error.
        let _ = self.work.send(Work::Rows(full));
    }

    /// Moves rows from the ring to the writer.
    fn drain(&mut self, most: usize) {
        for _ in 0..most {
            // If the writer is busy, the remaining rows stay in the ring.
            if self.batch.len() == BATCH && !self.send() {
                return;
            }
            match self.ring.as_mut().and_then(Ring::drain) {
                Some(transaction) => self.queue(&transaction),
                None => return,
            }
        }
    }

    /// Waits for an empty buffer while the writer makes progress. Returns whether the batch was sent.
    fn send_patiently(&mut self) -> bool {
        if self.batch.is_empty() {
            return true;
        }
        let until = Instant::now() + PATIENCE;
        while !self.failed() && Instant::now() < until {
            match self.free.recv_timeout(Duration::from_millis(100)) {
                Ok(empty) => {
                    self.exchange(empty);
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        false
    }

    /// Writes the remaining transactions and closes the files.
    pub fn finish(mut self) -> Summary {
        if let Some(ring) = &mut self.ring {
            ring.end();
        }
        while self.ring.as_ref().is_some_and(Ring::is_draining) {
            if self.batch.len() == BATCH && !self.send_patiently() {
                break;
            }
            self.drain(BATCH);
        }
        self.send_patiently();
        if let Some(ring) = self.ring.take() {
            self.overwritten += ring.left();
            self.notes.extend(ring.note());
        }
        let Self { path, work, writer, notes, offered, overwritten, progress, .. } = self;
        drop(work);
        // Merging a long log takes a while: wait for as long as the writer's step counter advances.
        let (mut steps, mut until) = (0, Instant::now() + PATIENCE);
        while !writer.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            let now = progress.steps.load(Ordering::Relaxed);
            if now != steps {
                (steps, until) = (now, Instant::now() + PATIENCE);
            }
        }
        let lost = |why| Summary { error: Some(LogError::Writer { path, why }.to_string()), ..Summary::default() };
        let mut summary = match writer.is_finished() {
            true => writer.join().unwrap_or_else(|_| lost("failed".into())),
            false => lost(format!("makes no progress: nothing for {} s", PATIENCE.as_secs())),
        };
        summary.notes.splice(..0, notes);
        summary.dropped = overwritten + offered.saturating_sub(summary.rows);
        summary
    }
}

/// Creates an empty buffer whose pages are all populated.
fn empty() -> Vec<Transaction> {
    let mut batch = vec![Transaction::default(); BATCH];
    batch.clear();
    batch
}

/// Time of a transaction: its T1 app, on the emitter's `CLOCK_MONOTONIC`.
fn when(transaction: &Transaction) -> Ns {
    transaction.raw.get(Stamp::T1App).unwrap_or(0)
}
