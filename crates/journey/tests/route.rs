//! The route and the segments that journeys reveal, on typical networks.

use latpath_journey::segments::{classic, parse};
use latpath_journey::{Journey, Route, RouteFinder};
use latpath_model::{Link, Ns, Point, PointInfo, StreamSpec};
use latpath_testkit::Noise;

/// A network: its points as (name, link, namespace), and the sightings of packets: (point, time).
struct Network {
    points: Vec<PointInfo>,
    finder: RouteFinder,
    /// Returns the thread at a point.
    tid: fn(&str) -> u32,
}

impl Network {
    fn new(points: &[(&str, Link, u32)]) -> Self {
        let info = |(name, link, netns): &(&str, Link, u32)| PointInfo {
            point: name.parse().unwrap(),
            link: *link,
            netns: *netns,
            ifindex: 0,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: String::new(),
        };
        Self { points: points.iter().map(info).collect(), finder: RouteFinder::default(), tid: |_| 0 }
    }

    fn packets(&mut self, times: u32, sightings: &[(&str, Ns)]) {
        self.packets_of(0, times, sightings);
    }

    /// Assigns these indexes and peers' indexes to the points, and sends packets past all points, in their order.
    fn pass_all(&mut self, links: &[(u32, u32)]) {
        for (point, link) in self.points.iter_mut().zip(links) {
            (point.ifindex, point.peer) = *link;
        }
        let names: Vec<String> = self.points.iter().map(|p| p.point.to_string()).collect();
        let sightings: Vec<_> = names.iter().map(String::as_str).zip((0..).step_by(5)).collect();
        self.packets(100, &sightings);
    }

    fn packets_of(&mut self, stream: u16, times: u32, sightings: &[(&str, Ns)]) {
        let mut t = vec![0; self.points.len()];
        let mut seen = 0;
        for (name, at) in sightings {
            let id = self.points.iter().position(|p| p.point.to_string() == *name).unwrap();
            t[id] = *at;
            seen |= 1 << id;
        }
        let tid: Vec<u32> = self.points.iter().map(|p| (self.tid)(&p.point.to_string())).collect();
        for key in 0..times {
            let journey = Journey { stream, key, number: key.into(), seen, t: &t, tid: &tid, ..Journey::default() };
            self.finder.observe(&journey);
        }
    }

    fn route(&self) -> Route {
        self.finder.route(&self.points)
    }

    fn route_names(&self) -> Vec<String> {
        self.route().points.iter().map(|p| self.points[usize::from(*p)].point.to_string()).collect()
    }

    fn segments(&self) -> Vec<String> {
        let name = |p: u16| self.points[usize::from(p)].point.to_string();
        let all = classic(self.route(), &self.points).segments;
        all.iter().map(|s| format!("{}: {} {}", s.name, name(s.from), name(s.to))).collect()
    }
}

const HUB: u32 = 1;
/// The publisher's namespace.
const SENDER: u32 = 2;

fn hypervisor() -> Network {
    Network::new(&[
        ("guest0/app-read@relay", Link::Socket, 9),
        ("guest0/nic-rx@eth0", Link::Nic, 9),
        ("host/vm-read@vnet0", Link::Tap, HUB),
        ("host/tx@vnet0", Link::Tap, HUB),
        ("host/nic-rx@br0", Link::Bridge, HUB),
        ("host/nic-rx@nic0", Link::Veth, HUB),
        ("host/tx@pub0", Link::Veth, 2),
        ("host/drop@br0", Link::Bridge, HUB),
        ("host/app-read@tcpdump", Link::Socket, HUB),
        ("host/tx@vnet1", Link::Tap, HUB),
        ("host/vm-read@vnet1", Link::Tap, HUB),
        ("host/tx@eno2", Link::Nic, HUB),
    ])
}

const ROUTE: [(&str, Ns); 6] = [
    ("host/tx@pub0", 0),
    ("host/nic-rx@nic0", 5),
    ("host/tx@vnet0", 10),
    ("host/vm-read@vnet0", 30),
    ("guest0/nic-rx@eth0", 60),
    ("guest0/app-read@relay", 70),
];

fn names(route: &[(&str, Ns)]) -> Vec<String> {
    route.iter().map(|(name, _)| name.to_string()).collect()
}

#[test]
fn the_route_leads_into_the_guest_past_all_copies() {
    let mut n = hypervisor();
    let copies = [
        ("host/nic-rx@br0", 14),
        ("host/drop@br0", 15),
        ("host/app-read@tcpdump", 90),
        ("host/tx@vnet1", 12),
        ("host/tx@eno2", 13),
    ];
    n.packets(100, &[&ROUTE[..], &copies, &[("host/vm-read@vnet1", 20)]].concat());
    assert_eq!(n.route_names(), names(&ROUTE));
    let off_route = n.route().off_route.len();
    assert_eq!(off_route, 5, "all others but the drop are off route");
}

#[test]
fn clocks_that_disagree_do_not_change_the_order() {
    let mut n = hypervisor();
    let wrong = ROUTE.map(|(name, t)| (name, if name.starts_with("guest0") { t - 1000 } else { t }));
    n.packets(100, &wrong);
    assert_eq!(n.route_names(), names(&ROUTE));
}

#[test]
fn a_tap_is_read_after_it_was_sent_to() {
    let mut n = hypervisor();
    let racing = ROUTE.map(|(name, t)| (name, if name == "host/vm-read@vnet0" { 9 } else { t }));
    n.packets(100, &racing);
    assert_eq!(n.route_names(), names(&ROUTE));
}

#[test]
fn losses_do_not_shorten_the_route() {
    let mut n = hypervisor();
    n.packets(900, &ROUTE[..3]);
    n.packets(100, &ROUTE);
    assert_eq!(n.route_names(), names(&ROUTE));
}

#[test]
fn a_point_that_saw_few_arrived_packets_is_off_route() {
    let mut n = hypervisor();
    n.packets(100, &ROUTE);
    n.packets(20, &[&ROUTE[..], &[("host/tx@eno2", 7)]].concat());
    assert_eq!(n.route_names(), names(&ROUTE));
}

