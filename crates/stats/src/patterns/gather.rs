//! Gathers the figures that are searched for patterns, in one pass over batches of journeys.

use super::excursions::{bound, Excursions, Open};
use super::levels::{Level, Quartiles};
use super::outages::Outages;
use super::point_sets::PointSetCounts;
use super::slots::Slots;
use crate::aggregate::Setup;
use crate::batch::{Batch, Crossings, PIECE};
use crate::times::{bit, Ends};
use latpath_journey::arrival;
use latpath_model::{Ns, PointId, SegmentKind};
use latpath_run::Rows;
use std::ops::Range;

/// Maximum number of segments that are examined.
const SEGMENTS: usize = 24;
/// Maximum number of slots of all segments and streams together.
const LEVELS: usize = 1 << 18;
/// Maximum number of excursions kept, for all segments together.
const EXCURSIONS: usize = 1 << 15;

/// A watched segment: it includes no other segment.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// Its index in the setup.
    pub segment: usize,
    pub ends: Ends,
}

/// Figures gathered in one pass over a recording. Merging several objects built from batches of the same journeys
/// yields the same result in any order.
#[derive(Clone, Debug)]
pub struct Patterns {
    pub(super) slots: Slots,
    pub(super) watched: Vec<Watched>,
    /// Number of lanes: streams whose IDs have the same remainder modulo this share a lane.
    pub(super) lanes: usize,
    /// The slots of each lane, ordered by segment, then by lane.
    pub(super) levels: Vec<Vec<Level>>,
    pub(super) excursions: Vec<Excursions>,
    pub(super) streams: Vec<Stream>,
    scratch: Scratch,
    /// Whether the recording continues, so that its last packet is unknown.
    grows: bool,
}

/// Outcomes of a stream's packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub route: Vec<PointId>,
    pub sink: u64,
    pub outages: Outages,
    pub point_sets: PointSetCounts,
}

/// Buffers used while a batch is added.
#[derive(Clone, Debug, Default)]
struct Scratch {
    sample: Vec<Ns>,
    sent: Vec<Ns>,
    /// The slots of the batch, each with the range of its packets' rows.
    pieces: Vec<(usize, Range<usize>)>,
    sets: Vec<(u64, u64)>,
}

impl Patterns {
    /// Empty figures for a recording with its first and last packet at these times.
    pub fn new(setup: &Setup, first: Ns, last: Ns) -> Self {
        let slots = Slots::of(first, last);
        Self::over(setup, slots, slots.count())
    }

    /// Like [`Self::new`], for a recording that starts at `first` and continues. Its batches must arrive in order.
    pub fn growing(setup: &Setup, first: Ns) -> Self {
        Self { grows: true, ..Self::over(setup, Slots::growing(first), Slots::MAX_GROWING) }
    }

    /// Empty figures with these slots, whose number may grow to `most`.
    fn over(setup: &Setup, slots: Slots, most: usize) -> Self {
        let watched = watched(setup);
        let lanes = (LEVELS / (most * watched.len()).max(1)).clamp(1, setup.streams.max(1));
        let stream = |id: usize| {
            let route = setup.routes.get(id).cloned().unwrap_or_default();
            Stream { sink: arrival(&route, &setup.points).map_or(0, bit), route, ..Stream::default() }
        };
        Self {
            levels: vec![vec![Level::default(); slots.count()]; lanes * watched.len()],
            excursions: vec![Excursions::new(EXCURSIONS / watched.len().max(8)); watched.len()],
            streams: (0..setup.streams).map(stream).collect(),
            scratch: Scratch::default(),
            slots,
            watched,
            lanes,
            grows: false,
        }
    }

    /// Adds the segments and points by which the setup has grown.
    pub fn extend(&mut self, setup: &Setup) {
        let (known, all) = (self.watched.len(), watched(setup));
        let share = self.excursions.first().map_or_else(|| Excursions::new(EXCURSIONS / 8), Excursions::emptied);
        self.watched.extend(all.into_iter().skip(known));
        self.excursions.resize(self.watched.len(), share);
        self.levels.resize(self.watched.len() * self.lanes, vec![Level::default(); self.slots.count()]);
    }

    /// Adds slots up to the time of the batch's last packet.
    fn grow(&mut self, batch: &Batch) {
        let first = self.first(batch);
        let joined = self.slots.grow(sent(batch.rows, batch.range.end - 1, first));
        if joined > 1 {
            for levels in &mut self.levels {
                *levels = levels.chunks(joined).map(Level::together).collect();
            }
            self.streams.iter_mut().for_each(|stream| stream.point_sets.join_slots(joined));
        }
        let count = self.slots.count();
        self.levels.iter_mut().for_each(|levels| levels.resize(count, Level::default()));
    }

    /// Adds a batch; its packets must be in order. Streams beyond the setup are ignored.
    pub fn add(&mut self, batch: &Batch) {
        if usize::from(batch.stream) < self.streams.len() {
            if self.grows {
                self.grow(batch);
            }
            self.cut(batch);
            self.take(batch);
            self.measure(batch);
            self.miss(batch);
        }
    }

    /// Index of the first point on the route of the batch's stream.
    fn first(&self, batch: &Batch) -> usize {
        self.streams[usize::from(batch.stream)].route.first().map_or(0, |p| usize::from(*p))
    }

    /// Divides the batch into slots by the packets' sending times.
    fn cut(&mut self, batch: &Batch) {
        let first = self.first(batch);
        let Scratch { sent: buffer, pieces, .. } = &mut self.scratch;
        let sent = if batch.seen_by_all >> first & 1 == 1 {
            batch.at(first)
        } else {
            buffer.clear();
            buffer.extend(batch.range.clone().map(|row| sent(batch.rows, row, first)));
            &buffer[..]
        };
        pieces.clear();
        let mut rest = sent;
        while let Some(first) = rest.first() {
            let slot = self.slots.at(*first);
            let len = rest.partition_point(|t| self.slots.at(*t) <= slot).max(1);
            let begin = batch.range.end - rest.len();
            pieces.push((slot, begin..begin + len));
            rest = &rest[len..];
        }
    }

