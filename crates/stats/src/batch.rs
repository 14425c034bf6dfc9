//! Batches: consecutive journeys of one stream, with properties that several kinds of figures share.

use crate::aggregate::Setup;
use crate::times::{between, Ends};
use latpath_journey::Segment;
use latpath_model::{Ns, PointInfo, StreamId};
use latpath_run::Rows;
use std::ops::Range;

/// Number of times whose extremes are stored together, and of packets that are examined together.
pub(crate) const PIECE: usize = 64;

/// Divides rows into batches.
#[derive(Clone, Debug)]
pub struct Batches {
    ends: Vec<Ends>,
    crossings: Vec<Crossings>,
}

/// A batch: the input of aggregates, pacing, patterns, tracks and figures over time.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) stream: StreamId,
    pub(crate) range: Range<usize>,
    /// Points that saw all packets of the batch, as bits.
    pub(crate) seen_by_all: u64,
    /// Points that saw at least one packet of the batch, as bits.
    pub(crate) seen_by_any: u64,
    crossings: &'a [Crossings],
}

/// The packets of a batch that crossed a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crossings {
    /// Time that each packet took, ns.
    pub times: Vec<Ns>,
    /// Minimum and maximum of each [`PIECE`] of the times, ns.
    extremes: Vec<(Ns, Ns)>,
    /// Whether all packets of the batch are known to have crossed the segment. If so, `first` is the row of the first
    /// one.
    is_whole: bool,
    first: usize,
    /// Otherwise, the rows of the packets that crossed it, ascending.
    rows: Vec<usize>,
}

impl Batches {
    /// Batches for the figures of this setup.
    pub fn new(setup: &Setup) -> Self {
        let mut batches = Self { ends: Vec::new(), crossings: Vec::new() };
        batches.extend(&setup.points, &setup.segments);
        batches
    }

    /// Adds segments to the setup.
    pub fn extend(&mut self, points: &[PointInfo], more: &[Segment]) {
        self.ends.extend(more.iter().map(|segment| Ends::of(segment, points)));
        self.crossings.resize_with(self.ends.len(), Crossings::default);
    }

    /// Calls `call` with each batch of these rows.
    ///
    /// # Panics
    /// A segment or a route contains a point that the rows lack.
    pub fn each(&mut self, rows: &Rows, mut call: impl FnMut(&Batch)) {
        for (stream, range) in rows.by_stream() {
            let both = |(all, any): (u64, u64), seen: &u64| (all & seen, any | seen);
            let (seen_by_all, seen_by_any) = rows.seen[range.clone()].iter().fold((u64::MAX, 0), both);
            for (ends, crossings) in self.ends.iter().zip(&mut self.crossings) {
                crossings.clear();
                if seen_by_any & ends.both == ends.both {
                    crossings.find(rows, range.clone(), ends, seen_by_all & ends.both == ends.both);
                }
            }
            call(&Batch { rows, stream, range, seen_by_all, seen_by_any, crossings: &self.crossings });
        }
    }
}

impl Batch<'_> {
    /// The packets that crossed a segment (by index in the setup).
    pub(crate) fn crossings(&self, segment: usize) -> &Crossings {
        &self.crossings[segment]
    }

    /// The times at a point, valid for packets seen there.
    pub(crate) fn at(&self, point: usize) -> &[Ns] {
        &self.rows.t[point][self.range.clone()]
    }
}

impl Crossings {
    fn clear(&mut self) {
        self.times.clear();
        self.extremes.clear();
        self.rows.clear();
    }

    fn find(&mut self, rows: &Rows, range: Range<usize>, ends: &Ends, has_all: bool) {
        let (from, to) = (&rows.t[ends.from][range.clone()], &rows.t[ends.to][range.clone()]);
        (self.is_whole, self.first) = (has_all && !ends.in_order, range.start);
        if self.is_whole {
            let all = from.iter().zip(to);
            match rows.are_times_close() {
                true => self.times.extend(all.map(|(from, to)| to.wrapping_sub(*from))),
                false => self.times.extend(all.map(|(from, to)| between(*from, *to))),
            }
        } else {
            for (row, (from, to)) in range.zip(from.iter().zip(to)) {
                let time = between(*from, *to);
                if rows.seen[row] & ends.both == ends.both && ends.counts(time) {
                    self.times.push(time);
                    self.rows.push(row);
                }
            }
        }
        let extremes = |(min, max): (Ns, Ns), time: &Ns| (min.min(*time), max.max(*time));
        self.extremes.extend(self.times.chunks(PIECE).map(|piece| piece.iter().fold((Ns::MAX, Ns::MIN), extremes)));
    }

    /// Minimum and maximum of all times, ns; `None` if there are none.
    pub fn extremes(&self) -> Option<(Ns, Ns)> {
        self.extremes.iter().copied().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Row of the packet whose time has this index.
    #[inline]
    pub fn row(&self, at: usize) -> usize {
        if self.is_whole {
            self.first + at
        } else {
            self.rows[at]
        }
    }

    /// Range of indexes into the times for the packets in these rows.
    pub fn places(&self, rows: Range<usize>) -> Range<usize> {
        if self.is_whole {
            return rows.start - self.first..rows.end - self.first;
        }
        self.rows.partition_point(|row| *row < rows.start)..self.rows.partition_point(|row| *row < rows.end)
    }

    /// The packets' times at a point that saw all of them, taken from its `column`. Uses `buffer` if only some packets
    /// of the batch crossed the segment.
    pub fn when<'a>(&self, column: &'a [Ns], buffer: &'a mut Vec<Ns>) -> &'a [Ns] {
        if self.is_whole {
            return &column[self.first..][..self.times.len()];
        }
        buffer.clear();
        buffer.extend(self.rows.iter().map(|row| column[*row]));
        buffer
    }

    /// The pieces of the times: index range, and minimum and maximum, of each.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, (Ns, Ns))> + '_ {
        let places = (0..).step_by(PIECE).map(|begin| begin..self.times.len().min(begin + PIECE));
        places.zip(self.extremes.iter().copied())
    }
}
