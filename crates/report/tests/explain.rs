//! What people read of late packets that were explained by hand.

use latpath_capture::{CaptureKind, PacketSighting};
use latpath_cause::{
    advise, Attribution, Baseline, Cause, CauseInterval, Executor, Hop, PacketTimeline, Ranking, RunContext,
};
use latpath_clock::TimeOfDay;
use latpath_flight::{Class, Doing, Running};
use latpath_model::{Ns, Point, PointInfo, SegmentKind};
use latpath_report::{
    explanation_json, explanation_text, packet_text, with_fixes, ExplainedPacket, ExplainedSpike, Explanation, Head,
    RankedCause, WIDTH,
};
use latpath_run::{Manifest, Run, SpikeFile, SpikeFiles, SpikesRecord, Stamp, State, JOURNEYS, MANIFEST};
use latpath_stats::units::Letters;
use latpath_vms::{Accel, Bridge, Role, Tap, Thread, Vm};
use std::path::Path;
use unicode_width::UnicodeWidthStr;

const MS: Ns = 1_000_000;
const US: Ns = 1_000;
const START: Ns = 1_767_323_045 * 1_000_000_000;
const OTHER: Class = Class { prio: 120, policy: 0 };

fn fifo(priority: i16) -> Class {
    Class { prio: 99 - priority, policy: 1 }
}

fn thread(tid: u32, role: Role, vcpu: Option<u32>, cpus: &str) -> Thread {
    Thread { tid, role, vcpu, comm: "qemu".into(), cpus_allowed: cpus.parse().unwrap(), ..Thread::default() }
}

fn vm() -> Vm {
    let tap = Tap {
        device: "vnet7".into(),
        ifindex: Some(9),
        bridge: Some(Bridge { name: "br0".into(), kind: "openvswitch".into() }),
        queues: 1,
        vhost: Some(true),
        tx_queue_len: Some(1000),
        ..Tap::default()
    };
    Vm {
        libvirt: true,
        name: "guest7".into(),
        pid: 5600,
        program: "qemu-system-x86_64".into(),
        accel: Accel::Kvm,
        vcpus: Some(1),
        vhost_net: 1,
        taps: vec![tap],
        threads: vec![thread(6154, Role::Vcpu, Some(0), "4"), thread(5620, Role::Vhost, None, "0-7")],
        ..Vm::default()
    }
}

fn context() -> RunContext {
    let info = |name: &str| PointInfo::from(name.parse::<Point>().unwrap());
    let segment = |name: &str, from, to| latpath_journey::Segment {
        kind: SegmentKind::classic(name).unwrap_or_default(),
        name: name.into(),
        from,
        to,
    };
    RunContext {
        points: [
            "host/nic-rx@enp7s0",
            "host/tx@vnet7",
            "host/vm-read@vnet7",
            "guest7/nic-rx@eth1",
            "guest7/app-read@relay",
            "host/ovs-upcall@enp7s0",
            "host/ovs-return@enp7s0",
        ]
        .map(info)
        .into(),
        routes: vec![vec![0, 1, 2, 3, 4]],
        segments: vec![segment("Thyp", 0, 3), segment("Tsub", 3, 4), segment("total", 0, 4)],
        streams: vec!["svid:MU01,mac=01:0c:cd:04:00:01".parse().unwrap()],
        vms: vec![vm()],
        processes: Default::default(),
        cpus: [("host".to_owned(), "0-7".parse().unwrap()), ("guest7".to_owned(), "0".parse().unwrap())].into(),
        governors: vec!["performance".into()],
        is_virtual: false,
        kernels: Default::default(),
        start_ns: 0,
        time_of_day: TimeOfDay::new(0, START, &[]),
    }
}

fn task(pid: u32, name: &str, class: Class) -> Executor {
    let doing = Doing::Thread(Running { pid, class: Some(class), guest: false, work: None });
    Executor { name: format!("{name} ({pid})"), doing, class: Some(class) }
}

