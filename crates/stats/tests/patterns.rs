//! Patterns in batches that are distributed over several workers, in any order.

use latpath_journey::{Journey, Segment};
use latpath_model::{Link, Ns, PointInfo, SegmentKind};
use latpath_run::Rows;
use latpath_stats::{Batches, DetectedPattern, PatternKind, Patterns, Setup};

const SECOND: Ns = 1_000_000_000;
const PACKETS: u64 = 40_000;

fn setup() -> Setup {
    let info = |name: &str| PointInfo {
        point: name.parse().unwrap(),
        link: Link::Nic,
        netns: 1,
        ifindex: 1,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: String::new(),
    };
    Setup {
        streams: 1,
        points: ["host/nic-rx@eth0", "host/tx@vnet0"].map(info).into(),
        routes: vec![vec![0, 1]],
        segments: vec![Segment { kind: SegmentKind::Total, name: "total".into(), from: 0, to: 1 }],
        threshold: SECOND,
        row_limits: Vec::new(),
        band: None,
        worst: 0,
        reactions: Vec::new(),
    }
}

/// One packet per millisecond, with a spike every second, a queue held after 10 s, a step after 20 s, and a flap after
/// 30 s.
fn batches() -> Vec<Rows> {
    let one = |number: u64| {
        let sent = number as Ns * 1_000_000;
        let noise = (number * 7919 % 1009) as Ns * 10;
        let step = if sent >= 20 * SECOND { 60_000 } else { 0 };
        let spike = if number % 1000 == 500 { 3_000_000 } else { 0 };
        let held = (10 * SECOND + 80_000_000 - sent) * Ns::from((10_000..10_080).contains(&number));
        let seen = if (30_000..30_100).contains(&number) { 0b01 } else { 0b11 };
        (number, [sent, sent + 40_000 + noise + step + spike + held], seen)
    };
    let packets: Vec<_> = (0..PACKETS).map(one).collect();
    let batch = |packets: &[(u64, [Ns; 2], u64)]| {
        let mut rows = Rows::new(2);
        for (number, t, seen) in packets {
            rows.push(&Journey { number: *number, seen: *seen, t, ..Journey::default() });
        }
        rows
    };
    packets.chunks(3_333).map(batch).collect()
}

fn found<'a>(workers: usize, batches: impl Iterator<Item = &'a Rows>) -> Vec<DetectedPattern> {
    let setup = setup();
    let mut all = vec![Patterns::new(&setup, 0, PACKETS as Ns * 1_000_000); workers];
    let mut cut = Batches::new(&setup);
    batches.enumerate().for_each(|(n, rows)| cut.each(rows, |batch| all[n % workers].add(batch)));
    let mut whole = all.remove(0);
    all.into_iter().for_each(|one| whole.merge(one));
    whole.find(&setup, 0, &["MU01".into()])
}

#[test]
fn patterns_do_not_depend_on_the_distribution_of_batches() {
    let batches = batches();
    let expected = found(1, batches.iter());
    let kinds: Vec<PatternKind> = expected.iter().map(|f| f.pattern.kind).collect();
    use PatternKind::{LinkFlap, PeriodicSpikes, QueueRelease, Step};
    assert_eq!(kinds, [QueueRelease, PeriodicSpikes, Step, LinkFlap]);
    assert_eq!(expected[1].pattern.period_ns, Some(SECOND));
    assert_eq!(found(3, batches.iter()), expected);
    assert_eq!(found(2, batches.iter().rev()), expected);
}
