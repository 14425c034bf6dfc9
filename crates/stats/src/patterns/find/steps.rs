//! Finds steps of a segment's level.

use super::{DetectedPattern, Names, Touched};
use crate::patterns::gather::Patterns;
use crate::patterns::median;
use crate::patterns::shifts::{shifts, Shift};
use crate::patterns::{Occurrence, Pattern, PatternKind};
use latpath_model::{Ns, StreamId};

/// Number of slots on each side over which the height of a step is measured; over more slots, levels drift.
const LEVEL: usize = 10;
/// Minimum duration of a level on each side of a step, ns.
const LASTS: Ns = 5_000_000_000;
/// Minimum sum of several changes within [`LASTS`], as a fraction of the greatest one. If the sum is less, they are an
/// episode rather than a step.
const ADDS_UP: f64 = 0.6;

struct Step {
    slot: usize,
    /// The slot after the last one with the new level.
    end: usize,
    packets: u64,
    before: f64,
    after: f64,
    streams: Vec<StreamId>,
}

pub fn find(gathered: &Patterns, names: &Names) -> Vec<DetectedPattern> {
    let of_segment = |at: usize| {
        let mut steps: Vec<Step> = (0..gathered.lanes).flat_map(|lane| of_lane(gathered, at, lane)).collect();
        steps.sort_by_key(|step| (step.slot, step.streams.first().copied()));
        let alike = |a: &Step, b: &Step| b.slot - a.slot <= 1 && (a.after > a.before) == (b.after > b.before);
        let found: Vec<DetectedPattern> =
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
    let slots: Vec<usize> = levels.iter().map(|(slot, ..)| *slot).collect();
    let found = lasting(&shifts(&middles, floor, LEVEL), &slots, gathered.slots.length());
    let ends = found.iter().skip(1).map(|shift| shift.at).chain([levels.len()]);
    let step = |(shift, end): (&Shift, usize)| Step {
        slot: levels[shift.at].0,
        end: levels[end - 1].0 + 1,
        packets: levels[shift.at..end].iter().map(|(_, n, _)| n).sum(),
        before: shift.before,
        after: shift.after,
        streams: gathered.streams_of(at, lane),
    };
    found.iter().zip(ends).map(step).collect()
}

/// Changes before and after which the level is stable for [`LASTS`]. Changes in quick succession are merged if they
/// lead to another level, and dropped if the level returns. `slots`: slot of each value of the series; each slot has
/// this `length`, ns.
fn lasting(found: &[Shift], slots: &[usize], length: Ns) -> Vec<Shift> {
    let apart = |from: usize, to: usize| (to.saturating_sub(from) as Ns).saturating_mul(length);
    let (Some(begin), Some(end)) = (slots.first(), slots.last().map(|last| last + 1)) else { return Vec::new() };
    let groups: Vec<&[Shift]> = found.chunk_by(|a, b| apart(slots[a.at], slots[b.at]) < LASTS).collect();
    let together = |group: &&[Shift]| {
        let (first, last) = (group.first()?, group.last()?);
        let size = |shift: &Shift| (shift.after - shift.before).abs();
        let greatest = group.iter().map(size).fold(0.0, f64::max);
        let one = Shift { after: last.after, ..*first };
        let stays = apart(*begin, slots[first.at]) >= LASTS && apart(slots[last.at], end) >= LASTS;
        (stays && size(&one) >= ADDS_UP * greatest).then_some(one)
    };
    groups.iter().filter_map(together).collect()
}

/// Merges the simultaneous steps of several streams into a pattern.
fn one(gathered: &Patterns, names: &Names, segment: usize, steps: &[Step]) -> DetectedPattern {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Ns = 1_000_000_000;

    fn shift(at: usize, before: f64, after: f64) -> Shift {
        Shift { at, before, after }
    }

    #[test]
    fn a_level_that_returns_within_seconds_is_no_step() {
        let slots: Vec<usize> = (0..60).collect();
        let found = |shifts: &[Shift], length| lasting(shifts, &slots, length);
        let step = shift(30, 10.0, 50.0);
        assert_eq!(found(&[step], SECOND), [step]);
        // Up and down again: after 3 s an episode, after 20 s two steps.
        assert_eq!(found(&[step, shift(33, 50.0, 11.0)], SECOND), []);
        assert_eq!(found(&[step, shift(50, 50.0, 11.0)], SECOND).len(), 2);
        // A step in two stages.
        assert_eq!(found(&[shift(30, 10.0, 30.0), shift(32, 30.0, 50.0)], SECOND), [step]);
        // Changes too close to the start or the end, or in a recording of a few seconds, are not steps.
        assert_eq!(found(&[shift(4, 10.0, 50.0), shift(56, 50.0, 10.0)], SECOND), []);
        assert_eq!(found(&[step], SECOND / 10), [], "six seconds");
        assert_eq!(lasting(&[], &[], SECOND), []);
    }
}
