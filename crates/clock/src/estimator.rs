//! The offset between two clocks, from limits that hold with certainty.
//!
//! Let θ(g) = g − h, where the guest's clock shows g at the moment when the host's shows h. Each exchange proves θ(t2)
//! ≤ t2 − t1 and θ(t3) ≥ t3 − t4. A limit is valid at its own moment; how far it can be carried to another moment
//! depends on how fast θ can change. There is one assumption about this ([`Assumed`]): within the window, θ stays close
//! to *some* straight line,
//!
//! ```text
//! |θ(a) − θ(b) − s·(a − b)| ≤ steering · |a − b|      and |slope| ≤ max_drift
//! ```
//!
//! The slope s is not guessed: upper and lower limits at different times leave a range for it ([`Hulls`]), and a limit
//! is carried with the worst slope of this range. At any moment, the tightest carried limits enclose θ; their middle is
//! the estimate, half their distance its error bound. Slow exchanges give loose limits and so change nothing. Limits
//! that exclude each other prove that a clock violated the assumption: this is a [`Fault`], after which the fit starts
//! again.

use crate::exchange::{Exchange, Fault, FaultKind, Limits, LATEST};
use crate::slope::{from_ppb, times_down, times_up, to_ppb, Hulls, Slope, FRACTION};
use latpath_model::Ns;
use std::collections::VecDeque;

/// Maximum number of exchanges kept per slot of a window; beyond it, the slowest one is dropped.
const KEPT_PER_SLOT: usize = 4;
/// Number of slots in a window. With [`KEPT_PER_SLOT`], limits the memory for a run of any length.
const SLOTS: Ns = 300;
/// Maximum steering of a clock, ppb; beyond it, every contradiction counts as a jump.
const HARDEST_STEERING_PPB: i64 = 200_000;

/// Assumptions about two clocks; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Age up to which limits are kept, ns.
    pub window_ns: Ns,
    /// Maximum drift between the clocks, ppb.
    pub max_drift_ppb: i64,
    /// Maximum deviation of the drift from a constant within a window, ppb. A contradiction that is small enough to be
    /// caused by steering doubles it; each window without a fault halves it again, down to this value.
    pub steering_ppb: i64,
}

impl Assumed {
    /// For timed exchanges over a stream: their limits are loose (tens of µs), so a generous assumption costs little.
    pub const EXCHANGES: Self = Self { window_ns: 30_000_000_000, max_drift_ppb: 1_000_000, steering_ppb: 10_000 };
    /// For simultaneous readings of both clocks: their limits are so tight that steering immediately causes a
    /// contradiction.
    pub const PAIRS: Self = Self { window_ns: 10_000_000_000, max_drift_ppb: 1_000_000, steering_ppb: 1_000 };
}

/// The offset at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Guest's clock minus host's, ns.
    pub offset_ns: Ns,
    /// Maximum error of `offset_ns`, ns.
    pub bound_ns: Ns,
    /// Rate of the guest's clock relative to the host's, minus 1, ppb.
    pub drift_ppb: i64,
}

/// Estimates a guest's clock from exchanges, in bounded memory. See the module's documentation for the method.
#[derive(Clone, Debug)]
pub struct OffsetEstimator {
    assumed: Assumed,
    /// Limits in ascending order of their guest times (both `upper_at` and `lower_at`).
    kept: VecDeque<Limits>,
    steering: Slope,
    /// Guest time of the last fault, or of the last time the steering was halved.
    calm_since: Ns,
    /// The range of slopes that the kept limits allow.
    least: Slope,
    greatest: Slope,
    hulls: Hulls,
    added: u64,
    faults: u64,
}

impl OffsetEstimator {
    /// Creates an estimator without exchanges.
    pub fn new(assumed: Assumed) -> Self {
        let drift = from_ppb(assumed.max_drift_ppb);
        Self {
            assumed,
            kept: VecDeque::new(),
            steering: from_ppb(assumed.steering_ppb),
            calm_since: 0,
            least: -drift,
            greatest: drift,
            hulls: Hulls::default(),
            added: 0,
            faults: 0,
        }
    }

    /// Adds an exchange; exchanges must come in the order of the guest's answers. Returns the fault that it proves, if
    /// any.
    pub fn add(&mut self, exchange: &Exchange) -> Option<Fault> {
        self.take(Limits::of(exchange), exchange.t3, exchange.t4)
    }

