//! Compares the aggregate with a slow implementation that reads all journeys again for each figure.

use latpath_clock::TimeOfDay;
use latpath_journey::{Journey, Segment};
use latpath_model::{DropNote, Ns, Point, PointId, PointInfo, SegmentKind};
use latpath_run::Rows;
use latpath_stats::{figures::packets, track::Intervals, Aggregate, Batches, Context, Setup, Summary, Tracks};
use proptest::prelude::*;
use std::collections::BTreeMap;

const POINTS: [&str; 5] =
    ["host/tx@veth0", "host/nic-rx@br0", "host/drop@tap0", "guest0/nic-rx@eth0", "guest0/app-read@relay"];
/// Each stream's route: a subset of the points that differs from the other stream's.
const LINES: [[PointId; 3]; STREAMS] = [[1, 3, 4], [0, 1, 3]];
const SEGMENTS: [(&str, PointId, PointId); 4] = [("Thyp", 1, 3), ("Tsub", 3, 4), ("total", 1, 4), ("mine", 0, 3)];
const STREAMS: usize = 2;
const THRESHOLD: Ns = 5_000;

fn setup(worst: usize) -> Setup {
    let point = |name: &&str| PointInfo::from(name.parse::<Point>().unwrap());
    let segment = |(name, from, to): (&str, _, _)| Segment {
        kind: SegmentKind::classic(name).unwrap_or_default(),
        name: name.into(),
        from,
        to,
    };
    Setup {
        streams: STREAMS,
        points: POINTS.iter().map(point).collect(),
        routes: LINES.map(|line| line.to_vec()).to_vec(),
        segments: SEGMENTS.map(segment).to_vec(),
        threshold: THRESHOLD,
        row_limits: vec![THRESHOLD],
        band: None,
        worst,
        reactions: Vec::new(),
    }
}

/// A journey that owns its sightings.
#[derive(Clone, Debug)]
struct OwnedJourney {
    stream: u16,
    number: u64,
    seen: u64,
    t: Vec<Ns>,
    duplicates: u32,
    out_of_order: bool,
    drop_note: u16,
    missing_before: u32,
}

impl OwnedJourney {
    fn lend(&self) -> Journey<'_> {
        Journey {
            stream: self.stream,
            key: self.number as u32,
            number: self.number,
            seen: self.seen,
            t: &self.t,
            cpu: &[7; 5],
            tid: &[70, 71, 72, 73, 74],
            duplicates: self.duplicates,
            out_of_order: self.out_of_order,
            drop_note: self.drop_note,
            missing_before: self.missing_before,
            samples: 0,
        }
    }

    fn has(&self, p: PointId) -> bool {
        self.seen & (1 << p) != 0
    }

    fn route(&self) -> [PointId; 3] {
        LINES[usize::from(self.stream)]
    }

    fn total(&self) -> Option<Ns> {
        let seen: Vec<_> = self.route().into_iter().filter(|p| self.has(*p)).collect();
        match seen.as_slice() {
            [from, .., to] => Some(self.t[usize::from(*to)] - self.t[usize::from(*from)]),
            _ => None,
        }
    }

    fn first(&self) -> Ns {
        (0..5).filter(|p| self.has(*p)).map(|p| self.t[usize::from(p)]).min().unwrap()
    }
}

/// Adds journeys in batches of this many rows.
fn add<'a>(aggregate: &mut Aggregate, journeys: impl IntoIterator<Item = Journey<'a>>, at_once: usize) {
    let (mut batches, mut rows) = (Batches::new(aggregate.setup()), Rows::new(POINTS.len()));
    let mut journeys = journeys.into_iter().peekable();
    while journeys.peek().is_some() {
        rows.clear(POINTS.len());
        journeys.by_ref().take(at_once).for_each(|journey| rows.push(&journey));
        batches.each(&rows, |batch| aggregate.add(batch));
    }
}

/// The aggregate of these journeys, added one at a time.
fn aggregate(journeys: &[OwnedJourney], worst: usize) -> Aggregate {
    let mut aggregate = Aggregate::new(setup(worst));
    add(&mut aggregate, journeys.iter().map(OwnedJourney::lend), 1);
    aggregate
}

