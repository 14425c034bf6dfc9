//! The difference between two groups of recordings in one figure, with its interval.
//!
//! Two recordings of the same configuration differ by more than random variation within each explains: memory
//! placement, the CPU of an interrupt and the temperature vary too. So the variance between the recordings of a group
//! is used (Welch, The generalization of Student's problem when several different population variances are involved,
//! Biometrika 34, 1947). With few recordings that variance may by chance be too small; the variance within the
//! recordings is its lower bound.

use crate::estimate::Estimate;
use crate::student;

/// Confidence level of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Variance-stabilising scale on which a figure is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Logarithms of times.
    Ratio,
    /// Times as they are; used if some are not positive.
    Plain,
    /// Square roots of event rates, as returned by the estimates.
    Root,
    /// Arcsines of the square roots of shares, as returned by the estimates.
    Arcsine,
}

/// Difference between two groups in one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Mean of the group's recordings: geometric on the ratio scale, otherwise arithmetic on the scale itself.
    pub a: f64,
    /// Like `a`, for group B.
    pub b: f64,
    /// A − B on the scale; ln(A/B) on the ratio scale.
    pub by: f64,
    /// Half the width of the confidence interval on the scale; `None` if the recordings are too short to estimate it.
    pub plus_minus: Option<f64>,
    /// Two-sided p-value; 1 if the recordings are too short to estimate the variance.
    pub p: f64,
    /// Scale of the comparison.
    pub scale: Scale,
}

impl Difference {
    /// Converts a difference `by` on the scale to the figure's unit, around the midpoint of A and B. Swapping A and B
    /// and negating `by` negates the result exactly.
    pub fn absolute(&self, by: f64) -> f64 {
        match self.scale {
            Scale::Ratio => 2.0 * (self.a * self.b).sqrt() * (by / 2.0).sinh(),
            Scale::Plain => by,
            Scale::Root => by * (self.a + self.b),
            Scale::Arcsine => by.sin() * (self.a + self.b).sin(),
        }
    }

    /// Bounds of the confidence interval on the scale; `None` without an interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.plus_minus.map(|half| (self.by - half, self.by + half))
    }
}

/// A group's mean, the variance of that mean, and its degrees of freedom.
struct Mean {
    value: f64,
    variance: f64,
    degrees: f64,
}

fn statistic(a: &[Estimate], b: &[Estimate], scale: Scale) -> Option<Statistic> {
    let is_ratio = scale == Scale::Ratio && a.iter().chain(b).all(|e| e.value > 0.0);
    let scale = if scale == Scale::Ratio && !is_ratio { Scale::Plain } else { scale };
    let scaled = |all: &[Estimate]| -> Vec<Estimate> {
        let to_ratio = |e: &Estimate| Estimate { value: e.value.ln(), variance: e.variance / e.value.powi(2), ..*e };
        all.iter().map(|e| if is_ratio { to_ratio(e) } else { *e }).collect()
    };
    let (a, b) = (scaled(a), scaled(b));
    let (of_a, of_b) = (mean(&a, &b)?, mean(&b, &a)?);
    let by = of_a.value - of_b.value;
    let variance = of_a.variance + of_b.variance;
    let degrees = match (a.as_slice(), b.as_slice()) {
        // A single recording takes the other group's variance, so both terms of the sum are the same estimate.
        ([_], [_, _, ..]) | ([_, _, ..], [_]) => of_a.degrees.min(of_b.degrees),
        _ if variance == 0.0 => of_a.degrees.min(of_b.degrees),
        // Degrees of freedom by Welch and Satterthwaite, for a sum of two variances.
        _ => variance.powi(2) / (of_a.variance.powi(2) / of_a.degrees + of_b.variance.powi(2) / of_b.degrees),
    };
    let known = of_a.degrees > 0.0 && of_b.degrees > 0.0;
    let back = |m: &Mean| if is_ratio { m.value.exp() } else { m.value };
    Some(Statistic { a: back(&of_a), b: back(&of_b), by, variance, degrees: known.then_some(degrees), scale })
}

