//! Patterns of whole runs, figures with and without the packets that patterns affect, and figures of intervals.

use latpath_analysis::{summarise, SummaryOptions};
use latpath_journey::Journey;
use latpath_model::Ns;
use latpath_report::{text, Options};
use latpath_run::{Manifest, Run, Select, Writer};
use latpath_stats::units::CharacterSet;
use latpath_stats::{Pattern, PatternKind, Summary};
use latpath_testkit::point;

const SECOND: Ns = 1_000_000_000;
const START: Ns = 1_000 * SECOND;
/// Number of packets, one per millisecond.
const PACKETS: u64 = 60_000;
const LATE: Ns = 30 * SECOND;

/// Writes a run over three points, whose segments take slightly more than 20 and 50 µs. `change` may modify a packet;
/// it gets the packet's send time, ns since the start.
fn run(directory: &std::path::Path, change: impl Fn(Ns, &mut [Ns; 3], &mut u64)) -> Run {
    let points = ["host/nic-rx@eth0", "host/tx@vnet0", "host/vm-read@vnet0"];
    let mut manifest = Manifest {
        points: points.map(point).into(),
        streams: vec!["svid:MU01".parse().unwrap()],
        threshold_ns: 1_000_000,
        ..Manifest::begin()
    };
    manifest.start.monotonic_ns = START;
    let mut writer = Writer::create(directory, manifest).unwrap();
    for number in 0..PACKETS {
        let (sent, noise) = (number as Ns * 1_000_000, (number * 7919 % 1009) as Ns * 4);
        let (mut t, mut seen) = ([sent, sent + 20_000 + noise, sent + 70_000 + 3 * noise], 0b111);
        change(sent, &mut t, &mut seen);
        let t = t.map(|t| t + START);
        let key = number as u32;
        writer.push(&Journey { key, number, seen, t: &t, cpu: &[0; 3], tid: &[0; 3], ..Journey::default() }).unwrap();
    }
    writer.finish().unwrap();
    Run::open(directory).unwrap()
}

/// Figures of a run, computed by one reading thread; three threads must produce the same.
fn figures(run: &Run, exclude: &[PatternKind]) -> Summary {
    let of = |workers| {
        let options = SummaryOptions { exclude: exclude.to_vec(), workers, ..SummaryOptions::default() };
        summarise(run, &options).unwrap()
    };
    let one = of(1);
    assert_eq!(one, of(3), "whoever reads what");
    one
}

/// Delays the packets of 100 ms, in which the VM reads none.
fn held(sent: Ns, t: &mut [Ns; 3], _: &mut u64) {
    if (LATE..LATE + SECOND / 10).contains(&sent) {
        t[2] = t[2].max(LATE + SECOND / 10 + (sent - LATE) / 500);
    }
}

#[test]
fn a_queue_that_was_held_is_named_and_left_out_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(&directory.path().join("run"), held);
    let summary = figures(&run, &[]);
    let [pattern] = summary.patterns.as_slice() else { panic!("{:?}", summary.patterns) };
    assert_eq!(pattern.kind, PatternKind::QueueRelease);
    assert_eq!((pattern.from.as_str(), pattern.to.as_str()), ("host/tx@vnet0", "host/vm-read@vnet0"));
    assert!((LATE..LATE + 2_000_000).contains(&pattern.since_start_ns));
    assert!((98_000_000..101_000_000).contains(&pattern.size_ns.unwrap()));
    assert!((95..=100).contains(&pattern.packets), "{}", pattern.packets);
    assert_eq!(summary.without, None);

    let both = figures(&run, &[PatternKind::QueueRelease]);
    let without = both.without.clone().expect("figures without");
    assert_eq!((without.patterns, without.packets, without.lost), (1, pattern.packets, 0));
    let max = |segments: &[latpath_stats::SegmentFigures]| segments.last().unwrap().times.max_ns;
    assert!(max(&both.segments) > 90_000_000 && max(&without.segments) < 5_000_000);
    assert_eq!(Summary { without: None, ..both.clone() }, summary, "all packets are in all other figures");
    let options = Options { style: CharacterSet::Unicode.into(), histograms: vec![], covers: None, limits: vec![] };
    let page = text(&both, Some(&run), &options);
    assert!(page.contains("Segments with and without patterns"), "{page}");
    assert!(page.contains("queue-release"), "{page}");

    let none = figures(&run, &[PatternKind::LinkFlap]).without.expect("figures without");
    assert_eq!((none.patterns, none.packets, &none.segments), (0, 0, &summary.segments));
}

