//! The captures that the detector requests for generated packets: 4,000 per second, seen at three points.

use latpath_capture::{
    CaptureKind, CaptureRequest, CapturedPackets, LateDetector, LatenessRule, Options, RetentionLimits,
    RetentionPolicy, StoredCapture,
};
use latpath_journey::{Journey, Segment};
use latpath_model::{Ns, SegmentKind};
use proptest::prelude::*;

const MS: Ns = 1_000_000;
const PERIOD: Ns = MS / 4;
const THRESHOLD: Ns = MS / 5;
/// Delay of the joiner, ns: it returns a journey this long after its last sighting, in order of first sightings.
const LINGER: Ns = 50 * MS;

/// A generated packet with its times at three points.
#[derive(Clone, Copy, Debug)]
struct GeneratedPacket {
    stream: u16,
    number: u64,
    t: [Ns; 3],
    /// Whether the last point does not see it.
    lost: bool,
}

fn packets(n: u64, delay: impl Fn(Ns) -> Ns) -> Vec<GeneratedPacket> {
    let made = |number: u64| {
        let t = 1_000 * MS + number as Ns * PERIOD;
        GeneratedPacket { stream: 0, number, t: [t, t + 5_000, t + 10_000 + delay(t - 1_000 * MS)], lost: false }
    };
    (0..n).map(made).collect()
}

#[derive(Default)]
struct Reported {
    requests: Vec<(Ns, CaptureRequest)>,
    gathered: Vec<CapturedPackets>,
}

impl Reported {
    fn spikes(&self) -> Vec<(Ns, CaptureRequest)> {
        self.requests.iter().filter(|(_, o)| o.kind == CaptureKind::Spike).copied().collect()
    }

    fn of(&self, request: &CaptureRequest) -> &CapturedPackets {
        self.gathered.iter().find(|g| g.number == request.number).expect("what was requested is gathered")
    }
}

fn detector(rule: LatenessRule, streams: usize) -> LateDetector {
    with_retention(rule, streams, RetentionPolicy::default())
}

fn with_retention(rule: LatenessRule, streams: usize, retention: RetentionPolicy) -> LateDetector {
    let mut detector = LateDetector::new(Options { rule, max_wait: 1_200 * MS, baselines: true }, streams, retention);
    let segment = |from, to| Segment { kind: SegmentKind::Named, name: String::new(), from, to };
    detector.set_layout(&[segment(0, 1), segment(1, 2), segment(0, 2)], &vec![vec![0, 1, 2]; streams]);
    detector
}

/// Passes packets to the detector in the order of the joiner, and advances it every 5 ms.
fn run(detector: &mut LateDetector, packets: &[GeneratedPacket]) -> Reported {
    let mut reported = Reported::default();
    let mut next = 0;
    let mut clock = packets.first().map_or(0, |p| p.t[0]);
    let end = packets.iter().map(|p| p.t[2]).max().unwrap_or(0) + 1_500 * MS;
    while clock < end {
        clock += 5 * MS;
        while let Some(p) = packets.get(next) {
            let known = if p.lost { p.t[0] + 1_000 * MS } else { p.t[2] + LINGER };
            if known > clock {
                break;
            }
            take(detector, p);
            next += 1;
        }
        let reached = packets.get(next).map_or(clock, |p| p.t[0]);
        detector.advance(clock, reached.min(clock));
        collect(detector, &mut reported, clock, reached);
    }
    detector.finish(clock);
    collect(detector, &mut reported, clock, clock);
    reported
}

fn take(detector: &mut LateDetector, p: &GeneratedPacket) {
    let seen = if p.lost { 3 } else { 7 };
    detector.take(&Journey {
        stream: p.stream,
        key: p.number as u32,
        number: p.number,
        seen,
        t: &p.t,
        cpu: &[1, 2, 3],
        tid: &[10, 0, 30],
        ..Journey::default()
    });
}

