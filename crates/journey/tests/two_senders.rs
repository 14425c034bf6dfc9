//! Two senders of one svID whose packets never meet: each journey belongs to one of them.

use latpath_journey::{Joiner, Journey, Options, RouteFinder, Totals};
use latpath_model::{KeyRule, Link, Ns, PointInfo, Sighting};

const STEP: Ns = 250_000;
const SECOND: Ns = 1_000_000_000;

/// A point of a chain: name, device, namespace; its own index and those of its veth's other end.
type Place = (&'static str, Link, u32, (u32, u32, u32));

/// A publisher, a bridge and an application, each in its own namespace. Interface indexes repeat across the namespaces.
const FIRST: [Place; 6] = [
    ("host/tx@pa", Link::Veth, 1, (2, 2, 2)),
    ("host/nic-rx@hin", Link::Veth, 2, (2, 2, 1)),
    ("host/drop@br0", Link::Bridge, 2, (3, 0, 0)),
    ("host/tx@hout", Link::Veth, 2, (4, 2, 3)),
    ("host/nic-rx@eth0", Link::Veth, 3, (2, 4, 2)),
    ("host/app-read@relay", Link::Socket, 3, (0, 0, 0)),
];
const SECOND_PAIR: [Place; 2] =
    [("host/tx@p2", Link::Veth, 8, (2, 2, 9)), ("host/nic-rx@a2", Link::Veth, 9, (2, 2, 8))];

fn info((name, link, netns, (ifindex, peer, peer_netns)): &Place) -> PointInfo {
    let (link, netns, ifindex) = (*link, *netns, *ifindex);
    let point = name.parse().unwrap();
    PointInfo {
        point,
        link,
        netns,
        ifindex,
        peer: *peer,
        peer_netns: *peer_netns,
        error_bound_ns: 0,
        clock: String::new(),
    }
}

/// A sender: start time, first number, and the points that its packets pass.
struct Sender<'a> {
    begins: Ns,
    number: u32,
    points: &'a [Place],
}

/// Follows the senders for some seconds; points are found as packets reach them. Returns each journey's key and names
/// of points, and the stream's totals.
fn follow(senders: &[Sender], seconds: i64) -> (Vec<(u32, Vec<String>)>, Totals) {
    let mut all: Vec<(Sighting, Place)> = Vec::new();
    for sender in senders {
        for n in 0..(seconds * SECOND - sender.begins) / STEP {
            for (place, at) in sender.points.iter().zip(0..) {
                let key = (sender.number + n as u32) % 4000;
                let t = sender.begins + n * STEP + 5_000 * at;
                all.push((Sighting { t, key, ..Sighting::default() }, *place));
            }
        }
    }
    all.sort_by_key(|(s, _)| s.t);
    let (mut points, mut joiner) = (Vec::new(), Joiner::new([KeyRule::SMP_CNT], Options::default()));
    let (mut finder, mut journeys, mut found) = (RouteFinder::default(), Vec::new(), false);
    for (s, place) in all {
        let point = points.iter().position(|known: &Place| known.0 == place.0).unwrap_or_else(|| {
            points.push(place);
            joiner.set_points(&points.iter().map(info).collect::<Vec<_>>());
            points.len() - 1
        });
        let names = |j: &Journey| -> Vec<String> {
            let seen = (0..points.len()).filter(|p| j.at(*p as u16).is_some());
            seen.map(|p| points[p].0.to_owned()).collect()
        };
        let mut sink = |j: &Journey| journeys.push((j.key, names(j)));
        joiner.push(&Sighting { point: point as u16, ..s }, &mut sink);
        if s.t >= 9 * SECOND / 10 && !found {
            joiner.open_journeys().for_each(|j| finder.observe(&j));
            let infos: Vec<_> = points.iter().map(info).collect();
            let route = finder.route(&infos);
            joiner.set_expected(0, route.points.iter().fold(0, |mask, p| mask | 1 << p));
            found = true;
        }
        joiner.advance(s.t - 1_000_000, &mut sink);
    }
    (journeys, joiner.totals(0))
}

fn names(points: &[Place]) -> Vec<String> {
    points.iter().map(|place| place.0.to_owned()).collect()
}

#[test]
fn each_journey_is_of_the_sender_whose_packets_an_application_reads() {
    // The numbers are up to a second apart, either sender may be ahead, and either may be seen first.
    for (lead, other) in [(0, 3_000), (3_000, 0), (0, 310), (310, 0), (7, 7)] {
        for first in [0, 40_000] {
            let senders = [
                Sender { begins: first, number: lead, points: &FIRST },
                Sender { begins: 20_000, number: other, points: &SECOND_PAIR },
            ];
            let (journeys, totals) = follow(&senders, 3);
            assert!(journeys.len() > 11_000, "{}", journeys.len());
            for (at, (key, seen)) in journeys.iter().enumerate() {
                assert_eq!(
                    (*key, &sorted(seen)),
                    ((lead + at as u32) % 4000, &sorted(&names(&FIRST))),
                    "{lead} {other}"
                );
            }
            assert_eq!((totals.never_seen, totals.duplicates, totals.restarts), (0, 0, 0), "{totals:?}");
            assert!(totals.other_senders > 20_000, "{totals:?}");
        }
    }
}

#[test]
fn a_route_that_is_known_before_the_first_packet_chooses_the_sender() {
    let points: Vec<PointInfo> = SECOND_PAIR.iter().chain(&FIRST).map(info).collect();
    let mut joiner = Joiner::new([KeyRule::SMP_CNT], Options::default());
    joiner.set_points(&points);
    joiner.set_expected(0, 0b1111_0100);
    let mut journeys = Vec::new();
    for n in 0..8000_u32 {
        let mut sink = |j: &Journey| journeys.push(j.seen);
        for point in 0..points.len() as u16 {
            let t = Ns::from(n) * STEP + 1_000 * Ns::from(point);
            joiner.push(&Sighting { t, key: n % 4000, point, ..Sighting::default() }, &mut sink);
        }
        joiner.advance(Ns::from(n) * STEP, &mut sink);
    }
    assert!(journeys.len() > 7_000 && journeys.iter().all(|seen| *seen == 0b1111_1100), "{}", journeys.len());
}

#[test]
fn a_later_sender_does_not_change_the_route() {
    let senders = [
        Sender { begins: 0, number: 0, points: &FIRST },
        Sender { begins: 3 * SECOND / 2, number: 5, points: &SECOND_PAIR },
    ];
    let (journeys, totals) = follow(&senders, 4);
    assert!(journeys.iter().all(|(_, seen)| seen.len() == FIRST.len()));
    assert_eq!((totals.never_seen, totals.duplicates, totals.late), (0, 0, 0));
    assert!(totals.other_senders > 19_000, "{totals:?}");
}

#[test]
fn packets_of_one_sender_stay_together_for_any_order_of_points() {
    let mut points = FIRST;
    for turn in 0..points.len() {
        points.rotate_left(1);
        let (journeys, totals) = follow(&[Sender { begins: 0, number: 0, points: &points }], 2);
        assert!(journeys.iter().skip(10).all(|(_, seen)| seen.len() == FIRST.len()), "{turn}");
        assert!(totals.other_senders < 20, "{turn}: {totals:?}");
    }
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}
