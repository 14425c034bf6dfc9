//! Maps times of a NIC's clock to `CLOCK_MONOTONIC`, using the readings before and after them.
//!
//! Between two readings, the map is the straight line through them, so that it is continuous and the difference between
//! two close times is exact. Readings that took too long are left out, because they would bend the line. A time is
//! mapped once two later readings exist, because a step of the clock is proven only one reading later; times in a
//! disturbed interval are not mapped.

use super::watch::{ClockFault, Disturbance, PhcWatch, SWING_PPB};
use super::Reading;
use latpath_model::Ns;
use std::collections::VecDeque;

/// Number of readings kept: a minute, if there are 20 per second.
const KEPT: usize = 1200;
/// Number of the latest readings with whose smallest error a new reading is compared.
const COMPARED: usize = 16;
/// A reading is left out if its error exceeds the smallest one by this factor ...
const WORSE: Ns = 4;
/// ... unless the last reading is older than this, ns.
const PATIENCE: Ns = 250_000_000;
/// Rounding error of divisions, ns.
const ROUNDING: Ns = 1;

/// A time converted to `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedTime {
    /// `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// Maximum error, ns.
    pub bound_ns: Ns,
}

/// Why a time cannot be mapped to `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// The clock was set or stopped around this time.
    Disturbed,
    /// The time is not between two of the readings kept.
    Elsewhere,
}

/// The map of one clock; without readings by default.
#[derive(Clone, Debug, Default)]
pub struct PhcMap {
    watch: PhcWatch,
    knots: VecDeque<Reading>,
    /// Intervals in which the clock was set or stopped, `CLOCK_MONOTONIC`, ns.
    dark: VecDeque<(Ns, Ns)>,
    /// Errors of the latest readings, ns.
    errors: VecDeque<Ns>,
}

impl PhcMap {
    /// Adds a reading. Returns the disturbances that it proves.
    pub fn observe(&mut self, reading: Reading) -> Vec<Disturbance> {
        let found = self.watch.observe(reading);
        for disturbance in found.iter().filter(|d| !matches!(d.trouble, ClockFault::Swing { .. })) {
            push(&mut self.dark, (disturbance.after_ns, disturbance.until_ns), KEPT);
        }
        let standard = self.errors.iter().min().map_or(Ns::MAX, |least| least.saturating_mul(WORSE));
        push(&mut self.errors, reading.uncertainty_ns.max(1), COMPARED);
        let since = self.knots.back().map_or(Ns::MAX, |last| reading.monotonic_ns.saturating_sub(last.monotonic_ns));
        if since > 0 && (reading.uncertainty_ns <= standard || since > PATIENCE) {
            push(&mut self.knots, reading, KEPT);
        }
        found
    }

    /// Whether all times up to this `CLOCK_MONOTONIC` time are mapped as well as they ever can be, because later
    /// readings change nothing.
    pub fn is_known_at(&self, monotonic: Ns) -> bool {
        self.settled().is_some_and(|reading| reading.monotonic_ns >= monotonic)
    }

    /// The latest reading up to which no later reading can prove a disturbance.
    pub fn settled(&self) -> Option<&Reading> {
        self.knots.len().checked_sub(2).and_then(|at| self.knots.get(at))
    }

