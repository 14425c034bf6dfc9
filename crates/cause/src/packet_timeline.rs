//! A packet, with what held it on its route.

use crate::{sums::plus, Analyst, Baseline, Cause, CauseInterval};
use latpath_capture::{Capture, Packet, PacketSighting};
use latpath_model::{Ns, PointId, PointInfo, PointKind, StreamId};
use std::collections::BTreeMap;

/// A packet, and what held it between the points of its stream's route that saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketTimeline {
    pub stream: StreamId,
    /// The packet's key in its stream.
    pub key: u32,
    pub number: u64,
    /// It was over the threshold.
    pub late: bool,
    pub capture: u32,
    /// The capture's machines: [`CauseInterval::machine`] counts in this list.
    pub machines: Vec<String>,
    /// Sightings on the route and at optional points, in the order of their times.
    pub seen: Vec<PacketSighting>,
    /// One behind the other, from the first point of the route that saw the packet to the last.
    pub hops: Vec<Hop>,
}

/// From one point of the route to the next that saw the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub from: PointId,
    pub to: PointId,
    /// When it begins; the first interval's `from`.
    pub begin: Ns,
    /// When it ends; the last interval's `to`.
    pub end: Ns,
    /// What held the packet: without a gap.
    pub intervals: Vec<CauseInterval>,
}

impl PacketTimeline {
    /// The cause that took the packet the most time beyond the baseline from one time to another, both those of sightings; `None` where it
    /// took no longer there than on-time packets. `route` is its stream's.
    pub fn first_cause_between(&self, (from, to): (Ns, Ns), route: &[PointId], baseline: &Baseline) -> Option<Cause> {
        let mut all: BTreeMap<Cause, Ns> = BTreeMap::new();
        for hop in self.hops.iter().filter(|hop| hop.begin >= from && hop.end <= to) {
            let mut here: BTreeMap<Cause, Ns> = BTreeMap::new();
            for interval in &hop.intervals {
                plus(here.entry(interval.cause).or_default(), interval.to.saturating_sub(interval.from));
            }
            let usual = baseline.of(hop.from, hop.to, route).unwrap_or_default();
            for (cause, ns) in here {
                let beyond = ns.saturating_sub(usual.get(&cause).copied().unwrap_or(0)).max(0);
                plus(all.entry(cause).or_default(), beyond);
            }
        }
        let beyond = all.into_iter().filter(|(_, ns)| *ns > 0);
        // Of causes that took as long, the first.
        beyond.reduce(|most, next| if next.1 > most.1 { next } else { most }).map(|(cause, _)| cause)
    }

    /// Explains a packet of the analyst's capture. `route` is its stream's; all sightings count where it is empty.
    pub fn of(analyst: &Analyst, capture: &Capture, packet: &Packet, route: &[PointId], points: &[PointInfo]) -> Self {
        let on_route = |p: PointId| route.is_empty() || route.contains(&p);
        let optional = |p: PointId| points.get(usize::from(p)).is_some_and(|info| info.point.kind.is_optional());
        let mut seen: Vec<PacketSighting> = Vec::new();
        for one in packet.sightings.iter().filter(|one| on_route(one.point) || optional(one.point)) {
            // Where a point saw it twice, it had passed at the first time.
            if !seen.iter().any(|before| before.point == one.point) {
                seen.push(*one);
            }
        }
        seen.sort_by_key(|one| one.t);
        let first = seen.iter().position(|one| on_route(one.point)).unwrap_or(seen.len());
        let last = seen.iter().rposition(|one| on_route(one.point)).map_or(first, |last| last + 1);
        let seen = seen[first..last.max(first)].to_vec();
        let mut hops: Vec<Hop> = Vec::new();
        let mut open: Option<Hop> = None;
        for pair in seen.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            let begin = Hop { from: a.point, to: b.point, begin: a.t, end: a.t, intervals: Vec::new() };
            let hop = open.get_or_insert(begin);
            hop.intervals.extend(analyst.explain(packet, a, b));
            (hop.to, hop.end) = (b.point, b.t);
            if on_route(b.point) {
                hops.extend(open.take());
            }
        }
        Self {
            stream: packet.stream,
            key: packet.key,
            number: packet.number,
            late: packet.late,
            capture: capture.number,
            machines: capture.machines.iter().map(|m| m.machine.clone()).collect(),
            seen,
            hops,
        }
    }

    /// When the first point of its route saw it; `None` where no point did.
    pub fn begin(&self) -> Option<Ns> {
        self.seen.first().map(|s| s.t)
    }

    /// From the first point of its route that saw it to the last.
    pub fn time(&self) -> Ns {
        match (self.seen.first(), self.seen.last()) {
            (Some(first), Some(last)) => last.t.saturating_sub(first.t),
            _ => 0,
        }
    }

    /// How long it was with ovs-vswitchd: from the kernel's asking it to its answer.
    pub fn with_daemon(&self, points: &[PointInfo]) -> Ns {
        let (mut asked, mut sum) = (None, 0);
        for one in &self.seen {
            match points.get(usize::from(one.point)).map(|info| info.point.kind) {
                Some(kind) if kind.leaves_datapath() => asked = asked.or(Some(one.t)),
                Some(PointKind::OvsReturn) => {
                    sum = asked.take().map_or(sum, |t| one.t.saturating_sub(t).saturating_add(sum));
                }
                _ => {}
            }
        }
        sum
    }

    /// All intervals in the order of their times, each with its hop.
    pub fn intervals(&self) -> impl Iterator<Item = (&Hop, &CauseInterval)> {
        self.hops.iter().flat_map(|hop| hop.intervals.iter().map(move |interval| (hop, interval)))
    }

    pub fn machine(&self, interval: &CauseInterval) -> &str {
        self.machines.get(interval.machine).map_or("", String::as_str)
    }
}
