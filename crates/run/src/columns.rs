//! The columns of a part: names, types, encodings. docs/run-format.md describes them for authors of other readers.

use crate::{span::TimeSpan, Rows};
use latpath_model::Ns;
use latpath_partstore::{Column, Group, Names, PartWriter, Span, StoreError, Values};
use std::{fmt::Display, sync::Arc};

/// Names of the columns of every part.
pub(crate) const STREAM: &str = "stream";
const KEY: &str = "key";
const NUMBER: &str = "number";
pub(crate) const TIME: &str = "t_ns";
const DUPLICATES: &str = "duplicates";
const OUT_OF_ORDER: &str = "out_of_order";
const DROP_NOTE: &str = "drop_note";
const MISSING_BEFORE: &str = "missing_before";
const CPU_PREFIX: &str = "cpu:";
const TID_PREFIX: &str = "tid:";
/// Key of the format version in a part's metadata.
const FORMAT_KEY: &str = "latpath_format";

/// Number of columns after those of the points.
const RARE: usize = 4;

/// Index in [`table`] of [`STREAM`], by which rows are sorted.
pub(crate) const BY_STREAM: usize = 0;

/// The point of a column of times, from the column's name. In other columns of a point, the name has a prefix rather
/// than a suffix: device names may contain dots (`eth0.7`), which some readers would take for nesting.
pub(crate) fn point_of(name: &str) -> Option<&str> {
    const OTHERS: [&str; 8] = [STREAM, KEY, NUMBER, TIME, DUPLICATES, OUT_OF_ORDER, DROP_NOTE, MISSING_BEFORE];
    let is_other = OTHERS.contains(&name) || name.starts_with(CPU_PREFIX) || name.starts_with(TID_PREFIX);
    (!is_other).then_some(name)
}

/// Returns the columns of a part: the fixed ones, the times at all points, their CPUs and threads if `details`, and the
/// rare ones.
pub(crate) fn table<P: Display>(points: &[P], details: bool) -> Arc<[Column]> {
    use latpath_partstore::{Encoding::*, Kind::*};
    let mut table = vec![
        Column::required(STREAM, U16, Regular).with_statistics(),
        Column::required(KEY, U32, Counter),
        Column::required(NUMBER, U64, Counter),
        Column::required(TIME, I64, Noise).with_statistics(),
    ];
    table.extend(points.iter().map(|point| Column::optional(point.to_string(), I64, Noise)));
    for point in points.iter().filter(|_| details) {
        table.push(Column::optional(format!("{CPU_PREFIX}{point}"), U16, Regular));
        table.push(Column::optional(format!("{TID_PREFIX}{point}"), U32, Regular));
    }
    table.push(Column::required(DUPLICATES, U32, Regular));
    table.push(Column::required(OUT_OF_ORDER, Bool, Regular));
    table.push(Column::optional(DROP_NOTE, U16, Regular));
    table.push(Column::optional(MISSING_BEFORE, U32, Regular));
    table.into()
}

pub(crate) fn create(names: &Names, span: Span, table: &Arc<[Column]>) -> Result<PartWriter, StoreError> {
    let notes = [(FORMAT_KEY, crate::FORMAT.to_string())];
    PartWriter::create(
        &names.directory,
        (names.hidden(span), names.name(span)),
        ("journeys", &notes),
        Arc::clone(table),
    )
}

