//! Causes of delay of a packet on its route into a guest and within it.

mod stage;

use latpath_cause::{Analyst, Cause};
use latpath_flight::{EventKind, Left, Sleep};
use latpath_model::PointInfo;
use latpath_vms::Role;
use stage::{fifo, line, vm, Cpu, Stage, NET_RX};

const MAIN: u32 = 60;
const VCPU: u32 = 61;
const HOG: u32 = 9;
const APP: u32 = 400;
const GUESTS: u32 = 401;
/// The guest's clock minus the host's, ns.
const AHEAD: i64 = 1_000_000;
const HLT: u32 = 12;
const EXTERNAL: u32 = 1;

/// A stage on which QEMU's main loop takes the packet at 100 and the guest's NIC receives it at 300.
fn stage(host: impl FnOnce(&mut Stage), guest: impl FnOnce(&mut Cpu)) -> Stage {
    let mut stage = Stage::new(&[(MAIN, "qemu"), (VCPU, "CPU 0/KVM"), (HOG, "hog"), (62, "CPU 1/KVM")]);
    host(&mut stage);
    stage.machine("guest0", AHEAD, &[(APP, "app"), (GUESTS, "guests-own")]);
    stage.cpu(guest);
    stage.vms.push(vm(
        "relay1",
        "tap0",
        &[(MAIN, Role::MainLoop, None), (VCPU, Role::Vcpu, Some(0)), (62, Role::Vcpu, Some(1))],
    ));
    stage.packet(&[("host/vm-read@tap0", 100, 1, MAIN), ("guest0/nic-rx@eth0", 300, 0, 0)]);
    stage
}

/// Adds a guest that is idle until its NIC's interrupt and then handles the packet in a softirq.
fn interrupt_at(c: &mut Cpu, t: i64) {
    c.at(AHEAD + t).irq(25).at(AHEAD + t + 5).raises(NET_RX).at(AHEAD + t + 8).irq_ends(25).softirq(NET_RX);
    c.at(AHEAD + 310).softirq_ends(NET_RX);
}

/// Adds QEMU's main loop on CPU 1, which wakes the vCPU at 130 and then sleeps.
fn main_loop(stage: &mut Stage) {
    stage.cpu(|c| {
        c.runs(MAIN).at(130).wakes(VCPU, 0).at(140).sleeps_then(0);
    });
}

#[test]
fn a_halted_vcpu_is_woken_by_the_thread_with_the_packet() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(20).leaves_guest(0, HLT).at(30).sleeps_then(0).at(150).sleeps_then(VCPU);
                c.at(170).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            main_loop(host);
        },
        |c| interrupt_at(c, 200),
    );
    assert_eq!(
        stage.explained(),
        [
            "100-130 work qemu (60)",
            "130-150 idle-exit CPU 0/KVM (61) < idle",
            "150-170 vm-exit CPU 0/KVM (61)",
            "170-200 irq-injection CPU 0/KVM (61)",
            "200-205 work irq 25",
            "205-208 softirq-wait softirq NET_RX < irq 25",
            "208-300 work softirq NET_RX",
        ]
    );
    assert_eq!(stage.intervals().iter().map(|p| p.machine).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1]);
}

#[test]
fn a_vcpu_that_is_woken_waits_for_its_cpu() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.class(HOG, fifo(80)).runs(VCPU).at(20).leaves_guest(0, HLT).at(30).sleeps_then(HOG);
                c.at(260).sleeps_then(VCPU).at(262).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            main_loop(host);
        },
        |c| interrupt_at(c, 270),
    );
    assert_eq!(stage.explained()[..2], ["100-130 work qemu (60)", "130-260 vcpu-preempted CPU 0/KVM (61) < hog (9)"]);
}

