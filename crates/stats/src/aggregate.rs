//! Counts journeys: yields every figure of a report, and of a live view of several machines.
//!
//! Merging the aggregates of several parts of the journeys yields the aggregate of all of them.

use crate::batch::{Batch, PIECE};
use crate::by_path::ByPath;
use crate::consecutive::{Consecutive, Row};
use crate::figures::{rate, together};
use crate::lans::Lans;
use crate::reader_gaps::{self, ReaderGaps};
use crate::times::{between, bit, Crossing, Ends, Times};
use crate::worst::Slowest;
use crate::{
    Band, Bucket, ConsecutiveFigures, ConsecutiveOver, Histogram, Loss, PacketAt, ReaderGap, SegmentFigures,
    StreamFigures, Summary,
};
use latpath_clock::TimeOfDay;
use latpath_journey::journey::MAX_POINTS;
use latpath_journey::segments::Segment;
use latpath_journey::{arrival, Journey, Layout, Paths};
use latpath_model::{DropNote, Ns, PointId, PointInfo, StreamId};
use latpath_run::Rows;
use std::collections::HashMap;
use std::ops::Range;

/// Maximum number of drop notes that distinguish losses; later notes count as none.
const MAX_NOTES: u16 = 4096;
/// Represents "at no point".
const NOWHERE: PointId = PointId::MAX;

/// What an aggregate counts.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Number of streams; journeys of other streams are counted as strays.
    pub streams: usize,
    /// The points.
    pub points: Vec<PointInfo>,
    /// Each stream's route, by stream ID: its points in the order in which packets pass them, the sink last.
    pub routes: Vec<Vec<PointId>>,
    /// The segments.
    pub segments: Vec<Segment>,
    /// Threshold above which times are counted separately, ns.
    pub threshold: Ns,
    /// Further thresholds for each of which the longest run of late packets is found, ns.
    pub row_limits: Vec<Ns>,
    /// A band of times; times within it are counted separately.
    pub band: Option<Band>,
    /// Number of slowest journeys to keep.
    pub worst: usize,
    /// The streams of reactions, each with its own threshold, ns, which replaces the packets' threshold. Only segments
    /// of reactions and the user's segments apply to these streams.
    pub reactions: Vec<(StreamId, Ns)>,
}

impl Setup {
    /// A setup for `streams` streams with this layout.
    pub fn new(streams: usize, points: &[PointInfo], layout: &Layout, threshold: Ns, worst: usize) -> Self {
        let (routes, segments) = (layout.route.by_streams(streams), layout.segments.clone());
        let reactions = layout.route.reactions.iter();
        let reactions = reactions.map(|reaction| (reaction.stream, reaction.late.unwrap_or(Ns::MAX))).collect();
        Self { streams, points: points.to_vec(), routes, segments, threshold, worst, reactions, ..Self::default() }
    }

    /// All thresholds for runs of late packets of a stream, beginning with its own.
    fn lates(&self, stream: StreamId) -> impl Iterator<Item = Ns> + '_ {
        let own = self.reacts(stream).unwrap_or(self.threshold);
        std::iter::once(own).chain(self.row_limits.iter().copied())
    }

    /// The threshold of a stream of reactions, ns; `None` for a stream of packets.
    fn reacts(&self, stream: StreamId) -> Option<Ns> {
        self.reactions.iter().find(|(id, _)| *id == stream).map(|(_, threshold)| *threshold)
    }
}

/// Histograms of one segment with fine buckets, for charts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FineHistograms {
    /// Index of the segment in the setup.
    pub segment: usize,
    /// All packets.
    pub all: Vec<Bucket>,
    /// Histograms by path, if paths are distinguished on this segment.
    pub by_path: Vec<(String, Vec<Bucket>)>,
}

/// Figures under construction.
#[derive(Clone, Debug)]
pub struct Aggregate {
    setup: Setup,
    paths: Paths,
    ends: Vec<Ends>,
    streams: Vec<Stream>,
    /// Per stream: the runs of late packets, for the threshold and for each further row limit.
    consecutive: Vec<Vec<Consecutive>>,
    slowest: Slowest,
    strays: u64,
}

