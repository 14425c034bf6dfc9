//! Sessions without probes: the same packets yield the same figures in a live view, in a report of the recording, and
//! in the replay of the recording. Also tests the events of sessions.

use latpath_analysis::{summarise, SummaryOptions};
use latpath_follow::{Follow, Live, Options, Origin};
use latpath_linux::monotonic;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, Sighting, Source, StreamSpec};
use latpath_run::Run;
use latpath_session::{
    DirectoryState, EndReason, Event, LiveOptions, LiveSession, RecordError, RecordOptions, RecordSession,
    ReplayOptions, Session, State, StopAfter,
};
use latpath_stats::Summary;
use latpath_testkit::waits::fault_for;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const MS: Ns = 1_000_000;
/// Number of packets that the sender sends, one every 250 us; its counter wraps at 4000.
const PACKETS: Ns = 9_000;
const STEP: Ns = MS / 4;
/// Time from the attachment of the probes to the first counted packet, ns.
const SETTLED: Ns = 1_000 * MS;

/// Synthetic sightings of this host, delivered as time passes.
struct Scenario {
    sightings: std::vec::IntoIter<Sighting>,
    points: Vec<PointInfo>,
    detached: bool,
}

fn point(kind: PointKind, device: &str, netns: u32, link: Link) -> PointInfo {
    let point = Point { machine: "host".into(), kind, device: device.into() };
    PointInfo {
        point,
        link,
        netns,
        ifindex: netns,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: "CLOCK_MONOTONIC".into(),
    }
}

/// Sightings with losses before and after the first point, duplicates after short and long times, overtaking packets,
/// late packets, a gap in the counter, and wraps of the counter.
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
    Options { window: 100 * MS, ring_bytes: 1 << 20, ..Options::new(vec![StreamSpec::svid("MU01")]) }
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

fn live(sightings: &[Sighting]) -> LiveSession {
    let LiveOptions { follow: options, stop_after, .. } = LiveOptions::new(options());
    let streams = options.streams.clone();
    LiveSession::of(Live::of(options, follow(sightings)), streams, None, stop_after)
}

fn record(sightings: &[Sighting], run: &Path) -> RecordSession {
    RecordSession::of(RecordOptions::new(options(), run.into()), follow(sightings))
}

const PACE: Duration = Duration::from_millis(5);

