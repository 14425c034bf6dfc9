//! A histogram of durations in ns. Percentiles have an error of at most 0.2 %; count, sum, mean, standard deviation,
//! minimum and maximum are exact.
//!
//! Each doubling has 256 buckets. Only the range in use is allocated. Negative values, which a clock fault causes, are
//! counted in separate buckets, so that percentiles remain correct.

pub mod compact;
mod layout;

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const BITS: u32 = 8;
/// Minimum growth of the allocated range: one doubling.
const GROW: usize = 1 << BITS;

/// Index of a value's bucket, with `2^BITS` buckets per doubling; exact below `2^(BITS+1)`.
pub fn coarse_bucket<const BITS: u32>(v: u64) -> usize {
    layout::index::<BITS>(v)
}

/// A bucket for a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// Lower edge, inclusive.
    pub from_ns: Ns,
    /// Upper edge, exclusive.
    pub to_ns: Ns,
    /// Number of values in the bucket.
    pub count: u64,
}

/// Histogram of durations; see the crate's documentation.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    positive: Counts,
    negative: Counts,
    count: u64,
    negatives: u64,
    sum: i128,
    squares: u128,
    min: Ns,
    max: Ns,
}

/// Counts of the buckets, starting with bucket `base`.
#[derive(Clone, Debug, Default)]
struct Counts {
    base: usize,
    counts: Vec<u64>,
}

impl Counts {
    #[inline]
    fn add(&mut self, index: usize, n: u64) {
        match self.counts.get_mut(index.wrapping_sub(self.base)) {
            Some(count) => *count += n,
            None => self.add_outside(index, n),
        }
    }

    #[cold]
    fn add_outside(&mut self, index: usize, n: u64) {
        let (mut from, mut to) = (index / GROW * GROW, index / GROW * GROW + GROW);
        if !self.counts.is_empty() {
            (from, to) = (from.min(self.base), to.max(self.base + self.counts.len()));
        }
        let mut counts = vec![0; to - from];
        if !self.counts.is_empty() {
            counts[self.base - from..][..self.counts.len()].copy_from_slice(&self.counts);
        }
        (self.base, self.counts) = (from, counts);
        self.counts[index - from] += n;
    }

    /// The counts of the buckets `from..=to`; allocates them if necessary.
    fn range(&mut self, from: usize, to: usize) -> &mut [u64] {
        for index in [from, to] {
            if self.counts.get(index.wrapping_sub(self.base)).is_none() {
                self.add_outside(index, 0);
            }
        }
        &mut self.counts[from - self.base..=to - self.base]
    }

