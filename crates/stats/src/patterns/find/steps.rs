//! Steps of a segment's level.

use super::{Found, Names, Touched};
use crate::patterns::gather::Patterns;
use crate::patterns::median;
use crate::patterns::shifts::shifts;
use crate::patterns::{Occurrence, Pattern, PatternKind};
use latpath_model::{Ns, StreamId};

/// The height of a step is that between so many slots on each side: over more of them levels drift.
const LEVEL: usize = 10;

struct Step {
    slot: usize,
    /// The slot behind its last.
    end: usize,
    packets: u64,
    before: f64,
    after: f64,
    streams: Vec<StreamId>,
}

pub fn find(gathered: &Patterns, names: &Names) -> Vec<Found> {
    let of_segment = |at: usize| {
        let mut steps: Vec<Step> = (0..gathered.lanes).flat_map(|lane| of_lane(gathered, at, lane)).collect();
        steps.sort_by_key(|step| (step.slot, step.streams.first().copied()));
        let alike = |a: &Step, b: &Step| b.slot - a.slot <= 1 && (a.after > a.before) == (b.after > b.before);
        let found: Vec<Found> =
            steps.chunk_by(alike).map(|steps| one(gathered, names, gathered.watched[at].segment, steps)).collect();
        found
    };
    (0..gathered.watched.len()).flat_map(of_segment).collect()
}

fn of_lane(gathered: &Patterns, at: usize, lane: usize) -> Vec<Step> {
    let levels = gathered.levels_of(at, lane);
    let middles: Vec<f64> = levels.iter().map(|(_, _, q)| q[1]).collect();
    let mut spreads: Vec<f64> = levels.iter().map(|(_, _, q)| q[2] - q[0]).collect();
    let level = median(&mut middles.clone()).abs();
    let floor = (level * 0.005).max(median(&mut spreads) / 40.0).max(60.0);
    let found = shifts(&middles, floor, LEVEL);
    let ends = found.iter().skip(1).map(|shift| shift.at).chain([levels.len()]);
    let step = |(shift, end): (&crate::patterns::shifts::Shift, usize)| Step {
        slot: levels[shift.at].0,
        end: levels[end - 1].0 + 1,
        packets: levels[shift.at..end].iter().map(|(_, n, _)| n).sum(),
        before: shift.before,
        after: shift.after,
        streams: gathered.streams_of(at, lane),
    };
    found.iter().zip(ends).map(step).collect()
}

/// The same step of several streams.
fn one(gathered: &Patterns, names: &Names, segment: usize, steps: &[Step]) -> Found {
    let mean = |of: fn(&Step) -> f64| (steps.iter().map(of).sum::<f64>() / steps.len() as f64) as Ns;
    let levels = [mean(|s| s.before), mean(|s| s.after)];
    let size = levels[1] - levels[0];
    let from = gathered.slots.begin(steps[0].slot);
    let to = gathered.slots.begin(steps.iter().map(|s| s.end).max().unwrap_or(0));
    let packets = steps.iter().map(|s| s.packets).sum();
    let pattern = Pattern {
        kind: PatternKind::Step,
        count: 1,
        size_ns: Some(size),
        levels_ns: Some(levels),
        ..Pattern::default()
    };
    let streams = steps.iter().flat_map(|s| s.streams.iter().copied()).collect();
    let occurrence = Occurrence { from_ns: from, to_ns: to, size_ns: size, packets };
    names.finish(names.of_segment(segment, pattern), vec![occurrence], vec![Touched { streams, from, to }])
}
