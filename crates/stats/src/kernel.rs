//! The histograms that the kernel programs fill: 32-bit ns, 64 buckets to each doubling.
//!
//! ```text
//! index = v                                for v < 128
//!         ((msb - 6) << 6) + (v >> (msb - 6))   otherwise, msb = floor(log2 v)
//! ```
//! Values above `u32::MAX` ns (4.29 s) count as that. A bucket's middle is at most 0.8 % off.

use crate::figures::SegmentFigures;
use latpath_histogram::{draw, layout, ranks, rounded_mean, stddev, Bucket};
use latpath_model::Ns;

const BITS: u32 = 6;

/// Buckets of one histogram.
pub const BUCKETS: usize = index(u32::MAX) + 1;

/// The bucket of a value.
pub const fn index(v: u32) -> usize {
    layout::index::<BITS>(v as u64)
}

/// The least value of a bucket.
pub const fn lower(index: usize) -> u32 {
    layout::lower::<BITS>(index) as u32
}

/// How many values fall into a bucket.
pub const fn width(index: usize) -> u32 {
    layout::width::<BITS>(index) as u32
}

/// What a kernel program counted of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelHistogram {
    /// Counts of all buckets, [`BUCKETS`] of them.
    pub counts: Vec<u64>,
    /// Values, all of them 0 or more.
    pub count: u64,
    /// Their sum, exact.
    pub sum: u64,
    /// The least, exact.
    pub min: u64,
    /// The greatest, exact.
    pub max: u64,
    /// Values above the threshold.
    pub over_threshold: u64,
    /// Values below 0, which are in none of the above.
    pub negative: u64,
}

impl Default for KernelHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, sum: 0, min: 0, max: 0, over_threshold: 0, negative: 0 }
    }
}

impl KernelHistogram {
    /// Adds all that another one holds; per-CPU copies and streams become one.
    pub fn merge(&mut self, other: &Self) {
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.count += other.count;
        self.sum += other.sum;
        self.over_threshold += other.over_threshold;
        self.negative += other.negative;
    }

    fn values(&self) -> impl Iterator<Item = (Ns, u64)> + '_ {
        let clamp = |v: u64| v.clamp(self.min, self.max.max(self.min)) as Ns;
        let filled = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(move |(i, n)| (clamp(layout::middle::<BITS>(i)), *n))
    }

    /// A row without name, ends, rate and error bound. The mean is exact; the standard deviation is taken from the
    /// buckets' middles. Negative values are counted in `negative` alone.
    pub fn figures(&self) -> SegmentFigures {
        // While the kernel counts, its totals may be a few values ahead of the buckets.
        let in_buckets = self.counts.iter().sum();
        let per_million = [500_000, 900_000, 990_000, 999_000, 999_900];
        let [p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns] = ranks(self.values(), in_buckets, per_million);
        let (sum, squares) = self.values().fold((0_i128, 0_u128), |(sum, squares), (v, n)| {
            let (v, n) = (v.unsigned_abs().into(), u128::from(n));
            let v: u128 = v;
            (sum + (v * n) as i128, squares.saturating_add((v * v).saturating_mul(n)))
        });
        let mut histogram: Vec<Bucket> = Vec::new();
        draw(self.values(), &mut histogram);
        SegmentFigures {
            count: self.count,
            min_ns: self.min as Ns,
            mean_ns: rounded_mean(self.sum.into(), self.count),
            stddev_ns: stddev(in_buckets, sum, squares),
            p50_ns,
            p90_ns,
            p99_ns,
            p99_9_ns,
            p99_99_ns,
            max_ns: self.max as Ns,
            over_threshold: self.over_threshold,
            negative: self.negative,
            histogram,
            ..SegmentFigures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;
    use proptest::prelude::*;

    /// As the kernel program computes it.
    fn kernel_index(v: u32) -> usize {
        if v < 128 {
            return v as usize;
        }
        let msb = 31 - v.leading_zeros();
        (((msb - 6) << 6) + (v >> (msb - 6))) as usize
    }

    fn of(values: &[u32], threshold: u32) -> KernelHistogram {
        let mut h = KernelHistogram::default();
        for v in values {
            h.counts[kernel_index(*v)] += 1;
            h.sum += u64::from(*v);
        }
        h.count = values.len() as u64;
        h.min = values.iter().min().copied().unwrap_or(0).into();
        h.max = values.iter().max().copied().unwrap_or(0).into();
        h.over_threshold = values.iter().filter(|v| **v > threshold).count() as u64;
        h
    }

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!((index(127), index(128), index(130), index(255), index(256)), (127, 128, 129, 191, 192));
        assert_eq!((lower(129), width(129), lower(192), width(192)), (130, 2, 256, 4));
        assert_eq!(BUCKETS, 1728);
    }

    #[test]
    fn an_empty_one_gives_an_empty_row() {
        assert_eq!(KernelHistogram::default().figures(), SegmentFigures::default());
    }

    fn values() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec((0_u32..32).prop_flat_map(|bits| 0..=u32::MAX >> bits), 1..300)
    }

    proptest! {
        #[test]
        fn every_value_has_the_kernels_bucket(v in any::<u32>(), bits in 0_u32..32) {
            let v = v >> bits;
            prop_assert_eq!(index(v), kernel_index(v));
            prop_assert!(index(v) < BUCKETS);
            prop_assert!((layout::middle::<BITS>(index(v)) as f64 - f64::from(v)).abs() <= f64::from(v) * 0.01);
        }

        #[test]
        fn figures_agree_with_those_of_all_values(values in values()) {
            let (kernel, mut all) = (of(&values, 200_000).figures(), Histogram::new());
            values.iter().for_each(|v| all.record((*v).into()));
            let all = SegmentFigures::of(&all);
            prop_assert_eq!(
                (kernel.count, kernel.min_ns, kernel.max_ns, kernel.mean_ns),
                (all.count, all.min_ns, all.max_ns, all.mean_ns)
            );
            for (k, a) in [
                (kernel.p50_ns, all.p50_ns), (kernel.p90_ns, all.p90_ns), (kernel.p99_ns, all.p99_ns),
                (kernel.p99_9_ns, all.p99_9_ns), (kernel.p99_99_ns, all.p99_99_ns),
            ] {
                prop_assert!((k - a).abs() as f64 <= a as f64 * 0.0105, "{k} {a}");
            }
            prop_assert_eq!(kernel.over_threshold, values.iter().filter(|v| **v > 200_000).count() as u64);
        }

        #[test]
        fn per_cpu_copies_merge(a in values(), b in values()) {
            let mut merged = of(&a, 100);
            merged.merge(&of(&b, 100));
            prop_assert_eq!(merged, of(&[a, b].concat(), 100));
        }
    }
}
