//! Ranking of packets whose explanations are written by hand in the test.

use latpath_cause::{Attribution, Baseline, Cause, CauseInterval, Executor, Hop, PacketTimeline, Ranking, RunContext};
use latpath_flight::{Class, Doing, Running};
use latpath_model::{Ns, PacketSighting, PointId};
use proptest::prelude::*;

const WAY: [PointId; 3] = [0, 1, 2];

fn thread(pid: u32, name: &str) -> Executor {
    let class = Some(Class { prio: 120, policy: 0 });
    let doing = Doing::Thread(Running { pid, class, guest: false, work: None });
    Executor { name: format!("{name} ({pid})"), doing, class }
}

/// An interval: duration in ns, cause, actor, culprit.
type ExplainedPacket = (Ns, Cause, Option<Executor>, Option<Executor>);

fn packet(number: u64, late: bool, hops: &[(PointId, PointId, Vec<ExplainedPacket>)]) -> PacketTimeline {
    let mut t = 1_000_000;
    let mut seen = vec![PacketSighting { point: hops[0].0, t, cpu: Some(0), tid: Some(0) }];
    let mut all = Vec::new();
    for (from, to, causes) in hops {
        let begin = t;
        let mut intervals = Vec::new();
        for (ns, cause, actor, by) in causes {
            intervals.push(CauseInterval {
                from: t,
                to: t + ns,
                cause: *cause,
                actor: actor.clone(),
                by: by.clone(),
                machine: 0,
                cpu: Some(4),
                number: None,
                state: None,
                waiter: None,
                notes: Vec::new(),
            });
            t += ns;
        }
        seen.push(PacketSighting { point: *to, t, cpu: Some(0), tid: Some(0) });
        all.push(Hop { from: *from, to: *to, begin, end: t, intervals });
    }
    PacketTimeline {
        stream: 0,
        key: 1,
        number,
        late,
        capture: 1,
        machines: vec!["host".into()],
        seen,
        hops: all,
        visits: Vec::new(),
    }
}

fn work(ns: Ns, executor: &Executor) -> ExplainedPacket {
    (ns, Cause::Work, Some(executor.clone()), None)
}

#[test]
fn the_baseline_is_not_blamed() {
    let (vhost, hog) = (thread(5, "vhost-4"), thread(9, "hog"));
    let mut baseline = Baseline::default();
    for ns in [100, 200, 300] {
        baseline.add(&packet(1, false, &[(0, 1, vec![work(ns, &vhost)]), (1, 2, vec![work(50, &vhost)])]));
    }
    let waits = (14_000, Cause::WaitingForCpu, Some(vhost.clone()), Some(hog.clone()));
    let late = packet(2, true, &[(0, 1, vec![waits, work(230, &vhost)]), (1, 2, vec![work(50, &vhost)])]);
    let attribution = Attribution::of(&late, &WAY, &baseline, &RunContext::default());
    assert_eq!((attribution.time_ns, attribution.baseline_ns, attribution.excess_ns), (14_280, 250, 14_030));
    let first = attribution.first().unwrap();
    assert_eq!(
        (first.cause, first.excess_ns, first.culprit().unwrap().name.as_str()),
        (Cause::WaitingForCpu, 14_000, "hog")
    );
    let worked = &attribution.shares[1];
    assert_eq!(
        (worked.cause, worked.time_ns, worked.excess_ns),
        (Cause::Work, 280, 30),
        "30 more than the mean of 200"
    );
}

#[test]
fn time_below_the_baseline_is_subtracted_from_the_other_causes() {
    let (vhost, hog) = (thread(5, "vhost-4"), thread(9, "hog"));
    let mut baseline = Baseline::default();
    let exit = (40, Cause::IdleExit, Some(vhost.clone()), None);
    baseline.add(&packet(1, false, &[(0, 1, vec![exit, work(60, &vhost)])]));
    let waits = (1000, Cause::WaitingForCpu, Some(vhost.clone()), Some(hog));
    let late = packet(2, true, &[(0, 1, vec![waits, work(60, &vhost)])]);
    let attribution = Attribution::of(&late, &WAY, &baseline, &RunContext::default());
    assert_eq!(attribution.excess_ns, 960);
    assert_eq!(attribution.first().unwrap().excess_ns, 960, "it waited instead of coming out of idle for 40 ns");
}

#[test]
fn a_hop_that_skips_a_point_has_the_baseline_of_both_hops() {
    let vhost = thread(5, "vhost-4");
    let mut baseline = Baseline::default();
    baseline.add(&packet(1, false, &[(0, 1, vec![work(100, &vhost)]), (1, 2, vec![work(50, &vhost)])]));
    let late = packet(2, true, &[(0, 2, vec![work(1150, &vhost)])]);
    let attribution = Attribution::of(&late, &WAY, &baseline, &RunContext::default());
    assert_eq!((attribution.baseline_ns, attribution.excess_ns, attribution.without_baseline), (150, 1000, false));
    let unknown =
        Attribution::of(&packet(3, true, &[(2, 7, vec![work(9, &vhost)])]), &WAY, &baseline, &RunContext::default());
    assert_eq!((unknown.excess_ns, unknown.without_baseline), (9, true));
}

