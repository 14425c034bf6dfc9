//! The reactions of followed streams: which journeys are events, and which of them belong together.

use crate::taps::Tap;
use latpath_journey::reactions::Side;
use latpath_journey::{reactions_of, Joiner, Journey, ReactionCounts, Reactions, Route, Totals};
use latpath_model::{Ns, PointId, PointInfo, StreamId, StreamSpec};
use latpath_protocols::reaction::ReactionRule;
use latpath_protocols::{Condition, Watch};
use latpath_run::ReactionRecord;

/// Maximum number of spurious packets listed in a note.
const NAMED: usize = 3;

/// The reactions of all rules.
#[derive(Default)]
pub(crate) struct AllReactions {
    rules: Vec<Rule>,
}

struct Rule {
    rule: ReactionRule,
    stream: StreamId,
    cause: Events,
    effect: Events,
    pairs: Reactions,
    /// Points, as bits, that belong to a reaction: those of incoming packets, and those of outgoing packets.
    points: (u64, u64),
    /// Keys of the first spurious packets.
    spurious: Vec<u32>,
}

/// Finds the events of a stream.
struct Events {
    stream: StreamId,
    by: By,
}

enum By {
    Key(Watch),
    Content(Tap),
}

impl Events {
    fn new(stream: StreamId, spec: &StreamSpec, condition: &Condition) -> Self {
        let watch = Watch::new(spec.clone(), condition.clone());
        let by = if condition.is_by_key() { By::Key(watch) } else { By::Content(Tap::new(watch)) };
        Self { stream, by }
    }

    fn is_event(&mut self, journey: &Journey) -> bool {
        match &mut self.by {
            By::Key(watch) => watch.is_event_by_key(journey.key),
            By::Content(tap) => journey.first().is_some_and(|first| tap.take(journey.key, first)),
        }
    }

    fn tap(&mut self) -> Option<&mut Tap> {
        match &mut self.by {
            By::Key(_) => None,
            By::Content(tap) => Some(tap),
        }
    }

    /// Time from which all events are known, ns; `None` if none are known yet.
    fn since(&self) -> Option<Ns> {
        match &self.by {
            By::Key(_) => Some(Ns::MIN),
            By::Content(tap) => tap.since(),
        }
    }
}

impl AllReactions {
    /// Finds the reactions among these streams.
    pub fn new(streams: &[StreamSpec]) -> Self {
        let rule = |(stream, cause, effect): (StreamId, StreamId, StreamId)| {
            let rule = streams.get(usize::from(stream))?.reaction.as_deref()?.clone();
            Some(Rule {
                stream,
                cause: Events::new(cause, &rule.input, &rule.cause),
                effect: Events::new(effect, &rule.output, &rule.effect),
                pairs: Reactions::new(stream, rule.pairing, rule.within),
                points: (u64::MAX, u64::MAX),
                spurious: Vec::new(),
                rule,
            })
        };
        Self { rules: reactions_of(streams).into_iter().filter_map(rule).collect() }
    }