fn collect(detector: &mut LateDetector, reported: &mut Reported, clock: Ns, reached: Ns) {
    while let Some(request) = detector.next_request() {
        assert!(request.to <= clock, "what is frozen is over");
        reported.requests.push((clock, request));
    }
    while let Some(gathered) = detector.next_packets(reached) {
        reported.gathered.push(gathered);
    }
}

/// Delay caused by a stall: packets that arrive during it are processed at its end.
fn stall(from: Ns, to: Ns) -> impl Fn(Ns) -> Ns {
    move |t| if (from..to).contains(&t) { to - t } else { 0 }
}

#[test]
fn a_stall_is_one_capture_with_its_packets_and_their_neighbours() {
    let packets = packets(8_000, stall(500 * MS, 510 * MS));
    let mut detector = detector(LatenessRule::Over(THRESHOLD), 1);
    let reported = run(&mut detector, &packets);
    let spikes = reported.spikes();
    assert_eq!(spikes.len(), 1, "{spikes:?}");
    let (at, request) = spikes[0];
    let stalled = 1_500 * MS;
    assert!(request.from <= stalled - 5 * MS && request.to >= stalled + 10 * MS, "{request:?}");
    assert!(request.to - request.from < 40 * MS, "{request:?}");
    assert!(at < stalled + 10 * MS + LINGER + 40 * MS, "it is frozen before the rings have gone round");
    let gathered = reported.of(&request);
    assert_eq!(gathered.packets.iter().filter(|p| p.late).count(), 40);
    assert_eq!((gathered.late.as_slice(), gathered.more_late), (&[40][..], 0));
    assert_eq!(detector.counts().late, [40]);
    let expected = packets.iter().filter(|p| p.t[0] <= request.to && p.t[2] >= request.from).count();
    assert_eq!(gathered.packets.len(), expected);
    let packet = gathered.packets.iter().find(|p| p.late).unwrap();
    let seen: Vec<_> = packet.sightings.iter().map(|s| (s.point, s.cpu, s.tid)).collect();
    assert_eq!(seen, [(0, Some(1), Some(10)), (1, Some(2), Some(0)), (2, Some(3), Some(30))]);
    assert_eq!(gathered.worst, packet.sightings[2].t - packet.sightings[0].t);
}

#[test]
fn a_stall_of_any_length_is_one_capture() {
    let reported = run(&mut detector(LatenessRule::Over(THRESHOLD), 1), &packets(8_000, stall(500 * MS, 1_100 * MS)));
    let spikes = reported.spikes();
    assert_eq!(spikes.len(), 1);
    assert_eq!(reported.of(&spikes[0].1).late, [2400]);
    // The capture holds only the 1,024 worst of the late packets.
    let gathered = reported.of(&spikes[0].1);
    assert_eq!((gathered.packets.iter().filter(|p| p.late).count(), gathered.more_late), (1024, 2400 - 1024));
    assert!(gathered.packets.iter().any(|p| p.late && p.number == 2000), "the worst of all");
}

#[test]
fn distant_stalls_are_separate_captures() {
    let two = |t| stall(500 * MS, 505 * MS)(t) + stall(540 * MS, 545 * MS)(t);
    let reported = run(&mut detector(LatenessRule::Over(THRESHOLD), 1), &packets(8_000, two));
    assert_eq!(reported.spikes().len(), 2);
}

#[test]
fn baselines_become_rarer_and_have_no_late_packet() {
    let every_second = |t: Ns| stall(500 * MS, 503 * MS)(t % 1_000 * MS);
    let packets = packets(4_000 * 60, every_second);
    let reported = run(&mut detector(LatenessRule::Over(THRESHOLD), 1), &packets);
    let on_time: Vec<&CaptureRequest> =
        reported.requests.iter().map(|(_, o)| o).filter(|o| o.kind == CaptureKind::Baseline).collect();
    assert!((5..20).contains(&on_time.len()), "{} in a minute", on_time.len());
    for request in &on_time {
        let gathered = reported.of(request);
        assert!(gathered.packets.len() > 50 && gathered.packets.iter().all(|p| !p.late));
        assert!(gathered.worst <= THRESHOLD && gathered.late == [0]);
    }
    let gaps: Vec<Ns> = on_time.windows(2).map(|o| o[1].from - o[0].from).collect();
    assert!(gaps.last() > gaps.first(), "{gaps:?}");
}