#[test]
fn without_an_agent_the_route_ends_where_the_vm_reads() {
    let mut n = hypervisor();
    n.packets(100, &[&ROUTE[1..4], &[("host/app-read@tcpdump", 90)]].concat());
    assert_eq!(n.route_names(), names(&ROUTE[1..4]));
    let notes = classic(n.route(), &n.points).notes.join("\n");
    assert!(notes.contains("Tnet: the publisher is on another machine"), "{notes}");
    assert!(notes.contains("Thyp ends at host/vm-read@vnet0"), "{notes}");
    assert!(notes.contains("Tsub: no application"), "{notes}");
}

#[test]
fn the_classic_segments_join_and_neighbours_are_named_once() {
    let mut n = hypervisor();
    n.packets(100, &ROUTE);
    assert_eq!(
        n.segments(),
        [
            "Tnet: host/tx@pub0 host/nic-rx@nic0",
            "Thyp: host/nic-rx@nic0 guest0/nic-rx@eth0",
            "host/nic-rx@nic0→host/tx@vnet0: host/nic-rx@nic0 host/tx@vnet0",
            "host/tx@vnet0→host/vm-read@vnet0: host/tx@vnet0 host/vm-read@vnet0",
            "host/vm-read@vnet0→guest0/nic-rx@eth0: host/vm-read@vnet0 guest0/nic-rx@eth0",
            "Tsub: guest0/nic-rx@eth0 guest0/app-read@relay",
            "total: host/tx@pub0 guest0/app-read@relay",
        ]
    );
}

#[test]
fn a_container_behind_a_veth_stands_for_the_vm() {
    let mut n = Network::new(&[
        ("host/tx@pub0", Link::Veth, 2),
        ("host/nic-rx@nic0", Link::Veth, HUB),
        ("host/tx@veth0", Link::Veth, HUB),
        ("host/nic-rx@eth0", Link::Veth, 3),
        ("host/app-read@relay", Link::Socket, 3),
        ("host/nic-rx@br0", Link::Bridge, HUB),
        ("host/nic-rx@other", Link::Veth, 4),
    ]);
    let route = [
        ("host/tx@pub0", 0),
        ("host/nic-rx@nic0", 1),
        ("host/tx@veth0", 2),
        ("host/nic-rx@eth0", 5),
        ("host/app-read@relay", 6),
    ];
    n.packets(50, &[&route[..], &[("host/nic-rx@br0", 3), ("host/nic-rx@other", 4)]].concat());
    assert_eq!(n.route_names(), names(&route));
    let segments = n.segments();
    assert!(segments.contains(&"Thyp: host/nic-rx@nic0 host/nic-rx@eth0".into()), "{segments:?}");
    assert!(segments.contains(&"Tsub: host/nic-rx@eth0 host/app-read@relay".into()), "{segments:?}");
}

#[test]
fn an_application_on_the_bridge_itself_gets_the_bridges_copy() {
    let mut n = Network::new(&[
        ("host/nic-rx@eth0", Link::Nic, HUB),
        ("host/tx@veth7", Link::Veth, HUB),
        ("host/nic-rx@br0", Link::Bridge, HUB),
        ("host/app-read@relay", Link::Socket, HUB),
    ]);
    n.packets(50, &[("host/nic-rx@eth0", 1), ("host/tx@veth7", 2), ("host/nic-rx@br0", 3), ("host/app-read@relay", 9)]);
    assert_eq!(n.route_names(), ["host/nic-rx@eth0", "host/nic-rx@br0", "host/app-read@relay"]);
}

#[test]
fn a_veth_pair_is_a_route() {
    let mut n = Network::new(&[("host/nic-rx@b", Link::Veth, HUB), ("host/tx@a", Link::Veth, HUB)]);
    n.packets(10, &[("host/tx@a", 1), ("host/nic-rx@b", 2)]);
    assert_eq!(n.route_names(), ["host/tx@a", "host/nic-rx@b"]);
    assert_eq!(n.segments(), ["Tnet: host/tx@a host/nic-rx@b", "total: host/tx@a host/nic-rx@b"]);
}

#[test]
fn a_publisher_on_another_machine_comes_first() {
    let mut n = Network::new(&[("host/nic-rx@eth0", Link::Nic, HUB), ("mu/tx@eth0", Link::Nic, 1)]);
    n.packets(10, &[("mu/tx@eth0", 900), ("host/nic-rx@eth0", 2)]);
    assert_eq!(n.route_names(), ["mu/tx@eth0", "host/nic-rx@eth0"]);
}

#[test]
fn streams_into_different_vms_have_separate_routes() {
    let mut n = hypervisor();
    let other = [("host/nic-rx@nic0", 5), ("host/tx@vnet1", 9), ("host/vm-read@vnet1", 20)];
    n.packets_of(0, 100, &ROUTE);
    n.packets_of(2, 100, &other);
    let route = n.route();
    let ids = |route: &[(&str, Ns)]| -> Vec<u16> {
        route.iter().map(|(w, _)| n.points.iter().position(|p| p.point.to_string() == *w).unwrap() as u16).collect()
    };
    assert_eq!(route.by_stream, [ids(&ROUTE), vec![], ids(&other)]);
    assert_eq!((route.of_stream(2), route.distinct().len(), route.points.len()), (&ids(&other)[..], 2, 8));
    let totals = n.segments().iter().filter(|s| s.starts_with("total")).count();
    assert_eq!(totals, 2);
}

#[test]
fn without_sightings_there_is_no_route() {
    let n = hypervisor();
    assert_eq!(n.route(), Route::default());
    assert!(classic(n.route(), &n.points).segments.is_empty());
}

#[test]
fn a_manifests_route_reads_back() {
    let mut n = hypervisor();
    n.packets(10, &[&ROUTE[..], &[("host/nic-rx@br0", 14)]].concat());
    let names: Vec<Point> = n.route_names().iter().map(|p| p.parse().unwrap()).collect();
    let again = Route::from_points(&names, std::slice::from_ref(&names), &n.points);
    assert_eq!((again.points, again.by_stream), (n.route().points, n.route().by_stream));
}

