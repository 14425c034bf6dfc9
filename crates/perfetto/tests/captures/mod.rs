//! A host with two CPUs, a guest with one, and a packet that QEMU's main loop reads 9 ms late because a hog had the
//! CPU.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet};
use latpath_cause::RunContext;
use latpath_clock::TimeOfDay;
use latpath_flight::{Class, CpuRecord, Event, EventKind, Left, Sleep, Snapshot, Thread, Vector, Window};
use latpath_journey::Segment;
use latpath_model::{Ns, PacketSighting, SegmentKind, StreamSpec};
use latpath_perfetto::{proto, Export, Summary};
use latpath_vms::{Accel, Role, Vm};
use prost::Message;

/// Start of the first capture, on the host's timeline, ns.
pub const T: Ns = 1_000_000_000_000;
/// The guest's clock minus the host's, ns.
pub const OFFSET: Ns = -900_000_000_000;
/// UTC at `T`, ns.
pub const UTC: Ns = 1_767_225_600_000_000_000;
const US: Ns = 1000;

pub const QEMU: u32 = 5600;
pub const VCPU: u32 = 5604;
pub const HOG: u32 = 7000;
pub const RELAY: u32 = 310;

pub const OTHER: Class = Class { prio: 120, policy: 0 };
pub const FIFO_80: Class = Class { prio: 19, policy: 1 };

pub fn event(t: Ns, pid: u32, what: EventKind) -> Event {
    Event { t, pid, what }
}

pub fn switch(t: Ns, prev: u32, left: Left, next: u32, next_class: Class) -> Event {
    event(t, prev, EventKind::Switch { next, left, prev: OTHER, next_class })
}

pub const SLEEPS: Left = Left::Asleep(Sleep::Interruptible);
pub const PREEMPTED: Left = Left::Ready { preempted: true, throttled: false };

pub fn thread(name: &str, tgid: u32) -> Thread {
    Thread { name: name.into(), tgid }
}

/// Names of the points; segments lie between them.
pub const POINTS: [&str; 6] = [
    "host/tx@lp-pub",
    "host/nic-rx@nic0",
    "host/tx@vnet0",
    "host/vm-read@vnet0",
    "guest0/nic-rx@eth0",
    "guest0/app-read@relay",
];

pub fn context() -> RunContext {
    let point = |name: &&str| latpath_testkit::point(name);
    let segment = |name: &str, from, to| Segment {
        kind: SegmentKind::classic(name).unwrap_or_default(),
        name: name.into(),
        from,
        to,
    };
    RunContext {
        points: POINTS.iter().map(point).collect(),
        streams: vec![StreamSpec::svid("MU01")],
        routes: vec![(0..6).collect()],
        segments: vec![
            segment("Tnet", 0, 1),
            segment("Thyp", 1, 4),
            segment("Tsub", 4, 5),
            segment("total", 0, 5),
            segment("own", 2, 5),
        ],
        vms: vec![vm()].into(),
        kernels: [("host", "6.12.9+deb13-rt-amd64"), ("guest0", "6.1.0-18-amd64")]
            .map(|(m, k)| (m.into(), k.into()))
            .into(),
        start_ns: T,
        time_of_day: TimeOfDay::new(T, UTC, &[]),
        ..RunContext::default()
    }
}

fn vm() -> Vm {
    let thread = |tid, role, vcpu, comm: &str| {
        let comm = comm.into();
        latpath_vms::Thread { tid, role, vcpu, comm, ..Default::default() }
    };
    Vm {
        name: "relay-a".into(),
        pid: QEMU,
        program: "qemu-system-x86_64".into(),
        accel: Accel::Kvm,
        vcpus: Some(1),
        threads: vec![
            thread(QEMU, Role::MainLoop, None, "qemu-system-x86"),
            thread(VCPU, Role::Vcpu, Some(0), "qemu-system-x86"),
        ],
        ..Vm::default()
    }
}

