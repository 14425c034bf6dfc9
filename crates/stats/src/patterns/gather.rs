//! What patterns are found in, gathered from batches of journeys in one pass.

use super::excursions::{bound, Excursions, Open};
use super::levels::{Level, Quartiles};
use super::outages::Outages;
use super::slots::Slots;
use super::taken::Taken;
use crate::aggregate::Setup;
use crate::times::{between, bit, Ends};
use latpath_model::{Ns, PointId, SegmentKind, StreamId};
use latpath_run::Rows;
use std::ops::Range;

/// Maximum segments that are examined.
const SEGMENTS: usize = 24;
/// Maximum slots of all segments and streams together.
const LEVELS: usize = 1 << 18;
/// Maximum excursions that are kept, of all segments together.
const EXCURSIONS: usize = 1 << 15;

/// A segment that is watched: it holds no other one.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// Its place in the setup.
    pub segment: usize,
    pub ends: Ends,
}

/// What one pass over a recording gathers. Several over batches of the same journeys, merged in any order, say the same as one.
#[derive(Clone, Debug)]
pub struct Patterns {
    pub(super) slots: Slots,
    pub(super) watched: Vec<Watched>,
    /// Streams with the same remainder share a lane.
    pub(super) lanes: usize,
    /// The slots of each lane of each segment.
    pub(super) levels: Vec<Level>,
    pub(super) excursions: Vec<Excursions>,
    pub(super) streams: Vec<Stream>,
    scratch: Scratch,
}

/// What became of a stream's packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub route: Vec<PointId>,
    pub sink: u64,
    pub outages: Outages,
    pub taken: Taken,
}

/// While a batch is added.
#[derive(Clone, Debug, Default)]
struct Scratch {
    sample: Vec<Ns>,
    times: Vec<Ns>,
    rows: Vec<usize>,
    sent: Vec<Ns>,
    /// The packets of each slot.
    pieces: Vec<(usize, Range<usize>)>,
    sets: Vec<(u64, u64)>,
}

impl Patterns {
    /// Nothing gathered yet, of a recording whose first and last packet came at these instants.
    pub fn new(setup: &Setup, first: Ns, last: Ns) -> Self {
        let (slots, watched) = (Slots::of(first, last), watched(setup));
        let lanes = (LEVELS / (slots.count() * watched.len()).max(1)).clamp(1, setup.streams.max(1));
        let stream = |id: usize| {
            let route = setup.routes.get(id).cloned().unwrap_or_default();
            Stream { sink: route.last().map_or(0, |p| bit(*p)), route, ..Stream::default() }
        };
        Self {
            levels: vec![Level::default(); slots.count() * lanes * watched.len()],
            excursions: vec![Excursions::new(EXCURSIONS / watched.len().max(8)); watched.len()],
            streams: (0..setup.streams).map(stream).collect(),
            scratch: Scratch::default(),
            slots,
            watched,
            lanes,
        }
    }

    /// Adds a batch of journeys, those of each stream in their order. Those of streams that the setup does not have are left out.
    pub fn add_rows(&mut self, rows: &Rows) {
        for (stream, range) in rows.by_stream() {
            if usize::from(stream) < self.streams.len() {
                self.cut(stream, rows, &range);
                self.take(stream, rows);
                self.measure(stream, rows, &range);
                self.miss(stream, rows, range);
            }
        }
    }

    /// Finds when each packet was at the first point of its route; where that did not see it, anywhere. Cuts the packets by slots.
    fn cut(&mut self, stream: StreamId, rows: &Rows, range: &Range<usize>) {
        let first = self.streams[usize::from(stream)].route.first().map_or(0, |p| usize::from(*p));
        let Scratch { sent, pieces, .. } = &mut self.scratch;
        sent.clear();
        sent.extend_from_slice(&rows.t[first][range.clone()]);
        for (row, sent) in range.clone().zip(sent.iter_mut()).filter(|(row, _)| rows.seen[*row] >> first & 1 == 0) {
            *sent = rows.first_time(row);
        }
        pieces.clear();
        let mut rest = &sent[..];
        while let Some(first) = rest.first() {
            let slot = self.slots.at(*first);
            let len = rest.partition_point(|t| self.slots.at(*t) <= slot).max(1);
            let begin = range.end - rest.len();
            pieces.push((slot, begin..begin + len));
            rest = &rest[len..];
        }
    }

    /// Counts which points saw the packets that arrived.
    fn take(&mut self, stream: StreamId, rows: &Rows) {
        let of = &mut self.streams[usize::from(stream)];
        let Scratch { pieces, sets, .. } = &mut self.scratch;
        for (slot, piece) in pieces.iter() {
            let seen = &rows.seen[piece.clone()];
            sets.clear();
            let (all, any) = seen.iter().fold((u64::MAX, 0), |(all, any), seen| (all & seen, any | seen));
            if all == any {
                sets.push((all, seen.len() as u64));
            } else {
                for seen in seen {
                    match sets.iter_mut().find(|(set, _)| set == seen) {
                        Some((_, n)) => *n += 1,
                        None => sets.push((*seen, 1)),
                    }
                }
            }
            let arrived = sets.iter().filter(|(set, _)| set & of.sink != 0);
            arrived.for_each(|(set, n)| of.taken.add(*slot, *set, *n));
        }
    }