#[test]
fn a_vcpu_that_was_preempted_before_gets_its_interrupt_when_it_runs() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(50).leaves_guest(0, EXTERNAL).at(55).preempted_by(HOG);
                c.at(260).sleeps_then(VCPU).at(264).event(EventKind::KvmInjVirq(33)).at(266).enters_guest(0);
                c.at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            // QEMU's main loop does not wake the vCPU, which is ready already, but only raises its interrupt.
            host.cpu(|c| {
                c.runs(MAIN).at(140).sleeps_then(0);
            });
        },
        |c| interrupt_at(c, 270),
    );
    assert_eq!(
        stage.explained()[..4],
        [
            "100-140 work qemu (60)",
            "140-260 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "260-266 vm-exit CPU 0/KVM (61)",
            "266-270 irq-injection CPU 0/KVM (61)",
        ]
    );
}

#[test]
fn a_pending_interrupt_waits_for_the_guests_activity() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            host.cpu(|c| {
                c.runs(MAIN).at(140).sleeps_then(0);
            });
        },
        |c| {
            c.runs(GUESTS);
            interrupt_at(c, 270);
        },
    );
    assert_eq!(
        stage.explained()[..3],
        ["100-140 work qemu (60)", "140-270 irq-injection irq 25 < guests-own (401)", "270-275 work irq 25",]
    );
    assert_eq!(stage.intervals()[1].machine, 1);
}

#[test]
fn a_vcpu_on_an_unrecorded_cpu_is_not_reported_as_running() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.record.since = 500;
                c.at(600).runs(VCPU).sleeps_then(0);
            });
            host.cpu(|c| {
                c.runs(MAIN).at(140).sleeps_then(0);
            });
        },
        |c| interrupt_at(c, 270),
    );
    assert_eq!(stage.explained()[..3], ["100-140 work qemu (60)", "140-270 unexplained", "270-275 work irq 25"]);
    assert_eq!(
        stage.intervals()[1].note().as_deref(),
        Some("what CPU 0/KVM (61) did is not known: the records of some CPUs begin after that time (--flight-budget pauses less)")
    );
}

#[test]
fn a_thread_that_slept_since_has_passed_its_packets_on() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(20).leaves_guest(0, HLT).at(30).sleeps_then(HOG).at(280).sleeps_then(VCPU);
                c.at(282).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            // A later packet wakes QEMU's main loop again; only for that packet does it wake the vCPU.
            host.cpu(|c| {
                c.runs(MAIN).at(140).sleeps_then(0).at(230).softirq(NET_RX).wakes(MAIN, 1).at(240).softirq_ends(NET_RX);
                c.sleeps_then(MAIN).at(270).wakes(VCPU, 0).at(275).sleeps_then(0);
            });
        },
        |c| interrupt_at(c, 290),
    );
    assert_eq!(
        stage.explained()[..5],
        [
            "100-140 work qemu (60)",
            "140-270 vcpu-halted CPU 0/KVM (61) < qemu (60)",
            "270-280 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "280-282 vm-exit CPU 0/KVM (61)",
            "282-290 irq-injection CPU 0/KVM (61)",
        ]
    );
}

#[test]
fn a_vcpu_that_polls_before_it_sleeps_has_halted() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(115).leaves_guest(0, HLT).at(230).enters_guest(0);
                c.at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
        },
        |c| {
            c.at(AHEAD + 10).idles(1).at(AHEAD + 235).idles_no_more().at(AHEAD + 240).sleeps_then(APP);
            c.at(AHEAD + 400).sleeps_then(0);
        },
    );
    stage.cpu(|c| {
        c.at(AHEAD + 80).irq(25).raises(NET_RX).irq_ends(25).softirq(NET_RX).at(AHEAD + 110).wakes(APP, 0);
        c.at(AHEAD + 240).softirq_ends(NET_RX);
    });
    stage.packet(&[("guest0/nic-rx@eth0", 100, 1, 0), ("guest0/app-read@app", 300, 0, APP)]);
    assert_eq!(
        stage.explained()[1..4],
        [
            "110-115 idle-exit app (400) < idle (state 1) #1",
            "115-230 vcpu-halted CPU 0/KVM (61)",
            "230-240 idle-exit app (400) < idle (state 1) #1",
        ]
    );
}

