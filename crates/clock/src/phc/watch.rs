//! Follows a NIC's clock: its offset and drift against `CLOCK_MONOTONIC`, and its disturbances.
//!
//! Each reading gives hard bounds on the offset. Between two readings, the clock may move by its drift, by the errors
//! of the readings, and by the effect of a changing rate. A larger move is a step, unless the next move is as large:
//! then the rate changed. Smaller disturbances become visible over a second: the best reading of each second becomes a
//! knot, and the slopes between knots are compared. Whatever the uncertainty of the readings can explain is not
//! reported.

use super::Reading;
use latpath_model::Ns;
use std::collections::VecDeque;
use std::fmt;

/// Maximum number of readings kept, for the offsets of the last seconds.
const MAX_READINGS: usize = 256;
/// Time between two knots, ns.
const KNOT: Ns = 1_000_000_000;
/// Number of knots over which the drift is measured.
const KNOTS: usize = 4;
/// Assumed maximum rate of an unknown clock, ppb.
const UNKNOWN_PPB: i64 = 1_000_000;

/// Change of rate from one second to the next above which it is a disturbance, ppb (1 µs per second).
pub const SWING_PPB: i64 = 1_000;
/// Apparent change of rate between two readings above which the clock was stepped or its rate changed, ppb.
const STEP_PPB: i64 = 100_000;

/// A disturbance of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFault {
    /// The clock was set.
    Step {
        /// Size of the step beyond the drift, ns; negative if backward.
        by_ns: Ns,
    },
    /// The rate changed, e.g. because of an oscillating servo.
    Swing {
        /// Rate before, against `CLOCK_MONOTONIC`, ppb.
        from_ppb: i64,
        /// Rate after, ppb.
        to_ppb: i64,
    },
    /// The clock stopped.
    Stopped,
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { by_ns } => write!(f, "was set, by {by_ns:+} ns"),
            Self::Swing { from_ppb, to_ppb } => {
                write!(f, "changed its rate against CLOCK_MONOTONIC, from {from_ppb:+} to {to_ppb:+} ppb")
            }
            Self::Stopped => write!(f, "stopped"),
        }
    }
}

/// A disturbance with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disturbance {
    /// The disturbance.
    pub trouble: ClockFault,
    /// Earliest possible start, `CLOCK_MONOTONIC`, ns.
    pub after_ns: Ns,
    /// When the disturbance ended, or was last seen, `CLOCK_MONOTONIC`, ns.
    pub until_ns: Ns,
}

/// Offset of a clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The NIC's clock minus `CLOCK_MONOTONIC`, ns.
    pub offset_ns: Ns,
    /// Maximum error, ns, provided that nothing disturbs the clock.
    pub bound_ns: Ns,
}

/// A rate against `CLOCK_MONOTONIC`, and its maximum error.
#[derive(Clone, Copy, Debug)]
struct Rate {
    ppb: i64,
    bound_ppb: i64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { ppb: 0, bound_ppb: UNKNOWN_PPB }
    }
}

impl Rate {
    fn between(a: &Reading, b: &Reading) -> Self {
        let dt = i128::from(b.monotonic_ns) - i128::from(a.monotonic_ns);
        let ppb = |ns: i128| clamp(ns * 1_000_000_000 / dt.max(1));
        let moved = i128::from(offset(b)) - i128::from(offset(a));
        let unsure = i128::from(a.uncertainty_ns) + i128::from(b.uncertainty_ns);
        Self { ppb: ppb(moved), bound_ppb: ppb(unsure).saturating_add(1) }
    }

    fn differs(&self, other: &Self, by_ppb: i64) -> bool {
        let apart = self.ppb.saturating_sub(other.ppb).saturating_abs();
        apart > by_ppb.saturating_add(self.bound_ppb).saturating_add(other.bound_ppb)
    }
}

fn clamp(ns: i128) -> i64 {
    ns.clamp(i128::from(Ns::MIN / 4), i128::from(Ns::MAX / 4)) as i64
}

fn offset(reading: &Reading) -> Ns {
    reading.phc_ns.saturating_sub(reading.monotonic_ns)
}

