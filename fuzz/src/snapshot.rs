//! Decodes arbitrary messages as a snapshot from another machine's flight recorder. Decoding either fails, or the
//! snapshot survives a round trip unchanged. Names contain no terminal control characters.
//!
//! Input: the contents of the frame; the target adds the framing.

use latpath_flight::packed::{pack, unpack};
use latpath_flight::{CpuRecord, Event, EventKind, FlowLimits, FlowState, Removal, Snapshot, Thread, Upcall, Window};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::decode(&[b"LPFS\x01", &pack(bytes)[..]].concat()) else { return };
    let events: usize = snapshot.window.cpus.iter().map(|cpu| cpu.events.len()).sum();
    assert!(events <= bytes.len(), "an event takes at least one byte");
    let names = snapshot.threads.values().map(|thread| &thread.name);
    let removals = snapshot.upcalls.iter().filter_map(|upcall| match &upcall.flow {
        FlowState::Removed(removal) => Some(&removal.by.name),
        _ => None,
    });
    let names =
        names.chain(removals).chain(snapshot.irqs.values()).chain(snapshot.functions.values()).chain(&snapshot.missing);
    names.for_each(|name| assert!(!name.chars().any(char::is_control), "{name:?}"));
    let again = Snapshot::decode(&snapshot.encode()).expect("what was read can be written and read");
    assert_eq!(again, snapshot);
}

/// An empty snapshot, and one with two CPUs, events and names.
pub fn seeds() -> Vec<Vec<u8>> {
    let messages = |snapshot: Snapshot| unpack(&mut &snapshot.encode()[5..], 1 << 20).expect("a frame");
    vec![messages(Snapshot::default()), messages(some())]
}

/// A snapshot of a short window, with upcalls and all kinds of names.
pub fn some() -> Snapshot {
    let kinds = [
        EventKind::IrqEntry(9),
        EventKind::IrqExit(9),
        EventKind::TimerEntry(0xffff_8000_0000_1000),
        EventKind::WorkStart(7),
    ];
    let events = |cpu: u32| -> Vec<Event> {
        let event =
            |n: i64| Event { t: 1_000_000 + n * 700, pid: 40 + n as u32 % 3 + cpu, what: kinds[n as usize % 4] };
        (0..24).map(event).collect()
    };
    let record = |cpu| CpuRecord { cpu, events: events(cpu), since: 900_000, overwritten: 3, unfinished: 1 };
    let removal = Removal {
        at: 990_000,
        pid: 44,
        by: Thread { name: "revalidator5".into(), tgid: 40 },
        flows: 12,
        all: false,
        installed: Some(10_000),
        packets: Some(4_021),
        idle_ns: Some(500_000),
    };
    let upcall = |n: i64, flow: FlowState| Upcall {
        t: 1_001_000 + n,
        cpu: 5,
        flows: 11,
        flow,
        missed_before: 1,
        read: Some((43, 1_002_000 + n)),
        answered: Some(1_003_000 + n),
    };
    let flows = [
        FlowState::Unknown,
        FlowState::NeverThere { since: 10_000 },
        FlowState::Installed { at: 1_001_000 },
        FlowState::Removed(removal),
    ];
    Snapshot {
        upcalls: (0..).zip(flows).map(|(n, flow)| upcall(n, flow)).collect(),
        flow_limits: Some(FlowLimits { max_idle_ns: 500_000, flow_limit: 100 }),
        window: Window { from: 1_000_000, to: 1_020_000, cpus: vec![record(0), record(5)] },
        threads: (40..45).map(|pid| (pid, Thread { name: format!("thread-{pid}"), tgid: 40 })).collect(),
        irqs: [(9, "virtio0-input.0".into())].into(),
        functions: [(7, "vmstat_update".into()), (0xffff_8000_0000_1000, "tick_sched_timer".into())].into(),
        idle_states: Default::default(),
        units: [(40, "relay.service".into())].into(),
        owners: [(40, "unit relay.service".into())].into(),
        missing: vec!["tracepoint: none".into()],
    }
}
