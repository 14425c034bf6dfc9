//! Advice on each cause, and no advice if it does not apply.

use latpath_cause::{advise, Actor, Advice, Cause, CauseShare, NoFlow, Note, Process, RunContext};
use latpath_flight::{Class, Doing, Running, Vector};
use latpath_model::{Point, PointInfo};
use latpath_settings::Setting;
use latpath_vms::{Accel, Bridge, Role, Tap, Thread, Vm};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

fn thread(tid: u32, role: Role, vcpu: Option<u32>, cpus: &str) -> Thread {
    Thread { tid, role, vcpu, comm: "x".into(), cpus_allowed: cpus.parse().unwrap(), ..Thread::default() }
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
        vcpus: Some(2),
        vhost_net: 1,
        taps: vec![tap],
        threads: vec![
            thread(5600, Role::MainLoop, None, "0-7"),
            thread(6154, Role::Vcpu, Some(0), "4"),
            thread(6155, Role::Vcpu, Some(1), "5"),
            thread(5620, Role::Vhost, None, "0-7"),
        ],
        ..Vm::default()
    }
}

const OTHER: Class = Class { prio: 120, policy: 0 };

fn fifo(priority: i16) -> Class {
    Class { prio: 99 - priority, policy: 1 }
}

fn actor(name: &str, pid: u32, class: Class) -> Actor {
    let doing = Doing::Thread(Running { pid, class: Some(class), guest: false, work: None });
    Actor {
        name: name.into(),
        doing,
        class: Some(class),
        pids: vec![pid],
        is_tool: false,
        process: None,
        threads: vec![],
    }
}

fn other(name: &str, doing: Doing) -> Actor {
    Actor { name: name.into(), doing, class: None, pids: vec![], is_tool: false, process: None, threads: vec![] }
}

fn share(cause: Cause, machine: &str, actor: Option<Actor>, by: Option<Actor>) -> CauseShare {
    CauseShare {
        cause,
        machine: machine.into(),
        actor,
        time_ns: 10,
        excess_ns: 10,
        by: by.into_iter().map(|by| (by, 10)).collect(),
        cpus: vec![(if machine == "host" { 4 } else { 0 }, 10)],
        hops: vec![((0, 1), 10)],
        number: None,
        state: None,
        waiter: None,
        notes: vec![],
    }
}

fn points() -> Vec<PointInfo> {
    let info = |name: &str| PointInfo::from(name.parse::<Point>().unwrap());
    vec![info("host/nic-rx@enp7s0"), info("host/tx@vnet7")]
}

/// Advice for a share, on a host with 8 CPUs and one guest on CPUs 4 and 5.
fn advice_of(share: &CauseShare) -> Vec<Advice> {
    advice_beside(vm(), share)
}

/// Like [`advice_of`], but in a context with this guest.
fn advice_beside(vm: Vm, share: &CauseShare) -> Vec<Advice> {
    advice_at(points(), vm, share)
}

fn advice_at(points: Vec<PointInfo>, vm: Vm, share: &CauseShare) -> Vec<Advice> {
    let streams = vec!["svid:MU01,vlan=7,mac=01:0c:cd:04:00:01".parse().unwrap()];
    let cpus = BTreeMap::from([("host".into(), "0-7".parse().unwrap()), ("guest7".into(), "0".parse().unwrap())]);
    let governors = vec!["powersave".to_owned()];
    let context = RunContext { vms: vec![vm].into(), points, streams, cpus, governors, ..RunContext::default() };
    advise(share, Some(0), &context)
}

fn commands(share: &CauseShare) -> Vec<String> {
    advice_of(share).into_iter().flat_map(|advice| advice.commands).collect()
}

#[test]
fn vhost_behind_a_vcpu_in_real_time_is_moved_first_and_raised_second() {
    let vhost = actor("vhost of guest7", 5620, OTHER);
    let vcpu = actor("vCPU 0 of guest7", 6154, fifo(1));
    assert_eq!(
        commands(&share(Cause::WaitingForCpu, "host", Some(vhost), Some(vcpu))),
        ["taskset -cp 0-3,6-7 5620", "virsh emulatorpin guest7 0-3,6-7 --live --config", "chrt -f -p 2 5620"]
    );
}