    /// Non-empty buckets with their counts, in ascending order.
    fn filled(&self) -> impl DoubleEndedIterator<Item = (usize, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (self.base + i, *n))
    }
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a histogram from counts of non-negative values in `2^BITS` buckets per doubling (see [`coarse_bucket`]).
    /// Count, sum and extremes are exact; percentiles have an error of at most `1 / 2^(BITS+1)`.
    pub fn of_coarse<const BITS: u32>(counts: &[u64], sum: i128, squares: u128, min: Ns, max: Ns) -> Self {
        let mut all = Self { sum, squares, min, max, ..Self::default() };
        for (index, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let middle = layout::middle::<BITS>(index).clamp(min.max(0) as u64, max.max(0) as u64);
            all.positive.add(layout::index::<{ crate::BITS }>(middle), *n);
            all.count += *n;
        }
        all
    }

    /// Adds a value.
    #[inline]
    pub fn record(&mut self, v: Ns) {
        self.extremes(v);
        self.count += 1;
        self.sum += i128::from(v);
        let size = u128::from(v.unsigned_abs());
        self.squares = self.squares.saturating_add(size * size);
        self.bucket(v);
    }

    /// Adds many values whose extremes are known: equivalent to recording each, in a third of the time.
    pub fn record_all(&mut self, values: &[Ns], least: Ns, greatest: Ns) {
        // The sum of `AT_ONCE` squares of values below `SMALL` fits into 64 bits.
        const AT_ONCE: usize = 256;
        const SMALL: Ns = 1 << 28;
        if least < 0 || greatest >= SMALL {
            for chunk in values.chunks(AT_ONCE) {
                let (least, greatest) =
                    chunk.iter().fold((Ns::MAX, Ns::MIN), |(least, greatest), v| (least.min(*v), greatest.max(*v)));
                match (0..SMALL).contains(&least) && greatest < SMALL {
                    true => self.record_all(chunk, least, greatest),
                    false => chunk.iter().for_each(|v| self.record(*v)),
                }
            }
            return;
        }
        if values.is_empty() {
            return;
        }
        self.extremes(least);
        self.count += values.len() as u64;
        self.extremes(greatest);
        for chunk in values.chunks(AT_ONCE) {
            let add = |(sum, squares): (u64, u64), v: &Ns| {
                let v = u64::from(*v as u32);
                (sum.wrapping_add(v), squares.wrapping_add(v.wrapping_mul(v)))
            };
            let (sum, squares) = chunk.iter().fold((0, 0), add);
            self.sum += i128::from(sum);
            self.squares = self.squares.saturating_add(squares.into());
        }
        let first = layout::index::<BITS>(least as u64);
        let counts = self.positive.range(first, layout::index::<BITS>(greatest as u64));
        for v in values {
            let count = &mut counts[layout::index_of_small::<BITS>(*v as u32).wrapping_sub(first)];
            // It cannot overflow, because it is at most `self.count`.
            *count = count.wrapping_add(1);
        }
    }

    #[inline]
    fn extremes(&mut self, v: Ns) {
        if self.count == 0 {
            (self.min, self.max) = (v, v);
        }
        self.min = self.min.min(v);
        self.max = self.max.max(v);
    }

    #[inline]
    fn bucket(&mut self, v: Ns) {
        if v >= 0 {
            self.positive.add(layout::index::<BITS>(v as u64), 1);
        } else {
            self.negatives += 1;
            self.negative.add(layout::index::<BITS>(v.unsigned_abs()), 1);
        }
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        (self.min, self.max) = match self.count {
            0 => (other.min, other.max),
            _ => (self.min.min(other.min), self.max.max(other.max)),
        };
        self.count += other.count;
        self.negatives += other.negatives;
        self.sum += other.sum;
        self.squares = self.squares.saturating_add(other.squares);
        other.positive.filled().for_each(|(i, n)| self.positive.add(i, n));
        other.negative.filled().for_each(|(i, n)| self.negative.add(i, n));
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of negative values.
    pub fn negatives(&self) -> u64 {
        self.negatives
    }

    /// Least value, exact; 0 if empty.
    pub fn min(&self) -> Ns {
        self.min
    }

    /// Greatest value, exact; 0 if empty.
    pub fn max(&self) -> Ns {
        self.max
    }

    /// Sum of all values, exact.
    pub fn sum(&self) -> i128 {
        self.sum
    }

    /// Arithmetic mean, exact, rounded to 1 ns; 0 if empty.
    pub fn mean(&self) -> Ns {
        rounded_mean(self.sum, self.count)
    }

    /// Standard deviation of the population, rounded to 1 ns; 0 if empty.
    pub fn stddev(&self) -> Ns {
        stddev(self.count, self.sum, self.squares)
    }

    /// The value that `per_million` millionths of all values do not exceed (nearest rank), at most 0.2 % off; 0 if
    /// empty. 999,900 gives p99.99.
    pub fn percentile(&self, per_million: u32) -> Ns {
        self.percentiles([per_million])[0]
    }

    /// Several percentiles in one pass; `per_million` must be ascending.
    pub fn percentiles<const N: usize>(&self, per_million: [u32; N]) -> [Ns; N] {
        let below = self.negative.filled().rev().map(|(i, n)| (-(layout::middle::<BITS>(i) as Ns), n));
        let above = self.positive.filled().map(|(i, n)| (layout::middle::<BITS>(i) as Ns, n));
        ranks(below.chain(above), self.count, per_million).map(|v| v.clamp(self.min, self.max))
    }

    /// Quantile `share` (0 to 1), in ns; 0 if empty. Values are assumed to be spread evenly within a bucket, so that
    /// the result does not jump from bucket to bucket.
    pub fn quantile(&self, share: f64) -> f64 {
        let (rank, mut below) = (share * self.count as f64, 0.0);
        let edges = |i: usize| (layout::lower::<BITS>(i) as f64, layout::width::<BITS>(i) as f64);
        let negative = self.negative.filled().rev().map(|(i, n)| (1.0 - edges(i).0 - edges(i).1, edges(i).1, n));
        let positive = self.positive.filled().map(|(i, n)| (edges(i).0, edges(i).1, n));
        for (from, width, n) in negative.chain(positive) {
            let n = n as f64;
            if below + n >= rank {
                // A bucket of width 1 contains a single value.
                let value = from + (width - 1.0) * ((rank - below) / n).clamp(0.0, 1.0);
                return value.clamp(self.min as f64, self.max as f64);
            }
            below += n;
        }
        self.max as f64
    }

    /// The smallest duration that at most `n` values reach or exceed, rounded up to a bucket's edge: at most 0.4 % too
    /// high. 0 if the histogram has at most `n` values.
    pub fn exceeded_by(&self, n: u64) -> Ns {
        let mut above = 0;
        let bucket = self.positive.filled().rev().find(|(_, count)| {
            above += count;
            above > n
        });
        bucket.map_or(0, |(i, _)| layout::lower::<BITS>(i + 1).min(Ns::MAX as u64) as Ns)
    }

    /// Non-empty buckets for a chart, ascending, about 10 per decade, with edges at 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8
    /// times a power of ten. Values within 0.2 % of an edge may be counted in the neighbouring bucket. Negative values
    /// share one bucket, from the smallest value to 0.
    pub fn buckets(&self) -> Vec<Bucket> {
        let mut out = Vec::new();
        if self.negatives > 0 {
            out.push(Bucket { from_ns: self.min, to_ns: 0, count: self.negatives });
        }
        let values = self.positive.filled().map(|(i, n)| ((layout::middle::<BITS>(i) as Ns).clamp(0, self.max), n));
        draw(values, &mut out);
        out
    }
}