/// The host's events in the 20 ms from `t` on.
pub fn host(t: Ns) -> Snapshot {
    let idle = |state| EventKind::Idle(state);
    let first = vec![
        switch(t + 10 * US, 0, PREEMPTED, VCPU, OTHER),
        event(t + 20 * US, VCPU, EventKind::KvmEntry { vcpu: Some(0) }),
        event(t + 500 * US, VCPU, EventKind::KvmExit { vcpu: Some(0), reason: Some(0x78), isa: 2 }),
        event(t + 700 * US, VCPU, EventKind::KvmHaltPoll { vcpu: 0, ns: 150_000, before: 0 }),
        switch(t + 710 * US, VCPU, SLEEPS, 0, OTHER),
        event(t + 715 * US, 0, idle(Some(2))),
        // The frame arrives: interrupt, softirq, wakeup of QEMU on the other CPU.
        event(t + 1000 * US, 0, idle(None)),
        event(t + 1001 * US, 0, EventKind::IrqEntry(25)),
        event(t + 1002 * US, 0, EventKind::SoftirqRaise(3)),
        event(t + 1003 * US, 0, EventKind::IrqExit(25)),
        event(t + 1004 * US, 0, EventKind::SoftirqEntry(3)),
        event(t + 1009 * US, 0, EventKind::Waking { pid: QEMU, cpu: 1, class: OTHER }),
        event(t + 1010 * US, 0, EventKind::Wakeup { pid: QEMU, cpu: 1, class: OTHER, throttled: false }),
        event(t + 1012 * US, 0, EventKind::NapiPoll { name: *b"nic0\0\0\0\0\0\0\0\0\0\0\0\0" }),
        event(t + 1012 * US, 0, EventKind::NapiWork { work: 1, budget: 64, ifindex: 2 }),
        event(t + 1013 * US, 0, EventKind::SoftirqExit(3)),
        event(t + 1014 * US, 0, idle(Some(1))),
        event(t + 10_040 * US, 0, idle(None)),
        event(t + 10_041 * US, 0, EventKind::VectorEntry(Vector::Reschedule)),
        event(t + 10_042 * US, 0, EventKind::VectorExit(Vector::Reschedule)),
        switch(t + 10_045 * US, 0, PREEMPTED, VCPU, OTHER),
        event(t + 10_046 * US, VCPU, EventKind::KvmInjVirq(44)),
        event(t + 10_047 * US, VCPU, EventKind::KvmEntry { vcpu: Some(0) }),
        event(t + 19_000 * US, VCPU, EventKind::Nmi { took: 1500 }),
        event(t + 19_500 * US, VCPU, EventKind::KvmExit { vcpu: Some(0), reason: Some(0x60), isa: 2 }),
    ];
    let second = vec![
        event(t + 5 * US, HOG, EventKind::VectorEntry(Vector::LocalTimer)),
        event(t + 6 * US, HOG, EventKind::HrtimerEntry(0xffff_0010)),
        event(t + 7 * US, HOG, EventKind::HrtimerExit),
        event(t + 8 * US, HOG, EventKind::VectorExit(Vector::LocalTimer)),
        event(t + 8 * US, HOG, EventKind::SoftirqEntry(1)),
        event(t + 9 * US, HOG, EventKind::TimerEntry(0xffff_0020)),
        event(t + 11 * US, HOG, EventKind::TimerExit),
        event(t + 12 * US, HOG, EventKind::SoftirqExit(1)),
        switch(t + 10_000 * US, HOG, Left::Ready { preempted: false, throttled: false }, QEMU, OTHER),
        event(t + 10_030 * US, QEMU, EventKind::Waking { pid: VCPU, cpu: 0, class: OTHER }),
        event(t + 10_031 * US, QEMU, EventKind::Wakeup { pid: VCPU, cpu: 0, class: OTHER, throttled: false }),
        switch(t + 10_060 * US, QEMU, SLEEPS, 900, OTHER),
        event(t + 10_061 * US, 900, EventKind::WorkStart(0xffff_0030)),
        event(t + 10_070 * US, 900, EventKind::WorkEnd),
        event(t + 10_071 * US, 0, EventKind::IrqExit(99)),
        switch(t + 10_080 * US, 0, Left::Asleep(Sleep::Idle), HOG, FIFO_80),
    ];
    let record = |cpu, events: Vec<Event>| CpuRecord { cpu, since: t, overwritten: 0, unfinished: 0, events };
    Snapshot {
        window: Window { from: t, to: t + 20_000 * US, cpus: vec![record(0, first), record(1, second)] },
        threads: [
            (QEMU, thread("qemu-system-x86", QEMU)),
            (VCPU, thread("qemu-system-x86", QEMU)),
            (HOG, thread("hog", HOG)),
            (900, thread("kworker/1:1", 900)),
        ]
        .into(),
        irqs: [(25, "nic0-rx-0".to_owned())].into(),
        functions: [
            (0xffff_0010, "tick_nohz_handler".to_owned()),
            (0xffff_0020, "process_timeout".to_owned()),
            (0xffff_0030, "vmstat_update".to_owned()),
        ]
        .into(),
        missing: vec!["tracepoint x: not here".into()],
        ..Snapshot::default()
    }
}