#[test]
fn a_guest_unknown_to_libvirt_gets_no_virsh_commands() {
    let (vhost, vcpu) = (actor("vhost of guest7", 5620, OTHER), actor("vCPU 0 of guest7", 6154, fifo(1)));
    let share = share(Cause::WaitingForCpu, "host", Some(vhost), Some(vcpu));
    let all = advice_beside(Vm { libvirt: false, ..vm() }, &share);
    let commands: Vec<_> = all.into_iter().flat_map(|advice| advice.commands).collect();
    assert_eq!(commands, ["taskset -cp 0-3,6-7 5620", "chrt -f -p 2 5620"]);
}

#[test]
fn a_thread_behind_a_real_time_thread_gets_a_higher_priority() {
    let hog = actor("stress-ng", 900, fifo(50));
    let app = actor("relay", 77, OTHER);
    assert_eq!(
        commands(&share(Cause::WaitingForCpu, "guest7", Some(app.clone()), Some(hog.clone()))),
        ["chrt -f -p 51 77"]
    );
    let urgent = actor("relay", 77, fifo(50));
    assert_eq!(commands(&share(Cause::WaitingForCpu, "guest7", Some(urgent), Some(hog)))[0], "chrt -f -p 51 77");
    let most = actor("watchdog", 900, fifo(99));
    let all = commands(&share(Cause::WaitingForCpu, "host", Some(app), Some(most)));
    assert_eq!(all, ["taskset -cp 0-3,6-7 77"], "nothing is above 99, and a vCPU is pinned to CPU 4");
}

#[test]
fn a_thread_behind_many_ordinary_ones_gets_a_real_time_priority() {
    let mut crowd = actor("rustc", 900, OTHER);
    crowd.pids = vec![898, 899, 900];
    let vcpu = actor("vCPU 1 of guest7", 6155, OTHER);
    let advice = advice_of(&share(Cause::VcpuPreempted, "host", Some(vcpu), Some(crowd)));
    assert_eq!(advice[0].commands, ["chrt -f -p 1 6155"]);
    assert_eq!(advice[1].what, "keep rustc off CPU 4");
    assert_eq!(
        advice[1].commands,
        ["for pid in 898 899 900; do taskset -cp 0-3,6-7 $pid; done"],
        "those that were seen, and no others of that name"
    );
}

#[test]
fn the_waiting_thread_is_pinned_before_others_are_moved_off_its_cpu() {
    let mut waits =
        share(Cause::WaitingForCpu, "host", Some(actor("relay", 77, OTHER)), Some(actor("rustc", 9, OTHER)));
    waits.cpus = vec![(2, 10)];
    assert_eq!(commands(&waits), ["chrt -f -p 1 77", "taskset -cp 2 77", "taskset -cp 0-1,3,6-7 9"]);
    let process = |unit: &str| Process { pid: 9, name: "rustc".into(), unit: Some(unit.into()), owner: None };
    waits.by[0].0.process = Some(process("builder.service"));
    assert_eq!(
        commands(&waits)[2..],
        ["taskset -cp 0-1,3,6-7 9", "systemctl set-property --runtime builder.service AllowedCPUs=0-1,3,6-7"],
        "threads that it starts later are moved too"
    );
    waits.actor.as_mut().unwrap().process = Some(process("builder.service"));
    assert_eq!(commands(&waits).len(), 3, "its own unit is not moved off its CPU");
}

#[test]
fn the_advice_on_a_queueing_discipline_depends_on_its_timer() {
    let of = |timer: &str| {
        let by = other(timer, Doing::Timer(7));
        advice_of(&share(Cause::QdiscHeld, "host", None, Some(by)))[0].what.clone()
    };
    assert!(of("timer advance_sched").contains("gate"));
    let others = of("timer qdisc_watchdog");
    assert!(others.contains("tbf") && !others.contains("gate") && !others.contains("schedule"), "{others}");
}

