//! Joins sightings into journeys, in a stream and in bounded memory.
//!
//! The caller pushes sightings of all machines, merged roughly by time (a disorder of the clocks' error is normal), and
//! regularly passes the time up to which all sightings have come. Journeys come back in order of their first sighting, each exactly once.
//! Which journey a sighting belongs to is decided in `matching`; docs/journeys.md explains it.

use crate::journey::{Journey, MAX_POINTS};
use crate::matching::{MatchResult, Position};
use crate::ring::{row_bytes, MIN_SLOTS};
use crate::senders::Senders;
use crate::stream::{Received, Stream};
use latpath_model::{KeyRule, Ns, PointId, PointInfo, PointKind, Sighting, StreamId};
use latpath_protocols::sequence::Sequence;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How journeys are closed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A journey is closed this long after its first sighting, whatever it lacks.
    pub window: Ns,
    /// R: packets by which the order of a stream may differ between two points.
    pub reorder: u64,
    /// A journey that has all expected points stays open this long for duplicates and for points beyond the expected.
    pub linger: Ns,
    /// A closed journey is remembered until this long after its first sighting, to recognise late sightings.
    pub retain: Ns,
    /// A packet that comes to the first point later than this after its turn is counted as behind its schedule.
    pub late: Ns,
    /// Open journeys of all streams together; beyond, the oldest are closed and counted as evicted. There are fewer where journeys
    /// have many points, so that all open ones take at most 16 MiB.
    pub max_open: usize,
    /// Joins packets of different senders apart, where the points show that they are. Only where all points count: a point that is not
    /// requested may connect them.
    pub separate_senders: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: 1_000_000_000,
            reorder: 256,
            linger: 50_000_000,
            retain: 3_000_000_000,
            late: 200_000,
            max_open: 1 << 17,
            separate_senders: true,
        }
    }
}

/// Counters of one stream. Sightings that are in no journey are counted here alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub sightings: u64,
    /// Journeys handed out.
    pub journeys: u64,
    /// Packets that came again to the last point of the route, also after their journeys were handed out: what its application counts.
    pub duplicates: u64,
    /// Sightings at any point that had seen the packet already; in runs of earlier versions `duplicates` counts these.
    pub repeated: u64,
    /// Sightings of a packet whose journey was closed, or not kept any more: they are in no journey.
    pub late: u64,
    /// Journeys closed early because too many were open.
    pub evicted: u64,
    /// Journeys that were incomplete but not overdue when the recording ended: dropped by [`Joiner::finish`].
    pub unfinished: u64,
    /// Sequence numbers that no point saw, at least.
    pub never_seen: u64,
    /// Times the sequence jumped as if the sender had restarted.
    pub restarts: u64,
    /// Sightings for which not all journeys with the same key could be looked at.
    pub crowded: u64,
    /// Packets that came to the first point later than [`Options::late`] after their turn, by their numbers: late before that point.
    pub behind_schedule: u64,
    /// The most of that, also where it was less.
    pub behind_schedule_max_ns: Ns,
    /// Sightings of packets that another sender of the same name sends, where none of its packets comes to: they are in no journey, and
    /// not in `sightings`.
    pub other_senders: u64,
}

/// See the module's text.
pub struct Joiner {
    options: Options,
    streams: Vec<Stream>,
    /// Each stream's, and its senders.
    rules: Vec<KeyRule>,
    senders: Vec<Senders>,
    points: Vec<PointInfo>,
    /// Points that a row of times has room for.
    stride: usize,
    drops: u64,
    /// Greatest time that the caller has declared passed.
    now: Ns,
    /// Room for open journeys and for heads, all streams.
    slots: usize,
    heads: usize,
    /// Sightings of a stream or point that cannot be.
    refused: u64,
    hold: Hold,
}

/// Sightings of points that are not expected keep coming after their journeys were handed out: for a while all journeys
/// are kept for the whole window, so that the points can be found. Not again too soon, for it costs memory.
#[derive(Default)]
struct Hold {
    late: u32,
    until: Ns,
    again: Ns,
    pause: Ns,
}

/// Memory of open journeys' sightings.
const MAX_BYTES: usize = 16 << 20;
/// Heads kept for each journey that may be open.
const HEADS_PER_OPEN: usize = 4;
/// Late sightings at unexpected points that make the joiner keep journeys longer.
const HOLD_AFTER: u32 = 32;

