//! The clock of a guest that runs on another machine: the guest's pairs refer to that machine's time of day, which the
//! machine's reports and its timeline convert to the host's time.
//!
//! ```text
//! guest's CLOCK_MONOTONIC ─pair─ hypervisor's CLOCK_REALTIME ─report─ hypervisor's CLOCK_MONOTONIC ─timeline─ host's
//! ```
//!
//! The error bounds of all parts add up. A report is valid from the last step of the hypervisor's time of day to the
//! report's own time, so a pair waits until a later report confirms that no step came in between.

use crate::exchange::LATEST;
use crate::ptp_kvm::PtpPair;
use crate::tie::RealtimeRange;
use crate::timeline::Timeline;
use latpath_model::Ns;
use std::collections::VecDeque;

/// Maximum number of pairs that wait for a report; enough for some seconds.
const MAX_WAITING: usize = 32;

/// A hypervisor's clocks at its latest report.
#[derive(Clone, Debug)]
pub struct HypervisorClock {
    timeline: Timeline,
    realtime: RealtimeRange,
}

impl HypervisorClock {
    /// Creates the clock; `timeline` is the hypervisor's at the time of its report. `None` if the report is invalid.
    pub fn new(timeline: Timeline, realtime: RealtimeRange) -> Option<Self> {
        let is_valid =
            realtime.low <= realtime.high && [realtime.since, realtime.until].iter().all(|t| (0..=LATEST).contains(t));
        is_valid.then_some(Self { timeline, realtime })
    }

    /// Converts a time of the hypervisor's `CLOCK_REALTIME` to the host's; also returns the maximum error, ns. `None`
    /// before the hypervisor's first exchange.
    pub(crate) fn host_time(&self, realtime: Ns) -> Option<(Ns, Ns)> {
        let (monotonic, uncertainty) = self.realtime.to_monotonic(realtime);
        let (at_host, bound) = self.timeline.host_time(monotonic)?;
        // Adds two rounding errors, and the drift within the uncertainty.
        Some((at_host, bound.saturating_add(uncertainty).saturating_add(uncertainty / 1_000 + 2)))
    }

    /// Host times between which the report is certainly valid. The interval is empty if the error bounds exceed its
    /// length.
    pub(crate) fn holds(&self) -> Option<(Ns, Ns)> {
        let (since, of_since) = self.timeline.host_time(self.realtime.since)?;
        let (until, of_until) = self.timeline.host_time(self.realtime.until)?;
        Some((since.saturating_add(of_since), until.saturating_sub(of_until)))
    }
}

/// Pairs of a guest's clock with its hypervisor's time of day that wait for a report.
#[derive(Clone, Debug, Default)]
pub struct ChainedPairs {
    waiting: VecDeque<PtpPair>,
    unconfirmed: u64,
}

