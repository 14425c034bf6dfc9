//! The writer thread of a log.

use super::{csv::Csv, format::Format, parts::Parquet, LogError, Progress, Summary, Work};
use crate::transaction::{Route, Transaction};
use std::{
    path::Path,
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, Sender, TryRecvError},
        Arc,
    },
    time::Duration,
};

/// Poll interval of the thread. It polls because waking it would cost the measuring thread a system call.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Creates the file in the format of its extension.
pub(super) fn create(path: &Path) -> Result<Box<dyn Format>, LogError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Ok(Box::new(Csv::create(path)?)),
        Some("parquet") => Ok(Box::new(Parquet::create(path)?)),
        _ => Err(LogError::Format(path.into())),
    }
}

/// State of the thread.
pub(super) struct Writer {
    pub format: Box<dyn Format>,
    pub todo: Receiver<Work>,
    /// Returns empty buffers.
    pub free: Sender<Vec<Transaction>>,
    pub progress: Arc<Progress>,
}

impl Writer {
    /// Runs until the log is finished, or until the first error.
    pub fn run(mut self) -> Summary {
        let done = self.work().and_then(|()| self.format.finish(&self.progress));
        self.progress.failed.store(done.is_err(), Ordering::Relaxed);
        let files = self.format.files();
        let bytes = files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|m| m.len()).sum();
        let (rows, notes) = (self.format.safe_rows(), self.format.notes());
        Summary { files, rows, bytes, dropped: 0, notes, error: done.err().map(|e| e.to_string()) }
    }

    fn work(&mut self) -> Result<(), LogError> {
        let (mut route, mut begun) = (Route::detailed(0), false);
        loop {
            match self.todo.try_recv() {
                Ok(Work::Route(new)) => route = new,
                Ok(Work::Rows(mut rows)) => {
                    if !std::mem::replace(&mut begun, true) {
                        self.format.begin(&route)?;
                    }
                    self.format.write(&rows)?;
                    self.progress.batches.fetch_add(1, Ordering::Relaxed);
                    rows.clear();
                    let _ = self.free.send(rows);
                }
                Err(TryRecvError::Empty) => std::thread::sleep(LOOK_EVERY),
                Err(TryRecvError::Disconnected) => break,
            }
            self.progress.steps.fetch_add(1, Ordering::Relaxed);
            self.format.tick(&self.progress)?;
            self.progress.rows.store(self.format.safe_rows(), Ordering::Relaxed);
        }
        if !begun {
            self.format.begin(&route)?;
        }
        Ok(())
    }
}