#[test]
fn a_link_that_flaps_is_named_and_nothing_in_a_run_without_a_pattern() {
    let directory = tempfile::tempdir().unwrap();
    let flap = |sent: Ns, _: &mut [Ns; 3], seen: &mut u64| {
        if (LATE..LATE + SECOND / 5).contains(&sent) {
            *seen = 0b001;
        }
    };
    let summary = figures(&run(&directory.path().join("flap"), flap), &[]);
    let [pattern] = summary.patterns.as_slice() else { panic!("{:?}", summary.patterns) };
    let expected = (PatternKind::LinkFlap, "host/nic-rx@eth0", "host/tx@vnet0", 200, LATE);
    let Pattern { kind, from, to, packets, since_start_ns, .. } = pattern;
    assert_eq!((*kind, from.as_str(), to.as_str(), *packets, *since_start_ns), expected);
    let pause =
        |sent: Ns, t: &mut [Ns; 3], _: &mut u64| t.iter_mut().for_each(|t| *t += if sent > LATE { SECOND } else { 0 });
    let summary = figures(&run(&directory.path().join("pause"), pause), &[]);
    assert_eq!(summary.patterns, [], "the publisher paused");
}

#[test]
fn each_interval_has_the_figures_of_a_report_from_its_begin_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    // Some packets are lost, then no packet arrives for 25 s.
    let faults = |sent: Ns, t: &mut [Ns; 3], seen: &mut u64| {
        if (LATE - SECOND..LATE).contains(&sent) {
            *seen = 0b011;
        }
        t.iter_mut().for_each(|t| *t += if sent > LATE { 25 * SECOND } else { 0 });
    };
    let run = run(&directory.path().join("run"), faults);
    let of = |every, from_ns, to_ns| {
        let select = Select { from_ns, to_ns, ..Select::default() };
        let options = SummaryOptions { every, select, worst: 3, ..SummaryOptions::default() };
        summarise(&run, &options)
    };
    let whole = of(Some(10 * SECOND), Ns::MIN, Ns::MAX).unwrap();
    let counts: Vec<_> = whole.intervals.iter().map(|i| (i.since_start_ns / SECOND, i.journeys, i.lost)).collect();
    let lost = [(20, 10_000, 1000), (30, 1, 0), (40, 0, 0)];
    assert_eq!(counts[..2], [(0, 10_000, 0), (10, 10_000, 0)]);
    assert_eq!(counts[2..5], lost);
    assert_eq!(counts.iter().map(|(_, journeys, _)| journeys).sum::<u64>(), whole.journeys);
    for interval in &whole.intervals {
        let from = START + interval.since_start_ns;
        let part = of(None, from, from + 10 * SECOND).unwrap();
        assert_eq!((interval.journeys, interval.lost), (part.journeys, latpath_stats::figures::packets(&part.lost)));
        let times = |segments: &[latpath_stats::SegmentFigures]| {
            segments.iter().map(|s| (s.name.clone(), s.times.clone(), s.over_threshold)).collect::<Vec<_>>()
        };
        assert_eq!(times(&interval.segments), times(&part.segments));
    }
    let options = Options { style: CharacterSet::Unicode.into(), histograms: vec![], covers: None, limits: vec![] };
    let page = text(&whole, Some(&run), &options);
    let row = page.lines().skip_while(|line| !line.starts_with("Over time: total")).nth(4).unwrap();
    assert_eq!(row.split_whitespace().take(3).collect::<Vec<_>>(), ["0:20", "10000", "1000"], "{page}");
    let part = of(Some(10 * SECOND), START + 25 * SECOND, START + 29_500_000_000).unwrap();
    assert_eq!(
        (part.intervals.len(), part.intervals[0].journeys, part.intervals[0].lost),
        (1, 4_500, 500),
        "of what is chosen"
    );
    assert!(of(Some(1_000_000), Ns::MIN, Ns::MAX).unwrap_err().contains("at most 10000"));
}
