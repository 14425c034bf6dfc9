//! The journeys of one stream and sender: which journey a sighting joins, and when a journey is closed.

use crate::copies::CopyPoints;
use crate::joiner::{Options, Totals};
use crate::journey::{bits, Journey};
use crate::matching::{self, CandidateFilter, MatchQuery, MatchResult, Position};
use crate::ring::{Head, Ring};
use crate::schedule::Schedule;
use latpath_model::{KeyRule, Ns, PointId, Sighting, StreamId};
use latpath_protocols::sequence::{Placement, Sequence};

/// Maximum number of votes by which the lead is ahead of other points.
const LEAD_SURE: u32 = 1024;
/// Maximum number of drop notes whose frequency is counted.
const MAX_NOTES: usize = 4096;

/// Counts of the packets that reach a point, as an application there would keep them.
#[derive(Clone, Default)]
pub(crate) struct Received {
    duplicates: u64,
    /// Sequence of the numbers received, for keys with an order.
    order: Option<Box<Sequence>>,
    /// For keys without an order: the greatest number of a received journey that was first seen at the lead.
    greatest: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Stream {
    pub id: StreamId,
    pub ring: Ring,
    pub expected: u64,
    /// The last point of the route, if known.
    pub reader: Option<PointId>,
    /// Counts of received packets, by point.
    pub received: Vec<Received>,
    /// An empty sequence to clone for each point; `None` for keys without an order.
    blank: Option<Sequence>,
    pub at: Vec<Position>,
    pub sequence: Option<Sequence>,
    pub schedule: Schedule,
    /// Distance that counts as near: R, or half a cycle of the keys if that is less.
    pub near: u64,
    /// The lead, i.e. the point where most packets are first seen, and by how many votes it is ahead.
    pub lead: Option<(u16, u32)>,
    pub notes: Vec<u64>,
    pub totals: Totals,
    /// The points of redundant networks.
    pub copies: Vec<CopyPoints>,
    /// Points whose sightings need examination: those that have not seen the stream yet, and those of another sender.
    pub unusual: u64,
}

impl Stream {
    pub fn new(id: StreamId, rule: KeyRule, stride: usize, options: &Options) -> Self {
        Self {
            id,
            ring: Ring::new(stride),
            at: vec![Position::default(); stride],
            received: vec![Received::default(); stride],
            sequence: Sequence::new(rule, options.reorder),
            blank: Sequence::new(rule, options.reorder),
            near: options.reorder,
            unusual: if options.separate_senders { u64::MAX } else { 0 },
            ..Self::default()
        }
    }

