//! A log as CSV: one file, to which only whole lines are appended.

use super::{columns, format::Format, LogError, Progress};
use crate::transaction::{Route, Transaction};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Interval between fsync calls.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The file, and text not yet written.
pub(super) struct Csv {
    path: PathBuf,
    file: File,
    route: Route,
    text: Vec<u8>,
    /// Size of the complete lines in the file, bytes.
    bytes: u64,
    rows: u64,
    synced: Instant,
}

impl Csv {
    pub fn create(path: &Path) -> Result<Self, LogError> {
        let file =
            OpenOptions::new().write(true).create_new(true).open(path).map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => LogError::Exists(path.into()),
                _ => LogError::File { path: path.into(), source },
            })?;
        let (path, route) = (path.into(), Route::detailed(0));
        Ok(Self { path, file, route, text: Vec::new(), bytes: 0, rows: 0, synced: Instant::now() })
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let written = self.file.write_all(&self.text);
        if let Err(source) = written {
            // Remove an incomplete line, which would look like a shorter row.
            let _ = self.file.set_len(self.bytes);
            return Err(LogError::File { path: self.path.clone(), source });
        }
        self.bytes += self.text.len() as u64;
        self.text.clear();
        Ok(())
    }
}

impl Format for Csv {
    fn begin(&mut self, route: &Route) -> Result<(), LogError> {
        self.route = route.clone();
        self.text.extend((columns::names(route).join(",") + "\n").bytes());
        self.flush()
    }

    /// Adds rows. They are in the page cache when this returns, and so survive a kill.
    fn write(&mut self, rows: &[Transaction]) -> Result<(), LogError> {
        let mut digits = itoa::Buffer::new();
        for row in rows {
            self.text.extend(digits.format(row.sequence).bytes());
            for value in columns::values(row, &self.route) {
                self.text.push(b',');
                if let Some(value) = value {
                    self.text.extend(digits.format(value).bytes());
                }
            }
            self.text.push(b'\n');
        }
        self.flush()?;
        self.rows += rows.len() as u64;
        Ok(())
    }

    fn tick(&mut self, progress: &Progress) -> Result<(), LogError> {
        if self.synced.elapsed() < SYNC_EVERY {
            return Ok(());
        }
        self.synced = Instant::now();
        self.finish(progress)
    }

    /// Writes everything to the disk.
    fn finish(&mut self, _: &Progress) -> Result<(), LogError> {
        match self.file.sync_data() {
            // EINVAL: the file is a pipe, or its file system has no fsync.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            done => done.map_err(LogError::file(&self.path)),
        }
    }

    fn safe_rows(&self) -> u64 {
        self.rows
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}
