//! The same packets give the same figures: live, a report of the recording, and a replay of it.

use latpath_analysis::{summarise, SummaryOptions};
use latpath_follow::{Follow, JourneySink, Live, Options, Origin, PointFilter};
use latpath_journey::Journey;
use latpath_linux::monotonic;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, Sighting, Source, StreamSpec};
use latpath_report::Replay;
use latpath_run::{Manifest, Run, Writer};
use latpath_stats::Summary;
use std::time::Duration;

const MS: Ns = 1_000_000;
/// Packets of the sender, one every 250 us; its counter wraps at 4000.
const PACKETS: Ns = 9_000;
const STEP: Ns = MS / 4;
/// After the probes stand, packets count from here on.
const SETTLED: Ns = 1_000 * MS;

/// What the kernel programs of this host might have seen, handed out as time passes.
struct Scenario {
    sightings: std::vec::IntoIter<Sighting>,
    points: Vec<PointInfo>,
    detached: bool,
}

fn point(kind: PointKind, device: &str, netns: u32, link: Link) -> PointInfo {
    let point = Point { machine: "host".into(), kind, device: device.into() };
    PointInfo { point, link, netns, ifindex: netns, peer: 0, peer_netns: 0, clock: "CLOCK_MONOTONIC".into() }
}

/// Losses before and behind the first point, duplicates near and far, packets that overtake others, late ones, a gap of the
/// counter, and wraps.
fn sightings(start: Ns) -> Vec<Sighting> {
    let mut all = Vec::new();
    let mut seen = |t: Ns, n: Ns, point: u16| {
        let (key, note) = ((n % 4000) as u32, u16::from(point == 3));
        all.push(Sighting { t: start + t, key, tid: 7, stream: 0, point, cpu: (n % 2) as u16, note });
    };
    for n in (0..PACKETS).filter(|n| n % 1_501 != 77 && !(4_100..4_110).contains(n)) {
        let t = n * STEP;
        seen(t, n, 0);
        if n % 997 == 11 {
            seen(t + 2_000, n, 3);
            continue;
        }
        let delay = 3_000 + n * 7 % 911 + if n % 400 == 3 { 300_000 } else { 0 };
        seen(t + delay, n, 1);
        seen(t + delay + 20_000 + n * 13 % 1_777, n, 2);
        if n % 800 == 5 {
            seen(t + delay + 10_000, n, 1);
        }
        if n % 2_000 == 509 {
            seen(t + 60 * MS, n, 2);
        }
    }
    all.sort_by_key(|s| s.t);
    all
}

impl Source for Scenario {
    fn points(&mut self) -> Vec<PointInfo> {
        self.points.clone()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        vec![DropNote { reason: "FULL_RING".into(), function: "tun_net_xmit".into(), at: None }]
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let until = if self.detached { Ns::MAX } else { monotonic() };
        while self.sightings.as_slice().first().is_some_and(|s| s.t < until) {
            out.extend(self.sightings.next());
        }
        until
    }

    fn counters(&mut self) -> Counters {
        Counters { skipped: 3, ..Counters::default() }
    }
}

impl Origin for Scenario {
    fn stop(&mut self) -> Result<(), String> {
        self.detached = true;
        Ok(())
    }

    fn kernel(&self) -> String {
        "6.1.0".into()
    }
}

fn options() -> Options {
    Options {
        streams: vec![StreamSpec::svid("MU01")],
        machines: Vec::new(),
        points: PointFilter::default(),
        other_users: false,
        clock_error: None,
        segments: Vec::new(),
        threshold: 200_000,
        window: 100 * MS,
        ring_bytes: 1 << 20,
        flight: None,
    }
}

fn follow(sightings: &[Sighting]) -> Follow {
    let points = vec![
        point(PointKind::Tx, "lp-pub", 1, Link::Veth),
        point(PointKind::NicRx, "nic0", 2, Link::Nic),
        point(PointKind::AppRead, "relay", 2, Link::Socket),
        point(PointKind::Drop, "nic0", 2, Link::Nic),
    ];
    let scenario = Scenario { sightings: Vec::from(sightings).into_iter(), points, detached: false };
    Follow::over(options(), |_| Ok(scenario)).unwrap()
}

struct Recorder(Writer);

impl JourneySink for Recorder {
    fn journey(&mut self, journey: &Journey, points: &[PointInfo]) {
        if points.len() > self.0.manifest().points.len() {
            self.0.update(|manifest| manifest.points = points.to_vec()).unwrap();
        }
        self.0.push(journey).unwrap();
    }
}

