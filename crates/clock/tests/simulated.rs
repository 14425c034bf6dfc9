//! Simulated clocks and delays with known true offsets, which must always lie within the bounds of the estimate.

use latpath_clock::{
    Assumed, ChainedPairs, Exchange, FaultKind, HypervisorClock, OffsetEstimator, PtpPair, RealtimeRange, Timeline,
};
use latpath_model::Ns;
use proptest::prelude::*;

const MS: Ns = 1_000_000;
const SECOND: Ns = 1_000_000_000;

/// A guest's clock: offset and drift at the start, then a drift that varies within the estimator's assumptions.
#[derive(Clone, Debug)]
struct Guest {
    offset: Ns,
    drift_ppb: i64,
    /// Deviation from `drift_ppb`: up for half a period, down for the other half.
    wander_ppb: i64,
    half_period: Ns,
    step_at: Ns,
    step: Ns,
}

impl Guest {
    /// The guest's time at a host time, to the ns.
    fn at(&self, host: Ns) -> Ns {
        let part = |dt: Ns, ppb: i64| (i128::from(dt) * i128::from(ppb) / 1_000_000_000) as Ns;
        let phase = host.rem_euclid(2 * self.half_period);
        let wandered = phase.min(2 * self.half_period - phase);
        let step = if host >= self.step_at { self.step } else { 0 };
        host + self.offset + part(host, self.drift_ppb) + part(wandered, self.wander_ppb) + step
    }

    fn exchange(&self, host: Ns, there: Ns, inside: Ns, back: Ns) -> Exchange {
        let (t2, t3) = (self.at(host + there), self.at(host + there + inside));
        Exchange { t1: host, t2, t3, t4: host + there + inside + back }
    }
}

fn guest() -> impl Strategy<Value = Guest> {
    (-40_000 * SECOND..40_000 * SECOND, -400_000i64..400_000, 0i64..9_000, 1i64..40).prop_map(
        |(offset, drift_ppb, wander_ppb, half_period)| Guest {
            offset: offset + 50_000 * SECOND,
            drift_ppb,
            wander_ppb,
            half_period: half_period * SECOND / 2,
            step_at: Ns::MAX,
            step: 0,
        },
    )
}

/// A guest whose drift varies within what is assumed for simultaneous readings.
fn calm_guest() -> impl Strategy<Value = Guest> {
    guest().prop_map(|guest| Guest { wander_ppb: guest.wander_ppb % 400, ..guest })
}

/// Delay on the wire: a minimum, some spread, and occasional long waits. The two directions differ.
fn delay() -> impl Strategy<Value = Ns> {
    (20_000i64..200_000, prop_oneof![8 => 0i64..100_000, 2 => 0i64..3_000_000, 1 => 0i64..80_000_000])
        .prop_map(|(floor, more)| floor + more)
}

