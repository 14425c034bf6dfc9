//! Finds swings of one machine's clock relative to another's.

use super::{DetectedPattern, Names, Touched};
use crate::patterns::gather::Patterns;
use crate::patterns::median;
use crate::patterns::swing::{correlation, swing};
use crate::patterns::{Occurrence, Pattern, PatternKind};
use latpath_model::{Ns, StreamId};
use std::collections::BTreeMap;

/// Minimum correlation of each lane with the mean of all lanes if a clock moves them together.
const ALIKE: f64 = 0.7;
/// Minimum share of slots in which a lane has packets.
const THERE: f64 = 0.5;

/// The level of one lane of a segment between two machines. The sign refers to the direction from the first machine to
/// the second, in the order of names: the level of the opposite direction is negated.
struct Lane {
    at: usize,
    backwards: bool,
    streams: Vec<StreamId>,
    packets: u64,
    quartiles: BTreeMap<usize, [f64; 3]>,
}

pub fn find(gathered: &Patterns, names: &Names) -> Vec<DetectedPattern> {
    let machine = |p: usize| names.setup.points[p].point.machine.as_str();
    let mut pairs: BTreeMap<(&str, &str), Vec<Lane>> = BTreeMap::new();
    for (at, watched) in gathered.watched.iter().enumerate() {
        let (from, to) = (machine(watched.ends.from), machine(watched.ends.to));
        if from != to {
            let of_pair = pairs.entry((from.min(to), from.max(to))).or_default();
            of_pair.extend((0..gathered.lanes).filter_map(|lane| of_lane(gathered, at, lane, from > to)));
        }
    }
    pairs.into_values().filter_map(|lanes| one(gathered, names, &lanes)).collect()
}

fn of_lane(gathered: &Patterns, at: usize, lane: usize, backwards: bool) -> Option<Lane> {
    let levels = gathered.levels_of(at, lane);
    let middle = median(&mut levels.iter().map(|(_, _, q)| q[1]).collect::<Vec<_>>());
    let sign = if backwards { -1.0 } else { 1.0 };
    let centred = |q: [f64; 3]| if backwards { [q[2], q[1], q[0]] } else { q }.map(|t| (t - middle) * sign);
    let is_there = levels.len() as f64 >= THERE * gathered.slots.count() as f64;
    is_there.then(|| Lane {
        at,
        backwards,
        streams: gathered.streams_of(at, lane),
        packets: levels.iter().map(|(_, n, _)| n).sum(),
        quartiles: levels.iter().map(|(slot, _, q)| (*slot, centred(*q))).collect(),
    })
}

/// A swing that all lanes between two machines have in common.
fn one(gathered: &Patterns, names: &Names, lanes: &[Lane]) -> Option<DetectedPattern> {
    let in_all = |slot: &usize| lanes.iter().all(|lane| lane.quartiles.contains_key(slot));
    let slots: Vec<usize> = lanes.first()?.quartiles.keys().copied().filter(in_all).collect();
    let mean = |slot: &usize, q: usize| lanes.iter().map(|l| l.quartiles[slot][q]).sum::<f64>() / lanes.len() as f64;
    let all: Vec<[f64; 3]> = slots.iter().map(|slot| [0, 1, 2].map(|q| mean(slot, q))).collect();
    let found = swing(&all, gathered.slots.length() as f64 / 1e9)?;
    let level: Vec<f64> = all.iter().map(|q| q[1]).collect();
    let of = |lane: &Lane| slots.iter().map(|slot| lane.quartiles[slot][1]).collect::<Vec<_>>();
    if lanes.iter().any(|lane| correlation(&of(lane), &level) < ALIKE) {
        return None;
    }
    let (from, to) = (gathered.slots.begin(*slots.first()?), gathered.slots.begin(slots.last()? + 1));
    let pattern = Pattern {
        kind: PatternKind::ServoSwing,
        count: found.turns as u64,
        size_ns: Some(found.size as Ns),
        period_ns: Some((found.period * gathered.slots.length() as f64) as Ns),
        ..Pattern::default()
    };
    let mut pattern = names.of_segment(gathered.watched[lanes[0].at].segment, pattern);
    for lane in lanes {
        let more = names.of_segment(gathered.watched[lane.at].segment, Pattern::default()).segments;
        more.into_iter().for_each(|name| {
            if !pattern.segments.contains(&name) {
                pattern.segments.push(name)
            }
        });
    }
    let streams = lanes.iter().flat_map(|lane| lane.streams.iter().copied()).collect();
    let packets = lanes.iter().map(|lane| lane.packets).sum();
    let occurrence = Occurrence { from_ns: from, to_ns: to, size_ns: found.size as Ns, packets };
    let mut found = names.finish(pattern, vec![occurrence], vec![Touched { streams, from, to }]);
    if lanes.iter().any(|lane| lane.backwards) && lanes.iter().any(|lane| !lane.backwards) {
        found.pattern.text += "; packets of the other direction move the other way";
    }
    Some(found)
}
