//! Detects whether the times between two machines rise and fall because one machine's clock swings relative to the
//! other's.

use super::{median, robust_deviation};

/// Minimum number of slots for a search.
const MIN: usize = 40;
/// Minimum size of a swing, as a multiple of the noise from slot to slot.
const TIMES_NOISE: f64 = 8.0;
/// Maximum of von Neumann's ratio, the mean square change from slot to slot divided by the variance of the level: a
/// swing is smooth. Noise with a correlation of 0.9 from slot to slot has a ratio of 0.2.
const SMOOTH: f64 = 0.06;
/// Maximum ratio between the movements of the two quartiles: a swing moves the whole distribution.
const TOGETHER: f64 = 1.25;
/// Minimum number of turning points of a swing.
const TURNS: usize = 3;
/// Maximum rate of a clock swing, ns per second.
const STEEPEST: f64 = 200_000.0;
/// Number of values whose median yields a smoothed value.
const SMOOTHED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swing {
    /// Median difference between successive turning points, ns.
    pub size: f64,
    /// Mean distance between every second turning point, slots.
    pub period: f64,
    pub turns: usize,
}

/// Searches a series of quartiles for a swing; one entry per slot of `slot_s` seconds.
pub fn swing(quartiles: &[[f64; 3]], slot_s: f64) -> Option<Swing> {
    if quartiles.len() < MIN {
        return None;
    }
    let of = |q: usize| quartiles.iter().map(|all| all[q]).collect::<Vec<f64>>();
    let level = of(1);
    let smooth: Vec<f64> = level.windows(SMOOTHED).map(|window| median(&mut window.to_vec())).collect();
    let (least, greatest) = smooth.iter().fold((f64::MAX, f64::MIN), |(min, max), v| (min.min(*v), max.max(*v)));
    let size = greatest - least;
    let steps: Vec<f64> = level.windows(2).map(|two| two[1] - two[0]).collect();
    let noise = robust_deviation(&steps) / std::f64::consts::SQRT_2;
    let variance = covariance(&level, &level);
    let ratio = steps.iter().map(|d| d * d).sum::<f64>() / steps.len() as f64 / variance;
    let (low, high) = (covariance(&of(0), &level), covariance(&of(2), &level));
    let steepest = smooth.windows(4).map(|w| (w[3] - w[0]).abs() / 3.0).fold(0.0, f64::max) / slot_s;
    let is_one = size > TIMES_NOISE * noise
        && ratio < SMOOTH
        && (1.0 / TOGETHER..TOGETHER).contains(&(high / low))
        && steepest < STEEPEST;
    let turns = turns(&smooth, size / 2.0);
    let (first, last) = (*turns.first()?, *turns.last()?);
    let period = 2.0 * (last - first) as f64 / (turns.len() - 1).max(1) as f64;
    // Measured between successive turning points, so that a slow drift adds nothing.
    let mut sizes: Vec<f64> = turns.windows(2).map(|two| (smooth[two[1]] - smooth[two[0]]).abs()).collect();
    (is_one && turns.len() >= TURNS).then(|| Swing { size: median(&mut sizes), period, turns: turns.len() })
}

/// The turning points of a series: before and after each, the series moves by more than `far`.
fn turns(series: &[f64], far: f64) -> Vec<usize> {
    let (mut turns, mut least, mut greatest, mut rises) = (Vec::new(), 0, 0, None);
    for (at, value) in series.iter().enumerate() {
        if *value < series[least] {
            least = at;
        }
        if *value > series[greatest] {
            greatest = at;
        }
        if rises != Some(false) && series[greatest] - value > far {
            if rises.is_some() {
                turns.push(greatest);
            }
            (rises, least) = (Some(false), at);
        } else if rises != Some(true) && value - series[least] > far {
            if rises.is_some() {
                turns.push(least);
            }
            (rises, greatest) = (Some(true), at);
        }
    }
    turns
}

/// Covariance of two series.
pub fn covariance(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len().min(b.len()).max(1) as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum::<f64>() / n
}

/// Correlation coefficient; 0 if one series is constant.
pub fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let of = (covariance(a, a) * covariance(b, b)).sqrt();
    if of > 0.0 {
        covariance(a, b) / of
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_testkit::Noise;
    use proptest::prelude::*;

    /// Noisy quartiles, scaled and shifted as `level` returns for each slot.
    fn series(seed: u64, slots: usize, level: impl Fn(f64) -> (f64, f64)) -> Vec<[f64; 3]> {
        let noise = &mut Noise(seed);
        let one = |slot: usize| {
            let (by, times) = level(slot as f64);
            [75e3, 100e3, 130e3].map(|q| q * times + by + (noise.unit() - 0.5) * 3e3)
        };
        (0..slots).map(one).collect()
    }

    proptest! {
        #[test]
        fn a_swing_is_found_with_its_size_and_period(seed in 1..u64::MAX, period in 40.0..120.0_f64, size in 4e4..4e5_f64) {
            let wave = |slot: f64| (size / 2.0 * (slot / period * std::f64::consts::TAU).sin(), 1.0);
            let found = swing(&series(seed, 400, wave), 1.0).expect("a swing");
            prop_assert!((found.period / period - 1.0).abs() < 0.1 && (found.size / size - 1.0).abs() < 0.1, "{found:?}");
        }

        #[test]
        fn an_intermittent_load_is_no_swing(seed in 1..u64::MAX, period in 40.0..120.0_f64) {
            let load = |slot: f64| (0.0, 1.4 + (slot / period * std::f64::consts::TAU).sin() * 0.4);
            prop_assert_eq!(swing(&series(seed, 400, load), 1.0), None);
        }
    }
}
