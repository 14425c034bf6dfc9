//! The timeline of a packet along its route, with its causes.

use crate::{sums::plus, Analyst, Baseline, Cause, CauseInterval, DaemonVisit, Note};
use latpath_capture::{Capture, Packet};
use latpath_model::{Ns, PacketSighting, PointId, PointInfo, StreamId};
use std::collections::BTreeMap;

/// A packet with the causes of delay between the points of its route that saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketTimeline {
    /// The packet's stream.
    pub stream: StreamId,
    /// Key of the packet in its stream.
    pub key: u32,
    /// Index of the packet in its stream.
    pub number: u64,
    /// Whether the packet was over the threshold.
    pub late: bool,
    /// Number of its capture.
    pub capture: u32,
    /// Machines of the capture, indexed by [`CauseInterval::machine`].
    pub machines: Vec<String>,
    /// Sightings on the route and at optional points, in order of time. If the packet's send time is known and precedes
    /// them, it comes first.
    pub seen: Vec<PacketSighting>,
    /// Consecutive hops, from the send time (or else the first point of the route that saw the packet) to the last
    /// point.
    pub hops: Vec<Hop>,
    /// Its recorded visits to ovs-vswitchd, made because no flow matched.
    pub visits: Vec<DaemonVisit>,
}

/// The hop between two consecutive points of the route that saw the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The earlier point.
    pub from: PointId,
    /// The later point.
    pub to: PointId,
    /// Start: the `from` of the first interval.
    pub begin: Ns,
    /// End: the `to` of the last interval.
    pub end: Ns,
    /// Causes, without gaps.
    pub intervals: Vec<CauseInterval>,
}

/// The time at which a packet's talker was to send it, if that is before `first`, the packet's first sighting on the
/// route. `points` are those of the run.
pub fn send_time<'p>(packet: &'p Packet, first: Ns, points: &[PointInfo]) -> Option<&'p PacketSighting> {
    packet.sightings.iter().find(|one| one.t < first && is_computed(one.point, points))
}

/// Whether a sighting in a capture is a send time. Captures contain no other computed times.
fn is_computed(point: PointId, points: &[PointInfo]) -> bool {
    points.get(usize::from(point)).is_some_and(|info| info.point.kind.is_computed())
}

impl PacketTimeline {
    /// The cause with the largest excess between two sightings, given by their times; `None` if the packet took no
    /// longer there than on-time packets. `route` is the route of its stream.
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
        // Of several causes with the same excess, the first one counts.
        beyond.reduce(|most, next| if next.1 > most.1 { next } else { most }).map(|(cause, _)| cause)
    }

    /// Explains a packet of the analyst's capture. `route` is the route of its stream; if it is empty, all sightings
    /// count.
    pub fn of(analyst: &Analyst, capture: &Capture, packet: &Packet, route: &[PointId], points: &[PointInfo]) -> Self {
        let on_route = |p: PointId| route.is_empty() || route.contains(&p);
        let optional = |p: PointId| points.get(usize::from(p)).is_some_and(|info| info.point.kind.is_optional());
        let mut seen: Vec<PacketSighting> = Vec::new();
        let is_sighting = |one: &&PacketSighting| !is_computed(one.point, points);
        let seen_there = |one: &&PacketSighting| on_route(one.point) || optional(one.point);
        for one in packet.sightings.iter().filter(is_sighting).filter(seen_there) {
            // If a point saw the packet several times, the first sighting counts.
            if !seen.iter().any(|before| before.point == one.point) {
                seen.push(*one);
            }
        }
        seen.sort_by_key(|one| one.t);
        let first = seen.iter().position(|one| on_route(one.point)).unwrap_or(seen.len());
        let last = seen.iter().rposition(|one| on_route(one.point)).map_or(first, |last| last + 1);
        let mut seen = seen[first..last.max(first)].to_vec();
        let planned = seen.first().and_then(|first| send_time(packet, first.t, points)).copied();
        seen.splice(..0, planned);
        let mut hops: Vec<Hop> = Vec::new();
        let mut open: Option<Hop> = None;
        let mut visits: Vec<DaemonVisit> = Vec::new();
        for pair in seen.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            let begin = Hop { from: a.point, to: b.point, begin: a.t, end: a.t, intervals: Vec::new() };
            let hop = open.get_or_insert(begin);
            let visit = analyst.visit(a, b);
            let mut intervals = analyst.explain(packet, a, b);
            for interval in intervals.iter_mut().filter(|interval| interval.cause == Cause::Upcall) {
                interval.notes.extend(visit.iter().map(|visit| Note::NoFlow(visit.reason)));
            }
            visits.extend(visit);
            hop.intervals.extend(intervals);
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
            visits,
        }
    }

    /// The send time if it is known and precedes the first sighting on the route, otherwise the time of that sighting;
    /// `None` if there is no sighting.
    pub fn begin(&self) -> Option<Ns> {
        self.seen.first().map(|s| s.t)
    }

    /// Time from [`Self::begin`] to the last point of the route that saw the packet, ns.
    pub fn time(&self) -> Ns {
        match (self.seen.first(), self.seen.last()) {
            (Some(first), Some(last)) => last.t.saturating_sub(first.t),
            _ => 0,
        }
    }

    /// Total time that the packet spent with ovs-vswitchd, from upcall to return, ns.
    pub fn with_daemon(&self, points: &[PointInfo]) -> Ns {
        let (mut asked, mut sum) = (None, 0);
        for one in &self.seen {
            let Some(kind) = points.get(usize::from(one.point)).map(|info| info.point.kind) else { continue };
            if kind.leaves_datapath() {
                asked = asked.or(Some(one.t));
            } else if kind.is_back_in_datapath() {
                sum = asked.take().map_or(sum, |t| one.t.saturating_sub(t).saturating_add(sum));
            }
        }
        sum
    }

    /// All intervals in order of time, each with its hop.
    pub fn intervals(&self) -> impl Iterator<Item = (&Hop, &CauseInterval)> {
        self.hops.iter().flat_map(|hop| hop.intervals.iter().map(move |interval| (hop, interval)))
    }

    /// Name of an interval's machine.
    pub fn machine(&self, interval: &CauseInterval) -> &str {
        self.machines.get(interval.machine).map_or("", String::as_str)
    }
}