fn summary(aggregate: &Aggregate) -> Summary {
    let note = |reason: &str, function: &str| DropNote { reason: reason.into(), function: function.into(), at: None };
    let notes = [note("FULL_RING", "tun_net_xmit"), note("NO_SOCKET", "udp_rcv")];
    let streams = ["svid:A".to_string(), "svid:B".to_string()];
    let context = Context {
        streams: &streams,
        drop_notes: &notes,
        elapsed: 2_000_000_000,
        time_of_day: &TimeOfDay::new(0, 1_000_000, &[]),
    };
    let mut summary = Summary::default();
    aggregate.fill(&mut summary, context, |from, to| if from < 3 && to >= 3 { 120 } else { 0 });
    summary
}

fn journeys() -> impl Strategy<Value = Vec<OwnedJourney>> {
    let times = prop::collection::vec(-200_i64..9_000, 5);
    // Mostly complete routes, and all kinds of gaps.
    let seen = prop_oneof![3 => Just(0b11011_u64), 2 => 1_u64..32];
    let missing = prop_oneof![4 => Just(0_u32), 1 => 1_u32..4];
    let journey = (0..STREAMS as u16, seen, times, 0_i64..1_000_000, 0_u32..2, any::<bool>(), 0_u16..4, missing);
    prop::collection::vec(journey, 1..200).prop_map(|all| {
        let mut numbers = [0; STREAMS];
        let own = |(stream, seen, steps, start, duplicates, out_of_order, drop_note, missing_before): (
            u16,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
        )| {
            let steps: Vec<Ns> = steps;
            let t = steps
                .iter()
                .scan(start, |t, step| {
                    *t += step;
                    Some(*t)
                })
                .collect();
            let number = &mut numbers[usize::from(stream)];
            *number += 1;
            OwnedJourney { stream, number: *number - 1, seen, t, duplicates, out_of_order, drop_note, missing_before }
        };
        all.into_iter().map(own).collect()
    })
}

/// Outcome of a packet: complete, incomplete, or where it was last seen.
fn fate(j: &OwnedJourney) -> (&'static str, Option<String>) {
    let [first, second, sink] = j.route();
    if j.has(first) && j.has(second) && j.has(sink) {
        return ("complete", None);
    }
    if j.has(sink) {
        return ("incomplete", None);
    }
    let place = if j.has(second) {
        second
    } else if j.has(first) {
        first
    } else {
        (0..5).filter(|p| j.has(*p)).max_by_key(|p| (j.t[usize::from(*p)], *p)).unwrap()
    };
    ("lost", Some(POINTS[usize::from(place)].to_string()))
}

/// Reason for a packet's loss: that of its drop note, unless at least as many packets of the stream with the same note
/// arrived nonetheless.
fn reason(j: &OwnedJourney, all: &[OwnedJourney]) -> Option<String> {
    let with_note = || all.iter().filter(|k| k.stream == j.stream && k.drop_note == j.drop_note);
    let lost = with_note().filter(|k| fate(k).0 == "lost").count();
    let text = match j.drop_note {
        1 => "FULL_RING in tun_net_xmit",
        2 => "NO_SOCKET in udp_rcv",
        _ => return None,
    };
    (with_note().count() - lost < lost).then(|| text.to_string())
}