fn net_rx() -> Executor {
    Executor { name: "softirq NET_RX".into(), doing: Doing::Softirq(3), class: None }
}

fn vhost() -> Executor {
    task(5620, "vhost-5600", OTHER)
}

fn vcpu() -> Executor {
    task(6154, "CPU 0/KVM", fifo(1))
}

fn relay() -> Executor {
    task(815, "relay", OTHER)
}

/// Time, cause, machine, CPU, who, by whom.
type Told1 = (Ns, Cause, usize, u32, Option<Executor>, Option<Executor>);

fn packet(number: u64, at: Ns, late: bool, hops: Vec<(u16, u16, Vec<Told1>)>) -> PacketTimeline {
    let mut t = at;
    let mut seen = vec![PacketSighting { point: hops[0].0, t, cpu: 2, tid: 0 }];
    let mut all = Vec::new();
    for (from, to, explained_packet) in hops {
        let begin = t;
        let mut intervals = Vec::new();
        let mut last = 0;
        for (ns, cause, machine, cpu, actor, by) in explained_packet {
            let notes = match cause {
                Cause::Unexplained => vec!["guest7: the recorder had written over it".into()],
                _ => Vec::new(),
            };
            let number = match cause {
                Cause::QueuedBehind => Some(37),
                Cause::PollInterval => Some(5_000_000),
                _ => None,
            };
            let (from, to) = (t, t + ns);
            let cpu_here = Some(cpu);
            intervals.push(CauseInterval {
                from,
                to,
                cause,
                actor,
                by,
                machine,
                cpu: cpu_here,
                number,
                state: None,
                waiter: None,
                notes,
            });
            (t, last) = (t + ns, cpu);
        }
        seen.push(PacketSighting { point: to, t, cpu: last as u16, tid: 0 });
        all.push(Hop { from, to, begin, end: t, intervals });
    }
    let machines = vec!["host".into(), "guest7".into()];
    let key = (number % 4000) as u32;
    PacketTimeline { stream: 0, key, number, late, capture: 1, machines, seen, hops: all }
}

fn on_host(ns: Ns, cause: Cause, cpu: u32, actor: Executor, by: Option<Executor>) -> Told1 {
    (ns, cause, 0, cpu, Some(actor), by)
}

/// A packet, of which three places may take longer.
fn packet_of_all_hops(
    number: u64,
    at: Ns,
    late: bool,
    read: Vec<Told1>,
    guest: Vec<Told1>,
    app: Vec<Told1>,
) -> PacketTimeline {
    let idle = || Some(Executor { name: "idle (state 2)".into(), doing: Doing::Idle { state: Some(2) }, class: None });
    let mut to_vm =
        vec![on_host(4 * US, Cause::Work, 2, net_rx(), None), on_host(6 * US, Cause::IdleExit, 4, vhost(), idle())];
    to_vm.extend(read);
    to_vm.push(on_host(9 * US, Cause::Work, 4, vhost(), None));
    let mut to_guest = vec![on_host(14 * US, Cause::Work, 4, vhost(), None)];
    to_guest.extend(guest);
    to_guest.push((30 * US, Cause::Work, 1, 0, Some(net_rx()), None));
    let mut to_app = vec![(11 * US, Cause::Work, 1, 0, Some(net_rx()), None)];
    to_app.extend(app);
    to_app.push((20 * US, Cause::Work, 1, 0, Some(relay()), None));
    let hops = vec![
        (0, 1, vec![on_host(8 * US, Cause::Work, 2, net_rx(), None)]),
        (1, 2, to_vm),
        (2, 3, to_guest),
        (3, 4, to_app),
    ];
    packet(number, at, late, hops)
}

fn explained_packet(explained: PacketTimeline, baseline: &Baseline, context: &RunContext) -> ExplainedPacket {
    let attribution = Attribution::of(&explained, &context.routes[0], baseline, context);
    let advice = attribution.first().map_or(Vec::new(), |first| advise(first, Some(0), context));
    ExplainedPacket { explained, attribution, advice }
}

