//! A log as Parquet: parts ([`latpath_partstore`]) of two seconds each. Small parts are merged during the run, all
//! parts at the end.

use super::{columns, format::Format, LogError, Progress};
use crate::transaction::{Route, Transaction};
use latpath_partstore::{merge, Column, Directory, Group, Names, PartWriter, SmallParts, Span, StoreError, GROUP_ROWS};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{atomic::Ordering, Arc},
    time::{Duration, Instant},
};

/// Time from a part's first row until the part is closed.
const PART_TIME: Duration = Duration::from_secs(2);
/// Minimum number of rows of a large part. Small parts are merged once they have this many rows in total; large parts
/// are merged only at the end, which bounds the length of each merge during the run.
const LARGE_PART: u64 = 131_072;

pub(super) struct Parquet {
    /// Path of the finished log, for messages.
    path: PathBuf,
    /// File name of the finished log, in the directory of the parts.
    name: OsString,
    names: Names,
    route: Route,
    table: Arc<[Column]>,
    group: Group,
    open: Option<(PartWriter, Instant)>,
    /// Closed parts with their numbers of rows.
    parts: Vec<(Span, u64)>,
    next: u32,
    notes: Vec<String>,
    /// Small parts that are not merged yet; `None` after an error, when merging stops.
    small: Option<SmallParts>,
    part_time: Duration,
}

impl Parquet {
    pub fn create(path: &Path) -> Result<Self, LogError> {
        let (directory, name) = Directory::of_file(path).map_err(LogError::file(path))?;
        let mut prefix = path.file_stem().unwrap_or_default().to_owned();
        prefix.push(".part-");
        let names = Names { directory, prefix };
        if path.symlink_metadata().is_ok() {
            return Err(LogError::Exists(path.into()));
        }
        // Reject a path for which parts of a killed log exist.
        for entry in names.directory.names().map_err(LogError::file(path))? {
            if entry.as_encoded_bytes().starts_with(names.prefix.as_encoded_bytes()) {
                return Err(LogError::Exists(names.directory.join(entry)));
            }
        }
        // If no part can be created, fail now rather than after the first two seconds.
        let hidden = names.hidden(Span::one(0));
        names
            .directory
            .new_file(&hidden)
            .and_then(|_| names.directory.remove(&hidden))
            .map_err(LogError::file(path))?;
        let route = Route::detailed(0);
        let table = columns::table(&route);
        Ok(Self {
            path: path.into(),
            name,
            names,
            group: Group::new(table.len()),
            table,
            route,
            open: None,
            parts: Vec::new(),
            next: 0,
            notes: Vec::new(),
            small: Some(SmallParts::new(LARGE_PART, LARGE_PART)),
            part_time: PART_TIME,
        })
    }

    fn create_part(&self, span: Span, name: OsString) -> Result<PartWriter, StoreError> {
        PartWriter::create(
            &self.names.directory,
            (self.names.hidden(span), name),
            ("transactions", &[]),
            Arc::clone(&self.table),
        )
    }

    fn open(&mut self) -> Result<(), LogError> {
        if self.open.is_none() {
            let span = Span::one(self.next);
            self.open = Some((self.create_part(span, self.names.name(span))?, Instant::now()));
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), LogError> {
        if let Some((part, _)) = &mut self.open {
            part.write(&self.group)?;
        }
        self.group.clear();
        Ok(())
    }

    fn close(&mut self, progress: &Progress) -> Result<(), LogError> {
        self.write_group()?;
        let Some((part, _)) = self.open.take() else { return Ok(()) };
        let (span, rows) = (Span::one(self.next), part.rows());
        part.publish()?;
        self.next += 1;
        self.parts.push((span, rows));
        self.merge_small(span, rows, progress);
        Ok(())
    }

    /// Merges small parts.
    fn merge_small(&mut self, span: Span, rows: u64, progress: &Progress) {
        let Some(small) = &mut self.small else { return };
        let spans = small.add(span, rows);
        // Small parts in front of a large one are merged only at the end.
        let Some(spans) = spans.filter(|_| rows < LARGE_PART) else { return };
        let merged = Span { first: spans[0].first, last: spans[spans.len() - 1].last };
        let at = self.parts.partition_point(|(span, _)| span.first < merged.first);
        match self.merge(&spans, merged, self.names.name(merged), progress) {
            Ok(()) => {
                let rows = self.parts[at..][..spans.len()].iter().map(|(_, rows)| rows).sum();
                self.parts.splice(at..at + spans.len(), [(merged, rows)]);
                // The merged part may still be small.
                self.small.as_mut().and_then(|small| small.add(merged, rows));
            }
            Err(e) => {
                self.notes.push(format!("log: small parts were left unmerged: {e}"));
                self.small = None;
            }
        }
    }

    fn merge(&self, spans: &[Span], merged: Span, name: OsString, progress: &Progress) -> Result<(), StoreError> {
        let step = || {
            progress.steps.fetch_add(1, Ordering::Relaxed);
        };
        merge(&self.names, spans, self.create_part(merged, name)?, &self.table, None, step)
    }
}

impl Format for Parquet {
    fn begin(&mut self, route: &Route) -> Result<(), LogError> {
        self.route = route.clone();
        self.table = columns::table(route);
        self.group = Group::new(self.table.len());
        Ok(())
    }