#[test]
fn a_users_segment_is_found_by_patterns() {
    let mut n = hypervisor();
    n.packets(10, &ROUTE);
    let route = n.route();
    let s = parse("vhost=host/tx@vnet*..host/vm-read@*", &n.points, &route).unwrap().unwrap();
    assert_eq!((s.name.as_str(), s.from, s.to), ("vhost", 3, 2));
    assert_eq!(parse("x=host/tx@eth9..host/vm-read@*", &n.points, &route), Ok(None));
    // Points that match the end's pattern but precede the beginning are skipped.
    let transit = parse("transit=host/vm-read@*..*/nic-rx@*", &n.points, &route).unwrap().unwrap();
    let name = |p: u16| n.points[usize::from(p)].point.to_string();
    assert_eq!((name(transit.from), name(transit.to)), ("host/vm-read@vnet0".into(), "guest0/nic-rx@eth0".into()));
    assert!(parse("x=host/tx@vnet0..*/tx@vnet0", &n.points, &route).is_err());
    for bad in ["vhost", "=a..b", "x=..b", "x=a.b"] {
        assert!(parse(bad, &n.points, &route).unwrap_err().contains("NAME=FROM..TO"), "{bad}");
    }
}

/// A host with Open vSwitch, and an exchange: requests into the guest, answers out of it.
fn exchange() -> Network {
    Network::new(&[
        ("host/tx@lp-pub", Link::Veth, 2),
        ("host/nic-rx@nic0", Link::Nic, HUB),
        ("host/ovs-exec@nic0", Link::Nic, HUB),
        ("host/ovs-upcall@nic0", Link::Nic, HUB),
        ("host/ovs-return@nic0", Link::Nic, HUB),
        ("host/tx@vnet0", Link::Tap, HUB),
        ("host/vm-read@vnet0", Link::Tap, HUB),
        ("guest0/nic-rx@eth0", Link::Nic, 9),
        ("guest0/tx@eth0", Link::Nic, 9),
        ("guest0/tx-done@eth0", Link::Nic, 9),
        ("host/vm-write@vnet0", Link::Tap, HUB),
        ("host/tx@nic0", Link::Nic, HUB),
        ("host/tx-done@nic0", Link::Nic, HUB),
    ])
}

const INTO: [(&str, Ns); 5] = [
    ("host/tx@lp-pub", 0),
    ("host/nic-rx@nic0", 5),
    ("host/tx@vnet0", 20),
    ("host/vm-read@vnet0", 30),
    ("guest0/nic-rx@eth0", 60),
];
const OUT_OF: [(&str, Ns); 4] =
    [("guest0/tx@eth0", 100), ("host/vm-write@vnet0", 120), ("host/tx@nic0", 130), ("host/tx-done@nic0", 190)];

#[test]
fn both_directions_of_an_exchange_have_a_route_each() {
    let mut n = exchange();
    // The guest's NIC completes long after the host has forwarded the packet.
    n.packets_of(0, 100, &INTO);
    n.packets_of(1, 100, &[&OUT_OF[..], &[("guest0/tx-done@eth0", 150)]].concat());
    let route = n.route();
    let name = |p: &u16| n.points[usize::from(*p)].point.to_string();
    let route = |stream| route.of_stream(stream).iter().map(name).collect::<Vec<_>>();
    assert_eq!(route(0), names(&INTO));
    assert_eq!(route(1), names(&OUT_OF));
    assert_eq!(n.route_names(), [names(&INTO), names(&OUT_OF)].concat());
    let segments = n.segments();
    assert!(segments.contains(&"Thyp: host/nic-rx@nic0 guest0/nic-rx@eth0".to_owned()), "{segments:?}");
    assert!(segments.contains(&"Thyp: host/vm-write@vnet0 host/tx@nic0".to_owned()), "{segments:?}");
    assert!(segments.contains(&"total: guest0/tx@eth0 host/tx-done@nic0".to_owned()), "{segments:?}");
}

#[test]
fn points_of_open_vswitch_are_optional_and_no_gap_in_the_route() {
    let mut n = exchange();
    n.packets(90, &[&INTO[..], &[("host/ovs-exec@nic0", 8)]].concat());
    n.packets(10, &[&INTO[..], &[("host/ovs-upcall@nic0", 8), ("host/ovs-return@nic0", 18)]].concat());
    assert_eq!(n.route_names(), names(&INTO));
    let route = n.route();
    assert_eq!((route.optional.len(), route.off_route.len()), (3, 0));
    let segments = n.segments();
    assert!(segments.contains(&"Tupcall: host/ovs-upcall@nic0 host/ovs-return@nic0".to_owned()), "{segments:?}");
    assert!(!segments.iter().any(|s| s.contains("ovs-exec")), "the segments add up for all paths: {segments:?}");
}

#[test]
fn times_of_nics_leave_the_route_as_it_is_and_add_their_segments() {
    let mut n = Network::new(&[
        ("host/tx@left", Link::Nic, 7),
        ("host/nic-hw-tx@left", Link::Nic, 7),
        ("host/nic-hw-rx@right", Link::Nic, 8),
        ("host/nic-rx@right", Link::Nic, 8),
        ("host/app-read@relay", Link::Socket, 8),
    ]);
    let kernel = [("host/tx@left", 0), ("host/nic-rx@right", 30), ("host/app-read@relay", 50)];
    n.packets(60, &[&kernel[..], &[("host/nic-hw-tx@left", 10), ("host/nic-hw-rx@right", 20)]].concat());
    n.packets(40, &kernel);
    let route = ["host/tx@left", "host/nic-rx@right", "host/app-read@relay"];
    assert_eq!(n.route_names(), route);
    let segments = n.segments();
    for (from, to) in [
        ("host/tx@left", "host/nic-hw-tx@left"),
        ("host/nic-hw-tx@left", "host/nic-hw-rx@right"),
        ("host/nic-hw-rx@right", "host/nic-rx@right"),
    ] {
        assert!(segments.contains(&format!("{from}→{to}: {from} {to}")), "{segments:?}");
    }
    assert!(segments.contains(&"Tnet: host/tx@left host/nic-rx@right".to_owned()), "{segments:?}");
    assert_eq!(segments.iter().filter(|s| s.contains("nic-hw")).count(), 3, "{segments:?}");
}

#[test]
fn a_sending_nics_time_does_not_end_the_route() {
    let mut n = exchange();
    n.points.push(PointInfo { netns: HUB, .."host/nic-hw-tx@nic0".parse::<Point>().unwrap().into() });
    n.packets(100, &[&OUT_OF[..], &[("host/nic-hw-tx@nic0", 200)]].concat());
    assert_eq!(n.route_names(), names(&OUT_OF));
    assert!(n.segments().contains(&"host/tx@nic0→host/nic-hw-tx@nic0: host/tx@nic0 host/nic-hw-tx@nic0".to_owned()));
}