/// Steps a session until `end`, and calls `other` after each step.
fn run_until<S: Session>(session: &mut S, end: Ns, mut other: impl FnMut()) {
    let each = |_: &mut S| {
        other();
        if monotonic() < end {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    assert_eq!(session.run_until(&AtomicBool::new(false), PACE, each), None);
}

fn events(session: &mut impl Session) -> Vec<Event> {
    std::iter::from_fn(|| session.next_event()).collect()
}

/// The figures that depend only on the packets: without latpath's own cost and this machine's kernel counters.
fn figures(mut summary: Summary) -> Summary {
    summary.tool = Default::default();
    summary.notes.clear();
    summary.lost.iter_mut().for_each(|loss| loss.kernel_count = None);
    // The offset to UTC is read separately for each session, so ignore times; the other figures still identify the
    // packet.
    summary.worst.iter_mut().for_each(|worst| worst.time_ns = 0);
    let rows = summary.streams.iter_mut().filter_map(|stream| stream.consecutive.as_mut());
    rows.for_each(|row| row.time_ns = 0);
    let segments = summary.segments.iter_mut().chain(summary.streams.iter_mut().flat_map(|s| &mut s.segments));
    segments.flat_map(|s| s.min_at.iter_mut().chain(&mut s.max_at)).for_each(|packet| packet.time_ns = 0);
    // The manifests have different start times.
    for pattern in &mut summary.patterns {
        (pattern.since_start_ns, pattern.until_ns, pattern.text) = (0, 0, String::new());
    }
    summary
}

#[test]
fn live_report_and_replay_say_the_same_to_the_digit() {
    let start = monotonic() + SETTLED;
    let sightings = sightings(start);
    let end = sightings.last().unwrap().t;
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");

    let mut live = live(&sightings);
    let mut recording = record(&sightings, &run);
    // Continue for longer than the joiner's window: then the last packets count as lost rather than as in flight.
    run_until(&mut live, end + 600 * MS, || {
        recording.step();
    });
    let live = live.stop(Duration::ZERO);
    assert_eq!(recording.stop().unwrap().journeys, live.journeys);

    let left_out = |summary: Summary| {
        let is = |note: &&String| note.starts_with("3 times the kernel left a program out");
        assert_eq!(summary.notes.iter().filter(is).count(), 1, "{:?}", summary.notes);
        summary
    };
    let live = figures(left_out(live));
    let open = || Run::open(&run).unwrap();
    let options = SummaryOptions { worst: 10, ..SummaryOptions::default() };
    let report = figures(left_out(summarise(&open(), &options).unwrap()));
    let mut replay = LiveSession::replay(open(), ReplayOptions::new(f64::INFINITY)).unwrap();
    let never = AtomicBool::new(false);
    assert_eq!(replay.run_until(&never, PACE, |_| ControlFlow::Continue(())), Some(EndReason::EndOfRun));
    let replay = figures(left_out(replay.stop(Duration::ZERO)));

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
    let pacing = |point: &str| stream.pacing.iter().find(|at| at.point == point).map(|at| at.count);
    let counts = ["host/tx@lp-pub", "host/nic-rx@nic0", "host/app-read@relay"].map(pacing);
    assert_eq!(counts, [Some(8_983), Some(8_973), Some(8_973)], "one less than packets seen");
    assert!(!report.patterns.is_empty());
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
    // The reader is simulated to sleep 40 ms between reads, and the recording ends before the last read.
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

    let mut live = live(&sightings);
    run_until(&mut live, end, || ());
    let stream = &live.stop(Duration::ZERO).streams[0];
    assert_eq!(stream.points.len(), 3);
    assert!(stream.lost.is_empty(), "{:?}", stream.lost);
    assert!(stream.journeys as Ns > (length - 100 * MS) / STEP, "{}", stream.journeys);
}

#[test]
fn packets_of_a_stall_before_the_route_is_known_count() {
    let start = monotonic() + SETTLED;
    let end = start + 450 * MS;
    let sightings: Vec<Sighting> = sightings(start).into_iter().filter(|s| s.t < end).collect();
    let mut live = live(&sightings);
    // The process stalls, so the first round reads more than the joiner's window.
    fault_for(Duration::from_nanos((end + 150 * MS - monotonic()) as u64));
    run_until(&mut live, monotonic() + 50 * MS, || ());
    let summary = live.stop(Duration::ZERO);
    assert_eq!((summary.journeys, summary.streams[0].never_seen), (1_798, 2));
}

/// Steps a session until it has ended.
fn over(session: &mut impl Session) -> Option<EndReason> {
    session.run_until(&AtomicBool::new(false), PACE, |_| ControlFlow::Continue(()))
}

#[test]
fn a_recording_ends_with_its_packets_or_its_size_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str| directory.path().join(name);
    let of = |name: &str, sightings: &[Sighting], change: fn(&mut RecordOptions)| {
        let mut recording = RecordOptions::new(options(), run(name));
        change(&mut recording);
        RecordSession::of(recording, follow(sightings))
    };
    let sightings = sightings(monotonic() + SETTLED);
    let mut recording = of("packets", &sightings, |options| options.stop_after.packets = Some(100));
    assert_eq!(recording.step(), State::Settling, "the probes have just been attached");
    assert!(!run("packets").exists(), "a run that exists is one that records");
    assert_eq!(over(&mut recording), Some(EndReason::Packets));
    assert_eq!(recording.step(), State::Over(EndReason::Packets), "it stays over");
    let progress = recording.progress();
    assert!(progress.journeys >= 100 && progress.sightings_dropped == 0, "{progress:?}");
    assert!(recording.stop().unwrap().journeys >= 100);
    assert!(matches!(recording.stop(), Err(RecordError::StoppedBefore)));
    let route = ["host/tx@lp-pub", "host/nic-rx@nic0", "host/app-read@relay"].map(str::to_string).to_vec();
    assert!(events(&mut recording).contains(&Event::Route { points: route }));

    let mut recording = of("size", &sightings, |options| options.max_size = Some(1));
    assert_eq!(over(&mut recording), Some(EndReason::Size));
    let manifest = recording.stop().unwrap();
    assert!(events(&mut recording).contains(&Event::SizeReached { max_bytes: 1 }));
    assert!(manifest.notes.iter().any(|note| note.contains("--max-size")), "{:?}", manifest.notes);
}

#[test]
fn a_recording_whose_directory_goes_says_what_became_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str| directory.path().join(name);
    let begun = |name: &str| {
        let mut recording = record(&[], &run(name));
        while recording.step() == State::Settling {
            std::thread::yield_now();
        }
        recording
    };
    let mut recording = begun("renamed");
    std::fs::rename(run("renamed"), run("elsewhere")).unwrap();
    assert!(matches!(recording.stop(), Err(RecordError::Renamed(path)) if path == run("renamed")));
    assert!(Run::open(&run("elsewhere")).is_ok(), "the run is whole, under another name");

    let mut recording = begun("removed");
    std::fs::remove_dir_all(run("removed")).unwrap();
    match recording.stop() {
        Err(RecordError::Stopped { directory, .. }) => assert_eq!(directory, DirectoryState::Removed),
        Err(RecordError::Closing { .. }) => {}
        other => panic!("{other:?}"),
    }

    std::fs::create_dir(run("taken")).unwrap();
    std::fs::write(run("taken").join("file"), "").unwrap();
    let mut recording = record(&[], &run("taken"));
    assert_eq!(over(&mut recording), Some(EndReason::Failed));
    assert!(matches!(recording.stop(), Err(RecordError::Run(_))));
}

#[test]
fn a_stream_that_does_not_come_is_reported_once_and_so_is_its_arrival() {
    let sightings = sightings(monotonic() + 4_500 * MS);
    let directory = tempfile::tempdir().unwrap();
    let mut recording = RecordOptions::new(options(), directory.path().join("run"));
    recording.stop_after = StopAfter { duration: Some(Duration::from_secs(30)), packets: Some(5_000) };
    let mut recording = RecordSession::of(recording, follow(&sightings));
    assert_eq!(over(&mut recording), Some(EndReason::Packets));
    let all = events(&mut recording);
    let absent = |e: &&Event| matches!(e, Event::StreamAbsent { stream, is_listed: true, .. } if stream == "svid:MU01");
    assert_eq!(all.iter().filter(absent).count(), 1, "{all:?}");
    let arrived = |e: &&Event| matches!(e, Event::StreamArrived { after_ns, .. } if *after_ns >= 4_000 * MS);
    assert_eq!(all.iter().filter(arrived).count(), 1, "{all:?}");
    recording.stop().unwrap();
}
