//! Finds a periodic series among other times.

use latpath_model::Ns;

/// Maximum deviation of a time from its expected time, as a fraction of the period; tried in this order.
const TOLERANCES: [f64; 2] = [0.04, 0.01];
/// Relative difference below which two distances count as equal.
const ALIKE: f64 = 0.02;
/// Minimum number of expected times that are hit, and their minimum fraction of all expected times (`KEPT`).
const MIN: usize = 6;
const KEPT: f64 = 0.6;
/// Maximum fraction of expected times that may be hit by chance.
const CHANCE: f64 = 0.25;
/// Significance of a train after all trials: maximum natural logarithm of its probability by chance.
const SIGNIFICANCE: f64 = -18.0;
/// Maximum distance between two successive hits, in periods.
const SKIPPED: f64 = 16.0;
/// Number of following times whose distance from a time is tried as the period.
const NEIGHBOURS: usize = 4;
/// Number of periods to try, and of starting points for each (`SEEDS`).
const PERIODS: usize = 8;
const SEEDS: usize = 8;

/// A train: a series of periodic times.
#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    pub period: f64,
    /// Indexes of the times that belong to the train.
    pub hits: Vec<usize>,
    /// Natural logarithm of the probability that the train occurs by chance.
    pub chance: f64,
}

/// The most significant train among packet times in ascending order, if there is one. `tried`: number of searches like
/// this one. `interval`: interval between packets, ns; the resolution of the times.
pub fn train(at: &[Ns], tried: usize, interval: f64) -> Option<Train> {
    let periods = candidates(at);
    let trials = (at.len() * at.len() * tried * 16).max(1) as f64;
    let seeds = |period: f64| {
        let pairs = (0..at.len()).filter_map(move |n| {
            let next = (n + 1..at.len().min(n + 1 + NEIGHBOURS)).find(|next| near(at[*next] - at[n], period))?;
            Some((n, next))
        });
        let pairs: Vec<(usize, usize)> = pairs.collect();
        let step = pairs.len().div_ceil(SEEDS).max(1);
        pairs.into_iter().step_by(step)
    };
    let all = periods.into_iter().flat_map(seeds);
    let each = all.flat_map(|seed| TOLERANCES.map(|tolerance| (seed, tolerance)));
    let judged =
        each.filter_map(|(seed, tolerance)| judge(at, follow(at, seed, tolerance), (tolerance, interval), trials.ln()));
    judged.min_by(|a, b| a.chance.total_cmp(&b.chance))
}

fn near(distance: Ns, period: f64) -> bool {
    (distance as f64 / period - 1.0).abs() < ALIKE
}

/// The most common distances between a time and the [`NEIGHBOURS`] times after it.
fn candidates(at: &[Ns]) -> Vec<f64> {
    let distance = |n: usize| (1..=NEIGHBOURS).filter_map(move |k| Some((at.get(n + k)? - at[n]) as f64));
    let mut distances: Vec<f64> = (0..at.len()).flat_map(distance).filter(|d| *d > 0.0).collect();
    distances.sort_by(f64::total_cmp);
    let mut windows: Vec<(usize, f64)> = Vec::new();
    let mut end = 0;
    for (begin, distance) in distances.iter().enumerate() {
        while distances.get(end).is_some_and(|d| *d <= distance * (1.0 + ALIKE)) {
            end += 1;
        }
        windows.push((end - begin, distances[(begin + end) / 2]));
    }
    windows.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.total_cmp(&b.1)));
    let mut periods: Vec<f64> = Vec::new();
    for (n, period) in windows {
        if n >= 2 && periods.len() < PERIODS && periods.iter().all(|p| (p / period).ln().abs() > ALIKE) {
            periods.push(period);
        }
    }
    periods
}

/// Follows the period given by a pair of times, backward and forward; returns the expected times that are hit. The
/// period is adapted to the hits, so it may drift.
fn follow(at: &[Ns], (first, second): (usize, usize), tolerance: f64) -> Vec<(i64, usize)> {
    let period = (at[second] - at[first]) as f64;
    let mut hits = walk(at, (period, tolerance), first, &mut (0..first).rev());
    hits.reverse();
    hits.push((0, first));
    hits.extend(walk(at, (period, tolerance), first, &mut (first + 1..at.len())));
    hits
}