#[test]
fn between_two_vms_the_hosts_share_is_from_write_to_read() {
    let mut n = Network::new(&[
        ("host/vm-write@vnet0", Link::Tap, HUB),
        ("host/nic-rx@br0", Link::Bridge, HUB),
        ("host/tx@vnet1", Link::Tap, HUB),
        ("host/vm-read@vnet1", Link::Tap, HUB),
    ]);
    let route = [("host/vm-write@vnet0", 0), ("host/tx@vnet1", 5), ("host/vm-read@vnet1", 9)];
    n.packets(100, &[&route[..], &[("host/nic-rx@br0", 6)]].concat());
    assert_eq!(n.route_names(), names(&route));
    assert!(n.segments().iter().any(|s| s.starts_with("Thyp: host/vm-write@vnet0 host/vm-read@vnet1")
        || s == "total: host/vm-write@vnet0 host/vm-read@vnet1"));
}

#[test]
fn a_route_that_leads_out_reads_back_from_its_names() {
    let mut n = exchange();
    n.packets(90, &[&OUT_OF[..], &[("host/ovs-exec@nic0", 125)]].concat());
    let route = n.route();
    let point = |p: &u16| n.points[usize::from(*p)].point.clone();
    let named: Vec<Point> = route.points.iter().map(point).collect();
    let read = Route::from_points(&named, std::slice::from_ref(&named), &n.points);
    assert_eq!((read.points, read.by_stream), (route.points, route.by_stream));
    assert_eq!(read.optional.len(), 3, "points of Open vSwitch are no copies");
}

#[test]
fn a_route_may_end_at_an_af_xdp_socket() {
    let mut n = Network::new(&[
        ("host/xsk-rx@nic0", Link::Nic, HUB),
        ("host/xdp-redirect@nic0", Link::Nic, HUB),
        ("host/tx@pub0", Link::Veth, 2),
        ("host/app-read@tcpdump", Link::Socket, 2),
    ]);
    let route = [("host/tx@pub0", 0), ("host/xdp-redirect@nic0", 5), ("host/xsk-rx@nic0", 6)];
    n.packets(100, &[&route[..], &[("host/app-read@tcpdump", 3)]].concat());
    assert_eq!(n.route_names(), names(&route));
    let segments = n.segments();
    assert!(segments.contains(&"Tsub: host/xdp-redirect@nic0 host/xsk-rx@nic0".into()), "{segments:?}");
}

/// A bridge in HUB floods to two veths: one leads to the reader, the other, created later, to `elsewhere`.
fn flooded(elsewhere: u32) -> Network {
    let mut net = Network::new(&[
        ("host/tx@pa", Link::Veth, 2),
        ("host/nic-rx@hin", Link::Veth, HUB),
        ("host/tx@xo", Link::Veth, HUB),
        ("host/nic-rx@xi", Link::Veth, elsewhere),
        ("host/tx@hout", Link::Veth, HUB),
        ("host/nic-rx@eth0", Link::Veth, 3),
        ("host/app-read@relay", Link::Socket, 3),
    ]);
    net.pass_all(&[(2, 9), (9, 2), (12, 4), (4, 12), (10, 2), (2, 10), (0, 0)]);
    let names: Vec<String> = net.points.iter().map(|p| p.point.to_string()).collect();
    let sightings: Vec<_> = names.iter().map(String::as_str).zip((0..).step_by(5)).collect();
    net.packets(100, &sightings);
    net
}

#[test]
fn of_two_ports_the_one_that_leads_to_the_reader_is_on_the_route() {
    let route = ["host/tx@pa", "host/nic-rx@hin", "host/tx@hout", "host/nic-rx@eth0", "host/app-read@relay"];
    assert_eq!(flooded(7).route_names(), route, "the other leads to a namespace of its own");
    assert_eq!(flooded(2).route_names(), route, "the other leads back to the sender's namespace, by another device");
    let first = ["host/tx@pa", "host/nic-rx@hin", "host/tx@xo", "host/nic-rx@xi", "host/app-read@relay"];
    assert_eq!(
        flooded(3).route_names(),
        first,
        "both lead to the reader's namespace: the first copy that comes there counts"
    );
}

#[test]
fn veths_behind_one_another_are_followed_to_the_hub() {
    let mut net = Network::new(&[
        ("host/nic-rx@eno1", Link::Nic, HUB),
        ("host/tx@xo", Link::Veth, HUB),
        ("host/tx@mid0", Link::Veth, HUB),
        ("host/nic-rx@mid1", Link::Veth, 5),
        ("host/tx@side", Link::Veth, 5),
        ("host/tx@last0", Link::Veth, 5),
        ("host/nic-rx@last1", Link::Veth, 6),
        ("host/app-read@relay", Link::Socket, 6),
    ]);
    net.pass_all(&[(2, 0), (3, 2), (4, 2), (2, 4), (7, 2), (8, 3), (3, 8), (0, 0)]);
    let route = ["nic-rx@eno1", "tx@mid0", "nic-rx@mid1", "tx@last0", "nic-rx@last1", "app-read@relay"];
    assert_eq!(net.route_names(), route.map(|p| format!("host/{p}")));
}

#[test]
fn a_second_reader_is_reported() {
    let mut net = hypervisor();
    let mut sightings = ROUTE.to_vec();
    sightings.extend([("host/vm-read@vnet1", 20), ("host/app-read@tcpdump", 70)]);
    net.packets(100, &sightings);
    let layout = classic(net.route(), &net.points);
    let said = layout.notes.iter().any(|n| n.contains("host/vm-read@vnet1") && n.contains("host/app-read@tcpdump"));
    assert!(said, "{:?}", layout.notes);
}

/// A sender in its own namespace that reads its transmit timestamps, and the receiver.
fn with_timestamps(elsewhere: &[(&str, Link, u32)]) -> Network {
    let points = [
        ("host/tx@pa", Link::Veth, 2),
        ("host/app-read@ptp4l", Link::Socket, 2),
        ("host/nic-rx@hin", Link::Veth, HUB),
        ("host/tx@hout", Link::Veth, HUB),
    ];
    Network::new(&[&points, elsewhere].concat())
}

