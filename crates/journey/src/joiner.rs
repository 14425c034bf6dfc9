//! Joins sightings into journeys, as a stream and in bounded memory.
//!
//! The caller pushes sightings of all machines, merged roughly by time (they may be out of order by the clocks'
//! errors), and regularly passes the time up to which all sightings have arrived. Journeys are handed out in order of
//! their first sighting, each exactly once. `matching` decides which journey a sighting belongs to; docs/journeys.md
//! has the explanation.

use crate::copies;
use crate::journey::{Journey, MAX_POINTS};
use crate::matching::{MatchResult, Position};
use crate::ring::{row_bytes, MIN_SLOTS};
use crate::route::arrival;
use crate::senders::Senders;
use crate::stream::{Received, Stream};
use latpath_model::{KeyRule, Ns, PointId, PointInfo, Sighting, StreamId};
use latpath_protocols::sequence::Sequence;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Options for closing journeys.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time after its first sighting at which a journey is closed, complete or not, ns.
    pub window: Ns,
    /// R: maximum reordering of a stream between two points, packets.
    pub reorder: u64,
    /// Time for which a journey with all expected points stays open for duplicates and unexpected points, ns.
    pub linger: Ns,
    /// Time after its first sighting until which a closed journey is remembered, to recognise late sightings, ns.
    pub retain: Ns,
    /// Lateness at the first point beyond which a packet counts as behind its schedule, ns.
    pub late: Ns,
    /// Maximum number of open journeys of all streams; beyond, the oldest are closed and counted as evicted. The limit
    /// is lower if journeys have many points, so that open journeys take at most 16 MiB.
    pub max_open: usize,
    /// Separates packets of different senders if the points prove that there are several. Only valid if all points are
    /// observed: a missing point may connect them.
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

/// Counters of one stream. Sightings that belong to no journey are counted only here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Sightings.
    pub sightings: u64,
    /// Journeys handed out.
    pub journeys: u64,
    /// Packets that arrived again at the last point of the route, also after their journeys were handed out: the
    /// duplicates that its application counts.
    pub duplicates: u64,
    /// Repeated sightings at any point; runs of earlier versions store these as `duplicates`.
    pub repeated: u64,
    /// Sightings not assigned to a journey, because theirs was closed or is no longer kept.
    pub late: u64,
    /// Journeys closed early because too many were open.
    pub evicted: u64,
    /// Incomplete journeys that were not overdue at the end of the recording, dropped by [`Joiner::finish`].
    pub unfinished: u64,
    /// Lower bound of the number of sequence numbers that no point saw.
    pub never_seen: u64,
    /// Jumps of the sequence that look like a restart of the sender.
    pub restarts: u64,
    /// Sightings for which not all journeys with the same key could be examined.
    pub crowded: u64,
    /// Packets that reached the first point later than [`Options::late`] after their due time, by their numbers.
    pub behind_schedule: u64,
    /// Maximum lateness at the first point, including lateness below [`Options::late`], ns.
    pub behind_schedule_max_ns: Ns,
    /// Sightings of packets of another sender with the same name, at points that the followed sender's packets do not
    /// reach: in no journey, and not included in `sightings`.
    pub other_senders: u64,
}

/// Joins sightings into journeys; the module documentation has the details.
pub struct Joiner {
    options: Options,
    streams: Vec<Stream>,
    /// Key rule and senders of each stream.
    rules: Vec<KeyRule>,
    senders: Vec<Senders>,
    points: Vec<PointInfo>,
    /// Capacity of a row of times, points.
    stride: usize,
    drops: u64,
    /// The watermark that the caller passed last.
    now: Ns,
    /// Capacity for open journeys and for heads, over all streams.
    slots: usize,
    heads: usize,
    /// Number of sightings with an invalid stream or point.
    refused: u64,
    hold: Hold,
}

/// After repeated late sightings at unexpected points, all journeys temporarily stay open for the whole window, so that
/// the points can be found. This costs memory, so a pause follows.
#[derive(Default)]
struct Hold {
    late: u32,
    until: Ns,
    again: Ns,
    pause: Ns,
}

/// Maximum memory of open journeys' sightings, bytes.
const MAX_BYTES: usize = 16 << 20;
/// Heads per open journey.
const HEADS_PER_OPEN: usize = 4;
/// Number of late sightings at unexpected points after which journeys are kept open longer.
const HOLD_AFTER: u32 = 32;

impl Joiner {
    /// A joiner for streams with these key rules; a stream's id is its index.
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

    /// Adds a stream with this key rule; it gets the next id.
    pub fn add_stream(&mut self, rule: KeyRule) {
        let mut stream = Stream::new(self.streams.len() as StreamId, rule, self.stride, &self.options);
        stream.copies = copies::of_points(&self.points);
        self.streams.push(stream);
        self.rules.push(rule);
        self.senders.push(Senders::default());
        self.slots += MIN_SLOTS;
        self.heads += MIN_SLOTS;
    }

