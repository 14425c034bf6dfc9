//! Names of parts. A part's name says which seconds it holds, and so which parts count:
//! `part-00000000-00000059.parquet` replaces the parts 0 to 59, whether or not they were removed before a crash.

use crate::RunError;
use std::path::Path;

/// The parts that one file holds: `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub first: u32,
    pub last: u32,
}

impl Span {
    pub fn one(number: u32) -> Self {
        Self { first: number, last: number }
    }

    pub fn file_name(self) -> String {
        if self.first == self.last {
            format!("part-{:08}.parquet", self.first)
        } else {
            format!("part-{:08}-{:08}.parquet", self.first, self.last)
        }
    }

    /// The name while it is being written. Readers of whole directories skip names that start with a dot.
    pub fn temporary_name(self) -> String {
        format!(".{}.tmp", self.file_name())
    }

    pub fn parse(name: &str) -> Option<Self> {
        let numbers = name.strip_prefix("part-")?.strip_suffix(".parquet")?;
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

/// The parts that count, in order: those that no longer span covers.
pub(crate) fn live(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|s| (s.first, std::cmp::Reverse(s.last)));
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        if !out.last().is_some_and(|wider| wider.covers(span)) {
            out.push(span);
        }
    }
    out
}

/// Lists the parts in a directory. Anything that is no part is passed over.
pub(crate) fn list(dir: &Path) -> Result<Vec<Span>, RunError> {
    let mut spans = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(RunError::read(dir))? {
        let name = entry.map_err(RunError::read(dir))?.file_name();
        spans.extend(name.to_str().and_then(Span::parse));
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_as_its_span() {
        for span in [Span::one(0), Span::one(14_400), Span { first: 60, last: 119 }] {
            assert_eq!(Span::parse(&span.file_name()), Some(span));
            assert_eq!(Span::parse(&span.temporary_name()), None);
        }
        for no in ["part-.parquet", "part-1.parquet", "part-00000009-00000003.parquet", "manifest.json"] {
            assert_eq!(Span::parse(no), None, "{no}");
        }
    }

    #[test]
    fn a_merged_part_replaces_those_it_holds_even_if_they_are_still_there() {
        let spans = vec![Span::one(3), Span::one(1), Span::one(0), Span { first: 0, last: 2 }, Span::one(2)];
        assert_eq!(live(spans), vec![Span { first: 0, last: 2 }, Span::one(3)]);
    }
}