impl Joiner {
    /// A joiner for streams with these key rules; a stream's id is its place in the list.
    pub fn new(rules: impl IntoIterator<Item = KeyRule>, options: Options) -> Self {
        let stride = 8;
        let options = Options { retain: options.retain.max(options.window), ..options };
        let mut joiner = Self {
            options,
            streams: Vec::new(),
            rules: Vec::new(),
            senders: Vec::new(),
            points: Vec::new(),
            stride,
            drops: 0,
            now: Ns::MIN,
            slots: 0,
            heads: 0,
            refused: 0,
            hold: Hold::default(),
        };
        rules.into_iter().for_each(|rule| joiner.add_stream(rule));
        joiner
    }

    /// Adds a stream with this key rule; its id is the next one.
    pub fn add_stream(&mut self, rule: KeyRule) {
        self.streams.push(Stream::new(self.streams.len() as StreamId, rule, self.stride, &self.options));
        self.rules.push(rule);
        self.senders.push(Senders::default());
        self.slots += MIN_SLOTS;
        self.heads += MIN_SLOTS;
    }

    /// Takes the points that there are; call it again whenever points were found.
    pub fn set_points(&mut self, points: &[PointInfo]) {
        let drop = |(_, info): &(usize, &PointInfo)| info.point.kind == PointKind::Drop;
        self.drops = points.iter().enumerate().take(MAX_POINTS).filter(drop).fold(0, |mask, (id, _)| mask | 1 << id);
        self.points = points.to_vec();
        for at in 0..self.streams.len() {
            if self.senders[at].seen != 0 {
                self.divide(at);
            }
        }
    }

    /// The route of a stream: its points make a journey complete, and its last one is the reader at which duplicates and packets out of
    /// order are counted. Empty while it is unknown.
    pub fn set_route(&mut self, stream: StreamId, route: &[PointId]) {
        self.set_expected(stream, route.iter().fold(0, |mask, p| mask | 1 << p));
        if let Some(stream) = self.streams.get_mut(usize::from(stream)) {
            stream.reader = route.last().copied();
        }
    }

    /// Points that make a journey of a stream complete, as bits `1 << PointId`; 0 while the route is unknown.
    pub fn set_expected(&mut self, stream: StreamId, mask: u64) {
        let at = usize::from(stream);
        let Some(senders) = self.senders.get_mut(at) else { return };
        senders.route = mask;
        self.divide(at);
        self.streams[at].expected = mask;
    }

    /// The points of each sender of a stream whose packets are not followed, as bits `1 << PointId`, with its sightings.
    pub fn other_senders(&self, stream: StreamId) -> Vec<(u64, u64)> {
        let of = |senders: &Senders| senders.others.iter().map(|o| (o.points, o.joined.totals.sightings)).collect();
        self.senders.get(usize::from(stream)).map_or_else(Vec::new, of)
    }

    pub fn totals(&self, stream_id: StreamId) -> Totals {
        let Some(stream) = self.streams.get(usize::from(stream_id)) else { return Totals::default() };
        let (never_seen, restarts) = stream.sequence.as_ref().map_or((0, 0), |s| (s.never_seen(), s.restarts()));
        let other_senders = self.senders[usize::from(stream_id)].sightings_of_others();
        Totals { never_seen, restarts, other_senders, duplicates: stream.duplicates(), ..stream.totals }
    }

    /// The step and the wrap of a stream's keys, where they were learned.
    pub fn sequence(&self, stream: StreamId) -> Option<&Sequence> {
        self.streams.get(usize::from(stream))?.sequence.as_ref()
    }

    /// Sightings that named a stream or a point beyond the tables.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Journeys that are open now.
    pub fn open(&self) -> u64 {
        self.streams.iter().map(|s| s.ring.open()).sum()
    }

    /// Journeys that began before this time have all been handed out.
    pub fn reached(&self) -> Ns {
        let open = self.streams.iter().filter(|s| s.ring.open() > 0);
        open.map(|s| s.ring.get(s.ring.emit).first).min().map_or(self.now, |first| first.min(self.now))
    }

    /// Numbers of a stream's journeys that are open now.
    pub fn open_of(&self, stream: StreamId) -> Range<u64> {
        self.streams.get(usize::from(stream)).map_or(0..0, |s| s.ring.emit..s.ring.head)
    }

    /// The streams, and the joined packets of senders that are not followed.
    fn all_streams(&self) -> impl Iterator<Item = &Stream> {
        let others = self.senders.iter().flat_map(|senders| &senders.others).map(|other| &other.joined);
        self.streams.iter().chain(others)
    }

