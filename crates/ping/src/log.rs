//! A record of single transactions: all, those over a limit, or the last seconds before a breach or the end.
//!
//! The thread that measures copies a transaction into a buffer and never waits; a writer thread turns full buffers into CSV
//! or Parquet. What finds no buffer is counted. docs/ping-log.md says what the files hold, and what a kill leaves.

mod columns;
mod csv;
mod format;
mod keep;
mod pages;
mod parts;
mod rant;
mod read;
mod recording;
mod ring;
mod writer;

pub use keep::{BadKeep, Keep};
pub use rant::import_rant;
pub use recording::recording;

use crate::in_the_way::in_the_way;
use crate::transaction::{Route, Stamp, Transaction};
use latpath_model::Ns;
use latpath_partstore::StoreError;
use ring::Ring;
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

/// Transactions of one buffer.
const BATCH: usize = 4096;
/// Buffers of a log of all: 64 k transactions, 0.6 s at 100 000/s, for which the disk may stall.
const BATCHES_ALL: usize = 16;
/// Buffers of the others.
const BATCHES_FEW: usize = 4;
/// A buffer goes to a writer that has nothing to do when its first transaction is so old, full or not.
const BATCH_NS: Ns = 250_000_000;
/// At the end the writer may take so long for one buffer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Transactions that leave the ring with each that comes, after a breach: draining costs the measuring thread little at once.
const DRAIN: usize = 8;

/// What a log needs to know beforehand.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Transactions a second, where it is known: the size of the ring of [`Keep::Last`].
    pub rate_hz: Option<f64>,
    pub huge_pages: bool,
}

/// Why there is no log, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The name says no format.
    #[error("{}: a log is FILE.csv or FILE.parquet", .0.display())]
    Format(PathBuf),
    /// Something has the name.
    #[error("{}", in_the_way(.0, "name another file"))]
    Exists(PathBuf),
    /// A file could not be written or read.
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The parts of a Parquet log could not be put together.
    #[error("{}: {source}; what was logged is in {}", path.display(), parts.display())]
    Parts {
        path: PathBuf,
        /// The names of its parts, `*` for their numbers.
        parts: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The last seconds do not fit into memory.
    #[error("a log of last:{time:?} at {rate_hz:.0} transactions/s takes {need} MiB of memory, {free} MiB are free; use a shorter time")]
    Memory {
        /// How long.
        time: Duration,
        /// How many.
        rate_hz: f64,
        /// MiB.
        need: u64,
        /// MiB, half of what the system has left.
        free: u64,
    },
    /// The system gives no memory for the last seconds.
    #[error("memory for the log's ring: {source}; use a shorter time")]
    Ring {
        /// The system's answer.
        source: io::Error,
    },
    /// There are not enough huge pages.
    #[error(
        "the log's ring takes {need} huge pages of {size_kb} kB, {free} are free: {source}; reserve them as root \
         (echo {reserve} > /proc/sys/vm/nr_hugepages), or do without"
    )]
    HugePages {
        need: u64,
        free: u64,
        /// What nr_hugepages would have to be.
        reserve: u64,
        size_kb: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The writer thread could not be started, or is gone, or takes too long.
    #[error("{}: the thread that writes it {why}", path.display())]
    Writer { path: PathBuf, why: String },
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

#[derive(Debug, Default)]
pub struct Summary {
    /// The files, the finished one alone where all went well.
    pub files: Vec<PathBuf>,
    /// Transactions in them.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Transactions that should be in them and are not: they found no buffer, or the file could not be written.
    pub dropped: u64,
    /// What the reader must know.
    pub notes: Vec<String>,
    /// Why the log is not whole.
    pub error: Option<LogError>,
}

/// What goes to the writer.
enum Work {
    /// The line that cuts the transactions into parts; first of all.
    Route(Route),
    Rows(Vec<Transaction>),
}

/// What the writer did so far.
#[derive(Debug, Default)]
struct Progress {
    /// It gave up: nothing needs to be sent any more.
    failed: AtomicBool,
    rows: AtomicU64,
    /// Buffers that it is done with.
    batches: AtomicU64,
    /// Grows while it gets on.
    steps: AtomicU64,
}

/// A log that is being written.
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
    /// Buffers that went to the writer.
    sent: u64,
    offered: u64,
    /// Those of them that found no buffer.
    dropped: u64,
    /// Rows of a breach that were overwritten before the writer had room.
    overwritten: u64,
    notes: Vec<String>,
}

