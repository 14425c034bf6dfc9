//! The thread that writes a log.

use super::{csv::Csv, parts::Parquet, LogError, Progress, Work};
use crate::transaction::{Route, Transaction};
use std::{
    path::{Path, PathBuf},
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, Sender, TryRecvError},
        Arc,
    },
    time::{Duration, Instant},
};

/// The thread looks for work so often. It is not woken: that would cost the measuring thread a system call.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// CSV is brought to the disk so often.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The file's kind, by its name.
pub(super) enum Format {
    Csv { csv: Csv, synced: Instant },
    Parquet(Box<Parquet>),
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Wrote {
    pub files: Vec<PathBuf>,
    pub rows: u64,
    pub bytes: u64,
    pub notes: Vec<String>,
}

impl Format {
    pub fn create(path: &Path) -> Result<Self, LogError> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Ok(Self::Csv { csv: Csv::create(path)?, synced: Instant::now() }),
            Some("parquet") => Ok(Self::Parquet(Box::new(Parquet::create(path)?))),
            _ => Err(LogError::Format(path.into())),
        }
    }

    fn begin(&mut self, route: &Route) -> Result<(), LogError> {
        match self {
            Self::Csv { csv, .. } => csv.begin(route),
            Self::Parquet(parquet) => {
                parquet.begin(route);
                Ok(())
            }
        }
    }

    fn write(&mut self, rows: &[Transaction], route: &Route) -> Result<(), LogError> {
        match self {
            Self::Csv { csv, .. } => csv.write(rows, route),
            Self::Parquet(parquet) => parquet.write(rows),
        }
    }

    fn tick(&mut self, progress: &Progress) -> Result<(), LogError> {
        match self {
            Self::Csv { csv, synced } if synced.elapsed() >= SYNC_EVERY => {
                *synced = Instant::now();
                csv.sync()
            }
            Self::Csv { .. } => Ok(()),
            Self::Parquet(parquet) => parquet.tick(progress),
        }
    }

    fn finish(&mut self, progress: &Progress) -> Result<(), LogError> {
        match self {
            Self::Csv { csv, .. } => csv.sync(),
            Self::Parquet(parquet) => parquet.finish(progress),
        }
    }
}

/// The thread's belongings.
pub(super) struct Writer {
    pub path: PathBuf,
    pub format: Format,
    pub todo: Receiver<Work>,
    /// Buffers go back here to be filled again.
    pub free: Sender<Vec<Transaction>>,
    pub progress: Arc<Progress>,
}

impl Writer {
    /// Works until the log is finished, or the first error.
    pub fn run(mut self) -> Result<Wrote, (Wrote, LogError)> {
        let mut rows = 0;
        let done = self.work(&mut rows);
        let done = done.and_then(|()| self.format.finish(&self.progress));
        self.progress.failed.store(done.is_err(), Ordering::Relaxed);
        let mut wrote = Wrote::default();
        match &mut self.format {
            Format::Csv { csv, .. } => {
                (wrote.rows, wrote.bytes, wrote.files) = (rows, csv.bytes, vec![self.path]);
            }
            Format::Parquet(parquet) => {
                (wrote.rows, wrote.files) = (parquet.safe_rows(), parquet.files());
                wrote.notes = std::mem::take(&mut parquet.notes);
                let sizes = wrote.files.iter().filter_map(|f| std::fs::metadata(f).ok());
                wrote.bytes = sizes.map(|m| m.len()).sum();
            }
        }
        match done {
            Ok(()) => Ok(wrote),
            Err(error) => Err((wrote, error)),
        }
    }

    fn work(&mut self, written: &mut u64) -> Result<(), LogError> {
        let (mut route, mut begun) = (Route::detailed(0), false);
        loop {
            match self.todo.try_recv() {
                Ok(Work::Route(new)) => route = new,
                Ok(Work::Rows(mut rows)) => {
                    if !std::mem::replace(&mut begun, true) {
                        self.format.begin(&route)?;
                    }
                    self.format.write(&rows, &route)?;
                    *written += rows.len() as u64;
                    self.progress.batches.fetch_add(1, Ordering::Relaxed);
                    rows.clear();
                    let _ = self.free.send(rows);
                }
                Err(TryRecvError::Empty) => std::thread::sleep(LOOK_EVERY),
                Err(TryRecvError::Disconnected) => break,
            }
            self.progress.steps.fetch_add(1, Ordering::Relaxed);
            self.format.tick(&self.progress)?;
            let safe = match &self.format {
                Format::Csv { .. } => *written,
                Format::Parquet(parquet) => parquet.safe_rows(),
            };
            self.progress.rows.store(safe, Ordering::Relaxed);
        }
        if !begun {
            self.format.begin(&route)?;
        }
        Ok(())
    }
}