#[test]
fn exits_within_a_guests_work_are_reported_with_their_reason() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU)
                    .at(20)
                    .leaves_guest(0, HLT)
                    .at(30)
                    .sleeps_then(0)
                    .at(150)
                    .sleeps_then(VCPU)
                    .enters_guest(0);
                c.at(220).leaves_guest(0, 48).at(240).enters_guest(0).at(250).leaves_guest(0, EXTERNAL).at(252).irq(7);
                c.at(255).irq_ends(7).at(257).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            main_loop(host);
        },
        |c| interrupt_at(c, 200),
    );
    assert_eq!(
        stage.explained()[5..],
        [
            "208-220 work softirq NET_RX",
            "220-240 vm-exit CPU 0/KVM (61) #48",
            "240-250 work softirq NET_RX",
            "250-252 vm-exit CPU 0/KVM (61) #1",
            "252-255 interrupted CPU 0/KVM (61) < irq 7",
            "255-257 vm-exit CPU 0/KVM (61) #1",
            "257-300 work softirq NET_RX",
        ]
    );
    assert_eq!(stage.intervals()[6].note().as_deref(), Some("EPT_VIOLATION"));
}

#[test]
fn a_vcpu_that_loses_its_cpu_while_its_guest_works_is_preempted() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(30).sleeps_then(0).at(150).sleeps_then(VCPU).enters_guest(0);
                c.at(230).leaves_guest(0, EXTERNAL).preempted_by(HOG).at(280).sleeps_then(VCPU).enters_guest(0);
                c.at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            main_loop(host);
        },
        |c| interrupt_at(c, 200),
    );
    assert_eq!(stage.explained().last().unwrap(), "280-300 work softirq NET_RX");
    assert_eq!(stage.explained()[stage.explained().len() - 2], "230-280 vcpu-preempted CPU 0/KVM (61) < hog (9)");
}

#[test]
fn guests_without_kvms_events_are_ordinary_threads() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(30).sleeps_then(HOG).at(160).sleeps_then(VCPU);
                c.at(230).preempted_by(HOG).at(280).sleeps_then(VCPU).at(400).sleeps_then(0);
            });
            main_loop(host);
        },
        |c| interrupt_at(c, 200),
    );
    assert_eq!(
        stage.explained(),
        [
            "100-130 work qemu (60)",
            "130-160 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "160-200 irq-injection CPU 0/KVM (61)",
            "200-205 work irq 25",
            "205-208 softirq-wait softirq NET_RX < irq 25",
            "208-230 work softirq NET_RX",
            "230-280 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "280-300 work softirq NET_RX",
        ]
    );
}

#[test]
fn a_stopped_virtual_machine_is_stopped() {
    let stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(50).leaves(Left::Asleep(Sleep::Stopped), 0).at(260).sleeps_then(VCPU);
                c.at(400).sleeps_then(0);
            });
            host.cpu(|c| {
                c.runs(MAIN).at(140).leaves(Left::Asleep(Sleep::Stopped), HOG).at(250).wakes(MAIN, 1).wakes(VCPU, 0);
                c.at(270).sleeps_then(MAIN).at(400).sleeps_then(0);
            });
        },
        |c| interrupt_at(c, 280),
    );
    assert_eq!(
        stage.explained()[..4],
        [
            "100-140 work qemu (60)",
            "140-250 stopped CPU 0/KVM (61)",
            "250-260 idle-exit CPU 0/KVM (61) < idle",
            "260-280 irq-injection CPU 0/KVM (61)",
        ]
    );
}

