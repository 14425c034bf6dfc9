//! Perfetto's own trace processor reads the traces.

mod captures;

use captures::{capture, context, event, export, switch, OTHER, PREEMPTED, QEMU, SLEEPS, T};
use latpath_testkit::trace_processor::{self, Cell, Processor};
use latpath_testkit::{equal, trial, Failed};
use std::process::ExitCode;

fn main() -> ExitCode {
    let needs = [trace_processor::lack()];
    let trial = |name: &str, test: fn() -> Result<(), Failed>| trial(name, &needs, test).side_by_side();
    let tests = vec![
        trial("each_switch_is_a_slice_of_its_cpu", switches),
        trial("threads_have_their_states", states),
        trial("each_guest_is_a_machine_on_the_hosts_timeline", machines),
        trial("interrupts_and_works_are_slices", interrupts),
        trial("a_vcpus_thread_says_when_it_is_in_its_guest", vcpus),
        trial("a_late_packet_has_its_segments_and_what_held_it", packets),
        trial("arrows_follow_a_packet_from_thread_to_thread", arrows),
        trial("times_are_shown_in_utc", utc),
        trial("spikes_that_overlap_or_lie_apart_are_one_trace", several),
        trial("a_switch_that_was_missed_is_no_error", missed),
        trial("samples_of_host_and_guest_have_their_call_chains", samples),
    ];
    latpath_testkit::main(tests)
}

fn load(captures: &[latpath_capture::Capture]) -> Result<(Processor, latpath_perfetto::Summary), Failed> {
    let (trace, summary) = export(context(), captures);
    let mut processor = Processor::load(&trace)?;
    equal("errors", processor.errors()?, Vec::new())?;
    Ok((processor, summary))
}

fn ints(rows: &[Vec<Cell>]) -> Vec<Vec<i64>> {
    rows.iter().map(|row| row.iter().map(Cell::int).collect()).collect()
}

fn switches() -> Result<(), Failed> {
    let (mut processor, summary) = load(&[capture(1, T)])?;
    for (id, (machine, written)) in summary.machines.iter().enumerate() {
        let of = format!("from sched join cpu using (ucpu) where ifnull(cpu.machine_id, 0) = {id}");
        let slices = processor.number(&format!("select count(*) {of}"))?;
        equal(&format!("slices of {machine}"), slices, (written.switches + written.gaps) as i64)?;
    }
    // The capture contains three switches on each CPU of the host; a fourth on CPU 1, to the idle thread, is not
    // recorded.
    let (host, guest) = (summary.machines[0].1, summary.machines[1].1);
    equal("switches", (host.switches, guest.switches), (6, 2))?;
    let hog = processor.rows(
        "select ts, dur, priority, end_state from sched join thread using (utid) where name = 'hog' order by ts limit 1",
    )?;
    equal("the hog's time", hog[0][1].int(), 10_000_000)?;
    equal("how it left", hog[0][3].text(), "R")
}

fn states() -> Result<(), Failed> {
    let (mut processor, _) = load(&[capture(1, T)])?;
    let sql = "select ts, dur, state from thread_state join thread using (utid) where tid = 5600 order by ts";
    let rows = processor.rows(sql)?;
    let rows: Vec<_> = rows.iter().map(|r| (r[0].int() - T, r[1].int(), r[2].text().to_owned())).collect();
    let us = 1000;
    equal(
        "states of QEMU's main loop",
        rows[..2].to_vec(),
        vec![(1009 * us, (10_000 - 1009) * us, "R".to_owned()), (10_000 * us, 60 * us, "Running".to_owned())],
    )?;
    equal("then", rows[2].2.as_str(), "S")?;
    let sql = "select w.tid from thread_state s join thread t using (utid) join thread w on w.utid = s.waker_utid
        where t.tid = 5604 and s.waker_utid is not null";
    equal("who woke the vCPU", ints(&processor.rows(sql)?), vec![vec![QEMU.into()]])
}

