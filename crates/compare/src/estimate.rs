//! A figure of one recording, and its variance within the recording.
//!
//! Consecutive packets are correlated and carry less information than independent ones, so the variance is computed
//! over blocks of whole seconds. With r = Σx/Σn over all seconds (x: sum of times, or count of slow packets; n:
//! packets), resampling K blocks with replacement gives r the variance K/(K−1) · Σ(x_b − r·n_b)² / (Σn)² in closed
//! form; no random numbers are needed. Block lengths of 1, 2, 4, … seconds are tried while at least 16 blocks remain,
//! and the largest variance counts.

use latpath_histogram::compact::{place_of, Place};
use latpath_histogram::Histogram;
use latpath_model::Ns;
use latpath_stats::track::{Interval, Intervals, Lost, Spikes};

/// One hour, ns.
const HOUR: f64 = 3.6e12;
/// Minimum number of blocks from which a variance is estimated.
const MIN_BLOCKS: usize = 16;
/// Minimum number of packets beyond a percentile; with fewer, it would depend on individual packets.
pub const MIN_BEYOND: f64 = 10.0;
/// Variance of the quantisation error of a nanosecond clock, ns².
const RESOLUTION: f64 = 1.0 / 12.0;
/// Half the width of a histogram bucket, relative to the value.
const HALF_BUCKET: f64 = 1.0 / 512.0;

/// A figure of one recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value, on the scale of the comparison.
    pub value: f64,
    /// Value for display: events per hour (compared by the square root of the rate), or lost packets in percent
    /// (compared by an arcsine).
    pub counted: f64,
    /// Variance within the recording.
    pub variance: f64,
    /// Degrees of freedom of the variance; 0 if the recording is too short to estimate it.
    pub degrees: f64,
}

/// Time span of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Time of the first packet.
    pub begin: Ns,
    /// Time from the first packet to the last.
    pub elapsed: Ns,
    /// Division of the span into intervals.
    pub intervals: Intervals,
}

impl Span {
    /// Divides a recording into intervals for `tracks` tracks.
    pub fn of((first, last): (Ns, Ns), tracks: usize) -> Self {
        Self { begin: first, elapsed: last.saturating_sub(first).max(0), intervals: Intervals::of(first, last, tracks) }
    }
}

/// Times of one segment in a recording.
#[derive(Clone, Debug)]
pub struct Times {
    /// All times, ns.
    pub histogram: Histogram,
    /// The times by interval.
    pub intervals: Vec<(usize, Interval)>,
}

impl Times {
    /// The mean, ns.
    pub fn mean(&self) -> Option<Estimate> {
        let n = self.histogram.count() as f64;
        (n >= MIN_BEYOND).then(|| {
            let value = self.histogram.sum() as f64 / n;
            let (variance, degrees) = self.ratio(|interval| interval.sum as f64);
            let independent = (self.histogram.stddev() as f64).powi(2) / n;
            Estimate { value, counted: value, variance: variance.max(independent).max(RESOLUTION), degrees }
        })
    }

    /// The quantile at `share`, ns; `None` if fewer than 10 times are beyond it. Its variance is derived from the
    /// variance of the share of times beyond it, which is computed over blocks: the quantiles at `share` ± that
    /// standard deviation are one standard deviation from the value (Woodruff, Confidence intervals for medians and
    /// other position measures, JASA 47, 1952).
    pub fn quantile(&self, share: f64) -> Option<Estimate> {
        let n = self.histogram.count() as f64;
        if n * share.min(1.0 - share) < MIN_BEYOND {
            return None;
        }
        let value = self.histogram.quantile(share);
        let at = self.nearest_edge(value, share);
        let (variance, degrees) = self.ratio(|interval| interval.times.count_above(at) as f64);
        let beyond = self.beyond(at).clamp(0.5 / n, 1.0 - 0.5 / n);
        // Converts the variance from the nearest track edge to the quantile itself.
        let variance = variance * (share * (1.0 - share)) / (beyond * (1.0 - beyond));
        let deviation = variance.max(share * (1.0 - share) / n).sqrt();
        let (low, high) = (self.histogram.quantile(share - deviation), self.histogram.quantile(share + deviation));
        let variance = ((high - low) / 2.0).powi(2) + (value * HALF_BUCKET).powi(2) / 3.0;
        Some(Estimate { value, counted: value, variance, degrees })
    }

    /// The track edge for which the share of times beyond it is nearest to `1 - share`.
    fn nearest_edge(&self, value: f64, share: f64) -> Place {
        let here = place_of(value as i64);
        let miss = |place: &Place| (self.beyond(*place) - (1.0 - share)).abs();
        [here.saturating_sub(1), here].into_iter().min_by(|a, b| miss(a).total_cmp(&miss(b))).unwrap_or(here)
    }