/// Offset that a rate accumulates in `dt`, ns.
fn over(dt: Ns, ppb: i64) -> Ns {
    clamp(i128::from(dt) * i128::from(ppb) / 1_000_000_000)
}

/// A move beyond the drift, which the next reading classifies.
#[derive(Clone, Copy, Debug)]
struct PendingMove {
    after_ns: Ns,
    reading: Reading,
    by_ns: Ns,
}

/// A slope that differs from the previous one, which the next knot classifies.
#[derive(Clone, Copy, Debug)]
struct PendingSlope {
    before: Rate,
    slope: Rate,
    after_ns: Ns,
    until_ns: Ns,
}

/// Follows one clock; without readings by default.
#[derive(Clone, Debug, Default)]
pub struct PhcWatch {
    /// Readings since the last step, in ascending order of time.
    readings: VecDeque<Reading>,
    knots: VecDeque<Reading>,
    /// Best reading in the second half of the current second, which began at `second_ns`.
    best: Option<Reading>,
    second_ns: Ns,
    drift: Rate,
    slope: Option<Rate>,
    pending_move: Option<PendingMove>,
    pending_slope: Option<PendingSlope>,
    stopped: bool,
}

impl PhcWatch {
    /// Adds a reading, unless it is not later than the last one. Returns the disturbances that it proves: a step is
    /// proved one reading later, a swing up to two seconds later.
    pub fn observe(&mut self, reading: Reading) -> Vec<Disturbance> {
        let last = self.pending_move.map_or(self.readings.back().copied(), |pending| Some(pending.reading));
        let Some(last) = last else {
            self.begin(reading);
            return Vec::new();
        };
        let dt = reading.monotonic_ns.saturating_sub(last.monotonic_ns);
        if dt <= 0 {
            return Vec::new();
        }
        let unsure = reading.uncertainty_ns.saturating_add(last.uncertainty_ns);
        let mut found = Vec::new();
        if reading.phc_ns == last.phc_ns && dt > unsure {
            if !self.stopped {
                self.stopped = true;
                let (after_ns, until_ns) = (last.monotonic_ns, reading.monotonic_ns);
                found.push(Disturbance { trouble: ClockFault::Stopped, after_ns, until_ns });
            }
            return found;
        }
        self.stopped = false;
        let moved = clamp(i128::from(offset(&reading)) - i128::from(offset(&last)));
        let by_ns = moved.saturating_sub(over(dt, self.drift.ppb));
        let allowed = unsure.saturating_add(over(dt, STEP_PPB.saturating_add(self.drift.bound_ppb)));
        let is_odd = by_ns.saturating_abs() > allowed;
        let (after_ns, until_ns) = (last.monotonic_ns, reading.monotonic_ns);
        match (self.pending_move.take(), is_odd) {
            (None, false) => {
                self.readings.push_back(reading);
                if self.readings.len() > MAX_READINGS {
                    self.readings.pop_front();
                }
                found.extend(self.knot(reading));
            }
            (None, true) => self.pending_move = Some(PendingMove { after_ns, reading, by_ns }),
            (Some(pending), false) => {
                let trouble = ClockFault::Step { by_ns: pending.by_ns };
                found.push(Disturbance { trouble, after_ns: pending.after_ns, until_ns: pending.reading.monotonic_ns });
                self.begin(pending.reading);
                self.readings.push_back(reading);
            }
            (Some(pending), true) => {
                let to = Rate::between(&pending.reading, &reading);
                let trouble = ClockFault::Swing { from_ppb: self.drift.ppb, to_ppb: to.ppb };
                found.push(Disturbance { trouble, after_ns: pending.after_ns, until_ns });
                self.begin(pending.reading);
                self.readings.push_back(reading);
                // The error bound covers the new rate: if the rate exceeded the assumed maximum, every further reading
                // would be a disturbance, and the drift would remain unknown.
                self.drift = Rate { ppb: to.ppb, bound_ppb: to.ppb.saturating_abs().max(UNKNOWN_PPB) };
            }
        }
        found
    }