    /// The times of each segment: levels and excursions.
    fn measure(&mut self, stream: StreamId, rows: &Rows, range: &Range<usize>) {
        let seen = &rows.seen[range.clone()];
        let (all, any) = seen.iter().fold((u64::MAX, 0), |(all, any), seen| (all & seen, any | seen));
        let slots = self.slots.count();
        for at in 0..self.watched.len() {
            let ends = self.watched[at].ends;
            if any & ends.both != ends.both {
                continue;
            }
            let has_all = all & ends.both == ends.both && !ends.in_order;
            let lane = at * self.lanes + usize::from(stream) % self.lanes;
            let levels = &mut self.levels[lane * slots..][..slots];
            let (mut open, mut before) = (None, [None; 2]);
            let pieces = std::mem::take(&mut self.scratch.pieces);
            for (slot, piece) in &pieces {
                cross(&mut self.scratch, rows, ends, piece.clone(), has_all);
                let Some(own) = Quartiles::of(&self.scratch.times, &mut self.scratch.sample) else { continue };
                levels[*slot].add(self.scratch.times.len(), own);
                // A queue that is held for most of a second makes the times of that second usual.
                let usual =
                    before.into_iter().flatten().fold(own, |a, b: Quartiles| if b.middle < a.middle { b } else { a });
                let run = (stream, ends, piece.start);
                exceed(&mut self.excursions[at], &mut open, &self.scratch, rows, run, bound(usual));
                before = [before[1], Some(own)];
            }
            self.scratch.pieces = pieces;
            close(&mut self.excursions[at], open, rows);
        }
    }

    /// What did not arrive, or was never seen.
    fn miss(&mut self, stream: StreamId, rows: &Rows, range: Range<usize>) {
        let Stream { route, sink, outages, .. } = &mut self.streams[usize::from(stream)];
        let arrived = rows.seen[range.clone()].iter().fold(u64::MAX, |all, seen| all & seen) & *sink != 0;
        let none_missing = rows.missing_before[range.clone()].iter().fold(0, |all, n| all | n) == 0;
        if arrived && none_missing {
            return;
        }
        for row in range.clone() {
            let (seen, sent) = (rows.seen[row], self.scratch.sent[row - range.start]);
            if rows.missing_before[row] > 0 {
                let before = row.checked_sub(range.start + 1).map(|before| self.scratch.sent[before]);
                outages.never_seen(rows.missing_before[row], rows.number[row], (before.unwrap_or(sent), sent));
            }
            if seen & *sink == 0 {
                if let Some(place) = route.iter().rev().find(|p| seen >> **p & 1 == 1) {
                    outages.lost(rows.number[row], sent, *place);
                }
            }
        }
        outages.close();
    }

    /// Adds all that another one, of the same setup and recording, has.
    pub fn merge(&mut self, other: Self) {
        self.levels.iter_mut().zip(&other.levels).for_each(|(own, others)| own.merge(others));
        self.excursions.iter_mut().zip(other.excursions).for_each(|(own, others)| own.merge(others));
        for (own, others) in self.streams.iter_mut().zip(other.streams) {
            own.outages.merge(others.outages);
            own.taken.merge(others.taken);
        }
    }
}

/// The segments between neighbours of a route, whatever their names; the first of several with the same ends.
fn watched(setup: &Setup) -> Vec<Watched> {
    let is_step =
        |from: PointId, to: PointId| setup.routes.iter().any(|route| route.windows(2).any(|two| two == [from, to]));
    let mut all: Vec<Watched> = Vec::new();
    for (segment, s) in setup.segments.iter().enumerate() {
        let ends = Ends::of(s, &setup.points);
        let is_known = all.iter().any(|w| (w.ends.from, w.ends.to) == (ends.from, ends.to));
        if !is_known && (is_step(s.from, s.to) || s.kind == SegmentKind::Tupcall) && all.len() < SEGMENTS {
            all.push(Watched { segment, ends });
        }
    }
    all
}

/// The times of the packets of a piece that crossed a segment, and their rows, which are left out where `has_all` crossed it.
fn cross(scratch: &mut Scratch, rows: &Rows, ends: Ends, piece: Range<usize>, has_all: bool) {
    let (from, to) = (&rows.t[ends.from][piece.clone()], &rows.t[ends.to][piece.clone()]);
    let all = from.iter().zip(to).map(|(from, to)| between(*from, *to));
    scratch.times.clear();
    scratch.rows.clear();
    if has_all {
        scratch.times.extend(all);
        return;
    }
    for (row, time) in
        piece.zip(all).filter(|(row, time)| rows.seen[*row] & ends.both == ends.both && ends.counts(*time))
    {
        scratch.times.push(time);
        scratch.rows.push(row);
    }
}

/// Finds the times over a bound, and puts those that follow each other together.
fn exceed(
    excursions: &mut Excursions,
    open: &mut Option<(Open, usize)>,
    scratch: &Scratch,
    rows: &Rows,
    (stream, ends, first): (StreamId, Ends, usize),
    bound: Ns,
) {
    const AT_ONCE: usize = 64;
    // Packets that crossed the segment, counted from the piece's first.
    let row_of = |at: usize| scratch.rows.get(at).copied().unwrap_or(first + at);
    for (n, chunk) in scratch.times.chunks(AT_ONCE).enumerate() {
        // The sign of the sum of all signs: quicker than to compare.
        if chunk.iter().fold(0, |over, time| over | bound.wrapping_sub(*time)) >= 0 {
            close(excursions, open.take(), rows);
            continue;
        }
        for (at, time) in chunk.iter().enumerate() {
            let row = row_of(n * AT_ONCE + at);
            if *time <= bound {
                close(excursions, open.take(), rows);
                continue;
            }
            let from = rows.t[ends.from][row];
            match open {
                Some((run, last)) => {
                    run.add(from, *time);
                    *last = row;
                }
                None => *open = Some((Open::of(stream, from, *time, rows.first_time(row)), row)),
            }
        }
    }
}

fn close(excursions: &mut Excursions, open: Option<(Open, usize)>, rows: &Rows) {
    if let Some((open, last)) = open {
        excursions.close(open, rows.first_time(last));
    }
}
