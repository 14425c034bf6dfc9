//! Finds links that went down and came up again.

use super::{DetectedPattern, Names, Touched};
use crate::patterns::gather::Patterns;
use crate::patterns::outages::Outage;
use crate::patterns::{Occurrence, Pattern, PatternKind};
use latpath_model::{Ns, PointId, StreamId};
use std::collections::BTreeMap;

/// Minimum duration of a flap, ns.
const SHORTEST: Ns = 5_000_000;
/// Minimum overlap of two streams' outages in the same flap, as a fraction of the shorter one.
const OVERLAP: f64 = 0.5;
/// Maximum time between an outage and a release of a queue for the release to explain the losses: the queue was full.
const NEAR_RELEASE: Ns = 100_000_000;

type OfStream = (StreamId, Outage);

pub fn find(gathered: &Patterns, names: &Names, released: &[DetectedPattern]) -> Vec<DetectedPattern> {
    // Outages by the two points between which the packets were lost.
    let mut places: BTreeMap<(Option<PointId>, PointId), Vec<OfStream>> = BTreeMap::new();
    for (id, stream) in gathered.streams.iter().enumerate() {
        for outage in stream.outages.clone().finish() {
            let next = match outage.place {
                Some(place) => stream.route.iter().skip_while(|p| **p != place).nth(1),
                None => stream.route.first(),
            };
            let is_device = |p: &PointId| !names.setup.points[usize::from(*p)].point.kind.is_application();
            if let Some(next) = next.filter(|p| is_device(p)) {
                places.entry((outage.place, *next)).or_default().push((id as StreamId, outage));
            }
        }
    }
    let of_place = |((from, to), mut outages): ((Option<PointId>, PointId), Vec<OfStream>)| {
        outages.sort_by_key(|(id, outage)| (outage.from, *id));
        let mut flaps: Vec<Vec<OfStream>> = together(&outages);
        flaps.retain(|flap| is_flap(gathered, (from, to), flap) && !is_near(released, flap));
        (!flaps.is_empty()).then(|| one(names, (from, to), &flaps))
    };
    places.into_iter().filter_map(of_place).collect()
}

fn together(outages: &[OfStream]) -> Vec<Vec<OfStream>> {
    let mut flaps: Vec<Vec<OfStream>> = Vec::new();
    for one in outages {
        match flaps.last_mut() {
            Some(flap) if flap.iter().any(|(_, other)| overlaps(&one.1, other)) => flap.push(*one),
            _ => flaps.push(vec![*one]),
        }
    }
    flaps
}

fn overlaps(a: &Outage, b: &Outage) -> bool {
    let common = a.to.min(b.to).saturating_sub(a.from.max(b.from));
    let shorter = a.to.saturating_sub(a.from).min(b.to.saturating_sub(b.from));
    common as f64 >= OVERLAP * shorter as f64
}

fn span(flap: &[OfStream]) -> (Ns, Ns) {
    let from = flap.iter().map(|(_, o)| o.from).min().unwrap_or(0);
    (from, flap.iter().map(|(_, o)| o.to).max().unwrap_or(0))
}

/// Whether the outages last long enough and affect all streams of the link; a stream that had no packet to send
/// meanwhile is disregarded.
fn is_flap(gathered: &Patterns, (from, to): (Option<PointId>, PointId), flap: &[OfStream]) -> bool {
    let (begin, end) = span(flap);
    let goes_there = |id: &usize| {
        let route = &gathered.streams[*id].route;
        match from {
            Some(from) => route.windows(2).any(|two| two == [from, to]),
            None => route.first() == Some(&to),
        }
    };
    let sends = |id: usize| {
        let packets: u64 = gathered.streams[id].point_sets.counts().map(|(_, _, n)| n).sum();
        let span = gathered.slots.count() as Ns * gathered.slots.length();
        // The outage lasts longer than twice the stream's mean interval between packets.
        packets > 0 && 2 * span / (packets as Ns) < end - begin
    };
    let is_missing = |id: usize| flap.iter().any(|(missing, _)| usize::from(*missing) == id);
    end.saturating_sub(begin) >= SHORTEST
        && (0..gathered.streams.len()).filter(goes_there).all(|id| is_missing(id) || !sends(id))
}

fn is_near(released: &[DetectedPattern], flap: &[OfStream]) -> bool {
    let (begin, end) = span(flap);
    let near = |t: &Touched| t.from <= end.saturating_add(NEAR_RELEASE) && t.to >= begin.saturating_sub(NEAR_RELEASE);
    released.iter().flat_map(|found| &found.touched).any(near)
}

fn one(names: &Names, (from, to): (Option<PointId>, PointId), flaps: &[Vec<OfStream>]) -> DetectedPattern {
    let occurrence = |flap: &Vec<OfStream>| {
        let (from_ns, to_ns) = span(flap);
        let packets = flap.iter().map(|(_, o)| o.packets).sum();
        Occurrence { from_ns, to_ns, size_ns: to_ns - from_ns, packets }
    };
    let occurrences: Vec<Occurrence> = flaps.iter().map(occurrence).collect();
    let touched = |(id, o): &OfStream| Touched { streams: vec![*id], from: o.from, to: o.to };
    let pattern = Pattern {
        kind: PatternKind::LinkFlap,
        from: from.map_or(String::new(), |p| names.point(p)),
        to: names.point(to),
        count: flaps.len() as u64,
        size_ns: occurrences.iter().map(|o| o.size_ns).max(),
        ..Pattern::default()
    };
    names.finish(pattern, occurrences, flaps.iter().flatten().map(touched).collect())
}