    /// Converts a time of the NIC's clock.
    ///
    /// # Errors
    /// The time cannot be mapped.
    pub fn at(&self, phc: Ns) -> Result<MappedTime, Unmapped> {
        let is_after = |at: &usize| (self.knots[at - 1].phc_ns..=self.knots[*at].phc_ns).contains(&phc);
        // After a step back, a time may have occurred twice: the latest interval that contains it counts.
        let after = (1..self.knots.len()).rev().find(is_after).ok_or(Unmapped::Elsewhere)?;
        let (a, b) = (&self.knots[after - 1], &self.knots[after]);
        if self.dark.iter().any(|(from, until)| *from < b.monotonic_ns && a.monotonic_ns < *until) {
            return Err(Unmapped::Disturbed);
        }
        let (width, dt) = (wide(b.phc_ns) - wide(a.phc_ns), wide(b.monotonic_ns) - wide(a.monotonic_ns));
        let t = wide(a.monotonic_ns) + (wide(phc) - wide(a.phc_ns)).saturating_mul(dt) / width.max(1);
        let rate = |at: usize| {
            let (from, to) = (self.knots.get(at.checked_sub(1)?)?, self.knots.get(at)?);
            let dt = wide(to.monotonic_ns) - wide(from.monotonic_ns);
            Some((wide(to.phc_ns) - wide(from.phc_ns) - dt) * 1_000_000_000 / dt.max(1))
        };
        // Two effects make the clock depart from the line: if its rate changes within the interval, by at most a
        // quarter of the interval times the change; if it is set by too little to be detected yet, by that step. The
        // rates before and after the interval limit both.
        let own = rate(after).unwrap_or(0);
        let change = |other: Option<i128>| other.map_or(0, |other| (other - own).abs());
        let changes = change(rate(after - 1)) + change(rate(after + 1));
        let bend = dt.saturating_mul(wide(SWING_PPB) + 2 * changes) / 4_000_000_000;
        let bound = wide(a.uncertainty_ns.max(b.uncertainty_ns)) + bend + wide(ROUNDING);
        Ok(MappedTime { t: narrow(t), bound_ns: narrow(bound) })
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    queue.push_back(value);
    if queue.len() > most {
        queue.pop_front();
    }
}

fn wide(ns: Ns) -> i128 {
    ns.into()
}

fn narrow(ns: i128) -> Ns {
    ns.clamp(wide(Ns::MIN / 4), wide(Ns::MAX / 4)) as Ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Ns = 1_000_000;
    /// What the NIC's clock shows at time 0.
    const AHEAD: Ns = 37_000 * MS;

    /// A clock that is read every 50 ms with errors of up to `uncertainty_ns`, and whose rate is `rate_ppb(ms)`.
    struct Simulated {
        map: PhcMap,
        true_phc: Vec<Ns>,
    }

    fn simulate(readings: usize, uncertainty_ns: Ns, errors: &[f64], rate_ppb: impl Fn(Ns) -> i64) -> Simulated {
        let (mut map, mut phc, mut true_phc) = (PhcMap::default(), AHEAD, Vec::new());
        for ms in 0..readings as Ns * 50 {
            if ms % 50 == 0 {
                let error = errors.get((ms / 50) as usize % errors.len().max(1)).copied().unwrap_or(0.0);
                let phc_ns = phc + (error * uncertainty_ns as f64) as Ns;
                map.observe(Reading { phc_ns, monotonic_ns: ms * MS, uncertainty_ns });
            }
            true_phc.push(phc);
            phc += MS + MS * rate_ppb(ms) / 1_000_000_000;
        }
        Simulated { map, true_phc }
    }

    #[test]
    fn close_times_keep_their_difference_and_a_reading_does_not_shift_them() {
        let s = simulate(20, 400, &[0.9, -0.8, 0.3, -1.0, 1.0], |_| 20_000);
        for ms in 1..s.true_phc.len() - 50 {
            let phc = s.true_phc[ms];
            let (sent, received) = (s.map.at(phc).unwrap(), s.map.at(phc + 1_000).unwrap());
            assert!((received.t - sent.t - 1_000).abs() <= 1, "{ms}: {sent:?} {received:?}");
        }
    }

    #[test]
    fn a_time_is_known_once_two_later_readings_exist() {
        let mut map = PhcMap::default();
        for ms in [0, 50, 100] {
            map.observe(Reading { phc_ns: AHEAD + ms * MS, monotonic_ns: ms * MS, uncertainty_ns: 100 });
        }
        assert!(map.is_known_at(50 * MS) && !map.is_known_at(51 * MS));
        assert_eq!(map.at(AHEAD + 20 * MS).unwrap().t, 20 * MS);
        let elsewhere = Err(Unmapped::Elsewhere);
        assert_eq!([-1, 101 * MS].map(|phc| map.at(AHEAD + phc)), [elsewhere; 2]);
    }

    #[test]
    fn around_a_step_nothing_is_mapped() {
        let stepped = |by: Ns| {
            let mut map = PhcMap::default();
            for i in 0..40 {
                let phc_ns = AHEAD + i * 50 * MS + if i < 20 { 0 } else { by };
                map.observe(Reading { phc_ns, monotonic_ns: i * 50 * MS, uncertainty_ns: 100 });
            }
            move |ms: Ns| map.at(AHEAD + ms * MS).map(|mapped| mapped.t / MS)
        };
        let forward = stepped(500 * MS);
        assert_eq!([300, 1_200, 1_700].map(forward), [Ok(300), Err(Unmapped::Disturbed), Ok(1_200)]);
        // The clock showed some times twice: the later one counts.
        let back = stepped(-500 * MS);
        assert_eq!([300, 700, 951].map(back), [Ok(300), Ok(1_200), Ok(1_451)]);
    }

    #[test]
    fn a_delayed_reading_does_not_bend_the_line() {
        let mut map = PhcMap::default();
        for i in 0..10 {
            let (error, uncertainty_ns) = if i == 5 { (90_000, 100_000) } else { (0, 100) };
            map.observe(Reading { phc_ns: AHEAD + i * 50 * MS + error, monotonic_ns: i * 50 * MS, uncertainty_ns });
        }
        let mapped = map.at(AHEAD + 255 * MS).unwrap();
        assert!(mapped.t == 255 * MS && mapped.bound_ns < 200, "{mapped:?}");
    }

    proptest! {
        #[test]
        fn the_truth_is_within_the_bound(
            errors in prop::collection::vec(-1.0..1.0f64, 1..40), uncertainty in 20..5_000i64,
            drift in -100_000..100_000i64, jump in -50_000..50_000i64, at in 100..900i64,
        ) {
            let s = simulate(24, uncertainty, &errors, |ms| if ms < at { drift } else { drift + jump });
            for ms in 1..s.true_phc.len() - 60 {
                let mapped = s.map.at(s.true_phc[ms]);
                // Near the jump, errors of the readings can hide a part of it; near the ends, no reading limits the
                // error.
                let hidden = if (at - ms as Ns).abs() <= 150 { 2 * uncertainty } else { 0 };
                if let Some(mapped) = mapped.ok().filter(|_| ms > 100) {
                    prop_assert!((mapped.t - ms as Ns * MS).abs() <= mapped.bound_ns + hidden, "{ms}: {mapped:?}");
                }
            }
        }

        #[test]
        fn any_readings_are_survived(readings in prop::collection::vec(any::<(i64, i64, u32)>(), 0..60), at: i64) {
            let mut map = PhcMap::default();
            for (phc_ns, monotonic_ns, uncertainty) in readings {
                map.observe(Reading { phc_ns, monotonic_ns, uncertainty_ns: uncertainty.into() });
                let _ = map.at(at);
                map.is_known_at(at);
            }
        }
    }
}