#[test]
fn the_advice_on_a_queueing_discipline_names_its_kind_if_known() {
    let mut points = points();
    (points[1].netns, points[1].ifindex) = (7, 3);
    let of = |device: (u32, u32), kinds: &[&str]| {
        let kinds = kinds.iter().map(ToString::to_string).collect();
        let known = RunContext {
            points: points.clone(),
            qdiscs: [(device, kinds)].into_iter().collect(),
            ..RunContext::default()
        };
        let share = share(Cause::QdiscHeld, "host", None, Some(other("timer qdisc_watchdog", Doing::Timer(7))));
        (latpath_cause::held_at(&share, &known).unwrap(), advise(&share, Some(0), &known)[0].what.clone())
    };
    let (place, what) = of((7, 3), &["tbf"]);
    assert!(place.ends_with(" (tbf)"), "{place}");
    assert!(what.starts_with("tbf limits the rate") && !what.contains("netem"), "{what}");
    let (place, what) = of((7, 3), &["prio", "netem"]);
    assert!(place.ends_with(" (prio, netem)") && what.starts_with("netem adds a delay"), "{place}: {what}");
    let (place, what) = of((7, 4), &["tbf"]);
    assert!(!place.contains('(') && what.starts_with("look at the queueing discipline"), "{place}: {what}");
}

#[test]
fn a_cpus_own_thread_is_not_moved() {
    let ksoftirqd = actor("ksoftirqd/4", 40, OTHER);
    let vhost = actor("vhost of guest7", 5620, OTHER);
    let all = commands(&share(Cause::WaitingForCpu, "host", Some(vhost), Some(ksoftirqd)));
    assert!(all.iter().all(|c| !c.ends_with(" 40")), "{all:?}");
}

#[test]
fn interrupts_are_moved_to_other_cpus() {
    let vhost = || Some(actor("vhost of guest7", 5620, OTHER));
    let of = |name: &str, doing| commands(&share(Cause::Interrupted, "host", vhost(), Some(other(name, doing))));
    assert_eq!(of("irq 25 enp7s0", Doing::Irq(25)), ["echo 0-3,6-7 > /proc/irq/25/smp_affinity_list"]);
    assert_eq!(of("softirq NET_RX", Doing::Softirq(3)), ["echo 0-3,6-7 > /proc/irq/N/smp_affinity_list"]);
    assert_eq!(of("NMI", Doing::Nmi), ["sysctl kernel.nmi_watchdog=0"]);
    assert_eq!(
        of("timer interrupt", Doing::Vector(Vector::LocalTimer)),
        ["isolcpus=4 nohz_full=4 rcu_nocbs=4 irqaffinity=0-3,6-7"]
    );
    // A softirq's time is not charged to a thread, so raising a priority does not help.
    let waits = share(
        Cause::SoftirqWait,
        "host",
        Some(other("softirq NET_RX", Doing::Softirq(3))),
        Some(other("irq 25 x", Doing::Irq(25))),
    );
    assert_eq!(commands(&waits), ["echo 0-3,6-7 > /proc/irq/25/smp_affinity_list"]);
}

#[test]
fn without_an_interrupt_packets_are_steered_to_other_cpus() {
    let share = share(
        Cause::Interrupted,
        "host",
        Some(actor("vhost of guest7", 5620, OTHER)),
        Some(other("softirq NET_RX", Doing::Softirq(3))),
    );
    for (device, netns, command) in [
        ("hin", 0, "echo cf > /sys/class/net/hin/queues/rx-0/rps_cpus"),
        ("hin%bay", 4026532, "ip netns exec bay sh -c 'echo cf > /sys/class/net/hin/queues/rx-0/rps_cpus'"),
        (
            "hin",
            4026532,
            "nsenter --net=$(find -L /run/netns/* /proc/[0-9]*/ns/net -inum 4026532 -print -quit 2>/dev/null) unshare -m \
             sh -c 'mount -t sysfs sysfs /sys && echo cf > /sys/class/net/hin/queues/rx-0/rps_cpus'",
        ),
    ] {
        let mut points = points();
        points[0].point.device = device.into();
        points[0].netns = netns;
        points[0].link = latpath_model::Link::Veth;
        let commands: Vec<_> = advice_at(points, vm(), &share).into_iter().flat_map(|a| a.commands).collect();
        let nic = "echo 0-3,6-7 > /proc/irq/N/smp_affinity_list";
        assert_eq!(commands, [command, nic]);
    }
}