/// Test statistic of two groups' means and variances.
struct Statistic {
    a: f64,
    b: f64,
    by: f64,
    /// Variance of `by`.
    variance: f64,
    /// Degrees of freedom; `None` if the recordings are too short to estimate the variance.
    degrees: Option<f64>,
    scale: Scale,
}

impl Statistic {
    fn p(&self) -> f64 {
        // With no variance, any difference is significant.
        let t = if self.by == 0.0 { 0.0 } else { self.by / self.variance.sqrt() };
        self.degrees.map_or(1.0, |degrees| student::two_sided(t, degrees))
    }
}

/// Compares two groups of at least one recording each. Times are compared as ratios only if all are positive.
pub fn difference(a: &[Estimate], b: &[Estimate], scale: Scale) -> Option<Difference> {
    let statistic = statistic(a, b, scale)?;
    let p = statistic.p();
    let Statistic { a, b, by, variance, degrees, scale } = statistic;
    let plus_minus = degrees.map(|degrees| student::quantile(1.0 - CONFIDENCE, degrees) * variance.sqrt());
    Some(Difference { a, b, by, plus_minus, p, scale })
}

/// Computes a group's mean. A single recording takes the variance between recordings from the other group; if that
/// group also has only one recording, the variance within each recording is used.
fn mean(own: &[Estimate], other: &[Estimate]) -> Option<Mean> {
    let n = own.len() as f64;
    if own.is_empty() {
        return None;
    }
    let value = own.iter().map(|e| e.value).sum::<f64>() / n;
    let within = own.iter().map(|e| e.variance).sum::<f64>() / n;
    let (variance, degrees) = match (own, other) {
        ([one], [_]) => (one.variance, one.degrees),
        ([_], others) => (between(others).max(within), others.len() as f64 - 1.0),
        _ => (between(own).max(within), n - 1.0),
    };
    Some(Mean { value, variance: variance / n, degrees })
}

fn between(all: &[Estimate]) -> f64 {
    let n = all.len() as f64;
    let mean = all.iter().map(|e| e.value).sum::<f64>() / n;
    all.iter().map(|e| (e.value - mean).powi(2)).sum::<f64>() / (n - 1.0)
}

