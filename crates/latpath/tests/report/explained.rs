//! `latpath explain` on a run whose late packets have a known culprit.

use crate::runs::{stderr, stdout, Bench};
use latpath_capture::{Capture, CaptureKind, LateCounts, MachineSnapshot, Packet, RankedCapture, RetentionPolicy};
use latpath_cause::Cause;
use latpath_flight::{Class, CpuRecord, Event, EventKind, Left, Sleep, Snapshot, Thread, Window};
use latpath_model::{Link, Ns, PacketSighting, PointInfo, StreamSpec};
use latpath_report::ExplanationDocument;
use latpath_run::{Manifest, Stamp, Writer};
use latpath_testkit::{point, waits::until};
use std::collections::BTreeMap;
use std::process::Output;

const MS: Ns = 1_000_000;
const START: Ns = 1_000_000 * MS;
const START_UTC: Ns = 1_767_323_045_000 * MS;
/// TIDs of the application and of the thread that delays it.
const RELAY: u32 = 70;
const HOG: u32 = 90;
const OTHER: Class = Class { prio: 120, policy: 0 };
const FIFO_50: Class = Class { prio: 49, policy: 1 };

fn manifest() -> Manifest {
    let reader = PointInfo { link: Link::Socket, ..point("host/app-read@relay") };
    let points = vec![point("host/nic-rx@eth0"), reader];
    let start = Stamp {
        utc: "2026-01-02T03:04:05.000000000Z".into(),
        utc_ns: START_UTC,
        tai_ns: START_UTC,
        monotonic_ns: START,
    };
    Manifest {
        route: points.iter().map(|p| p.point.clone()).collect(),
        points,
        streams: vec![StreamSpec::svid("MU01"), StreamSpec::svid("MU02")],
        threshold_ns: 200_000,
        start,
        ..Manifest::begin()
    }
}

/// A packet that waits `waits` for the hog, which then leaves its CPU to the reader.
fn ranked(number: u32, kind: CaptureKind, begin: Ns, waits: Ns) -> RankedCapture {
    let read = begin + 10_000 + waits;
    let event = |t, pid, what| Event { t, pid, what };
    let left = |next, left, prev, next_class| EventKind::Switch { next, left, prev, next_class };
    let sleeps = Left::Asleep(Sleep::Interruptible);
    let receives = vec![
        event(begin - 5_000, 0, EventKind::SoftirqRaise(3)),
        event(begin - 3_000, 0, EventKind::SoftirqEntry(3)),
        event(begin + 5_000, 0, EventKind::Waking { pid: RELAY, cpu: 1, class: OTHER }),
        event(begin + 6_000, 0, EventKind::Wakeup { pid: RELAY, cpu: 1, class: OTHER, throttled: false }),
        event(begin + 9_000, 0, EventKind::SoftirqExit(3)),
    ];
    let runs = vec![
        event(begin - MS, RELAY, left(HOG, sleeps, OTHER, FIFO_50)),
        event(read - 4_000, HOG, left(RELAY, sleeps, FIFO_50, OTHER)),
        event(read + 50_000, RELAY, left(0, sleeps, OTHER, OTHER)),
    ];
    let from = begin - 5 * MS;
    let cpu = |cpu, events| CpuRecord { cpu, events, since: from, overwritten: 0, unfinished: 0 };
    let thread = |name: &str, tgid| Thread { name: name.into(), tgid };
    let record = Snapshot {
        window: Window { from, to: read + MS, cpus: vec![cpu(0, receives), cpu(1, runs)] },
        threads: BTreeMap::from([(RELAY, thread("relay", RELAY)), (HOG, thread("hog", HOG))]),
        ..Snapshot::default()
    };
    let machines =
        vec![MachineSnapshot { machine: "host".into(), offset_ns: 0, error_bound_ns: 0, record: Ok(record) }];
    let late = kind == CaptureKind::Spike;
    let sightings = vec![
        PacketSighting { point: 0, t: begin, cpu: Some(0), tid: Some(0) },
        PacketSighting { point: 1, t: read, cpu: Some(1), tid: Some(RELAY) },
    ];
    let packets = vec![Packet { stream: 0, key: number % 4, number: number.into(), late, sightings }];
    let capture = Capture { number, kind, from, to: read + MS, machines, packets, more_late: 0 };
    RankedCapture { capture, worst: waits, late: vec![u64::from(late), 0] }
}

