//! The parts of a store, as they were when it was opened.
//!
//! A writer that goes on merges its small parts and removes them. So those that may vanish are held open: what was there when the
//! store was opened can be read as long as it is open.

use crate::{Names, PartReader, Span, StoreError};
use std::{fs::File, os::fd::AsRawFd, time::Duration};

/// So many of the latest parts may be about to be merged: 60 at once, one more each second until that is done, and many
/// more where the disk is slow. As many files as a process may have open by default, and some left over.
const HELD: usize = 512;
/// A directory that is read while parts are merged in it may show neither the small ones nor the merged one: then it is
/// read again, so often.
const ATTEMPTS: usize = 20;

/// One part of an open store.
#[derive(Debug)]
pub struct PartFile {
    pub span: Span,
    names: Names,
    held: Option<File>,
}

impl PartFile {
    pub fn open(&self) -> Result<PartReader, StoreError> {
        let Some(held) = &self.held else { return self.names.open(self.span) };
        let path = self.names.path(self.span);
        // By its descriptor, since its name may be gone; a description of its own, since several threads may read.
        let again = File::open(format!("/proc/self/fd/{}", held.as_raw_fd())).map_err(StoreError::read(&path))?;
        PartReader::of(again, &path)
    }

    /// Its bytes; 0 if the file system does not say.
    pub fn bytes(&self) -> u64 {
        let metadata = match &self.held {
            Some(held) => held.metadata(),
            None => self.names.file(self.span).and_then(|file| file.metadata()),
        };
        metadata.map_or(0, |m| m.len())
    }
}

/// The parts that count, in order. `is_growing`: a writer may be merging them.
pub fn open(names: &Names, is_growing: bool) -> Result<Vec<PartFile>, StoreError> {
    let mut attempts = 1..=ATTEMPTS;
    loop {
        let spans = names.list()?;
        let is_whole = gaps(&spans).next().is_none();
        let safe = if is_growing { spans.len().saturating_sub(HELD) } else { spans.len() };
        let mut vanished = false;
        let mut part = |(i, span): (usize, Span)| {
            let held = if i < safe { None } else { names.file(span).ok() };
            vanished |= i >= safe && held.is_none();
            PartFile { span, names: names.clone(), held }
        };
        let parts: Vec<_> = spans.into_iter().enumerate().map(&mut part).collect();
        let is_last = attempts.next().is_none();
        // What is still missing at the last attempt will not come.
        if !is_growing || (is_whole && !vanished) || is_last {
            return Ok(parts);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The numbers of parts that no name has: first and last.
pub fn gaps(spans: &[Span]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut expected = 0;
    spans.iter().filter_map(move |span| {
        let from = std::mem::replace(&mut expected, span.last.saturating_add(1));
        (span.first > from).then(|| (from, span.first - 1))
    })
}