/// The guest's events at the same time, in its own clock.
pub fn guest(t: Ns) -> Snapshot {
    let t = t + OFFSET;
    let events = vec![
        event(t + 10_050 * US, 0, EventKind::IrqEntry(24)),
        event(t + 10_051 * US, 0, EventKind::SoftirqRaise(3)),
        event(t + 10_052 * US, 0, EventKind::IrqExit(24)),
        event(t + 10_053 * US, 0, EventKind::SoftirqEntry(3)),
        event(t + 10_058 * US, 0, EventKind::Waking { pid: RELAY, cpu: 0, class: FIFO_80 }),
        event(t + 10_059 * US, 0, EventKind::Wakeup { pid: RELAY, cpu: 0, class: FIFO_80, throttled: false }),
        event(t + 10_060 * US, 0, EventKind::SoftirqExit(3)),
        switch(t + 10_061 * US, 0, PREEMPTED, RELAY, FIFO_80),
        switch(t + 10_080 * US, RELAY, SLEEPS, 0, OTHER),
    ];
    Snapshot {
        window: Window {
            from: t,
            to: t + 20_000 * US,
            cpus: vec![CpuRecord { cpu: 0, since: t, overwritten: 0, unfinished: 0, events }],
        },
        threads: [(RELAY, thread("relay", 300))].into(),
        irqs: [(24, "virtio0-input.0".to_owned())].into(),
        ..Snapshot::default()
    }
}

/// Two packets in the capture that begins at `t`, of which one is late.
pub fn packets(t: Ns) -> Vec<Packet> {
    let seen = |point, us: Ns, cpu, tid| PacketSighting { point, t: t + us * US, cpu: Some(cpu), tid: Some(tid) };
    let packet =
        |number: u64, late, sightings| Packet { stream: 0, key: number as u32 % 4000, number, late, sightings };
    vec![
        packet(4710, false, vec![seen(0, 755, 1, HOG), seen(1, 757, 0, 0)]),
        packet(
            4711,
            true,
            vec![
                seen(0, 1000, 1, HOG),
                seen(1, 1005, 0, 0),
                seen(2, 1008, 0, 0),
                seen(3, 10_020, 1, QEMU),
                seen(4, 10_055, 0, 0),
                seen(5, 10_070, 0, RELAY),
            ],
        ),
    ]
}

/// The capture with this number, which begins at `t`.
pub fn capture(number: u32, t: Ns) -> Capture {
    let machine = |name: &str, offset_ns, record| MachineSnapshot {
        machine: name.into(),
        offset_ns,
        error_bound_ns: offset_ns.signum().abs() * 700,
        record: Ok(record),
    };
    Capture {
        number,
        kind: CaptureKind::Spike,
        from: t,
        to: t + 20_000 * US,
        machines: vec![machine("host", 0, host(t)), machine("guest0", OFFSET, guest(t))],
        packets: packets(t),
        more_late: 0,
    }
}

/// Exports these captures as a trace.
pub fn export(context: RunContext, captures: &[Capture]) -> (Vec<u8>, Summary) {
    let mut trace = Vec::new();
    let mut export = Export::begin(&mut trace, context).unwrap();
    for capture in captures {
        export.capture(capture, |_| true).unwrap();
    }
    let summary = export.finish().unwrap();
    (trace, summary)
}

#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<proto::TracePacket>,
}

/// Decodes the packets of a trace.
pub fn read(trace: &[u8]) -> Vec<proto::TracePacket> {
    Trace::decode(trace).unwrap().packet
}
