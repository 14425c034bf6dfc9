//! Traces, decoded packet by packet.

mod captures;

use captures::{capture, context, event, export, read, switch, OFFSET, OTHER, T, UTC};
use latpath_flight::{EventKind, Left, Sleep};
use latpath_perfetto::proto::{Data, Ftrace, FtraceEvent, TracePacket, TrackEvent, OUT_OF_IDLE};
use std::collections::HashMap;

/// Kernel events per machine and CPU.
fn kernel(packets: &[TracePacket]) -> HashMap<(u32, u32), Vec<FtraceEvent>> {
    let mut found: HashMap<(u32, u32), Vec<FtraceEvent>> = HashMap::new();
    for packet in packets {
        if let Some(Data::FtraceEvents(bundle)) = &packet.data {
            let cpu = (packet.machine_id.unwrap_or(0), bundle.cpu.unwrap());
            found.entry(cpu).or_default().extend(bundle.event.iter().cloned());
        }
    }
    found
}

fn track_events(packets: &[TracePacket]) -> Vec<(u64, &TrackEvent)> {
    let of = |p: &'_ TracePacket| p.timestamp;
    let events = packets.iter().filter_map(|p| match &p.data {
        Some(Data::TrackEvent(event)) => Some((of(p).unwrap(), event)),
        _ => None,
    });
    events.collect()
}

#[test]
fn each_machine_has_a_sequence_that_begins_by_forgetting() {
    let packets = read(&export(context(), &[capture(1, T)]).0);
    for machine in [None, Some(1)] {
        let mut of_machine = packets.iter().filter(|p| p.machine_id == machine);
        let first = of_machine.next().unwrap();
        assert_eq!((first.sequence_flags, first.trusted_packet_sequence_id), (Some(1), Some(machine.unwrap_or(0) + 1)));
        assert!(of_machine
            .all(|p| p.sequence_flags == Some(2) && p.trusted_packet_sequence_id == first.trusted_packet_sequence_id));
    }
}

#[test]
fn a_cpus_events_are_in_order_of_time_on_the_hosts_timeline() {
    let (trace, _) = export(context(), &[capture(1, T)]);
    let events = kernel(&read(&trace));
    assert_eq!(events.len(), 3);
    for (cpu, events) in &events {
        assert!(events.is_sorted_by_key(|e| e.timestamp), "{cpu:?}");
        let (first, last) = (events[0].timestamp.unwrap(), events[events.len() - 1].timestamp.unwrap());
        assert!(first >= T as u64 && last < (T + 20_000_000) as u64, "{cpu:?}");
    }
    assert_ne!(OFFSET, 0, "the guest's clock is another one");
}

#[test]
fn the_thread_that_leaves_a_cpu_is_the_one_that_entered_it() {
    for (cpu, events) in kernel(&read(&export(context(), &[capture(1, T), capture(2, T + 1_000_000_000)]).0)) {
        let mut runs = None;
        for event in events {
            if let Some(Ftrace::SchedSwitch(switch)) = event.event {
                assert!(runs.is_none() || runs == switch.prev_pid, "{cpu:?}: {switch:?}");
                assert_eq!(event.pid, switch.prev_pid.map(|pid| pid as u32));
                runs = switch.next_pid;
            } else {
                assert_eq!(event.pid, runs.map(|pid| pid as u32), "{cpu:?}: {:?}", event.event);
            }
        }
    }
}