proptest! {
    #[test]
    fn every_count_agrees_with_a_count_over_all_journeys(journeys in journeys()) {
        let (summary, all) = (summary(&aggregate(&journeys, 0)), journeys.clone());
        let count = |what: &str, of: &[&OwnedJourney]| of.iter().filter(|j| fate(j).0 == what).count() as u64;
        let check = |of: Vec<&OwnedJourney>, journeys: u64, complete: u64, incomplete: u64, lost: &[latpath_stats::Loss]| {
            let mut places = BTreeMap::new();
            for j in &of {
                if let Some(place) = fate(j).1 {
                    *places.entry((place, reason(j, &all))).or_insert(0) += 1;
                }
            }
            let found: BTreeMap<_, _> = lost.iter().map(|l| ((l.place.clone(), l.reason.clone()), l.count)).collect();
            prop_assert_eq!(found, places);
            prop_assert_eq!((complete, incomplete), (count("complete", &of), count("incomplete", &of)));
            prop_assert_eq!(journeys, of.len() as u64);
            prop_assert_eq!(journeys, complete + incomplete + lost.iter().map(|l| l.count).sum::<u64>());
            Ok(())
        };
        check(journeys.iter().collect(), summary.journeys, summary.complete, summary.incomplete, &summary.lost)?;
        for (id, s) in summary.streams.iter().enumerate() {
            let own: Vec<_> = journeys.iter().filter(|j| usize::from(j.stream) == id).collect();
            prop_assert_eq!(s.duplicates, own.iter().map(|j| u64::from(j.duplicates)).sum::<u64>());
            prop_assert_eq!(s.out_of_order, own.iter().filter(|j| j.out_of_order).count() as u64);
            check(own, s.journeys, s.complete, s.incomplete, &s.lost)?;
        }
        prop_assert_eq!(summary.duplicates, summary.streams.iter().map(|s| s.duplicates).sum::<u64>());
        prop_assert_eq!(summary.out_of_order, summary.streams.iter().map(|s| s.out_of_order).sum::<u64>());
    }

    #[test]
    fn every_segment_agrees_with_a_sorted_list_of_its_times(journeys in journeys()) {
        let summary = summary(&aggregate(&journeys, 0));
        for (id, stream) in summary.streams.iter().enumerate() {
            let (mut longest, mut row) = (0, 0);
            for j in journeys.iter().filter(|j| usize::from(j.stream) == id) {
                let [first, _, sink] = j.route();
                let late = j.has(first) && j.has(sink) && j.t[usize::from(sink)] - j.t[usize::from(first)] > THRESHOLD;
                row += u64::from(j.missing_before);
                longest = longest.max(row);
                row = if late || !j.has(sink) { row + 1 } else { 0 };
                longest = longest.max(row);
            }
            prop_assert_eq!(stream.consecutive.as_ref().map_or(0, |row| row.packets), longest);
            // A row limit equal to the threshold finds the same run.
            let [row] = &stream.consecutive_over[..] else { panic!("{:?}", stream.consecutive_over) };
            prop_assert_eq!((row.over_ns, row.row.packets), (THRESHOLD, longest));
        }
        let rows = summary.streams.iter().enumerate().map(|(id, s)| (Some(id), &s.segments));
        for (stream, rows) in rows.chain([(None, &summary.segments)]) {
            for (name, from, to) in SEGMENTS {
                let of = journeys.iter().filter(|j| stream.is_none_or(|id| usize::from(j.stream) == id));
                let mut times: Vec<Ns> = of
                    .filter(|j| j.has(from) && j.has(to))
                    .map(|j| j.t[usize::from(to)] - j.t[usize::from(from)])
                    .collect();
                times.sort();
                let Some(row) = rows.iter().find(|row| row.name == name) else {
                    // The segment is not on this stream's route, and no packet crossed it.
                    let on_way = |p| stream.is_some_and(|id| LINES[id].contains(&p));
                    prop_assert!(stream.is_some() && times.is_empty() && !(on_way(from) && on_way(to)));
                    continue;
                };
                prop_assert_eq!(row.times.count, times.len() as u64);
                prop_assert_eq!(row.rate_hz, times.len() as f64 / 2.0);
                prop_assert_eq!(row.times.negative, times.iter().filter(|t| **t < 0).count() as u64);
                prop_assert_eq!(row.over_threshold, times.iter().filter(|t| **t > THRESHOLD).count() as u64);
                prop_assert_eq!(row.error_bound_ns, if from < 3 { 120 } else { 0 });
                prop_assert_eq!(row.histogram.iter().map(|b| b.count).sum::<u64>(), row.times.count);
                if let [least, .., greatest] = times.as_slice() {
                    prop_assert_eq!((row.times.min_ns, row.times.max_ns), (*least, *greatest));
                    let mean = times.iter().sum::<Ns>() as f64 / times.len() as f64;
                    prop_assert_eq!(row.times.mean_ns, (mean + 0.5).floor() as Ns);
                    let middle = times[times.len().div_ceil(2) - 1];
                    prop_assert!((row.times.p50_ns - middle).abs() as f64 <= middle.abs() as f64 * 0.01);
                }
            }
        }
    }

    #[test]
    fn the_slowest_are_those_of_a_sorted_list(journeys in journeys(), worst in 0_usize..20) {
        let mut all: Vec<(Ns, &OwnedJourney)> = journeys.iter().filter_map(|j| Some((j.total()?, j))).collect();
        all.sort_by_key(|(total, j)| (-total, j.first(), j.stream, j.number));
        let summary = summary(&aggregate(&journeys, worst));
        prop_assert_eq!(summary.worst.len(), worst.min(all.len()));
        for (found, (total, j)) in summary.worst.iter().zip(all) {
            prop_assert_eq!((found.total_ns, found.key, found.time_ns), (total, j.number as u32, j.first() + 1_000_000));
            // If the packet arrived, the drop point saw only a copy, and is omitted.
            let arrived = j.has(j.route()[2]);
            let is_step = |p: &PointId| j.has(*p) && !(arrived && *p == 2);
            let mut steps: Vec<_> = (0..5).filter(is_step).map(|p| (j.t[usize::from(p)], p)).collect();
            steps.sort();
            prop_assert_eq!(found.steps.len(), steps.len());
            let mut before = j.first();
            for (step, (t, p)) in found.steps.iter().zip(steps) {
                prop_assert_eq!(step.point.as_str(), POINTS[usize::from(p)]);
                prop_assert_eq!((step.since_first_ns, step.since_last_ns), (t - j.first(), t - before));
                prop_assert_eq!((step.cpu, step.tid), (Some(7), Some(70 + u32::from(p))));
                before = t;
            }
        }
    }

    #[test]
    fn a_batch_gives_the_same_figures_as_its_journeys_one_by_one(journeys in journeys(), worst in 0_usize..9, is_sorted in any::<bool>()) {
        let mut journeys = journeys;
        if is_sorted {
            journeys.sort_by_key(|j| j.stream);
        }
        let mut batch = Aggregate::new(setup(worst));
        add(&mut batch, journeys.iter().map(OwnedJourney::lend), journeys.len());
        prop_assert_eq!(summary(&batch), summary(&aggregate(&journeys, worst)));
    }

    #[test]
    fn large_batches_with_few_exceptions_equal_single_journeys(
        odd in prop::collection::btree_map(0_usize..700, 0_u8..8, 0..12),
        at_once in 1_usize..800,
        worst in 0_usize..9,
    ) {
        let mut skipped = 0;
        let own = |number: usize| {
            let what = odd.get(&number);
            skipped += u64::from(what == Some(&0)) * 3;
            let start = number as Ns * 250_000;
            let took = if what == Some(&1) { 6_000 } else { 100 + (number * 7919 % 1009) as Ns };
            let end = if what == Some(&2) { Ns::MIN } else { start + took };
            OwnedJourney {
                stream: 0,
                number: number as u64 + skipped,
                seen: if what == Some(&3) { 0b01010 } else { 0b11110 ^ u64::from(what == Some(&4)) << 2 },
                t: vec![0, start, start + 10, start + 50, end],
                duplicates: 0,
                out_of_order: false,
                drop_note: u16::from(what == Some(&5)) * 2,
                missing_before: u32::from(what == Some(&6)) * 3,
            }
        };
        let journeys: Vec<OwnedJourney> = (0..700).map(own).collect();
        let mut batch = Aggregate::new(setup(worst));
        add(&mut batch, journeys.iter().map(OwnedJourney::lend), at_once);
        prop_assert_eq!(summary(&batch), summary(&aggregate(&journeys, worst)));
    }

    #[test]
    fn losses_over_time_sum_to_those_of_each_stream(
        journeys in journeys(), has_route in any::<bool>(),
    ) {
        let mut setup = setup(0);
        if !has_route {
            setup.routes[1].clear();
        }
        let (mut rows, mut all) = (Rows::new(POINTS.len()), Aggregate::new(setup.clone()));
        journeys.iter().for_each(|j| rows.push(&j.lend()));
        Batches::new(&setup).each(&rows, |batch| all.add(batch));
        let summary = summary(&all);
        let over_time = |by_stream| {
            let mut tracks = Tracks::new(&setup, Intervals::of(0, 2_000_000_000, 4), by_stream);
            Batches::new(&setup).each(&rows, |batch| tracks.add(batch));
            tracks.finish().iter().map(|(_, lost)| lost.count()).collect::<Vec<_>>()
        };
        prop_assert_eq!(over_time(false), [packets(&summary.lost)]);
        let each: Vec<u64> = summary.streams.iter().map(|stream| packets(&stream.lost)).collect();
        prop_assert_eq!(over_time(true), each);
    }

    #[test]
    fn merged_aggregates_equal_a_single_one(journeys in journeys(), cut in any::<prop::sample::Index>(), worst in 0_usize..9) {
        let (a, b) = journeys.split_at(cut.index(journeys.len()));
        let mut merged = aggregate(a, worst);
        merged.merge(&aggregate(b, worst));
        prop_assert_eq!(summary(&merged), summary(&aggregate(&journeys, worst)));
    }
}