/// Per exchange: the host's pause before it, the time to the guest, the time in the guest, and the time back.
fn exchanges(n: usize) -> impl Strategy<Value = Vec<(Ns, Ns, Ns, Ns)>> {
    prop::collection::vec((MS..100 * MS, delay(), 0i64..300_000, delay()), n)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_true_offset_always_lies_within_the_bound(
        guest in guest(),
        exchanges in exchanges(900),
        distance in 0i64..2 * SECOND,
    ) {
        let mut estimator = OffsetEstimator::new(Assumed::EXCHANGES);
        let mut host = SECOND;
        for (i, (pause, there, inside, back)) in exchanges.into_iter().enumerate() {
            host += pause;
            let e = guest.exchange(host, there, inside, back);
            host = e.t4;
            prop_assert_eq!(estimator.add(&e), None);
            // Tests the present, a time ahead and a time back, in turn.
            let when = if i % 3 == 0 { host } else { (host + distance * if i % 3 == 1 { 1 } else { -1 }).max(SECOND) };
            let shown = guest.at(when);
            let estimate = estimator.at(shown).unwrap();
            let error = (estimate.offset_ns - (shown - when)).abs();
            prop_assert!(error <= estimate.bound_ns + 1, "off by {} ns, bound {}", error, estimate.bound_ns);
            let by_host = estimator.at_host(when).unwrap();
            prop_assert!((by_host.offset_ns - (shown - when)).abs() <= by_host.bound_ns + 1);
        }
    }

    #[test]
    fn the_bound_approaches_half_the_fastest_round_trip(
        guest in guest(),
        exchanges in exchanges(600),
    ) {
        let mut estimator = OffsetEstimator::new(Assumed::EXCHANGES);
        let (mut host, mut round_trips) = (SECOND, Vec::new());
        for (pause, there, inside, back) in exchanges {
            host += pause;
            let e = guest.exchange(host, there, inside, back);
            host = e.t4;
            estimator.add(&e);
            round_trips.push((e.t4, e.round_trip()));
        }
        // The range of drifts adds a few ppm to the bound: within a second of the fastest exchange, at most 100 µs.
        let fastest = round_trips.iter().filter(|(t, _)| *t > host - SECOND).map(|(_, r)| *r).min().unwrap();
        let bound = estimator.at(guest.at(host)).unwrap().bound_ns;
        prop_assert!(bound <= fastest / 2 + 100_000, "bound {}, fastest {}", bound, fastest);
    }

    #[test]
    fn a_step_beyond_the_delays_is_found_by_the_next_fast_exchange(
        guest in guest(),
        exchanges in prop::collection::vec((MS..60 * MS, 20_000i64..200_000, 0i64..100_000, 20_000i64..200_000), 400),
        size in prop_oneof![-20 * SECOND..-2 * MS, 2 * MS..20 * SECOND],
    ) {
        let mut guest = guest;
        let mut estimator = OffsetEstimator::new(Assumed::EXCHANGES);
        let (mut host, mut since_step, mut faults) = (SECOND, 0, 0);
        for (i, (pause, there, inside, back)) in exchanges.into_iter().enumerate() {
            host += pause;
            if i == 250 {
                guest.step_at = host;
                guest.step = size;
            }
            let e = guest.exchange(host, there, inside, back);
            host = e.t4;
            if let Some(fault) = estimator.add(&e) {
                faults += 1;
                prop_assert!(i >= 250 && since_step < 3, "fault at exchange {}: {}", i, fault);
                prop_assert!(fault.kind != FaultKind::Disordered);
                prop_assert!(fault.at_host >= guest.step_at);
            }
            since_step += i32::from(i >= 250);
            if i < 250 || since_step >= 3 {
                let estimate = estimator.at(guest.at(host)).unwrap();
                let error = (estimate.offset_ns - (guest.at(host) - host)).abs();
                prop_assert!(error <= estimate.bound_ns + 1, "off by {} ns, bound {}", error, estimate.bound_ns);
            }
        }
        prop_assert_eq!(faults, 1);
    }

    #[test]
    fn every_time_on_the_timeline_is_true_within_the_bound_and_in_order(
        guest in guest(),
        exchanges in exchanges(400),
    ) {
        let mut timeline = Timeline::new();
        let (mut host, mut before) = (SECOND, Ns::MIN);
        for (pause, there, inside, back) in exchanges {
            let begin = host;
            host += pause;
            let e = guest.exchange(host, there, inside, back);
            host = e.t4;
            prop_assert_eq!(timeline.add(&e), None);
            prop_assert!(timeline.advance(guest.at(host)));
            if before == Ns::MIN {
                before = timeline.to_host(guest.at(host)).unwrap();
                continue;
            }
            let bound = timeline.state(host).max_error_bound_ns;
            for k in 0..20 {
                let when = begin + (host - begin) * k / 20;
                let mapped = timeline.to_host(guest.at(when)).unwrap();
                prop_assert!((mapped - when).abs() <= bound + 2, "off by {}, bound {}", mapped - when, bound);
                prop_assert!(mapped >= before);
                before = mapped;
            }
        }
    }

    #[test]
    fn no_exchanges_make_it_panic_or_grow(
        exchanges in prop::collection::vec(
            (any::<[i64; 4]>(), 0..3u8),
            0..300,
        ),
    ) {
        let mut estimator = OffsetEstimator::new(Assumed::EXCHANGES);
        let mut timeline = Timeline::new();
        for ([a, b, c, d], kind) in exchanges {
            let e = match kind {
                0 => Exchange { t1: a, t2: b, t3: c, t4: d },
                1 => Exchange { t1: a >> 3 & i64::MAX, t2: b >> 3 & i64::MAX, t3: b >> 2 & i64::MAX, t4: a >> 2 & i64::MAX },
                _ => Exchange { t1: a & 0xffff_ffff, t2: b & 0xffff_ffff, t3: b & 0xffff_ffff, t4: (a & 0xffff_ffff) + (d & 0xff_ffff) },
            };
            estimator.add(&e);
            estimator.at(b);
            estimator.at_host(c);
            timeline.add(&e);
            timeline.advance(c);
            timeline.to_host(b);
            timeline.state(d);
        }
        prop_assert!(estimator.kept() <= 1210);
    }

    /// Simulates machine b and a guest of b (`relay`). Each step has an exchange with both and a pair of the guest's
    /// time with b's time of day; every other step also has a report from b. The time of day is occasionally set, by
    /// any amount.
    #[test]
    fn a_time_through_another_hypervisor_is_true_within_the_sum_of_the_bounds(
        [b, relay] in [calm_guest(), calm_guest()],
        of_b in exchanges(120),
        of_relay in exchanges(120),
        [of_report, of_pair] in [10..2_000 as Ns, 10..2_000 as Ns],
        errors in prop::collection::vec((-100..=100 as Ns, -100..=100 as Ns), 120),
        steps in prop::collection::btree_map(10..110_usize, -3 * SECOND..3 * SECOND, 0..3),
        small_steps in prop::collection::btree_map(10..110_usize, -300_000..300_000 as Ns, 0..3),
    ) {
        let (mut time_of_b, mut time_of_relay, mut pairs) = (Timeline::new(), Timeline::new(), ChainedPairs::default());
        let (mut host, mut utc, mut clock) = (SECOND, 1_700_000_000 * SECOND, None::<HypervisorClock>);
        let (mut range, mut used) = (None::<RealtimeRange>, 0);
        for (i, (of_b, of_relay)) in of_b.into_iter().zip(of_relay).enumerate() {
            for (timeline, guest, (pause, there, inside, back)) in
                [(&mut time_of_b, &b, of_b), (&mut time_of_relay, &relay, of_relay)]
            {
                let e = guest.exchange(host + pause, there, inside, back);
                host = e.t4;
                prop_assert_eq!(timeline.add(&e), None);
            }
            let (of_first, of_second) = errors[i];
            let scaled = |error: Ns, most: Ns| error * most / 100;
            pairs.push(PtpPair {
                guest_ns: relay.at(host),
                host_realtime_ns: b.at(host) + utc + scaled(of_first, of_pair),
                uncertainty_ns: of_pair + 1,
            });
            host += MS;
            let step = steps.get(&i).or(small_steps.get(&i)).copied().unwrap_or(0);
            utc += step;
            if step != 0 {
                range = None;
            }
            host += MS;
            if i % 2 == 0 {
                let (at, error) = (b.at(host), scaled(of_second, of_report));
                let since = range.map_or(at, |range| range.since);
                let (low, high) = (utc + error - of_report, utc + error + of_report);
                range = Some(RealtimeRange { low, high, since, until: at });
                clock = HypervisorClock::new(time_of_b.clone(), range.unwrap());
            }
            let Some(clock) = &clock else { continue };
            pairs.apply(&mut time_of_relay, clock);
            for when in [host, host - 50 * MS, host - 300 * MS].map(|when| when.max(SECOND)) {
                let (at_host, bound) = time_of_relay.host_time(relay.at(when)).unwrap();
                let error = at_host - when;
                prop_assert!(error.abs() <= bound + 3, "step {i}: off by {error}, bound {bound}");
            }
            used += u32::from(time_of_relay.state(host).method.name() == "ptp_kvm");
        }
        // The bound of the chain includes that of b's exchanges, so the guest's own bound may be tighter, but no pair
        // may be disproved.
        let state = time_of_relay.state(host);
        prop_assert_eq!((state.causality_violations, state.pairs_refused), (0, None), "used {} times", used);
    }
}
