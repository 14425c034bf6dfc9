//! For any events and sightings, the intervals cover the time between two sightings exactly, and their number is
//! limited.

mod stage;

use latpath_capture::Packet;
use latpath_cause::{Analyst, Cause};
use latpath_flight::*;
use latpath_model::{Ns, PacketSighting};
use latpath_vms::Role;
use proptest::prelude::*;
use stage::{vm, Stage};

const POINTS: [&str; 14] = [
    "host/nic-rx@eth0",
    "host/tx@veth0",
    "host/nic-rx@veth1",
    "host/ovs-upcall@veth1",
    "host/tx@tap0",
    "host/vm-read@tap0",
    "host/vm-write@tap0",
    "guest0/nic-rx@eth0",
    "guest0/app-read@app",
    "guest0/tx@eth0",
    "b/nic-rx@eth0",
    "b/vm-read@tap0",
    "relay/nic-rx@eth0",
    "relay/app-read@app",
];

fn any_class() -> impl Strategy<Value = Class> {
    (-1i16..140, 0u8..8).prop_map(|(prio, policy)| Class { prio, policy })
}

fn any_left() -> impl Strategy<Value = Left> {
    use Sleep::*;
    prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(preempted, throttled)| Left::Ready { preempted, throttled }),
        prop::sample::select(vec![Interruptible, Blocked, Idle, Stopped, Traced, Parked, Frozen, Ended, Unknown])
            .prop_map(Left::Asleep),
    ]
}

fn any_vector() -> impl Strategy<Value = Vector> {
    prop::sample::select(vec![Vector::LocalTimer, Vector::Reschedule, Vector::CallFunctionSingle, Vector::Other(7)])
}

fn any_what() -> impl Strategy<Value = EventKind> {
    let pid = || 0u32..8;
    prop_oneof![
        4 => (pid(), any_left(), any_class(), any_class())
            .prop_map(|(next, left, prev, next_class)| EventKind::Switch { next, left, prev, next_class }),
        3 => (pid(), 0u32..3, any_class()).prop_map(|(pid, cpu, class)| EventKind::Waking { pid, cpu, class }),
        3 => (pid(), 0u32..3, any_class(), any::<bool>())
            .prop_map(|(pid, cpu, class, throttled)| EventKind::Wakeup { pid, cpu, class, throttled }),
        1 => (pid(), 0u32..3, 0u32..3).prop_map(|(pid, from, to)| EventKind::Migrate { pid, from, to }),
        1 => (0u32..3).prop_map(EventKind::IrqEntry),
        1 => (0u32..3).prop_map(EventKind::IrqExit),
        2 => (0u32..10).prop_map(EventKind::SoftirqRaise),
        2 => (0u32..10).prop_map(EventKind::SoftirqEntry),
        2 => (0u32..10).prop_map(EventKind::SoftirqExit),
        1 => any_vector().prop_map(EventKind::VectorEntry),
        1 => any_vector().prop_map(EventKind::VectorExit),
        1 => (-10i64..500).prop_map(|took| EventKind::Nmi { took }),
        1 => (0u32..70).prop_map(|work| EventKind::NapiWork { work, budget: 64, ifindex: 1 }),
        1 => prop::option::of(0u32..4).prop_map(EventKind::Idle),
        1 => any::<u64>().prop_map(EventKind::TimerEntry),
        1 => Just(EventKind::TimerExit),
        1 => any::<u64>().prop_map(EventKind::HrtimerEntry),
        1 => Just(EventKind::HrtimerExit),
        2 => prop::option::of(0u32..2).prop_map(|vcpu| EventKind::KvmEntry { vcpu }),
        2 => (prop::option::of(0u32..2), prop::option::of(0u32..60), 0u32..4)
            .prop_map(|(vcpu, reason, isa)| EventKind::KvmExit { vcpu, reason, isa }),
        1 => (0u32..255).prop_map(EventKind::KvmInjVirq),
        1 => any::<u64>().prop_map(EventKind::WorkStart),
        1 => Just(EventKind::WorkEnd),
        1 => any::<u16>().prop_map(EventKind::Other),
    ]
}

/// Events, most of which belong to the thread that the previous switch started; otherwise, hardly anything would be
/// known about any thread.
fn any_events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec((0i64..400, prop::option::weighted(0.05, 0u32..8), any_what()), 0..80).prop_map(|rows| {
        let (mut t, mut runs) = (0, 1);
        let mut events = Vec::new();
        for (after, other, what) in rows {
            t += after;
            let pid = other.unwrap_or(runs);
            if let EventKind::Switch { next, .. } = what {
                runs = next;
            }
            events.push(Event { t, pid, what });
        }
        events
    })
}