impl Histogram {
    /// Number of values in `above..=to`, including all those in the two buckets, 0.4 % wide, that contain the ends.
    pub fn count_about(&self, above: Ns, to: Ns) -> u64 {
        let negatives = if above < 0 { self.negatives } else { 0 };
        let lower = |index| layout::lower::<BITS>(index).min(Ns::MAX as u64) as Ns;
        let is_about = |(i, _): &(usize, u64)| lower(*i) <= to && lower(*i + 1).saturating_sub(1) > above;
        negatives + self.positive.filled().filter(is_about).map(|(_, n)| n).sum::<u64>()
    }

    /// Non-empty buckets for a chart, ascending: 16 per doubling from 256 ns, 16 ns wide below that. Values are counted
    /// exactly. Negative values share one bucket, from the smallest value to 0.
    pub fn fine_buckets(&self) -> Vec<Bucket> {
        const TOGETHER: usize = 1 << (BITS - 4);
        let edge = |group: usize| layout::lower::<BITS>(group * TOGETHER).min(Ns::MAX as u64) as Ns;
        let mut out: Vec<Bucket> = Vec::new();
        if self.negatives > 0 {
            out.push(Bucket { from_ns: self.min, to_ns: 0, count: self.negatives });
        }
        for (index, count) in self.positive.filled() {
            let from_ns = edge(index / TOGETHER);
            match out.last_mut() {
                Some(bucket) if bucket.from_ns == from_ns => bucket.count += count,
                _ => out.push(Bucket { from_ns, to_ns: edge(index / TOGETHER + 1), count }),
            }
        }
        out
    }
}

