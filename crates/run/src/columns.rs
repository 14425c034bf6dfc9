//! The columns of a part: names, types, encodings. docs/run-format.md says the same to those who read runs elsewhere.

use crate::Rows;
use latpath_model::{Ns, Point};
use latpath_partstore::{Column, Group, Names, PartWriter, Span, StoreError, Values};
use std::sync::Arc;

/// The columns that every part has.
pub(crate) const STREAM: &str = "stream";
pub(crate) const KEY: &str = "key";
pub(crate) const NUMBER: &str = "number";
pub(crate) const TIME: &str = "t_ns";
pub(crate) const DUPLICATES: &str = "duplicates";
pub(crate) const OUT_OF_ORDER: &str = "out_of_order";
pub(crate) const DROP_NOTE: &str = "drop_note";
const CPU_PREFIX: &str = "cpu:";
const TID_PREFIX: &str = "tid:";
/// Key of the format's number in a part's own metadata.
const FORMAT_KEY: &str = "latpath_format";

/// The place of [`STREAM`] in [`table`], by which rows are sorted.
pub(crate) const BY_STREAM: usize = 0;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning<'a> {
    Stream,
    Key,
    Number,
    Time,
    Duplicates,
    OutOfOrder,
    DropNote,
    /// ns from `t_ns` to the sighting at the point.
    Offset(&'a str),
    Cpu(&'a str),
    Tid(&'a str),
}

impl<'a> Meaning<'a> {
    /// The point whose times a column of this name has.
    pub fn point(name: &'a str) -> Option<&'a str> {
        match Self::parse(name) {
            Self::Offset(point) => Some(point),
            _ => None,
        }
    }

    /// What a column of this name holds. A prefix stands before a point's name, not a suffix after it: a device's name may hold
    /// dots (`eth0.7`), which some readers take for nesting.
    pub fn parse(name: &'a str) -> Self {
        match name {
            STREAM => Self::Stream,
            KEY => Self::Key,
            NUMBER => Self::Number,
            TIME => Self::Time,
            DUPLICATES => Self::Duplicates,
            OUT_OF_ORDER => Self::OutOfOrder,
            DROP_NOTE => Self::DropNote,
            _ => {
                if let Some(point) = name.strip_prefix(CPU_PREFIX) {
                    Self::Cpu(point)
                } else if let Some(point) = name.strip_prefix(TID_PREFIX) {
                    Self::Tid(point)
                } else {
                    Self::Offset(name)
                }
            }
        }
    }
}

/// A part's table: the fixed columns, then the times of all points, then their CPUs and threads, then the rare flags.
pub(crate) fn table(points: &[Point]) -> Arc<[Column]> {
    use latpath_partstore::{Encoding::*, Kind::*};
    let mut table = vec![
        Column::required(STREAM, U16, Regular).with_statistics(),
        Column::required(KEY, U32, Counter),
        Column::required(NUMBER, U64, Counter),
        Column::required(TIME, I64, Noise).with_statistics(),
    ];
    table.extend(points.iter().map(|point| Column::optional(point.to_string(), I64, Noise)));
    for point in points {
        table.push(Column::optional(format!("{CPU_PREFIX}{point}"), U16, Regular));
        table.push(Column::optional(format!("{TID_PREFIX}{point}"), U32, Regular));
    }
    table.push(Column::required(DUPLICATES, U32, Regular));
    table.push(Column::required(OUT_OF_ORDER, Bool, Regular));
    table.push(Column::optional(DROP_NOTE, U16, Regular));
    table.into()
}

/// Begins a part.
pub(crate) fn create(names: &Names, span: Span, table: &Arc<[Column]>) -> Result<PartWriter, StoreError> {
    let notes = [(FORMAT_KEY, crate::FORMAT.to_string())];
    PartWriter::create(names.hidden(span), names.path(span), ("journeys", &notes), Arc::clone(table))
}

/// Fills a group of [`table`] with rows, each stream's rows together.
pub(crate) fn fill(rows: &Rows, group: &mut Group) {
    let table = 4 + 3 * rows.points + 3;
    group.columns.resize_with(table, Values::default);
    group.clear();
    group.rows = rows.len();
    let all = || 0..rows.len();
    let first: Vec<Ns> = all().map(|row| rows.first_time(row)).collect();
    let (fixed, rest) = group.columns.split_at_mut(4);
    let (times, rest) = rest.split_at_mut(rows.points);
    let (places, rare) = rest.split_at_mut(2 * rows.points);
    for (p, time) in times.iter_mut().enumerate() {
        let seen = |row: &usize| rows.seen[*row] >> p & 1 == 1;
        // Wrapping, so that the reader gets back the very same time whatever a broken clock made of it.
        time.i64.extend(all().filter(seen).map(|row| rows.t[p][row].wrapping_sub(first[row])));
        time.levels.extend(all().map(|row| i16::from(seen(&row))));
        let [cpu, tid] = &mut places[2 * p..2 * p + 2] else { continue };
        cpu.i32.extend(all().filter(seen).map(|row| i32::from(rows.cpu[p][row])));
        tid.i32.extend(all().filter(seen).map(|row| rows.tid[p][row] as i32));
        cpu.levels.clone_from(&time.levels);
        tid.levels.clone_from(&time.levels);
    }
    if let ([stream, key, number, time], [duplicates, out_of_order, drop_note]) = (fixed, rare) {
        stream.i32.extend(rows.stream.iter().map(|v| i32::from(*v)));
        key.i32.extend(rows.key.iter().map(|v| *v as i32));
        number.i64.extend(rows.number.iter().map(|v| *v as i64));
        time.i64 = first;
        duplicates.i32.extend(rows.duplicates.iter().map(|v| *v as i32));
        out_of_order.bool.extend(&rows.out_of_order);
        drop_note.i32.extend(rows.drop_note.iter().filter(|note| **note != 0).map(|note| i32::from(*note) - 1));
        drop_note.levels.extend(rows.drop_note.iter().map(|note| i16::from(*note != 0)));
    }
    group.sort_by(BY_STREAM);
}
