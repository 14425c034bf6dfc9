//! A log as Parquet. A Parquet file cannot be read before its footer is written, at its end; so while the log goes on it is in
//! parts, each a whole file, closed every two seconds. Small ones are merged from time to time, all of them at the end.

use super::{
    groups::{Buffer, Output, GROUP_ROWS},
    LogError, Progress,
};
use crate::transaction::{Route, Transaction};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// A part is closed so long after its first row.
const PART_TIME: Duration = Duration::from_secs(2);
/// A part of so many rows is left alone until the end.
const LARGE_PART: u64 = 131_072;
/// So many small ones are merged.
const SMALL_PARTS: usize = 60;
/// A group of so many rows is copied as it is; the rows of smaller ones are gathered.
const LARGE_GROUP: i64 = GROUP_ROWS as i64 / 2;

/// A closed part.
#[derive(Clone, Debug)]
struct Part {
    first: u64,
    last: u64,
    rows: u64,
}

struct Open {
    output: Output,
    since: Instant,
}

/// The log.
pub(super) struct Parquet {
    path: PathBuf,
    route: Route,
    buffer: Buffer,
    open: Option<Open>,
    parts: Vec<Part>,
    next: u64,
    pub notes: Vec<String>,
    merging: bool,
    part_time: Duration,
}