#[test]
fn a_journey_kept_without_cpus_and_threads_gets_them_afterwards() {
    let own = OwnedJourney {
        stream: 1,
        number: 9,
        seen: 0b11010,
        t: vec![0, 10, 0, 20, 50],
        duplicates: 0,
        out_of_order: false,
        drop_note: 0,
        missing_before: 0,
    };
    let mut aggregate = Aggregate::new(setup(3));
    let mut rows = Rows::new(POINTS.len());
    rows.leave_out_details();
    rows.push(&Journey { cpu: &[], tid: &[], ..own.lend() });
    Batches::new(aggregate.setup()).each(&rows, |batch| aggregate.add(batch));
    assert_eq!(aggregate.slowest(), [(1, 9, 10)]);
    aggregate.detail(&Journey { number: 8, ..own.lend() });
    assert_eq!(summary(&aggregate).worst[0].steps[2].tid, None);
    aggregate.detail(&own.lend());
    assert_eq!(summary(&aggregate).worst[0].steps[2].tid, Some(74));
}

#[test]
fn broken_clocks_and_unknown_streams_are_handled() {
    let own = OwnedJourney {
        stream: 0,
        number: 0,
        seen: 0b11111,
        t: vec![Ns::MIN, Ns::MAX, 0, Ns::MIN, Ns::MAX],
        duplicates: u32::MAX,
        out_of_order: true,
        drop_note: u16::MAX,
        missing_before: 0,
    };
    let three = [own.lend(), Journey { stream: 2, ..own.lend() }, Journey { seen: 0, ..own.lend() }];
    let [batch, aggregate] = [9, 1].map(|at_once| {
        let mut aggregate = Aggregate::new(setup(3));
        add(&mut aggregate, three.iter().cycle().take(9).copied(), at_once);
        aggregate
    });
    assert_eq!((summary(&batch), batch.strays()), (summary(&aggregate), 3));
    let summary = summary(&aggregate);
    assert_eq!((summary.journeys, summary.complete, aggregate.strays()), (6, 3, 3));
    assert_eq!((summary.lost[0].place.as_str(), summary.lost[0].count), ("-", 3));
    assert_eq!((summary.segments[0].times.min_ns, summary.segments[0].times.negative), (Ns::MIN, 3));
}

