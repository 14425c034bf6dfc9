//! Any capture yields a valid trace.

mod captures;

use captures::{context, export, read, thread};
use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet};
use latpath_flight::{Class, CpuRecord, Event, EventKind, Left, Sleep, Snapshot, Vector, Window};
use latpath_model::{Ns, PacketSighting};
use latpath_perfetto::proto::{Data, Ftrace};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

/// Mostly times close to each other, and some impossible times.
fn time() -> impl Strategy<Value = Ns> {
    prop_oneof![20 => 1_000_000..1_050_000_i64, 1 => any::<i64>()]
}

fn pid() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 0..6_u32, 1 => any::<u32>()]
}

fn class() -> impl Strategy<Value = Class> {
    (any::<i16>(), 0..8_u8).prop_map(|(prio, policy)| Class { prio, policy })
}

fn left() -> impl Strategy<Value = Left> {
    prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(preempted, throttled)| Left::Ready { preempted, throttled }),
        Just(Left::Asleep(Sleep::Interruptible)),
        Just(Left::Asleep(Sleep::Unknown)),
    ]
}

fn what() -> impl Strategy<Value = EventKind> {
    let vector =
        || prop_oneof![Just(Vector::LocalTimer), Just(Vector::Reschedule), any::<u32>().prop_map(Vector::Other)];
    prop_oneof![
        6 => (pid(), left(), class(), class()).prop_map(|(next, left, prev, next_class)| EventKind::Switch { next, left, prev, next_class }),
        2 => (pid(), any::<u32>(), class()).prop_map(|(pid, cpu, class)| EventKind::Waking { pid, cpu, class }),
        1 => (pid(), 0..4_u32, class()).prop_map(|(pid, cpu, class)| EventKind::Wakeup { pid, cpu, class, throttled: false }),
        1 => (pid(), any::<u32>(), any::<u32>()).prop_map(|(pid, from, to)| EventKind::Migrate { pid, from, to }),
        2 => (0..3_u32).prop_map(EventKind::IrqEntry),
        2 => (0..3_u32).prop_map(EventKind::IrqExit),
        2 => (0..12_u32).prop_map(EventKind::SoftirqEntry),
        2 => (0..12_u32).prop_map(EventKind::SoftirqExit),
        1 => vector().prop_map(EventKind::VectorEntry),
        1 => vector().prop_map(EventKind::VectorExit),
        1 => any::<i64>().prop_map(|took| EventKind::Nmi { took }),
        1 => any::<[u8; 16]>().prop_map(|name| EventKind::NapiPoll { name }),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(work, budget)| EventKind::NapiWork { work, budget, ifindex: 1 }),
        1 => any::<Option<u32>>().prop_map(EventKind::Idle),
        1 => any::<u64>().prop_map(EventKind::TimerEntry),
        1 => Just(EventKind::TimerExit),
        1 => any::<u64>().prop_map(EventKind::HrtimerEntry),
        1 => Just(EventKind::HrtimerExit),
        2 => any::<Option<u32>>().prop_map(|vcpu| EventKind::KvmEntry { vcpu }),
        2 => (any::<Option<u32>>(), 0..3_u32).prop_map(|(reason, isa)| EventKind::KvmExit { vcpu: None, reason, isa }),
        1 => any::<u32>().prop_map(|ns| EventKind::KvmHaltPoll { vcpu: 0, ns, before: 0 }),
        1 => any::<i64>().prop_map(|ns| EventKind::KvmVcpuWakeup { ns, waited: true, valid: true }),
        1 => any::<u64>().prop_map(EventKind::WorkStart),
        1 => Just(EventKind::WorkEnd),
        1 => any::<u16>().prop_map(EventKind::Other),
    ]
}

fn record() -> impl Strategy<Value = CpuRecord> {
    let events = vec((time(), pid(), what()).prop_map(|(t, pid, what)| Event { t, pid, what }), 0..40);
    let cpu = prop_oneof![20 => 0..3_u32, 1 => any::<u32>()];
    // The reader of captures sorts events, but a file may contain unsorted ones.
    (cpu, time(), events, any::<bool>(), 0..3_u64).prop_map(|(cpu, since, mut events, sorted, unfinished)| {
        if sorted {
            events.sort_by_key(|e| e.t);
        }
        CpuRecord { cpu, events, since, overwritten: 0, unfinished }
    })
}