impl Log {
    /// Makes the file, all memory and the writer thread. That thread gets the CPUs and the scheduling policy of the one that
    /// calls: call before it is pinned or made real-time.
    ///
    /// An existing file is refused.
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

    /// The parts that get columns. Once, before the first transaction; later calls change nothing.
    pub fn begin(&mut self, route: &Route) {
        if !std::mem::replace(&mut self.has_line, true) {
            let _ = self.work.send(Work::Route(route.clone()));
        }
    }

    /// Takes a closed transaction: keeps it, or not, as was asked for. One without an answer counts as over any limit.
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

    /// A breach: what the ring holds of the time before goes to the file, and this transaction when it is closed.
    pub fn breach(&mut self, transaction: &Transaction) {
        if let Some(ring) = &mut self.ring {
            ring.breach(transaction);
        }
    }

    /// Sends on what waits for its buffer to be full. Call it several times a second, with `CLOCK_MONOTONIC`.
    pub fn tick(&mut self, now: Ns) {
        self.send_what_waits(now);
        self.drain(DRAIN * DRAIN);
    }

    /// Whether the log came to an end early; [`Log::finish`] says why.
    pub fn failed(&self) -> bool {
        self.progress.failed.load(Ordering::Relaxed)
    }

    /// Transactions in the file so far: a kill cannot take them any more.
    pub fn rows(&self) -> u64 {
        self.progress.rows.load(Ordering::Relaxed)
    }

    /// Transactions that found no buffer so far.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.overwritten
    }

    fn queue(&mut self, transaction: &Transaction) {
        self.offered += 1;
        // A batch is full only where no empty one was there to take its place.
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

    /// A writer that is behind gets full buffers only: then they last longest.
    fn send_what_waits(&mut self, now: Ns) {
        if now.saturating_sub(self.batch_since) >= BATCH_NS
            && self.progress.batches.load(Ordering::Relaxed) == self.sent
        {
            self.send();
        }
    }

    /// Hands the batch over, if an empty one is there to replace it.
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
        // The result of a writer that is gone says so.
        let _ = self.work.send(Work::Rows(full));
    }

    /// Moves rows from the ring to the writer.
    fn drain(&mut self, most: usize) {
        for _ in 0..most {
            // Where the writer is behind, the rest waits in the ring.
            if self.batch.len() == BATCH && !self.send() {
                return;
            }
            match self.ring.as_mut().and_then(Ring::drain) {
                Some(transaction) => self.queue(&transaction),
                None => return,
            }
        }
    }

    /// Waits for room, for as long as the writer gets on.
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

    /// Writes what is left, and closes the files.
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
        // Putting a long log together takes its time; the writer counts its steps.
        let (mut steps, mut until) = (0, Instant::now() + PATIENCE);
        while !writer.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            let now = progress.steps.load(Ordering::Relaxed);
            if now != steps {
                (steps, until) = (now, Instant::now() + PATIENCE);
            }
        }
        let lost = |why| Summary { error: Some(LogError::Writer { path, why }), ..Summary::default() };
        let mut summary = match writer.is_finished() {
            true => writer.join().unwrap_or_else(|_| lost("failed".into())),
            false => lost(format!("does not get on: nothing for {} s", PATIENCE.as_secs())),
        };
        summary.notes.splice(..0, notes);
        summary.dropped = overwritten + offered.saturating_sub(summary.rows);
        summary
    }
}

/// A buffer whose pages are there.
fn empty() -> Vec<Transaction> {
    let mut batch = vec![Transaction::default(); BATCH];
    batch.clear();
    batch
}

/// When a transaction was, `CLOCK_MONOTONIC` of the emitter.
fn when(transaction: &Transaction) -> Ns {
    transaction.raw.get(Stamp::T1App).unwrap_or(0)
}