impl Parquet {
    pub fn create(path: &Path) -> Result<Self, LogError> {
        let route = Route::detailed(0);
        let new = Self {
            path: path.into(),
            buffer: Buffer::new(&route),
            route,
            open: None,
            parts: Vec::new(),
            next: 0,
            notes: Vec::new(),
            merging: true,
            part_time: PART_TIME,
        };
        if path.symlink_metadata().is_ok() {
            return Err(LogError::Exists(path.into()));
        }
        // What a killed log left is not mixed with this one.
        let (folder, prefix) = (new.folder(), new.prefix());
        for entry in fs::read_dir(&folder).map_err(LogError::file(&folder))?.flatten() {
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes()) {
                return Err(LogError::Exists(entry.path()));
            }
        }
        // Better now than when the first two seconds are over.
        let hidden = new.hidden();
        File::create(&hidden).and_then(|_| fs::remove_file(&hidden)).map_err(LogError::file(path))?;
        Ok(new)
    }

    pub fn begin(&mut self, route: &Route) {
        self.route = route.clone();
        self.buffer = Buffer::new(route);
    }

    fn folder(&self) -> PathBuf {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.into(),
            _ => ".".into(),
        }
    }

    fn prefix(&self) -> OsString {
        let mut name = self.path.file_stem().unwrap_or_default().to_owned();
        name.push(".part-");
        name
    }

    fn name(&self, first: u64, last: u64) -> PathBuf {
        let mut name = self.prefix();
        name.push(if first == last { format!("{first:08}") } else { format!("{first:08}-{last:08}") });
        name.push(".parquet");
        self.path.with_file_name(name)
    }

    /// The one file that is being written, until it is whole and gets its name.
    fn hidden(&self) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(".unfinished");
        self.path.with_file_name(name)
    }

    /// Rows that a kill cannot take any more.
    pub fn safe_rows(&self) -> u64 {
        self.parts.iter().map(|p| p.rows).sum()
    }

    pub fn write(&mut self, rows: &[Transaction]) -> Result<(), LogError> {
        for row in rows {
            self.buffer.push(row, &self.route);
            if self.buffer.rows >= GROUP_ROWS {
                self.write_group()?;
            }
        }
        // A part begins with its first row, not with its first full group.
        self.open()?;
        Ok(())
    }

    fn open(&mut self) -> Result<&mut Open, LogError> {
        if self.open.is_none() {
            let hidden = self.hidden();
            let output = Output::create(&hidden, &self.route).map_err(LogError::file(&hidden))?;
            self.open = Some(Open { output, since: Instant::now() });
        }
        // Set just now if it was not before.
        self.open.as_mut().ok_or_else(|| LogError::Writer { path: self.path.clone(), why: "has no part".into() })
    }

    fn write_group(&mut self) -> Result<(), LogError> {
        if self.buffer.rows == 0 {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let path = self.name(self.next, self.next);
        let written = self.open()?.output.write(&mut buffer);
        self.buffer = buffer;
        written.map_err(LogError::file(&path))
    }

    /// Closes the part whose time is over.
    pub fn tick(&mut self, progress: &Progress) -> Result<(), LogError> {
        if self.open.as_ref().is_some_and(|open| open.since.elapsed() >= self.part_time) {
            self.close()?;
            self.merge_small(progress);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), LogError> {
        self.write_group()?;
        let Some(open) = self.open.take() else { return Ok(()) };
        let (number, rows) = (self.next, open.output.rows);
        let (hidden, path) = (self.hidden(), self.name(number, number));
        let closed = open.output.close().and_then(|()| fs::rename(&hidden, &path));
        closed.map_err(|source| {
            let _ = fs::remove_file(&hidden);
            LogError::File { path, source }
        })?;
        self.next += 1;
        self.parts.push(Part { first: number, last: number, rows });
        Ok(())
    }

    /// Keeps the number of parts low: what is merged here is small, so that the writer is soon back at its work.
    fn merge_small(&mut self, progress: &Progress) {
        let small = self.parts.iter().rev().take_while(|p| p.rows < LARGE_PART).count();
        let from = self.parts.len() - small;
        let rows: u64 = self.parts[from..].iter().map(|p| p.rows).sum();
        if !self.merging || small < 2 || (small < SMALL_PARTS && rows < LARGE_PART) {
            return;
        }
        let (first, last) = (self.parts[from].first, self.parts[self.parts.len() - 1].last);
        let path = self.name(first, last);
        match self.merge(from, &path, progress) {
            Ok(()) => self.parts = self.parts.drain(..from).chain([Part { first, last, rows }]).collect(),
            Err(e) => {
                self.notes.push(format!("log: small parts were left unmerged: {}: {e}", path.display()));
                self.merging = false;
            }
        }
    }

    /// Puts parts together in one file, which takes their place. At no instant is a row lost; one may be there twice, but then
    /// in a part whose number another part's name covers.
    fn merge(&self, from: usize, to: &Path, progress: &Progress) -> io::Result<()> {
        let hidden = self.hidden();
        let merged = self.copy_all(from, &hidden, progress).and_then(|()| fs::rename(&hidden, to));
        if merged.is_err() {
            let _ = fs::remove_file(&hidden);
            return merged;
        }
        for part in &self.parts[from..] {
            fs::remove_file(self.name(part.first, part.last))?;
        }
        Ok(())
    }

    fn copy_all(&self, from: usize, to: &Path, progress: &Progress) -> io::Result<()> {
        let mut output = Output::create(to, &self.route)?;
        let mut buffer = Buffer::new(&self.route);
        for part in &self.parts[from..] {
            let file = File::open(self.name(part.first, part.last))?;
            let reader = SerializedFileReader::new(file.try_clone()?).map_err(io::Error::other)?;
            for index in 0..reader.num_row_groups() {
                let group = reader.get_row_group(index).map_err(io::Error::other)?;
                let large = group.metadata().num_rows() >= LARGE_GROUP;
                if buffer.rows > 0 && (large || buffer.rows >= GROUP_ROWS - LARGE_GROUP as usize) {
                    output.write(&mut buffer)?;
                }
                if large {
                    output.copy(&file, group.as_ref())?;
                } else {
                    buffer.read(group.as_ref())?;
                }
                progress.steps.fetch_add(1, Ordering::Relaxed);
            }
        }
        if buffer.rows > 0 {
            output.write(&mut buffer)?;
        }
        output.close()
    }

    /// Makes the one file that was asked for.
    pub fn finish(&mut self, progress: &Progress) -> Result<(), LogError> {
        if self.open.is_some() || self.parts.is_empty() {
            self.open()?;
            self.close()?;
        }
        let merged = match &self.parts[..] {
            [only] => fs::rename(self.name(only.first, only.last), &self.path),
            _ => self.merge(0, &self.path, progress),
        };
        let mut parts = self.prefix();
        parts.push("*.parquet");
        let error =
            |source| LogError::Parts { path: self.path.clone(), parts: self.path.with_file_name(parts), source };
        merged.map_err(error)?;
        Ok(())
    }

    /// The files as they are now.
    pub fn files(&self) -> Vec<PathBuf> {
        if self.path.is_file() {
            return vec![self.path.clone()];
        }
        self.parts.iter().map(|p| self.name(p.first, p.last)).collect()
    }
}

impl Drop for Parquet {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            // Closes the file first; what it would still write is of no use.
            drop(open);
            let _ = fs::remove_file(self.hidden());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::record::Field;

    fn rows(numbers: std::ops::Range<u64>) -> Vec<Transaction> {
        numbers.map(|sequence| Transaction { sequence, ..Transaction::default() }).collect()
    }

    fn sequences(path: &Path) -> Vec<u64> {
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let number = |row: parquet::record::Row| match row.get_column_iter().next() {
            Some((_, Field::ULong(number))) => *number,
            other => panic!("{other:?}"),
        };
        reader.get_row_iter(None).unwrap().map(|row| number(row.unwrap())).collect()
    }

    fn parts(folder: &Path) -> Vec<PathBuf> {
        let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    }

    #[test]
    fn parts_stay_few_and_every_row_is_in_one_of_them_at_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.parquet");
        let mut log = Parquet::create(&path).unwrap();
        log.part_time = Duration::ZERO;
        let progress = Progress::default();
        let mut n = 0;
        // Small parts, with one among them that is large.
        for part in 0..150 {
            let more = if part == 70 { LARGE_PART } else { 10 };
            log.write(&rows(n..n + more)).unwrap();
            n += more;
            log.tick(&progress).unwrap();
            assert_eq!(log.safe_rows(), n);
        }
        let now = parts(folder.path());
        assert!(now.len() < 2 * SMALL_PARTS, "{}", now.len());
        assert!(now[0].ends_with("log.part-00000000-00000059.parquet"), "{}", now[0].display());
        let all: Vec<u64> = now.iter().flat_map(|p| sequences(p)).collect();
        assert_eq!(all, (0..n).collect::<Vec<_>>());
        log.write(&rows(n..n + 5)).unwrap();
        log.finish(&progress).unwrap();
        assert_eq!(parts(folder.path()), std::slice::from_ref(&path));
        assert_eq!(sequences(&path), (0..n + 5).collect::<Vec<_>>());
        assert!(log.notes.is_empty(), "{:?}", log.notes);
    }

    #[test]
    fn what_cannot_be_put_together_stays_in_parts_and_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.parquet");
        let mut log = Parquet::create(&path).unwrap();
        log.part_time = Duration::ZERO;
        let progress = Progress::default();
        for n in 0..3 {
            log.write(&rows(n..n + 1)).unwrap();
            log.tick(&progress).unwrap();
        }
        // A folder in the way of the file's name.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), "").unwrap();
        let error = log.finish(&progress).unwrap_err().to_string();
        assert!(error.contains("what was logged is in") && error.contains("log.part-*.parquet"), "{error}");
        assert_eq!(log.files().len(), 3);
        assert_eq!(log.files().iter().flat_map(|p| sequences(p)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
