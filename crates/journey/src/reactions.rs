//! Pairs packets that come in with the packets that an application sends because of them.
//!
//! Both are journeys of followed streams. A [`Reactions`] gets the packets that are events, pairs them once no earlier
//! event can arrive, and hands out each reaction as a further journey, of a stream of its own: the sightings of the
//! packet that came in, then those of the packet that went out, unless the reaction was lost. So all figures of
//! journeys also exist for reactions.

use crate::journey::{bits, Journey, MAX_POINTS};
use latpath_model::{Ns, StreamId};
use latpath_protocols::reaction::Pairing;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of packets that wait for their reactions; beyond it, the oldest counts as having lost its reaction.
const MAX_WAITING: usize = 1 << 16;

/// Counts of one rule's reactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReactionCounts {
    /// Packets that came in and require a reaction.
    pub causes: u64,
    /// Packets that went out as reactions, whether or not a cause was found.
    pub effects: u64,
    /// Reactions: pairs of a packet that came in and one that went out.
    pub paired: u64,
    /// Packets that came in and have no reaction.
    pub lost: u64,
    /// Reactions that went out without a cause: no packet that came in is paired with them.
    pub spurious: u64,
}

/// A packet of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    key: u32,
    first: Ns,
    seen: u64,
    /// Time, CPU and thread at each point of `seen`, in ascending order of the points; CPU and thread are 0 if unknown.
    at: Vec<(Ns, u16, u32)>,
    is_detailed: bool,
}

impl Event {
    /// The event made up of a journey's sightings at these points; `None` if it has no sighting there.
    fn of(journey: &Journey, points: u64) -> Option<Self> {
        let seen = journey.seen & !journey.samples & points;
        let first = bits(seen).map(|p| journey.t[p]).min()?;
        let is_detailed = journey.cpu.len() >= journey.t.len() && journey.tid.len() >= journey.t.len();
        let of = |p: usize| match is_detailed {
            true => (journey.t[p], journey.cpu[p], journey.tid[p]),
            false => (journey.t[p], 0, 0),
        };
        Some(Self { key: journey.key, first, seen, at: bits(seen).map(of).collect(), is_detailed })
    }
}

/// A packet that came in.
#[derive(Debug)]
struct Waiting {
    cause: Event,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Open,
    Lost,
    Paired(Event),
}

/// The two sides of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Packets that come in.
    Cause,
    /// Packets that the application sends.
    Effect,
}

/// Pairs the events of one rule.
#[derive(Debug)]
pub struct Reactions {
    /// The stream of the reactions.
    stream: StreamId,
    pairing: Pairing,
    within: Ns,
    /// Events before which earlier ones may still arrive, by time and order of arrival.
    events: BTreeMap<(Ns, u64), (Side, Event)>,
    arrived: u64,
    /// Packets that came in, in order of time, from the first unsettled one on.
    waiting: VecDeque<Waiting>,
    number: u64,
    counts: ReactionCounts,
    /// Keys and times of spurious packets, until they are taken.
    spurious: Vec<(u32, Ns)>,
    spurious_from: Ns,
}

impl Reactions {
    /// Pairs events, and hands out reactions as journeys of `stream`. A packet that came in and has no reaction after
    /// `within`, ns, counts as having lost it.
    pub fn new(stream: StreamId, pairing: Pairing, within: Ns) -> Self {
        Self {
            stream,
            pairing,
            within,
            events: BTreeMap::new(),
            arrived: 0,
            waiting: VecDeque::new(),
            number: 0,
            counts: ReactionCounts::default(),
            spurious: Vec::new(),
            spurious_from: Ns::MIN,
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> ReactionCounts {
        self.counts
    }

    /// Keys and times of the first sightings of the spurious packets since the last call.
    pub fn take_spurious(&mut self) -> Vec<(u32, Ns)> {
        std::mem::take(&mut self.spurious)
    }

    /// Sets the time, ns, from which on a packet that goes out without a cause is spurious. Earlier ones may be
    /// reactions to packets from before the measurement, and are ignored.
    pub fn set_spurious_from(&mut self, from: Ns) {
        self.spurious_from = from;
    }

    /// Adds a packet that is an event, with its sightings at `points` (bits `1 << PointId`); its other sightings are
    /// not part of the reaction.
    pub fn add(&mut self, side: Side, journey: &Journey, points: u64) {
        if let Some(event) = Event::of(journey, points) {
            self.arrived += 1;
            self.events.insert((event.first, self.arrived), (side, event));
        }
    }

    /// Pairs all events before `reached`, and hands out the settled reactions in the order of the packets that came in.
    /// All events before `reached` must have been added.
    pub fn advance(&mut self, reached: Ns, sink: &mut impl FnMut(&Journey)) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 < reached) {
            let ((t, _), (side, event)) = entry.remove_entry();
            self.expire(t);
            match side {
                Side::Cause => self.came(event),
                Side::Effect => self.went(event),
            }
            self.hand_out(sink);
        }
        self.expire(reached);
        self.hand_out(sink);
    }