    /// Adds a simultaneous reading: the guest's clock showed `guest` ± `uncertainty` when the host's showed `host`.
    pub fn add_pair(&mut self, guest: Ns, host: Ns, uncertainty: Ns) -> Option<Fault> {
        self.take(Limits::of_pair(guest, host, uncertainty), guest, host)
    }

    fn take(&mut self, limits: Option<Limits>, at_guest: Ns, at_host: Ns) -> Option<Fault> {
        self.added += 1;
        let fault = |kind, gap_ns| Some(Fault { kind, at_host, at_guest, gap_ns });
        let Some(new) = limits else {
            self.faults += 1;
            return fault(FaultKind::Disordered, 0);
        };
        if let Some(last) = self.kept.back() {
            let back = (last.upper_at - new.upper_at).max(last.lower_at - new.lower_at);
            if back > 0 {
                self.restart(new, back);
                return fault(FaultKind::WentBack, back);
            }
            // The earlier limits show the true size of a jump.
            let above = self.upper_at(new.lower_at).map_or(0, |upper| new.lower - upper);
            let below = self.lower_at(new.upper_at).map_or(0, |lower| lower - new.upper);
            let gap = above.max(below);
            if gap > 0 {
                self.restart(new, gap);
                return fault(FaultKind::Contradiction, gap);
            }
        }
        self.keep(new);
        let gap = self.fit();
        if gap > 0 {
            self.restart(new, gap);
            return fault(FaultKind::Contradiction, gap);
        }
        if new.lower_at - self.calm_since > self.assumed.window_ns {
            self.calm_since = new.lower_at;
            self.steering = (self.steering / 2).max(from_ppb(self.assumed.steering_ppb));
        }
        None
    }

    fn keep(&mut self, new: Limits) {
        let oldest = new.lower_at - self.assumed.window_ns;
        while self.kept.front().is_some_and(|l| l.lower_at < oldest) {
            self.kept.pop_front();
        }
        self.kept.push_back(new);
        let slot = |l: &Limits| l.upper_at / (self.assumed.window_ns / SLOTS).max(1);
        let from = self.kept.len() - self.kept.iter().rev().take_while(|l| slot(l) == slot(&new)).count();
        if self.kept.len() - from > KEPT_PER_SLOT {
            // The newest one is kept in any case, because it may show a jump.
            let slowest = (from..self.kept.len() - 1).max_by_key(|&i| self.kept[i].width()).expect("the slot is full");
            self.kept.remove(slowest);
        }
    }

    /// Discards all limits except the new ones, which contradicted the earlier ones by `gap`.
    fn restart(&mut self, new: Limits, gap: Ns) {
        self.faults += 1;
        self.kept.clear();
        self.calm_since = new.lower_at;
        let hardest = from_ppb(HARDEST_STEERING_PPB);
        if gap <= times_up(self.assumed.window_ns, hardest) {
            self.steering = (self.steering * 2).min(hardest);
        }
        self.kept.push_back(new);
        if self.fit() > 0 {
            // The exchange contradicts itself.
            self.kept.clear();
            self.fit();
        }
    }

    /// Computes the range of slopes. Returns the size of the contradiction among the kept limits; 0 if there is none.
    fn fit(&mut self) -> Ns {
        let drift = from_ppb(self.assumed.max_drift_ppb);
        let (least, greatest) = self
            .hulls
            .range(self.kept.iter().map(|l| (l.upper_at, l.upper)), self.kept.iter().map(|l| (l.lower_at, l.lower)));
        // The line's slope lies between least − steering and greatest + steering; θ itself may deviate from it by
        // steering again.
        self.least = least.map_or(-drift, |s| (s - 2 * self.steering).clamp(-drift, drift + 1));
        self.greatest = greatest.map_or(drift, |s| (s + 2 * self.steering).clamp(-drift - 1, drift));
        if self.least > self.greatest {
            let span = self.kept.back().map_or(0, |b| b.lower_at) - self.kept.front().map_or(0, |f| f.upper_at);
            return times_up(span, self.least - self.greatest).max(1);
        }
        self.contradiction()
    }

