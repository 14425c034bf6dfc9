//! The slowest journeys, each with all its sightings.

use crate::{Worst, WorstStep};
use latpath_clock::TimeOfDay;
use latpath_journey::journey::MAX_POINTS;
use latpath_journey::{Journey, Paths};
use latpath_model::{Ns, PacketSighting, PointId, StreamId};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The journeys that took longest along their routes, up to a maximum number.
#[derive(Clone, Debug)]
pub(crate) struct Slowest {
    most: usize,
    /// Minimum time of further journeys, ns, once there are `most` of them.
    floor: Ns,
    kept: BinaryHeap<Reverse<SlowJourney>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowJourney {
    /// Time from the first to the last point of the route that saw the packet, ns.
    total: Ns,
    /// Time of its first sighting, ns.
    pub first: Ns,
    pub stream: StreamId,
    pub number: u64,
    key: u32,
    /// All sightings, in chronological order.
    steps: Vec<PacketSighting>,
}

impl SlowJourney {
    fn of(journey: &Journey, total: Ns) -> Self {
        let step = |point: PointId| {
            let at = usize::from(point);
            let (cpu, tid) = (journey.cpu.get(at).copied(), journey.tid.get(at).copied());
            Some(PacketSighting { t: journey.at(point)?, point, cpu, tid })
        };
        let is_sighting = |point: &PointId| journey.samples >> point & 1 == 0;
        let mut steps: Vec<PacketSighting> = (0..MAX_POINTS as PointId).filter(is_sighting).filter_map(step).collect();
        steps.sort_by_key(|step| step.t);
        let Journey { stream, key, number, .. } = *journey;
        Self { total, first: steps.first().map_or(0, |s| s.t), stream, number, key, steps }
    }

    /// Sort key: slower journeys rank higher; of equally slow ones, the earlier, so that the order of counting has no
    /// effect.
    fn rank(&self) -> impl Ord {
        (self.total, Reverse(self.first), Reverse(self.stream), Reverse(self.number))
    }

    /// The figures for a report. Points for which `is_copy` returns true saw only a copy of the packet, and are
    /// omitted.
    pub fn figures(
        &self,
        stream: String,
        paths: &Paths,
        time_of_day: &TimeOfDay,
        point: impl Fn(PointId) -> String,
        is_copy: impl Fn(PointId) -> bool,
    ) -> Worst {
        let seen = self.steps.iter().fold(0, |set, step| set | 1 << step.point);
        let mut before = self.first;
        let step = |s: &PacketSighting| {
            let since_last_ns = s.t.saturating_sub(before);
            before = s.t;
            WorstStep {
                point: point(s.point),
                since_first_ns: s.t.saturating_sub(self.first),
                since_last_ns,
                cpu: s.cpu,
                tid: s.tid,
                role: None,
            }
        };
        Worst {
            stream,
            key: self.key,
            path: if paths.any() { paths.class(seen).to_string() } else { String::new() },
            time_ns: time_of_day.utc(self.first),
            total_ns: self.total,
            steps: self.steps.iter().filter(|s| !is_copy(s.point)).map(step).collect(),
        }
    }

    /// Whether this point saw the packet.
    pub fn has(&self, point: PointId) -> bool {
        self.steps.iter().any(|step| step.point == point)
    }
}

impl Ord for SlowJourney {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for SlowJourney {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Slowest {
    pub fn new(most: usize) -> Self {
        Self { most, floor: Ns::MIN, kept: BinaryHeap::new() }
    }

    /// Whether a journey that took this long may be among the slowest.
    #[inline]
    pub fn may_take(&self, total: Ns) -> bool {
        self.most > 0 && total >= self.floor
    }

    /// Time up to which journeys are ignored, ns.
    #[inline]
    pub fn ignored_up_to(&self) -> Ns {
        if self.most > 0 {
            self.floor.saturating_sub(1)
        } else {
            Ns::MAX
        }
    }

    /// Adds a journey if it is among the slowest. One seen at fewer than two points of the route has no time, and is
    /// ignored.
    #[inline]
    pub fn offer(&mut self, journey: &Journey, route: &[PointId]) {
        let is_seen = |p: &&PointId| journey.seen >> **p & 1 == 1;
        let (Some(from), Some(to)) = (route.iter().find(is_seen), route.iter().rev().find(is_seen)) else { return };
        let total = journey.t[usize::from(*to)].saturating_sub(journey.t[usize::from(*from)]);
        if self.may_take(total) && from != to {
            self.keep(SlowJourney::of(journey, total));
        }
    }

    fn keep(&mut self, kept: SlowJourney) {
        self.kept.push(Reverse(kept));
        if self.kept.len() > self.most {
            self.kept.pop();
        }
        if self.kept.len() == self.most {
            self.floor = self.kept.peek().map_or(Ns::MIN, |least| least.0.total);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        other.kept.iter().for_each(|kept| self.keep(kept.0.clone()));
    }

    /// The journeys, slowest first.
    pub fn sorted(&self) -> Vec<&SlowJourney> {
        let mut all: Vec<&SlowJourney> = self.kept.iter().map(|kept| &kept.0).collect();
        all.sort_by(|a, b| b.cmp(a));
        all
    }

    /// Replaces the sightings of the journey if it is among the slowest.
    pub fn detail(&mut self, journey: &Journey) {
        let is_it = |kept: &SlowJourney| (kept.stream, kept.number) == (journey.stream, journey.number);
        let fuller = |Reverse(kept): Reverse<SlowJourney>| match SlowJourney::of(journey, kept.total) {
            // A restarted recording may reuse a number, so compare the times too.
            full if is_it(&kept) && full.first == kept.first => Reverse(full),
            _ => Reverse(kept),
        };
        if self.kept.iter().any(|kept| is_it(&kept.0)) {
            self.kept = std::mem::take(&mut self.kept).into_iter().map(fuller).collect();
        }
    }
}