/// A baseline, and four packets that waited 10, 11, 12 and 13 ms, one per second.
fn with_spikes() -> Bench {
    let bench = Bench::new();
    let mut writer = Writer::create(&bench.run(), manifest()).unwrap();
    writer.begin_spikes(RetentionPolicy::default()).unwrap();
    writer.push_capture(ranked(1, CaptureKind::Baseline, START + 500 * MS, 20_000));
    for n in 0..4 {
        writer.push_capture(ranked(
            2 + n,
            CaptureKind::Spike,
            START + (1000 + 1000 * Ns::from(n)) * MS,
            (10 + Ns::from(n)) * MS,
        ));
    }
    writer.count_spikes(&LateCounts { late: vec![9, 0], passed_over: 1 });
    writer.finish().unwrap();
    bench
}

fn explain(bench: &Bench, flags: &[&str]) -> Output {
    bench.latpath(&[&["explain", "run"], flags].concat())
}

fn document(bench: &Bench, flags: &[&str]) -> ExplanationDocument<'static> {
    bench.json(&[&["explain", "run"], flags].concat())
}

#[test]
fn the_culprit_is_named_with_its_fix() {
    let text = stdout(&explain(&with_spikes(), &[]));
    let first = "relay (70, CPU 1, SCHED_OTHER) ready but not running behind hog (90, FIFO 50): first cause of all 4 late packets,";
    let one_line = text.replace('\n', " ");
    assert!(one_line.starts_with("Waiting for its CPU: ") && one_line.contains(" By culprit: hog "), "{text}");
    assert!(one_line.contains(first), "{text}");
    assert!(text.contains("chrt -f -p 51 70\n"), "{text}");
    assert!(text.contains("9 packets, 4 of them in these spikes"), "{text}");
}

#[test]
fn figures_sum_to_the_delay() {
    let bench = with_spikes();
    let all = document(&bench, &[]);
    let first = &all.causes[0];
    let by = &first.share.by[0].actor;
    assert_eq!((first.share.cause, by.name.as_str()), (Cause::WaitingForCpu, "hog"));
    assert_eq!(by.class.as_deref(), Some("FIFO 50"));
    assert_eq!((all.late, first.first, all.baseline.packets), (4, 4, 1));
    let sum: Ns = all.causes.iter().map(|cause| cause.share.excess_ns).sum();
    // 10 to 13 ms, of which 20 µs each are the baseline.
    assert_eq!((sum, all.excess_ns), (46 * MS - 4 * 20_000, sum));
    assert!(all.unexplained_percent < 1.0);
}

#[test]
fn one_packet_is_found_by_its_place_its_time_and_its_name() {
    let bench = with_spikes();
    for selector in ["worst", "1", "MU01:1@03:04:09", "MU01:1@4s", "MU01:1@2026-01-02T03:04:09Z", "svid:MU01:1@4.0"] {
        let packet = &document(&bench, &["--packet", selector]).packets[0];
        assert_eq!(packet.packet, "MU01:1@03:04:09.000000", "{selector}");
        assert_eq!(packet.time_ns, 13 * MS + 10_000, "{selector}");
    }
    let text = stdout(&explain(&bench, &["--packet", "2"]));
    assert!(text.starts_with("MU01:0  2026-01-02 03:04:08.000000 UTC  12.01 ms, baseline 30.00"), "{text}");
    assert!(text.contains("host/app-read@relay  CPU 1"), "{text}");
}