/// Counts of one stream's packets.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// `route`: the points of its route, as bits like a journey's `seen`. `sink`: the bit of the last one.
    route: u64,
    sink: u64,
    complete: u64,
    incomplete: u64,
    /// Number of lost packets by the last point that saw them, and by the drop note plus one.
    lost: HashMap<(PointId, u16), u64>,
    /// Number of packets that arrived although a copy was dropped, by the drop note plus one.
    survived: Vec<u64>,
    duplicates: u64,
    out_of_order: u64,
    segments: Vec<Times>,
    by_path: ByPath,
    lans: Lans,
    /// Whether its packets are reactions.
    reacts: bool,
    /// The last point before the application at the end of the route, and the gaps in the application's reading. `None`
    /// if the route does not end at an application.
    reader: Option<(PointId, ReaderGaps)>,
}

impl Stream {
    /// Whether a segment applies to this stream: both its ends are on the route, or packets crossed it nonetheless.
    fn shows(&self, (segment, times): &(&Segment, &Times)) -> bool {
        let is_on_route = |p: PointId| self.route >> p & 1 == 1 && segment.kind.is_for(self.reacts);
        times.histogram.count() > 0 || (is_on_route(segment.from) && is_on_route(segment.to))
    }

    /// Counts the outcome of a packet; `last` returns the place at which a lost packet was last seen.
    #[inline]
    fn end(&mut self, seen: u64, note: u16, last: impl FnOnce() -> PointId) {
        let note = if note > MAX_NOTES { 0 } else { note };
        let arrived = seen & self.sink != 0;
        if arrived && note > 0 {
            let note = usize::from(note);
            if note >= self.survived.len() {
                self.survived.resize(note + 1, 0);
            }
            self.survived[note] += 1;
        }
        if seen & self.route == self.route && self.route != 0 {
            self.complete += 1;
        } else if arrived || self.route == 0 {
            // Without a route, the destination is unknown, so the packet cannot be called lost.
            self.incomplete += 1;
        } else {
            *self.lost.entry((last(), note)).or_default() += 1;
        }
    }

    /// Returns the kernel's reason for a drop note plus one, if it explains losses. Bridges flood frames and drop
    /// copies of packets that arrive nonetheless, so a drop that most packets survived explains no loss. The same
    /// reason at another device has its own note.
    fn reasons<'a>(&'a self, notes: &'a [DropNote]) -> impl Fn(u16) -> Option<&'a DropNote> + 'a {
        let mut with_note: HashMap<u16, u64> = HashMap::new();
        self.lost.iter().for_each(|((_, note), n)| *with_note.entry(*note).or_default() += n);
        move |note: u16| {
            let survived = self.survived.get(usize::from(note)).copied().unwrap_or(0);
            let explains = survived < with_note.get(&note).copied().unwrap_or(0);
            notes.get(usize::from(note).checked_sub(1)?).filter(|_| explains)
        }
    }

    /// Losses by place and by the kernel's reason.
    fn losses(&self, point: impl Fn(PointId) -> String, notes: &[DropNote]) -> Vec<Loss> {
        let reason = self.reasons(notes);
        let all = self.lost.iter().map(|((place, note), count)| {
            let note = reason(*note);
            Loss {
                place: point(*place),
                reason: note.map(|note| format!("{} in {}", note.reason, note.function)),
                dropped_at: note.and_then(|note| note.at.as_ref()).map(ToString::to_string),
                meaning: None,
                kernel_count: None,
                count: *count,
            }
        });
        together(all)
    }

    fn merge(&mut self, other: &Self) {
        self.complete += other.complete;
        self.incomplete += other.incomplete;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        for (place, n) in &other.lost {
            *self.lost.entry(*place).or_default() += n;
        }
        self.survived.resize(self.survived.len().max(other.survived.len()), 0);
        self.survived.iter_mut().zip(&other.survived).for_each(|(own, others)| *own += others);
        self.segments.iter_mut().zip(&other.segments).for_each(|(own, others)| own.merge(others));
        self.by_path.merge(&other.by_path);
        self.lans.merge(&other.lans);
        if let (Some((_, own)), Some((_, others))) = (&mut self.reader, &other.reader) {
            own.merge(others);
        }
    }
}

/// Input of [`Aggregate::fill`] in addition to the journeys.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Names of the streams, by stream ID.
    pub streams: &'a [String],
    /// The kernel's reasons, by the journeys' `drop_note`.
    pub drop_notes: &'a [DropNote],
    /// Duration, ns, for rates.
    pub elapsed: Ns,
    /// Conversion from the journeys' times to the time of day.
    pub time_of_day: &'a TimeOfDay,
}