const SENT: [(&str, Ns); 3] = [("host/tx@pa", 0), ("host/nic-rx@hin", 5), ("host/tx@hout", 10)];

#[test]
fn a_sender_that_reads_its_timestamps_is_not_the_end_of_the_route() {
    let app = [("host/nic-rx@eth0", Link::Veth, 3), ("host/app-read@relay", Link::Socket, 3)];
    let arrives = [("host/nic-rx@eth0", 15), ("host/app-read@relay", 40)];
    // The sender reads its timestamps before or after the receiver's read, and also of packets that the receiver
    // misses.
    for read in [2, 60] {
        let mut n = with_timestamps(&app);
        n.packets(100, &[&SENT[..], &arrives, &[("host/app-read@ptp4l", read)]].concat());
        n.packets(20, &[&SENT[..1], &[("host/app-read@ptp4l", read)]].concat());
        assert_eq!(n.route_names(), names(&[&SENT[..], &arrives].concat()), "{read}");
        let notes = classic(n.route(), &n.points).notes.join("\n");
        assert!(notes.contains("host/app-read@ptp4l is a reader on the sender's side"), "{notes}");
        assert!(!notes.contains("also read"), "{notes}");
    }
    // Without a visible receiver, the route ends at its device.
    let mut n = with_timestamps(&app[..1]);
    n.packets(100, &[&SENT[..], &arrives[..1], &[("host/app-read@ptp4l", 60)]].concat());
    assert_eq!(n.route_names(), names(&[&SENT[..], &arrives[..1]].concat()));
}

#[test]
fn a_sender_on_another_machine_that_reads_its_timestamps_is_upstream() {
    let mut n = Network::new(&[
        ("mu/app-read@ptp4l", Link::Socket, 1),
        ("mu/tx@eth0", Link::Nic, 1),
        ("host/nic-rx@eno1", Link::Nic, HUB),
        ("host/app-read@relay", Link::Socket, HUB),
    ]);
    let route = [("mu/tx@eth0", 0), ("host/nic-rx@eno1", 5), ("host/app-read@relay", 9)];
    n.packets(100, &[&route[..], &[("mu/app-read@ptp4l", 50)]].concat());
    assert_eq!(n.route_names(), names(&route));
}

#[test]
fn of_two_readers_the_one_that_did_not_send_is_the_end() {
    // The bridge floods back into the sender's namespace, through another device.
    let back = [
        ("host/nic-rx@back", Link::Veth, 2),
        ("host/nic-rx@eth0", Link::Veth, 3),
        ("host/app-read@relay", Link::Socket, 3),
    ];
    let mut n = with_timestamps(&back);
    const THREAD: u32 = 7;
    let seen = [
        &SENT[..],
        &[("host/nic-rx@back", 12), ("host/nic-rx@eth0", 15), ("host/app-read@relay", 40), ("host/app-read@ptp4l", 60)],
    ]
    .concat();
    n.tid = |name| if name.ends_with("relay") { 8 } else { THREAD };
    n.packets(100, &seen);
    assert_eq!(n.route_names().last().unwrap(), "host/app-read@relay");
    // A tester that sends and receives in one thread ends the route if there is no other reader.
    let mut n = with_timestamps(&back[..1]);
    n.tid = |_| THREAD;
    n.packets(100, &[&SENT[..], &[("host/nic-rx@back", 12), ("host/app-read@ptp4l", 60)]].concat());
    assert_eq!(n.route_names().last().unwrap(), "host/app-read@ptp4l");
}

#[test]
fn a_recorded_route_that_ends_at_its_sender_is_recognised() {
    let mut n = with_timestamps(&[]);
    n.packets(100, &SENT);
    let recorded = |route: &[&str]| {
        let names: Vec<Point> = route.iter().map(|p| p.parse().unwrap()).collect();
        Route::from_points(&names, &[], &n.points).ends_at_sender(&n.points)
    };
    assert!(recorded(&["host/tx@pa", "host/nic-rx@hin", "host/tx@hout", "host/app-read@ptp4l"]));
    assert!(!recorded(&["host/tx@pa", "host/nic-rx@hin", "host/tx@hout"]));
}

/// A generated network, with the sightings of its packets and their true route.
struct Topology {
    points: Vec<PointInfo>,
    /// In order of time.
    seen: Vec<(usize, Ns)>,
    truth: Vec<usize>,
    t: Ns,
    next_ifindex: u32,
}

impl Topology {
    /// Adds a point that sees each packet at this time.
    fn point(&mut self, name: &str, link: Link, netns: u32, (ifindex, peer): (u32, u32), t: Ns) -> usize {
        let clock = String::new();
        self.points.push(PointInfo {
            point: name.parse().unwrap(),
            link,
            netns,
            ifindex,
            peer,
            peer_netns: 0,
            error_bound_ns: 0,
            clock,
        });
        self.seen.push((self.points.len() - 1, t));
        self.points.len() - 1
    }

    /// Adds a point that is next on the route.
    fn on(&mut self, name: &str, link: Link, netns: u32, ends: (u32, u32)) {
        self.t += 4_000;
        let point = self.point(name, link, netns, ends, self.t);
        self.truth.push(point);
    }

    /// Adds a point off the route that sees a copy some time later.
    fn off(&mut self, chance: &mut Noise, name: &str, link: Link, netns: u32, ends: (u32, u32)) {
        let t = self.t + 2_500 + Ns::from(chance.below(9_000));
        self.point(name, link, netns, ends, t);
    }

    fn ifindexes(&mut self) -> (u32, u32) {
        self.next_ifindex += 2;
        (self.next_ifindex, self.next_ifindex + 1)
    }

    fn new(chance: &mut Noise) -> Self {
        let mut net = Self { points: Vec::new(), seen: Vec::new(), truth: Vec::new(), t: 100_000, next_ifindex: 2 };
        // Packets enter through a NIC, or from a publisher's namespace on this machine.
        if chance.one_in(2) {
            let (near, far) = net.ifindexes();
            net.on("host/tx@pub0", Link::Veth, SENDER, (near, far));
            net.on("host/nic-rx@nic0", Link::Veth, HUB, (far, near));
        } else {
            net.on("host/nic-rx@eno1", Link::Nic, HUB, (2, 0));
        }
        // A device on top of the NIC (macvlan) forwards the frame.
        if chance.one_in(6) {
            net.on("host/nic-rx@mv0", Link::Nic, HUB, (90, 0));
        }
        net.around(chance, true);
        match chance.below(4) {
            0 => net.guest(chance, true),
            1 => net.guest(chance, false),
            2 => net.container(chance),
            _ => net.on_the_bridge(),
        }
        net.around(chance, false);
        net.senders_side(chance);
        net
    }

