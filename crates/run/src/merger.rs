//! The thread that merges small parts: a part a second would make 14 400 files in 4 h.
//!
//! At no instant is a row lost or double: the merged part appears whole and by its name replaces those that it holds,
//! which are removed after that. A reader passes over parts that another one covers.

use crate::{
    names::Span,
    part::{sync_directory, Part},
    part_reader::PartReader,
    rows::{Rows, GROUP_ROWS},
    RunError,
};
use latpath_model::Point;
use std::{path::Path, sync::mpsc::Receiver};

/// A part with this many rows is left as it is.
const LARGE_ROWS: u64 = 500_000;
/// Parts are merged when they have this many rows together,
const MERGE_ROWS: u64 = 1_000_000;
/// or when they are this many.
const MERGE_PARTS: usize = 60;

/// A part that was closed.
pub(crate) struct Finished {
    pub span: Span,
    pub rows: u64,
}

/// Merges what comes until the encoder hangs up. An error is no reason to stop recording: the parts stay as they are.
pub(crate) fn run(directory: &Path, finished: Receiver<Finished>) -> Option<RunError> {
    let (mut small, mut rows, mut error) = (Vec::new(), 0, None);
    let mut merge_all = |small: &mut Vec<Span>, rows: &mut u64| {
        if small.len() > 1 && error.is_none() {
            error = merge(directory, small).err();
        }
        small.clear();
        *rows = 0;
    };
    for part in finished {
        if part.rows >= LARGE_ROWS {
            merge_all(&mut small, &mut rows);
            continue;
        }
        small.push(part.span);
        rows += part.rows;
        if rows >= MERGE_ROWS || small.len() >= MERGE_PARTS {
            merge_all(&mut small, &mut rows);
        }
    }
    merge_all(&mut small, &mut rows);
    error
}

/// Merges neighbouring parts into one and removes them.
pub(crate) fn merge(directory: &Path, spans: &[Span]) -> Result<(), RunError> {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return Ok(()) };
    let points = points_of(directory, spans)?;
    let names: Vec<String> = points.iter().map(ToString::to_string).collect();
    let mut merged = Part::create(directory, Span { first: first.first, last: last.last }, &points)?;
    let (mut rows, mut group) = (Rows::new(points.len()), Rows::default());
    for span in spans {
        let mut part = PartReader::open(&directory.join(span.file_name()))?;
        for index in 0..part.groups() {
            part.read(index, &names, true, &mut group)?;
            let mut taken = 0;
            while taken < group.len() {
                let upto = group.len().min(taken + GROUP_ROWS - rows.len());
                rows.append(&group, taken..upto);
                taken = upto;
                if rows.len() == GROUP_ROWS {
                    merged.write(&rows)?;
                    rows.clear(points.len());
                }
            }
        }
    }
    merged.write(&rows)?;
    merged.publish()?;
    for span in spans {
        let path = directory.join(span.file_name());
        std::fs::remove_file(&path).map_err(RunError::write(&path))?;
    }
    sync_directory(directory)
}

/// The points of all these parts, in the order in which they appear.
fn points_of(directory: &Path, spans: &[Span]) -> Result<Vec<Point>, RunError> {
    let mut points: Vec<Point> = Vec::new();
    for span in spans {
        let path = directory.join(span.file_name());
        for name in PartReader::open(&path)?.points() {
            let point = name.parse().map_err(|e| RunError::Damaged { path: path.clone(), why: format!("{e}") })?;
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    Ok(points)
}