    /// The streams of reactions, each with the time above which a reaction is late, ns.
    pub fn late(&self) -> impl Iterator<Item = (StreamId, Option<Ns>)> + '_ {
        self.rules.iter().map(|rule| (rule.stream, rule.rule.late))
    }

    fn taps(&mut self) -> impl Iterator<Item = (StreamId, &mut Tap)> {
        let sides = self.rules.iter_mut().flat_map(|rule| [&mut rule.cause, &mut rule.effect]);
        sides.filter_map(|events| Some((events.stream, events.tap()?)))
    }

    /// Reads the contents of packets. Call it after their sightings have been read, and before their journeys are
    /// handed over.
    pub fn read(&mut self, joiner: &Joiner, points: &[PointInfo]) {
        for (stream, tap) in self.taps() {
            if tap.is_waiting() {
                let newest = joiner.open_journeys().filter(|j| j.stream == stream).last();
                let seen = newest.map_or(0, |journey| journey.seen);
                let mut at = points.iter().enumerate().filter(|(p, _)| seen >> p & 1 == 1);
                // Prefer a point at which packets come in, otherwise take any.
                let entry = at.clone().find(|(_, info)| info.point.kind.is_entry()).or_else(|| at.next());
                entry.into_iter().for_each(|(p, info)| tap.open(p as PointId, info));
            }
            tap.follow(points);
            tap.read();
        }
    }

    /// Sets the points of the reactions according to the routes.
    pub fn set_route(&mut self, route: &Route) {
        for rule in &mut self.rules {
            let of = |stream: StreamId| -> u64 {
                let reaction = route.by_stream.get(usize::from(rule.stream)).map_or(&[][..], Vec::as_slice);
                let own = route.by_stream.get(usize::from(stream)).map_or(&[][..], Vec::as_slice);
                match reaction.iter().filter(|p| own.contains(p)).fold(0, |set, p| set | 1 << p) {
                    0 => u64::MAX,
                    set => set,
                }
            };
            rule.points = (of(rule.cause.stream), of(rule.effect.stream));
        }
    }

    /// Takes a finished journey of a packet.
    pub fn take(&mut self, journey: &Journey) {
        for rule in &mut self.rules {
            let (began, within) = (rule.cause.since().zip(rule.effect.since()), rule.rule.within);
            let sides =
                [(Side::Cause, &mut rule.cause, rule.points.0), (Side::Effect, &mut rule.effect, rule.points.1)];
            for (side, events, points) in sides {
                if journey.stream != events.stream || !events.is_event(journey) {
                    continue;
                }
                // Until both sides are read, an event would have no counterpart, so it is ignored.
                let Some(since) = began.map(|(cause, effect)| cause.max(effect)) else { continue };
                rule.pairs.set_spurious_from(since.saturating_add(within));
                if journey.first().is_some_and(|first| first >= since) {
                    rule.pairs.add(side, journey, points);
                }
            }
        }
    }

    /// Hands over the reactions that are decided. All journeys that began before `reached` must have been added.
    pub fn advance(&mut self, reached: Ns, sink: &mut impl FnMut(&Journey)) {
        for rule in &mut self.rules {
            let mut reached = reached;
            for events in [&mut rule.cause, &mut rule.effect] {
                if let Some(tap) = events.tap() {
                    tap.forget_before(reached);
                    reached = reached.min(tap.read_until());
                }
            }
            rule.pairs.advance(reached, sink);
            rule.keep_spurious();
        }
    }

    /// Hands over the reactions that are decided at `end`, the end of the measurement. Packets that still wait for a
    /// reaction are dropped.
    pub fn finish(&mut self, end: Ns, sink: &mut impl FnMut(&Journey)) {
        for rule in &mut self.rules {
            rule.pairs.finish(end, sink);
            rule.keep_spurious();
        }
    }

    /// Adds the counts of the reactions to those of all streams.
    pub fn add_totals(&self, totals: &mut [Totals]) {
        for rule in &self.rules {
            let ReactionCounts { paired, lost, .. } = rule.pairs.counts();
            if let Some(totals) = totals.get_mut(usize::from(rule.stream)) {
                totals.journeys = paired + lost;
            }
        }
    }

    /// The counts of the reactions, for the run's manifest.
    pub fn records(&self) -> Vec<ReactionRecord> {
        let record = |rule: &Rule| ReactionRecord { rule: rule.rule.to_string(), counts: rule.pairs.counts() };
        self.rules.iter().map(record).collect()
    }

    /// Notes for the user.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for rule in &self.rules {
            let ReactionCounts { spurious, .. } = rule.pairs.counts();
            if spurious > 0 {
                let (name, key) = (&rule.rule, rule.rule.output.key);
                let keys: Vec<String> =
                    rule.spurious.iter().map(|k| format!("{} {}", key.name(), key.text(*k))).collect();
                let more = if spurious > keys.len() as u64 { ", …" } else { "" };
                notes.push(format!(
                    "{name}: spurious: {spurious}, sent although no packet that came in required it ({}{more})",
                    keys.join(", ")
                ));
            }
            for events in [&rule.cause, &rule.effect] {
                if let By::Content(tap) = &events.by {
                    notes.extend(tap.notes());
                }
            }
        }
        notes
    }
}

impl Rule {
    fn keep_spurious(&mut self) {
        let new = self.pairs.take_spurious().into_iter().map(|(key, _)| key);
        let room = NAMED - self.spurious.len();
        self.spurious.extend(new.take(room));
    }
}