    /// Ends the input at `end`, and hands out the settled reactions. Packets that still wait for a reaction are
    /// dropped, like packets in flight at the end of a recording.
    pub fn finish(&mut self, end: Ns, sink: &mut impl FnMut(&Journey)) {
        self.advance(end, sink);
        self.waiting.retain(|waiting| !matches!(waiting.outcome, Outcome::Open));
        self.hand_out(sink);
    }

    /// Marks packets whose time for a reaction has passed by `now` as lost.
    fn expire(&mut self, now: Ns) {
        let within = self.within;
        let is_over = |w: &&mut Waiting| w.cause.first.saturating_add(within) < now;
        for waiting in self.waiting.iter_mut().take_while(is_over) {
            if matches!(waiting.outcome, Outcome::Open) {
                waiting.outcome = Outcome::Lost;
            }
        }
    }

    fn came(&mut self, cause: Event) {
        self.counts.causes += 1;
        if self.pairing == Pairing::Newest {
            let open = self.waiting.iter_mut().filter(|w| matches!(w.outcome, Outcome::Open));
            open.for_each(|waiting| waiting.outcome = Outcome::Lost);
        }
        if self.waiting.len() >= MAX_WAITING {
            if let Some(oldest) = self.waiting.iter_mut().find(|w| matches!(w.outcome, Outcome::Open)) {
                oldest.outcome = Outcome::Lost;
            }
        }
        self.waiting.push_back(Waiting { cause, outcome: Outcome::Open });
    }

    fn went(&mut self, effect: Event) {
        let is_by_key = self.pairing == Pairing::Key;
        let fits = |w: &&mut Waiting| matches!(w.outcome, Outcome::Open) && (!is_by_key || w.cause.key == effect.key);
        match self.waiting.iter_mut().find(fits) {
            Some(waiting) => waiting.outcome = Outcome::Paired(effect),
            None if effect.first < self.spurious_from => return,
            None => {
                self.counts.spurious += 1;
                self.spurious.push((effect.key, effect.first));
            }
        }
        self.counts.effects += 1;
    }