#[test]
fn each_slice_has_a_begin_and_an_end() {
    for (cpu, events) in kernel(&read(&export(context(), &[capture(1, T)]).0)) {
        let mut open = Vec::new();
        for event in events {
            match event.event.unwrap() {
                Ftrace::IrqHandlerEntry(e) => open.push(("irq", e.irq.unwrap())),
                Ftrace::IrqHandlerExit(e) => assert_eq!(open.pop(), Some(("irq", e.irq.unwrap())), "{cpu:?}"),
                Ftrace::SoftirqEntry(e) => open.push(("softirq", e.vec.unwrap() as i32)),
                Ftrace::SoftirqExit(e) => assert_eq!(open.pop(), Some(("softirq", e.vec.unwrap() as i32)), "{cpu:?}"),
                Ftrace::LocalTimerEntry(_) => open.push(("tick", 0)),
                Ftrace::LocalTimerExit(_) => assert_eq!(open.pop(), Some(("tick", 0)), "{cpu:?}"),
                Ftrace::HrtimerExpireEntry(_) => open.push(("hrtimer", 0)),
                Ftrace::HrtimerExpireExit(_) => assert_eq!(open.pop(), Some(("hrtimer", 0)), "{cpu:?}"),
                Ftrace::TimerExpireEntry(_) => open.push(("timer", 0)),
                Ftrace::TimerExpireExit(_) => assert_eq!(open.pop(), Some(("timer", 0)), "{cpu:?}"),
                _ => {}
            }
        }
        assert_eq!(open, [], "{cpu:?}");
    }
}