#[test]
fn within_a_guest_the_same_rules_apply_and_the_host_explains_pauses_of_its_cpu() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(210).leaves_guest(0, EXTERNAL).preempted_by(HOG);
                c.at(250).sleeps_then(VCPU).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
        },
        |c| {
            c.class(GUESTS, fifo(50)).runs(GUESTS).at(AHEAD + 80).irq(25).raises(NET_RX).irq_ends(25).softirq(NET_RX);
            c.at(AHEAD + 110).wakes(APP, 0).at(AHEAD + 120).softirq_ends(NET_RX).at(AHEAD + 270).sleeps_then(APP);
            c.at(AHEAD + 310).sleeps_then(0);
        },
    );
    stage.packet(&[("guest0/nic-rx@eth0", 100, 0, 0), ("guest0/app-read@app", 300, 0, APP)]);
    assert_eq!(
        stage.explained(),
        [
            "100-110 work softirq NET_RX",
            "110-120 interrupted app (400) < softirq NET_RX",
            "120-210 waiting-for-cpu app (400) < guests-own (401)",
            "210-250 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "250-270 waiting-for-cpu app (400) < guests-own (401)",
            "270-300 work app (400)",
        ]
    );
}

#[test]
fn a_guests_cpu_that_another_must_wake_is_halted_until_it_does() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).leaves_guest(0, HLT).sleeps_then(0).at(240).sleeps_then(VCPU);
                c.at(245).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            host.cpu(|c| {
                c.runs(62)
                    .at(20)
                    .enters_guest(1)
                    .at(200)
                    .leaves_guest(1, 32)
                    .at(230)
                    .wakes(VCPU, 0)
                    .at(235)
                    .enters_guest(1);
                c.at(400).leaves_guest(1, HLT);
            });
        },
        |c| {
            c.at(AHEAD + 10).idles(1).at(AHEAD + 250).idles_no_more().at(AHEAD + 260).sleeps_then(APP).at(AHEAD + 400);
            c.sleeps_then(0);
        },
    );
    stage.cpu(|c| {
        c.at(AHEAD + 80).irq(25).raises(NET_RX).irq_ends(25).softirq(NET_RX).at(AHEAD + 110).wakes(APP, 0);
        c.at(AHEAD + 240).softirq_ends(NET_RX);
    });
    stage.packet(&[("guest0/nic-rx@eth0", 100, 1, 0), ("guest0/app-read@app", 300, 0, APP)]);
    assert_eq!(
        stage.explained(),
        [
            "100-110 work softirq NET_RX",
            "110-230 vcpu-halted CPU 0/KVM (61) < CPU 1/KVM (62)",
            "230-240 idle-exit CPU 0/KVM (61) < idle",
            "240-245 vm-exit CPU 0/KVM (61)",
            "245-260 idle-exit app (400) < idle (state 1) #1",
            "260-300 work app (400)",
        ]
    );
}

#[test]
fn a_guest_that_sends_is_followed_into_it() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(205).leaves_guest(0, 49).at(215).wakes(MAIN, 1);
                c.at(220).enters_guest(0).at(400).leaves_guest(0, HLT);
            });
            host.cpu(|c| {
                c.runs(MAIN).at(20).sleeps_then(HOG).at(270).sleeps_then(MAIN).at(400).sleeps_then(0);
            });
        },
        |c| {
            c.runs(GUESTS).at(AHEAD + 80).preempted_by(APP).at(AHEAD + 120).preempted_by(GUESTS);
            c.at(AHEAD + 180).preempted_by(APP).at(AHEAD + 400).sleeps_then(0);
        },
    );
    stage.packet(&[("guest0/tx@eth0", 100, 0, APP), ("host/vm-write@tap0", 300, 1, MAIN)]);
    assert_eq!(
        stage.explained(),
        [
            "100-120 work app (400)",
            "120-180 waiting-for-cpu app (400) < guests-own (401)",
            "180-205 work app (400)",
            "205-215 vm-exit CPU 0/KVM (61) #49",
            "215-270 waiting-for-cpu qemu (60) < hog (9)",
            "270-300 work qemu (60)",
        ]
    );
}

