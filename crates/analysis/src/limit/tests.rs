//! Syntax of limits, and verdicts.

use super::*;
use latpath_model::SegmentKind;
use latpath_stats::{
    ConsecutiveFigures, ConsecutiveOver, Deficiency, DeficiencyKind, Loss, MachineFigures, SegmentFigures,
    StreamFigures,
};
use proptest::prelude::*;

fn total(max_ns: Ns) -> SegmentFigures {
    SegmentFigures {
        kind: SegmentKind::Total,
        name: "total".into(),
        from: "host/nic-rx@eth0".into(),
        to: "guest0/app-read@relay".into(),
        times: TimeFigures { count: 9, max_ns, ..Default::default() },
        over_threshold: 2,
        ..Default::default()
    }
}

fn summary() -> Summary {
    let empty = SegmentFigures { kind: SegmentKind::Tsub, name: "Tsub".into(), ..Default::default() };
    let lost = vec![Loss {
        place: "host/tx@vnet0".into(),
        reason: None,
        meaning: None,
        dropped_at: None,
        kernel_count: None,
        count: 3,
    }];
    let at = |point: &str, max_ns| PacingFigures { point: point.into(), count: 8, min_ns: 1, mean_ns: 2, max_ns };
    let pacing = vec![at("host/nic-rx@eth0", 300_000), at("guest0/app-read@relay", 700_000)];
    let row = |packets| ConsecutiveFigures { packets, ..Default::default() };
    let stream = StreamFigures {
        stream: "svid:MU01".into(),
        points: ["host/nic-rx@eth0", "guest0/app-read@relay"].map(|p| p.parse().unwrap()).into(),
        journeys: 12,
        lost: lost.clone(),
        consecutive: Some(row(4)),
        consecutive_over: vec![ConsecutiveOver { over_ns: 3_000_000, row: row(1) }],
        pacing,
        segments: vec![total(3_000_001), empty.clone()],
        ..StreamFigures::default()
    };
    Summary {
        journeys: 12,
        threshold_ns: 200_000,
        segments: vec![total(3_000_001), empty],
        lost,
        streams: vec![stream],
        ..Summary::default()
    }
}

/// A summary with the clocks of both machines, in which `total` has this error bound, ns. With `None`, one clock is
/// unknown.
fn with_clocks(bound: Option<Ns>) -> Summary {
    let mut summary = summary();
    let known = ["host", "guest0"].into_iter().take(if bound.is_some() { 2 } else { 1 });
    summary.machines = known.map(|m| MachineFigures { machine: m.into(), ..Default::default() }).collect();
    let pooled = summary.segments.iter_mut();
    let all =
        pooled.chain(summary.streams.iter_mut().flat_map(|s| &mut s.segments)).filter(|s| s.kind == SegmentKind::Total);
    for s in all {
        s.error_bound_ns = bound.unwrap_or(0);
        let is_close = |late: Ns| s.times.max_ns <= late && s.times.max_ns + s.error_bound_ns > late;
        s.close_to = [200_000, 3_000_000, 3_100_000].map(|late| (late, u64::from(is_close(late)))).into();
    }
    summary
}

fn verdict(limit: &str, summary: &Summary) -> LimitVerdict {
    limit.parse::<Limit>().unwrap().check(summary)
}

/// `kept`, or else the verdict and its reason.
fn check(limit: &str) -> Result<String, BadLimit> {
    let verdict = limit.parse::<Limit>()?.check(&summary());
    Ok(verdict.why().map_or("kept".into(), |why| format!("{}: {why}", verdict.word())))
}

fn says(text: &str) -> Result<String, BadLimit> {
    Ok(text.into())
}

#[test]
fn a_limit_is_broken_by_what_exceeds_it() {
    assert_eq!(check("total:max<=3.000001ms"), says("kept"));
    assert_eq!(check("total:max<=3ms"), says("broken: 3.000 ms"));
    assert_eq!(check("total:over<=2"), says("kept"));
    assert_eq!(check("lost <= 3"), says("kept"));
    assert_eq!(check("lost<=2"), says("broken: 3"));
    assert_eq!(check("journeys>=12"), says("kept"));
    assert_eq!(check("journeys>=13"), says("broken: 12"));
}

