//! Names of parts. A name contains the part's range of numbers, which determines whether the part is valid:
//! `part-00000000-00000059.parquet` supersedes parts 0 to 59, even if a crash prevented their removal.

use crate::{PartReader, StoreError};
use latpath_linux::Directory;
use std::{ffi::OsString, fs::File, io, path::PathBuf};

/// The range of numbers in one part: `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First number.
    pub first: u32,
    /// Last number.
    pub last: u32,
}

impl Span {
    /// The span of an unmerged part.
    pub fn one(number: u32) -> Self {
        Self { first: number, last: number }
    }

    fn suffix(self) -> String {
        if self.first == self.last {
            format!("{:08}.parquet", self.first)
        } else {
            format!("{:08}-{:08}.parquet", self.first, self.last)
        }
    }

    fn parse(suffix: &str) -> Option<Self> {
        let numbers = suffix.strip_suffix(".parquet")?;
        let number = |s: &str| (s.len() == 8).then(|| s.parse::<u32>().ok()).flatten();
        let span = match numbers.split_once('-') {
            None => Self::one(number(numbers)?),
            Some((first, last)) => Self { first: number(first)?, last: number(last)? },
        };
        (span.first <= span.last).then_some(span)
    }

    fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// The directory of the parts, and their common prefix.
#[derive(Clone, Debug)]
pub struct Names {
    /// Directory of the parts.
    pub directory: Directory,
    /// Prefix of their names, with a trailing hyphen: `part-`.
    pub prefix: OsString,
}

impl Names {
    /// Names of the form `part-00000000.parquet`, in this directory.
    pub fn new(directory: Directory) -> Self {
        Self { directory, prefix: "part-".into() }
    }

    /// File name of the part with this span.
    pub fn name(&self, span: Span) -> OsString {
        let mut name = self.prefix.clone();
        name.push(span.suffix());
        name
    }

    /// Path of a part, for messages.
    pub fn path(&self, span: Span) -> PathBuf {
        self.directory.join(self.name(span))
    }

    pub(crate) fn file(&self, span: Span) -> io::Result<File> {
        self.directory.open_file(self.name(span))
    }

    /// Opens a part.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a valid part.
    pub fn open(&self, span: Span) -> Result<PartReader, StoreError> {
        let path = self.path(span);
        PartReader::of(self.file(span).map_err(StoreError::read(&path))?, &path)
    }

    /// Name of a part while it is written. Readers of whole directories skip names that start with a dot.
    pub fn hidden(&self, span: Span) -> OsString {
        let mut name = OsString::from(".");
        name.push(self.name(span));
        name.push(".tmp");
        name
    }

    /// The valid parts in order, excluding those that a longer span covers. Other files are skipped.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Span>, StoreError> {
        let mut spans = Vec::new();
        for name in self.directory.names().map_err(StoreError::read(self.directory.path()))? {
            let suffix = name.as_encoded_bytes().strip_prefix(self.prefix.as_encoded_bytes());
            spans.extend(suffix.and_then(|suffix| Span::parse(std::str::from_utf8(suffix).ok()?)));
        }
        Ok(live(spans))
    }
}

fn live(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|s| (s.first, std::cmp::Reverse(s.last)));
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        if !out.last().is_some_and(|wider| wider.covers(span)) {
            out.push(span);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_as_its_span() {
        for span in [Span::one(0), Span::one(14_400), Span { first: 60, last: 119 }] {
            assert_eq!(Span::parse(&span.suffix()), Some(span));
            assert_eq!(Span::parse(&format!("{}.tmp", span.suffix())), None);
        }
        for no in [".parquet", "1.parquet", "00000009-00000003.parquet", "manifest.json"] {
            assert_eq!(Span::parse(no), None, "{no}");
        }
    }

    #[test]
    fn a_merged_part_replaces_its_sources_even_if_they_remain() {
        let spans = vec![Span::one(3), Span::one(1), Span::one(0), Span { first: 0, last: 2 }, Span::one(2)];
        assert_eq!(live(spans), vec![Span { first: 0, last: 2 }, Span::one(3)]);
    }
}