#[test]
fn of_a_guest_without_a_record_the_hosts_part_is_explained() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU)
                    .at(20)
                    .leaves_guest(0, HLT)
                    .at(30)
                    .sleeps_then(0)
                    .at(150)
                    .sleeps_then(VCPU)
                    .enters_guest(0);
                c.at(220).leaves_guest(0, EXTERNAL).preempted_by(HOG).at(280).sleeps_then(VCPU).enters_guest(0);
                c.at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            main_loop(host);
        },
        |_| (),
    );
    stage.capture.machines[1].record = Err("no agent".into());
    assert_eq!(
        stage.explained(),
        [
            "100-130 work qemu (60)",
            "130-150 idle-exit CPU 0/KVM (61) < idle",
            "150-220 unexplained",
            "220-280 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "280-300 unexplained",
        ]
    );
    assert_eq!(stage.intervals()[2].note().as_deref(), Some("no record of guest0: no agent"));
    // From one of the guest's points to another, the hypervisor's record also explains the time.
    stage.packet(&[("guest0/nic-rx@eth0", 200, 0, 0), ("guest0/app-read@app", 300, 0, APP)]);
    assert_eq!(
        stage.explained(),
        ["200-220 unexplained", "220-280 vcpu-preempted CPU 0/KVM (61) < hog (9)", "280-300 unexplained",]
    );
}

#[test]
fn a_guest_is_found_by_the_device_of_its_tap_that_returned_under_another_name() {
    let mut stage = stage(main_loop, |c| interrupt_at(c, 200));
    let known = stage.explained();
    let other = vm("relay2", "tap5", &[(9000, Role::MainLoop, None)]);
    stage.vms.push(other);
    (stage.vms[0].taps[0].device, stage.vms[0].taps[0].ifindex) = ("tap9".into(), Some(9));
    assert_ne!(stage.explained(), known, "whose guest it is, is not known");
    let at_tap = |info: &&mut PointInfo| info.point.device_name() == "tap0";
    stage.points.iter_mut().filter(at_tap).for_each(|info| (info.netns, info.ifindex) = (1, 9));
    assert_eq!(stage.explained(), known);
}

#[test]
fn an_unknown_guest_is_explained_by_its_own_record_only() {
    let mut stage = stage(main_loop, |c| interrupt_at(c, 200));
    stage.vms.clear();
    let intervals = stage.intervals();
    assert_eq!(line(&intervals[0]), "100-200 unexplained");
    assert_eq!(
        intervals[0].note().as_deref(),
        Some("what sent irq 25 is not recorded, nor which thread of the host runs CPU 0")
    );
    assert_eq!(intervals[1].cause, Cause::Work);
}

#[test]
fn times_of_imprecise_clocks_are_joined_with_a_note() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(20).leaves_guest(0, HLT).at(30).sleeps_then(0).at(210).sleeps_then(VCPU);
                c.at(212).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            host.cpu(|c| {
                c.runs(MAIN).at(206).wakes(VCPU, 0).at(230).sleeps_then(0);
            });
        },
        // By the guest's clock, the interrupt comes before any wakeup of the vCPU.
        |c| interrupt_at(c, 200),
    );
    stage.capture.machines[1].error_bound_ns = 20;
    assert_eq!(
        stage.explained(),
        [
            "100-200 work qemu (60)",
            "200-206 vcpu-halted CPU 0/KVM (61) < qemu (60)",
            "206-210 idle-exit CPU 0/KVM (61) < idle",
            "210-212 vm-exit CPU 0/KVM (61)",
            "212-300 work softirq NET_RX",
        ]
    );
    assert_eq!(stage.intervals()[3].note().as_deref(), Some("joined: two machines' clocks are known to ±20 ns"));
}

