//! Slopes in fixed point, and the range of slopes that a set of limits allows.

use latpath_model::Ns;

/// A slope in units of 2⁻⁴⁰ ns per ns: over a window of a minute, one unit is 0.06 ns.
pub(crate) type Slope = i128;
/// Number of bits after the binary point.
pub(crate) const FRACTION: u32 = 40;

pub(crate) fn from_ppb(ppb: i64) -> Slope {
    (i128::from(ppb) << FRACTION) / 1_000_000_000
}

pub(crate) fn to_ppb(slope: Slope) -> i64 {
    ((slope * 1_000_000_000 + (1 << (FRACTION - 1))) >> FRACTION) as i64
}

/// `dt × slope` in ns, rounded down.
pub(crate) fn times_down(dt: Ns, slope: Slope) -> Ns {
    saturate((i128::from(dt) * slope) >> FRACTION)
}

/// `dt × slope` in ns, rounded up.
pub(crate) fn times_up(dt: Ns, slope: Slope) -> Ns {
    saturate(-((-(i128::from(dt) * slope)) >> FRACTION))
}

fn saturate(x: i128) -> Ns {
    x.clamp(i128::from(Ns::MIN / 4), i128::from(Ns::MAX / 4)) as Ns
}

type Spot = (Ns, Ns);

fn turns_left(a: Spot, b: Spot, c: Spot) -> bool {
    let d = |p: Spot, q: Spot| (i128::from(q.0) - i128::from(p.0), i128::from(q.1) - i128::from(p.1));
    let ((x1, y1), (x2, y2)) = (d(a, b), d(a, c));
    x1 * y2 - y1 * x2 > 0
}

/// Computes the lower (`sign` 1) or upper (`sign` −1) convex hull of points given in order of time.
fn hull(spots: impl Iterator<Item = Spot>, sign: i64, out: &mut Vec<Spot>) {
    out.clear();
    for (x, y) in spots {
        let spot = (x, sign * y);
        while out.len() >= 2 && !turns_left(out[out.len() - 2], out[out.len() - 1], spot) {
            out.pop();
        }
        out.push(spot);
    }
    out.iter_mut().for_each(|spot| spot.1 *= sign);
}

/// Reusable memory for the two hulls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hulls {
    upper: Vec<Spot>,
    lower: Vec<Spot>,
}

impl Hulls {
    /// The smallest and the largest slope of a line that runs between the upper and the lower limits; `None` if the
    /// slope is unlimited in that direction. If no straight line fits, the smallest exceeds the largest.
    ///
    /// Only corners of the hulls are compared. If no line fits, other points would matter too, and the returned range
    /// is wider than necessary, which is safe.
    pub fn range(
        &mut self,
        uppers: impl Iterator<Item = Spot>,
        lowers: impl Iterator<Item = Spot>,
    ) -> (Option<Slope>, Option<Slope>) {
        hull(uppers, 1, &mut self.upper);
        hull(lowers, -1, &mut self.lower);
        let (mut least, mut greatest) = (None::<Slope>, None::<Slope>);
        for &(ut, u) in &self.upper {
            for &(lt, l) in &self.lower {
                let rise = (i128::from(l) - i128::from(u)) << FRACTION;
                let run = i128::from(lt) - i128::from(ut);
                if run > 0 {
                    let slope = rise.div_euclid(run);
                    least = Some(least.map_or(slope, |s| s.max(slope)));
                } else if run < 0 {
                    let slope = -(rise.div_euclid(-run));
                    greatest = Some(greatest.map_or(slope, |s| s.min(slope)));
                }
            }
        }
        (least, greatest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slope_of_one_ppb_is_kept_to_less_than_a_nanosecond_in_a_minute() {
        assert_eq!(times_up(60_000_000_000, from_ppb(1)), 60);
        assert_eq!(times_down(60_000_000_000, from_ppb(-1)), -60);
        assert_eq!(to_ppb(from_ppb(-123_456)), -123_456);
    }

    proptest! {
        /// Compares the result with a slow reference: every pair of limits, in floating point.
        #[test]
        fn the_hulls_find_the_slopes_that_all_pairs_find(
            slope in -1e-4f64..1e-4,
            spots in prop::collection::vec((1i64..50_000_000, 0i64..200_000, 0i64..200_000), 2..60),
        ) {
            let mut t = 0;
            let limits: Vec<(Ns, Ns, Ns)> = spots
                .iter()
                .map(|(dt, above, below)| {
                    t += dt;
                    let true_offset = (t as f64 * slope) as Ns;
                    (t, true_offset + above + 1, true_offset - below - 1)
                })
                .collect();
            let (mut least, mut greatest) = (f64::NEG_INFINITY, f64::INFINITY);
            for &(ut, u, _) in &limits {
                for &(lt, _, l) in &limits {
                    let s = (l - u) as f64 / (lt - ut) as f64;
                    if lt > ut { least = least.max(s) } else if lt < ut { greatest = greatest.min(s) }
                }
            }
            let (a, b) = Hulls::default().range(
                limits.iter().map(|l| (l.0, l.1)),
                limits.iter().map(|l| (l.0, l.2)),
            );
            let unit = (1u64 << FRACTION) as f64;
            prop_assert!((a.unwrap() as f64 / unit - least).abs() < 1e-11);
            prop_assert!((b.unwrap() as f64 / unit - greatest).abs() < 1e-11);
        }
    }
}