#[test]
fn packets_in_a_row_are_late_against_the_threshold_or_the_limits_own_time() {
    assert_eq!(check("consecutive<=3"), says("broken: 4"));
    assert_eq!(check("consecutive(3ms)<=1"), says("kept"));
    assert_eq!(check("consecutive(3ms)<=0"), says("broken: 1"));
    assert_eq!(check("consecutive(200us)<=3"), says("broken: 4"));
    assert_eq!("consecutive(3ms)<=1".parse::<Limit>().unwrap().row_limit(), Some(3_000_000));
    assert_eq!(check("consecutive(3)<=1"), Err(BadLimit::Figure("consecutive(3)".into())));
}

#[test]
fn the_time_between_packets_is_limited_at_all_points_or_at_some() {
    assert_eq!(check("pacing:max<=700us"), says("kept"));
    assert_eq!(check("pacing:max<=500us"), says("broken: 700.0 µs"));
    assert_eq!(check("pacing host/nic-rx@eth0:max<=300us"), says("kept"));
    assert_eq!(check("pacing guest0/*:max<=699us"), says("broken: 700.0 µs"));
    assert_eq!(check("pacing:p99<=1ms"), Err(BadLimit::Figure("p99".into())));
    assert_eq!(check("pacing guest1/*:max<=1s"), says("cannot be judged: no pacing was measured there"));
}

/// A summary whose only deficiency is this one.
fn lacking(kind: DeficiencyKind) -> Summary {
    let deficiencies = vec![Deficiency::new(kind, "seen")];
    Summary { deficiencies, ..summary() }
}

#[test]
fn fragments_weaken_what_sees_the_first_alone_and_not_what_an_application_read() {
    let mut summary = lacking(DeficiencyKind::Fragments);
    let word = |limit: &str, summary: &Summary| verdict(limit, summary).word();
    for limit in ["total:max<=4ms", "total:over<=9", "lost<=3", "consecutive<=4", "pacing:max<=1ms", "journeys>=12"] {
        assert_eq!(word(limit, &summary), "kept", "{limit}: the application read whole packets");
    }
    let to_nic =
        SegmentFigures { kind: SegmentKind::Tnet, name: "Tnet".into(), to: "host/nic-rx@eth0".into(), ..total(5) };
    summary.streams[0].segments.push(to_nic);
    assert_eq!(word("Tnet:max<=1ms", &summary), OPEN, "its other fragments may be late");
    // A route that ends at a device named by the user.
    let end = "guest0/nic-rx@eth1";
    summary.streams[0].points = ["host/nic-rx@eth0", end].map(|p| p.parse().unwrap()).into();
    let segments = summary.streams[0].segments.iter_mut().chain(&mut summary.segments);
    segments.filter(|s| s.name == "total").for_each(|s| s.to = end.into());
    for limit in ["total:max<=4ms", "total:over<=9", "lost<=3", "consecutive<=4"] {
        assert_eq!(word(limit, &summary), OPEN, "{limit}");
    }
    assert_eq!(word("lost<=2", &summary), "broken");
}

#[test]
fn a_change_on_the_way_weakens_what_is_measured_from_or_to_an_end_of_the_route() {
    let mut summary = lacking(DeficiencyKind::Changed);
    let step = SegmentFigures { kind: SegmentKind::Step, name: "a to b".into(), ..total(5) };
    summary.streams[0].segments.push(step);
    let open = ["total:max<=4ms", "lost<=3", "never_seen<=0", "consecutive<=4", "out_of_order<=0", "pacing:max<=1ms"];
    for limit in open {
        assert_eq!(verdict(limit, &summary).cannot_be_judged.as_deref(), Some("seen"), "{limit}");
    }
    for limit in ["a to b:max<=1ms", "malformed<=0", "journeys>=12", "pacing host/*:max<=1ms"] {
        assert_eq!(verdict(limit, &summary).word(), "kept", "{limit}");
    }
}