    /// Size of the largest contradiction. Traverses the limits in order of time, carrying along the tightest upper and
    /// lower one.
    fn contradiction(&self) -> Ns {
        let fixed = |ns: Ns| i128::from(ns) << FRACTION;
        let (mut upper, mut lower) = (None::<(Ns, i128)>, None::<(Ns, i128)>);
        let mut worst = 0i128;
        let (mut uppers, mut lowers) = (self.kept.iter().peekable(), self.kept.iter().peekable());
        loop {
            let is_upper = match (uppers.peek(), lowers.peek()) {
                (Some(u), Some(l)) => u.upper_at <= l.lower_at,
                (None, Some(_)) => false,
                _ => break,
            };
            let at = if is_upper { uppers.peek().map(|l| l.upper_at) } else { lowers.peek().map(|l| l.lower_at) };
            let at = at.expect("peeked");
            let carried_upper = upper.map(|(t, v)| v + i128::from(at - t) * self.greatest);
            let carried_lower = lower.map(|(t, v)| v + i128::from(at - t) * self.least);
            if is_upper {
                let value = fixed(uppers.next().expect("peeked").upper);
                worst = worst.max(carried_lower.map_or(0, |l| l - value));
                upper = Some((at, carried_upper.map_or(value, |u| u.min(value))));
            } else {
                let value = fixed(lowers.next().expect("peeked").lower);
                worst = worst.max(carried_upper.map_or(0, |u| value - u));
                lower = Some((at, carried_lower.map_or(value, |l| l.max(value))));
            }
        }
        -((-worst) >> FRACTION) as Ns
    }

    /// Tightest upper limit at a guest time.
    fn upper_at(&self, guest: Ns) -> Option<Ns> {
        let carried = |l: &Limits| {
            let dt = guest - l.upper_at;
            l.upper + times_up(dt, if dt >= 0 { self.greatest } else { self.least })
        };
        self.kept.iter().map(carried).min()
    }

    /// Tightest lower limit at a guest time.
    fn lower_at(&self, guest: Ns) -> Option<Ns> {
        let carried = |l: &Limits| {
            let dt = guest - l.lower_at;
            l.lower + times_down(dt, if dt >= 0 { self.least } else { self.greatest })
        };
        self.kept.iter().map(carried).max()
    }

    /// Limits of the offset at a guest time: θ lies in `lower..=upper`.
    pub fn limits_at(&self, guest: Ns) -> Option<(Ns, Ns)> {
        let guest = guest.clamp(0, LATEST);
        Some((self.lower_at(guest)?, self.upper_at(guest)?))
    }

    /// The offset at a time of the guest's clock; `None` before the first exchange.
    pub fn at(&self, guest: Ns) -> Option<Estimate> {
        let (lower, upper) = self.limits_at(guest)?;
        let offset_ns = lower + (upper - lower) / 2;
        let bound_ns = (upper - offset_ns).max(offset_ns - lower);
        Some(Estimate { offset_ns, bound_ns, drift_ppb: to_ppb((self.least + self.greatest) / 2) })
    }

    /// The offset at a time of the host's clock; `None` before the first exchange.
    pub fn at_host(&self, host: Ns) -> Option<Estimate> {
        let last = self.kept.back()?;
        let mut estimate = self.at(host.saturating_add(last.upper))?;
        for _ in 0..2 {
            estimate = self.at(host.saturating_add(estimate.offset_ns))?;
        }
        Some(estimate)
    }

    /// The host's time at a guest time, and its maximum error, ns.
    pub fn to_host(&self, guest: Ns) -> Option<(Ns, Ns)> {
        let e = self.at(guest)?;
        Some((guest.saturating_sub(e.offset_ns), e.bound_ns))
    }

    /// Width of the range of possible drifts.
    pub(crate) fn drift_span(&self) -> Slope {
        self.greatest - self.least
    }

