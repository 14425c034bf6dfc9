//! Joins sightings into journeys, in a stream and in bounded memory.
//!
//! The caller pushes sightings of all machines, merged roughly by time (a disorder of the clocks' error is normal), and
//! now and then says how far time has come. Journeys come back in order of their first sighting, each exactly once.
//! Which journey a sighting belongs to is decided in `matching`; docs/journeys.md explains it.

use crate::journey::{bits, Journey, MAX_POINTS};
use crate::matching::{self, MatchQuery, MatchResult, Meant, Position};
use crate::ring::{row_bytes, Head, Ring, MIN_SLOTS};
use crate::schedule::Schedule;
use latpath_model::{KeyRule, Ns, PointInfo, PointKind, Sighting, StreamId};
use latpath_protocols::sequence::{Sequence, Standing};
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
    /// Open journeys of all streams together; beyond, the oldest are closed and counted as evicted. There are fewer where journeys have
    /// so many points that all open ones would take more than 16 MiB.
    pub max_open: usize,
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
        }
    }
}

/// What was counted of one stream. Of what is in no journey, this is the only trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub sightings: u64,
    /// Journeys handed out.
    pub journeys: u64,
    /// Sightings at a point that had seen the packet already, also those after the journey was handed out.
    pub duplicates: u64,
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
}