/// What the packets alone decide: without latpath's own cost, and without what this machine's kernel counted beside them.
fn figures(mut summary: Summary) -> Summary {
    summary.tool = Default::default();
    summary.notes.clear();
    summary.lost.iter_mut().for_each(|loss| loss.kernel_count = None);
    // The clock of UTC is read once for each; a packet is known by its other figures.
    summary.worst.iter_mut().for_each(|worst| worst.time_ns = 0);
    let rows = summary.streams.iter_mut().filter_map(|stream| stream.consecutive.as_mut());
    rows.for_each(|row| row.time_ns = 0);
    let segments = summary.segments.iter_mut().chain(summary.streams.iter_mut().flat_map(|s| &mut s.segments));
    segments.flat_map(|s| s.min_at.iter_mut().chain(&mut s.max_at)).for_each(|packet| packet.time_ns = 0);
    // Reports have these alone.
    summary.patterns.clear();
    summary.streams.iter_mut().for_each(|stream| stream.pacing.clear());
    summary
}

#[test]
fn live_report_and_replay_say_the_same_to_the_digit() {
    let start = monotonic() + SETTLED;
    let sightings = sightings(start);
    let end = sightings.last().unwrap().t;
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");

    let mut live = Live::of(options(), follow(&sightings));
    let mut recording = follow(&sightings);
    let manifest = Manifest { threshold_ns: 200_000, streams: options().streams, ..Manifest::begin() };
    let mut recorder = Recorder(Writer::create(&run, manifest).unwrap());
    // The last packets are lost, not under way, once the window has passed.
    while monotonic() < end + 600 * MS {
        live.step();
        recording.step(&mut recorder);
        std::thread::sleep(Duration::from_millis(5));
    }
    live.stop();
    recording.stop(&mut recorder);
    recorder.0.update(|manifest| recording.describe(manifest)).unwrap();
    recorder.0.finish().unwrap();

    let left_out = |summary: Summary| {
        let is = |note: &&String| note.starts_with("3 times the kernel left a program out");
        assert_eq!(summary.notes.iter().filter(is).count(), 1, "{:?}", summary.notes);
        summary
    };
    let live = figures(left_out(live.final_summary()));
    let open = || Run::open(&run).unwrap();
    let options = SummaryOptions { worst: 10, ..SummaryOptions::default() };
    let report = figures(left_out(summarise(&open(), &options).unwrap()));
    let mut replay = Replay::start(open(), &[], f64::INFINITY, None).unwrap();
    while !replay.is_over() {
        replay.step();
    }
    let replay = figures(left_out(replay.summary()));

    let stream = &report.streams[0];
    let lost: u64 = stream.lost.iter().map(|loss| loss.count).sum();
    assert_eq!(stream.points.len(), 3);
    assert_eq!((stream.journeys, lost), (8_984, 10), "of 9,000 packets, 16 were never seen, 10 were dropped");
    assert_eq!(stream.never_seen, 16);
    assert!(stream.lost.iter().all(|loss| loss.reason.as_deref() == Some("FULL_RING in tun_net_xmit")));
    assert_eq!(
        stream.duplicates, 5,
        "at the end of the route, also those that came after their journey was handed out"
    );
    assert!(stream.out_of_order > 0, "{stream:?}");
    assert_eq!(report.worst.len(), 10);
    let json = |summary: &Summary| serde_json::to_value(summary).unwrap();
    assert_eq!(json(&live), json(&report), "live and report");
    assert_eq!(json(&replay), json(&report), "replay and report");
}

#[test]
fn packets_in_flight_at_the_end_are_unfinished_and_not_lost() {
    in_flight_at_the_end(2_000 * MS);
}

#[test]
fn nor_are_they_lost_where_it_ends_before_a_route_was_looked_for() {
    in_flight_at_the_end(200 * MS);
}

fn in_flight_at_the_end(length: Ns) {
    let start = monotonic() + SETTLED;
    // The reader sleeps 40 ms between two reads, and the recording ends before its last one.
    let end = start + length;
    let packets = (0..length / STEP).map(|n| (start + n * STEP, (n % 4000) as u32));
    let mut sightings: Vec<Sighting> = packets
        .flat_map(|(t, key)| {
            let read = start + (t - start) / (40 * MS) * 40 * MS + 45 * MS;
            [(t, 0), (t + 3_000, 1), (read, 2)].map(|(t, point)| Sighting { t, key, point, ..Sighting::default() })
        })
        .filter(|s| s.t < end)
        .collect();
    sightings.sort_by_key(|s| s.t);

    let mut live = Live::of(options(), follow(&sightings));
    while monotonic() < end {
        live.step();
        std::thread::sleep(Duration::from_millis(5));
    }
    live.stop();
    let stream = &live.final_summary().streams[0];
    assert_eq!(stream.points.len(), 3);
    assert!(stream.lost.is_empty(), "{:?}", stream.lost);
    assert!(stream.journeys as Ns > (length - 100 * MS) / STEP, "{}", stream.journeys);
}