impl ChainedPairs {
    /// Adds a pair read by the guest.
    pub fn push(&mut self, pair: PtpPair) {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
            self.unconfirmed += 1;
        }
        self.waiting.push_back(pair);
    }

    /// Adds those pairs to the guest's timeline that the hypervisor's report covers.
    pub fn apply(&mut self, guest: &mut Timeline, hypervisor: &HypervisorClock) {
        while self.waiting.front().is_some_and(|pair| guest.add_pair_through(pair, hypervisor)) {
            self.waiting.pop_front();
            self.unconfirmed = 0;
        }
    }

    /// Whether pairs have been discarded since a report last covered one: no report has covered any pair for seconds.
    pub fn is_unconfirmed(&self) -> bool {
        self.unconfirmed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Exchange;
    use crate::timeline::Method;

    const MS: Ns = 1_000_000;
    /// The clocks of the hypervisor (b) and the guest (relay), minus the host's.
    const OF_B: Ns = 40_000 * MS;
    const OF_RELAY: Ns = 7_000 * MS;
    /// The hypervisor's CLOCK_REALTIME minus its CLOCK_MONOTONIC.
    const UTC: Ns = 1_700_000_000_000 * MS;

    fn exchange(host: Ns, offset: Ns, delay: Ns) -> Exchange {
        Exchange { t1: host, t2: host + delay + offset, t3: host + delay + offset, t4: host + 2 * delay }
    }

    fn report(since: Ns, until: Ns, utc: Ns) -> RealtimeRange {
        RealtimeRange { low: utc - 30, high: utc + 30, since: since + OF_B, until: until + OF_B }
    }

    /// A pair for which the guest read its hypervisor's clock at a host time; `utc` is the hypervisor's time of day
    /// minus its monotonic time.
    fn pair(host: Ns, utc: Ns) -> PtpPair {
        PtpPair { guest_ns: host + OF_RELAY, host_realtime_ns: host + OF_B + utc, uncertainty_ns: 60 }
    }

    /// Timelines of hypervisor and guest after two seconds: PTP ties the hypervisor's clock to within ±300 ns; the
    /// guest's exchanges take 4 ms.
    fn timelines() -> (Timeline, Timeline) {
        let (mut b, mut relay) = (Timeline::new(), Timeline::new());
        for host in (0..40).map(|i| 1_000 * MS + i * 50 * MS) {
            b.add(&exchange(host, OF_B, 100_000));
            b.add_ptp(host + MS + OF_B, host + MS + 250, 300);
            relay.add(&exchange(host, OF_RELAY, 2 * MS));
        }
        (b, relay)
    }

    #[test]
    fn the_bounds_of_all_parts_of_the_chain_add_up() {
        let (b, mut relay) = timelines();
        let clock = HypervisorClock::new(b, report(900 * MS, 3_000 * MS, UTC)).unwrap();
        let mut pairs = ChainedPairs::default();
        for i in 0..8 {
            pairs.push(pair(1_000 * MS + i * 250 * MS, UTC));
            pairs.apply(&mut relay, &clock);
        }
        let state = relay.state(2_800 * MS);
        assert_eq!((state.method, state.causality_violations), (Method::PtpKvm, 0));
        assert!((state.offset_ns - OF_RELAY).abs() <= state.error_bound_ns, "{state:?}");
        assert!((390..2_000).contains(&state.error_bound_ns), "PTP's 300, the report's 30, the pair's 60: {state:?}");
    }

    #[test]
    fn a_pair_waits_for_a_report_that_confirms_its_time() {
        let (b, relay) = timelines();
        let clock = |range| HypervisorClock::new(b.clone(), range).unwrap();
        let agreed = |pairs: &mut ChainedPairs, range| {
            let mut relay = relay.clone();
            pairs.apply(&mut relay, &clock(range));
            (pairs.waiting.len(), relay.state(2_900 * MS).method)
        };
        let mut pairs = ChainedPairs::default();
        (0..4).for_each(|i| pairs.push(pair(2_000 * MS + i * 100 * MS, UTC)));
        assert_eq!(agreed(&mut pairs, report(900 * MS, 2_001 * MS, UTC)), (4, Method::TimedExchanges));
        // The exchanges alone determine the guest's time only to ±2 ms, so the pairs are used.
        assert_eq!(agreed(&mut pairs.clone(), report(900 * MS, 2_250 * MS, UTC)), (1, Method::PtpKvm));
        // There was a step before the report, which the pairs may precede.
        assert_eq!(agreed(&mut pairs.clone(), report(2_301 * MS, 2_500 * MS, UTC + 9)), (0, Method::TimedExchanges));
    }

    #[test]
    fn pairs_that_no_report_confirms_are_bounded_and_reported() {
        let (b, mut relay) = timelines();
        let mut pairs = ChainedPairs::default();
        (0..MAX_WAITING as Ns).for_each(|i| pairs.push(pair(2_000 * MS + i, UTC)));
        assert!(!pairs.is_unconfirmed());
        pairs.push(pair(2_100 * MS, UTC));
        assert!(pairs.is_unconfirmed() && pairs.waiting.len() == MAX_WAITING);
        pairs.apply(&mut relay, &HypervisorClock::new(b, report(900 * MS, 2_900 * MS, UTC)).unwrap());
        assert!(!pairs.is_unconfirmed() && pairs.waiting.is_empty());
    }

    #[test]
    fn a_hypervisor_that_is_not_the_guests_own_is_disproved_by_the_exchanges() {
        let (b, mut relay) = timelines();
        // The time of day of this hypervisor differs from that of the guest's own by 9 ms.
        let clock = HypervisorClock::new(b, report(900 * MS, 2_900 * MS, UTC + 9 * MS)).unwrap();
        let mut pairs = ChainedPairs::default();
        (0..8).for_each(|i| pairs.push(pair(2_000 * MS + i * 100 * MS, UTC)));
        pairs.apply(&mut relay, &clock);
        let state = relay.state(2_900 * MS);
        assert_eq!((state.method, state.causality_violations), (Method::TimedExchanges, 8));
        assert!(state.pairs_refused.unwrap().starts_with("ptp_kvm contradicts the timed exchanges by "));
    }

    #[test]
    fn invalid_reports_are_refused_and_hostile_times_do_not_overflow() {
        let (b, relay) = timelines();
        let all = [Ns::MIN, -1, 0, 1, UTC, LATEST, Ns::MAX];
        let mut valid = 0;
        for [low, high] in all.iter().flat_map(|low| all.map(|high| [*low, high])) {
            for [since, until] in all.iter().flat_map(|since| all.map(|until| [*since, until])) {
                let range = RealtimeRange { low, high, since, until };
                let Some(clock) = HypervisorClock::new(b.clone(), range) else { continue };
                assert!(low <= high && since.min(until) >= 0 && since.max(until) <= LATEST);
                valid += 1;
                for t in all {
                    let pair = PtpPair { guest_ns: t, host_realtime_ns: t, uncertainty_ns: t.max(0) };
                    relay.clone().add_pair_through(&pair, &clock);
                    relay.clone().add_pair_through(&PtpPair { guest_ns: OF_RELAY + 2_000 * MS, ..pair }, &clock);
                }
            }
        }
        assert!(valid > 0);
    }
}