#[test]
fn limits_are_lifted_where_they_are_set() {
    let vcpu = |class| Some(actor("vCPU 0 of guest7", 6154, class));
    let all = commands(&share(Cause::Throttled, "host", vcpu(OTHER), None));
    assert_eq!(all[0], "echo max > $(findmnt -fnt cgroup2 -o TARGET)$(sed -n 's/^0:://p' /proc/6154/cgroup)/cpu.max");
    assert!(all[1].ends_with("/cpu.cfs_quota_us"), "{all:?}");
    assert!(all[2].starts_with("virsh schedinfo guest7 --live --config --set "), "{all:?}");
    let realtime = commands(&share(Cause::Throttled, "host", vcpu(fifo(1)), None));
    assert!(realtime[0].contains("cat $g/cpu.rt_runtime_us"), "its group's limit is shown first: {realtime:?}");
    assert_eq!(
        realtime[1..],
        [
            "sysctl kernel.sched_rt_runtime_us=-1",
            "taskset -c 4 sh -c 'echo \"$1\" > \"$2\"' sh 0 /sys/kernel/debug/sched/fair_server/cpu4/runtime"
        ]
    );
    let deadline = commands(&share(Cause::Throttled, "host", vcpu(Class { prio: -1, policy: 6 }), None));
    assert!(deadline[0].contains("chrt -d --sched-runtime $((") && deadline[0].ends_with(" -p 0 6154"), "{deadline:?}");
    assert_eq!(deadline[1..], ["chrt -p 6154"]);
    let stopped = commands(&share(Cause::Stopped, "host", vcpu(OTHER), None));
    assert!(stopped[1].ends_with("/cgroup.freeze"), "{stopped:?}");
    assert!(stopped[2].contains("cgroup -O freezer") && stopped[2].ends_with("/freezer.state"), "of version 1");
}

#[test]
fn threads_of_a_virtual_machine_are_named_by_numbers_and_for_libvirt() {
    let behind = |name: &str, pids: &[u32]| {
        let by = Actor { pids: pids.to_vec(), ..actor(name, pids[0], OTHER) };
        let mut vm = vm();
        let io = |tid, comm: &str| Thread { comm: comm.into(), ..thread(tid, Role::Io, None, "0-7") };
        vm.threads.extend([thread(5621, Role::Vhost, None, "0-7"), io(5630, "IO iothread3"), io(5631, "iou-wrk-5600")]);
        let mut share = share(Cause::WaitingForCpu, "host", Some(actor("relay", 77, OTHER)), Some(by));
        share.cpus = vec![(3, 10)];
        advice_beside(vm, &share)[2].commands.clone()
    };
    assert_eq!(
        behind("vhost of guest7", &[5620, 5621]),
        ["for pid in 5620 5621; do taskset -cp 0-2,6-7 $pid; done", "virsh emulatorpin guest7 0-2,6-7 --live --config"],
        "no thread has that name"
    );
    assert_eq!(behind("vhost", &[41, 42]), ["for pid in 41 42; do taskset -cp 0-2,6-7 $pid; done"]);
    assert_eq!(
        behind("I/O thread of guest7", &[5630]),
        ["taskset -cp 0-2,6-7 5630", "virsh iothreadpin guest7 3 0-2,6-7 --live --config"]
    );
    assert_eq!(behind("I/O thread of guest7", &[5631]), ["taskset -cp 0-2,6-7 5631"], "not one that libvirt knows");
}

#[test]
fn advice_on_a_wait_for_a_device_shows_how_to_find_the_device() {
    let of = |libvirt| {
        let share = share(Cause::Blocked, "host", Some(actor("vhost of guest7", 5620, OTHER)), None);
        let all = advice_beside(Vm { libvirt, ..vm() }, &share);
        all.into_iter().flat_map(|advice| advice.commands).collect::<Vec<_>>()
    };
    let record = "perf record -e sched:sched_switch --filter 'prev_state == 2' -g -t 5620 -- sleep 10";
    assert_eq!(of(true), ["virsh edit guest7", record]);
    assert_eq!(of(false), ["-overcommit mem-lock=on", record]);
    assert_eq!(commands(&share(Cause::Blocked, "host", Some(actor("relay", 5, OTHER)), None)).len(), 1);
}