    /// Adds the sender's reader of its transmit timestamps, if the sender is on this machine, and a capture of its
    /// packets, or a copy of its packets that is flooded back to it; each by chance.
    fn senders_side(&mut self, chance: &mut Noise) {
        if self.points[0].netns != SENDER {
            return;
        }
        let begin = std::mem::replace(&mut self.t, 110_000 + Ns::from(chance.below(3)) * 30_000);
        if chance.one_in(4) {
            let (near, far) = self.ifindexes();
            self.off(chance, "host/tx@z0", Link::Veth, HUB, (near, far));
            self.off(chance, "host/nic-rx@z1", Link::Veth, SENDER, (far, near));
            self.t += 20_000;
        } else if chance.one_in(3) {
            self.off(chance, "host/app-read@tcpdump", Link::Socket, SENDER, (0, 0));
        }
        if chance.one_in(2) {
            self.off(chance, "host/app-read@ptp4l", Link::Socket, SENDER, (0, 0));
            self.t = begin;
        }
    }

    /// The thread at a point: softirqs run in the sender's thread, readers in their own.
    fn tid(&self, point: usize) -> u32 {
        let info = &self.points[point].point;
        let is_reader = info.kind.is_application() && info.device != "ptp4l";
        if is_reader || info.machine != "host" {
            1000 + point as u32
        } else {
            500
        }
    }

    /// Adds other ports of the bridge, with and without readers, and its local copy.
    fn around(&mut self, chance: &mut Noise, before: bool) {
        let side = if before { "a" } else { "b" };
        for n in 0..chance.below(3) {
            let name = format!("{side}{n}");
            match chance.below(5) {
                0 => self.off(chance, &format!("host/tx@vnet{name}"), Link::Tap, HUB, (50 + n, 0)),
                1 => self.off(chance, &format!("host/tx@eno9{name}"), Link::Nic, HUB, (60 + n, 0)),
                2 => {
                    let (near, far) = self.ifindexes();
                    self.off(chance, &format!("host/tx@x{name}"), Link::Veth, HUB, (near, far));
                    self.off(chance, &format!("host/nic-rx@y{name}"), Link::Veth, 70 + near, (far, near));
                }
                3 => {
                    // Another VM receives the packet.
                    self.off(chance, &format!("host/tx@vm{name}"), Link::Tap, HUB, (50 + n, 0));
                    self.t += 9_000;
                    self.off(chance, &format!("host/vm-read@vm{name}"), Link::Tap, HUB, (50 + n, 0));
                    self.t -= 9_000;
                }
                _ => {
                    // A container's application also reads the packet.
                    let (near, far) = self.ifindexes();
                    self.off(chance, &format!("host/tx@r{name}"), Link::Veth, HUB, (near, far));
                    self.off(chance, &format!("host/nic-rx@s{name}"), Link::Veth, 80 + near, (far, near));
                    self.t += 9_000;
                    self.off(chance, &format!("host/app-read@dump{name}"), Link::Socket, 80 + near, (0, 0));
                    self.t -= 9_000;
                }
            }
        }
        if !before && chance.one_in(2) && !self.points.iter().any(|p| p.point.device == "br0") {
            self.off(chance, "host/nic-rx@br0", Link::Bridge, HUB, (1, 0));
        }
        // The second network of a pair: the same frame through another NIC, slightly later.
        if before && chance.one_in(4) {
            self.off(chance, "host/nic-rx@eno2", Link::Nic, HUB, (3, 0));
        }
        // A second sender in a VM, whose packets have the same numbers some time after the first one's.
        if before && chance.one_in(8) {
            let begin = self.t;
            self.t += Ns::from(chance.below(400)) * 1_000_000;
            self.off(chance, "host/vm-write@vnet8", Link::Tap, HUB, (48, 0));
            self.t = begin;
        }
    }

    fn guest(&mut self, chance: &mut Noise, has_agent: bool) {
        self.on("host/tx@vnet7", Link::Tap, HUB, (40, 0));
        self.t += 20_000;
        self.on("host/vm-read@vnet7", Link::Tap, HUB, (40, 0));
        if has_agent {
            // The guest's clock error may exceed the packet's delay.
            self.t += Ns::from(chance.below(60_000)) - 30_000;
            self.on("guest0/nic-rx@eth0", Link::Nic, 9, (2, 0));
            self.on("guest0/app-read@relay", Link::Socket, 9, (0, 0));
        }
    }

    fn container(&mut self, chance: &mut Noise) {
        let mut netns = HUB;
        for hop in 0..=chance.below(3) {
            let (near, far) = self.ifindexes();
            self.on(&format!("host/tx@h{hop}"), Link::Veth, netns, (near, far));
            netns = 20 + hop;
            self.on(&format!("host/nic-rx@c{hop}"), Link::Veth, netns, (far, near));
        }
        self.t += 9_000;
        self.on("host/app-read@relay", Link::Socket, netns, (0, 0));
    }

    fn on_the_bridge(&mut self) {
        self.on("host/nic-rx@br0", Link::Bridge, HUB, (1, 0));
        self.t += 9_000;
        self.on("host/app-read@relay", Link::Socket, HUB, (0, 0));
    }

    /// The layout derived from its packets.
    fn layout(&self, chance: &mut Noise) -> latpath_journey::Layout {
        let mut finder = RouteFinder::default();
        for key in 0..200 {
            let mut t = vec![0; self.points.len()];
            let mut seen = 0;
            let lost = (chance.one_in(20)).then(|| chance.below(self.points.len() as u32) as usize);
            for (point, at) in &self.seen {
                if lost != Some(*point) {
                    t[*point] = at + Ns::from(chance.below(2_000));
                    seen |= 1 << point;
                }
            }
            let tid: Vec<u32> = (0..self.points.len()).map(|point| self.tid(point)).collect();
            finder.observe(&Journey { key, number: key.into(), seen, t: &t, tid: &tid, ..Journey::default() });
        }
        classic(finder.route(&self.points), &self.points)
    }
}