#[test]
fn if_all_are_late_few_are_frozen_and_all_are_counted() {
    let packets = packets(4_000 * 60, |_| 2 * THRESHOLD);
    let mut detector = detector(LatenessRule::Over(THRESHOLD), 1);
    let reported = run(&mut detector, &packets);
    assert_eq!(detector.counts().late, [240_000]);
    assert!(reported.requests.iter().all(|(_, o)| o.kind == CaptureKind::Spike));
    let longest = reported.requests.iter().map(|(_, o)| o.to - o.from).max().unwrap();
    assert!(longest < 200 * MS && reported.requests.len() < 700, "{longest} ns, {} times", reported.requests.len());
}

#[test]
fn a_capture_below_the_kept_ones_is_counted_and_not_frozen() {
    let retention = RetentionPolicy::new(RetentionLimits { captures: 1, ..RetentionLimits::default() });
    let worst = 20 * MS;
    retention.add(StoredCapture { number: 1, kind: CaptureKind::Spike, to: 0, worst, bytes: 1, late: vec![1] });
    let mut detector = with_retention(LatenessRule::Over(THRESHOLD), 1, retention);
    let two = |t| stall(500 * MS, 505 * MS)(t) + stall(1_000 * MS, 1_030 * MS)(t);
    let reported = run(&mut detector, &packets(8_000, two));
    assert_eq!((reported.spikes().len(), detector.counts().passed_over), (1, 1));
    assert_eq!(detector.counts().late[0], 20 + 120);
}

#[test]
fn a_lost_packet_is_a_spike_only_if_it_was_late_before() {
    let mut made = packets(8_000, |_| 0);
    made[2_000].lost = true;
    assert_eq!(run(&mut detector(LatenessRule::Over(THRESHOLD), 1), &made).spikes().len(), 0);
    made[2_000].t[1] += MS;
    let reported = run(&mut detector(LatenessRule::Over(THRESHOLD), 1), &made);
    assert_eq!(reported.spikes().len(), 1);
    assert_eq!(reported.of(&reported.spikes()[0].1).packets.iter().find(|p| p.late).map(|p| p.number), Some(2_000));
}

#[test]
fn the_worst_of_a_minute_are_found_with_any_threshold() {
    let stalls = [(10, 3), (20, 9), (30, 5), (40, 7)];
    let delay = |t: Ns| stalls.iter().map(|(s, ms)| stall(s * 1_000 * MS, (s * 1_000 + ms) * MS)(t)).sum::<Ns>();
    let reported = run(&mut detector(LatenessRule::WorstPerMinute(3), 1), &packets(4_000 * 50, delay));
    let worst: Vec<Ns> = reported.spikes().iter().map(|(_, o)| o.worst / MS).collect();
    for ms in [9, 5, 7] {
        assert!(worst.contains(&ms), "{ms} ms in {worst:?}");
    }
    assert!(worst.len() < 15, "{worst:?}");
}

#[test]
fn the_top_part_is_found_once_there_are_enough_packets() {
    let reported = run(&mut detector(LatenessRule::OneOf(1000), 1), &packets(40_000, stall(9_000 * MS, 9_003 * MS)));
    let spikes = reported.spikes();
    assert_eq!(spikes.len(), 1, "{spikes:?}");
    assert_eq!(spikes[0].1.worst / MS, 3);
}

#[test]
fn packets_of_other_streams_are_in_the_capture_and_late_ones_are_counted_by_stream() {
    let mut made = packets(8_000, stall(500 * MS, 505 * MS));
    for p in made.iter_mut().filter(|p| p.number % 2 == 1) {
        p.stream = 1;
        p.t[2] = p.t[1] + 5_000;
    }
    let mut detector = detector(LatenessRule::Over(THRESHOLD), 2);
    let reported = run(&mut detector, &made);
    let gathered = reported.of(&reported.spikes()[0].1);
    assert_eq!(gathered.late, [10, 0]);
    assert!(gathered.packets.iter().any(|p| p.stream == 1));
}