impl Aggregate {
    /// An empty aggregate.
    ///
    /// # Panics
    /// A route or a segment contains a point beyond [`MAX_POINTS`].
    pub fn new(setup: Setup) -> Self {
        let stream = |id: usize| {
            let route = setup.routes.get(id).map_or(&[][..], Vec::as_slice);
            Stream {
                route: route.iter().fold(0, |set, p| set | bit(*p)),
                sink: arrival(route, &setup.points).map_or(0, bit),
                reacts: setup.reacts(id as StreamId).is_some(),
                segments: vec![Times::default(); setup.segments.len()],
                lans: Lans::of_points(&setup.points),
                reader: before_reader(&setup, route).map(|before| (before, ReaderGaps::new())),
                ..Stream::default()
            }
        };
        Self {
            paths: Paths::of_points(&setup.points),
            ends: setup.segments.iter().map(|s| Ends::of(s, &setup.points)).collect(),
            streams: (0..setup.streams).map(stream).collect(),
            consecutive: vec![vec![Consecutive::default(); 1 + setup.row_limits.len()]; setup.streams],
            slowest: Slowest::new(setup.worst),
            strays: 0,
            setup,
        }
    }

    /// Adds segments and points; existing counts are kept.
    ///
    /// # Panics
    /// As for [`Aggregate::new`].
    pub fn extend(&mut self, points: &[PointInfo], more: &[Segment]) {
        self.setup.points = points.to_vec();
        self.paths = Paths::of_points(points);
        self.streams.iter_mut().for_each(|stream| stream.lans.extend(points));
        for segment in more {
            self.ends.push(Ends::of(segment, points));
            self.setup.segments.push(segment.clone());
            self.streams.iter_mut().for_each(|stream| stream.segments.push(Times::default()));
        }
    }

    /// The setup.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Adds a batch.
    pub fn add(&mut self, batch: &Batch) {
        let Batch { rows, stream: id, ref range, .. } = *batch;
        let Some(stream) = self.streams.get_mut(usize::from(id)) else {
            self.strays += range.len() as u64;
            return;
        };
        let reacts = self.setup.reacts(id);
        let (threshold, band) = (reacts.unwrap_or(self.setup.threshold), self.setup.band);
        let reacts = reacts.is_some();
        for (segment, (ends, times)) in self.ends.iter().zip(&mut stream.segments).enumerate() {
            if !self.setup.segments[segment].kind.is_for(reacts) {
                continue;
            }
            times.add(batch.crossings(segment), batch, ends.from, threshold, band);
        }
        stream.duplicates += rows.duplicates[range.clone()].iter().map(|n| u64::from(*n)).sum::<u64>();
        stream.out_of_order += rows.out_of_order[range.clone()].iter().filter(|is| **is).count() as u64;
        stream.lans.add(batch);
        if self.paths.any() && !reacts {
            for row in range.clone() {
                let path = stream.by_path.of(self.paths.class(rows.seen[row]), self.ends.len());
                path.add(rows.seen[row], stream.sink, &self.ends, threshold, |point| rows.t[point][row]);
            }
        }
        self.follow(batch);
    }