#[test]
fn a_packet_within_its_baseline_blames_nobody() {
    let vhost = thread(5, "vhost-4");
    let mut baseline = Baseline::default();
    baseline.add(&packet(1, false, &[(0, 1, vec![work(100, &vhost)])]));
    let attribution =
        Attribution::of(&packet(2, true, &[(0, 1, vec![work(80, &vhost)])]), &WAY, &baseline, &RunContext::default());
    assert_eq!((attribution.excess_ns, attribution.first()), (0, None));
}

#[test]
fn processes_of_one_name_are_one_culprit_in_one_row() {
    let mut ranking = Ranking::default();
    let baseline = Baseline::default();
    for n in 0..100 {
        let waits = (1000 + n, Cause::WaitingForCpu, Some(thread(5, "vhost-4")), Some(thread(100 + n as u32, "rustc")));
        let late = packet(n as u64, true, &[(0, 1, vec![waits, work(10, &thread(5, "vhost-4"))])]);
        ranking.add(&Attribution::of(&late, &WAY, &baseline, &RunContext::default()));
    }
    let rows = ranking.rows();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].cause, rows[0].packets, rows[0].first), (Cause::WaitingForCpu, 100, 100));
    assert_eq!((rows[0].median_ns(), rows[0].worst_ns, rows[1].first), (1049, 1099, 0));
    let culprit = rows[0].culprit().unwrap();
    assert_eq!((culprit.name.as_str(), culprit.pids.len(), culprit.pid()), ("rustc", 32, Some(199)));
}

#[test]
fn unexplained_time_is_one_row_at_the_end() {
    let mut ranking = Ranking::default();
    let share = vec![(9000, Cause::Unexplained, None, None), work(10, &thread(5, "vhost-4"))];
    ranking.add(&Attribution::of(
        &packet(1, true, &[(0, 1, share)]),
        &WAY,
        &Baseline::default(),
        &RunContext::default(),
    ));
    let rows = ranking.rows();
    assert_eq!(rows.iter().map(|r| r.cause).collect::<Vec<_>>(), [Cause::Work, Cause::Unexplained]);
    assert_eq!(ranking.unexplained_per_mille(), 998);
}

/// Any explained packet, with intervals of up to `longest` ns.
fn any_packet(longest: Ns) -> impl Strategy<Value = PacketTimeline> {
    let executor = || {
        prop::option::of((0_u32..600, any::<bool>()).prop_map(|(pid, one)| {
            if one {
                thread(pid, "x")
            } else {
                thread(pid, &format!("t{pid}"))
            }
        }))
    };
    let interval = (0..longest, 0..Cause::ALL.len(), executor(), executor())
        .prop_map(|(ns, cause, actor, by)| (ns, Cause::ALL[cause], actor, by));
    let hop = (0_u16..4, 0_u16..4, prop::collection::vec(interval, 0..6));
    (prop::collection::vec(hop, 1..5), any::<u64>()).prop_map(|(hops, number)| packet(number, true, &hops))
}

proptest! {
    #[test]
    fn causes_sum_to_the_packet_and_their_excess_to_its_excess(
        late in any_packet(1 << 40), baseline in prop::collection::vec(any_packet(1 << 30), 0..5)
    ) {
        let mut known = Baseline::default();
        baseline.iter().for_each(|p| known.add(p));
        let attribution = Attribution::of(&late, &WAY, &known, &RunContext::default());
        prop_assert_eq!(attribution.shares.iter().map(|h| h.time_ns).sum::<Ns>(), late.time());
        prop_assert_eq!(attribution.shares.iter().map(|h| h.excess_ns).sum::<Ns>(), attribution.excess_ns);
        prop_assert!(attribution.excess_ns == (attribution.time_ns - attribution.baseline_ns).max(0));
        for share in &attribution.shares {
            prop_assert!(share.excess_ns >= 0 && share.excess_ns <= share.time_ns, "{share:?}");
            prop_assert!(share.by.iter().map(|(_, ns)| ns).sum::<Ns>() <= share.time_ns);
            prop_assert_eq!(share.hops.iter().map(|(_, ns)| ns).sum::<Ns>(), share.time_ns);
        }
    }

    #[test]
    fn rows_and_others_sum_to_the_excess_of_all(late in prop::collection::vec(any_packet(1 << 40), 1..300)) {
        let mut ranking = Ranking::default();
        late.iter().for_each(|p| ranking.add(&Attribution::of(p, &WAY, &Baseline::default(), &RunContext::default())));
        let rows = ranking.rows();
        let others = ranking.others();
        prop_assert_eq!(rows.iter().map(|r| r.excess_ns).sum::<Ns>() + others.excess_ns, ranking.excess_ns());
        let blamed = late.iter().filter(|p| p.time() > 0).count() as u64;
        prop_assert_eq!(rows.iter().map(|r| r.first).sum::<u64>() + others.first, blamed);
        prop_assert!(rows.len() <= 512);
    }

    #[test]
    fn garbled_times_are_handled(late in any_packet(Ns::MAX / 32), baseline in any_packet(Ns::MAX / 32)) {
        let mut known = Baseline::default();
        (0..3).for_each(|_| known.add(&baseline));
        let mut ranking = Ranking::default();
        (0..40).for_each(|_| ranking.add(&Attribution::of(&late, &WAY, &known, &RunContext::default())));
        prop_assert!(ranking.excess_ns() >= 0);
    }
}