fn any_records() -> impl Strategy<Value = Vec<CpuRecord>> {
    let since = prop_oneof![4 => Just(0), 1 => 0i64..10_000, 1 => Just(Ns::MAX)];
    let record = (any_events(), since, 0u64..3, 0u64..2);
    prop::collection::vec(record, 0..4).prop_map(|records| {
        let record =
            |(cpu, (events, since, overwritten, unfinished))| CpuRecord { cpu, events, since, overwritten, unfinished };
        (0..).zip(records).map(record).collect()
    })
}

fn any_seen() -> impl Strategy<Value = PacketSighting> {
    let (cpu, tid) = (prop::option::weighted(0.9, 0u16..5), prop::option::weighted(0.9, 0u32..9));
    (0u16..15, -100i64..12_000, cpu, tid).prop_map(|(point, t, cpu, tid)| PacketSighting { point, t, cpu, tid })
}

/// A capture with these records and sightings. Machine b, a hypervisor, has the same thread IDs as the host.
fn stage(
    [host, b]: [Vec<CpuRecord>; 2],
    guests: [Option<Vec<CpuRecord>>; 2],
    offset: Ns,
    packets: Vec<Vec<PacketSighting>>,
) -> Stage {
    let mut stage = Stage::new(&[(2, "ksoftirqd/0"), (3, "CPU 0/KVM"), (5, "handler1")]);
    stage.snapshot().window.cpus = host;
    let guest = |stage: &mut Stage, name: &str, cpus: Option<Vec<CpuRecord>>| {
        stage.machine(name, offset, &[(2, "app")]);
        let machine = stage.capture.machines.last_mut().unwrap();
        machine.error_bound_ns = offset.rem_euclid(100);
        match cpus {
            Some(cpus) => stage.snapshot().window.cpus = cpus,
            None => machine.record = Err("no agent".into()),
        }
    };
    let [guest0, relay] = guests;
    guest(&mut stage, "guest0", guest0);
    stage.machine("b", offset.saturating_add(7), &[(3, "CPU 0/KVM")]);
    stage.snapshot().window.cpus = b;
    guest(&mut stage, "relay", relay);
    let threads = [(4, Role::MainLoop, None), (3, Role::Vcpu, Some(0)), (6, Role::Vcpu, None)];
    stage.vms.push(vm("relay1", "tap0", &threads));
    stage.vms_of_b.push(vm("relay2", "tap0", &threads));
    // Adds the points, which a stage only has once they are used, and removes the packet again.
    stage.packet(&POINTS.map(|point| (point, 0, 0, 0)));
    stage.capture.packets.clear();
    for (number, sightings) in packets.into_iter().enumerate() {
        let number = number as u64;
        stage.capture.packets.push(Packet { stream: 0, key: 0, number, late: true, sightings });
    }
    stage
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn pieces_tile_the_time_exactly(
        hosts in [any_records(), any_records()],
        guests in [(); 2].map(|()| prop::option::weighted(0.8, any_records())),
        offset in prop_oneof![Just(0i64), -5_000i64..5_000, Just(Ns::MIN), Just(Ns::MAX)],
        packets in prop::collection::vec(prop::collection::vec(any_seen(), 0..8), 1..6),
    ) {
        let stage = stage(hosts, guests, offset, packets);
        let context = stage.context();
        let analyst = Analyst::new(&stage.capture, &context);
        for packet in &stage.capture.packets {
            for (a, b) in packet.sightings.iter().flat_map(|a| packet.sightings.iter().map(move |b| (a, b))) {
                let intervals = analyst.explain(packet, a, b);
                prop_assert!(intervals.len() < 5_000);
                if b.t <= a.t {
                    prop_assert!(intervals.is_empty());
                    continue;
                }
                let mut cursor = a.t;
                for interval in &intervals {
                    prop_assert_eq!(interval.from, cursor, "{:#?}", intervals);
                    prop_assert!(interval.to > interval.from && interval.machine < stage.capture.machines.len());
                    if interval.cause == Cause::Unexplained {
                        prop_assert!(interval.note().is_some_and(|note| !note.is_empty()), "{:?}", interval);
                    }
                    cursor = interval.to;
                }
                prop_assert_eq!(cursor, b.t);
            }
        }
    }
}