fn machines() -> Result<(), Failed> {
    let (mut processor, _) = load(&[capture(1, T)])?;
    let known = processor.rows("select raw_id, release from machine order by id")?;
    equal("host", (known[0][0].int(), known[0][1].text()), (0, "6.12.9+deb13-rt-amd64"))?;
    equal("guest", (known[1][0].int(), known[1][1].text()), (1, "6.1.0-18-amd64"))?;
    let sql = "select ts, dur from sched join thread using (utid) where tid = 310";
    equal("the relay in its guest", ints(&processor.rows(sql)?), vec![vec![T + 10_061_000, 19_000]])?;
    let sql =
        "select t.name || ' / ' || p.name from thread t join process p using (upid) where tid in (5600, 5604, 310)
        order by tid";
    equal(
        "names",
        processor.texts(sql)?,
        vec![
            "relay / guest0:300".into(),
            "qemu-system-x86 main loop relay-a / qemu-system-x86_64:relay-a".into(),
            "CPU 0/KVM relay-a / qemu-system-x86_64:relay-a".into(),
        ][..]
            .to_vec(),
    )
}

fn interrupts() -> Result<(), Failed> {
    let (mut processor, _) = load(&[capture(1, T)])?;
    let sql = "select s.name || ' ' || s.dur from slice s join track t on s.track_id = t.id
        where t.type in ('cpu_irq', 'cpu_softirq', 'cpu_hrtimer', 'thread_execution') and s.dur > 0 and s.category is not null
        and s.category != 'sighting' order by s.ts, s.name";
    equal(
        "slices",
        processor.texts(sql)?,
        [
            "IRQ (LocalTimer) 3000",
            "tick_nohz_handler 1000",
            "TIMER 4000",
            "IRQ (25 nic0-rx-0) 2000",
            "NET_RX 9000",
            "IRQ (reschedule interrupt) 1000",
            "IRQ (24 virtio0-input.0) 2000",
            "NET_RX 7000",
            "vmstat_update 9000",
            "IRQ (NMI) 1500",
        ]
        .map(String::from)
        .to_vec(),
    )?;
    let sql = "select distinct name from slice where name in ('process_timeout', 'nic0: 1 of 64') order by name";
    equal("timers and polls", processor.texts(sql)?, vec!["nic0: 1 of 64".into(), "process_timeout".into()])?;
    let idle = "select count(*) from counter c join track t on c.track_id = t.id where t.type = 'cpu_idle'";
    equal("idle states", processor.number(idle)?, 4)
}

fn vcpus() -> Result<(), Failed> {
    let (mut processor, _) = load(&[capture(1, T)])?;
    let sql = "select s.name, s.ts - 1000000000000, s.dur from slice s join thread_track t on s.track_id = t.id
        join thread using (utid) where tid = 5604 order by s.ts, s.depth";
    let rows = processor.rows(sql)?;
    let rows: Vec<_> = rows.iter().map(|r| (r[0].text().to_owned(), r[1].int() / 1000, r[2].int() / 1000)).collect();
    let want = [
        ("in its guest", 20, 480),
        ("exit: hlt", 500, 9547),
        ("halted: polls", 550, 150),
        ("interrupt injected", 10_046, 0),
        ("in its guest", 10_047, 9453),
    ];
    equal("its slices", rows[..5].to_vec(), want.map(|(name, t, dur)| (name.to_owned(), t, dur)).to_vec())?;
    equal("the last", rows[5].0.as_str(), "exit: interrupt")
}

