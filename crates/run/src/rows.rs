//! Batches of journeys in memory, collected by the writer and returned by the reader.

use crate::span::TimeSpan;
use latpath_journey::{journey::MAX_POINTS, Journey};
use latpath_model::{Ns, StreamId};
use std::ops::Range;

/// A batch of journeys, stored in columns.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub(crate) points: usize,
    /// Points whose times are computed, as in [`Journey::samples`]; one set of bits for all rows.
    pub(crate) samples: u64,
    /// [`TimeSpan::excess`] of all times, combined by `|`.
    pub(crate) excess: u64,
    /// Stream of each journey.
    pub stream: Vec<StreamId>,
    /// Key of each packet.
    pub key: Vec<u32>,
    /// Number of each packet in its stream.
    pub number: Vec<u64>,
    /// Points that saw the packet: bit `1 << PointId`.
    pub seen: Vec<u64>,
    /// Number of repeated sightings at points that had seen the packet.
    pub duplicates: Vec<u32>,
    /// Whether the packet was overtaken.
    pub out_of_order: Vec<bool>,
    /// Index of the drop note plus one; 0 for none.
    pub drop_note: Vec<u16>,
    /// Number of packets lost directly before this one without any sighting.
    pub missing_before: Vec<u32>,
    /// One column of times per point; a time is valid if the point's bit is set in `seen`.
    pub t: Vec<Vec<Ns>>,
    /// One column of CPUs per point; empty unless the scan requested them.
    pub cpu: Vec<Vec<u16>>,
    /// One column of thread IDs per point; empty unless the scan requested them.
    pub tid: Vec<Vec<u32>>,
}

/// Sightings of one journey, copied from their columns.
struct Sightings {
    t: [Ns; MAX_POINTS],
    cpu: [u16; MAX_POINTS],
    tid: [u32; MAX_POINTS],
}

impl Rows {
    /// An empty batch for journeys over this many points.
    pub fn new(points: usize) -> Self {
        let mut rows = Self::default();
        rows.clear(points);
        rows
    }

