//! Hand-made explanations of late packets of one guest. The culprits are a polling vCPU, a polling application,
//! softirqs, and an unknown thread.

use latpath_analysis::{
    explain::{with_fixes, ExplainedPacket, ExplainedSpike},
    Explanation,
};
use latpath_capture::CaptureKind;
use latpath_cause::{
    advise, Attribution, Baseline, Cause, CauseInterval, Executor, Hop, PacketTimeline, Ranking, RunContext,
};
use latpath_clock::TimeOfDay;
use latpath_flight::{Class, Doing, Running};
use latpath_model::{Ns, PacketSighting, Point, PointInfo, SegmentKind};
use latpath_report::{explanation_text, Head};
use latpath_run::{Manifest, Run, SpikeFile, SpikeFiles, SpikesRecord, Stamp, State, JOURNEYS, MANIFEST};
use latpath_stats::units::CharacterSet;
use latpath_vms::{Accel, Bridge, Role, Tap, Thread, Vm};
use std::path::Path;

pub const MS: Ns = 1_000_000;
pub const US: Ns = 1_000;
const START: Ns = 1_767_323_045 * 1_000_000_000;
pub const OTHER: Class = Class { prio: 120, policy: 0 };

pub fn fifo(priority: i16) -> Class {
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

pub fn context() -> RunContext {
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
        vms: vec![vm()].into(),
        named_hypervisors: Default::default(),
        hypervisors: Default::default(),
        processes: Default::default(),
        cpus: [("host".to_owned(), "0-7".parse().unwrap()), ("guest7".to_owned(), "0".parse().unwrap())].into(),
        governors: vec!["performance".into()],
        is_virtual: false,
        qdiscs: Default::default(),
        kernels: Default::default(),
        start_ns: 0,
        time_of_day: TimeOfDay::new(0, START, &[]),
    }
}

pub fn task(pid: u32, name: &str, class: Class) -> Executor {
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

pub fn relay() -> Executor {
    task(815, "relay", OTHER)
}

/// Duration in ns, cause, index of the machine, CPU, actor, culprit.
pub type Interval = (Ns, Cause, usize, u32, Option<Executor>, Option<Executor>);

fn packet(number: u64, at: Ns, late: bool, hops: Vec<(u16, u16, Vec<Interval>)>) -> PacketTimeline {
    let mut t = at;
    let mut seen = vec![PacketSighting { point: hops[0].0, t, cpu: Some(2), tid: Some(0) }];
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
        seen.push(PacketSighting { point: to, t, cpu: Some(last as u16), tid: Some(0) });
        all.push(Hop { from, to, begin, end: t, intervals });
    }
    let machines = vec!["host".into(), "guest7".into()];
    let key = (number % 4000) as u32;
    PacketTimeline { stream: 0, key, number, late, capture: 1, machines, seen, hops: all, visits: Vec::new() }
}

fn on_host(ns: Ns, cause: Cause, cpu: u32, actor: Executor, by: Option<Executor>) -> Interval {
    (ns, cause, 0, cpu, Some(actor), by)
}

/// A packet whose hops contain additional intervals: `read` up to the VM's read, `guest` in the guest, `app` up to the
/// application.
pub fn packet_of_all_hops(
    number: u64,
    at: Ns,
    late: bool,
    read: Vec<Interval>,
    guest: Vec<Interval>,
    app: Vec<Interval>,
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

pub fn explained_packet(explained: PacketTimeline, baseline: &Baseline, context: &RunContext) -> ExplainedPacket {
    let attribution = Attribution::of(&explained, &context.routes[0], baseline, context);
    let advice = attribution.first().map_or(Vec::new(), |first| advise(first, Some(0), context));
    ExplainedPacket { explained, attribution, advice }
}

/// Nine packets delayed by vhost waiting behind a polling vCPU, and by a flood of softirqs; three by a polling
/// application; one by an unknown cause; and one by threads that preempt a vCPU.
pub fn story() -> (Explanation, RunContext) {
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
    let mut crowd: Vec<Interval> = (0..8)
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
        no_flow: Default::default(),
        causality: Vec::new(),
        notes: vec!["guest7: no tracepoint napi:napi_poll: what a softirq did first is not known".into()],
    };
    (explanation, context)
}

pub fn run(directory: &Path) -> Run {
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

pub fn files() -> SpikeFiles {
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

/// The text of an explanation, in which `RUN` stands for the run's directory.
pub fn shown(explanation: &Explanation, context: &RunContext, letters: CharacterSet) -> String {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let text = explanation_text(&Head { run: &run, files: &files() }, explanation, context, letters);
    text.replace(&directory.path().display().to_string(), "RUN")
}
