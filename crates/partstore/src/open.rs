//! The parts of a store at the time of opening.
//!
//! A running writer merges small parts and removes them. Parts that may vanish are therefore kept open, so that they
//! remain readable.

use crate::{Names, PartReader, Span, StoreError};
use std::{fs::File, os::fd::AsRawFd, time::Duration};

/// Number of the latest parts that are kept open: a merge may remove 60 at once; until it is done, one more arrives per
/// second, and a slow disk delays it. Smaller than the default limit of open files.
const MAX_OPEN_PARTS: usize = 512;
/// Maximum number of attempts at listing the directory: a listing made during a merge may contain neither the small
/// parts nor the merged one.
const ATTEMPTS: usize = 20;

/// A part of an open store.
#[derive(Debug)]
pub struct PartFile {
    /// The part's range of numbers.
    pub span: Span,
    names: Names,
    held: Option<File>,
}

impl PartFile {
    /// Opens the part for reading.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a valid part.
    pub fn open(&self) -> Result<PartReader, StoreError> {
        let Some(held) = &self.held else { return self.names.open(self.span) };
        let path = self.names.path(self.span);
        // Reopen it through its descriptor: its name may be gone, and each thread needs its own file position.
        let again = File::open(format!("/proc/self/fd/{}", held.as_raw_fd())).map_err(StoreError::read(&path))?;
        PartReader::of(again, &path)
    }

    /// Size in bytes; 0 if unknown.
    pub fn bytes(&self) -> u64 {
        let metadata = match &self.held {
            Some(held) => held.metadata(),
            None => self.names.file(self.span).and_then(|file| file.metadata()),
        };
        metadata.map_or(0, |m| m.len())
    }
}

/// Opens the valid parts, in order. `is_growing`: a writer may be merging them.
///
/// # Errors
/// If the directory cannot be read.
pub fn open(names: &Names, is_growing: bool) -> Result<Vec<PartFile>, StoreError> {
    let mut attempts = 1..=ATTEMPTS;
    loop {
        let spans = names.list()?;
        let is_whole = gaps(&spans).next().is_none();
        let safe = if is_growing { spans.len().saturating_sub(MAX_OPEN_PARTS) } else { spans.len() };
        let mut vanished = false;
        let mut part = |(i, span): (usize, Span)| {
            let held = if i < safe { None } else { names.file(span).ok() };
            vanished |= i >= safe && held.is_none();
            PartFile { span, names: names.clone(), held }
        };
        let parts: Vec<_> = spans.into_iter().enumerate().map(&mut part).collect();
        let is_last = attempts.next().is_none();
        // Parts still missing at the last attempt have been lost.
        if !is_growing || (is_whole && !vanished) || is_last {
            return Ok(parts);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gaps between the parts' numbers: first and last missing number.
pub fn gaps(spans: &[Span]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut expected = 0;
    spans.iter().filter_map(move |span| {
        let from = std::mem::replace(&mut expected, span.last.saturating_add(1));
        (span.first > from).then(|| (from, span.first - 1))
    })
}