/// vhost behind a vCPU that polls, an application that polls, softirqs that flood, and what nobody knows.
fn story() -> (Explanation, RunContext) {
    let context = context();
    let mut baseline = Baseline::default();
    (0..40).for_each(|n| baseline.add(&packet_of_all_hops(n, 0, false, vec![], vec![], vec![])));
    let mut all = Vec::new();
    for n in 0..9 {
        let flood = on_host(40 * US, Cause::Interrupted, 4, vhost(), Some(net_rx()));
        let waits = on_host(14 * MS - n * 100 * US, Cause::WaitingForCpu, 4, vhost(), Some(vcpu()));
        let at = 593_750 * US + n * 2_000 * MS;
        all.push(packet_of_all_hops(2375 + n as u64, at, true, vec![waits, flood], vec![], vec![]));
    }
    for n in 0..3 {
        let timer = Executor { name: "timer hrtimer_wakeup".into(), doing: Doing::Timer(7), class: None };
        let polls = (3 * MS + n * 10 * US, Cause::PollInterval, 1, 0, Some(relay()), Some(timer));
        all.push(packet_of_all_hops(9000 + n as u64, 30_000 * MS + n * 1_000 * MS, true, vec![], vec![], vec![polls]));
    }
    let lost = (900 * US, Cause::Unexplained, 1, 0, None, None);
    all.push(packet_of_all_hops(77, 40_000 * MS, true, vec![], vec![lost], vec![]));
    let mut crowd: Vec<Told1> = (0..8)
        .map(|n| {
            on_host(
                400 * US,
                Cause::VcpuPreempted,
                4,
                task(6154, "CPU 0/KVM", OTHER),
                Some(task(900 + n, ["rustc", "ld", "cc1", "as"][n as usize % 4], OTHER)),
            )
        })
        .collect();
    crowd.push(on_host(90 * US, Cause::Interrupted, 4, vcpu(), Some(net_rx())));
    all.push(packet_of_all_hops(4001, 41_000 * MS, true, vec![], crowd, vec![]));

    let mut ranking = Ranking::default();
    let mut worst: Vec<ExplainedPacket> =
        all.into_iter().map(|packet| explained_packet(packet, &baseline, &context)).collect();
    worst.iter().for_each(|explained_packet| ranking.add(&explained_packet.attribution));
    worst.sort_by_key(|explained_packet| std::cmp::Reverse(explained_packet.attribution.time_ns));
    let explanation = Explanation {
        late: ranking.late(),
        more_late: 0,
        time_ns: ranking.time_ns(),
        excess_ns: ranking.excess_ns(),
        without_baseline: ranking.without_baseline(),
        unexplained_per_mille: ranking.unexplained_per_mille(),
        baseline_packets: baseline.packets(),
        baseline_captures: 4,
        ranking: with_fixes(ranking.rows(), &context),
        others: ranking.others(),
        spikes: worst
            .iter()
            .map(|explained_packet| ExplainedSpike { worst: explained_packet.clone(), more: 0 })
            .collect(),
        worst,
        causality: Vec::new(),
        notes: vec!["guest7: no tracepoint napi:napi_poll: what a softirq did first is not known".into()],
    };
    (explanation, context)
}