    /// Counts the outcomes of the packets, and finds runs of late packets and the slowest packets.
    fn follow(&mut self, batch: &Batch) {
        let Batch { rows, stream: id, ref range, .. } = *batch;
        let stream = &mut self.streams[usize::from(id)];
        let route = route_of(&self.setup, id);
        let (Some(first), Some(last)) = (route.first(), route.last()) else {
            stream.incomplete += range.len() as u64;
            return;
        };
        let (paths, consecutive) = (self.paths, &mut self.consecutive[usize::from(id)]);
        let ends = 1 << first | 1 << last;
        let (from, to) = (usize::from(*first), usize::from(*last));
        let in_time = self.setup.lates(id).min().unwrap_or(Ns::MAX);
        for piece in range.clone().step_by(PIECE).map(|begin| begin..range.end.min(begin + PIECE)) {
            let limit = in_time.min(self.slowest.ignored_up_to());
            if are_ordinary(rows, piece.clone(), stream.route, (from, to), limit) {
                let packets = piece.len() as u64;
                stream.complete += packets;
                let (number, key) = (rows.number[piece.start], rows.key[piece.start]);
                consecutive.iter_mut().for_each(|one| one.add_in_time(number, key, packets));
                if let Some((_, gaps)) = &mut stream.reader {
                    gaps.read_all(&rows.t[to][piece]);
                }
                continue;
            }
            for row in piece {
                let seen = rows.seen[row];
                let last = || rows.with_journey(row, |j| paths.furthest(seen, last_place(j, route)));
                stream.end(seen, rows.drop_note[row], last);
                if let Some((before, gaps)) = &mut stream.reader {
                    let came = || (seen >> *before & 1 == 1).then(|| rows.t[usize::from(*before)][row]);
                    match seen & stream.sink {
                        0 => gaps.lost(rows.number[row], came(), rows.drop_note[row]),
                        _ => gaps.read(rows.t[to][row]),
                    }
                }
                let time = (seen & ends == ends).then(|| between(rows.t[from][row], rows.t[to][row]));
                let (number, key, missing) = (rows.number[row], rows.key[row], rows.missing_before[row]);
                for (late, consecutive) in self.setup.lates(id).zip(consecutive.iter_mut()) {
                    let bad = seen & stream.sink == 0 || time.is_some_and(|time| time > late);
                    consecutive.add(number, key, missing, bad, || rows.first_time(row));
                }
                // Packets that crossed the whole route without being slow need no further examination.
                if time.is_none_or(|time| self.slowest.may_take(time)) {
                    rows.with_journey(row, |journey| self.slowest.offer(journey, route));
                }
            }
        }
    }

    /// Adds the counts of an aggregate with the same setup.
    ///
    /// # Panics
    /// The setups differ in streams or segments.
    pub fn merge(&mut self, other: &Self) {
        let shape = |a: &Self| (a.streams.len(), a.ends.len());
        assert_eq!(shape(self), shape(other), "aggregates of different setups");
        self.streams.iter_mut().zip(&other.streams).for_each(|(own, others)| own.merge(others));
        let (own, others) = (self.consecutive.iter_mut().flatten(), other.consecutive.iter().flatten());
        own.zip(others).for_each(|(own, others)| own.merge(others));
        self.slowest.merge(&other.slowest);
        self.strays += other.strays;
    }

    /// Number of journeys of streams beyond the setup; they are not included in any figure.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// The times of a segment (by index in the setup), and the number of times over the threshold. For one stream, or
    /// for all if `stream` is `None`.
    pub fn times(&self, segment: usize, stream: Option<StreamId>) -> (Histogram, u64) {
        let mut all = Times::default();
        let chosen = |id: &usize| stream.is_none_or(|stream| usize::from(stream) == *id);
        let streams = self.streams.iter().enumerate().filter(|(id, _)| chosen(id));
        streams.filter_map(|(_, s)| s.segments.get(segment)).for_each(|times| all.merge(times));
        (all.histogram, all.over)
    }

    /// The slowest journeys so far, slowest first: stream, packet number in the stream, time of the first sighting.
    pub fn slowest(&self) -> Vec<(StreamId, u64, Ns)> {
        self.slowest.sorted().iter().map(|kept| (kept.stream, kept.number, kept.first)).collect()
    }

    /// Adds CPUs and threads to a journey if it is among the slowest; ignores other journeys.
    pub fn detail(&mut self, journey: &Journey) {
        self.slowest.detail(journey);
    }

    fn all(&self) -> Stream {
        let segments = vec![Times::default(); self.setup.segments.len()];
        let mut all = Stream { segments, route: u64::MAX, ..Stream::default() };
        self.streams.iter().for_each(|stream| all.merge(stream));
        all
    }

    /// Histograms of all streams together, for charts: one per segment of the summary, in the same order.
    pub fn fine_histograms(&self) -> Vec<FineHistograms> {
        let all = self.all();
        let segments = self.setup.segments.iter().zip(&all.segments).enumerate();
        let shown = segments.filter(|(_, s)| all.shows(s));
        let of = |(segment, (_, times)): (usize, (_, &Times))| FineHistograms {
            segment,
            all: times.histogram.fine_buckets(),
            by_path: all.by_path.fine_buckets(segment),
        };
        shown.map(of).collect()
    }