    /// Counts the packets that arrived, by slot and by the set of points that saw them.
    fn take(&mut self, batch: &Batch) {
        let of = &mut self.streams[usize::from(batch.stream)];
        let Scratch { pieces, sets, .. } = &mut self.scratch;
        for (slot, piece) in pieces.iter() {
            let seen = &batch.rows.seen[piece.clone()];
            let both = |(all, any): (u64, u64), seen: &u64| (all & seen, any | seen);
            let (all, any) = match batch.seen_by_all == batch.seen_by_any {
                true => (batch.seen_by_all, batch.seen_by_any),
                false => seen.iter().fold((u64::MAX, 0), both),
            };
            sets.clear();
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
            arrived.for_each(|(set, n)| of.point_sets.add(*slot, *set, *n));
        }
    }

    /// Adds the times of each segment: their levels, and excursions from them.
    fn measure(&mut self, batch: &Batch) {
        for (at, (watched, excursions)) in self.watched.iter().zip(&mut self.excursions).enumerate() {
            let crossings = batch.crossings(watched.segment);
            if crossings.times.is_empty() {
                continue;
            }
            let lane = at * self.lanes + usize::from(batch.stream) % self.lanes;
            let levels = &mut self.levels[lane];
            let (mut open, mut before) = (None, [None; 2]);
            for (slot, piece) in &self.scratch.pieces {
                let places = crossings.places(piece.clone());
                let times = &crossings.times[places.clone()];
                let Some(own) = Quartiles::of(times, &mut self.scratch.sample) else { continue };
                levels[*slot].add(times.len(), own);
                // A queue held for most of a second shifts the quartiles of that second, so use those with the lowest
                // median of this and the two previous slots.
                let usual =
                    before.into_iter().flatten().fold(own, |a, b: Quartiles| if b.middle < a.middle { b } else { a });
                exceed(excursions, &mut open, batch, (crossings, watched.ends.from), places, bound(usual));
                before = [before[1], Some(own)];
            }
            close(excursions, open, batch.rows);
        }
    }

    /// Adds lost packets, and packets that were never seen.
    fn miss(&mut self, batch: &Batch) {
        let first = self.first(batch);
        let Stream { route, sink, outages, .. } = &mut self.streams[usize::from(batch.stream)];
        let Batch { rows, ref range, .. } = *batch;
        let none_missing = rows.missing_before[range.clone()].iter().fold(0, |all, n| all | n) == 0;
        if batch.seen_by_all & *sink != 0 && none_missing {
            return;
        }
        for row in range.clone() {
            let seen = rows.seen[row];
            if rows.missing_before[row] > 0 {
                let here = sent(rows, row, first);
                let before = if row > range.start { sent(rows, row - 1, first) } else { here };
                outages.never_seen(rows.missing_before[row], rows.number[row], (before, here));
            }
            if seen & *sink == 0 {
                if let Some(place) = route.iter().rev().find(|p| seen >> **p & 1 == 1) {
                    outages.lost(rows.number[row], sent(rows, row, first), *place);
                }
            }
        }
        outages.close();
    }

    /// Adds the figures of another object with the same setup and recording.
    pub fn merge(&mut self, other: Self) {
        let (own, others) = (self.levels.iter_mut().flatten(), other.levels.iter().flatten());
        own.zip(others).for_each(|(own, others)| own.merge(others));
        self.excursions.iter_mut().zip(other.excursions).for_each(|(own, others)| own.merge(others));
        for (own, others) in self.streams.iter_mut().zip(other.streams) {
            own.outages.merge(others.outages);
            own.point_sets.merge(others.point_sets);
        }
    }
}

/// The segments between neighbours on a route, whatever their names, and those of upcalls. Of several segments with the
/// same ends, the first.
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

/// Time of a packet at the first point of its route, or if it was not seen there, of its first sighting.
fn sent(rows: &Rows, row: usize, first: usize) -> Ns {
    if rows.seen[row] >> first & 1 == 1 {
        rows.t[first][row]
    } else {
        rows.first_time(row)
    }
}

/// Finds the outliers among the times at these `places`, and groups consecutive ones into excursions. `from`: the point
/// at which the segment starts.
fn exceed(
    excursions: &mut Excursions,
    open: &mut Option<(Open, usize)>,
    batch: &Batch,
    (crossings, from): (&Crossings, usize),
    places: Range<usize>,
    bound: Ns,
) {
    let first = places.start / PIECE;
    for (piece, (_, greatest)) in crossings.pieces().skip(first).take_while(|(piece, _)| piece.start < places.end) {
        if greatest <= bound {
            close(excursions, open.take(), batch.rows);
            continue;
        }
        for at in piece.start.max(places.start)..piece.end.min(places.end) {
            let (time, row) = (crossings.times[at], crossings.row(at));
            if time <= bound {
                close(excursions, open.take(), batch.rows);
                continue;
            }
            let from = batch.rows.t[from][row];
            match open {
                Some((run, last)) => {
                    run.add(from, time);
                    *last = row;
                }
                None => *open = Some((Open::of(batch.stream, from, time, batch.rows.first_time(row)), row)),
            }
        }
    }
}

fn close(excursions: &mut Excursions, open: Option<(Open, usize)>, rows: &Rows) {
    if let Some((open, last)) = open {
        excursions.close(open, rows.first_time(last));
    }
}