    /// Number of exchanges and pairs since the start.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Number of exchanges on which the estimate is based.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Number of faults since the start.
    pub fn faults(&self) -> u64 {
        self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// An exchange with a guest whose clock is ahead by `offset`; `there` and `back` are the delays of request and
    /// response.
    fn exchange(host: Ns, offset: Ns, there: Ns, back: Ns) -> Exchange {
        let t2 = host + there + offset;
        Exchange { t1: host, t2, t3: t2 + 500, t4: host + there + 500 + back }
    }

    fn estimator() -> OffsetEstimator {
        OffsetEstimator::new(Assumed::EXCHANGES)
    }

    #[test]
    fn nothing_is_known_before_the_first_exchange() {
        let e = estimator();
        assert_eq!(e.at(0), None);
        assert_eq!(e.at_host(0), None);
        assert_eq!(e.to_host(0), None);
    }

    #[test]
    fn one_exchange_bounds_the_offset_by_half_its_round_trip() {
        let mut e = estimator();
        assert_eq!(e.add(&exchange(1_000 * MS, 7 * MS, 40_000, 60_000)), None);
        let at = e.at(1_007 * MS + 40_250).unwrap();
        assert!((at.offset_ns - 7 * MS).abs() <= at.bound_ns);
        assert!((50_000..50_010).contains(&at.bound_ns), "{at:?}");
        let (host, bound) = e.to_host(1_007 * MS + 40_250).unwrap();
        assert!((host - (1_000 * MS + 40_250)).abs() <= bound);
    }

    #[test]
    fn slow_exchanges_do_not_change_the_result_of_the_fastest() {
        let mut e = estimator();
        e.add(&exchange(1_000 * MS, 0, 10_000, 10_000));
        let fast = e.at(1_001 * MS).unwrap();
        e.add(&exchange(1_000 * MS + 50_000, 0, 9_000_000, 3_000_000));
        assert_eq!(e.at(1_001 * MS).unwrap().bound_ns, fast.bound_ns);
    }

    #[test]
    fn the_bound_grows_with_the_distance_to_the_last_exchange() {
        let mut e = estimator();
        e.add(&exchange(1_000 * MS, 0, 10_000, 10_000));
        let bounds: Vec<Ns> = (0..5).map(|s| e.at(1_001 * MS + s * 1_000 * MS).unwrap().bound_ns).collect();
        assert!(bounds.is_sorted() && bounds[4] > 3_900_000, "{bounds:?}");
    }

    #[test]
    fn memory_is_bounded_for_any_number_of_exchanges() {
        let mut e = estimator();
        for i in 0..9_000 {
            assert_eq!(e.add(&exchange(i * 10 * MS, 5 * MS, 20_000 + i % 7, 30_000)), None);
        }
        assert!(e.kept() <= 1210, "{}", e.kept());
        assert_eq!(e.added(), 9_000);
    }

    #[test]
    fn a_jump_is_a_fault_with_time_and_size_and_the_fit_continues() {
        let mut e = estimator();
        for i in 0..200 {
            e.add(&exchange(i * 50 * MS, 3 * MS, 50_000, 50_000));
        }
        let fault = e.add(&exchange(10_000 * MS, 5 * MS, 50_000, 50_000)).unwrap();
        assert_eq!((fault.kind, fault.at_host), (FaultKind::Contradiction, 10_000 * MS + 100_500));
        assert!((1_890_000..=2_000_000).contains(&fault.gap_ns), "{fault:?}");
        let at = e.at(10_005 * MS).unwrap();
        assert!((at.offset_ns - 5 * MS).abs() <= at.bound_ns);
        assert_eq!(e.faults(), 1);
    }

    #[test]
    fn a_backward_step_is_distinguished_from_a_jump() {
        let mut e = estimator();
        e.add(&exchange(1_000 * MS, 500 * MS, 50_000, 50_000));
        let fault = e.add(&exchange(1_010 * MS, 0, 50_000, 50_000)).unwrap();
        assert_eq!((fault.kind, fault.gap_ns), (FaultKind::WentBack, 490 * MS));
    }

    #[test]
    fn impossible_times_are_a_fault_and_ignored() {
        let mut e = estimator();
        e.add(&exchange(1_000 * MS, 0, 10_000, 10_000));
        let before = e.at(1_001 * MS);
        for bad in [
            Exchange { t1: 10, t2: 0, t3: 0, t4: 5 },
            Exchange { t1: 0, t2: 9, t3: 8, t4: 20 },
            Exchange { t1: 0, t2: Ns::MIN, t3: Ns::MAX, t4: 20 },
            Exchange { t1: 0, t2: Ns::MAX, t3: Ns::MAX, t4: Ns::MAX },
        ] {
            assert_eq!(e.add(&bad).unwrap().kind, FaultKind::Disordered);
        }
        assert_eq!(e.at(1_001 * MS), before);
    }

    #[test]
    fn times_at_the_ends_of_the_scale_do_not_overflow() {
        let mut e = estimator();
        e.add(&exchange(1_000 * MS, 0, 10_000, 10_000));
        for t in [Ns::MIN, -1, 0, Ns::MAX] {
            e.at(t).unwrap();
            e.at_host(t).unwrap();
            e.to_host(t).unwrap();
        }
    }
}
