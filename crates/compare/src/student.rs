//! Student's t distribution for any real number of degrees of freedom that is at least 1.
//!
//! With t = √ν · tan θ the density becomes cos^(ν−1) θ on (−π/2, π/2). A tail is then a quotient of two integrals of
//! smooth functions, and the normalising constant with its gamma function cancels out.

use std::f64::consts::FRAC_PI_2;

/// Maximum number of degrees of freedom; larger numbers change any relevant p by less than 1 %.
const MAX: f64 = 400.0;
const STEPS: u32 = 400;

/// Two-sided p-value of `t`.
pub fn two_sided(t: f64, degrees: f64) -> f64 {
    let degrees = degrees.clamp(1.0, MAX);
    let theta = (t.abs() / degrees.sqrt()).atan();
    (tail(theta, degrees) / tail(0.0, degrees)).clamp(0.0, 1.0)
}

/// The t whose absolute value is exceeded with this probability.
pub fn quantile(two_sided_p: f64, degrees: f64) -> f64 {
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    let degrees = degrees.clamp(1.0, MAX);
    let whole = tail(0.0, degrees);
    for _ in 0..60 {
        let theta: f64 = (low + high) / 2.0;
        if tail(theta, degrees) / whole > two_sided_p {
            low = theta;
        } else {
            high = theta;
        }
    }
    low.tan() * degrees.sqrt()
}

/// Integrates cos^(ν−1) from θ to π/2 by Simpson's rule, up to where the integrand is negligible compared with its
/// value at θ.
fn tail(theta: f64, degrees: f64) -> f64 {
    let power = degrees - 1.0;
    // cos^(ν−1) falls at least as fast as a normal density with standard deviation 1/√ν: 12 deviations suffice.
    let end = FRAC_PI_2.min(theta + 12.0 / degrees.sqrt());
    let step = (end - theta) / f64::from(STEPS);
    let value = |i: u32| (theta + step * f64::from(i)).cos().max(0.0).powf(power);
    let inner: f64 = (1..STEPS).map(|i| value(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (value(0) + inner + value(STEPS)) * step / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from printed tables of the distribution.
    #[test]
    fn known_quantiles() {
        for (p, degrees, t) in [
            (0.05, 1.0, 12.706),
            (0.05, 4.0, 2.776),
            (0.05, 8.0, 2.306),
            (0.01, 8.0, 3.355),
            (0.001, 8.0, 5.041),
            (0.05, 30.0, 2.042),
            (0.05, 120.0, 1.980),
        ] {
            assert!((quantile(p, degrees) - t).abs() < 0.001, "{p} {degrees}: {}", quantile(p, degrees));
            assert!((two_sided(t, degrees) - p).abs() < p / 500.0);
            assert!((two_sided(-t, degrees) - p).abs() < p / 500.0);
        }
        assert!((quantile(0.05, 1e9) - 1.96).abs() < 0.01);
        assert_eq!(two_sided(0.0, 3.0), 1.0);
        assert!(two_sided(1e12, 3.0) < 1e-30 && two_sided(f64::INFINITY, 8.0) < 1e-12);
    }
}