    fn beyond(&self, at: Place) -> f64 {
        let beyond: u64 = self.intervals.iter().map(|(_, s)| s.times.count_above(at)).sum();
        beyond as f64 / self.histogram.count().max(1) as f64
    }

    fn ratio(&self, x: impl Fn(&Interval) -> f64) -> (f64, f64) {
        let all: Vec<_> = self.intervals.iter().map(|(at, s)| (*at, s.count as f64, x(s))).collect();
        variance_of_ratio(&all)
    }
}

/// Variance of Σx/Σn and its degrees of freedom. Each interval is its index, n and x; they are sorted by index.
fn variance_of_ratio(intervals: &[(usize, f64, f64)]) -> (f64, f64) {
    let (n, x) = intervals.iter().fold((0.0, 0.0), |(n, x), s| (n + s.1, x + s.2));
    let length = intervals.last().map_or(0, |last| last.0 + 1);
    let (mut most, mut degrees, mut block) = (0.0, 0.0, 1);
    while n > 0.0 && length / block >= MIN_BLOCKS {
        let blocks = length.div_ceil(block) as f64;
        let off = |same: &[(usize, f64, f64)]| same.iter().map(|s| s.2 - x / n * s.1).sum::<f64>().powi(2);
        let squares: f64 = intervals.chunk_by(|a, b| a.0 / block == b.0 / block).map(off).sum();
        let variance = squares / (n * n) * blocks / (blocks - 1.0);
        if variance >= most {
            (most, degrees) = (variance, blocks - 1.0);
        }
        block *= 2;
    }
    (most, degrees)
}

/// Spikes per hour as √((c + ⅜) / hours), where c is the number of spikes. Its variance hardly depends on c (Anscombe,
/// The transformation of Poisson, binomial and negative-binomial data, Biometrika 35, 1948): φ / (4 · hours). The
/// dispersion φ is the variance of the count per block divided by its mean, but at least 1; it exceeds 1 if spikes come
/// in bursts.
pub fn spike_rate(spikes: &Spikes, span: Span) -> Option<Estimate> {
    let count = spikes.count()?;
    let (hours, length) = (span.elapsed as f64 / HOUR, span.intervals.length());
    if hours <= 0.0 {
        return None;
    }
    let mut each = vec![0.0; (span.elapsed / length + 1).clamp(1, 1 << 13) as usize];
    for (first, _) in spikes.found() {
        let at = (first.saturating_sub(span.begin) / length).max(0) as usize;
        each.get_mut(at).into_iter().for_each(|n| *n += 1.0);
    }
    let all: Vec<_> = each.iter().enumerate().map(|(at, n)| (at, 1.0, *n)).collect();
    let (variance, degrees) = variance_of_ratio(&all);
    let mean = count as f64 / each.len() as f64;
    let bunched = if count > 0 { variance * each.len() as f64 / mean } else { 0.0 };
    let value = ((count as f64 + 0.375) / hours).sqrt();
    Some(Estimate { value, counted: count as f64 / hours, variance: bunched.max(1.0) / (4.0 * hours), degrees })
}

/// The share of lost packets as asin √((c + ⅜) / (n + ¾)), where c of n packets were lost. Its variance hardly depends
/// on c (Anscombe 1948): φ / (4 n), with the dispersion φ of [`spike_rate`].
pub fn lost_share(lost: &Lost, packets: u64, span: Span) -> Option<Estimate> {
    if packets == 0 {
        return None;
    }
    let (count, n) = (lost.count() as f64, packets as f64);
    let length = span.intervals.length();
    let blocks = (span.elapsed / length + 1).clamp(1, 1 << 13) as usize;
    let mut each = vec![0.0; blocks];
    for (at, lost) in lost.each() {
        each.get_mut(at).into_iter().for_each(|n| *n += lost as f64);
    }
    let all: Vec<_> = each.iter().enumerate().map(|(at, n)| (at, 1.0, *n)).collect();
    let (variance, degrees) = variance_of_ratio(&all);
    let share = (count / n).min(1.0);
    let by_chance = count / blocks as f64 * (1.0 - share) / blocks as f64;
    let bunched = if by_chance > 0.0 { variance / by_chance } else { 0.0 };
    let value = ((count + 0.375) / (n + 0.75)).min(1.0).sqrt().asin();
    Some(Estimate { value, counted: share * 100.0, variance: bunched.max(1.0) / (4.0 * n), degrees })
}