/// See the module's text.
pub struct Joiner {
    options: Options,
    streams: Vec<Stream>,
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

#[derive(Default)]
struct Stream {
    id: StreamId,
    ring: Ring,
    expected: u64,
    at: Vec<Position>,
    sequence: Option<Sequence>,
    schedule: Schedule,
    /// How far "near" reaches: R, or half a cycle of the keys.
    near: u64,
    /// The point where most packets are first seen, and how sure that is.
    lead: Option<(u16, u32)>,
    notes: Vec<u64>,
    totals: Totals,
}

/// Memory of open journeys' sightings.
const MAX_BYTES: usize = 16 << 20;
/// Votes by which a point can be ahead as the lead.
const LEAD_SURE: u32 = 1024;
/// Heads kept for each journey that may be open.
const HEADS_PER_OPEN: usize = 4;
/// Drop notes that are distinguished by how common they are.
const MAX_NOTES: usize = 4096;
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
        self.streams.push(Stream {
            id: self.streams.len() as StreamId,
            ring: Ring::new(self.stride),
            at: vec![Position::default(); self.stride],
            sequence: Sequence::new(rule, self.options.reorder),
            near: self.options.reorder,
            ..Stream::default()
        });
        self.slots += MIN_SLOTS;
        self.heads += MIN_SLOTS;
    }

    /// Takes the points that there are; call it again whenever points were found.
    pub fn set_points(&mut self, points: &[PointInfo]) {
        let drop = |(_, info): &(usize, &PointInfo)| info.point.kind == PointKind::Drop;
        self.drops = points.iter().enumerate().take(MAX_POINTS).filter(drop).fold(0, |mask, (id, _)| mask | 1 << id);
    }

    /// Points that make a journey of a stream complete, as bits `1 << PointId`; 0 while the route is unknown.
    pub fn set_expected(&mut self, stream: StreamId, mask: u64) {
        if let Some(stream) = self.streams.get_mut(usize::from(stream)) {
            stream.expected = mask;
        }
    }

    pub fn totals(&self, stream: StreamId) -> Totals {
        let Some(stream) = self.streams.get(usize::from(stream)) else { return Totals::default() };
        let (never_seen, restarts) = stream.sequence.as_ref().map_or((0, 0), |s| (s.never_seen(), s.restarts()));
        Totals { never_seen, restarts, ..stream.totals }
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

    /// The journeys that are open now, each stream's in order.
    pub fn open_journeys(&self) -> impl Iterator<Item = Journey<'_>> {
        self.streams.iter().flat_map(|s| (s.ring.emit..s.ring.head).map(|number| s.ring.journey(s.id, number)))
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
        is_whole.then(|| ring.journey(stream.id, number))
    }

    /// Memory that the rings take.
    pub fn bytes(&self) -> usize {
        self.streams.iter().map(|s| s.ring.bytes() + s.at.len() * size_of::<Position>()).sum()
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
        let bit = 1_u64 << point;
        let drop = self.drops & bit != 0;
        let stream = &mut self.streams[stream];
        stream.totals.sightings += 1;
        match stream.find_journey(s, bit, drop, &self.options) {
            MatchResult::Attach(number) => stream.attach(number, s, drop, self.options.reorder),
            MatchResult::Duplicate(number) => {
                stream.totals.duplicates += 1;
                if number >= stream.ring.emit {
                    let head = stream.ring.get_mut(number);
                    head.duplicates = head.duplicates.saturating_add(1);
                }
            }
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

    /// Says that no sighting older than `now` will come (the sources' watermark), and hands out what is ready.
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
    }

    /// Ends a recording: hands out what is ready at `now`. Journeys that lack expected points but are not overdue are
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
        for stream in &mut self.streams {
            stream.ring.resize_rows(self.stride, stream.ring.slots());
            stream.at.resize(self.stride, Position::default());
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

impl Stream {
    fn find_journey(&mut self, s: &Sighting, bit: u64, drop: bool, options: &Options) -> MatchResult {
        let meant = if drop { self.meant_by_drop(s.key, options) } else { Meant::default() };
        let q = MatchQuery {
            key: s.key,
            t: s.t,
            bit: if drop { 0 } else { bit },
            window: options.window,
            retain: options.retain,
            reorder: options.reorder,
            near: self.near,
            leads: (drop && self.sequence.is_none()) || self.lead.is_some_and(|(lead, _)| lead == s.point),
            meant,
        };
        let at = &mut self.at[usize::from(s.point)];
        let (result, cut) = match &self.sequence {
            Some(sequence) if !drop => matching::by_sequence(&self.ring, sequence, at, &q),
            _ => matching::by_newest(&self.ring, at, &q),
        };
        self.totals.crowded += u64::from(cut);
        if drop && result == MatchResult::New && self.is_forgotten(s, options) {
            return MatchResult::Stale(0);
        }
        result
    }

    /// Drops happen at several places of the route, so their order says nothing; and a clone of a packet may be freed before or
    /// after other points see it. Where its key stands in the sequence says which cycle the packet is of.
    fn meant_by_drop(&self, key: u32, options: &Options) -> Meant {
        let Some(sequence) = &self.sequence else { return Meant::default() };
        let (head, reorder) = (self.ring.head, options.reorder);
        // What all points have passed is of an earlier cycle, if cycles cannot be distinguished or the key may well be the next one.
        let passed = || self.at.iter().filter_map(|at| at.last).min().unwrap_or(0).saturating_sub(reorder);
        match (sequence.stands(key), sequence.cycle()) {
            (Standing::Behind(behind), Some(cycle)) => Meant::from(head.saturating_sub(behind + cycle / 2)),
            (Standing::Behind(behind), None) => {
                Meant { just_now: options.linger, ..Meant::from(head.saturating_sub(behind + reorder / 2)) }
            }
            (Standing::Next | Standing::Unknown, None) => Meant { just_now: options.linger, ..Meant::from(passed()) },
            (Standing::Next | Standing::Unknown, Some(_)) => Meant::from(passed()),
            (Standing::BeforeWrap, _) => Meant::default(),
        }
    }

    /// Whether a drop that fits no journey is of a packet whose journey is not kept any more.
    fn is_forgotten(&self, s: &Sighting, options: &Options) -> bool {
        let Some(sequence) = self.sequence.as_ref().filter(|sequence| sequence.cycle().is_some()) else { return false };
        let Standing::Behind(behind) = sequence.stands(s.key) else { return false };
        match self.ring.head.checked_sub(1 + behind) {
            Some(number) if number >= self.ring.tail => {
                s.t.saturating_sub(self.ring.get(number).first) > options.retain
            }
            _ => self.ring.tail > 0,
        }
    }

    fn attach(&mut self, number: u64, s: &Sighting, drop: bool, reorder: u64) {
        if drop {
            return self.note(number, s);
        }
        let head = *self.ring.get(number);
        if !head.placed {
            self.place(number, s, reorder);
        } else if head.in_place {
            self.at[usize::from(s.point)].moved(number, s.key, reorder);
        } else {
            self.at[usize::from(s.point)].saw_out_of_place(number);
        }
        let by_lead = self.ring.get(number).by_lead;
        if by_lead {
            let at = &mut self.at[usize::from(s.point)];
            let greatest = at.greatest.map_or(number, |g| g.max(number));
            self.ring.get_mut(number).out_of_order |= number < greatest;
            at.greatest = Some(greatest);
        } else if self.lead.is_some_and(|(lead, _)| lead == s.point) {
            bits(head.seen).for_each(|point| self.at[point].confirmed());
        }
        self.ring.mark(number, s);
    }

    /// A new journey, first seen here.
    fn begin(&mut self, s: &Sighting, drop: bool, options: &Options) {
        let reorder = options.reorder;
        let number = self.ring.add(Head { first: s.t, key: s.key, ..Head::default() });
        if !drop {
            self.place(number, s, reorder);
        }
        if let Some(sequence) = &mut self.sequence {
            let by_lead = self.ring.get(number).by_lead;
            let is_next = by_lead && sequence.lead_next(s.key, s.t);
            let missing = (!is_next).then(|| sequence.never_seen());
            if drop {
                sequence.dropped(s.key, s.t);
            } else if !by_lead {
                sequence.follow(s.key, s.t);
            } else if is_next || sequence.lead(s.key, s.t) {
                let steps = self.schedule.newest().and_then(|newest| sequence.distance(newest, s.key));
                let late = self.schedule.late_by(s.key, s.t, steps);
                self.totals.behind_schedule += u64::from(late > options.late);
                self.totals.behind_schedule_max_ns = self.totals.behind_schedule_max_ns.max(late);
            }
            if let Some(missing) = missing {
                match sequence.never_seen().checked_sub(missing) {
                    Some(0) => {}
                    Some(more) => self.ring.note_gap(more),
                    None => self.ring.fill_gap(s.key, reorder, |from, to, most| {
                        sequence.distance(from, to).is_some_and(|packets| (1..=most).contains(&packets))
                    }),
                }
                self.near = sequence.cycle().map_or(reorder, |cycle| reorder.min(cycle / 2));
            }
        }
        if drop {
            return self.note(number, s);
        }
        if self.ring.get(number).by_lead {
            self.at[usize::from(s.point)].greatest = Some(number);
        }
        self.ring.mark(number, s);
    }

    /// The first sighting that is no drop says where the journey stands in the stream.
    fn place(&mut self, number: u64, s: &Sighting, reorder: u64) {
        self.vote(s.point);
        let at = &mut self.at[usize::from(s.point)];
        let in_place = at.is_at_head(number, reorder);
        let by_lead = in_place && self.lead.is_some_and(|(lead, _)| lead == s.point);
        if in_place {
            at.moved(number, s.key, reorder);
        } else {
            at.saw_out_of_place(number);
        }
        let head = self.ring.get_mut(number);
        (head.placed, head.in_place, head.by_lead) = (true, in_place, by_lead);
    }

    /// A drop point saw a journey. Bridges free clones of packets that go on, so a packet may be dropped often; of several
    /// notes the rarer one says more.
    fn note(&mut self, number: u64, s: &Sighting) {
        if self.ring.get(number).seen >> s.point & 1 == 0 {
            self.ring.mark(number, s);
        }
        let index = usize::from(s.note);
        if index == 0 {
            return;
        }
        if index < MAX_NOTES {
            if index >= self.notes.len() {
                self.notes.resize(index + 1, 0);
            }
            self.notes[index] += 1;
        }
        let count = |note: u16| self.notes.get(usize::from(note)).copied().unwrap_or(0);
        let old = self.ring.get(number).drop_note;
        if old == 0 || count(s.note) < count(old) {
            self.ring.get_mut(number).drop_note = s.note;
        }
    }

    /// Majority vote with a memory of [`LEAD_SURE`] journeys.
    fn vote(&mut self, point: u16) {
        self.lead = match self.lead {
            Some((lead, sure)) if lead == point => Some((lead, (sure + 1).min(LEAD_SURE))),
            Some((lead, sure)) if sure > 1 => Some((lead, sure - 1)),
            _ => Some((point, 1)),
        };
    }

    fn is_ready(&self, now: Ns, hold: bool, options: &Options) -> bool {
        let (number, head) = (self.ring.emit, self.ring.get(self.ring.emit));
        if now.saturating_sub(head.first) > options.window {
            return true;
        }
        if self.expected == 0 || hold {
            return false;
        }
        let has_passed = |point: usize| {
            let passed = self.at.get(point).and_then(|at| at.passed);
            passed.is_some_and(|passed| passed > number + options.reorder)
        };
        bits(self.expected & !head.seen).all(has_passed)
            && now.saturating_sub(self.ring.last_time(number)) >= options.linger
    }

    fn emit_ready(&mut self, now: Ns, hold: bool, options: &Options, sink: &mut impl FnMut(&Journey)) {
        while self.ring.emit < self.ring.head && self.is_ready(now, hold, options) {
            self.emit(sink);
        }
    }

    fn emit(&mut self, sink: &mut impl FnMut(&Journey)) {
        sink(&self.ring.journey(self.id, self.ring.emit));
        self.ring.emit += 1;
        self.totals.journeys += 1;
    }
}