#[test]
fn a_bridge_that_drops_its_copies_of_what_arrives_hides_no_reason_of_another_device() {
    let of = |number: u64, seen: u64, drop_note: u16| OwnedJourney {
        stream: 0,
        number,
        seen,
        t: vec![0, 10, 20, 30, 50],
        duplicates: 0,
        out_of_order: false,
        drop_note,
        missing_before: 0,
    };
    let [first, second, sink] = of(0, 0, 0).route().map(|p| 1 << p);
    // The bridge drops its local copy of every packet; then the application is gone for a while, so that no socket
    // receives the packets.
    let arrived = (0..5_000).map(|n| of(n, first | second | sink, 1));
    let lost = (5_000..6_000).map(|n| of(n, first | second, 2));
    let all: Vec<OwnedJourney> = arrived.chain(lost).collect();
    let at = |device: &str| DropNote {
        reason: "UNHANDLED_PROTO".into(),
        function: "__netif_receive_skb_core".into(),
        at: Some(format!("host/drop@{device}").parse().unwrap()),
    };
    let notes = [at("br0"), at("eth0")];
    let mut summary = Summary::default();
    let time_of_day = TimeOfDay::new(0, 0, &[]);
    let context = Context { streams: &[], drop_notes: &notes, elapsed: 1, time_of_day: &time_of_day };
    aggregate(&all, 0).fill(&mut summary, context, |_, _| 0);
    let loss = &summary.lost[0];
    assert_eq!((summary.lost.len(), loss.count), (1, 1_000));
    assert_eq!(loss.reason.as_deref(), Some("UNHANDLED_PROTO in __netif_receive_skb_core"));
    assert_eq!(loss.dropped_at.as_deref(), Some("host/drop@eth0"));
}