    pub fn find_journey(&mut self, s: &Sighting, bit: u64, drop: bool, options: &Options) -> MatchResult {
        let meant = if drop { self.meant_by_drop(s.key, options) } else { CandidateFilter::default() };
        let q = MatchQuery {
            key: s.key,
            t: s.t,
            bit: if drop { 0 } else { bit },
            window: options.window,
            retain: options.retain,
            reorder: options.reorder,
            near: self.near,
            leads: (drop && self.sequence.is_none()) || self.leads(s.point),
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

    /// The journeys that a drop can belong to. Drops happen at several places of the route, so their order is
    /// meaningless; a clone may be freed before or after other points see the packet. The key's place in the sequence
    /// gives the packet's cycle.
    fn meant_by_drop(&self, key: u32, options: &Options) -> CandidateFilter {
        let Some(sequence) = &self.sequence else { return CandidateFilter::default() };
        let (head, reorder) = (self.ring.head, options.reorder);
        // If the key may be the next one, or cycles cannot be distinguished, a journey with this key that all points
        // have passed belongs to an earlier cycle.
        let passed = || self.at.iter().filter_map(|at| at.last).min().unwrap_or(0).saturating_sub(reorder);
        match (sequence.placement(key), sequence.cycle()) {
            (Placement::Behind(behind), Some(cycle)) => CandidateFilter::from(head.saturating_sub(behind + cycle / 2)),
            (Placement::Behind(behind), None) => CandidateFilter {
                just_now: options.linger,
                ..CandidateFilter::from(head.saturating_sub(behind + reorder / 2))
            },
            (Placement::Next | Placement::Unknown, None) => {
                CandidateFilter { just_now: options.linger, ..CandidateFilter::from(passed()) }
            }
            (Placement::Next | Placement::Unknown, Some(_)) => CandidateFilter::from(passed()),
            (Placement::BeforeWrap, _) => CandidateFilter::default(),
        }
    }

    /// Whether a drop without a journey belongs to a packet whose journey is no longer kept.
    fn is_forgotten(&self, s: &Sighting, options: &Options) -> bool {
        let Some(sequence) = self.sequence.as_ref().filter(|sequence| sequence.cycle().is_some()) else { return false };
        let Placement::Behind(behind) = sequence.placement(s.key) else { return false };
        match self.ring.head.checked_sub(1 + behind) {
            Some(number) if number >= self.ring.tail => {
                s.t.saturating_sub(self.ring.get(number).first) > options.retain
            }
            _ => self.ring.tail > 0,
        }
    }

    pub fn attach(&mut self, number: u64, s: &Sighting, drop: bool, reorder: u64) {
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
        if !self.ring.get(number).by_lead && self.leads(s.point) {
            bits(head.seen).for_each(|point| self.at[point].confirmed());
        }
        self.take(number, s, reorder);
    }

    /// Adds a sighting, other than a drop, to an open journey that the point has not seen.
    fn take(&mut self, number: u64, s: &Sighting, reorder: u64) {
        self.ring.mark(number, s);
        let mut arrived = s.point;
        if let Some(copies) = self.copies_at(s.point).copied() {
            // The order of packets is that of their first copies, whichever LAN brought them.
            if !self.ring.mark_copies(number, &copies) {
                return;
            }
            arrived = copies.first;
            if self.ring.get(number).in_place {
                self.at[usize::from(arrived)].moved(number, s.key, reorder);
            }
        }
        let is_read = self.reader.is_none_or(|reader| reader == arrived);
        if is_read && self.is_overtaken(number, &Sighting { point: arrived, ..*s }) {
            self.ring.overtake(number, arrived);
        }
    }

    /// Whether a packet reaches a point after a later one, as an application there would count it: by the numbers that
    /// it has received, or, for keys without order, by the first sightings.
    fn is_overtaken(&mut self, number: u64, s: &Sighting) -> bool {
        let received = &mut self.received[usize::from(s.point)];
        if let (Some(blank), Some(sequence)) = (&self.blank, &self.sequence) {
            let order = received.order.get_or_insert_with(|| Box::new(blank.clone()));
            order.adopt(sequence);
            return !order.lead_next(s.key, s.t) && !order.lead(s.key, s.t);
        }
        let is_in_order = received.greatest.is_none_or(|greatest| number > greatest);
        if self.ring.get(number).by_lead && is_in_order {
            received.greatest = Some(number);
        }
        self.ring.get(number).by_lead && !is_in_order
    }

    /// Counts a repeated sighting of a journey at a point.
    pub fn repeat(&mut self, number: u64, point: PointId) {
        self.totals.repeated += 1;
        self.received[usize::from(point)].duplicates += 1;
        if number >= self.ring.emit {
            self.ring.repeat(number, point);
        }
    }

    /// Number of duplicate packets at the reader; without a reader, at the point with the most.
    pub fn duplicates(&self) -> u64 {
        let of = |reader: PointId| self.received.get(usize::from(reader)).map_or(0, |received| received.duplicates);
        let most = || self.received.iter().map(|received| received.duplicates).max().unwrap_or(0);
        self.reader.map_or_else(most, of)
    }

    /// Begins a journey with its first sighting.
    pub fn begin(&mut self, s: &Sighting, drop: bool, options: &Options) {
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
        self.take(number, s, reorder);
    }

    /// The points at which the copies of a packet are seen, if this point of a LAN is one of them.
    fn copies_at(&self, point: PointId) -> Option<&CopyPoints> {
        self.copies.iter().find(|copies| copies.all() >> point & 1 == 1)
    }

    /// Whether packets of the stream are mostly first seen at this point, or, over redundant networks, at it or the
    /// other LAN's.
    fn leads(&self, point: PointId) -> bool {
        self.lead.is_some_and(|(lead, _)| lead == self.copies_at(point).map_or(point, |copies| copies.first))
    }

    /// Determines the journey's place in the stream, from its first sighting other than a drop.
    fn place(&mut self, number: u64, s: &Sighting, reorder: u64) {
        self.vote(self.copies_at(s.point).map_or(s.point, |copies| copies.first));
        let is_lead = self.leads(s.point);
        let at = &mut self.at[usize::from(s.point)];
        let in_place = at.is_at_head(number, reorder);
        let by_lead = in_place && is_lead;
        if in_place {
            at.moved(number, s.key, reorder);
        } else {
            at.saw_out_of_place(number);
        }
        let head = self.ring.get_mut(number);
        (head.placed, head.in_place, head.by_lead) = (true, in_place, by_lead);
    }

    /// Adds a drop to a journey. Bridges free clones of packets that continue, so a packet may have many drops. Of
    /// several notes the rarer one is more specific; of equally rare ones the later is kept, because a bridge frees its
    /// own copy early.
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
        if old == 0 || count(s.note) <= count(old) {
            self.ring.get_mut(number).drop_note = s.note;
        }
    }

    /// Votes for the point as the lead, in a majority vote with a memory of [`LEAD_SURE`] journeys.
    fn vote(&mut self, point: u16) {
        self.lead = match self.lead {
            Some((lead, sure)) if lead == point => Some((lead, (sure + 1).min(LEAD_SURE))),
            Some((lead, sure)) if sure > 1 => Some((lead, sure - 1)),
            _ => Some((point, 1)),
        };
    }

    pub fn is_ready(&self, now: Ns, hold: bool, options: &Options) -> bool {
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

    pub fn emit_ready(&mut self, now: Ns, hold: bool, options: &Options, sink: &mut impl FnMut(&Journey)) {
        while self.ring.emit < self.ring.head && self.is_ready(now, hold, options) {
            self.emit(sink);
        }
    }

    pub fn emit(&mut self, sink: &mut impl FnMut(&Journey)) {
        sink(&self.ring.journey(self.id, self.ring.emit, self.reader));
        self.ring.emit += 1;
        self.totals.journeys += 1;
    }
}
