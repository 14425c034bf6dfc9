//! One machine's times on the host's timeline.

use crate::chain::HypervisorClock;
use crate::estimator::{Assumed, Estimate, OffsetEstimator};
use crate::exchange::{Exchange, Fault, LATEST};
use crate::ptp_kvm::PtpPair;
use crate::slope::times_up;
use crate::tie::RealtimeWatch;
use crate::tsc::{HostTsc, TscTie};
use latpath_model::Ns;
use std::collections::VecDeque;

/// Limits the correction rate of the mapping beyond the drift to 1 / 10,000 (100 ppm), so that differences between a
/// machine's times are accurate to 0.01 %.
const FASTEST_CORRECTION: i64 = 10_000;
/// Minimum error after a fault at which the mapping jumps, ns. Smaller errors are corrected gradually, within a second.
const MIN_BREAK: Ns = 100_000;
/// Number of knots kept: sightings may arrive this many steps late and are still mapped like their neighbours.
const KNOTS: usize = 64;
/// Number of pairs that must agree with the exchanges before a method other than PTP is used. `PAIRS_TO_TRUST_AGAIN`:
/// the number after a contradiction, for all methods.
const PAIRS_TO_TRUST: u32 = 3;
const PAIRS_TO_TRUST_AGAIN: u32 = 100;
/// Each agreeing pair reduces the widening of PTP's bound by 1 / this.
const PTP_DECAY: Ns = 64;

/// Source of an offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Messages between host and guest.
    #[default]
    TimedExchanges,
    /// The hypervisor's `/dev/ptp_kvm`, checked against the exchanges.
    PtpKvm,
    /// KVM's record of the guest's TSC, checked against the exchanges.
    TscOffset,
    /// PTP: both machines follow the same grandmaster. Checked against the exchanges.
    Ptp,
}

impl Method {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::TimedExchanges => "timed exchanges",
            Self::PtpKvm => "ptp_kvm",
            Self::TscOffset => "tsc-offset",
            Self::Ptp => "PTP",
        }
    }
}

/// State of a machine's clock relative to the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// Source of the offset.
    pub method: Method,
    /// Machine's clock minus host's, ns.
    pub offset_ns: Ns,
    /// Drift, ppb.
    pub drift_ppb: i64,
    /// Maximum error of a time mapped now, ns.
    pub error_bound_ns: Ns,
    /// Maximum error of any time mapped since the start, ns.
    pub max_error_bound_ns: Ns,
    /// Number of exchanges since the start.
    pub exchanges: u64,
    /// Number of faults since the start.
    pub faults: u64,
    /// Time (host clock) and description of the last fault.
    pub last_fault: Option<(Ns, String)>,
    /// Why an available method (`ptp_kvm`, `tsc-offset` or PTP) is not used.
    pub pairs_refused: Option<String>,
    /// Number of PTP times, and times through another machine, that the exchanges disproved: by those times, a message
    /// would have arrived before it was sent.
    pub causality_violations: u64,
}

/// A knot of the mapping, which is linear between knots.
#[derive(Clone, Copy, Debug)]
struct Knot {
    guest: Ns,
    offset: Ns,
}

/// Pairs obtained by one method.
#[derive(Clone, Debug)]
struct Pairs {
    method: Method,
    estimator: OffsetEstimator,
    agreeing: u32,
    needed: u32,
    refused: Option<String>,
}

impl Pairs {
    fn by(method: Method) -> Self {
        let estimator = OffsetEstimator::new(Assumed::PAIRS);
        // PTP pairs arrive only twice a second; until the first one is used, times have the wider bound of the
        // exchanges.
        let needed = if method == Method::Ptp { 1 } else { PAIRS_TO_TRUST };
        Self { method, estimator, agreeing: 0, needed, refused: None }
    }

    fn refuse(&mut self, why: String) {
        let (needed, refused) = (PAIRS_TO_TRUST_AGAIN, Some(why));
        *self = Self { needed, refused, ..Self::by(self.method) };
    }