/// Checks a guest whose vCPU is in the guest from 100 to 200 and from 300 to 400. The assumed offset of the guest's
/// clock is `AHEAD`; the real one is greater by `error`. Returns the numbers of checked and violating events.
fn with_a_clock_off_by(error: i64, bound: i64) -> Vec<(u64, u64)> {
    let mut stage = Stage::new(&[(MAIN, "qemu"), (VCPU, "CPU 0/KVM"), (62, "CPU 1/KVM")]);
    stage.cpu(|c| {
        c.runs(VCPU).at(100).enters_guest(0).at(200).leaves_guest(0, HLT).at(210).sleeps_then(0);
        c.at(290).sleeps_then(VCPU).at(300).enters_guest(0).at(400).leaves_guest(0, EXTERNAL).at(500).sleeps_then(0);
    });
    stage.machine("guest0", AHEAD, &[(APP, "app")]);
    stage.capture.machines.last_mut().unwrap().error_bound_ns = bound;
    stage.cpu(|c| {
        for t in [110, 150, 190, 310, 390] {
            c.at(AHEAD + error + t).irq(25).irq_ends(25);
        }
    });
    stage.vms.push(vm("guest0", "tap0", &[(VCPU, Role::Vcpu, Some(0)), (62, Role::Vcpu, Some(1))]));
    let found = Analyst::new(&stage.capture, &stage.context()).causality();
    found.iter().map(|guest| (guest.events.checked, guest.events.violations)).collect()
}

#[test]
fn guest_events_outside_guest_mode_are_counted_beyond_the_clocks_bound() {
    assert_eq!(with_a_clock_off_by(0, 0), [(10, 0)]);
    // The events at 190 and 390 seem to happen at 220 and 420, when the vCPU slept and KVM handled an exit.
    assert_eq!(with_a_clock_off_by(30, 0), [(10, 4)]);
    assert_eq!(with_a_clock_off_by(30, 30), [(10, 0)], "the bound says that it may be so wrong");
    assert_eq!(
        with_a_clock_off_by(90, 30),
        [(10, 4)],
        "those at 150 and 390; the others are at an edge, within the bound"
    );
}

/// A guest without an agent: vhost (62) reads the packet at 100 and raises its interrupt at 110; a vCPU enters the
/// guest with the packet at 300. Returns the intervals.
fn at_door(from: &str, host: impl FnOnce(&mut Cpu)) -> Vec<String> {
    const VHOST: u32 = 62;
    let mut stage = Stage::new(&[(VHOST, "vhost-60"), (VCPU, "CPU 0/KVM"), (HOG, "hog")]);
    stage.cpu(host);
    stage.cpu(|c| {
        c.runs(VHOST).at(115).wakes(VCPU, 0).at(5_000).sleeps_then(0);
    });
    stage.vms.push(vm("relay1", "tap0", &[(VHOST, Role::Vhost, None), (VCPU, Role::Vcpu, Some(0))]));
    let begin = if from == "vm-read" { 100 } else { 110 };
    stage.packet(&[(&format!("host/{from}@tap0"), begin, 1, VHOST), ("host/door-enter@tap0", 300, 0, VCPU)]);
    stage.explained()
}

#[test]
fn a_vcpu_that_does_not_get_its_cpu_keeps_the_packet_at_the_door() {
    let explained = at_door("door-signal", |c| {
        c.class(HOG, fifo(80)).runs(VCPU).at(20).leaves_guest(0, HLT).at(30).sleeps_then(HOG);
        c.at(260).sleeps_then(VCPU).at(300).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
    });
    assert_eq!(
        explained,
        [
            "110-115 work vhost-60 (62)",
            "115-260 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "260-300 vm-exit CPU 0/KVM (61)",
        ]
    );
}

/// QEMU's main loop raises vhost's interrupts. It loses its CPU while raising one, before it wakes the vCPU, and the
/// packet arrives in the meantime.
#[test]
fn a_halted_vcpu_waits_for_the_thread_that_is_about_to_wake_it() {
    const VHOST: u32 = 62;
    let mut stage = Stage::new(&[(VHOST, "vhost-60"), (MAIN, "qemu"), (VCPU, "CPU 0/KVM"), (HOG, "hog")]);
    stage.cpu(|c| {
        c.runs(VCPU).at(20).leaves_guest(0, HLT).at(30).sleeps_then(0).at(262).sleeps_then(VCPU);
        c.at(300).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(MAIN).at(90).preempted_by(HOG).at(250).sleeps_then(MAIN);
        c.at(260).wakes(VCPU, 0).at(5_000).sleeps_then(0);
    });
    stage.vms.push(vm("relay1", "tap0", &[(VHOST, Role::Vhost, None), (VCPU, Role::Vcpu, Some(0))]));
    stage.packet(&[("host/vm-read@tap0", 100, 1, VHOST), ("host/door-enter@tap0", 300, 0, VCPU)]);
    assert_eq!(
        stage.explained(),
        [
            "100-250 waiting-for-cpu qemu (60) < hog (9)",
            "250-260 work qemu (60)",
            "260-262 idle-exit CPU 0/KVM (61) < idle",
            "262-300 vm-exit CPU 0/KVM (61)",
        ]
    );
}

