//! How times are spread: count, extremes, percentiles.

use hdrhistogram::Histogram;
use latpath_model::Ns;

/// Times of any sign. Percentiles are at most 1 % off; minimum, mean and maximum are exact.
#[derive(Clone, Debug)]
pub struct Spread {
    /// Times of 0 ns and more.
    above: Histogram<u64>,
    /// Negative times, by size.
    below: Histogram<u64>,
    min: Ns,
    max: Ns,
    sum: i128,
}

impl Default for Spread {
    fn default() -> Self {
        let histogram = || Histogram::new(2).expect("two significant digits are allowed");
        Self { above: histogram(), below: histogram(), min: Ns::MAX, max: Ns::MIN, sum: 0 }
    }
}

impl Spread {
    /// Adds a time.
    pub fn add(&mut self, t: Ns) {
        // An auto-resizing histogram takes any u64.
        let _ = if t < 0 { self.below.record(t.unsigned_abs()) } else { self.above.record(t as u64) };
        self.min = self.min.min(t);
        self.max = self.max.max(t);
        self.sum += i128::from(t);
    }

    /// Times added.
    pub fn count(&self) -> u64 {
        self.above.len() + self.below.len()
    }

    /// Negative ones among them.
    pub fn negative(&self) -> u64 {
        self.below.len()
    }

    /// The shortest.
    pub fn min(&self) -> Option<Ns> {
        (self.count() > 0).then_some(self.min)
    }

    /// The longest.
    pub fn max(&self) -> Option<Ns> {
        (self.count() > 0).then_some(self.max)
    }

    /// The mean, rounded towards zero.
    pub fn mean(&self) -> Option<Ns> {
        (self.count() > 0).then(|| (self.sum / i128::from(self.count())) as Ns)
    }

    /// The smallest time that at least `per_million` millionths of all do not exceed (nearest rank).
    pub fn percentile(&self, per_million: u64) -> Option<Ns> {
        let n = self.count();
        if n == 0 {
            return None;
        }
        let rank = (u128::from(n) * u128::from(per_million)).div_ceil(1_000_000).clamp(1, u128::from(n)) as u64;
        let t = match rank.checked_sub(self.below.len()) {
            // Rank r of the negative ones, counted from the most negative, is rank n + 1 - r by size.
            None | Some(0) => -(nth(&self.below, self.below.len() + 1 - rank) as Ns),
            Some(rank) => nth(&self.above, rank) as Ns,
        };
        Some(t.clamp(self.min, self.max))
    }
}

/// The value of a rank, 1 for the smallest.
fn nth(h: &Histogram<u64>, rank: u64) -> u64 {
    let mut seen = 0;
    for step in h.iter_recorded() {
        seen += step.count_at_value();
        if seen >= rank {
            return step.value_iterated_to().min(i64::MAX as u64);
        }
    }
    h.max().min(i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_at_most_one_percent_off(mut times in prop::collection::vec(-1_000_000_000i64..1_000_000_000, 1..300),
                                                   per_million in 1u64..=1_000_000) {
            let mut spread = Spread::default();
            times.iter().for_each(|t| spread.add(*t));
            times.sort_unstable();
            let rank = (times.len() as u64 * per_million).div_ceil(1_000_000).max(1);
            let exact = times[rank as usize - 1];
            let got = spread.percentile(per_million).unwrap();
            prop_assert!((got - exact).abs() <= exact.abs() / 100 + 1, "{got} for {exact}");
            prop_assert_eq!(spread.min(), times.first().copied());
            prop_assert_eq!(spread.max(), times.last().copied());
            prop_assert_eq!(spread.negative() as usize, times.iter().filter(|t| **t < 0).count());
        }
    }
}