    /// The disturbances that the last readings prove; called at the end of the observation.
    pub fn finish(&mut self) -> Vec<Disturbance> {
        let mut found = Vec::new();
        if let Some(pending) = self.pending_move.take() {
            let trouble = ClockFault::Step { by_ns: pending.by_ns };
            found.push(Disturbance { trouble, after_ns: pending.after_ns, until_ns: pending.reading.monotonic_ns });
            self.begin(pending.reading);
        }
        if let Some(pending) = self.pending_slope.take() {
            let trouble = ClockFault::Swing { from_ppb: pending.before.ppb, to_ppb: pending.slope.ppb };
            found.push(Disturbance { trouble, after_ns: pending.after_ns, until_ns: pending.until_ns });
        }
        found
    }

    /// Restarts from one reading, but keeps the drift.
    fn begin(&mut self, reading: Reading) {
        self.readings.clear();
        self.readings.push_back(reading);
        self.knots.clear();
        self.knots.push_back(reading);
        self.second_ns = reading.monotonic_ns;
        (self.best, self.slope, self.pending_slope) = (None, None, None);
    }

    /// Makes a knot of each second's best reading, and compares the slopes between knots.
    fn knot(&mut self, reading: Reading) -> Option<Disturbance> {
        let into = reading.monotonic_ns.saturating_sub(self.second_ns);
        // Only readings in the second half of a second, so that two knots are far enough apart to determine a slope.
        if into >= KNOT / 2 && self.best.is_none_or(|best| reading.uncertainty_ns <= best.uncertainty_ns) {
            self.best = Some(reading);
        }
        if into < KNOT {
            return None;
        }
        self.second_ns = reading.monotonic_ns;
        let (new, last) = (self.best.take()?, *self.knots.back()?);
        let slope = Rate::between(&last, &new);
        self.knots.push_back(new);
        if self.knots.len() > KNOTS {
            self.knots.pop_front();
        }
        self.drift = Rate::between(self.knots.front()?, &new);
        let (swing, before) = (SWING_PPB, self.slope.replace(slope));
        let (after_ns, until_ns) = (last.monotonic_ns, new.monotonic_ns);
        match (self.pending_slope.take(), before) {
            (Some(pending), _) => {
                let dt = pending.until_ns.saturating_sub(pending.after_ns);
                let trouble = if slope.differs(&pending.before, swing) {
                    // The slope after the change is that of this knot: the second in which the rate changed does not
                    // show the new rate.
                    ClockFault::Swing { from_ppb: pending.before.ppb, to_ppb: slope.ppb }
                } else {
                    ClockFault::Step { by_ns: over(dt, pending.slope.ppb.saturating_sub(pending.before.ppb)) }
                };
                // The earlier knots do not reflect the new drift.
                let keep = self.knots.len() - 2;
                self.knots.drain(..keep);
                self.drift = slope;
                Some(Disturbance { trouble, after_ns: pending.after_ns, until_ns: pending.until_ns })
            }
            (None, Some(before)) if slope.differs(&before, swing) => {
                self.pending_slope = Some(PendingSlope { before, slope, after_ns, until_ns });
                None
            }
            _ => None,
        }
    }

    /// Rate of the clock relative to `CLOCK_MONOTONIC`, minus 1, ppb; `None` while unknown, e.g. in the first second.
    pub fn drift_ppb(&self) -> Option<i64> {
        (self.drift.bound_ppb < UNKNOWN_PPB).then_some(self.drift.ppb)
    }

