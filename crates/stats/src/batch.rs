//! Journeys of one stream that follow each other, with what several kinds of figures need of them: found out once for all.

use crate::aggregate::Setup;
use crate::times::{between, Ends};
use latpath_journey::Segment;
use latpath_model::{Ns, PointInfo, StreamId};
use latpath_run::Rows;
use std::ops::Range;

/// Times whose least and greatest are known; packets that are checked at once.
pub(crate) const PIECE: usize = 64;

/// Cuts rows into batches.
#[derive(Clone, Debug)]
pub struct Batches {
    ends: Vec<Ends>,
    crossings: Vec<Crossings>,
}

/// A batch. Aggregate, pacing, patterns, tracks and times over time are made of batches.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) stream: StreamId,
    pub(crate) range: Range<usize>,
    /// Points that saw each of its packets.
    pub(crate) seen_by_all: u64,
    /// Points that saw any of them.
    pub(crate) seen_by_any: u64,
    crossings: &'a [Crossings],
}

/// The packets of a batch that crossed a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crossings {
    /// How long each took.
    pub times: Vec<Ns>,
    /// The least and the greatest of each [`PIECE`] of the times.
    extremes: Vec<(Ns, Ns)>,
    /// Whether it is the whole batch, whose first row is this.
    is_whole: bool,
    first: usize,
    /// Otherwise their rows, rising.
    rows: Vec<usize>,
}

impl Batches {
    /// For figures of this setup.
    pub fn new(setup: &Setup) -> Self {
        let mut batches = Self { ends: Vec::new(), crossings: Vec::new() };
        batches.extend(&setup.points, &setup.segments);
        batches
    }

    /// The setup has further segments.
    pub fn extend(&mut self, points: &[PointInfo], more: &[Segment]) {
        self.ends.extend(more.iter().map(|segment| Ends::of(segment, points)));
        self.crossings.resize_with(self.ends.len(), Crossings::default);
    }

    /// Calls with each batch of these rows.
    ///
    /// # Panics
    /// If the rows have fewer points than a segment or a route names.
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
    /// Who crossed a segment, by its place in the setup.
    pub(crate) fn crossings(&self, segment: usize) -> &Crossings {
        &self.crossings[segment]
    }

    /// The times at a point, meaningful of packets that it saw.
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

    /// The least time and the greatest.
    pub fn extremes(&self) -> Option<(Ns, Ns)> {
        self.extremes.iter().copied().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// The row of the packet whose time has this place.
    #[inline]
    pub fn row(&self, at: usize) -> usize {
        if self.is_whole {
            self.first + at
        } else {
            self.rows[at]
        }
    }

    /// The places of the times of packets in these rows.
    pub fn places(&self, rows: Range<usize>) -> Range<usize> {
        if self.is_whole {
            return rows.start - self.first..rows.end - self.first;
        }
        self.rows.partition_point(|row| *row < rows.start)..self.rows.partition_point(|row| *row < rows.end)
    }

    /// When each of the packets was at a point that saw all of them, whose times `column` has. `buffer` is used where not the whole
    /// batch crossed the segment.
    pub fn when<'a>(&self, column: &'a [Ns], buffer: &'a mut Vec<Ns>) -> &'a [Ns] {
        if self.is_whole {
            return &column[self.first..][..self.times.len()];
        }
        buffer.clear();
        buffer.extend(self.rows.iter().map(|row| column[*row]));
        buffer
    }

    /// The pieces of the times: the places of each, the least and the greatest time in it.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, (Ns, Ns))> + '_ {
        let places = (0..).step_by(PIECE).map(|begin| begin..self.times.len().min(begin + PIECE));
        places.zip(self.extremes.iter().copied())
    }
}