#[test]
fn a_packet_that_is_not_there_is_refused_with_what_is() {
    let bench = with_spikes();
    let refused = |selector: &str| {
        let out = explain(&bench, &["--packet", selector]);
        assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(2), &b""[..]), "{selector}");
        stderr(&out)
    };
    assert!(refused("MU01:1")
        .starts_with("latpath: MU01:1: which? MU01:1@03:04:05.500000 (on time), MU01:1@03:04:09.000000 (late)"));
    assert!(refused("MU01:2@03:04:07").contains("was not seen then, but: MU01:2@03:04:06.000000 (late)"));
    assert!(refused("MU02:1").contains("MU02:1: no such packet in the run's spikes (streams: MU01, MU02)"));
    assert!(refused("5").contains("there are 4 spikes with late packets"));
    assert!(refused("whatever").contains("write STREAM:KEY@TIME"));
}

#[test]
fn damaged_spikes_are_reported_and_the_rest_is_explained() {
    let bench = with_spikes();
    let spikes = bench.run().join("spikes");
    let file = |n: u32| spikes.join(format!("{n:06}.spike"));
    let whole = std::fs::read(file(2)).unwrap();
    std::fs::write(file(2), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(file(3), b"no spike").unwrap();
    let out = explain(&bench, &[]);
    assert!(out.status.success());
    let text = stdout(&out);
    assert!(text.replace('\n', " ").contains("first cause of all 2 late packets"), "{text}");
    assert!(text.contains("000002.spike: damaged") && text.contains("000003.spike: damaged"), "{text}");
    for n in 1..=5 {
        let bytes = std::fs::read(file(n)).unwrap();
        std::fs::write(file(n), &bytes[..bytes.len() * 2 / 3]).unwrap();
    }
    let out = explain(&bench, &[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("none of its spikes can be read"), "{}", stderr(&out));
}

#[test]
fn a_run_without_a_flight_recorder_says_what_to_do() {
    let bench = Bench::with_run();
    let out = explain(&bench, &[]);
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(1), &b""[..]));
    let why = "latpath: run: it has no record of what the machines did, so the causes are not known; record again";
    assert!(stderr(&out).starts_with(why), "{}", stderr(&out));
    assert!(stderr(&bench.latpath(&["explain", "none"])).starts_with("latpath: none: not a run: no such directory"));
}

#[test]
fn a_run_without_late_packets_says_so() {
    let bench = Bench::new();
    let mut writer = Writer::create(&bench.run(), manifest()).unwrap();
    writer.begin_spikes(RetentionPolicy::default()).unwrap();
    writer.finish().unwrap();
    let out = explain(&bench, &[]);
    assert_eq!(out.status.code(), Some(0));
    assert!(stderr(&out).contains("run: no packet was late: none took longer than 200.0"), "{}", stderr(&out));
    let text = stdout(&out);
    assert!(text.contains("not needed: no packet was late") && !text.contains("not known"), "{text}");
}

#[test]
fn reports_and_what_live_leaves_behind_name_the_causes() {
    let bench = with_spikes();
    for (words, more) in [
        (&["report", "run"][..], "More, with fixes: latpath explain run"),
        (&["live", "--replay", "run", "--speed", "max"], "More, with fixes: record with latpath record"),
    ] {
        let out = bench.latpath(words);
        assert!(out.status.success(), "{}", stderr(&out));
        let text = stdout(&out);
        let (_, causes) = text.rsplit_once("Causes of late packets").unwrap_or_else(|| panic!("no causes in {text}"));
        assert!(causes.contains("waiting for its CPU") && causes.contains("hog"), "{causes}");
        assert!(causes.contains("waiting-for-cpu") && causes.contains(more), "{causes}");
    }
}

#[test]
fn a_run_that_goes_on_is_explained_so_far() {
    let bench = Bench::new();
    let mut writer = Writer::create(&bench.run(), manifest()).unwrap();
    writer.begin_spikes(RetentionPolicy::default()).unwrap();
    writer.push_capture(ranked(2, CaptureKind::Spike, START + 1000 * MS, 10 * MS));
    let file = bench.run().join("spikes/000002.spike");
    until("it is written", || file.exists()).unwrap();
    let text = stdout(&explain(&bench, &[]));
    assert!(text.contains("relay (70, CPU 1, SCHED_OTHER) ready but not running behind hog"), "{text}");
    writer.finish().unwrap();
}
