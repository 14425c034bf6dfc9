//! Names of parts. A part's name says which numbers it holds, and so which parts count: `part-00000000-00000059.parquet` replaces
//! the parts 0 to 59, whether or not they were removed before a crash.

use crate::{PartReader, StoreError};
use latpath_linux::Directory;
use std::{ffi::OsString, fs::File, io, path::PathBuf};

/// The numbers that one part holds: `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

impl Span {
    /// A part that was not merged.
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

/// Where parts are, and how their names begin.
#[derive(Clone, Debug)]
pub struct Names {
    pub directory: Directory,
    /// `part-`; ends with a hyphen.
    pub prefix: OsString,
}

impl Names {
    /// `part-00000000.parquet` in a directory.
    pub fn new(directory: Directory) -> Self {
        Self { directory, prefix: "part-".into() }
    }

    /// A part's name.
    pub fn name(&self, span: Span) -> OsString {
        let mut name = self.prefix.clone();
        name.push(span.suffix());
        name
    }

    /// A part's file, for messages.
    pub fn path(&self, span: Span) -> PathBuf {
        self.directory.join(self.name(span))
    }

    pub(crate) fn file(&self, span: Span) -> io::Result<File> {
        self.directory.open_file(self.name(span))
    }

    /// Opens a part.
    ///
    /// # Errors
    /// Where it cannot be read, or is no part.
    pub fn open(&self, span: Span) -> Result<PartReader, StoreError> {
        let path = self.path(span);
        PartReader::of(self.file(span).map_err(StoreError::read(&path))?, &path)
    }

    /// The file while it is being written. Readers of whole directories skip names that start with a dot.
    pub fn hidden(&self, span: Span) -> OsString {
        let mut name = OsString::from(".");
        name.push(self.name(span));
        name.push(".tmp");
        name
    }

    /// The parts that count, in order: those that no longer span covers. Files that are no parts are passed over.
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
    fn a_merged_part_replaces_those_it_holds_even_if_they_are_still_there() {
        let spans = vec![Span::one(3), Span::one(1), Span::one(0), Span { first: 0, last: 2 }, Span::one(2)];
        assert_eq!(live(spans), vec![Span { first: 0, last: 2 }, Span::one(3)]);
    }
}
