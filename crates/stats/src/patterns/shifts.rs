//! Finds lasting changes of level in a series of values.

use super::{median, robust_deviation};

/// Numbers of values to compare on each side of a change.
const WINDOWS: [usize; 3] = [30, 15, 5];
/// Minimum size of a change, as a multiple of the noise; increased if there are few windows to estimate the noise from.
const TIMES_NOISE: f64 = 8.0;
/// Number of values on each side that show whether a change is abrupt.
const BESIDE: usize = 3;
/// Maximum number of changes in a series.
const MAX: usize = 32;

/// A change of level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Index of the first value of the new level.
    pub at: usize,
    pub before: f64,
    pub after: f64,
}

/// All changes of a series that exceed its noise, which is assumed to be at least `floor`, in order. The greatest
/// change is found first, then those on either side of it, each side with its own noise. A level is the median of up to
/// `level` values next to the change.
pub fn shifts(series: &[f64], floor: f64, level: usize) -> Vec<Shift> {
    let (mut places, mut open) = (Vec::new(), vec![(0, series.len())]);
    while let Some((begin, end)) = open.pop() {
        let all = WINDOWS.into_iter().flat_map(|width| jumps(&series[begin..end], width, floor));
        let Some((_, at)) = all.max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        places.push(begin + at);
        if places.len() == MAX {
            break;
        }
        open.extend([(begin, begin + at), (begin + at, end)]);
    }
    places.sort_unstable();
    levels(series, &places, floor, level)
}

/// Positions of abrupt changes, at which the medians of the `width` values before and after differ by more than the
/// noise allows: the change divided by this limit, and the best position.
fn jumps(series: &[f64], width: usize, floor: f64) -> Vec<(f64, usize)> {
    if series.len() < 4 * width {
        return Vec::new();
    }
    let medians: Vec<f64> = series.windows(width).map(|window| median(&mut window.to_vec())).collect();
    let mut differences: Vec<f64> =
        medians.iter().zip(&medians[width..]).map(|(before, after)| after - before).collect();
    // Remove the drift: a steadily rising series has no step.
    let drift = median(&mut differences.clone());
    differences.iter_mut().for_each(|d| *d -= drift);
    let windows = series.len() as f64 / width as f64;
    let noise = robust_deviation(&differences).max(floor) * TIMES_NOISE * (1.0 + 4.0 / windows);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(begin) = differences[from..].iter().position(|d| d.abs() > noise).map(|n| from + n) {
        // Consider neighbouring differences of the same sign together.
        let sign = differences[begin].signum();
        let len = differences[begin..].iter().take_while(|d| **d * sign > noise).count();
        let best = (begin..begin + len).max_by(|a, b| differences[*a].abs().total_cmp(&differences[*b].abs()));
        from = begin + len;
        let Some(best) = best else { continue };
        let (before, after) = (medians[best], medians[best + width]);
        let place = boundary(series, best, width, (before, after));
        if is_abrupt(series, place, after - before) {
            found.push(((after - before).abs() / noise, place));
        }
    }
    found
}

/// The position that best separates values near the first level from those near the second.
fn boundary(series: &[f64], begin: usize, width: usize, (before, after): (f64, f64)) -> usize {
    let window = &series[begin..begin + 2 * width];
    let mut cost: f64 = window.iter().map(|v| (v - after).abs()).sum();
    let mut best = (cost, 0);
    for (at, v) in window.iter().enumerate() {
        cost += (v - before).abs() - (v - after).abs();
        if cost < best.0 {
            best = (cost, at + 1);
        }
    }
    begin + best.1
}

/// Whether most of a change happens at once.
fn is_abrupt(series: &[f64], at: usize, change: f64) -> bool {
    if at < BESIDE || at + BESIDE > series.len() {
        return false;
    }
    let (mut before, mut after) = (series[at - BESIDE..at].to_vec(), series[at..at + BESIDE].to_vec());
    (median(&mut after) - median(&mut before)) / change >= 0.6
}

/// The levels on both sides of each position, for those that are still changes.
fn levels(series: &[f64], places: &[usize], floor: f64, level: usize) -> Vec<Shift> {
    let shift = |(n, at): (usize, &usize)| {
        let begin = n.checked_sub(1).map_or(0, |n| places[n]).max(at.saturating_sub(level));
        let end = places.get(n + 1).copied().unwrap_or(series.len()).min(at + level);
        let (before, after) = (median(&mut series[begin..*at].to_vec()), median(&mut series[*at..end].to_vec()));
        ((after - before).abs() > TIMES_NOISE * floor).then_some(Shift { at: *at, before, after })
    };
    places.iter().enumerate().filter_map(shift).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_step_is_found_where_it_is(
            noise in prop::collection::vec(-1.0..1.0_f64, 40..300),
            at in 0.2..0.8_f64,
            height in prop_oneof![-200.0..-30.0_f64, 30.0..200.0_f64],
        ) {
            let at = (noise.len() as f64 * at) as usize;
            let series: Vec<f64> = noise.iter().enumerate().map(|(n, v)| v + if n >= at { height } else { 0.0 }).collect();
            let found = shifts(&series, 0.1, 20);
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(found[0].at, at);
            prop_assert!((found[0].after - found[0].before - height).abs() < 2.1);
        }

        #[test]
        fn noise_and_a_slow_rise_are_no_step(noise in prop::collection::vec(-1.0..1.0_f64, 0..300), slope in -0.3..0.3_f64) {
            let series: Vec<f64> = noise.iter().enumerate().map(|(n, v)| v + n as f64 * slope).collect();
            prop_assert_eq!(shifts(&series, 0.1, 20), []);
        }
    }
}