#[test]
fn packets_from_two_networks_are_reported_as_copies() {
    let said = |second: (&str, Link, u32)| {
        let mut n = Network::new(&[
            ("host/nic-rx@eno1", Link::Nic, HUB),
            second,
            ("host/tx@vnet0", Link::Tap, HUB),
            ("host/vm-read@vnet0", Link::Tap, HUB),
        ]);
        n.packets(100, &[("host/nic-rx@eno1", 0), (second.0, 5), ("host/tx@vnet0", 10), ("host/vm-read@vnet0", 30)]);
        let notes = classic(n.route(), &n.points).notes;
        notes.into_iter().find(|note| note.contains("PRP"))
    };
    let note = said(("host/nic-rx@eno2", Link::Nic, HUB)).unwrap();
    assert!(note.starts_with("packets come in at host/nic-rx@eno1 and at host/nic-rx@eno2:"), "{note}");
    assert!(note.contains("--points"), "{note}");
    for one in [
        ("host/nic-rx@br0", Link::Bridge, HUB),
        ("host/nic-rx@c0", Link::Veth, 20),
        ("guest0/nic-rx@eth0", Link::Nic, HUB),
        ("host/xdp-redirect@eno1", Link::Nic, HUB),
    ] {
        assert_eq!(said(one), None, "{one:?}");
    }
    let macvtap = ["host/nic-rx@eno1", "host/nic-rx@mv0", "host/vm-read@mv0"];
    let mut n =
        Network::new(&[(macvtap[0], Link::Nic, HUB), (macvtap[1], Link::Tap, HUB), (macvtap[2], Link::Tap, HUB)]);
    n.packets(100, &[(macvtap[0], 0), (macvtap[1], 5), (macvtap[2], 30)]);
    let notes = classic(n.route(), &n.points).notes;
    assert!(!notes.iter().any(|note| note.contains("PRP")), "{notes:?}");
}

#[test]
fn two_sending_vms_are_reported_and_one_begins_the_route() {
    let mut n = Network::new(&[
        ("host/vm-write@vnet1", Link::Tap, HUB),
        ("host/vm-write@vnet2", Link::Tap, HUB),
        ("host/tx@vnet3", Link::Tap, HUB),
        ("host/vm-read@vnet3", Link::Tap, HUB),
    ]);
    let links = [(1, 0), (2, 0), (3, 0), (3, 0)];
    for (point, (ifindex, _)) in n.points.iter_mut().zip(links) {
        point.ifindex = ifindex;
    }
    let seen = [("host/vm-write@vnet1", 0), ("host/tx@vnet3", 10), ("host/vm-read@vnet3", 30)];
    n.packets(100, &[&seen[..], &[("host/vm-write@vnet2", 70_000)]].concat());
    assert_eq!(n.route_names(), names(&seen));
    let notes = classic(n.route(), &n.points).notes.join("\n");
    assert!(
        notes.contains("packets come in at host/vm-write@vnet1 and at host/vm-write@vnet2: from two senders"),
        "{notes}"
    );
}