#[test]
fn without_a_segment_nothing_is_late() {
    let mut detector = LateDetector::new(
        Options { rule: LatenessRule::Over(1), max_wait: MS, baselines: true },
        1,
        RetentionPolicy::default(),
    );
    let reported = run(&mut detector, &packets(8_000, |_| MS));
    assert!(reported.requests.is_empty() && detector.counts().late == [0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_late_packet_of_quiet_times_is_in_a_capture_and_every_request_is_gathered_once(
        stalls in prop::collection::vec((0..4_000_i64, 1..300_i64), 0..8),
        lost in prop::collection::vec(0..16_000_u64, 0..4),
    ) {
        let delay = |t: Ns| stalls.iter().map(|(s, ms)| stall(s * MS, (s + ms) * MS)(t)).max().unwrap_or(0);
        let mut made = packets(16_000, delay);
        lost.iter().for_each(|n| made[*n as usize].lost = true);
        let mut detector = detector(LatenessRule::Over(THRESHOLD), 1);
        let reported = run(&mut detector, &made);
        prop_assert_eq!(reported.gathered.len(), reported.requests.len());
        let late = made.iter().filter(|p| !p.lost && p.t[2] - p.t[0] > THRESHOLD).count() as u64;
        prop_assert_eq!(detector.counts().late[0], late);
        prop_assert_eq!(detector.counts().passed_over, 0);
        prop_assert_eq!(reported.gathered.iter().map(|g| g.late[0]).sum::<u64>(), late);
        for gathered in &reported.gathered {
            let late = gathered.packets.iter().filter(|p| p.late).count() as u64;
            prop_assert!(late + gathered.more_late >= gathered.late[0]);
            prop_assert!(gathered.packets.len() <= 4096);
            prop_assert!(gathered.packets.is_sorted_by_key(|p| p.sightings[0].t));
        }
    }
}

/// Reactions of 3 ms with one of 5 ms, and packets of 10 µs with a threshold of 200 µs.
#[test]
fn reactions_are_late_by_their_own_time_alone() {
    let reaction = |number: u64| {
        let t = 1_200 * MS + number as Ns * 100 * MS;
        let took = if number == 7 { 5 * MS } else { 3 * MS };
        GeneratedPacket { stream: 1, number, t: [t, t + 1000, t + took], lost: false }
    };
    let mut all: Vec<GeneratedPacket> = packets(8_000, |_| 0);
    all.extend((0..15).map(reaction));
    all.sort_by_key(|p| p.t[0]);
    for (late, expected) in [(None, 0), (Some(4 * MS), 1), (Some(2 * MS), 15)] {
        let options = Options { rule: LatenessRule::Over(THRESHOLD), max_wait: 1_200 * MS, baselines: true };
        let mut detector = LateDetector::new(options, 2, RetentionPolicy::default());
        detector.set_reactions([(1, late)]);
        let segment = |from, to| Segment { kind: SegmentKind::Named, name: String::new(), from, to };
        detector.set_layout(&[segment(0, 1), segment(0, 2)], &vec![vec![0, 1, 2]; 2]);
        let reported = run(&mut detector, &all);
        assert_eq!(detector.counts().late, [0, expected], "{late:?}");
        let spikes = reported.spikes();
        assert_eq!(spikes.len() as u64, expected, "{late:?}");
        for (_, request) in &spikes {
            let gathered = reported.of(request);
            assert_eq!(gathered.packets.iter().filter(|p| p.late).count(), 1, "{late:?}: the reaction, no packet");
        }
        let baselines = reported.requests.iter().any(|(_, request)| request.kind == CaptureKind::Baseline);
        assert!(baselines, "{late:?}: between late reactions, all is on time");
    }
}