#[test]
fn a_device_is_looked_for_in_its_own_namespace() {
    let of = |device: &str, netns| {
        let mut points = points();
        points[1].point.device = device.into();
        points[1].netns = netns;
        let share = share(Cause::QdiscHeld, "host", None, None);
        let known = RunContext { points, ..RunContext::default() };
        let all = advise(&share, Some(0), &known);
        all.into_iter().flat_map(|advice| advice.commands).collect::<Vec<_>>()
    };
    let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino() as u32;
    assert_eq!(of("eth0", own), ["tc -s qdisc show dev eth0", "tc qdisc del dev eth0 root"]);
    assert_eq!(of("eth0%relay", 4026531000)[1], "ip netns exec relay tc qdisc del dev eth0 root");
    assert_eq!(of("eth0%7", 4026531000)[1], "ip netns exec 7 tc qdisc del dev eth0 root");
    // The command must not run in the shell's namespace, which may have another device with this name.
    for device in ["eth0", "eth0%4026531000"] {
        assert_eq!(
            of(device, 4026531000)[0],
            "nsenter --net=$(find -L /run/netns/* /proc/[0-9]*/ns/net -inum 4026531000 -print -quit 2>/dev/null) \
             tc -s qdisc show dev eth0"
        );
    }
}

#[test]
fn the_switch_gets_a_flow_for_the_stream() {
    let handler = actor("handler12", 300, OTHER);
    assert_eq!(
        commands(&share(Cause::Upcall, "host", Some(handler), None))[0],
        "ovs-ofctl add-flow br0 priority=1000,dl_type=0x88ba,dl_vlan=7,dl_dst=01:0c:cd:04:00:01,actions=output:vnet7"
    );
}

#[test]
fn the_advice_on_upcalls_follows_the_reason_why_no_flow_matched() {
    let of = |reason: Option<NoFlow>| {
        let handler = share(Cause::Upcall, "host", Some(actor("handler12", 300, OTHER)), None);
        let notes = reason.map(|reason| (Note::NoFlow(reason), 10)).into_iter().collect();
        advice_of(&CauseShare { notes, ..handler }).into_iter().map(|advice| advice.what).collect::<Vec<_>>()
    };
    let names = |reason, word: &str| of(reason).iter().any(|what| what.contains(word));
    assert!(names(None, "keep flows in the kernel") && names(Some(NoFlow::Idle), "keep flows in the kernel"));
    assert!(names(Some(NoFlow::FlowLimit), "a million flows"));
    assert!(names(Some(NoFlow::Emptied), "ovs-dpctl del-flows"));
    assert!(names(Some(NoFlow::Revalidated), "do not change OpenFlow rules"));
    assert_eq!(of(Some(NoFlow::NeverThere)).len(), 2, "only the rule, and how to take it away");
}

#[test]
fn each_cause_has_its_own_advice() {
    let vhost = || Some(actor("vhost of guest7", 5620, OTHER));
    let first = |cause| commands(&share(cause, "host", vhost(), None)).into_iter().next();
    for (cause, command) in [
        (Cause::IdleExit, "cpupower -c 4 idle-set -D 10"),
        (Cause::Stopped, "kill -CONT 5620"),
        (Cause::Blocked, "virsh edit guest7"),
        (Cause::QdiscHeld, "tc -s qdisc show dev vnet7"),
        (Cause::VcpuHalted, "echo 1000000 > /sys/module/kvm/parameters/halt_poll_ns"),
        (Cause::Work, "cpupower -c 4 frequency-set -g performance"),
    ] {
        assert_eq!(first(cause).as_deref(), Some(command), "{cause}");
    }
    for cause in [Cause::QueuedBehind, Cause::PollInterval] {
        let advice = advice_of(&share(cause, "host", vhost(), None));
        assert!(advice.len() == 1 && advice[0].commands.is_empty(), "{cause}: {advice:?}");
    }
    let mut server = share(Cause::PollInterval, "host", Some(actor("db", 9, OTHER)), None);
    server.waiter = Some(actor("relay", 7, OTHER));
    assert_eq!(advice_of(&server)[0].what, "relay waits for db: let db answer without sleeping");
    assert_eq!(advice_of(&share(Cause::Unexplained, "", None, None)), []);
}

#[test]
fn the_first_idle_state_is_not_blamed() {
    let mut of_state = share(Cause::IdleExit, "host", Some(actor("relay", 7, OTHER)), None);
    of_state.number = Some(0);
    assert_eq!(commands(&of_state), ["hwlatdetect --duration=60"]);
    of_state.number = Some(2);
    assert_eq!(commands(&of_state), ["cpupower -c 4 idle-set -D 10"]);
}