#[test]
fn routes_of_generated_networks_are_right_or_reported_as_ambiguous() {
    let (mut right, mut said, mut wrong) = (0, 0, Vec::new());
    for seed in 1..=500 {
        let mut chance = Noise(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
        let net = Topology::new(&mut chance);
        let layout = net.layout(&mut chance);
        let names = |ids: &mut dyn Iterator<Item = usize>| -> Vec<String> {
            ids.map(|id| net.points[id].point.to_string()).collect()
        };
        let found = names(&mut layout.route.points.iter().map(|id| usize::from(*id)));
        let truth = names(&mut net.truth.iter().copied());
        if found == truth {
            right += 1;
        } else if layout.notes.iter().any(|note| note.contains("--points")) {
            said += 1;
        } else {
            wrong.push(format!("{seed}: {found:?}\n  is not {truth:?}\n  {:?}", layout.notes));
        }
    }
    eprintln!("{right} right, {said} said to be ambiguous");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(right >= 200, "{right} right, {said} said");
}

/// A relay in a namespace behind a bridge: its samples come in at the host's NIC, and its trips leave there.
#[test]
fn a_reaction_leads_from_the_nic_to_the_application_and_back() {
    let mut n = Network::new(&[
        ("host/tx@pub", Link::Veth, 1),
        ("host/nic-rx@nic0", Link::Veth, 2),
        ("host/tx@out", Link::Veth, 2),
        ("host/nic-rx@app", Link::Veth, 3),
        ("host/app-read@relay", Link::Socket, 3),
        ("host/tx@app", Link::Veth, 3),
        ("host/nic-rx@out", Link::Veth, 2),
        ("host/tx@nic0", Link::Veth, 2),
        ("host/nic-rx@pub", Link::Veth, 1),
        ("host/app-read@breaker", Link::Socket, 1),
    ]);
    // Each point's interface index, and its peer's index and namespace.
    let links =
        [(1, 2, 2), (2, 1, 1), (3, 4, 3), (4, 3, 2), (0, 0, 0), (4, 3, 2), (3, 4, 3), (2, 1, 1), (1, 2, 2), (0, 0, 0)];
    for (point, (ifindex, peer, peer_netns)) in n.points.iter_mut().zip(links) {
        (point.ifindex, point.peer, point.peer_netns) = (ifindex, peer, peer_netns);
    }
    let names: Vec<String> = n.points.iter().map(|p| p.point.to_string()).collect();
    let passes = |points: std::ops::Range<usize>| -> Vec<(&str, Ns)> {
        names[points].iter().map(String::as_str).zip((0..).step_by(5)).collect()
    };
    let (inward, outward) = (passes(0..5), passes(5..10));
    n.packets_of(0, 100, &inward);
    let stream = |text: &str| text.parse::<StreamSpec>().unwrap();
    let rule = "svid:MU01[Ia] > 1000A -> goose:TRIP,late=4ms".parse().unwrap();
    let streams = [stream("svid:MU01"), stream("goose:TRIP"), StreamSpec::of_reactions(rule)];
    let route = n.route().with_reactions(&streams, &n.points);
    assert_eq!((route.of_stream(2), route.reactions[0].ends), (&[][..], None), "no trip yet");
    assert!(classic(route, &n.points).notes.iter().any(|note| note.starts_with("Treact: no packet")));

    n.packets_of(1, 100, &outward);
    let route = n.route().with_reactions(&streams, &n.points);
    assert_eq!(route.of_stream(2), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((route.distinct().len(), route.reactions[0].late), (2, Some(4_000_000)));
    let layout = classic(route.clone(), &n.points);
    let of_reactions = layout.segments.iter().filter(|s| s.kind.is_of_reactions());
    let ends: Vec<_> = of_reactions.map(|s| (s.name.as_str(), s.from, s.to)).collect();
    assert_eq!(ends, [("Treact", 1, 7), ("Tin", 1, 4), ("Tapp", 4, 5), ("Tout", 5, 7)]);
    let totals: Vec<_> = layout.segments.iter().filter(|s| s.name == "total").map(|s| (s.from, s.to)).collect();
    assert_eq!(totals, [(0, 4), (5, 9)], "those of packets alone");
    // The names as stored in a manifest.
    let names = |route: &[u16]| route.iter().map(|p| n.points[usize::from(*p)].point.clone()).collect::<Vec<Point>>();
    let by_stream: Vec<Vec<Point>> = route.by_stream.iter().map(|route| names(route)).collect();
    let read = Route::from_points(&names(&route.points), &by_stream, &n.points).with_reactions(&streams, &n.points);
    assert_eq!((read.by_stream, read.reactions), (route.by_stream, route.reactions));
}

/// Two VMs with doors; packets are flooded to both.
fn with_doors() -> Network {
    let mut n = hypervisor();
    let doors = ["vnet0", "vnet1"]
        .map(|tap| ["door-enter", "door-signal"].map(|kind| (format!("host/{kind}@{tap}"), Link::Tap, HUB)));
    let doors: Vec<_> = doors.iter().flatten().map(|(name, link, netns)| (name.as_str(), *link, *netns)).collect();
    n.points.extend(Network::new(&doors).points);
    n
}

const DOOR: [(&str, Ns); 2] = [("host/door-signal@vnet0", 32), ("host/door-enter@vnet0", 40)];

#[test]
fn without_an_agent_the_route_ends_where_the_vcpu_enters_the_guest() {
    let mut n = with_doors();
    let route = [ROUTE[1], ROUTE[2], ROUTE[3], DOOR[1]];
    n.packets(100, &[&route[..], &DOOR[..1]].concat());
    // The guest polls: the vCPU was in the guest when the packet was read.
    n.packets(50, &[&route[..3], &[("host/door-enter@vnet0", 30)]].concat());
    n.packets(5, &route[..3]);
    assert_eq!(n.route_names(), names(&route));
    let layout = classic(n.route(), &n.points);
    let notes = layout.notes.join("\n");
    assert!(notes.contains("Thyp ends at host/door-enter@vnet0: no agent runs in the guest"), "{notes}");
    let segments = n.segments();
    for segment in [
        "Thyp: host/nic-rx@nic0 host/door-enter@vnet0",
        "host/vm-read@vnet0→host/door-enter@vnet0: host/vm-read@vnet0 host/door-enter@vnet0",
        "host/vm-read@vnet0→host/door-signal@vnet0: host/vm-read@vnet0 host/door-signal@vnet0",
        "host/door-signal@vnet0→host/door-enter@vnet0: host/door-signal@vnet0 host/door-enter@vnet0",
    ] {
        assert!(segments.iter().any(|own| own.trim_start_matches("total: ") == segment), "{segment}: {segments:#?}");
    }
    let end = latpath_journey::arrival(&n.route().points, &n.points).unwrap();
    assert_eq!(n.points[usize::from(end)].point.to_string(), "host/vm-read@vnet0", "packets have arrived there");
}

#[test]
fn a_door_that_few_packets_are_seen_at_is_off_the_route() {
    let mut n = with_doors();
    n.packets(100, &ROUTE[1..4]);
    n.packets(30, &[&ROUTE[1..4], &DOOR].concat());
    assert_eq!(n.route_names(), names(&ROUTE[1..4]));
}

#[test]
fn with_an_agent_the_route_passes_the_door_of_the_guests_own_tap() {
    let mut n = with_doors();
    let copies = [
        ("host/tx@vnet1", 12),
        ("host/vm-read@vnet1", 20),
        ("host/door-signal@vnet1", 21),
        ("host/door-enter@vnet1", 22),
    ];
    n.packets(100, &[&ROUTE[..], &DOOR, &copies].concat());
    let route = [&ROUTE[..4], &DOOR[1..], &ROUTE[4..]].concat();
    assert_eq!(n.route_names(), names(&route));
    let end = latpath_journey::arrival(&n.route().points, &n.points).unwrap();
    assert_eq!(n.points[usize::from(end)].point.to_string(), "guest0/app-read@relay");
}

/// A packet from a VM on the host to one on `b`, whose devices have the same names; both bridges flood it to a second
/// VM. The clock of b is behind, so that the packet seems to arrive before the host has sent it.
#[test]
fn between_two_hypervisors_the_route_leaves_the_first_by_its_nic() {
    use Link::{Nic, Tap};
    let b = HUB + 1;
    let route = [
        ("guest0/tx@eth0", 0),
        ("host/vm-write@vnet0", 10),
        ("host/tx@nic0", 20),
        ("b/nic-rx@nic0", 15),
        ("b/tx@vnet0", 25),
        ("b/vm-read@vnet0", 30),
        ("guest1/nic-rx@eth0", 40),
        ("guest1/app-read@relay", 50),
    ];
    let copies = [("host/tx@vnet1", 12), ("host/vm-read@vnet1", 22), ("b/tx@vnet1", 24), ("b/vm-read@vnet1", 28)];
    let links = [Nic, Tap, Nic, Nic, Tap, Tap, Nic, Link::Socket, Tap, Tap, Tap, Tap];
    let spaces = [1, HUB, HUB, b, b, b, 2, 2, HUB, HUB, b, b];
    let all: Vec<_> = route.iter().chain(&copies).copied().collect();
    let points: Vec<_> =
        all.iter().zip(links).zip(spaces).map(|(((name, _), link), netns)| (*name, link, netns)).collect();
    let mut n = Network::new(&points);
    n.packets(100, &all);
    assert_eq!(n.route_names(), names(&route));
}