fn run(directory: &Path) -> Run {
    let stamp = |utc: &str, ns| Stamp { utc: utc.into(), utc_ns: START + ns, tai_ns: START + ns, monotonic_ns: ns };
    let manifest = Manifest {
        format: 1,
        latpath: "0.1.0".into(),
        state: State::Finished,
        start: stamp("2026-01-02T03:04:05.000000000Z", 0),
        end: Some(stamp("2026-01-02T03:05:05.000000000Z", 60_000 * MS)),
        streams: vec!["svid:MU01,mac=01:0c:cd:04:00:01".parse().unwrap()],
        spikes: Some(SpikesRecord {
            late: vec![43],
            late_kept: vec![14],
            captures: 11,
            captures_not_kept: 3,
            baselines: 4,
            bytes: 0,
        }),
        ..Manifest::default()
    };
    std::fs::create_dir(directory.join(JOURNEYS)).unwrap();
    std::fs::write(directory.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
    Run::open(directory).unwrap()
}

fn files() -> SpikeFiles {
    let file = |number: u32| {
        let kind = if number > 11 { CaptureKind::Baseline } else { CaptureKind::Spike };
        let head = latpath_capture::Head {
            number,
            kind: kind.into(),
            from: 0,
            to: 1,
            worst: 1,
            packets: 9,
            late: vec![1],
            more_late: 0,
        };
        SpikeFile { head, bytes: 61_000 }
    };
    SpikeFiles { files: (1..=15).map(file).collect(), notes: Vec::new() }
}

/// What is shown of the story.
fn shown(explanation: &Explanation, context: &RunContext, letters: Letters) -> String {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let text = explanation_text(&Head { run: &run, files: &files() }, explanation, context, letters);
    text.replace(&directory.path().display().to_string(), "RUN")
}

#[test]
fn the_sums_and_the_culprit_stand_in_the_first_lines() {
    let (explanation, context) = story();
    let text = shown(&explanation, &context, Letters::Unicode);
    let first: Vec<&str> = text.lines().take(4).collect();
    assert!(first[0].starts_with("Waiting for its CPU: 90.01 % of the delay of 14 late packets"), "{first:?}");
    assert!(first.iter().any(|line| line.starts_with("By culprit: vCPU 0 of guest7 90.01 %")), "{first:?}");
    let culprit = "vhost of guest7 (5620, CPU 4, SCHED_OTHER) ready but not running behind";
    assert!(first.iter().any(|line| line.starts_with(culprit)), "{first:?}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_sentence_says_who_waited_for_whom() {
    let (context, server) = (context(), || task(911, "server", OTHER));
    let hog = task(7, "hog", fifo(50));
    for (cause, by, said) in [
        (Cause::PollInterval, None, "slept for 12.00 ms by its own timer"),
        (Cause::WaitingForCpu, Some(hog.clone()), "was ready but not running for 12.00 ms behind hog (7, FIFO 50)"),
        (Cause::Blocked, Some(hog), "was blocked for 12.00 ms until woken by hog (7, FIFO 50)"),
        (Cause::Work, None, "worked for 12.00 ms"),
    ] {
        let held = (12 * MS, cause, 1, 0, Some(server()), by);
        let mut packet = packet_of_all_hops(1, 0, true, vec![], vec![], vec![held]);
        packet.hops[3].intervals[1].waiter = Some(relay());
        let text = packet_text(&explained_packet(packet, &Baseline::default(), &context), &context, Letters::Unicode);
        let text: Vec<&str> = text.split_whitespace().collect();
        let said = format!("relay waited for server (911, CPU 0, SCHED_OTHER), which {said}:");
        assert!(text.join(" ").contains(&said), "{said} is not in {text:?}");
    }
}

#[test]
fn one_packet_from_point_to_point() {
    let (explanation, context) = story();
    insta::assert_snapshot!(packet_text(&explanation.worst[0], &context, Letters::Unicode));
}

#[test]
fn a_crowd_and_a_gap_are_reported_too() {
    let (explanation, context) = story();
    let of = |number| explanation.worst.iter().find(|t| t.explained.number == number).unwrap();
    let text =
        packet_text(of(4001), &context, Letters::Unicode) + "\n" + &packet_text(of(77), &context, Letters::Unicode);
    insta::assert_snapshot!(text);
}

#[test]
fn ascii_stays_ascii_and_no_line_is_wider_than_the_page() {
    let (mut explanation, mut context) = story();
    for letters in [Letters::Unicode, Letters::Ascii] {
        let text = shown(&explanation, &context, letters) + &packet_text(&explanation.worst[0], &context, letters);
        assert!(letters == Letters::Unicode || text.is_ascii(), "{text}");
    }
    insta::assert_snapshot!(packet_text(&explanation.worst[0], &context, Letters::Ascii));
    context.vms[0].name = "a-guest-with-a-very-long-name-and-then-some-more-of-it".into();
    context.points[0].point.device = "x".repeat(60);
    explanation.ranking[0].row.share.actor.as_mut().unwrap().name = "y".repeat(80);
    for letters in [Letters::Unicode, Letters::Ascii] {
        let text = shown(&explanation, &context, letters) + &packet_text(&explanation.worst[0], &context, letters);
        for line in text.lines() {
            // A command is never broken: it is to be copied.
            let is_command = ["taskset", "virsh", "chrt"].iter().any(|c| line.trim_start().starts_with(c));
            assert!(is_command || line.width() <= WIDTH, "{} columns: {line}", line.width());
        }
    }
}

#[test]
fn names_from_outside_cannot_steer_the_terminal() {
    let (mut explanation, mut context) = story();
    let evil = "\u{1b}[2J\u{202e}\u{7}";
    context.streams[0] = "svid:MU\u{1b}[2J".parse().unwrap();
    context.points[1].point.device = evil.into();
    explanation.notes.push(evil.into());
    explanation.ranking[0].row.share.actor.as_mut().unwrap().name = evil.into();
    for interval in explanation.worst.iter_mut().flat_map(|t| &mut t.explained.hops).flat_map(|p| &mut p.intervals) {
        interval.notes = vec![evil.into()];
        interval.state = Some(evil.into());
        interval.actor.iter_mut().chain(&mut interval.by).for_each(|who| who.name = evil.into());
    }
    for explained_packet in &mut explanation.worst {
        for held in &mut explained_packet.attribution.shares {
            held.actor.iter_mut().for_each(|a| a.name = evil.into());
            held.notes.push((evil.into(), 1));
            held.state = Some(evil.into());
        }
        explained_packet.advice.iter_mut().for_each(|a| a.commands.push(evil.into()));
    }
    let mut text = shown(&explanation, &context, Letters::Unicode);
    explanation
        .worst
        .iter()
        .for_each(|explained_packet| text += &packet_text(explained_packet, &context, Letters::Unicode));
    assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'));
}

/// A packet whose reader's CPU was slow to come out of this idle state, as its explanation, its waterfall and its JSON show it.
fn out_of_idle(number: u64, state: Option<&str>) -> (String, String, serde_json::Value) {
    let context = context();
    let mut baseline = Baseline::default();
    (0..40).for_each(|n| baseline.add(&packet_of_all_hops(n, 0, false, vec![], vec![], vec![])));
    let mut late = packet_of_all_hops(2375, 0, true, vec![], vec![], vec![]);
    let moved = 5 * MS;
    for hop in &mut late.hops {
        for interval in &mut hop.intervals {
            if interval.cause == Cause::IdleExit {
                interval.to += moved;
                (interval.number, interval.state) = (Some(number), state.map(Into::into));
            } else if interval.from > 13 * US {
                (interval.from, interval.to) = (interval.from + moved, interval.to + moved);
            }
        }
        (hop.begin, hop.end) = (hop.intervals[0].from, hop.intervals.last().unwrap().to);
    }
    late.seen.iter_mut().skip(2).for_each(|seen| seen.t += moved);
    let explained_packet = explained_packet(late, &baseline, &context);
    let mut ranking = Ranking::default();
    ranking.add(&explained_packet.attribution);
    let rows =
        ranking.rows().into_iter().map(|row| RankedCause { row, advice: explained_packet.advice.clone() }).collect();
    let mut explanation = Explanation { late: 1, excess_ns: moved, ranking: rows, ..story().0 };
    // However its lines are broken.
    let line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let packet = line(packet_text(&explained_packet, &context, Letters::Unicode));
    explanation.spikes.clear();
    explanation.worst = vec![explained_packet];
    let json = explanation_json(None, &explanation, &context);
    (line(shown(&explanation, &context, Letters::Unicode)), packet, json)
}

#[test]
fn an_idle_state_is_reported_by_its_name_where_that_is_known() {
    let (all, packet, json) = out_of_idle(3, Some("C1E"));
    assert!(all.contains("idle state C1E") && all.contains("until its CPU had left its idle state (C1E)"), "{all}");
    assert!(packet.contains("waited for 5.006 ms until its CPU had left its idle state (C1E)"), "{packet}");
    assert!(packet.contains("from idle state C1E"), "{packet}");
    assert!(all.contains("the CPU came out of C1E"), "{all}");
    for cause in [&json["causes"][0], &json["packets"][0]["causes"][0]] {
        assert_eq!((&cause["cause"], &cause["number"]), (&"idle-exit".into(), &3.into()));
        assert_eq!(cause["idle_state"], "C1E");
    }
    let (all, packet, json) = out_of_idle(3, None);
    assert!(all.contains("idle state 3"), "{all}");
    assert!(packet.contains("until its CPU had left its idle state (state 3)"), "{packet}");
    assert!(packet.contains("from idle state 3"), "{packet}");
    assert_eq!(json["causes"][0]["idle_state"], serde_json::Value::Null);
}

#[test]
fn where_nobody_knows_that_stands_first() {
    let (mut explanation, context) = story();
    explanation.ranking.last_mut().unwrap().row.share.excess_ns = 900 * MS;
    explanation.excess_ns += 900 * MS;
    let text = shown(&explanation, &context, Letters::Unicode);
    insta::assert_snapshot!(text.split("\n\n").next().unwrap());
}

#[test]
fn json_has_keys_that_docs_describe_and_sums_that_hold() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let (explanation, context) = story();
    let json = explanation_json(Some((&run, &files())), &explanation, &context);
    let ns = |v: &serde_json::Value, key: &str| v[key].as_i64().unwrap();
    let list = |v: &serde_json::Value, key: &str| v[key].as_array().unwrap().clone();
    let rows: Ns = list(&json, "causes").iter().map(|r| ns(r, "excess_ns")).sum();
    assert_eq!(rows + ns(&json["other_causes"], "excess_ns"), ns(&json, "excess_ns"));
    for packet in list(&json, "packets") {
        assert_eq!(list(&packet, "causes").iter().map(|c| ns(c, "time_ns")).sum::<Ns>(), ns(&packet, "time_ns"));
        assert_eq!(list(&packet, "causes").iter().map(|c| ns(c, "excess_ns")).sum::<Ns>(), ns(&packet, "excess_ns"));
        for segment in list(&packet, "segments") {
            assert_eq!(
                list(&segment, "intervals").iter().map(|p| ns(p, "time_ns")).sum::<Ns>(),
                ns(&segment, "time_ns")
            );
        }
    }
    let docs = include_str!("../../../docs/json.md");
    let docs = docs.split("## `latpath explain").nth(1).expect("a section of docs/json.md");
    let mut unknown = Vec::new();
    keys(&json, &mut unknown);
    unknown.retain(|key| !docs.contains(&format!("`{key}`")) && !json["run"].as_object().unwrap().contains_key(key));
    unknown.sort();
    unknown.dedup();
    let of_run = ["utc", "utc_ns", "tai_ns", "monotonic_ns"];
    unknown.retain(|key| !of_run.contains(&key.as_str()) && json["run"]["host"].get(key).is_none());
    assert_eq!(unknown, Vec::<String>::new(), "keys that docs/json.md does not name");
}

fn keys(value: &serde_json::Value, all: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
            all.push(key.clone());
            keys(value, all);
        }),
        serde_json::Value::Array(list) => list.iter().for_each(|value| keys(value, all)),
        _ => {}
    }
}
