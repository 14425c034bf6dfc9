//! The joiner and the listing of `latpath streams` report equal counts for equal packets.

use latpath_journey::{Joiner, Options};
use latpath_model::{KeyRule, Ns, Point, PointInfo, Sighting};
use latpath_protocols::sequence::Totals;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_traffic::Discovery;
use proptest::prelude::*;

const STEP: Ns = 250_000;

/// The listing's counts for packets with these numbers at these times.
fn listed(packets: &[(Ns, u32)], samples: u16) -> Totals {
    let mut found = Discovery::default();
    for (t, key) in packets {
        let asdu = AsduSpec { svid: b"MU".to_vec(), smp_cnt: *key as u16, ..AsduSpec::default() };
        let spec = FrameSpec { asdus: vec![asdu; samples.into()], ..FrameSpec::default() };
        found.note(*t, &spec.build().unwrap(), None);
    }
    let totals = found.streams()[0].tracker.totals();
    totals
}

/// Sightings of two points: the sender's and the receiver's.
struct Joined {
    joiner: Joiner,
    out_of_order: u64,
    without_arrival: u64,
}

/// Joins the sightings. `route`: from the first point to the second; empty if unknown.
fn joined(sightings: impl IntoIterator<Item = (Ns, u32, u16)>, route: &[u16]) -> Joined {
    let mut joiner = Joiner::new([KeyRule::SMP_CNT], Options::default());
    joiner.set_route(0, route);
    let info = |text: &str| PointInfo::from(text.parse::<Point>().unwrap());
    joiner.set_points(&["host/tx@a", "host/nic-rx@b"].map(info));
    let mut journeys = Vec::new();
    for (t, key, point) in sightings {
        let s = Sighting { t, key, tid: 1, stream: 0, point, cpu: 0, note: 0 };
        joiner.push(&s, &mut |j| journeys.push((j.seen, j.out_of_order)));
    }
    joiner.flush(&mut |j| journeys.push((j.seen, j.out_of_order)));
    let last = journeys.iter().rposition(|(seen, _)| seen & 2 != 0).unwrap_or(0);
    let first = journeys.iter().position(|(seen, _)| seen & 2 != 0).unwrap_or(0);
    Joined {
        joiner,
        out_of_order: journeys.iter().filter(|(_, out_of_order)| *out_of_order).count() as u64,
        without_arrival: journeys[first..=last].iter().filter(|(seen, _)| seen & 2 == 0).count() as u64,
    }
}

prop_compose! {
    /// Numbers in order of arrival: some lost, duplicated or late, with occasional restarts. The first ones arrive in
    /// order, because the joiner must learn the step.
    fn arrivals()(
        (wrap, samples) in prop::sample::select(vec![(4000_u64, 1_u64), (4800, 2), (12800, 8), (14400, 6), (65536, 1), (1000, 1)]),
        start in 0_u64..700,
        fates in prop::collection::vec((0_u8..20, 0_u8..20, 0_usize..40), 100..4000),
        restart in prop::option::of(1000_usize..3000),
    ) -> (u64, u16, Vec<(usize, u64)>) {
        let mut order = Vec::new();
        for (i, (loss, twice, delay)) in fates.iter().enumerate() {
            // Back by 700 packets: more than the reordering limit, and less than half of every wrap except the
            // smallest, which is unknown until it occurs twice.
            let back = if wrap > 1000 && restart.is_some_and(|at| i >= at) { 700 } else { 0 };
            let number = (start + i as u64 + 1000 - back) * samples;
            let calm = i < 50 || restart.is_some_and(|at| i.abs_diff(at) < 50);
            if *loss > 0 || calm {
                order.push((i + if *loss == 1 && !calm { *delay } else { 0 }, number));
            }
            if *twice == 0 && !calm {
                order.push((i + delay, number));
            }
        }
        order.sort_by_key(|(place, _)| *place);
        (wrap, samples as u16, order)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn seen_at_one_point((wrap, samples, arrivals) in arrivals()) {
        // A step that is not known yet cannot explain a wrap, so there is none among the first packets.
        prop_assume!(arrivals[..4].iter().all(|(_, n)| n % wrap >= arrivals[0].1 % wrap));
        let packets: Vec<(Ns, u32)> =
            arrivals.iter().map(|(place, n)| (*place as Ns * STEP, (n % wrap) as u32)).collect();
        let listed = listed(&packets, samples);
        // With and without a known route, and with one or two points.
        for route in [&[][..], &[0], &[0, 1]] {
            let points = if route.len() == 2 { 0..2 } else { 0..1 };
            let sightings = packets.iter().flat_map(|(t, key)| points.clone().map(|p| (*t + Ns::from(p), *key, p)));
            let joined = joined(sightings, route);
            let joiner = joined.joiner.totals(0);
            prop_assert_eq!(
                (listed.received, listed.lost, listed.duplicates, listed.restarts),
                (joiner.sightings / points.len() as u64, joiner.never_seen, joiner.duplicates, joiner.restarts)
            );
            // At the first uncommon wrap, a packet from before the wrap that arrives after one from beyond the wrap is
            // not recognised as out of order.
            if wrap != 1000 {
                prop_assert_eq!(listed.out_of_order, joined.out_of_order, "{:?}", route);
            }
            prop_assert_eq!(joiner.journeys, listed.received - listed.duplicates);
        }
    }

    #[test]
    fn seen_at_sender_and_receiver((wrap, samples, arrivals) in arrivals()) {
        // An uncommon wrap looks like a restart the first time.
        prop_assume!(wrap != 1000 && arrivals[..4].iter().all(|(_, n)| n % wrap >= arrivals[0].1 % wrap));
        let numbers: Vec<u64> = arrivals.iter().map(|(_, n)| *n).collect();
        let (least, most) = (numbers.iter().min().copied().unwrap_or(0), numbers.iter().max().copied().unwrap_or(0));
        prop_assume!(numbers.iter().zip(&numbers[1..]).all(|(a, b)| a.abs_diff(*b) < 500 * u64::from(samples)));
        // If the last number before the wrap is lost each time, the arrivals alone suggest an earlier wrap.
        let is_last = |n: &u64| (n + u64::from(samples)).is_multiple_of(wrap);
        let lost_at_wraps = (least..=most).step_by(samples.into()).filter(|n| is_last(n) && !numbers.contains(n));
        prop_assume!(lost_at_wraps.count() < 2);
        // Each packet is sent once, in order, and arrives at the generated time.
        let base = numbers[0] as i64;
        let place = |n: u64| (n as i64 - base) / i64::from(samples) * STEP;
        let sent = (least..=most).step_by(samples.into()).map(|n| (place(n), (n % wrap) as u32, 0));
        let arrived = arrivals.iter().map(|(at, n)| (*at as Ns * STEP + STEP / 2, (n % wrap) as u32, 1));
        let mut all: Vec<_> = sent.chain(arrived.clone()).collect();
        all.sort_by_key(|(t, ..)| *t);
        let joined = joined(all, &[0, 1]);
        let packets: Vec<(Ns, u32)> = arrived.map(|(t, key, _)| (t, key)).collect();
        let listed = listed(&packets, samples);
        let totals = joined.joiner.totals(0);
        prop_assert_eq!((totals.never_seen, totals.restarts, totals.late), (0, 0, 0));
        prop_assert_eq!(
            (listed.lost, listed.duplicates, listed.out_of_order, listed.restarts),
            (joined.without_arrival, totals.duplicates, joined.out_of_order, 0)
        );
    }
}