#[test]
fn slices_of_each_row_end_in_the_opposite_order_of_their_beginning() {
    let packets = read(&export(context(), &[capture(1, T)]).0);
    let mut rows: HashMap<u64, Vec<(u64, i32)>> = HashMap::new();
    for (t, event) in track_events(&packets) {
        rows.entry(event.track_uuid.unwrap()).or_default().push((t, event.r#type.unwrap()));
    }
    for (row, mut events) in rows {
        // The sort is stable, as in the reader: events with the same time keep the order of the file.
        events.sort_by_key(|(t, _)| *t);
        let mut depth = 0;
        for (_, kind) in events {
            depth += match kind {
                1 => 1,
                2 => -1,
                _ => 0,
            };
            assert!(depth >= 0, "row {row}");
        }
        assert!(depth <= 1, "row {row}: only a vCPU's last slice stays open");
    }
}

#[test]
fn threads_of_a_virtual_machine_are_named_by_role_and_guest() {
    let packets = read(&export(context(), &[capture(1, T)]).0);
    let mut names: Vec<(u32, String)> = Vec::new();
    for packet in &packets {
        if let Some(Data::ProcessTree(tree)) = &packet.data {
            let threads = tree.threads.iter().map(|t| (packet.machine_id.unwrap_or(0), t.name.clone().unwrap()));
            names.extend(threads);
            let processes = tree.processes.iter().flat_map(|p| p.cmdline.clone());
            names.extend(processes.map(|name| (packet.machine_id.unwrap_or(0), name)));
        }
    }
    for (machine, name) in [
        (0, "CPU 0/KVM relay-a"),
        (0, "qemu-system-x86 main loop relay-a"),
        (0, "qemu-system-x86_64:relay-a"),
        (1, "relay"),
    ] {
        assert!(names.contains(&(machine, name.to_owned())), "{machine} {name}: {names:?}");
    }
}

#[test]
fn utc_is_tied_to_the_timeline_once() {
    let packets = read(&export(context(), &[capture(1, T)]).0);
    let snapshots = packets.iter().filter_map(|p| match &p.data {
        Some(Data::ClockSnapshot(snapshot)) => Some(snapshot),
        _ => None,
    });
    let snapshots: Vec<_> = snapshots.collect();
    assert_eq!(snapshots.len(), 1);
    let clocks: Vec<_> = snapshots[0].clocks.iter().map(|c| (c.clock_id.unwrap(), c.timestamp.unwrap())).collect();
    assert_eq!(clocks, [(6, T as u64), (3, T as u64), (1, UTC as u64)]);
}

#[test]
fn states_are_those_that_the_kernel_reports() {
    let left = |left| {
        let mut one = capture(1, T);
        let snapshot = one.machines[0].record.as_mut().unwrap();
        snapshot.window.cpus.truncate(1);
        snapshot.window.cpus[0].events = vec![switch(T + 10, 42, left, 0, OTHER)];
        let events = kernel(&read(&export(context(), &[one]).0));
        let state = events[&(0, 0)].iter().rev().find_map(|e| match e.event.as_ref()? {
            Ftrace::SchedSwitch(switch) => switch.prev_state,
            _ => None,
        });
        state.unwrap()
    };
    let asleep = |sleep| left(Left::Asleep(sleep));
    assert_eq!(left(Left::Ready { preempted: true, throttled: false }), 0x100);
    assert_eq!(left(Left::Ready { preempted: false, throttled: false }), 0);
    let all = [Sleep::Interruptible, Sleep::Blocked, Sleep::Stopped, Sleep::Traced, Sleep::Parked, Sleep::Idle];
    assert_eq!(all.map(asleep), [1, 2, 4, 8, 0x40, 0x80]);
}

#[test]
fn events_that_perfetto_refuses_are_omitted_and_counted() {
    let mut odd = capture(1, T);
    let snapshot = odd.machines[0].record.as_mut().unwrap();
    snapshot.window.cpus.truncate(2);
    // Perfetto rejects files that contain this CPU number.
    snapshot.window.cpus[1].cpu = 1024;
    let not_taken = snapshot.window.cpus[1].events.len() as u64;
    snapshot.window.cpus[0].events = vec![
        event(T + 1, 42, EventKind::SoftirqEntry(33)),
        event(T + 2, u32::MAX, EventKind::Idle(None)),
        event(T + 3, 42, EventKind::Other(99)),
        event(T + 4, 42, EventKind::Idle(None)),
    ];
    let (trace, summary) = export(context(), &[odd]);
    let events = kernel(&read(&trace));
    assert!(!events.contains_key(&(0, 1024)));
    assert_eq!(summary.machines[0].1.left_out, not_taken + 3);
    assert_eq!(summary.machines[0].1.others, 1);
    let idle = events[&(0, 0)].iter().find_map(|e| match e.event.as_ref()? {
        Ftrace::CpuIdle(idle) => idle.state,
        _ => None,
    });
    assert_eq!(idle, Some(OUT_OF_IDLE));
}

#[test]
fn a_machine_without_a_record_is_reported_as_such() {
    let mut silent = capture(1, T);
    silent.machines[1].record = Err("the agent did not answer".into());
    let packets = read(&export(context(), &[silent]).0);
    let info = track_events(&packets).into_iter().flat_map(|(_, e)| e.debug_annotations.clone());
    let lines: Vec<_> = info.flat_map(|a| a.array_values).filter_map(|a| a.value).collect();
    let text = format!("{lines:?}");
    assert!(text.contains("no record: the agent did not answer"), "{text}");
    // The packet's sightings still appear in the row of its CPU.
    assert!(track_events(&packets).iter().any(|(_, e)| e.name.as_deref() == Some("nic-rx@eth0 MU01 711")));
}

#[test]
fn only_selected_packets_have_rows_and_the_others_are_counted() {
    let mut trace = Vec::new();
    let mut export = latpath_perfetto::Export::begin(&mut trace, context()).unwrap();
    export.capture(&capture(1, T), |packet| packet.number != 4711).unwrap();
    let summary = export.finish().unwrap();
    assert_eq!((summary.packets, summary.more_late), (0, 1));
    let packets = read(&trace);
    assert!(track_events(&packets).iter().any(|(_, e)| e.name.as_deref() == Some("MU01 711 late")));
    assert!(!track_events(&packets).iter().any(|(_, e)| e.name.as_deref() == Some("total")));
}

#[test]
fn a_full_disk_is_an_error_and_no_panic() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let whole = export(context(), &[capture(1, T)]).0.len();
    for room in [0, 100, whole / 2, whole - 1] {
        let write = || {
            let mut full = Full(room);
            let mut export = latpath_perfetto::Export::begin(&mut full, context())?;
            export.capture(&capture(1, T), |_| true)?;
            export.finish().map(drop)
        };
        assert_eq!(write().unwrap_err().kind(), std::io::ErrorKind::StorageFull, "{room}");
    }
}