    /// Offset at a `CLOCK_MONOTONIC` time, from the reading that bounds it best. `None` before the first reading.
    pub fn offset_at(&self, monotonic: Ns) -> Option<Offset> {
        // Maximum deviation of the rate from its mean over the knots, if it changes by less than a swing per second.
        let unsure = self.drift.bound_ppb.saturating_add(SWING_PPB.saturating_mul(2));
        let from = |reading: &Reading| {
            let dt = monotonic.saturating_sub(reading.monotonic_ns);
            let offset_ns = offset(reading).saturating_add(over(dt, self.drift.ppb));
            let bound_ns = reading.uncertainty_ns.saturating_add(over(dt.saturating_abs(), unsure));
            Offset { offset_ns, bound_ns }
        };
        self.readings.iter().map(from).min_by_key(|offset| offset.bound_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Ns = 1_000_000_000;

    /// Runs a watch over a clock with offset `off(t)`, read every 50 ms with an error within ±400 ns.
    fn run(seconds: Ns, off: impl Fn(Ns) -> Ns) -> (PhcWatch, Vec<Disturbance>) {
        let (mut watch, mut found) = (PhcWatch::default(), Vec::new());
        for i in 0..seconds * 20 {
            let t = 5_000 * S + i * S / 20;
            let error = (i * 7_919) % 801 - 400;
            let phc_ns = t + 37 * S + off(t - 5_000 * S) + error;
            found.extend(watch.observe(Reading { phc_ns, monotonic_ns: t, uncertainty_ns: 400 }));
        }
        (watch, found)
    }

    fn near(got: Ns, expected: Ns, by: Ns) -> bool {
        (got - expected).abs() <= by
    }

    #[test]
    fn a_calm_clock_has_a_drift_and_no_disturbance() {
        for drift in [0, 12_345, -80_000] {
            let (watch, found) = run(20, |t| over(t, drift));
            assert_eq!(found, []);
            assert!(near(watch.drift_ppb().unwrap(), drift, 200), "{:?}", watch.drift_ppb());
            let now = 5_020 * S;
            let offset = watch.offset_at(now).unwrap();
            let truth = 37 * S + over(20 * S, drift);
            assert!(near(offset.offset_ns, truth, offset.bound_ns), "{offset:?} against {truth}");
            assert!(offset.bound_ns < 600, "{offset:?}");
        }
    }

    #[test]
    fn a_step_is_found_with_its_time_and_size() {
        // The second step is far too small to be visible between two readings.
        for (by, resolution) in [(25_000_000, S / 10), (-5_000, 2 * S), (9_000, 2 * S)] {
            let (watch, found) = run(20, |t| over(t, 20_000) + if t > 10 * S { by } else { 0 });
            let [step] = found[..] else { panic!("{found:?}") };
            let ClockFault::Step { by_ns } = step.trouble else { panic!("{step:?}") };
            assert!(near(by_ns, by, 1_700), "{by_ns} for {by}");
            assert!(step.after_ns <= 5_010 * S && 5_010 * S <= step.until_ns, "{step:?}");
            assert!(step.until_ns - step.after_ns <= resolution, "{step:?}");
            let offset = watch.offset_at(5_020 * S).unwrap();
            assert!(near(offset.offset_ns, 37 * S + over(20 * S, 20_000) + by, offset.bound_ns));
        }
    }

    #[test]
    fn a_swing_of_the_servo_is_found_with_both_rates() {
        for to in [25_000, 400_000, -600_000, 5_000_000] {
            let (watch, found) = run(20, |t| over(t, 20_000) + over((t - 10 * S).max(0), to - 20_000));
            let swings: Vec<_> = found
                .iter()
                .map(|d| match d.trouble {
                    ClockFault::Swing { from_ppb, to_ppb } => (from_ppb, to_ppb),
                    _ => panic!("{d:?}"),
                })
                .collect();
            assert_eq!(swings.len(), 1, "{found:?}");
            // A large swing is visible between two readings, each with an error of up to 400 ns, 50 ms apart.
            let unsure = if to.abs() > 100_000 { 16_000 } else { 1_700 };
            assert!(near(swings[0].0, 20_000, 1_000) && near(swings[0].1, to, unsure), "{swings:?} for {to}");
            assert!(near(watch.drift_ppb().unwrap(), to, 500), "{:?}", watch.drift_ppb());
            assert!(found[0].after_ns <= 5_010 * S + S / 20 && found[0].until_ns > 5_010 * S, "{found:?}");
        }
    }

    #[test]
    fn a_rate_that_follows_a_good_servo_is_no_disturbance() {
        // The rate swings by ±300 ppb with a period of 4 s, which is not a disturbance.
        let (_, found) = run(30, |t| (191.0 * (t as f64 / S as f64 * std::f64::consts::FRAC_PI_2).sin()) as Ns);
        assert_eq!(found, []);
    }

    #[test]
    fn a_stopped_clock_is_reported_once_and_its_restart_is_a_step() {
        let mut watch = PhcWatch::default();
        let mut found = Vec::new();
        for i in 0..200 {
            let t = i * S / 20;
            let phc_ns = if i < 100 { t } else { (t - 2 * S).max(99 * S / 20) };
            found.extend(watch.observe(Reading { phc_ns, monotonic_ns: t, uncertainty_ns: 400 }));
        }
        let [stopped, step] = found[..] else { panic!("{found:?}") };
        assert_eq!((stopped.trouble, stopped.after_ns), (ClockFault::Stopped, 99 * S / 20));
        let ClockFault::Step { by_ns } = step.trouble else { panic!("{step:?}") };
        assert!(near(by_ns, -2 * S, S / 10), "{by_ns}");
    }

    #[test]
    fn pending_moves_are_reported_at_the_end() {
        let (mut watch, found) = run(10, |t| if t >= 10 * S - S / 20 { 1_000_000 } else { 0 });
        assert_eq!(found, []);
        let [last] = watch.finish()[..] else { panic!() };
        assert!(matches!(last.trouble, ClockFault::Step { by_ns } if near(by_ns, 1_000_000, 1_000)), "{last:?}");
        assert_eq!(watch.finish(), []);
    }

    #[test]
    fn few_readings_give_wide_but_correct_results() {
        let mut watch = PhcWatch::default();
        assert_eq!((watch.offset_at(5), watch.drift_ppb()), (None, None));
        let reading = Reading { phc_ns: 5 * S, monotonic_ns: 2 * S, uncertainty_ns: 100 };
        assert_eq!(watch.observe(reading), []);
        assert_eq!(watch.offset_at(2 * S), Some(Offset { offset_ns: 3 * S, bound_ns: 100 }));
        // After a second, an unknown clock may be off by 1,000 ppm, and its rate may have changed by 2 ppm.
        assert_eq!(watch.offset_at(3 * S), Some(Offset { offset_ns: 3 * S, bound_ns: 1_002_100 }));
        assert_eq!(watch.drift_ppb(), None);
    }

    #[test]
    fn disturbances_are_described_with_their_size() {
        let said =
            [ClockFault::Step { by_ns: -12 }, ClockFault::Swing { from_ppb: 3, to_ppb: 5_000 }, ClockFault::Stopped];
        let said = said.map(|trouble| trouble.to_string());
        assert_eq!(
            said,
            ["was set, by -12 ns", "changed its rate against CLOCK_MONOTONIC, from +3 to +5000 ppb", "stopped"]
        );
    }

    proptest! {
        /// The error of the readings never counts as a disturbance, and the true offset lies within the bound.
        #[test]
        fn a_calm_clock_has_no_disturbances(
            drift in -200_000i64..200_000,
            readings in prop::collection::vec((1i64..200_000_000, 1i64..50_000, 0.0f64..1.0), 1..400),
        ) {
            let (mut watch, mut t) = (PhcWatch::default(), 0);
            for (dt, uncertainty_ns, error) in readings {
                t += dt;
                let truth = 9 * S + over(t, drift);
                let error = ((2.0 * error - 1.0) * uncertainty_ns as f64) as Ns;
                let found = watch.observe(Reading { phc_ns: t + truth + error, monotonic_ns: t, uncertainty_ns });
                prop_assert_eq!(found, vec![]);
                let offset = watch.offset_at(t).unwrap();
                prop_assert!((offset.offset_ns - truth).abs() <= offset.bound_ns + 2, "{:?} {}", offset, truth);
            }
        }

        #[test]
        fn any_readings_are_survived(readings in prop::collection::vec(any::<(i64, i64, u32)>(), 0..60), at: i64) {
            let mut watch = PhcWatch::default();
            for (phc_ns, monotonic_ns, uncertainty) in readings {
                watch.observe(Reading { phc_ns, monotonic_ns, uncertainty_ns: uncertainty.into() });
                watch.offset_at(at);
            }
            watch.finish();
        }
    }
}