    /// Iterates over groups of consecutive journeys of one stream; returns the stream and the range of rows of each.
    pub fn by_stream(&self) -> impl Iterator<Item = (StreamId, Range<usize>)> + '_ {
        let mut begin = 0;
        self.stream.chunk_by(|a, b| a == b).map(move |same| {
            let range = begin..begin + same.len();
            begin = range.end;
            (same[0], range)
        })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.stream.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.stream.is_empty()
    }

    /// Whether neither the difference between two times, nor that between two such differences, can overflow. True
    /// unless a clock is faulty.
    #[inline]
    pub fn are_times_close(&self) -> bool {
        TimeSpan::holds(self.excess)
    }

    /// Whether all times of sightings are possible in a run of this span.
    pub(crate) fn are_within(&mut self, span: TimeSpan) -> bool {
        let seen = |point: usize| self.seen.iter().map(move |seen| seen >> point & 1 == 1);
        let of_point = |(point, column): (usize, &Vec<Ns>)| {
            let times = column.iter().zip(seen(point)).filter(|(_, seen)| *seen);
            times.fold(0, |all, (t, _)| all | span.excess(*t))
        };
        self.excess = self.t.iter().enumerate().map(of_point).fold(0, |all, one| all | one);
        self.are_times_close()
    }

    /// Sorts stably by stream.
    pub fn sort_by_stream(&mut self) {
        if self.stream.is_sorted() {
            return;
        }
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|row| self.stream[*row]);
        let Self {
            stream, key, number, seen, duplicates, out_of_order, drop_note, missing_before, t, cpu, tid, ..
        } = self;
        sort(stream, &order);
        sort(key, &order);
        sort(number, &order);
        sort(seen, &order);
        sort(duplicates, &order);
        sort(out_of_order, &order);
        sort(drop_note, &order);
        sort(missing_before, &order);
        t.iter_mut().for_each(|column| sort(column, &order));
        cpu.iter_mut().for_each(|column| sort(column, &order));
        tid.iter_mut().for_each(|column| sort(column, &order));
    }

    /// Memory of one row, bytes.
    pub(crate) fn row_bytes(points: usize) -> usize {
        2 + 4 + 8 + 8 + 4 + 1 + 2 + 4 + points * (8 + 2 + 4)
    }

    /// Removes all rows, and sets the number of points; keeps the memory.
    pub fn clear(&mut self, points: usize) {
        let Self {
            stream, key, number, seen, duplicates, out_of_order, drop_note, missing_before, t, cpu, tid, ..
        } = self;
        stream.clear();
        key.clear();
        number.clear();
        seen.clear();
        duplicates.clear();
        out_of_order.clear();
        drop_note.clear();
        missing_before.clear();
        t.resize_with(points, Vec::new);
        t.iter_mut().for_each(Vec::clear);
        cpu.resize_with(points, Vec::new);
        cpu.iter_mut().for_each(Vec::clear);
        tid.resize_with(points, Vec::new);
        tid.iter_mut().for_each(Vec::clear);
        (self.points, self.excess) = (points, 0);
    }

    /// Stops storing CPUs and thread IDs, which are unknown, until the batch is cleared.
    pub fn leave_out_details(&mut self) {
        self.cpu.clear();
        self.tid.clear();
    }

    /// Appends a journey. It must have no sightings at points that this batch lacks.
    pub fn push(&mut self, j: &Journey) {
        self.stream.push(j.stream);
        self.key.push(j.key);
        self.number.push(j.number);
        self.seen.push(j.seen);
        self.samples |= j.samples;
        self.duplicates.push(j.duplicates);
        self.out_of_order.push(j.out_of_order);
        self.drop_note.push(j.drop_note);
        self.missing_before.push(j.missing_before);
        let span = TimeSpan::default();
        self.excess |= j.t.iter().fold(0, |all, t| all | span.excess(*t));
        push(&mut self.t, j.t);
        push(&mut self.cpu, j.cpu);
        push(&mut self.tid, j.tid);
    }

    /// Appends all rows of another batch with the same number of points.
    pub fn extend(&mut self, other: &Self) {
        self.stream.extend_from_slice(&other.stream);
        self.key.extend_from_slice(&other.key);
        self.number.extend_from_slice(&other.number);
        self.seen.extend_from_slice(&other.seen);
        self.samples |= other.samples;
        self.duplicates.extend_from_slice(&other.duplicates);
        self.out_of_order.extend_from_slice(&other.out_of_order);
        self.drop_note.extend_from_slice(&other.drop_note);
        self.missing_before.extend_from_slice(&other.missing_before);
        self.excess |= other.excess;
        extend(&mut self.t, &other.t);
        extend(&mut self.cpu, &other.cpu);
        extend(&mut self.tid, &other.tid);
    }

    /// Calls `call` with the journey in this row.
    ///
    /// # Panics
    /// There is no such row.
    pub fn with_journey<R>(&self, row: usize, call: impl FnOnce(&Journey) -> R) -> R {
        let mut all = Sightings { t: [0; MAX_POINTS], cpu: [0; MAX_POINTS], tid: [0; MAX_POINTS] };
        call(&self.journey(row, &mut all))
    }

    /// Calls `call` with each journey.
    pub fn for_each(&self, mut call: impl FnMut(&Journey)) {
        let mut all = Sightings { t: [0; MAX_POINTS], cpu: [0; MAX_POINTS], tid: [0; MAX_POINTS] };
        (0..self.len()).for_each(|row| call(&self.journey(row, &mut all)));
    }

    fn journey<'a>(&self, row: usize, all: &'a mut Sightings) -> Journey<'a> {
        take_out(&mut all.t, &self.t, row);
        take_out(&mut all.cpu, &self.cpu, row);
        take_out(&mut all.tid, &self.tid, row);
        let has_details = self.cpu.first().is_some_and(|column| !column.is_empty());
        let details = if has_details { self.points } else { 0 };
        Journey {
            stream: self.stream[row],
            key: self.key[row],
            number: self.number[row],
            seen: self.seen[row],
            samples: self.samples,
            t: &all.t[..self.points],
            cpu: &all.cpu[..details],
            tid: &all.tid[..details],
            duplicates: self.duplicates[row],
            out_of_order: self.out_of_order[row],
            drop_note: self.drop_note[row],
            missing_before: self.missing_before[row],
        }
    }

    /// Time of a row's earliest sighting, ns; 0 if it has none.
    pub fn first_time(&self, row: usize) -> Ns {
        let seen = self.seen[row] & !self.samples;
        let times = self.t.iter().enumerate().filter(|(p, _)| seen >> p & 1 == 1);
        times.map(|(_, column)| column[row]).min().unwrap_or(0)
    }

    pub(crate) fn keep(&mut self, selected: impl Fn(&Self, usize) -> bool) {
        let rows: Vec<bool> = (0..self.len()).map(|row| selected(self, row)).collect();
        let Self {
            stream, key, number, seen, duplicates, out_of_order, drop_note, missing_before, t, cpu, tid, ..
        } = self;
        retain(stream, &rows);
        retain(key, &rows);
        retain(number, &rows);
        retain(seen, &rows);
        retain(duplicates, &rows);
        retain(out_of_order, &rows);
        retain(drop_note, &rows);
        retain(missing_before, &rows);
        t.iter_mut().for_each(|column| retain(column, &rows));
        cpu.iter_mut().for_each(|column| retain(column, &rows));
        tid.iter_mut().for_each(|column| retain(column, &rows));
    }
}

fn push<T: Copy + Default>(columns: &mut [Vec<T>], values: &[T]) {
    for (p, column) in columns.iter_mut().enumerate() {
        column.push(values.get(p).copied().unwrap_or_default());
    }
}

fn extend<T: Copy>(columns: &mut [Vec<T>], others: &[Vec<T>]) {
    columns.iter_mut().zip(others).for_each(|(own, other)| own.extend_from_slice(other));
}

fn take_out<T: Copy>(values: &mut [T; MAX_POINTS], columns: &[Vec<T>], row: usize) {
    for (value, column) in values.iter_mut().zip(columns) {
        if let Some(found) = column.get(row) {
            *value = *found;
        }
    }
}

fn sort<T: Copy>(column: &mut Vec<T>, order: &[usize]) {
    *column = order.iter().map(|row| column[*row]).collect();
}

/// Keeps the values of the marked rows. Columns that were not read stay empty.
fn retain<T>(column: &mut Vec<T>, rows: &[bool]) {
    let mut marks = rows.iter();
    column.retain(|_| marks.next() == Some(&true));
}