    /// Sets the fields of a summary that depend on the journeys: `elapsed_ns`, `threshold_ns`, the counts, `lost`,
    /// `segments`, `streams` (except `never_seen`) and `worst`. `bounds` returns the error bound of a time between two
    /// points, ns. Other fields are not changed.
    pub fn fill(&self, summary: &mut Summary, context: Context, bounds: impl Fn(PointId, PointId) -> Ns) {
        let all = self.all();
        let figures = |stream: &Stream, name: String| self.stream(stream, name, context, &bounds);
        let of = figures(&all, String::new());
        summary.elapsed_ns = context.elapsed;
        (summary.threshold_ns, summary.band) = (self.setup.threshold, self.setup.band);
        (summary.journeys, summary.complete, summary.incomplete) = (of.journeys, of.complete, of.incomplete);
        (summary.duplicates, summary.out_of_order) = (of.duplicates, of.out_of_order);
        (summary.segments, summary.paths) = (of.segments, of.paths);
        let name = |id: usize| context.streams.get(id).cloned().unwrap_or_else(|| format!("stream {id}"));
        summary.streams = self.streams.iter().enumerate().map(|(id, stream)| figures(stream, name(id))).collect();
        for (id, stream) in summary.streams.iter_mut().enumerate() {
            let info = |p: &PointId| self.setup.points.get(usize::from(*p));
            let route = route_of(&self.setup, id as StreamId).iter();
            stream.points = route.filter_map(info).map(|info| info.point.clone()).collect();
            let mut rows = self.consecutive[id].iter().map(|consecutive| match consecutive.longest() {
                Row { packets: 0, .. } => ConsecutiveFigures::default(),
                Row { packets, number, key, first } => {
                    ConsecutiveFigures { packets, key, number, time_ns: context.time_of_day.utc(first) }
                }
            });
            stream.consecutive = rows.next().filter(|row| row.packets > 0);
            let over = self.setup.row_limits.iter().zip(rows);
            stream.consecutive_over = over.map(|(over_ns, row)| ConsecutiveOver { over_ns: *over_ns, row }).collect();
        }
        summary.lans = Lans::sum(self.streams.iter().map(|stream| &stream.lans)).figures(|id| self.point(id));
        // Summed over the streams, because a reason may explain a loss in one stream only.
        summary.lost = together(summary.streams.iter().flat_map(|s| &s.lost).cloned());
        summary.reader_gaps = self.reader_gaps(context, name);
        let point = |id: PointId| self.point(id);
        summary.worst = self
            .slowest
            .sorted()
            .iter()
            .map(|kept| {
                let sink = arrival(route_of(&self.setup, kept.stream), &self.setup.points);
                let arrived = sink.is_some_and(|sink| kept.has(sink));
                let is_drop = |p| self.setup.points.get(usize::from(p)).is_some_and(|i| i.point.kind.is_drop());
                let is_copy = |p| arrived && is_drop(p);
                kept.figures(name(kept.stream.into()), &self.paths, context.time_of_day, point, is_copy)
            })
            .collect();
    }

    fn stream(
        &self,
        stream: &Stream,
        name: String,
        context: Context,
        bounds: &impl Fn(PointId, PointId) -> Ns,
    ) -> StreamFigures {
        let lost = stream.losses(|id| self.point(id), context.drop_notes);
        let packet = |crossing: Crossing| PacketAt {
            stream: context.streams.get(usize::from(crossing.stream)).cloned().unwrap_or_default(),
            key: crossing.key,
            number: crossing.number,
            time_ns: context.time_of_day.utc(crossing.t),
        };
        let row = |(segment, times): (&Segment, &Times)| SegmentFigures {
            kind: segment.kind,
            name: segment.name.clone(),
            from: self.point(segment.from),
            to: self.point(segment.to),
            rate_hz: rate(times.histogram.count(), context.elapsed),
            over_threshold: times.over,
            in_band: self.setup.band.map(|_| times.in_band),
            error_bound_ns: bounds(segment.from, segment.to),
            close_to: self.close_to(&times.histogram, bounds(segment.from, segment.to)),
            min_at: times.extremes.packets().0.map(packet),
            max_at: times.extremes.packets().1.map(packet),
            ..SegmentFigures::of(&times.histogram)
        };
        StreamFigures {
            stream: name,
            points: Vec::new(),
            journeys: stream.complete + stream.incomplete + lost.iter().map(|l| l.count).sum::<u64>(),
            complete: stream.complete,
            incomplete: stream.incomplete,
            lost,
            duplicates: stream.duplicates,
            out_of_order: stream.out_of_order,
            never_seen: 0,
            consecutive: None,
            consecutive_over: Vec::new(),
            lans: stream.lans.figures(|id| self.point(id)),
            pacing: Vec::new(),
            paths: stream.by_path.figures(|times| {
                let by_path = self.setup.segments.iter().zip(times).zip(&self.ends).filter(|(_, ends)| ends.by_path);
                by_path.map(|(times, _)| times).filter(|s| stream.shows(s)).map(row).collect()
            }),
            segments: self.setup.segments.iter().zip(&stream.segments).filter(|s| stream.shows(s)).map(row).collect(),
        }
    }

