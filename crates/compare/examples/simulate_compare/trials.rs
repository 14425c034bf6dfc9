//! Comparisons of synthetic recordings, and the differences that they report.

use crate::noise::{normal, Variation};
use latpath_compare::difference::{difference, Scale};
use latpath_compare::estimate::Estimate;
use latpath_compare::{compare, Recording, SIGNIFICANCE};
use latpath_testkit::Noise;

/// Numbers of comparisons that reported a difference.
#[derive(Clone, Copy, Debug, Default)]
pub struct DifferenceCounts {
    /// In any segment.
    pub any: usize,
    /// In a segment that was not shifted.
    pub elsewhere: usize,
    /// In the p99 of the shifted segment.
    pub p99: usize,
    /// In the p99 of any segment, if recordings and blocks of seconds were resampled instead (the 2.5 % and 97.5 %
    /// quantiles of 400 resampled differences).
    pub resampled: usize,
}

/// Makes `comparisons` comparisons, each of `recordings` recordings of `a` with as many of `b`.
pub fn trials(seed: u64, comparisons: usize, recordings: usize, a: Variation, b: Variation) -> DifferenceCounts {
    let mut noise = Noise(seed);
    let mut named = DifferenceCounts::default();
    for _ in 0..comparisons {
        let mut group =
            |like: Variation| -> Vec<Recording> { (0..recordings).map(|_| like.recording(&mut noise)).collect() };
        let (of_a, of_b) = (group(a), group(b));
        let page = compare(("A", &of_a), ("B", &of_b));
        let differ = |shifted: bool| {
            let segments = page.segments.iter().filter(|s| (s.name == "Thyp") == shifted);
            segments
                .flat_map(|s| &s.rows)
                .filter(|row| row.verdict.is_difference())
                .map(|row| row.figure.clone())
                .collect::<Vec<_>>()
        };
        let (shifted, elsewhere) = (differ(true), differ(false));
        named.any += usize::from(!shifted.is_empty() || !elsewhere.is_empty());
        named.elsewhere += usize::from(!elsewhere.is_empty());
        named.p99 += usize::from(shifted.iter().any(|figure| figure == "p99"));
        named.resampled += usize::from((0..3).any(|segment| resampled(&mut noise, &of_a, &of_b, segment)));
    }
    named
}

/// Whether a plain two-level bootstrap finds a difference in the p99: recordings are drawn with replacement, and each
/// recording's p99 varies as if its blocks of seconds were resampled.
fn resampled(noise: &mut Noise, a: &[Recording], b: &[Recording], segment: usize) -> bool {
    let p99 = latpath_compare::Figure::Percentile(990_000);
    let mut mean = |all: &[Recording]| {
        let mut draw = |_| {
            let one = all[(noise.unit() * all.len() as f64) as usize].segments[segment].estimate(p99);
            one.map_or(0.0, |e| e.value + e.variance.sqrt() * normal(noise))
        };
        (0..all.len()).map(&mut draw).sum::<f64>() / all.len() as f64
    };
    let mut differences: Vec<f64> = (0..400).map(|_| mean(a) - mean(b)).collect();
    differences.sort_by(f64::total_cmp);
    differences[10] > 0.0 || differences[389] < 0.0
}

/// For a single figure tested at the 5 % level: the share of comparisons that report a difference where there is none.
/// Each compares `n` recordings with `m`; the figure is normally distributed over recordings, and within a recording
/// its standard deviation is a thousandth of that.
pub fn named_by_chance(seed: u64, comparisons: usize, (n, m): (usize, usize)) -> f64 {
    let mut noise = Noise(seed);
    let mut group = |n: usize| -> Vec<Estimate> {
        let one = |value: f64| Estimate { value, counted: value, variance: 1e-6, degrees: 599.0 };
        (0..n).map(|_| one(1000.0 + normal(&mut noise))).collect()
    };
    let mut is_named = |_: &usize| difference(&group(n), &group(m), Scale::Ratio).is_some_and(|d| d.p < SIGNIFICANCE);
    (0..comparisons).filter(|n| is_named(n)).count() as f64 / comparisons.max(1) as f64
}