/// Follows the period in one direction from `from`. Returns for each hit its distance from there in periods, and its
/// index.
fn walk(
    at: &[Ns],
    (mut period, tolerance): (f64, f64),
    from: usize,
    others: &mut dyn Iterator<Item = usize>,
) -> Vec<(i64, usize)> {
    let begin = (0_i64, at[from]);
    let mut last = begin;
    let mut hits: Vec<(i64, usize)> = Vec::new();
    for n in others {
        let turns = (at[n] - last.1) as f64 / period;
        let turn = turns.round();
        if turn.abs() > SKIPPED {
            break;
        }
        if turn == 0.0 || (turns - turn).abs() > tolerance {
            continue;
        }
        last = (last.0 + turn as i64, at[n]);
        hits.push((last.0, n));
        // Measured over up to 32 hits, so that the jitter of a single one has little effect.
        let base = hits.len().checked_sub(32).map_or(begin, |n| (hits[n].0, at[hits[n].1]));
        period = (last.1 - base.1) as f64 / (last.0 - base.0) as f64;
    }
    hits
}

/// Returns the train if it has more hits than chance explains.
fn judge(at: &[Ns], hits: Vec<(i64, usize)>, (tolerance, interval): (f64, f64), trials: f64) -> Option<Train> {
    let (first, last) = (*hits.first()?, *hits.last()?);
    let turns = (last.0 - first.0) as f64;
    if hits.len() < MIN || (hits.len() as f64) < KEPT * (turns + 1.0) {
        return None;
    }
    let span = (at[last.1] - at[first.1]) as f64;
    let period = span / turns;
    // Times that are close together count as one.
    let apart = at[first.1..=last.1].chunk_by(|a, b| ((b - a) as f64) < period / 20.0).count();
    // The packet nearest to the expected time counts as a hit at any distance, so the window is at least one packet
    // interval.
    let on_time = (2.0 * tolerance).max(interval / period);
    let by_chance = 1.0 - (-(apart as f64) / turns * on_time).exp();
    let of = |n: f64| if n < 1.0 { 0.0 } else { n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() };
    let kept = hits.len() as f64;
    let ways = of(turns + 1.0) - of(kept) - of(turns + 1.0 - kept);
    let chance = ways + (kept - 2.0) * by_chance.ln() + trials;
    let hits = hits.into_iter().map(|(_, n)| n).collect();
    (by_chance <= CHANCE && chance < SIGNIFICANCE).then_some(Train { period, hits, chance })
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_testkit::Noise;
    use proptest::prelude::*;

    fn chance(n: usize, span: f64, noise: &mut Noise) -> Vec<Ns> {
        let mut at: Vec<Ns> = (0..n).map(|_| (noise.unit() * span) as Ns).collect();
        at.sort_unstable();
        at
    }

    #[test]
    fn late_packets_of_a_burst_are_no_train() {
        // Packets come every 2.5 ms, and most of them are late for a while.
        let noise = &mut Noise(7);
        let burst: Vec<Ns> = (0..40).filter(|_| noise.unit() < 0.8).map(|n| n * 2_500_000).collect();
        assert_eq!(train(&burst, 1, 2.5e6), None);
        assert!(train(&burst, 1, 0.0).is_some());
    }

    proptest! {
        #[test]
        fn spikes_that_come_periodically_are_found_among_others(
            seed in 1..u64::MAX,
            period in 1e7..60e9_f64,
            turns in 20..200_usize,
            others in 0.0..0.5_f64,
            missing in 0.0..0.15_f64,
        ) {
            let noise = &mut Noise(seed);
            let mut at = chance((turns as f64 * others) as usize, period * turns as f64, noise);
            let jitter = |noise: &mut Noise| (noise.unit() - 0.5) * 0.01 * period;
            at.extend((0..turns).filter(|_| noise.unit() >= missing).map(|n| n as f64 * period).collect::<Vec<_>>().iter()
                .map(|t| (t + jitter(noise)) as Ns));
            at.sort_unstable();
            let found = train(&at, 1, 0.0).expect("a train");
            prop_assert!((found.period / period - 1.0).abs() < 0.01, "{} for {period}", found.period);
        }

        #[test]
        fn spikes_by_chance_are_no_train(seed in 1..u64::MAX, n in 0..300_usize) {
            prop_assert_eq!(train(&chance(n, 1e12, &mut Noise(seed)), 1, 0.0), None);
        }
    }
}