/// The values at these percentiles (nearest rank), from a list of ascending values with their counts.
fn ranks<const N: usize>(values: impl Iterator<Item = (Ns, u64)>, count: u64, per_million: [u32; N]) -> [Ns; N] {
    let rank = |p: u32| ((u128::from(count) * u128::from(p)).div_ceil(1_000_000) as u64).max(1);
    let (mut out, mut next, mut so_far) = ([0; N], 0, 0);
    for (value, n) in values {
        so_far += n;
        while next < N && so_far >= rank(per_million[next]) {
            out[next] = value;
            next += 1;
        }
    }
    out
}

fn rounded_mean(sum: i128, count: u64) -> Ns {
    if count == 0 {
        return 0;
    }
    let n = i128::from(count);
    (2 * sum + n).div_euclid(2 * n) as Ns
}

fn stddev(count: u64, sum: i128, squares: u128) -> Ns {
    if count == 0 {
        return 0;
    }
    let n = u128::from(count);
    let exact = n.checked_mul(squares).zip(sum.unsigned_abs().checked_mul(sum.unsigned_abs()));
    match exact {
        Some((a, b)) => ((a.saturating_sub(b) as f64).sqrt() / count as f64).round() as Ns,
        None => {
            let mean = sum as f64 / count as f64;
            (squares as f64 / count as f64 - mean * mean).max(0.0).sqrt().round() as Ns
        }
    }
}

/// Counts ascending values in the buckets of a chart.
fn draw(values: impl Iterator<Item = (Ns, u64)>, out: &mut Vec<Bucket>) {
    for (value, count) in values {
        match out.last_mut() {
            Some(bucket) if (bucket.from_ns..bucket.to_ns).contains(&value) => bucket.count += count,
            _ => {
                let (from_ns, to_ns) = edges(value);
                out.push(Bucket { from_ns, to_ns, count });
            }
        }
    }
}

