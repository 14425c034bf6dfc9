//! Reasons why two groups cannot be compared, as a whole or in one figure.

use crate::comparison::{LossRow, Row, Unit};
use crate::pairs::Pair;
use crate::recording::{Figure, Measured, Recording};
use latpath_stats::units::{duration, rate};

/// Maximum ratio of packet rates; with a larger one, the streams load the host differently.
const RATES_APART: f64 = 1.02;
/// Maximum share of sightings that latpath itself may lose.
const DROPPED: f64 = 1e-3;

/// Reasons why the two groups cannot be compared at all.
pub fn pages_reasons((a_name, a): (&str, &[Recording]), (b_name, b): (&str, &[Recording])) -> Vec<String> {
    let all = || a.iter().chain(b);
    let mut why = Vec::new();
    if let Some(empty) = all().find(|r| r.packets() == 0) {
        why.push(format!("{} has no packet", empty.path));
    }
    if all().any(|r| r.source != a[0].source) {
        why.push("a run and a log of ping measure different things".into());
    }
    let streams = |r: &Recording| {
        let mut streams = r.streams.clone();
        streams.sort();
        streams
    };
    if let Some(other) = all().find(|r| streams(r) != streams(&a[0])) {
        let one = |r: &Recording| format!("{} has {}", r.path, r.streams.join(" "));
        why.push(format!("other streams: {}, {}; choose common ones with --stream", one(&a[0]), one(other)));
    }
    let rates = |group: &[Recording]| {
        let all = group.iter().map(Recording::rate_hz);
        all.fold((f64::MAX, 0.0_f64), |(least, most), hz| (least.min(hz), most.max(hz)))
    };
    let ((a_least, a_most), (b_least, b_most)) = (rates(a), rates(b));
    if a_most.max(b_most) > a_least.min(b_least) * RATES_APART {
        let text = |least: f64, most: f64| match most > least * RATES_APART {
            true => format!("{} to {}", rate(least), rate(most)),
            false => rate(most),
        };
        let (a_text, b_text) = (text(a_least, a_most), text(b_least, b_most));
        why.push(format!("unequal rates: {a_name} has {a_text} packets/s, {b_name} {b_text}"));
    }
    let dropped = |r: &&Recording| r.sightings.1 as f64 > DROPPED * (r.sightings.0 as f64 + r.sightings.1 as f64);
    if let Some(r) = all().find(dropped) {
        why.push(format!("latpath lost {} of its own sightings of {}", r.sightings.1, r.path));
    }
    why
}

/// Reason why a segment cannot be compared: the two groups measure it between different points, although one group has
/// both points. Another device name at the same place (`vnet0`, `vnet7`) is no reason.
pub fn other_place(
    pair: &Pair,
    (a_name, a): (&str, &[Recording]),
    (b_name, b): (&str, &[Recording]),
) -> Option<String> {
    let (in_a, in_b) = (pair.a.first()?, pair.b.first()?);
    let has = |group: &[Recording], point: &str| {
        group.iter().flat_map(|r| &r.segments).any(|m| m.from == point || m.to == point)
    };
    let ends = [("begins", &in_a.from, &in_b.from), ("ends", &in_a.to, &in_b.to)];
    let (verb, at_a, at_b) = ends.into_iter().find(|(_, at_a, at_b)| at_a != at_b && (has(b, at_a) || has(a, at_b)))?;
    let (other, point) = if has(b, at_a) { (b_name, at_a) } else { (a_name, at_b) };
    Some(format!("{} {verb} at {at_a} in {a_name}, at {at_b} in {b_name}, and {other} has {point} too", in_a.name))
}

/// Reason why one figure of a segment cannot be compared; `None` if it can.
pub fn row_reason(pair: &Pair, figure: Figure, row: &Row, names: (&str, &str), losses: &[LossRow]) -> Option<String> {
    let sides = || pair.a.iter().chain(&pair.b);
    if figure == Figure::Spikes && sides().any(|m| m.spikes.is_none() || m.is_late_often) {
        return Some("packets are over the threshold too often to count spikes; --threshold sets another".into());
    }
    if let Some(why) = losses.iter().find(|l| l.stream == pair.a[0].stream).and_then(|l| lost(l, figure, names)) {
        return Some(why);
    }
    let Some(bound) = pair.error_bound_ns() else {
        return Some("how far the clocks were apart is not known".into());
    };
    let difference = (row.unit == Unit::Ns).then_some(row.difference?.value().abs())?;
    if row.p.is_none_or(|p| p >= crate::SIGNIFICANCE) {
        return None;
    }
    if bound as f64 >= difference {
        return Some(format!("the clocks may be wrong by {}, as much as the difference", duration(bound)));
    }
    let cost = |side: &[&Measured]| side.iter().map(|m| m.cost_ns).max().unwrap_or(0);
    let (a, b) = (cost(&pair.a), cost(&pair.b));
    (a.abs_diff(b) as f64 >= difference).then(|| {
        let (a, b) = (duration(a), duration(b));
        format!("latpath itself took {a} of each packet in {}, {b} in {}: it differs by as much", names.0, names.1)
    })
}

/// Lost packets have no time, but would perhaps have been among the slowest. If the two loss ratios differ by more than
/// a tenth of the share of packets beyond the figure, the figure describes different packets on each side.
fn lost(losses: &LossRow, figure: Figure, (a, b): (&str, &str)) -> Option<String> {
    let share = |lost: u64, packets: u64| lost as f64 / packets.max(1) as f64;
    let (in_a, in_b) = (share(losses.a_lost, losses.a_packets), share(losses.b_lost, losses.b_packets));
    let percent = |share: f64| format!("{:.3} %", share * 100.0);
    ((in_a - in_b).abs() > figure.beyond() / 10.0)
        .then(|| format!("{a} lost {} of its packets, {b} {}", percent(in_a), percent(in_b)))
}