fn packets() -> Result<(), Failed> {
    let (mut processor, summary) = load(&[capture(1, T)])?;
    equal("packets with rows", summary.packets, 1)?;
    let sql = "select s.name, s.dur, s.depth from slice s join track t on s.track_id = t.id
        where t.name = 'MU01 711: 9.070 ms' and s.dur > 0 order by s.ts, s.depth";
    let rows = processor.rows(sql)?;
    let rows: Vec<_> = rows.iter().map(|r| (r[0].text().to_owned(), r[1].int() / 1000, r[2].int())).collect();
    let want = [
        ("total", 9070, 0),
        ("Tnet", 5, 1),
        ("tx@lp-pub → nic-rx@nic0", 5, 2),
        ("Thyp", 9050, 1),
        ("nic-rx@nic0 → tx@vnet0", 3, 2),
        ("tx@vnet0 → vm-read@vnet0", 9012, 2),
        ("vm-read@vnet0 → guest0/nic-rx@eth0", 35, 2),
        ("Tsub", 15, 1),
        ("guest0/nic-rx@eth0 → guest0/app-read@relay", 15, 2),
    ];
    equal("segments", rows, want.map(|(name, dur, depth)| (name.to_owned(), dur, depth)).to_vec())?;
    let sql = "select sum(s.dur) from slice s join track t on s.track_id = t.id where t.name = 'why'";
    equal("what held it sums to its time", processor.number(sql)?, 9_070_000)?;
    let sql = "select string_value from slice s join args using (arg_set_id) where s.name = 'total'
        and key in ('debug.stream', 'debug.causes[0]') order by key desc";
    let info = processor.texts(sql)?;
    equal("stream", info[0].as_str(), "svid:MU01")?;
    let sql =
        "select int_value from slice s join args using (arg_set_id) where s.name = 'total' and key = 'debug.smpCnt'";
    equal("smpCnt", processor.number(sql)?, 711)?;
    let all = "select count(*) from slice s join track t on s.track_id = t.id where t.name = 'host/nic-rx@nic0'";
    equal("all packets at their points", processor.number(all)?, 2)
}

fn arrows() -> Result<(), Failed> {
    let (mut processor, _) = load(&[capture(1, T)])?;
    let sql = "select o.name || ' > ' || i.name from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in
        where o.category = 'sighting' and i.category = 'sighting' order by o.ts, i.ts";
    equal(
        "arrows",
        processor.texts(sql)?,
        [
            "tx@lp-pub MU01 711 > nic-rx@nic0 MU01 711",
            "nic-rx@nic0 MU01 711 > tx@vnet0 MU01 711",
            "tx@vnet0 MU01 711 > vm-read@vnet0 MU01 711",
            "vm-read@vnet0 MU01 711 > nic-rx@eth0 MU01 711",
            "nic-rx@eth0 MU01 711 > app-read@relay MU01 711",
        ]
        .map(String::from)
        .to_vec(),
    )?;
    let sql = "select t.tid from slice s join thread_track r on s.track_id = r.id join thread t using (utid)
        where s.category = 'sighting' order by s.ts";
    // The hog's thread sends the packet; QEMU's main loop and the relay receive it in their own context. Softirqs
    // belong to no thread.
    equal("threads that had it", ints(&processor.rows(sql)?), vec![vec![7000], vec![5600], vec![310]])?;
    let sql = "select count(*) from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in
        where o.category = 'step' and i.category = 'sighting' and o.ts = i.ts";
    equal("from the packet's row to who had it", processor.number(sql)?, 6)
}

fn utc() -> Result<(), Failed> {
    let (mut processor, _) = load(&[capture(1, T)])?;
    equal("UTC at the beginning", processor.number(&format!("select to_realtime({T})"))?, captures::UTC)?;
    let span = processor.rows("select start_ts, end_ts from trace_bounds")?;
    equal("beginning", span[0][0].int(), T)?;
    equal("end", span[0][1].int() >= T + 19_500_000, true)
}

fn several() -> Result<(), Failed> {
    // The second capture begins in the middle of the first one; the third begins a second later.
    let half = {
        let mut half = capture(1, T);
        half.number = 2;
        half.from += 10_000_000;
        for machine in &mut half.machines {
            let snapshot = machine.record.as_mut().unwrap();
            for cpu in &mut snapshot.window.cpus {
                let from = snapshot.window.from + 9_000_000;
                cpu.events.retain(|e| e.t >= from);
                cpu.since = from;
            }
        }
        half
    };
    let (mut processor, summary) = load(&[capture(1, T), half, capture(3, T + 1_000_000_000)])?;
    equal("switches", (summary.machines[0].1.switches, summary.machines[1].1.switches), (12, 4))?;
    equal("packets", summary.packets, 2)?;
    let slices = processor.number("select count(*) from slice where name = 'total'")?;
    equal("a packet of two spikes is one", slices, 2)?;
    let gap =
        "select s.ts, s.dur from sched s join thread using (utid) join cpu using (ucpu) where name = '(not recorded)'
        and ifnull(cpu.machine_id, 0) = 0 and cpu.cpu = 0";
    equal("gap", ints(&processor.rows(gap)?), vec![vec![T + 20_000_000, 980_000_000]])?;
    let open = "select count(*) from slice where dur > 500000000";
    equal("nothing goes on where nothing was recorded", processor.number(open)?, 0)
}