    fn hand_out(&mut self, sink: &mut impl FnMut(&Journey)) {
        while self.waiting.front().is_some_and(|w| !matches!(w.outcome, Outcome::Open)) {
            let Some(Waiting { cause, outcome }) = self.waiting.pop_front() else { break };
            let effect = match outcome {
                Outcome::Paired(effect) => Some(effect),
                _ => None,
            };
            match effect {
                Some(_) => self.counts.paired += 1,
                None => self.counts.lost += 1,
            }
            let (mut t, mut cpu, mut tid) = ([0; MAX_POINTS], [0; MAX_POINTS], [0; MAX_POINTS]);
            let mut seen = 0;
            // At a point that saw both packets, the sighting of the incoming packet counts.
            for event in [Some(&cause), effect.as_ref()].into_iter().flatten() {
                for (p, at) in bits(event.seen).zip(&event.at).filter(|(p, _)| seen >> p & 1 == 0) {
                    (t[p], cpu[p], tid[p]) = *at;
                }
                seen |= event.seen;
            }
            let is_detailed = cause.is_detailed && effect.is_none_or(|effect| effect.is_detailed);
            sink(&Journey {
                stream: self.stream,
                key: cause.key,
                number: self.number,
                seen,
                t: &t,
                cpu: if is_detailed { &cpu } else { &[] },
                tid: if is_detailed { &tid } else { &[] },
                ..Journey::default()
            });
            self.number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Ns = 1_000_000;
    const WITHIN: Ns = 100 * MS;

    /// Adds a packet that is seen at two points, 1 us apart: at 0 and 2 if it comes in, at 1 and 3 if it goes out.
    fn add(reactions: &mut Reactions, side: Side, key: u32, t: Ns) {
        let mut times = [0; 4];
        let points = if side == Side::Cause { [0, 2] } else { [1, 3] };
        (times[points[0]], times[points[1]]) = (t, t + 1000);
        let seen = points.iter().fold(0, |seen, p| seen | 1 << p);
        reactions.add(side, &Journey { key, seen, t: &times, cpu: &[1; 4], tid: &[7; 4], ..Journey::default() }, !0);
    }

    /// The reactions' keys and times; `None` if lost.
    type Pairs = Vec<(u32, Option<Ns>)>;

    fn pairs(reactions: &mut Reactions, reached: Ns) -> Pairs {
        let mut pairs = Vec::new();
        reactions.advance(reached, &mut |j| {
            assert_eq!((j.stream, j.at(2)), (5, j.at(0).map(|t| t + 1000)));
            pairs.push((j.key, j.between(0, 3).map(|time| time - 1000)));
        });
        pairs
    }

    /// Pairs events, each (is a cause, key, time in ms).
    fn paired(pairing: Pairing, events: &[(bool, u32, Ns)]) -> (Pairs, ReactionCounts) {
        let mut reactions = Reactions::new(5, pairing, WITHIN);
        for (is_cause, key, t) in events {
            add(&mut reactions, if *is_cause { Side::Cause } else { Side::Effect }, *key, t * MS);
        }
        let pairs = pairs(&mut reactions, 1_000_000 * MS);
        (pairs.into_iter().map(|(key, time)| (key, time.map(|time| time / MS))).collect(), reactions.counts())
    }

    const IN: bool = true;
    const OUT: bool = false;

    #[test]
    fn two_in_flight_are_paired_in_order() {
        let events = [(IN, 1, 0), (IN, 2, 3), (OUT, 90, 5), (OUT, 91, 9)];
        let counts = ReactionCounts { causes: 2, effects: 2, paired: 2, lost: 0, spurious: 0 };
        assert_eq!(paired(Pairing::Order, &events), (vec![(1, Some(5)), (2, Some(6))], counts));
    }

    #[test]
    fn a_lost_reaction_is_handed_out_without_the_other_packet_and_does_not_shift_the_next() {
        let events = [(IN, 1, 0), (IN, 2, 200), (OUT, 91, 205)];
        let counts = ReactionCounts { causes: 2, effects: 1, paired: 1, lost: 1, spurious: 0 };
        assert_eq!(paired(Pairing::Order, &events), (vec![(1, None), (2, Some(5))], counts));
    }

    #[test]
    fn a_packet_without_a_cause_is_spurious() {
        let events = [(OUT, 90, 0), (IN, 1, 10), (OUT, 91, 15), (OUT, 92, 16), (IN, 2, 20), (OUT, 93, 121)];
        let (pairs, counts) = paired(Pairing::Order, &events);
        assert_eq!(pairs, [(1, Some(5)), (2, None)]);
        assert_eq!((counts.spurious, counts.lost), (3, 1), "the last one is too late");
    }

    #[test]
    fn what_belongs_to_packets_from_before_is_ignored() {
        let mut reactions = Reactions::new(5, Pairing::Order, WITHIN);
        reactions.set_spurious_from(100 * MS);
        for (side, key, t) in
            [(Side::Effect, 90, 20), (Side::Cause, 1, 30), (Side::Effect, 91, 40), (Side::Effect, 92, 120)]
        {
            add(&mut reactions, side, key, t * MS);
        }
        assert_eq!(pairs(&mut reactions, 1000 * MS), [(1, Some(10 * MS))]);
        let counts = ReactionCounts { causes: 1, effects: 2, paired: 1, lost: 0, spurious: 1 };
        assert_eq!(reactions.counts(), counts);
    }

    #[test]
    fn the_newest_cycle_is_the_one_that_is_answered() {
        let events = [(IN, 1, 0), (IN, 2, 10), (OUT, 90, 12), (IN, 3, 20), (OUT, 91, 22), (OUT, 92, 23)];
        let (pairs, counts) = paired(Pairing::Newest, &events);
        assert_eq!((pairs, counts.spurious), (vec![(1, None), (2, Some(2)), (3, Some(2))], 1));
    }

    #[test]
    fn answers_with_keys_may_overtake_each_other() {
        let events = [(IN, 1, 0), (IN, 2, 1), (OUT, 2, 3), (OUT, 1, 5), (OUT, 2, 6), (OUT, 7, 7)];
        let (pairs, counts) = paired(Pairing::Key, &events);
        assert_eq!((pairs, counts.spurious), (vec![(1, Some(5)), (2, Some(2))], 2));
    }

    #[test]
    fn nothing_is_decided_before_all_earlier_events_were_added() {
        let mut reactions = Reactions::new(5, Pairing::Order, WITHIN);
        add(&mut reactions, Side::Cause, 1, 10 * MS);
        add(&mut reactions, Side::Effect, 90, 15 * MS);
        assert_eq!(pairs(&mut reactions, 12 * MS), []);
        add(&mut reactions, Side::Effect, 89, 13 * MS);
        assert_eq!(pairs(&mut reactions, 14 * MS), [(1, Some(3 * MS))]);
        assert_eq!((pairs(&mut reactions, 16 * MS), reactions.take_spurious()), (vec![], vec![(90, 15 * MS)]));
    }

    #[test]
    fn what_waits_at_the_end_is_dropped() {
        let mut reactions = Reactions::new(5, Pairing::Order, WITHIN);
        add(&mut reactions, Side::Cause, 1, 0);
        add(&mut reactions, Side::Cause, 2, 950 * MS);
        let mut keys = Vec::new();
        reactions.finish(1000 * MS, &mut |j| keys.push((j.key, j.at(3))));
        assert_eq!(keys, [(1, None)]);
    }

    #[test]
    fn sightings_at_other_points_are_no_part_of_a_reaction() {
        let mut reactions = Reactions::new(0, Pairing::Order, WITHIN);
        let journey =
            |t: &[Ns; 4], add: &mut dyn FnMut(&Journey)| add(&Journey { seen: 0b1111, t, ..Journey::default() });
        journey(&[0, 10, 20, 30], &mut |j| reactions.add(Side::Cause, j, 0b0110));
        journey(&[50, 60, 70, 80], &mut |j| reactions.add(Side::Effect, j, 0b1000));
        let mut handed = Vec::new();
        reactions.advance(Ns::MAX, &mut |j| handed.push((j.seen, j.first(), j.between(1, 3), j.cpu.len())));
        assert_eq!(handed, [(0b1110, Some(10), Some(70), 0)]);
    }

    proptest! {
        /// Whatever the order of arrival, each packet that came in is handed out once, in order, with the first packet
        /// that went out after it and was not taken by an earlier one.
        #[test]
        fn pairs_agree_with_the_definition(
            times in prop::collection::vec((any::<bool>(), 1..80_i64), 0..60), round in 1..200_i64,
        ) {
            let mut t = 0;
            let events: Vec<(bool, u32, Ns)> = (0..)
                .zip(&times)
                .map(|(key, (is_cause, gap))| {
                    t += gap;
                    (*is_cause, key, t)
                })
                .collect();
            // The expected pairs, computed directly from the definition.
            let (mut expected, mut taken): (Pairs, Vec<u32>) = (Vec::new(), Vec::new());
            for (_, key, t) in events.iter().filter(|e| e.0) {
                let answers = |e: &&(bool, u32, Ns)| !e.0 && e.2 > *t && e.2 <= *t + 100 && !taken.contains(&e.1);
                let effect = events.iter().find(answers).copied();
                taken.extend(effect.map(|e| e.1));
                expected.push((*key, effect.map(|e| (e.2 - t) * MS)));
            }
            // Journeys of each stream arrive in order, in rounds; those of the second stream later than the first's.
            let mut reactions = Reactions::new(5, Pairing::Order, WITHIN);
            let (mut found, end) = (Pairs::new(), t + 1000);
            for from in (0..=end).step_by(round as usize) {
                for is_cause in [OUT, IN] {
                    for (_, key, t) in events.iter().filter(|e| e.0 == is_cause && (from..from + round).contains(&e.2)) {
                        add(&mut reactions, if is_cause { Side::Cause } else { Side::Effect }, *key, t * MS);
                    }
                }
                found.extend(pairs(&mut reactions, (from + round) * MS));
            }
            prop_assert_eq!(&found, &expected);
            let counts = reactions.counts();
            prop_assert_eq!(counts.spurious as usize, events.iter().filter(|e| !e.0).count() - taken.len());
            prop_assert_eq!((counts.paired + counts.lost, counts.causes), (counts.causes, expected.len() as u64));
        }
    }
}