    fn write(&mut self, rows: &[Transaction]) -> Result<(), LogError> {
        // Open the part now: its time counts from its first row, not from its first full group.
        self.open()?;
        for row in rows {
            columns::push(&mut self.group, row, &self.route);
            if self.group.rows >= GROUP_ROWS {
                self.write_group()?;
            }
        }
        Ok(())
    }

    /// Closes the current part if its time is over.
    fn tick(&mut self, progress: &Progress) -> Result<(), LogError> {
        if self.open.as_ref().is_some_and(|(_, since)| since.elapsed() >= self.part_time) {
            self.close(progress)?;
        }
        Ok(())
    }

    /// Merges all parts into the requested file.
    fn finish(&mut self, progress: &Progress) -> Result<(), LogError> {
        self.small = None;
        if self.open.is_some() || self.parts.is_empty() {
            self.open()?;
            self.close(progress)?;
        }
        let spans: Vec<Span> = self.parts.iter().map(|(span, _)| *span).collect();
        let merged = match &spans[..] {
            [only] => self.names.directory.rename(self.names.name(*only), &self.name),
            _ => {
                let all = Span { first: 0, last: self.next };
                self.merge(&spans, all, self.name.clone(), progress).map_err(|e| match e {
                    StoreError::Write { source, .. } | StoreError::Read { source, .. } => source,
                    damaged => std::io::Error::other(damaged),
                })
            }
        };
        let mut parts = self.names.prefix.clone();
        parts.push("*.parquet");
        merged.map_err(|source| LogError::Parts {
            path: self.path.clone(),
            parts: self.names.directory.join(parts),
            source,
        })
    }

    fn safe_rows(&self) -> u64 {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }

    fn files(&self) -> Vec<PathBuf> {
        if self.path.is_file() {
            return vec![self.path.clone()];
        }
        self.parts.iter().map(|(span, _)| self.names.path(*span)).collect()
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::{
        file::reader::{FileReader, SerializedFileReader},
        record::Field,
    };
    use std::fs::{self, File};

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
        // Write small parts, and a large one among them.
        for part in 0..150 {
            let more = if part == 70 { LARGE_PART } else { 10 };
            log.write(&rows(n..n + more)).unwrap();
            n += more;
            log.tick(&progress).unwrap();
            assert_eq!(log.safe_rows(), n);
        }
        let now = parts(folder.path());
        assert!(now.len() < 2 * 60, "{}", now.len());
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
    fn a_link_with_the_name_of_the_first_part_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("log.parquet"), folder.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        let names = Names { directory: Directory::open(folder.path()).unwrap(), prefix: "log.part-".into() };
        std::os::unix::fs::symlink(&victim, folder.path().join(names.hidden(Span::one(0)))).unwrap();
        let mut log = Parquet::create(&path).unwrap();
        log.write(&rows(0..1)).unwrap();
        log.finish(&Progress::default()).unwrap();
        assert_eq!((fs::read(&victim).unwrap(), sequences(&path)), (b"mine".to_vec(), vec![0]));
    }

    #[test]
    fn parts_that_cannot_be_merged_remain_and_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.parquet");
        let mut log = Parquet::create(&path).unwrap();
        log.part_time = Duration::ZERO;
        let progress = Progress::default();
        for n in 0..3 {
            log.write(&rows(n..n + 1)).unwrap();
            log.tick(&progress).unwrap();
        }
        // A directory takes the file's name.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), "").unwrap();
        let error = log.finish(&progress).unwrap_err().to_string();
        assert!(error.contains("the logged rows are in") && error.contains("log.part-*.parquet"), "{error}");
        assert_eq!(log.files().len(), 3);
        assert_eq!(log.files().iter().flat_map(|p| sequences(p)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