/// Corrects p-values for multiple tests, so that the probability of any false "differs" is that of a single test (Holm,
/// A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let (mut corrected, mut least) = (vec![1.0; p.len()], 0.0_f64);
    for (rank, at) in order.iter().enumerate() {
        least = least.max(p[*at] * (p.len() - rank) as f64).min(1.0);
        corrected[*at] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Vec<Estimate> {
        values.iter().map(|value| Estimate { value: *value, counted: *value, variance: 0.0, degrees: 59.0 }).collect()
    }

    /// Student's sleep data (1908), with unequal variances: t = −1.8608, 17.776 degrees of freedom, p = 0.07939.
    #[test]
    fn a_known_answer() {
        let a = of(&[0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]);
        let b = of(&[1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]);
        let d = difference(&a, &b, Scale::Ratio).unwrap();
        assert!(d.scale == Scale::Plain && (d.by + 1.58).abs() < 1e-9, "{d:?}");
        assert!((d.p - 0.07939).abs() < 1e-4, "{d:?}");
        let (low, high) = d.interval().unwrap();
        assert!((low + 3.3655).abs() < 1e-3 && (high - 0.2055).abs() < 1e-3, "{low} {high}");
    }

    #[test]
    fn holm_by_hand() {
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(corrected.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{corrected:?}");
    }

    #[test]
    fn what_is_equal_or_too_short_does_not_differ() {
        let same = of(&[5.0, 5.0]);
        assert_eq!(difference(&same, &same, Scale::Ratio).unwrap().p, 1.0);
        let short = [Estimate { value: 5.0, counted: 5.0, variance: 0.01, degrees: 0.0 }];
        let d = difference(&short, &of(&[9.0]), Scale::Ratio).unwrap();
        assert_eq!((d.p, d.plus_minus), (1.0, None));
        assert!(difference(&[], &same, Scale::Ratio).is_none());
    }

    #[test]
    fn constants_that_differ_do() {
        let d = difference(&of(&[5.0; 5]), &of(&[9.0; 5]), Scale::Ratio).unwrap();
        assert!(d.p < 1e-12 && d.plus_minus == Some(0.0), "{d:?}");
        assert_eq!(difference(&of(&[5.0; 5]), &of(&[5.0; 5]), Scale::Ratio).unwrap().p, 1.0);
    }

    #[test]
    fn the_absolute_difference_is_that_of_the_figures() {
        let d = |scale, a, b, by| Difference { a, b, by, plus_minus: None, p: 1.0, scale };
        let near = |d: Difference, expected: f64| assert!((d.absolute(d.by) - expected).abs() < 1e-9, "{d:?}");
        near(d(Scale::Ratio, 8.0, 2.0, 4.0_f64.ln()), 6.0);
        near(d(Scale::Root, 3.0, 2.0, 1.0), 5.0);
        let (a, b) = (0.25_f64.sqrt().asin(), 0.04_f64.sqrt().asin());
        near(d(Scale::Arcsine, a, b, a - b), 0.21);
    }

    /// Draws a standard normal deviate (Box-Muller).
    fn normal(noise: &mut latpath_testkit::Noise) -> f64 {
        (-2.0 * noise.unit().ln()).sqrt() * (std::f64::consts::TAU * noise.unit()).cos()
    }

    /// With one recording on a side, the error rate equals that of several against several: 5 ± 0.5 % of 10,000
    /// comparisons without a true difference.
    #[test]
    fn one_recording_against_several_is_as_sure_as_is_said() {
        let mut noise = latpath_testkit::Noise(0x2545_f491);
        for others in 2..=5 {
            let wrong = (0..10_000)
                .filter(|_| {
                    let mut some =
                        |n| -> Vec<Estimate> { of(&(0..n).map(|_| 100.0 + normal(&mut noise)).collect::<Vec<_>>()) };
                    let (one, several) = (some(1), some(others));
                    statistic(&one, &several, Scale::Plain).unwrap().p() < 0.05
                })
                .count();
            assert!((450..=550).contains(&wrong), "{wrong} of 10,000 against {others}");
        }
    }

    proptest! {
        #[test]
        fn the_other_way_round_it_is_the_other_sign(
            a in prop::collection::vec(1.0..1e9_f64, 1..6), b in prop::collection::vec(1.0..1e9_f64, 1..6),
        ) {
            let (d, e) = (difference(&of(&a), &of(&b), Scale::Ratio).unwrap(), difference(&of(&b), &of(&a), Scale::Ratio).unwrap());
            prop_assert!(d.by == -e.by && d.p == e.p && (0.0..=1.0).contains(&d.p));
            for scale in [Scale::Ratio, Scale::Plain, Scale::Root, Scale::Arcsine] {
                let (d, e) = (Difference { scale, ..d }, Difference { scale, ..e });
                prop_assert_eq!(d.interval().map(|(low, high)| (d.absolute(low), d.absolute(high))),
                    e.interval().map(|(low, high)| (-e.absolute(high), -e.absolute(low))));
            }
        }

        #[test]
        fn corrected_is_never_less_and_keeps_the_order(p in prop::collection::vec(0.0..1.0_f64, 0..20)) {
            let corrected = holm(&p);
            for (i, (one, fixed)) in p.iter().zip(&corrected).enumerate() {
                prop_assert!(fixed >= one && *fixed <= 1.0);
                prop_assert!(p.iter().zip(&corrected).skip(i).all(|(other, o)| other < one || o >= fixed));
            }
        }
    }
}