#[test]
fn what_no_figure_is_made_of_leaves_each_limit_as_it_is_and_a_second_sender_leaves_none() {
    for limit in ["total:max<=4ms", "lost<=3", "journeys>=12", "consecutive<=4", "pacing:max<=1ms"] {
        assert_eq!(verdict(limit, &lacking(DeficiencyKind::ContextMissing)).word(), "kept", "{limit}");
        assert_eq!(verdict(limit, &lacking(DeficiencyKind::SendersMixed)).word(), OPEN, "{limit}");
        let is_least = limit.starts_with("journeys");
        let open = if is_least { KEPT } else { OPEN };
        assert_eq!(verdict(limit, &lacking(DeficiencyKind::SenderNotFollowed)).word(), open, "{limit}");
    }
}

#[test]
fn durations_alone_keep_no_limit_on_losses_and_packets_in_a_row() {
    let alone = Summary { durations_alone: true, lost: Vec::new(), ..summary() };
    for limit in ["lost<=0", "consecutive<=1", "never_seen<=0"] {
        let verdict = verdict(limit, &alone);
        assert_eq!((verdict.word(), &verdict.measured), ("cannot be judged", &None), "{limit}");
        assert!(verdict.cannot_be_judged.is_some_and(|why| why.contains("durations alone")), "{limit}");
    }
    assert_eq!(verdict("total:over<=2", &alone).word(), "kept");
}

#[test]
fn nothing_shows_that_a_limit_is_kept_on_what_was_not_measured() {
    assert_eq!(check("Tsub:max<=3ms"), says("cannot be judged: no journey crossed the segment"));
    let mut nothing = summary();
    (nothing.journeys, nothing.streams[0].journeys, nothing.lost) = (0, 0, Vec::new());
    (nothing.streams[0].consecutive, nothing.streams[0].segments[0].times.count) = (None, 0);
    for limit in ["lost<=0", "consecutive<=1", "total:over<=0", "total:negative<=0", "malformed<=0"] {
        let verdict = verdict(limit, &nothing);
        assert_eq!((verdict.word(), verdict.measured), ("cannot be judged", None), "{limit}");
    }
    assert_eq!(verdict("journeys>=1", &nothing).word(), "broken");
}

#[test]
fn each_stream_that_was_asked_for_must_have_come() {
    let mut summary = summary();
    summary.streams.push(StreamFigures { stream: "svid:MU02".into(), ..StreamFigures::default() });
    let verdict = verdict("lost<=9", &summary);
    assert_eq!(verdict.cannot_be_judged.as_deref(), Some("no packet of MU02 was measured"));
}

#[test]
fn each_stream_keeps_a_limit_on_a_segment_unless_it_is_of_all_together() {
    let mut summary = summary();
    let slow = vec![total(5_000_000)];
    let bad = StreamFigures { stream: "svid:MU02".into(), journeys: 9, segments: slow, ..StreamFigures::default() };
    summary.streams.push(bad);
    assert_eq!(verdict("total:max<=4ms", &summary).broken.as_deref(), Some("5.000 ms of MU02"));
    assert_eq!(verdict("total(all):max<=4ms", &summary).word(), "kept");
}

#[test]
fn a_time_between_two_clocks_is_kept_with_its_error_bound_or_cannot_be_judged() {
    let (near, far) = (with_clocks(Some(150_000)), with_clocks(Some(1_870)));
    let open = verdict("total:max<=3.1ms", &near);
    assert_eq!(
        (open.word(), open.measured.as_deref(), open.bound_ns),
        ("cannot be judged", Some("3.000 ms ±150.0 µs"), Some(150_000))
    );
    assert!(open.why().unwrap().contains("the clocks may be wrong by more than what is left"), "{open:?}");
    assert_eq!(verdict("total:max<=3.1ms", &far).word(), "kept");
    assert_eq!(verdict("total:max<=3ms", &near).broken.as_deref(), Some("3.000 ms ±150.0 µs"));
    // The standard deviation is independent of the clocks' offset.
    assert_eq!(verdict("total:stddev<=1us", &near).word(), "kept");
    let unknown = verdict("total:max<=9s", &with_clocks(None));
    assert_eq!((unknown.word(), unknown.bound_ns), ("cannot be judged", None));
    assert!(unknown.why().unwrap().contains("is not known"), "{unknown:?}");
}