fn machine(name: &'static str) -> impl Strategy<Value = MachineSnapshot> {
    let snapshot = (time(), time(), vec(record(), 0..4)).prop_map(|(from, to, cpus)| Snapshot {
        window: Window { from, to, cpus },
        threads: [(1, thread("a b", 1)), (2, thread("", 1)), (3, thread("c", u32::MAX))].into(),
        ..Snapshot::default()
    });
    let record = prop_oneof![9 => snapshot.prop_map(Ok), 1 => Just(Err("no answer".to_owned()))];
    let offset = prop_oneof![3 => Just(0), 3 => -1000..1000_i64, 1 => any::<i64>()];
    (record, offset).prop_map(move |(record, offset_ns)| MachineSnapshot {
        machine: name.into(),
        offset_ns,
        error_bound_ns: 1,
        record,
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let (cpu, tid) = (prop::option::of(any::<u16>()), prop::option::of(pid()));
    let seen = (0..8_u16, time(), cpu, tid).prop_map(|(point, t, cpu, tid)| PacketSighting { point, t, cpu, tid });
    (0..2_u16, any::<u32>(), any::<u64>(), any::<bool>(), vec(seen, 0..8)).prop_map(
        |(stream, key, number, late, mut sightings)| {
            sightings.sort_by_key(|seen| seen.t);
            Packet { stream, key, number, late, sightings }
        },
    )
}

fn capture() -> impl Strategy<Value = Capture> {
    let what = (any::<u32>(), any::<bool>(), time(), time(), any::<u64>());
    (what, machine("host"), machine("guest0"), vec(packet(), 0..5)).prop_map(|(what, host, guest, packets)| {
        let (number, spike, from, to, more_late) = what;
        let kind = if spike { CaptureKind::Spike } else { CaptureKind::Baseline };
        Capture { number, kind, from, to, machines: vec![host, guest], packets, more_late }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_captures_are_a_trace_that_perfetto_can_read(captures in vec(capture(), 1..4)) {
        let (trace, summary) = export(context(), &captures);
        prop_assert_eq!(summary.bytes, trace.len() as u64);
        let packets = read(&trace);
        let mut runs: HashMap<(u32, u32), i32> = HashMap::new();
        let mut times: HashMap<(u32, u32), u64> = HashMap::new();
        let mut described: Vec<u64> = Vec::new();
        let mut names: HashMap<u32, Vec<u64>> = HashMap::new();
        for packet in &packets {
            let machine = packet.machine_id.unwrap_or(0);
            prop_assert_eq!(packet.trusted_packet_sequence_id, Some(machine + 1));
            if let Some(interned) = &packet.interned_data {
                names.entry(machine).or_default().extend(interned.kernel_symbols.iter().filter_map(|s| s.iid));
            }
            match &packet.data {
                Some(Data::FtraceEvents(bundle)) => {
                    let cpu = (machine, bundle.cpu.unwrap());
                    prop_assert!(cpu.1 < 1024);
                    for event in &bundle.event {
                        let t = event.timestamp.unwrap();
                        prop_assert!(t <= Ns::MAX as u64);
                        let before = times.insert(cpu, t).unwrap_or(0);
                        prop_assert!(t >= before, "{:?}: {} after {}", cpu, t, before);
                        prop_assert!(event.pid.unwrap() <= i32::MAX as u32);
                        match event.event.as_ref().unwrap() {
                            Ftrace::SchedSwitch(switch) => {
                                let prev = runs.insert(cpu, switch.next_pid.unwrap());
                                prop_assert!(prev.is_none() || prev == switch.prev_pid);
                            }
                            Ftrace::SoftirqEntry(softirq) => prop_assert!(softirq.vec.unwrap() < 10),
                            Ftrace::WorkqueueExecuteStart(work) => {
                                prop_assert!(names[&machine].contains(&work.function.unwrap()));
                            }
                            _ => {}
                        }
                    }
                }
                Some(Data::TrackDescriptor(track)) => {
                    prop_assert!(track.parent_uuid.is_none_or(|parent| described.contains(&parent)));
                    prop_assert!(!described.contains(&track.uuid.unwrap()));
                    described.push(track.uuid.unwrap());
                }
                Some(Data::TrackEvent(event)) => {
                    prop_assert!(packet.timestamp.is_some());
                    prop_assert!(described.contains(&event.track_uuid.unwrap()));
                }
                _ => {}
            }
        }
    }
}