    /// Gaps in the reading by the applications at the ends of routes.
    fn reader_gaps(&self, context: Context, name: impl Fn(usize) -> String) -> Vec<ReaderGap> {
        let point = |id: &PointId| self.setup.points.get(usize::from(*id)).map(|info| &info.point);
        let of = |(id, stream): (usize, &Stream)| {
            let (before, gaps) = stream.reader.as_ref()?;
            let ends = (point(before)?, point(route_of(&self.setup, id as StreamId).last()?)?);
            Some(gaps.figures(&name(id), ends, stream.reasons(context.drop_notes), context.time_of_day))
        };
        let gaps: Vec<ReaderGap> = self.streams.iter().enumerate().filter_map(of).flatten().collect();
        reader_gaps::together(gaps, self.streams.len() > 1)
    }

    /// For the threshold and each row limit: the limit, and the number of times that do not exceed it but are within
    /// the clock error of it.
    fn close_to(&self, times: &Histogram, bound: Ns) -> Vec<(Ns, u64)> {
        if bound <= 0 {
            return Vec::new();
        }
        let lates = std::iter::once(self.setup.threshold).chain(self.setup.row_limits.iter().copied());
        lates.map(|late| (late, times.count_about(late.saturating_sub(bound), late))).collect()
    }

    fn point(&self, id: PointId) -> String {
        match self.setup.points.get(usize::from(id)) {
            Some(info) => info.point.to_string(),
            None if id == NOWHERE => "-".into(),
            None => format!("point {id}"),
        }
    }
}

/// Whether all packets of a piece were seen at each point of their route, are consecutive, have no dropped copy, and
/// took at most `limit` from the first point of the route to the last.
#[inline]
fn are_ordinary(rows: &Rows, piece: Range<usize>, route: u64, (first, last): (usize, usize), limit: Ns) -> bool {
    let numbers = &rows.number[piece.clone()];
    let (number, packets) = (numbers[0], piece.len() as u64);
    let jumps = |all, (n, expected): (&u64, u64)| all | n ^ expected;
    // Combine the signs of all differences: faster than comparing each of them.
    let over = |all, (from, to): (&Ns, &Ns)| all | limit.wrapping_sub(to.wrapping_sub(*from));
    let times = rows.t[first][piece.clone()].iter().zip(&rows.t[last][piece.clone()]);
    rows.are_times_close()
        && limit >= 0
        && times.fold(0, over) >= 0
        && rows.seen[piece.clone()].iter().fold(route, |all, seen| all & seen) == route
        && rows.drop_note[piece.clone()].iter().fold(0, |all, note| all | note) == 0
        && rows.missing_before[piece].iter().fold(0, |all, missing| all | missing) == 0
        && number.checked_add(packets).is_some_and(|end| numbers.iter().zip(number..end).fold(0, jumps) == 0)
}

/// A stream's route; empty if its packets were never seen.
fn route_of(setup: &Setup, stream: StreamId) -> &[PointId] {
    setup.routes.get(usize::from(stream)).map_or(&[], Vec::as_slice)
}

/// The last point of a route before the application at its end.
fn before_reader(setup: &Setup, route: &[PointId]) -> Option<PointId> {
    let [.., before, reader] = route else { return None };
    let reads = |info: &PointInfo| info.point.kind.is_application();
    setup.points.get(usize::from(*reader)).is_some_and(reads).then_some(*before)
}

/// The last point of the route that saw the packet; if none did, the point off the route that saw it last.
fn last_place(journey: &Journey, route: &[PointId]) -> PointId {
    let on_route = route.iter().rev().find(|p| journey.seen >> **p & 1 == 1);
    let anywhere = || (0..MAX_POINTS as PointId).filter_map(|p| Some((journey.at(p)?, p))).max();
    on_route.copied().or_else(|| Some(anywhere()?.1)).unwrap_or(NOWHERE)
}