    /// The offset at a guest time; `None` if the pairs are not trusted or contradict the exchanges: pairs may have
    /// stopped before a change that the exchanges show.
    fn at(&self, guest: Ns, timed: &Estimate) -> Option<Estimate> {
        let agrees = |e: &Estimate| (e.offset_ns - timed.offset_ns).abs() <= e.bound_ns + timed.bound_ns;
        self.estimator.at(guest).filter(|e| self.is_trusted() && agrees(e))
    }

    fn is_trusted(&self) -> bool {
        self.agreeing >= self.needed
    }
}

/// Maps a machine's times to the host's timeline. The map is continuous and monotonic: it keeps the order of sightings,
/// and its slope changes so little that durations within the machine remain true. It jumps only after a fault of the
/// clock.
#[derive(Clone, Debug)]
pub struct Timeline {
    exchanges: OffsetEstimator,
    pairs: [Pairs; 3],
    /// Widening of the error bound of PTP times since the exchanges disproved one, ns.
    ptp_widening: Ns,
    violations: u64,
    knots: VecDeque<Knot>,
    may_break: bool,
    bound: Ns,
    max_bound: Ns,
    breaks: u64,
    last_fault: Option<(Ns, String)>,
}

/// Clamps a time, which a peer may choose freely, to a range in which differences cannot overflow.
fn sane(t: Ns) -> Ns {
    t.clamp(0, LATEST)
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl Timeline {
    /// Creates a timeline without exchanges.
    pub fn new() -> Self {
        Self {
            exchanges: OffsetEstimator::new(Assumed::EXCHANGES),
            pairs: [Method::PtpKvm, Method::TscOffset, Method::Ptp].map(Pairs::by),
            ptp_widening: 0,
            violations: 0,
            knots: VecDeque::new(),
            may_break: false,
            bound: 0,
            max_bound: 0,
            breaks: 0,
            last_fault: None,
        }
    }

    /// Adds an exchange. Returns the fault that it proves, if any.
    pub fn add(&mut self, exchange: &Exchange) -> Option<Fault> {
        let fault = self.exchanges.add(exchange);
        self.note(fault);
        fault
    }

    /// Adds a `ptp_kvm` pair. `host` converts its host time of day to `CLOCK_MONOTONIC`.
    pub fn add_pair(&mut self, pair: &PtpPair, host: &RealtimeWatch) {
        let (at_host, host_uncertainty) = host.to_monotonic(pair.host_realtime_ns);
        self.pair(Method::PtpKvm, pair.guest_ns, at_host, pair.uncertainty_ns.saturating_add(host_uncertainty));
    }

    /// Adds a `ptp_kvm` pair from a guest of another machine; its host time of day is that machine's. Returns false if
    /// the pair must wait for a later report of that machine.
    pub fn add_pair_through(&mut self, pair: &PtpPair, hypervisor: &HypervisorClock) -> bool {
        let guest = sane(pair.guest_ns);
        let Some((lower, upper)) = self.exchanges.limits_at(guest) else { return false };
        let Some((from, to)) = hypervisor.holds() else { return false };
        if guest.saturating_sub(lower) > to {
            return false;
        }
        // The pair precedes the last step of the machine's time of day, so the report does not apply; the pair is
        // dropped.
        if guest.saturating_sub(upper) < from {
            return true;
        }
        if let Some((at_host, bound)) = hypervisor.host_time(pair.host_realtime_ns) {
            let uncertainty = pair.uncertainty_ns.max(0).saturating_add(bound);
            self.violations += u64::from(self.disproved_by(guest, at_host, uncertainty).is_some());
            self.pair(Method::PtpKvm, guest, at_host, uncertainty);
        }
        true
    }

    /// By how much, beyond this uncertainty, the exchanges contradict that the guest's clock showed `guest` when the
    /// host's showed `at_host`, ns; `None` if they permit it.
    fn disproved_by(&self, guest: Ns, at_host: Ns, uncertainty: Ns) -> Option<Ns> {
        let (lower, upper) = self.exchanges.limits_at(guest)?;
        let offset = guest.saturating_sub(at_host);
        let outside = offset.saturating_sub(upper).max(lower.saturating_sub(offset)).saturating_sub(uncertainty);
        (outside > 0).then_some(outside)
    }

    /// Adds a guest's reading of its TSC. `here` is the host's own reading, taken afterwards.
    pub fn add_tsc(&mut self, guest: &TscTie, here: TscTie, host: &mut HostTsc) {
        let Some((lower, upper)) = self.exchanges.limits_at(guest.monotonic_ns) else { return };
        let agrees = |at_host: Ns, uncertainty: Ns| {
            let offset = guest.monotonic_ns.saturating_sub(at_host);
            (lower.saturating_sub(uncertainty)..=upper.saturating_add(uncertainty)).contains(&offset)
        };
        if let Some((at_host, uncertainty)) = host.host_time(guest, here, agrees) {
            self.pair(Method::TscOffset, guest.monotonic_ns, at_host, uncertainty);
        }
    }

    /// Adds a PTP pair: the guest's clock showed `guest` when the host's showed `at_host`, within `uncertainty`, the
    /// sum of the bounds of both servos.
    ///
    /// If the exchanges disprove the pair, the bound was too small by an unknown amount, e.g. because of an asymmetric
    /// path. The bounds of this pair and of the next ones are then widened to cover everything that the exchanges
    /// permit. The widening decays with pairs that agree.
    pub fn add_ptp(&mut self, guest: Ns, at_host: Ns, uncertainty: Ns) {
        let Some((lower, upper)) = self.exchanges.limits_at(guest) else { return };
        let offset = guest.saturating_sub(at_host);
        if let Some(outside) = self.disproved_by(guest, at_host, uncertainty) {
            self.violations += 1;
            let farthest = offset.saturating_sub(lower).max(upper.saturating_sub(offset));
            self.ptp_widening = self.ptp_widening.max(farthest.saturating_sub(uncertainty));
            self.last_fault = Some((at_host, format!("PTP contradicts the timed exchanges by {outside} ns")));
        } else {
            self.ptp_widening -= self.ptp_widening / PTP_DECAY;
        }
        self.pair(Method::Ptp, guest, at_host, uncertainty.saturating_add(self.ptp_widening));
    }

    /// Stops using PTP times, for this reason.
    pub fn refuse_ptp(&mut self, why: String) {
        let ptp = self.pairs.iter_mut().filter(|pairs| pairs.method == Method::Ptp && pairs.refused.is_none());
        ptp.for_each(|pairs| pairs.refuse(why.clone()));
    }

    /// Adds a pair, which must be consistent with the exchanges and with all preceding methods. A pair that is not
    /// disables its method until 100 pairs have agreed again.
    fn pair(&mut self, method: Method, guest: Ns, at_host: Ns, uncertainty: Ns) {
        let offset = guest.saturating_sub(at_host);
        let outside = |e: &Estimate| {
            (offset.saturating_sub(e.offset_ns).saturating_abs() - e.bound_ns).saturating_sub(uncertainty)
        };
        let Some(timed) = self.exchanges.at(guest) else { return };
        let Some(place) = self.pairs.iter().position(|pairs| pairs.method == method) else { return };
        let before =
            self.pairs[..place].iter().filter_map(|pairs| Some((pairs.method.name(), pairs.at(guest, &timed)?)));
        let all = std::iter::once(("the timed exchanges", timed)).chain(before);
        let against = all.map(|(whom, known)| (whom, outside(&known))).find(|(_, outside)| *outside > 0);
        let pairs = &mut self.pairs[place];
        if let Some((whom, outside)) = against {
            let why = format!("{} contradicts {whom} by {outside} ns", method.name());
            if pairs.refused.is_none() {
                self.last_fault = Some((at_host, why.clone()));
            }
            pairs.refuse(why);
            return;
        }
        let fault = pairs.estimator.add_pair(guest, at_host, uncertainty);
        pairs.agreeing = pairs.agreeing.saturating_add(1);
        if pairs.is_trusted() {
            pairs.refused = None;
        }
        self.note(fault);
    }

    fn note(&mut self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.may_break = true;
            self.last_fault = Some((fault.at_host, fault.to_string()));
        }
    }

    /// The offset at a guest time from the source with the tightest bound: a trusted method (`ptp_kvm`, `tsc-offset`,
    /// PTP), or the exchanges, e.g. after pairs stopped arriving.
    fn estimate(&self, guest: Ns) -> Option<(Estimate, Method)> {
        let timed = self.exchanges.at(guest)?;
        let known = self.pairs.iter().filter_map(|pairs| Some((pairs.at(guest, &timed)?, pairs.method)));
        known.chain([(timed, Method::TimedExchanges)]).min_by_key(|(estimate, _)| estimate.bound_ns)
    }

    fn estimator(&self, method: Method) -> &OffsetEstimator {
        let pairs = self.pairs.iter().find(|pairs| pairs.method == method);
        pairs.map_or(&self.exchanges, |pairs| &pairs.estimator)
    }

    /// Fixes the mapping up to a guest time. Call it with the newest time of each batch before mapping the batch.
    /// Returns false before the first exchange.
    pub fn advance(&mut self, guest: Ns) -> bool {
        let guest = sane(guest);
        let Some((now, method)) = self.estimate(guest) else { return false };
        let Some(last) = self.knots.back().copied() else {
            self.push(Knot { guest, offset: now.offset_ns }, now.bound_ns);
            return true;
        };
        let dt = guest.saturating_sub(last.guest);
        if dt <= 0 {
            return true;
        }
        let drifted = i128::from(dt) * i128::from(now.drift_ppb) / 1_000_000_000;
        let straight = last.offset + drifted as Ns;
        let error = now.offset_ns - straight;
        if std::mem::take(&mut self.may_break) && error.abs() > now.bound_ns.max(MIN_BREAK) {
            self.knots.clear();
            self.breaks += 1;
            self.push(Knot { guest, offset: now.offset_ns }, now.bound_ns);
            return true;
        }
        let most = dt / FASTEST_CORRECTION + 1;
        let knot = Knot { guest, offset: straight + error.clamp(-most, most) };
        let off = |k: &Knot, e: &Estimate| (k.offset - e.offset_ns).abs() + e.bound_ns;
        let before = self.estimate(last.guest).map_or(0, |(e, _)| off(&last, &e));
        self.push(knot, before.max(off(&knot, &now)) + self.between(dt, method));
        true
    }

    fn push(&mut self, knot: Knot, bound: Ns) {
        self.bound = bound;
        self.max_bound = self.max_bound.max(bound);
        if self.knots.len() == KNOTS {
            self.knots.pop_front();
        }
        self.knots.push_back(knot);
    }

    /// Converts a guest time within the range of [`Self::advance`] to the host's time. `None` before the first
    /// exchange.
    pub fn to_host(&self, guest: Ns) -> Option<Ns> {
        let guest = sane(guest);
        let right = match self.knots.len() {
            0 => return None,
            // Nearly every time lies between the last two knots.
            n if n >= 2 && self.knots[n - 2].guest <= guest => n - 1,
            n => self.knots.partition_point(|k| k.guest < guest).clamp(usize::from(n > 1), n - 1),
        };
        let b = self.knots[right];
        let offset = match right.checked_sub(1).map(|left| self.knots[left]) {
            Some(a) if guest >= a.guest && guest <= b.guest => {
                let rise = i128::from(b.offset - a.offset) * i128::from(guest - a.guest);
                a.offset + rise.div_euclid(i128::from(b.guest - a.guest)) as Ns
            }
            Some(a) if guest < a.guest => a.offset,
            _ => b.offset,
        };
        Some(guest.saturating_sub(offset))
    }

    /// One offset for all times of the guest's clock in `from..=to` (the one that maps `to`), and its maximum error
    /// over that range. The error is based on current knowledge: earlier parts of the mapping may have been fixed with
    /// larger errors.
    pub fn offset_over(&self, from: Ns, to: Ns) -> Option<(Ns, Ns)> {
        let (from, to) = (sane(from.min(to)), sane(to));
        let offset = to.saturating_sub(self.to_host(to)?);
        let within = self.knots.iter().map(|k| k.guest).filter(|t| (from + 1..to).contains(t));
        let (_, method) = self.estimate(to)?;
        let (mut bound, mut before, mut apart) = (0, from, 0);
        for at in std::iter::once(from).chain(within).chain([to]) {
            let (known, _) = self.estimate(at)?;
            bound = bound.max((offset - known.offset_ns).abs() + known.bound_ns);
            apart = apart.max(at - before);
            before = at;
        }
        Some((offset, bound + self.between(apart, method)))
    }

    /// Maximum deviation of the offset from a straight line between two moments `dt` apart: a quarter of the width of
    /// the range of drifts.
    fn between(&self, dt: Ns, method: Method) -> Ns {
        times_up(dt, self.estimator(method).drift_span()) / 4 + 1
    }

    /// Converts a guest time to the host's by the best source, independently of the mapping. Returns it with its
    /// maximum error, ns; `None` before the first exchange.
    pub fn host_time(&self, guest: Ns) -> Option<(Ns, Ns)> {
        let guest = sane(guest);
        let (known, _) = self.estimate(guest)?;
        Some((guest.saturating_sub(known.offset_ns), known.bound_ns))
    }

    /// Converts a host time to the guest's: the inverse of [`Self::to_host`], to within a nanosecond. Beyond the mapped
    /// range it uses the exchanges, within their bound; `None` before the first exchange.
    pub fn to_guest(&self, host: Ns) -> Option<Ns> {
        let host = sane(host);
        let of = |k: &Knot| k.guest.saturating_sub(k.offset);
        let right = self.knots.partition_point(|k| of(k) < host);
        let offset = match (right.checked_sub(1).map(|left| self.knots[left]), self.knots.get(right)) {
            (Some(a), Some(b)) => {
                let rise = i128::from(b.offset - a.offset) * i128::from(host - of(&a));
                a.offset + rise.div_euclid(i128::from(of(b) - of(&a))) as Ns
            }
            (None, Some(first)) => first.offset,
            (_, None) => self.exchanges.at_host(host)?.offset_ns,
        };
        Some(host.saturating_add(offset))
    }

    /// State of the clock at a host time.
    pub fn state(&self, host: Ns) -> ClockState {
        let guest = self.knots.back().map_or(host, |k| host.saturating_add(k.offset));
        let guest = self.exchanges.at_host(host).map_or(guest, |e| host.saturating_add(e.offset_ns));
        let Some((now, method)) = self.estimate(guest) else { return ClockState::default() };
        ClockState {
            method,
            offset_ns: now.offset_ns,
            drift_ppb: now.drift_ppb,
            error_bound_ns: self.bound.max(now.bound_ns),
            max_error_bound_ns: self.max_bound.max(now.bound_ns),
            exchanges: self.exchanges.added(),
            faults: self.exchanges.faults() + self.pairs.iter().map(|p| p.estimator.faults()).sum::<u64>(),
            last_fault: self.last_fault.clone(),
            pairs_refused: self.pairs.iter().find_map(|pairs| pairs.refused.clone()),
            causality_violations: self.violations,
        }
    }

    /// Number of jumps of the mapping, each after a fault.
    pub fn breaks(&self) -> u64 {
        self.breaks
    }

    /// The earliest host time at which the guest's clock can show `guest`, to detect times in the future.
    pub fn earliest_host(&self, guest: Ns) -> Option<Ns> {
        let (host, bound) = self.exchanges.to_host(guest)?;
        Some(host.saturating_sub(bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tie::ClockTie;
    use latpath_linux::proc::Root;

    const MS: Ns = 1_000_000;
    const OFFSET: Ns = 7_000_000;

    fn exchange(host: Ns, offset: Ns) -> Exchange {
        let t2 = host + 40_000 + offset;
        Exchange { t1: host, t2, t3: t2 + 500, t4: host + 100_500 }
    }

    /// The host's realtime is its monotonic time plus one second.
    fn watch() -> RealtimeWatch {
        let (monotonic_ns, realtime_ns) = (0, 1_000_000_000);
        RealtimeWatch::new(&ClockTie { monotonic_ns, realtime_ns, tai_ns: realtime_ns, uncertainty_ns: 20 })
    }

    fn pair(host: Ns, offset: Ns) -> PtpPair {
        PtpPair { guest_ns: host + offset, host_realtime_ns: host + 1_000_000_000, uncertainty_ns: 100 }
    }

    #[test]
    fn the_map_never_changes_the_order_of_times() {
        let mut timeline = Timeline::new();
        let mut mapped = Vec::new();
        for i in 0..2000 {
            let host = 1_000 * MS + i * 10 * MS;
            // The offset varies by 5 ppm; the exchanges differ in duration.
            let offset = OFFSET + (i / 100 % 2 * 100 - i % 100).abs() * 50;
            let slow = i * 7919 % 300 * 1000;
            let e = exchange(host, offset);
            timeline.add(&Exchange { t1: e.t1 - slow, t4: e.t4 + slow / 2, ..e });
            assert!(timeline.advance(host + offset));
            let times = (0..100).map(|j| host + offset - 99_000 + j * 1000);
            for guest in times {
                let host = timeline.to_host(guest).unwrap();
                assert!((timeline.to_guest(host).unwrap() - guest).abs() <= 1, "there and back");
                mapped.push(host);
            }
        }
        assert!(mapped.is_sorted());
        assert_eq!(timeline.breaks(), 0);
        assert!(timeline.state(21_000 * MS).max_error_bound_ns < 400_000);
    }

    #[test]
    fn times_of_one_machine_keep_their_distance_while_the_estimate_moves() {
        let mut timeline = Timeline::new();
        let e = exchange(1_000 * MS, OFFSET);
        timeline.add(&Exchange { t1: e.t1 - 900_000, ..e });
        timeline.advance(1_007 * MS);
        // Much faster exchanges follow: the estimate moves by nearly half a millisecond.
        for i in 1..50 {
            timeline.add(&exchange(1_000 * MS + i * 10 * MS, OFFSET));
            timeline.advance(1_007 * MS + i * 10 * MS);
            let at = 1_007 * MS + i * 10 * MS;
            let apart = timeline.to_host(at).unwrap() - timeline.to_host(at - 1_000_000).unwrap();
            assert!((apart - 1_000_000).abs() <= 300, "1 ms became {apart} ns");
        }
    }

    #[test]
    fn the_bound_of_an_earlier_time_belongs_to_its_mapping() {
        // The first exchange is slow in one direction only: times mapped before the next one are off by 0.4 ms, which
        // is within the bound.
        let mut timeline = Timeline::new();
        let e = exchange(1_000 * MS, OFFSET);
        timeline.add(&Exchange { t1: e.t1 - 900_000, ..e });
        timeline.advance(1_007 * MS);
        let early = timeline.offset_over(1_006 * MS, 1_007 * MS).unwrap();
        for i in 1..2_000 {
            let host = 1_000 * MS + i * 10 * MS;
            timeline.add(&exchange(host, OFFSET));
            timeline.add_pair(&pair(host + 200_000, OFFSET), &watch());
            timeline.advance(host + 7 * MS);
            let checked = [(1_006 * MS, 1_007 * MS), (host - 30 * MS, host), (host, host)];
            for (from, to) in checked {
                let (offset, bound) = timeline.offset_over(from, to).unwrap();
                assert!((offset - OFFSET).abs() <= bound, "step {i}: {offset} ± {bound}");
            }
        }
        let now = timeline.state(20_990 * MS).error_bound_ns;
        assert!(now < 10_000, "meanwhile the clock is known well: {now}");
        assert!((early.0 - OFFSET).abs() > 10 * now, "and what was mapped first was wrong by more");
    }

    #[test]
    fn a_jump_of_the_clock_breaks_the_map_once_and_is_reported() {
        let mut timeline = Timeline::new();
        for i in 0..100 {
            let offset = if i < 50 { OFFSET } else { OFFSET - 5 * MS };
            timeline.add(&exchange(1_000 * MS + i * 50 * MS, offset));
            timeline.advance(1_000 * MS + i * 50 * MS + offset);
        }
        assert_eq!(timeline.breaks(), 1);
        let state = timeline.state(6_000 * MS);
        assert_eq!(state.faults, 1);
        assert!(state.last_fault.unwrap().1.contains("jumped"));
        assert!((state.offset_ns - 2 * MS).abs() < 100_000);
        let mapped = timeline.to_host(5_950 * MS + 2 * MS).unwrap();
        assert!((mapped - 5_950 * MS).abs() < 100_000, "{mapped}");
    }

    #[test]
    fn pairs_of_the_hypervisor_are_used_once_they_agree_with_the_exchanges() {
        let mut timeline = Timeline::new();
        for i in 0..20 {
            let host = 1_000 * MS + i * 50 * MS;
            timeline.add(&exchange(host, OFFSET));
            timeline.add_pair(&pair(host + 200_000, OFFSET), &watch());
        }
        let state = timeline.state(1_950 * MS + 300_000);
        assert_eq!(state.method, Method::PtpKvm);
        assert!((state.offset_ns - OFFSET).abs() < 200);
        assert!(timeline.estimate(1_950 * MS + 300_000 + OFFSET).unwrap().0.bound_ns < 1_000);
    }

    #[test]
    fn pairs_that_contradict_the_exchanges_are_refused_and_reported() {
        let mut timeline = Timeline::new();
        for i in 0..20 {
            let host = 1_000 * MS + i * 50 * MS;
            timeline.add(&exchange(host, OFFSET));
            timeline.add_pair(&pair(host + 200_000, OFFSET + i / 10 * MS), &watch());
        }
        let state = timeline.state(1_950 * MS + 300_000);
        assert_eq!(state.method, Method::TimedExchanges);
        assert!(state.pairs_refused.unwrap().contains("contradicts the timed exchanges by 9"));
        for i in 20..130 {
            let host = 1_000 * MS + i * 50 * MS;
            timeline.add(&exchange(host, OFFSET));
            timeline.add_pair(&pair(host + 200_000, OFFSET), &watch());
        }
        let state = timeline.state(7_450 * MS + 300_000);
        assert_eq!((state.method, state.pairs_refused), (Method::PtpKvm, None));
    }

    #[test]
    fn the_counter_of_a_guest_is_used_once_it_agrees_and_ptp_kvm_is_used_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let vcpu = dir.path().join("sys/kernel/debug/kvm/7-5/vcpu0");
        std::fs::create_dir_all(&vcpu).unwrap();
        // Both counters tick once per nanosecond; the guest's started 3 s later.
        std::fs::write(vcpu.join("tsc-offset"), "-3000000000\n").unwrap();
        let mut known = HostTsc::new(Root::of(dir.path()));
        let mut timeline = Timeline::new();
        let here = |host: Ns| TscTie { tsc: host as u64 + 9_000_000_000, monotonic_ns: host, uncertainty_ns: 20 };
        let mut step = |timeline: &mut Timeline, i: i64, offset: Ns| {
            let host = 1_000 * MS + i * 50 * MS;
            timeline.add(&exchange(host, offset));
            let at = host + 40_000;
            let guest = TscTie { tsc: at as u64 + 6_000_000_000, monotonic_ns: at + offset, uncertainty_ns: 30 };
            timeline.add_tsc(&guest, here(host + 101_000), &mut known);
        };
        (0..20).for_each(|i| step(&mut timeline, i, OFFSET));
        let state = timeline.state(1_950 * MS + 300_000);
        assert_eq!(state.method, Method::TscOffset);
        let estimate = timeline.estimate(1_950 * MS + 300_000 + OFFSET).unwrap().0;
        assert!((estimate.offset_ns - OFFSET).abs() <= estimate.bound_ns && estimate.bound_ns < 1_000, "{estimate:?}");
        // ptp_kvm is tighter.
        for i in 20..40 {
            step(&mut timeline, i, OFFSET);
            let exact = PtpPair { uncertainty_ns: 1, ..pair(1_000 * MS + i * 50 * MS + 200_000, OFFSET) };
            timeline.add_pair(&exact, &watch());
        }
        assert_eq!(timeline.state(2_950 * MS + 300_000).method, Method::PtpKvm);
        // The guest's clock jumps: its offset from the counter changes by exactly as much.
        (40..60).for_each(|i| step(&mut timeline, i, OFFSET + 5 * MS));
        let state = timeline.state(3_950 * MS + 300_000);
        assert_eq!((state.method, state.offset_ns / MS), (Method::TscOffset, 12));
    }

    #[test]
    fn times_by_ptp_are_used_within_the_sum_of_both_bounds_and_a_causality_violation_widens_it() {
        let mut timeline = Timeline::new();
        let step = |timeline: &mut Timeline, i: i64, wrong: Ns| {
            let host = 1_000 * MS + i * 50 * MS;
            timeline.add(&exchange(host, OFFSET));
            timeline.add_ptp(host + 200_000 + OFFSET, host + 200_000 - wrong, 800);
            host + 300_000
        };
        let mut at = 0;
        (0..20).for_each(|i| at = step(&mut timeline, i, 500));
        let state = timeline.state(at);
        assert_eq!((state.method, state.causality_violations), (Method::Ptp, 0));
        let known = timeline.estimate(at + OFFSET).unwrap().0;
        assert!((known.offset_ns - OFFSET).abs() <= known.bound_ns && known.bound_ns < 1_500, "{known:?}");
        // Exchanges cannot be wrong, so PTP's bound was too small. The exchanges permit ±50 us.
        (20..40).for_each(|i| at = step(&mut timeline, i, 90_000));
        let state = timeline.state(at);
        assert!(state.causality_violations > 10, "{state:?}");
        assert!(state.last_fault.unwrap().1.contains("PTP contradicts"));
        let known = timeline.estimate(at + OFFSET).unwrap().0;
        assert!((known.offset_ns - OFFSET).abs() <= known.bound_ns, "still true: {known:?}");
        // The widening decays once PTP agrees again.
        (40..1_000).for_each(|i| at = step(&mut timeline, i, 0));
        let known = timeline.estimate(at + OFFSET).unwrap().0;
        assert!(known.bound_ns < 2_000 && timeline.state(at).method == Method::Ptp, "{known:?}");
    }

    #[test]
    fn hostile_times_do_not_overflow() {
        let mut timeline = Timeline::new();
        timeline.add(&exchange(1_000 * MS, OFFSET));
        for t in [Ns::MAX, Ns::MIN, 0] {
            timeline.advance(t);
            timeline.to_host(t);
            timeline.to_guest(t);
            timeline.earliest_host(t);
            timeline.add_pair(&PtpPair { guest_ns: t, host_realtime_ns: t, uncertainty_ns: t }, &watch());
            timeline.add_ptp(t, Ns::MIN, t);
            timeline.add_ptp(t, t, Ns::MAX);
            timeline.state(t);
        }
    }
}