#[test]
fn what_vhost_does_after_its_signal_does_not_keep_the_packet_at_the_door() {
    let explained = at_door("door-signal", |c| {
        c.runs(VCPU).at(10).enters_guest(0).at(200).leaves_guest(0, EXTERNAL).at(210);
        c.event(EventKind::KvmInjVirq(33)).at(300).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
    });
    let exit = format!("200-300 vm-exit CPU 0/KVM (61) #{EXTERNAL}");
    assert_eq!(explained, ["110-200 irq-injection CPU 0/KVM (61)", &exit]);
}

#[test]
fn a_packet_that_a_polling_guest_will_find_waits_for_its_vcpu() {
    let explained = at_door("vm-read", |c| {
        c.runs(VCPU).at(10).enters_guest(0).at(50).leaves_guest(0, EXTERNAL).at(55).preempted_by(HOG);
        c.at(290).sleeps_then(VCPU).at(300).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
    });
    assert_eq!(explained[0], "100-290 vcpu-preempted CPU 0/KVM (61) < hog (9)");
}

#[test]
fn behind_the_door_the_guest_has_the_packet() {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            host.cpu(|c| {
                c.runs(MAIN).at(280).sleeps_then(0);
            });
        },
        |c| {
            c.runs(GUESTS);
            interrupt_at(c, 270);
        },
    );
    stage.packet(&[("host/door-enter@tap0", 150, 0, VCPU), ("guest0/nic-rx@eth0", 300, 0, 0)]);
    assert_eq!(stage.explained()[..2], ["150-270 irq-injection irq 25 < guests-own (401)", "270-275 work irq 25"]);
}

/// The clock of machine b minus the host's, ns.
const B_AHEAD: i64 = 3_000_000;

/// The host runs guest0. Machine b runs relay, in a virtual machine with the same tap name and thread IDs as the
/// host's: only the machine distinguishes them. A packet goes from b's QEMU to relay.
fn two_hypervisors() -> Stage {
    let mut stage = stage(
        |host| {
            host.cpu(|c| {
                c.runs(VCPU).at(10).enters_guest(0).at(400).leaves_guest(0, HLT).sleeps_then(0);
            });
            main_loop(host);
        },
        |c| interrupt_at(c, 270),
    );
    stage.machine("b", B_AHEAD, &[(MAIN, "qemu"), (VCPU, "CPU 0/KVM"), (HOG, "hog")]);
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(VCPU).at(B_AHEAD + 20).leaves_guest(0, HLT).at(B_AHEAD + 30).sleeps_then(HOG);
        c.at(B_AHEAD + 260).sleeps_then(VCPU).at(B_AHEAD + 262).enters_guest(0);
        c.at(B_AHEAD + 400).leaves_guest(0, HLT).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(MAIN).at(B_AHEAD + 130).wakes(VCPU, 0).at(B_AHEAD + 140).sleeps_then(0);
    });
    stage.machine("relay", AHEAD, &[(APP, "app")]);
    stage.cpu(|c| interrupt_at(c, 270));
    stage.vms_of_b.push(vm("relay2", "tap0", &[(MAIN, Role::MainLoop, None), (VCPU, Role::Vcpu, Some(0))]));
    stage.packet(&[("b/vm-read@tap0", 100, 1, MAIN), ("relay/nic-rx@eth0", 300, 0, 0)]);
    stage
}