#[test]
fn counts_of_late_packets_are_kept_with_those_that_may_be_late() {
    let at = |threshold_ns, bound| Summary { threshold_ns, ..with_clocks(bound) };
    // The maximum is 3.000001 ms.
    assert_eq!(verdict("total:over<=2", &at(3_100_000, Some(1_870))).word(), "kept");
    assert_eq!(verdict("total:over<=2", &at(3_100_000, Some(150_000))).word(), "cannot be judged");
    assert_eq!(verdict("total:over<=3", &at(3_100_000, Some(150_000))).word(), "kept");
    assert_eq!(verdict("total:over<=9", &at(3_100_000, None)).word(), "cannot be judged");
    let close = |n| {
        let mut summary = with_clocks(Some(1_870));
        summary.streams[0].segments[0].close_to = vec![(3_000_000, n)];
        summary
    };
    assert_eq!(verdict("consecutive(3ms)<=1", &close(0)).word(), "kept");
    assert_eq!(verdict("consecutive(3ms)<=1", &close(1)).word(), "cannot be judged");
    assert_eq!(verdict("consecutive<=4", &with_clocks(Some(1_870))).word(), "kept");
    assert_eq!(verdict("consecutive<=4", &with_clocks(None)).word(), "cannot be judged");
    assert_eq!(verdict("consecutive<=3", &with_clocks(None)).word(), "broken");
}

#[test]
fn a_profile_may_limit_what_nobody_measures() {
    let mut limit: Limit = "malformed<=0".parse().unwrap();
    assert_eq!(limit.counter(), Some("malformed"));
    limit.not_measured();
    assert_eq!(limit.check(&summary()).cannot_be_judged.as_deref(), Some("not measured here"));
}

#[test]
fn what_is_no_limit_is_refused_with_what_would_be() {
    assert_eq!(check("total"), Err(BadLimit::Form("total".into())));
    assert_eq!(check("total:p98<=1ms"), Err(BadLimit::Figure("p98".into())));
    assert_eq!(check("total:max<=3"), Err(BadLimit::Value("3".into())));
}

#[test]
fn a_limit_on_a_segment_that_is_not_there_cannot_be_judged() {
    assert_eq!(
        check("Tfoo:max<=3ms"),
        says("cannot be judged: not measured: no segment \"Tfoo\" (there are: total, Tsub)")
    );
}

/// Verdicts on limits that the figures satisfy, in a summary with this deficiency.
fn with(kind: DeficiencyKind, limits: &[&str]) -> Vec<&'static str> {
    let deficiencies = vec![Deficiency::new(kind, "something is missing")];
    let row = SegmentFigures { error_bound_ns: 1, ..total(5) };
    let mut summary = Summary { deficiencies, segments: vec![row.clone()], ..with_clocks(Some(1)) };
    (summary.lost, summary.streams[0].lost, summary.streams[0].journeys) = (Vec::new(), Vec::new(), 9);
    let on_host = SegmentFigures {
        kind: SegmentKind::Tnet,
        name: "Tnet".into(),
        from: "host/tx@pa".into(),
        to: "host/nic-rx@eth0".into(),
        ..total(5)
    };
    summary.streams[0].segments = vec![row, on_host];
    limits.iter().map(|limit| verdict(limit, &summary).word()).collect()
}

const KEPT: &str = "kept";
const OPEN: &str = "cannot be judged";