/// Converts rows to a group with the columns of [`table`], sorted by stream.
pub(crate) fn fill(rows: &Rows, details: bool, group: &mut Group) {
    let places = if details { 2 * rows.points } else { 0 };
    group.columns.resize_with(4 + rows.points + places + RARE, Values::default);
    group.clear();
    group.rows = rows.len();
    let all = || 0..rows.len();
    let first: Vec<Ns> = all().map(|row| rows.first_time(row)).collect();
    let (fixed, rest) = group.columns.split_at_mut(4);
    let (times, rest) = rest.split_at_mut(rows.points);
    let (places, rare) = rest.split_at_mut(places);
    for (p, time) in times.iter_mut().enumerate() {
        let seen = |row: &usize| rows.seen[*row] >> p & 1 == 1;
        // Wrapping arithmetic, so that any time of a faulty clock reads back unchanged.
        time.i64.extend(all().filter(seen).map(|row| rows.t[p][row].wrapping_sub(first[row])));
        time.levels.extend(all().map(|row| i16::from(seen(&row))));
        let Some([cpu, tid]) = places.get_mut(2 * p..2 * p + 2) else { continue };
        cpu.i32.extend(all().filter(seen).map(|row| i32::from(rows.cpu[p][row])));
        tid.i32.extend(all().filter(seen).map(|row| rows.tid[p][row] as i32));
        cpu.levels.clone_from(&time.levels);
        tid.levels.clone_from(&time.levels);
    }
    if let ([stream, key, number, time], [duplicates, out_of_order, drop_note, missing_before]) = (fixed, rare) {
        stream.i32.extend(rows.stream.iter().map(|v| i32::from(*v)));
        key.i32.extend(rows.key.iter().map(|v| *v as i32));
        number.i64.extend(rows.number.iter().map(|v| *v as i64));
        time.i64 = first;
        duplicates.i32.extend(rows.duplicates.iter().map(|v| *v as i32));
        out_of_order.bool.extend(&rows.out_of_order);
        drop_note.i32.extend(rows.drop_note.iter().filter(|note| **note != 0).map(|note| i32::from(*note) - 1));
        drop_note.levels.extend(rows.drop_note.iter().map(|note| i16::from(*note != 0)));
        missing_before.i32.extend(rows.missing_before.iter().filter(|n| **n != 0).map(|n| *n as i32));
        missing_before.levels.extend(rows.missing_before.iter().map(|n| i16::from(*n != 0)));
    }
    group.sort_by(BY_STREAM);
}

/// Moves rows with this number of points from a group with the columns of [`table`] to `rows`. Returns false if a time
/// is outside `span`.
#[must_use]
pub(crate) fn take(group: &mut Group, points: usize, span: TimeSpan, rows: &mut Rows) -> bool {
    rows.clear(points);
    let n = group.rows;
    let (fixed, rest) = group.columns.split_at_mut(4);
    let (times, rest) = rest.split_at_mut(points);
    let (places, rare) = rest.split_at_mut(rest.len() - RARE);
    let ([stream, key, number, first], [duplicates, out_of_order, drop_note, missing_before]) = (fixed, rare) else {
        return false;
    };
    rows.stream.extend(stream.i32.iter().map(|v| *v as u16));
    rows.key.extend(key.i32.iter().map(|v| *v as u32));
    rows.number.extend(number.i64.iter().map(|v| *v as u64));
    rows.duplicates.extend(duplicates.i32.iter().map(|v| *v as u32));
    rows.out_of_order.extend(&out_of_order.bool);
    rows.missing_before.resize(n, 0);
    scatter(&missing_before.i32, missing_before, |row, missing| rows.missing_before[row] = missing as u32);
    rows.drop_note.resize(n, 0);
    scatter(&drop_note.i32, drop_note, |row, note| rows.drop_note[row] = (note as u16).saturating_add(1));
    let saw_all = |time: &Values| time.i64.len() == n;
    let seen_by_all = times.iter().enumerate().filter(|(_, time)| saw_all(time)).fold(0, |set, (p, _)| set | 1 << p);
    rows.seen.resize(n, seen_by_all);
    let mut excess = 0;
    for (p, (time, t)) in times.iter_mut().zip(&mut rows.t).enumerate() {
        if saw_all(time) {
            std::mem::swap(t, &mut time.i64);
            for (t, first) in t.iter_mut().zip(&first.i64) {
                *t = first.wrapping_add(*t);
                excess |= span.excess(*t);
            }
            continue;
        }
        let seen = &mut rows.seen;
        t.resize(n, 0);
        scatter(&time.i64, time, |row, offset| {
            t[row] = first.i64[row].wrapping_add(offset);
            excess |= span.excess(t[row]);
            seen[row] |= 1 << p;
        });
    }
    for (place, (cpus, tids)) in places.chunks_exact(2).zip(rows.cpu.iter_mut().zip(&mut rows.tid)) {
        cpus.resize(n, 0);
        tids.resize(n, 0);
        scatter(&place[0].i32, &place[0], |row, cpu| cpus[row] = cpu as u16);
        scatter(&place[1].i32, &place[1], |row, tid| tids[row] = tid as u32);
    }
    rows.excess = excess;
    rows.are_times_close()
}

/// Calls `put` with each row that has a value, and the value.
fn scatter<T: Copy>(values: &[T], column: &Values, mut put: impl FnMut(usize, T)) {
    if values.len() == column.levels.len() {
        values.iter().enumerate().for_each(|(row, value)| put(row, *value));
        return;
    }
    if values.is_empty() {
        return;
    }
    let with_value = column.levels.iter().enumerate().filter(|(_, level)| **level > 0);
    with_value.zip(values).for_each(|((row, _), value)| put(row, *value));
}