    /// The journeys that are open now, each stream's in order, and those of senders that are not followed.
    pub fn open_journeys(&self) -> impl Iterator<Item = Journey<'_>> {
        self.all_streams().flat_map(|s| (s.ring.emit..s.ring.head).map(|number| s.ring.journey(s.id, number, s.reader)))
    }

    /// When an open journey began: its first sighting that came.
    pub fn began(&self, stream: StreamId, number: u64) -> Option<Ns> {
        let stream = self.streams.get(usize::from(stream))?;
        (stream.ring.emit..stream.ring.head).contains(&number).then(|| stream.ring.get(number).first)
    }

    /// An open journey that has all expected points and would be handed out now if no earlier one were open.
    pub fn whole(&self, stream: StreamId, number: u64) -> Option<Journey<'_>> {
        let stream = self.streams.get(usize::from(stream))?;
        let ring = &stream.ring;
        let is_whole = (ring.emit..ring.head).contains(&number)
            && stream.expected != 0
            && ring.get(number).seen & stream.expected == stream.expected
            && self.now >= self.hold.until
            && self.now.saturating_sub(ring.last_time(number)) >= self.options.linger;
        is_whole.then(|| ring.journey(stream.id, number, stream.reader))
    }

    /// Memory that the rings take.
    pub fn bytes(&self) -> usize {
        self.all_streams().map(|s| s.ring.bytes() + s.at.len() * size_of::<Position>()).sum()
    }

    /// Takes a sighting. Journeys are handed out here only if memory is short.
    pub fn push(&mut self, s: &Sighting, sink: &mut impl FnMut(&Journey)) {
        let (point, stream) = (usize::from(s.point), usize::from(s.stream));
        if stream >= self.streams.len() || point >= MAX_POINTS {
            self.refused += 1;
            return;
        }
        if point >= self.stride {
            self.widen(point);
        }
        if self.streams[stream].unusual >> point & 1 == 1 && self.is_of_another(s) {
            return;
        }
        self.join(s, sink);
    }

    /// Looks closer at a sighting at a point that is new to its stream, or where another sender's packets pass; takes it if it is of
    /// such a packet.
    #[cold]
    fn is_of_another(&mut self, s: &Sighting) -> bool {
        let (at, bit) = (usize::from(s.stream), 1_u64 << s.point);
        if self.senders[at].seen & bit == 0 {
            self.senders[at].seen |= bit;
            self.divide(at);
        }
        let Some(other) = self.senders[at].others.iter().position(|other| other.points & bit != 0) else {
            return false;
        };
        std::mem::swap(&mut self.streams[at], &mut self.senders[at].others[other].joined);
        self.join(s, &mut |_: &Journey| {});
        std::mem::swap(&mut self.streams[at], &mut self.senders[at].others[other].joined);
        true
    }

    /// Divides the points of a stream by its senders.
    fn divide(&mut self, at: usize) {
        let (rule, stride, options) = (self.rules[at], self.stride, self.options);
        if !options.separate_senders {
            return;
        }
        let (senders, stream) = (&mut self.senders[at], &mut self.streams[at]);
        let before = senders.others.len();
        let gone = senders.divide(&self.points, stream, || Stream::new(at as StreamId, rule, stride, &options));
        stream.unusual = !senders.seen | senders.of_others();
        let new = senders.others.len() + gone.len() - before;
        (self.slots, self.heads) = (self.slots + new * MIN_SLOTS, self.heads + new * MIN_SLOTS);
        for ring in gone.iter().map(|other| &other.joined.ring) {
            (self.slots, self.heads) = (self.slots - ring.slots(), self.heads - ring.head_slots());
        }
    }

    fn join(&mut self, s: &Sighting, sink: &mut impl FnMut(&Journey)) {
        let (point, bit) = (usize::from(s.point), 1_u64 << s.point);
        let drop = self.drops & bit != 0;
        let stream = &mut self.streams[usize::from(s.stream)];
        stream.totals.sightings += 1;
        match stream.find_journey(s, bit, drop, &self.options) {
            MatchResult::Attach(number) => stream.attach(number, s, drop, self.options.reorder),
            MatchResult::Duplicate(number) => stream.repeat(number, s.point),
            MatchResult::Late(number) => {
                if drop && stream.ring.get(number).seen & bit != 0 {
                    return;
                }
                stream.totals.late += 1;
                if !drop && stream.expected != 0 && stream.expected & bit == 0 {
                    self.hold.late += 1;
                }
                if !drop && stream.ring.get(number).in_place {
                    stream.at[point].moved(number, s.key, self.options.reorder);
                }
            }
            MatchResult::Stale(steps) => {
                stream.totals.late += 1;
                stream.at[point].stepped(steps, s.key);
            }
            MatchResult::New => {
                self.make_room(usize::from(s.stream), s.t, sink);
                self.streams[usize::from(s.stream)].begin(s, drop, &self.options);
            }
        }
    }

    /// Takes the sources' watermark: no sighting older than `now` will come. Hands out the finished journeys.
    pub fn advance(&mut self, now: Ns, sink: &mut impl FnMut(&Journey)) {
        self.now = self.now.max(now);
        if self.hold.late >= HOLD_AFTER && self.now >= self.hold.again {
            let window = self.options.window;
            self.hold.pause =
                self.hold.pause.saturating_mul(2).clamp(window.saturating_mul(10), window.saturating_mul(600));
            self.hold.until = self.now.saturating_add(window.saturating_mul(2));
            self.hold.again = self.now.saturating_add(self.hold.pause);
            self.hold.late = 0;
        }
        let hold = self.now < self.hold.until;
        for stream in &mut self.streams {
            stream.emit_ready(self.now, hold, &self.options, sink);
        }
        for other in self.senders.iter_mut().flat_map(|senders| &mut senders.others) {
            other.joined.emit_ready(self.now, hold, &self.options, &mut |_: &Journey| {});
        }
    }

    /// Ends a recording: hands out the journeys that are finished at `now`. Journeys that lack expected points but are not overdue are
    /// not handed out, for nobody can say that they are lost; they are counted as unfinished.
    pub fn finish(&mut self, now: Ns, sink: &mut impl FnMut(&Journey)) {
        self.now = self.now.max(now);
        let options = Options { linger: 0, ..self.options };
        for stream in &mut self.streams {
            while stream.ring.emit < stream.ring.head {
                if stream.expected == 0 || stream.is_ready(self.now, false, &options) {
                    stream.emit(sink);
                } else {
                    stream.totals.unfinished += 1;
                    stream.ring.emit += 1;
                }
            }
        }
    }

    /// Hands out all open journeys, whatever they lack.
    pub fn flush(&mut self, sink: &mut impl FnMut(&Journey)) {
        for stream in &mut self.streams {
            while stream.ring.emit < stream.ring.head {
                stream.emit(sink);
            }
        }
    }

    fn widen(&mut self, point: usize) {
        self.stride = (point + 1).next_multiple_of(8);
        let others = self.senders.iter_mut().flat_map(|senders| &mut senders.others).map(|other| &mut other.joined);
        for stream in self.streams.iter_mut().chain(others) {
            stream.ring.resize_rows(self.stride, stream.ring.slots());
            stream.at.resize(self.stride, Position::default());
            stream.received.resize(self.stride, Received::default());
        }
    }

    /// Makes room for one more journey of a stream, that begins at `t`.
    fn make_room(&mut self, stream: usize, t: Ns, sink: &mut impl FnMut(&Journey)) {
        let most = self.options.max_open.min(MAX_BYTES / row_bytes(self.stride));
        let stream = &mut self.streams[stream];
        let slots = stream.ring.slots();
        if stream.ring.open() == slots as u64 {
            if self.slots + slots <= most {
                stream.ring.resize_rows(self.stride, 2 * slots);
                self.slots += slots;
            } else {
                stream.emit_ready(self.now, false, &self.options, sink);
                if stream.ring.open() == slots as u64 {
                    stream.totals.evicted += 1;
                    stream.emit(sink);
                }
            }
        }
        let ring = &mut stream.ring;
        let heads = ring.head_slots();
        if ring.head - ring.tail < heads as u64 {
            return;
        }
        // Twice as many heads as open journeys always, more while they are worth keeping and memory allows.
        let affordable = self.heads + heads <= HEADS_PER_OPEN * most;
        let worth_keeping = t.saturating_sub(ring.get(ring.tail).first) <= self.options.retain;
        if heads < 2 * ring.slots() || ring.tail == ring.emit || (worth_keeping && affordable) {
            ring.resize_heads(2 * heads);
            self.heads += heads;
        } else {
            ring.tail += 1;
        }
    }
}