    /// Sets the known points; call it again whenever points are found.
    pub fn set_points(&mut self, points: &[PointInfo]) {
        let drop = |(_, info): &(usize, &PointInfo)| info.point.kind.is_drop();
        self.drops = points.iter().enumerate().take(MAX_POINTS).filter(drop).fold(0, |mask, (id, _)| mask | 1 << id);
        self.points = points.to_vec();
        let copies = copies::of_points(points);
        if let Some(last) = copies.iter().map(|at| usize::from(at.first.max(at.second))).max() {
            if last >= self.stride {
                self.widen(last);
            }
        }
        self.streams.iter_mut().for_each(|stream| stream.copies.clone_from(&copies));
        for at in 0..self.streams.len() {
            if self.senders[at].seen != 0 {
                self.divide(at);
            }
        }
    }

    /// Sets the route of a stream: a journey with all its points is complete, and the point of arrival is the reader at
    /// which duplicates and reordered packets are counted. Empty while unknown.
    pub fn set_route(&mut self, stream: StreamId, route: &[PointId]) {
        self.set_expected(stream, route.iter().fold(0, |mask, p| mask | 1 << p));
        if let Some(stream) = self.streams.get_mut(usize::from(stream)) {
            stream.reader = arrival(route, &self.points);
        }
    }

    /// Sets the points that make a journey of a stream complete, as bits `1 << PointId`; 0 while the route is unknown.
    pub fn set_expected(&mut self, stream: StreamId, mask: u64) {
        let at = usize::from(stream);
        let Some(senders) = self.senders.get_mut(at) else { return };
        senders.route = mask;
        self.divide(at);
        self.streams[at].expected = mask;
    }

    /// The senders of a stream that are not followed: their points, as bits `1 << PointId`, and number of sightings.
    pub fn other_senders(&self, stream: StreamId) -> Vec<(u64, u64)> {
        let of = |senders: &Senders| senders.others.iter().map(|o| (o.points, o.joined.totals.sightings)).collect();
        self.senders.get(usize::from(stream)).map_or_else(Vec::new, of)
    }

    /// The counters of a stream.
    pub fn totals(&self, stream_id: StreamId) -> Totals {
        let Some(stream) = self.streams.get(usize::from(stream_id)) else { return Totals::default() };
        let (never_seen, restarts) = stream.sequence.as_ref().map_or((0, 0), |s| (s.never_seen(), s.restarts()));
        let other_senders = self.senders[usize::from(stream_id)].sightings_of_others();
        Totals { never_seen, restarts, other_senders, duplicates: stream.duplicates(), ..stream.totals }
    }

    /// The learned sequence of a stream's keys: step and wrap.
    pub fn sequence(&self, stream: StreamId) -> Option<&Sequence> {
        self.streams.get(usize::from(stream))?.sequence.as_ref()
    }

    /// Number of sightings with an invalid stream or point.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of open journeys.
    pub fn open(&self) -> u64 {
        self.streams.iter().map(|s| s.ring.open()).sum()
    }

    /// Time of the first sighting of the oldest open journey.
    pub fn oldest(&self) -> Option<Ns> {
        let open = self.streams.iter().filter(|s| s.ring.open() > 0);
        open.map(|s| s.ring.get(s.ring.emit).first).min()
    }

    /// Time before which no journey is open any more: all journeys that began earlier have been handed out.
    pub fn reached(&self) -> Ns {
        self.oldest().map_or(self.now, |first| first.min(self.now))
    }

    /// Numbers of a stream's open journeys.
    pub fn open_of(&self, stream: StreamId) -> Range<u64> {
        self.streams.get(usize::from(stream)).map_or(0..0, |s| s.ring.emit..s.ring.head)
    }

    /// The streams, and the joined packets of senders that are not followed.
    fn all_streams(&self) -> impl Iterator<Item = &Stream> {
        let others = self.senders.iter().flat_map(|senders| &senders.others).map(|other| &other.joined);
        self.streams.iter().chain(others)
    }

    /// All open journeys, each stream's in order, including those of senders that are not followed.
    pub fn open_journeys(&self) -> impl Iterator<Item = Journey<'_>> {
        self.all_streams().flat_map(|s| (s.ring.emit..s.ring.head).map(|number| s.ring.journey(s.id, number, s.reader)))
    }

    /// Time of the sighting that began an open journey, i.e. that arrived first.
    pub fn began(&self, stream: StreamId, number: u64) -> Option<Ns> {
        let stream = self.streams.get(usize::from(stream))?;
        (stream.ring.emit..stream.ring.head).contains(&number).then(|| stream.ring.get(number).first)
    }

    /// Returns an open journey that is complete and is only held back because earlier ones are still open.
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

    /// Memory of the rings, bytes.
    pub fn bytes(&self) -> usize {
        self.all_streams().map(|s| s.ring.bytes() + s.at.len() * size_of::<Position>()).sum()
    }

    /// Adds a sighting. Hands out journeys only if memory is short.
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

    /// Examines a sighting at a point that is new to its stream, or that another sender's packets pass. Returns true,
    /// and counts the sighting, if it belongs to another sender.
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

    /// Assigns the points of a stream to its senders.
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

    /// Sets the watermark: no sighting older than `now` will arrive. Hands out the finished journeys.
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

    /// Ends a recording: hands out the journeys that are finished at `now`. Incomplete journeys that are not overdue
    /// are counted as unfinished, because their packets may not be lost.
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

    /// Hands out all open journeys, complete or not.
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

    /// Makes room for a new journey of a stream that begins at `t`.
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
        // Keep at least twice as many heads as open journeys, and more while they are worth keeping and memory allows.
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