#[test]
fn advice_on_an_idle_state_names_it_and_a_poller_in_a_guest_is_not_advised_to_poll() {
    let info = |machine: &str, number, state: &str| {
        let mut of_state = share(Cause::IdleExit, machine, Some(actor("relay", 7, OTHER)), None);
        (of_state.number, of_state.state) = (Some(number), Some(state.to_owned()));
        let mut advice = advice_of(&of_state);
        assert_eq!(advice.len(), 1);
        (advice[0].what.clone(), advice.remove(0).commands)
    };
    assert!(info("host", 0, "POLL").0.starts_with("any CPU leaves its first idle state, POLL, at once: "));
    assert!(info("host", 3, "C6").0.starts_with("the CPU came out of C6: forbid idle states that take 10 µs or more"));
    assert_eq!(info("guest7", 1, "haltpoll").1, ["idle=poll"]);
    let (what, commands) = info("host", 1, "haltpoll idle");
    assert!(
        what.starts_with("cannot be fixed in this machine, which is virtual") && commands == ["vmstat 1 5"],
        "{what}"
    );
    assert!(info("guest7", 0, "POLL").0.contains("what the host did"));
    assert_eq!(info("guest7", 0, "POLL").1, [""; 0]);
}

#[test]
fn a_virtual_host_is_advised_to_check_its_hypervisor() {
    let context = RunContext { is_virtual: true, ..RunContext::default() };
    for cause in [Cause::Work, Cause::IdleExit] {
        let advice = |machine| advise(&share(cause, machine, Some(actor("relay", 7, OTHER)), None), None, &context);
        assert!(
            advice("host")[0].what.starts_with("cannot be fixed in this machine, which is virtual"),
            "{:?}",
            advice("host")
        );
        assert!(!advice("guest7").iter().any(|advice| advice.what.contains("in this machine, which is virtual")));
    }
}

#[test]
fn delays_by_latpath_itself_are_named() {
    let mut tool = actor("lp-guest7", 4000, OTHER);
    tool.is_tool = true;
    tool.threads = vec!["lp-guest7".into()];
    let advice = advice_of(&share(Cause::WaitingForCpu, "host", Some(actor("relay", 7, OTHER)), Some(tool)));
    assert_eq!(advice[0].commands, ["taskset -c 0-3,6-7 latpath record …"]);
    assert!(advice[1].what.starts_with("this is latpath itself (lp-guest7): with --no-flight"), "{advice:?}");
}

#[test]
fn shares_without_an_actor_get_no_advice_and_nothing_panics() {
    for cause in Cause::ALL {
        for machine in ["host", "guest7", "elsewhere"] {
            advice_of(&share(*cause, machine, None, None));
            for (class, by) in [(OTHER, fifo(99)), (fifo(1), OTHER), (Class { prio: -1, policy: 6 }, fifo(1))] {
                let (actor, by) = (actor("a'; rm -rf x", 1, class), actor("b", 2, by));
                advice_of(&share(*cause, machine, Some(actor), Some(by)));
            }
        }
    }
}

/// The advice on each cause, by each kind of culprit, on the host and in a guest.
fn every_advice() -> Vec<Advice> {
    let mut all = Vec::new();
    let culprits = [
        actor("hog", 900, fifo(50)),
        actor("rustc", 901, OTHER),
        other("irq 25 enp7s0", Doing::Irq(25)),
        other("softirq NET_RX", Doing::Softirq(3)),
        other("softirq TIMER", Doing::Softirq(1)),
        other("NMI", Doing::Nmi),
    ];
    let mut points = points();
    points[0].link = latpath_model::Link::Veth;
    for cause in Cause::ALL {
        for machine in ["host", "guest7"] {
            for (by, class) in culprits.iter().flat_map(|by| [(by, OTHER), (by, fifo(60))]) {
                for actor in [actor("vCPU 0 of guest7", 6154, class), actor("relay", 77, class)] {
                    let mut share = share(*cause, machine, Some(actor), Some(by.clone()));
                    share.notes = vec![(Note::Reclaims, 1)];
                    all.extend(advice_at(points.clone(), vm(), &share));
                }
            }
        }
    }
    all
}