#[test]
fn a_guest_belongs_to_the_hypervisor_with_its_tap_and_waits_for_the_threads_there() {
    let stage = two_hypervisors();
    assert_eq!(
        stage.explained(),
        [
            "100-130 work qemu (60)",
            "130-260 vcpu-preempted CPU 0/KVM (61) < hog (9)",
            "260-262 vm-exit CPU 0/KVM (61)",
            "262-270 irq-injection CPU 0/KVM (61)",
            "270-275 work irq 25",
            "275-278 softirq-wait softirq NET_RX < irq 25",
            "278-300 work softirq NET_RX",
        ]
    );
    assert_eq!(stage.intervals().iter().map(|p| p.machine).collect::<Vec<_>>(), [2, 2, 2, 2, 3, 3, 3]);
    let mut context = stage.context();
    context.learn(&stage.capture);
    assert_eq!((context.hypervisor_of("guest0"), context.hypervisor_of("relay")), ("host", "b"));
    let name = |machine: &str| context.vm_of(machine, VCPU).map(|(vm, thread)| (vm.name.as_str(), thread.role));
    assert_eq!((name("host"), name("b")), (Some(("relay1", Role::Vcpu)), Some(("relay2", Role::Vcpu))));
    assert_eq!(name("relay"), None, "a guest has threads of these numbers too");
}

#[test]
fn the_record_of_each_guest_is_checked_against_that_of_its_own_hypervisor() {
    let mut stage = two_hypervisors();
    let checked = |stage: &Stage| {
        let found = Analyst::new(&stage.capture, &stage.context()).causality();
        let of = |guest: &latpath_cause::GuestCausality| (guest.machine.clone(), guest.events.violations);
        found.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(checked(&stage), [("guest0".into(), 0), ("relay".into(), 0)]);
    // Then, according to b's record, relay's vCPU was not in the guest at these times.
    stage.capture.machines[3].offset_ns += 100;
    let [(_, of_guest0), (_, of_relay)] = &checked(&stage)[..] else { panic!("two guests") };
    assert!(*of_guest0 == 0 && *of_relay > 0, "{of_guest0} {of_relay}");
    stage.capture.machines[2].error_bound_ns = 150;
    assert_eq!(checked(&stage)[1].1, 0, "the error of b's clock is part of the bound");
}

#[test]
fn a_guest_that_no_packet_shows_belongs_to_the_only_virtual_machine_of_its_name() {
    let mut stage = two_hypervisors();
    stage.capture.packets.clear();
    stage.vms[0].name = "guest0".into();
    stage.vms_of_b[0].name = "relay".into();
    let mut context = stage.context();
    context.learn(&stage.capture);
    assert_eq!(context.hypervisors.get("relay").map(String::as_str), Some("b"));
    stage.vms[0].name = "relay".into();
    let mut context = stage.context();
    context.learn(&stage.capture);
    assert_eq!(context.hypervisors.get("relay"), None, "two hypervisors run a virtual machine of this name");
    context.named_hypervisors.insert("relay".into(), "b".into());
    context.learn(&stage.capture);
    assert_eq!(context.hypervisors.get("relay").map(String::as_str), Some("b"), "the user says which");
}

#[test]
fn between_two_hypervisors_is_a_wire() {
    let mut stage = two_hypervisors();
    stage.machine("c", B_AHEAD, &[]);
    stage.cpu(|c| {
        c.at(B_AHEAD + 180).irq(30).at(B_AHEAD + 184).raises(NET_RX).at(B_AHEAD + 186).irq_ends(30).softirq(NET_RX);
        c.at(B_AHEAD + 310).softirq_ends(NET_RX);
    });
    stage.packet(&[("b/tx@eth1", 100, 1, MAIN), ("c/nic-rx@eth0", 300, 0, 0)]);
    let explained = stage.explained();
    assert_eq!(explained[0], "100-180 device");
    assert_eq!(explained.last().map(String::as_str), Some("186-300 work softirq NET_RX"));
}