fn missed() -> Result<(), Failed> {
    let mut odd = capture(1, T);
    let snapshot = odd.machines[0].record.as_mut().unwrap();
    snapshot.window.cpus.truncate(1);
    snapshot.window.cpus[0].events = vec![
        switch(T + 10, 0, PREEMPTED, 42, OTHER),
        event(T + 20, 42, latpath_flight::EventKind::SoftirqEntry(3)),
        // An event of another thread: the switch to that thread and the softirq's end are missing.
        event(T + 50, 43, latpath_flight::EventKind::IrqEntry(7)),
        switch(T + 60, 43, SLEEPS, 0, OTHER),
    ];
    let (mut processor, _) = load(&[odd])?;
    let sql = "select ts, dur, tid from sched join thread using (utid) join cpu using (ucpu) where ifnull(cpu.machine_id, 0) = 0 order by ts";
    let nobody = i64::from(i32::MAX);
    equal(
        "who ran",
        ints(&processor.rows(sql)?)[1..4].to_vec(),
        vec![vec![T + 10, 10, 42], vec![T + 20, 30, nobody], vec![T + 50, 10, 43]],
    )
}

fn samples() -> Result<(), Failed> {
    use latpath_perfetto::{write_profile, SampledMachine};
    use latpath_profile::{FrameId, Mode, Samples, Seen, Slice, Stack, Thread};
    let slice = |from: i64| Slice {
        from,
        until: from + 1_000_000_000,
        names: vec!["main".into(), "tun_get_user".into()],
        threads: vec![Thread { tid: 71, tgid: 70, comm: "worker".into(), process: "app".into(), ..Thread::default() }],
        stacks: vec![
            Stack { mode: Mode::Kernel, frames: vec![FrameId::new(1, true), FrameId::new(0, false)] },
            Stack { mode: Mode::User, frames: vec![FrameId::new(0, false)] },
            Stack { mode: Mode::Idle, frames: Vec::new() },
        ],
        seen: [0, 0, 1, 2].map(|stack| Seen { t: from + 5, cpu: 1, thread: 0, stack }).into(),
        ..Slice::default()
    };
    let of = |from| -> Result<Samples, Failed> {
        let mut samples = Samples::new(true);
        samples.take(slice(from))?;
        Ok(samples)
    };
    let (host, guest) = (of(T)?, of(T + 9_000_000_000)?);
    let machine = |samples, offset_ns, prefix: &str| SampledMachine { samples, offset_ns, prefix: prefix.into() };
    let mut trace = Vec::new();
    write_profile(99, &[machine(&host, 0, ""), machine(&guest, 9_000_000_000, "vm:")], &mut trace)?;
    let mut processor = Processor::load(&trace)?;
    equal("errors", processor.errors()?, Vec::new())?;
    equal("samples, none of idle CPUs", processor.number("select count(*) from perf_sample")?, 6)?;
    equal("on one timeline", processor.number("select count(distinct ts) from perf_sample")?, 1)?;
    let innermost = "select frame.name from perf_sample join stack_profile_callsite as site on site.id = callsite_id \
        join stack_profile_frame as frame on frame.id = site.frame_id where perf_sample.cpu_mode = 'kernel' and site.depth = 1";
    equal("innermost in the kernel", processor.texts(innermost)?, vec!["tun_get_user".to_owned(); 4])?;
    let names =
        "select distinct process.name from perf_sample join thread using (utid) join process using (upid) order by 1";
    equal("processes", processor.texts(names)?, vec!["app".to_owned(), "vm:app".into()])
}
