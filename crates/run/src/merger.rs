//! The thread that merges small parts.

use crate::{
    columns::{self, point_of, BY_STREAM},
    RunError,
};
use latpath_partstore::{merge, Names, SmallParts, Span};
use std::sync::mpsc::Receiver;

/// Number of rows from which a part is no longer merged.
const LARGE_ROWS: u64 = 500_000;
/// Minimum total number of rows of the parts that are merged at once.
const MERGE_ROWS: u64 = 1_000_000;

/// A closed part.
pub(crate) struct Finished {
    pub span: Span,
    pub rows: u64,
}

/// Merges parts until the encoder closes the channel. Errors do not stop the recording: the remaining parts are not
/// merged.
pub(crate) fn run(names: &Names, finished: Receiver<Finished>) -> Option<RunError> {
    let (mut small, mut error) = (SmallParts::new(LARGE_ROWS, MERGE_ROWS), None);
    let mut merge = |spans: Option<Vec<Span>>| {
        if let (Some(spans), None) = (spans, &error) {
            error = merge_all(names, &spans).err();
        }
    };
    for part in finished {
        merge(small.add(part.span, part.rows));
    }
    merge(small.take());
    error
}

/// Merges adjacent parts into one and removes the originals.
fn merge_all(names: &Names, spans: &[Span]) -> Result<(), RunError> {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return Ok(()) };
    // Collects the points of all these parts, in order of appearance.
    let mut points: Vec<String> = Vec::new();
    for span in spans {
        for point in names.open(*span)?.columns().filter_map(point_of) {
            if !points.iter().any(|known| known == point) {
                points.push(point.into());
            }
        }
    }
    let table = columns::table(&points, true);
    let merged = columns::create(names, Span { first: first.first, last: last.last }, &table)?;
    Ok(merge(names, spans, merged, &table, Some(BY_STREAM), || ())?)
}