#[test]
fn advice_that_changes_a_setting_names_it_and_its_line_is_the_tables() {
    use latpath_settings::{Place, Setting};
    let all = every_advice();
    let named: std::collections::BTreeSet<Setting> = all.iter().flat_map(|advice| advice.settings.clone()).collect();
    for setting in [
        Setting::KernelPreemption,
        Setting::RtRuntime,
        Setting::NmiWatchdog,
        Setting::KvmHaltPoll,
        Setting::KvmApicv,
        Setting::KvmAvic,
        Setting::CpuGovernor,
        Setting::CpuIdleLimit,
        Setting::FairServer,
        Setting::IrqAffinity,
        Setting::DeviceRps,
        Setting::DeviceQdisc,
        Setting::ThreadPriority,
        Setting::ThreadCpus,
        Setting::CgroupQuota,
        Setting::CgroupMemory,
        Setting::VmMemoryLocked,
        Setting::BootIdle,
        Setting::BootIsolcpus,
        Setting::BootNohzFull,
        Setting::BootRcuNocbs,
        Setting::BootIrqaffinity,
    ] {
        assert!(named.contains(&setting), "no advice names {setting}");
    }
    for advice in all {
        assert!(advice.settings.is_empty() || !advice.commands.is_empty(), "{advice:?}");
        // The tool or file name in the table's command, without the value.
        let of_tool = |setting: &Setting| {
            let line = setting.shell(&Place::name("AT"), "VALUE").unwrap_or_default();
            let words: Vec<&str> = line.split(' ').collect();
            let word = if words[0] == "echo" { words[words.len() - 1] } else { words[0] };
            word.rsplit(['/', '=']).next().unwrap_or_default().replace("VALUE", "").to_owned()
        };
        let is_look = advice.settings.contains(&Setting::KvmApicv);
        for tool in advice.settings.iter().filter(|_| !is_look).map(of_tool) {
            let is_there = advice.commands.iter().any(|command| command.contains(&tool) || command.starts_with('-'));
            assert!(is_there, "{tool} in {advice:?}");
        }
    }
    // Advice without a setting must not contain a command that changes one of the table's settings.
    let alone = every_advice().into_iter().filter(|advice| advice.settings.is_empty());
    for command in alone.flat_map(|advice| advice.commands) {
        let is_setting =
            ["echo ", "sysctl ", "cpupower ", "isolcpus", "idle="].iter().any(|word| command.starts_with(word));
        let has_none = command.contains("cgroup.freeze") || command.contains("freezer.state");
        assert!(!is_setting || has_none, "{command}");
    }
}

#[test]
fn advice_on_another_hypervisor_fits_its_own_virtual_machines() {
    let of_b = Vm { threads: vec![thread(6154, Role::Vcpu, Some(0), "1")], ..vm() };
    let mut known = RunContext {
        vms: vec![vm()].into(),
        cpus: BTreeMap::from([("host".into(), "0-7".parse().unwrap()), ("b".into(), "0-3".parse().unwrap())]),
        hypervisors: [("relay".to_owned(), "b".to_owned())].into(),
        is_virtual: true,
        ..RunContext::default()
    };
    let first = |known: &RunContext, share: &CauseShare| advise(share, Some(0), known).swap_remove(0);
    let late = share(Cause::WaitingForCpu, "b", Some(actor("relay-gw", 77, OTHER)), Some(actor("hog", 78, fifo(1))));
    let moved = |known: &RunContext| {
        let all = advise(&late, Some(0), known).into_iter().flat_map(|advice| advice.commands);
        all.filter(|line| line.starts_with("taskset")).collect::<Vec<_>>()
    };
    assert!(moved(&known).contains(&"taskset -cp 1-3 78".to_owned()), "{:?}", moved(&known));
    known.vms.set("b", vec![of_b]);
    assert!(moved(&known).contains(&"taskset -cp 2-3 78".to_owned()), "CPU 1 has b's vCPU: {:?}", moved(&known));
    let idle = CauseShare { state: Some("C6".into()), ..share(Cause::IdleExit, "b", None, None) };
    assert_eq!(first(&known, &idle).settings, [Setting::CpuIdleLimit], "b has CPUs of its own");
    let pending = share(Cause::IrqInjection, "relay", Some(other("irq 25", Doing::Irq(25))), None);
    assert_eq!(first(&known, &pending).machine, "b");
    assert_eq!(first(&known, &CauseShare { machine: "guest7".into(), ..pending }).machine, "host");
}