#[test]
fn packets_are_counted_by_the_path_that_they_took() {
    let info = |text: &str| latpath_model::PointInfo {
        point: text.parse().unwrap(),
        link: latpath_model::Link::Nic,
        netns: 1,
        ifindex: 2,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: String::new(),
    };
    let points = ["host/nic-rx@nic0", "host/ovs-exec@nic0", "host/ovs-upcall@nic0", "host/tx@vnet0"];
    let total = Segment { kind: SegmentKind::Total, name: "total".into(), from: 0, to: 3 };
    let part = Segment { kind: SegmentKind::Step, name: "host/nic-rx@nic0→host/tx@vnet0".into(), from: 0, to: 3 };
    let setup = Setup {
        streams: 1,
        points: points.iter().map(|p| info(p)).collect(),
        routes: vec![vec![0, 3]],
        segments: vec![total, part],
        threshold: 1000,
        row_limits: Vec::new(),
        band: None,
        worst: 1,
        reactions: Vec::new(),
    };
    let mut aggregate = Aggregate::new(setup.clone());
    let mut other = Aggregate::new(setup);
    let journey = |number: u64, seen: u64, took: Ns| OwnedJourney {
        stream: 0,
        number,
        seen,
        t: vec![0, 10, 20, took, 0],
        duplicates: 0,
        out_of_order: false,
        drop_note: 0,
        missing_before: 0,
    };
    let fast: Vec<OwnedJourney> = (0..90).map(|n| journey(n, 0b1011, 100)).collect();
    let slow = (90..95).map(|n| journey(n, 0b1101, 5_000));
    // Packets sent to the daemon that did not return.
    let slow: Vec<OwnedJourney> = slow.chain((95..98).map(|n| journey(n, 0b0101, 0))).collect();
    add(&mut aggregate, fast.iter().map(OwnedJourney::lend), 90);
    add(&mut other, slow.iter().map(OwnedJourney::lend), 90);
    aggregate.merge(&other);
    // Adding a segment must keep the existing counts.
    let daemon = Segment { kind: SegmentKind::Tupcall, name: "Tupcall".into(), from: 2, to: 3 };
    aggregate.extend(&aggregate.setup().points.clone(), &[daemon]);
    add(&mut aggregate, [journey(98, 0b1101, 5_000).lend()], 1);
    let summary = summary(&aggregate);
    assert_eq!(summary.segments.iter().map(|s| s.times.count).collect::<Vec<_>>(), [96, 96, 1]);
    let of = |path: &str| summary.paths.iter().find(|p| p.path == path).unwrap().clone();
    assert_eq!(summary.paths.len(), 2);
    let (fast, upcall) = (of("fast path"), of("upcall"));
    assert_eq!((fast.journeys, fast.lost, upcall.journeys, upcall.lost), (90, 0, 9, 3));
    let rows = |p: &latpath_stats::PathFigures| {
        p.segments.iter().map(|s| (s.name.clone(), s.times.count, s.times.max_ns, s.over_threshold)).collect::<Vec<_>>()
    };
    assert_eq!(rows(&fast), [("total".to_owned(), 90, 100, 0)], "neighbours are not split by path");
    assert_eq!(rows(&upcall), [("total".to_owned(), 6, 5_000, 6)]);
    assert_eq!(summary.worst[0].path, "upcall");
    let lost = &summary.lost[0];
    assert_eq!((lost.place.as_str(), lost.count), ("host/ovs-upcall@nic0", 3));
    assert_eq!(summary.streams[0].paths, summary.paths);
}

