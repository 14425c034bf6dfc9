//! Finds changes of the packets' path.

use super::{DetectedPattern, Names, Touched};
use crate::patterns::gather::{Patterns, Stream};
use crate::patterns::shifts::shifts;
use crate::patterns::{Occurrence, Pattern, PatternKind};
use latpath_journey::{PathClass, Paths};
use latpath_model::{Ns, StreamId};
use std::collections::BTreeMap;

/// Noise assumed for a share: eight times this, 2 % of the packets, is the minimum change.
const NOISE: f64 = 0.0025;

/// Maximum number of slots on each side of a change over which the share is measured.
const LEVEL: usize = 60;

struct Change {
    slot: usize,
    end: usize,
    stream: StreamId,
    what: String,
    before: f64,
    after: f64,
    packets: u64,
}

pub fn find(gathered: &Patterns, names: &Names) -> Vec<DetectedPattern> {
    let paths = Paths::of_points(&names.setup.points);
    let of_stream = |(id, stream): (usize, &Stream)| changes(id as StreamId, stream, &paths, names);
    let mut all: Vec<Change> = gathered.streams.iter().enumerate().flat_map(of_stream).collect();
    all.sort_by(|a, b| (&a.what, a.slot, a.stream).cmp(&(&b.what, b.slot, b.stream)));
    let alike = |a: &Change, b: &Change| {
        a.what == b.what && b.slot - a.slot <= 1 && (a.after > a.before) == (b.after > b.before)
    };
    all.chunk_by(alike).map(|changes| one(gathered, names, changes)).collect()
}

/// Name of a path or point, and its share in each slot.
type Share = (String, Vec<f64>);

/// The slots with packets (index, number of packets), and the share of each path class and of each point of the route
/// among the stream's packets in these slots.
fn shares(stream: &Stream, paths: &Paths, names: &Names) -> (Vec<(usize, u64)>, Vec<Share>) {
    let mut slots: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    stream.point_sets.counts().for_each(|(slot, set, n)| slots.entry(slot).or_default().push((set, n)));
    let total = |sets: &Vec<(u64, u64)>| sets.iter().map(|(_, n)| n).sum::<u64>();
    let series = |is: &dyn Fn(u64) -> bool| {
        let of = |sets: &Vec<(u64, u64)>| sets.iter().filter(|(set, _)| is(*set)).map(|(_, n)| n).sum::<u64>();
        slots.values().map(|sets| of(sets) as f64 / total(sets) as f64).collect::<Vec<f64>>()
    };
    let classes = PathClass::ALL.into_iter().filter(|_| paths.any());
    let classes = classes.map(|class| (format!("the path \"{class}\""), series(&|set| paths.class(set) == class)));
    let points = stream.route.iter().map(|p| (names.point(*p), series(&|set| set >> p & 1 == 1)));
    let all = classes.chain(points).collect();
    (slots.iter().map(|(slot, sets)| (*slot, total(sets))).collect(), all)
}

/// The changes of a stream's paths. Of several simultaneous changes only one is kept: paths have priority over points,
/// and then increases over decreases.
fn changes(id: StreamId, stream: &Stream, paths: &Paths, names: &Names) -> Vec<Change> {
    let (slots, all) = shares(stream, paths, names);
    let mut found: Vec<(usize, bool, usize, f64, f64)> = Vec::new();
    for (rank, (_, series)) in all.iter().enumerate() {
        let is_constant = series.windows(2).all(|two| two[0] == two[1]);
        let shifts = if is_constant { Vec::new() } else { shifts(series, NOISE, LEVEL) };
        found.extend(shifts.into_iter().map(|s| (s.at, s.after < s.before, rank, s.before, s.after)));
    }
    found.sort_by_key(|(at, falls, rank, ..)| (*at, rank >= &PathClass::ALL.len() && paths.any(), *falls, *rank));
    found.dedup_by(|next, first| next.0 - first.0 <= 1);
    let ends = found.iter().skip(1).map(|f| f.0).chain([slots.len()]);
    let change = |(found, end): (&(usize, bool, usize, f64, f64), usize)| Change {
        slot: slots[found.0].0,
        end: slots[end - 1].0 + 1,
        stream: id,
        what: all[found.2].0.clone(),
        before: found.3,
        after: found.4,
        packets: slots[found.0..end].iter().map(|(_, n)| n).sum(),
    };
    found.iter().zip(ends).map(change).collect()
}

/// Merges the simultaneous occurrences of one change in several streams into a pattern.
fn one(gathered: &Patterns, names: &Names, changes: &[Change]) -> DetectedPattern {
    let first = &changes[0];
    let from = gathered.slots.begin(first.slot);
    let to = gathered.slots.begin(changes.iter().map(|c| c.end).max().unwrap_or(0));
    let mean = |of: fn(&Change) -> f64| 100.0 * changes.iter().map(of).sum::<f64>() / changes.len() as f64;
    let pattern = Pattern {
        kind: PatternKind::PathChange,
        count: 1,
        path: Some(first.what.clone()),
        share_percent: Some([mean(|c| c.before), mean(|c| c.after)]),
        ..Pattern::default()
    };
    let packets = changes.iter().map(|c| c.packets).sum();
    let streams: Vec<StreamId> = changes.iter().map(|c| c.stream).collect();
    let occurrence = Occurrence { from_ns: from, to_ns: to, size_ns: Ns::default(), packets };
    names.finish(pattern, vec![occurrence], vec![Touched { streams, from, to }])
}