/// Edges of the chart bucket that contains a non-negative value.
fn edges(value: Ns) -> (Ns, Ns) {
    const TENTHS: [i128; 11] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100];
    if value < 10 {
        return (value, value + 1);
    }
    let power = 10_i128.pow(value.ilog10());
    let at = TENTHS.iter().rposition(|t| t * power / 10 <= value.into()).unwrap_or(0).min(9);
    let edge = |t: i128| (t * power / 10).min(Ns::MAX.into()) as Ns;
    (edge(TENTHS[at]), edge(TENTHS[at + 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[Ns]) -> Histogram {
        let mut h = Histogram::new();
        values.iter().for_each(|v| h.record(*v));
        h
    }

    /// All figures of a histogram, for comparison.
    fn all_of(h: &Histogram) -> impl PartialEq + std::fmt::Debug {
        let percentiles = h.percentiles([1, 500_000, 900_000, 990_000, 999_000, 999_900, 1_000_000]);
        (h.count, h.negatives, h.sum, h.squares, (h.min, h.max), (h.mean(), h.stddev()), percentiles, h.buckets())
    }

    #[test]
    fn known_answers() {
        let h = of(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!((h.count(), h.min(), h.max(), h.mean(), h.stddev()), (8, 2, 9, 5, 2));
        assert_eq!(h.percentiles([500_000, 900_000, 999_999]), [4, 9, 9]);
        assert_eq!((Histogram::new().percentile(500_000), Histogram::new().buckets()), (0, vec![]));
    }

    #[test]
    fn negative_values_are_counted_and_kept_in_order() {
        let h = of(&[-5000, -20, 3, 10]);
        assert_eq!((h.negatives(), h.min(), h.mean()), (2, -5000, -1252));
        let [least, negative, positive] = h.percentiles([250_000, 500_000, 750_000]);
        assert!((-5000..=-4990).contains(&least), "{least}");
        assert_eq!((negative, positive), (-20, 3));
        assert_eq!(h.buckets()[0], Bucket { from_ns: -5000, to_ns: 0, count: 2 });
    }

    #[test]
    fn a_drawing_has_round_edges() {
        let buckets = of(&[0, 9, 10, 11, 12, 99, 100, 58_000, 14_612_000]).buckets();
        let edges: Vec<_> = buckets.iter().map(|b| (b.from_ns, b.to_ns, b.count)).collect();
        assert_eq!(
            edges,
            [
                (0, 1, 1),
                (9, 10, 1),
                (10, 12, 2),
                (12, 15, 1),
                (80, 100, 1),
                (100, 120, 1),
                (50_000, 60_000, 1),
                (12_000_000, 15_000_000, 1)
            ]
        );
    }

    #[test]
    fn the_ends_of_the_range_are_handled() {
        let h = of(&[Ns::MIN, Ns::MIN, Ns::MAX, Ns::MAX, Ns::MAX, 0]);
        assert_eq!((h.min(), h.max(), h.count()), (Ns::MIN, Ns::MAX, 6));
        assert_eq!(h.buckets().iter().map(|b| b.count).sum::<u64>(), 6);
        h.percentiles([1, 500_000, 1_000_000]);
        h.mean();
        h.stddev();
    }

    proptest! {
        #[test]
        fn values_about_a_span_are_counted_and_few_more(
            values in prop::collection::vec(-1000..10_000_000_i64, 0..200), to in 0..10_000_000_i64, width in 0..1_000_000_i64,
        ) {
            let mut h = Histogram::new();
            values.iter().for_each(|v| h.record(*v));
            let so_many = |slack: i64| {
                let (above, to) = (to - width, to + slack * to / 250);
                let above = above - slack * above.max(0) / 250;
                values.iter().filter(|v| above < 0 && **v < 0 || **v >= 0 && **v > above - slack && **v <= to + slack).count() as u64
            };
            let counted = h.count_about(to - width, to);
            prop_assert!(so_many(0) <= counted && counted <= so_many(1), "{} {counted} {}", so_many(0), so_many(1));
        }

        #[test]
        fn coarse_counting_keeps_exact_figures(values in prop::collection::vec((0_u32..40).prop_flat_map(|bits| 0..=Ns::MAX >> (bits + 23)), 1..200)) {
            let mut counts = [0; 640];
            values.iter().for_each(|v| counts[coarse_bucket::<4>(*v as u64)] += 1);
            let exact = of(&values);
            let coarse = Histogram::of_coarse::<4>(&counts, exact.sum, exact.squares, exact.min, exact.max);
            prop_assert_eq!((coarse.count(), coarse.mean(), coarse.stddev()), (exact.count(), exact.mean(), exact.stddev()));
            for p in [10_000, 500_000, 999_000, 1_000_000] {
                let (coarse, exact) = (coarse.percentile(p), exact.percentile(p));
                prop_assert!((coarse - exact).abs() as f64 <= exact as f64 * 0.04, "{}: {} is {}", p, exact, coarse);
            }
        }

        #[test]
        fn a_quantile_lies_between_the_percentiles_around_it(values in values(), per_million in 1..1_000_000_u32) {
            let h = of(&values);
            let quantile = h.quantile(f64::from(per_million) / 1e6);
            let at = h.percentile(per_million) as f64;
            prop_assert!((quantile - at).abs() <= at.abs() / 128.0 + 1.0, "{quantile} at {at}");
            prop_assert!(quantile <= h.quantile(f64::from(per_million) / 1e6 + 0.01) + 1e-6);
        }
    }

    fn values() -> impl Strategy<Value = Vec<Ns>> {
        prop::collection::vec(
            (0_u32..63, any::<bool>()).prop_flat_map(|(bits, negative)| {
                let (from, to) = if negative && bits > 50 { (-(Ns::MAX >> bits), 0) } else { (0, Ns::MAX >> bits) };
                from..=to
            }),
            1..500,
        )
    }

    proptest! {
        #[test]
        fn figures_agree_with_a_sorted_list(values in values()) {
            let mut sorted = values.clone();
            sorted.sort();
            let h = of(&values);
            let n = sorted.len();
            for p in [1, 100_000, 500_000, 900_000, 990_000, 999_000, 999_900, 1_000_000] {
                let expected = sorted[(n * p as usize).div_ceil(1_000_000).max(1) - 1];
                prop_assert!((h.percentile(p) - expected).abs() as f64 <= expected.abs() as f64 * 0.002, "{p}: {expected}");
            }
            let sum: i128 = values.iter().map(|v| i128::from(*v)).sum();
            prop_assert_eq!((h.count(), h.min(), h.max(), h.sum()), (n as u64, sorted[0], sorted[n - 1], sum));
            prop_assert_eq!(h.negatives(), sorted.iter().filter(|v| **v < 0).count() as u64);
            prop_assert_eq!(h.buckets().iter().map(|b| b.count).sum::<u64>(), n as u64);
            prop_assert!(h.buckets().windows(2).all(|two| two[0].to_ns <= two[1].from_ns));
        }

        #[test]
        fn recording_many_equals_recording_one_by_one(values in values(), more in values(), most in 1_u32..63) {
            // Limit the values, so that all are small in many cases.
            let [values, more] = [values, more].map(|all| all.into_iter().map(|v| v % (1 << most)).collect::<Vec<_>>());
            let mut h = Histogram::new();
            for all in [&values, &more] {
                h.record_all(all, *all.iter().min().unwrap(), *all.iter().max().unwrap());
            }
            let all = of(&[values, more].concat());
            prop_assert_eq!(all_of(&h), all_of(&all));
        }

        #[test]
        fn each_value_is_in_its_fine_bucket(values in values()) {
            let buckets = of(&values).fine_buckets();
            prop_assert!(buckets.windows(2).all(|two| two[0].to_ns <= two[1].from_ns));
            for b in &buckets {
                let inside = values.iter().filter(|v| (b.from_ns..b.to_ns).contains(v) || (**v == Ns::MAX && b.to_ns == Ns::MAX));
                prop_assert_eq!(inside.count() as u64, b.count);
            }
        }

        #[test]
        fn a_merge_equals_recording_all(a in values(), b in values()) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(all_of(&merged), all_of(&of(&[a, b].concat())));
        }

        #[test]
        fn at_most_n_values_reach_what_n_exceed(values in values(), n in 0..600_u64) {
            let edge = of(&values).exceeded_by(n);
            let mut above: Vec<Ns> = values.into_iter().filter(|v| *v >= 0).collect();
            above.sort_unstable_by(|a, b| b.cmp(a));
            prop_assert!(above.iter().filter(|v| **v >= edge && edge < Ns::MAX).count() as u64 <= n || edge == 0);
            match above.get(n as usize) {
                Some(next) => prop_assert!(edge > *next || edge == Ns::MAX, "{edge} {next}"),
                None => prop_assert_eq!(edge, 0),
            }
            prop_assert!(above.get(n as usize).is_none_or(|next| edge as f64 <= *next as f64 * 1.004 + 1.0));
        }

        #[test]
        fn the_mean_is_rounded_exactly(values in prop::collection::vec(-1000_i64..1000, 1..50)) {
            let exact = values.iter().sum::<i64>() as f64 / values.len() as f64;
            prop_assert_eq!(of(&values).mean(), (exact + 0.5).floor() as Ns);
        }
    }
}