#[test]
fn a_packet_that_entered_the_daemon_twice_has_not_crossed_its_segment() {
    let points =
        ["host/nic-rx@nic0", "host/ovs-upcall@nic0", "host/ovs-slow@nic0", "host/ovs-return@nic0", "host/tx@vnet0"];
    let segment = |name: &str, from, to| Segment {
        kind: SegmentKind::classic(name).unwrap_or_default(),
        name: name.into(),
        from,
        to,
    };
    let setup = Setup {
        streams: 1,
        points: points
            .iter()
            .map(|name| PointInfo { point: name.parse().unwrap(), ..setup(0).points[0].clone() })
            .collect(),
        routes: vec![vec![0, 4]],
        segments: vec![
            segment("total", 0, 4),
            segment("Tupcall", 1, 3),
            segment("Tupcall", 2, 3),
            segment("mine", 4, 3),
        ],
        threshold: 1000,
        row_limits: Vec::new(),
        band: None,
        worst: 0,
        reactions: Vec::new(),
    };
    let journey = |number, seen, slow: Ns| OwnedJourney {
        stream: 0,
        number,
        seen,
        t: vec![0, 10, slow, 2_000, 2_900],
        duplicates: 0,
        out_of_order: false,
        drop_note: 0,
        missing_before: 0,
    };
    // First packet: no flow matches, and the action of the flow that is then installed sends the packet to the daemon
    // again. The others: the action of an existing flow sends the packet to the daemon directly.
    let journeys = [journey(0, 0b11111, 2_500), journey(1, 0b11101, 300), journey(2, 0b11101, 800)];
    let (mut batch, mut one_by_one) = (Aggregate::new(setup.clone()), Aggregate::new(setup));
    add(&mut batch, journeys.iter().map(OwnedJourney::lend), 3);
    add(&mut one_by_one, journeys.iter().map(OwnedJourney::lend), 1);
    let summary = summary(&batch);
    assert_eq!(summary, self::summary(&one_by_one));
    let rows = summary
        .segments
        .iter()
        .map(|s| (s.times.count, s.times.negative, s.times.min_ns, s.times.max_ns, s.over_threshold));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [(3, 0, 2_900, 2_900, 3), (1, 0, 1_990, 1_990, 1), (2, 0, 1_200, 1_700, 2), (3, 3, -900, -900, 0)],
        "what the user asks for is measured as it is"
    );
}

/// A packet and a reaction pass through the same points, but each has its own segments and threshold.
#[test]
fn packets_and_reactions_have_segments_and_thresholds_of_their_own() {
    let segment = |kind: SegmentKind| Segment { kind, name: format!("{kind:?}"), from: 0, to: 3 };
    let setup = Setup {
        routes: vec![vec![0, 3]; 2],
        segments: [SegmentKind::Total, SegmentKind::Treact, SegmentKind::Named].map(segment).to_vec(),
        threshold: 1000,
        row_limits: Vec::new(),
        reactions: vec![(1, 5000)],
        ..setup(0)
    };
    let mut aggregate = Aggregate::new(setup.clone());
    let mut batches = Batches::new(&setup);
    let mut rows = Rows::new(setup.points.len());
    for stream in [0, 1] {
        for (number, took) in [(0, 900), (1, 2000), (2, 6000)] {
            let t = vec![0, 0, 0, took, 0];
            let journey =
                Journey { stream, number, seen: 0b1001, t: &t, cpu: &[0; 5], tid: &[0; 5], ..Journey::default() };
            rows.push(&journey);
        }
    }
    batches.each(&rows, |batch| aggregate.add(batch));
    let count = |segment: usize, stream: u16| {
        let (times, over) = aggregate.times(segment, Some(stream));
        (times.count(), over)
    };
    assert_eq!([count(0, 0), count(1, 0), count(2, 0)], [(3, 2), (0, 0), (3, 2)]);
    assert_eq!([count(0, 1), count(1, 1), count(2, 1)], [(0, 0), (3, 1), (3, 1)]);
}
