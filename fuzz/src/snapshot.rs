//! Any messages as a snapshot from another machine's flight recorder: the snapshot is refused; or it is read, and is
//! the same when written and read again. Its names cannot control a terminal.
//!
//! Input: the contents of the frame; the target adds the framing.

use latpath_flight::packed::{pack, unpack};
use latpath_flight::{CpuRecord, Event, EventKind, Snapshot, Thread, Window};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::decode(&[b"LPFS\x01", &pack(bytes)[..]].concat()) else { return };
    let events: usize = snapshot.window.cpus.iter().map(|cpu| cpu.events.len()).sum();
    assert!(events <= bytes.len(), "an event takes at least one byte");
    let names = snapshot.threads.values().map(|thread| &thread.name);
    let names = names.chain(snapshot.irqs.values()).chain(snapshot.functions.values()).chain(&snapshot.missing);
    names.for_each(|name| assert!(!name.chars().any(char::is_control), "{name:?}"));
    let again = Snapshot::decode(&snapshot.encode()).expect("what was read can be written and read");
    assert_eq!(again, snapshot);
}

/// An empty snapshot, and one with two CPUs, events and names.
pub fn seeds() -> Vec<Vec<u8>> {
    let messages = |snapshot: Snapshot| unpack(&mut &snapshot.encode()[5..], 1 << 20).expect("a frame");
    vec![messages(Snapshot::default()), messages(some())]
}

/// A short window with all kinds of names.
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
    Snapshot {
        window: Window { from: 1_000_000, to: 1_020_000, cpus: vec![record(0), record(5)] },
        threads: (40..45).map(|pid| (pid, Thread { name: format!("thread-{pid}"), tgid: 40 })).collect(),
        irqs: [(9, "virtio0-input.0".into())].into(),
        functions: [(7, "vmstat_update".into()), (0xffff_8000_0000_1000, "tick_sched_timer".into())].into(),
        idle_states: Default::default(),
        units: [(40, "relay.service".into())].into(),
        missing: vec!["tracepoint: none".into()],
    }
}