#[test]
fn what_is_missing_keeps_limits_from_being_judged_that_it_could_break() {
    use DeficiencyKind::*;
    let all = ["total:max<=1s", "Tnet:max<=1s", "lost<=0", "never_seen<=0", "consecutive(3ms)<=9", "pacing:max<=1s"];
    for kind in [Damaged, Missing, Unfinished, SightingsDropped, NotJoined, MachineLost, PointNotSeen, Other] {
        assert_eq!(with(kind, &all), [OPEN; 6], "{kind:?}");
    }
    assert_eq!(with(NoApplication, &all), [OPEN, KEPT, OPEN, KEPT, OPEN, OPEN]);
    assert_eq!(with(NoApplication, &["duplicates<=0", "out_of_order<=0", "malformed<=0"]), [OPEN, OPEN, KEPT]);
    assert_eq!(
        with(NoApplication, &["Tsub:max<=1s", "pacing host/*:max<=1s", "total(all):p99<=1s"]),
        [OPEN, KEPT, OPEN]
    );
    assert_eq!(with(Clock, &all), [OPEN, KEPT, KEPT, KEPT, OPEN, OPEN]);
    assert_eq!(with(SequenceRestarted, &all), [KEPT, KEPT, KEPT, OPEN, OPEN, KEPT]);
}

#[test]
fn a_broken_limit_is_broken_whatever_is_missing() {
    let limits = ["total:max<=1ns", "total:over<=1", "consecutive<=3", "pacing:max<=1us", "journeys>=99"];
    assert_eq!(with(DeficiencyKind::Damaged, &limits), ["broken"; 5]);
}

#[test]
fn what_was_counted_by_itself_is_judged_where_it_was_missing() {
    use DeficiencyKind::{Damaged, Missing, SightingsDropped};
    assert_eq!(with(SightingsDropped, &["sightings_dropped<=9", "journeys>=9"]), [KEPT, KEPT]);
    assert_eq!(with(Missing, &["journeys>=9"]), [KEPT]);
    assert_eq!(with(Damaged, &["sightings_dropped<=9", "journeys>=9"]), [OPEN, OPEN]);
}

#[test]
fn the_reason_is_what_is_missing_and_the_figure_is_shown_beside_it() {
    let deficiencies = vec![Deficiency::new(DeficiencyKind::NoApplication, "no application was seen")];
    let verdict = verdict("total:max<=1s", &Summary { deficiencies, ..summary() });
    assert_eq!(verdict.cannot_be_judged.as_deref(), Some("no application was seen"));
    assert_eq!(verdict.measured.as_deref(), Some("3.000 ms"));
}

#[test]
fn packets_that_arrived_without_a_time_in_a_segment_may_have_been_late() {
    let mut summary = summary();
    summary.streams[0].journeys += 1;
    let open = verdict("total:max<=4ms", &summary);
    assert!(
        open.cannot_be_judged.as_ref().is_some_and(|why| why.contains("the time of 1 packet that arrived")),
        "{open:?}"
    );
    assert_eq!(verdict("total(all):p99<=4ms", &summary).word(), OPEN);
    assert_eq!(verdict("consecutive(3ms)<=1", &summary).word(), OPEN);
    assert_eq!(verdict("total:max<=3ms", &summary).word(), "broken");
}

#[test]
fn a_stream_that_never_came_does_not_hide_that_another_one_broke_the_limit() {
    let mut summary = summary();
    let empty = SegmentFigures { times: TimeFigures::default(), ..total(0) };
    summary.streams.push(StreamFigures {
        stream: "svid:MU02".into(),
        segments: vec![empty],
        ..StreamFigures::default()
    });
    assert_eq!(verdict("total:max<=3ms", &summary).word(), "broken");
    assert_eq!(verdict("total:max<=4ms", &summary).word(), OPEN);
}

#[test]
fn durations_are_exact() {
    for (text, ns) in
        [("200us", 200_000), ("1.5ms", 1_500_000), ("3 s", 3_000_000_000), ("1h30m", 5_400_000_000_000), ("7µs", 7_000)]
    {
        assert_eq!(parse_duration(text), Some(ns), "{text}");
    }
    for no in ["", "5", "ms", "1.2.3s", "5 parsecs", "99999999999h"] {
        assert_eq!(parse_duration(no), None, "{no}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,40}") {
        let _ = text.parse::<Limit>();
        let _ = parse_duration(&text);
    }
}
