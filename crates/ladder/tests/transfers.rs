//! Each variant in both directions, and the counts other than transfers, from handwritten events.

use latpath_ladder::{
    Device, Direction, Doorbell, Event, EventKind, Identity, Join, Ladder, LadderFigures, Line, MeansReport,
    QueueReport, Step, Variant,
};
use latpath_model::Observation;

const VCPU: u32 = 10;
const WORKER: u32 = 20;
const QEMU: u32 = 30;
const KICK: u64 = 1;
const CALL: u64 = 2;
const VECTOR: u32 = 37;
const POSTED: EventKind = EventKind::Posted { vector: VECTOR };
const TAP: Device = Device { ifindex: 5, netns: 0 };

/// Events of one thread at a time, 10 ns apart.
struct Host {
    ladder: Ladder,
    t: i64,
}

impl Host {
    fn new() -> Self {
        let mut ladder = Ladder::new(Join::Eventfds);
        let vm = Some(QEMU);
        for (pid, name) in [(VCPU, "CPU 0/KVM"), (QEMU, "qemu")] {
            ladder.identify(pid, Identity { name: name.into(), process: vm, is_vhost: false });
        }
        ladder.identify(WORKER, Identity { name: "vhost-30".into(), process: None, is_vhost: true });
        ladder.tap_of(TAP, QEMU);
        ladder.name_device(TAP, "vnet0");
        Self { ladder, t: 0 }
    }

    fn does(&mut self, pid: u32, whats: &[EventKind]) -> &mut Self {
        for what in whats {
            self.t += 10;
            self.ladder.push(&Event { t: self.t, cpu: pid, pid, what: *what });
        }
        self
    }

    fn runs(&mut self, pid: u32) -> &mut Self {
        self.does(0, &[EventKind::Switch { next: pid, asleep: false }])
    }

    fn sleeps(&mut self, pid: u32) -> &mut Self {
        self.does(pid, &[EventKind::Switch { next: 0, asleep: true }])
    }

    /// The guest's kick wakes the server.
    fn kicks(&mut self, server: u32) -> &mut Self {
        self.does(
            VCPU,
            &[EventKind::Exit(0), EventKind::Signal(KICK), EventKind::Waking { pid: server }, EventKind::Entry],
        )
    }

    fn vhost_sends(&mut self) -> &mut Self {
        let direction = Direction::FromGuest;
        self.runs(WORKER).does(
            WORKER,
            &[
                EventKind::Serve { kick: KICK, call: CALL, direction },
                EventKind::Packet { direction, device: Some(TAP) },
            ],
        )
    }

    fn vhost_receives(&mut self) -> &mut Self {
        let direction = Direction::ToGuest;
        self.does(3, &[EventKind::Arrive(TAP), EventKind::Waking { pid: WORKER }]).runs(WORKER).does(
            WORKER,
            &[EventKind::Serve { kick: 3, call: CALL, direction }, EventKind::Packet { direction, device: Some(TAP) }],
        )
    }

    fn irqfd(&mut self) -> &mut Self {
        let message = EventKind::Raise(Line::Message(VECTOR.into()));
        self.does(
            WORKER,
            &[EventKind::Signal(CALL), EventKind::Irqfd(CALL), message, EventKind::Accept { vector: VECTOR }],
        )
    }

    fn guest_takes_it(&mut self) -> &mut Self {
        self.does(VCPU, &[EventKind::Exit(1), EventKind::Inject { vector: VECTOR }, EventKind::Entry])
            .does(VCPU, &[EventKind::Exit(2), EventKind::Eoi { vector: VECTOR }, EventKind::Entry])
    }

    fn relay(&mut self) -> &mut Self {
        self.does(WORKER, &[EventKind::Signal(CALL), EventKind::Waking { pid: QEMU }]).sleeps(WORKER).runs(QEMU).does(
            QEMU,
            &[EventKind::Take(CALL), EventKind::Raise(Line::Wire(11)), EventKind::Accept { vector: VECTOR }],
        )
    }

    fn report(&mut self) -> Observation<LadderFigures> {
        let ladder = std::mem::replace(&mut self.ladder, Ladder::new(Join::Eventfds));
        ladder.finish()
    }
}

fn only(report: &Observation<LadderFigures>) -> (&QueueReport, &MeansReport) {
    assert_eq!((report.figures.causality_violations, report.figures.queues.len()), (0, 1), "{report:#?}");
    assert_eq!(report.figures.queues[0].ladders.len(), 1, "{report:#?}");
    (&report.figures.queues[0], &report.figures.queues[0].ladders[0])
}

fn steps(means: &MeansReport) -> Vec<Step> {
    means.rungs.iter().map(|rung| rung.step).collect()
}

fn rungs(means: &MeansReport) -> Vec<(Step, i64)> {
    means.rungs.iter().map(|rung| (rung.step, rung.time.sum_ns)).collect()
}

#[test]
fn vhost_with_irqfd_goes_from_the_kick_to_the_end_of_the_interrupt() {
    let mut host = Host::new();
    let report = host.kicks(WORKER).vhost_sends().irqfd().sleeps(WORKER).guest_takes_it().report();
    let (queue, means) = only(&report);
    assert_eq!((means.variant, queue.device.as_deref(), queue.by_vhost), (Variant::Irqfd, Some("vnet0"), true));
    let want = [
        (Step::Woken, 20),
        (Step::Runs, 20),
        (Step::Packet, 20),
        (Step::Raised, 20),
        (Step::Reached, 40),
        (Step::Injected, 10),
        (Step::Handled, 30),
    ];
    assert_eq!((rungs(means), means.total.sum_ns), (want.to_vec(), 160));
}

#[test]
fn an_interrupt_that_qemu_relays_has_the_relays_rungs() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().relay();
    let report = host
        .does(
            VCPU,
            &[
                EventKind::Exit(1),
                EventKind::Inject { vector: VECTOR },
                EventKind::Entry,
                EventKind::Exit(2),
                EventKind::Read,
            ],
        )
        .report();
    let (_, means) = only(&report);
    assert_eq!(means.variant, Variant::Relayed);
    use Step::*;
    let want = [Woken, Runs, Packet, RelayWoken, RelayRuns, Raised, Reached, Injected, Handled];
    assert_eq!(steps(means), want);
}

#[test]
fn without_vhost_qemu_carries_the_packet_and_raises_the_interrupt() {
    let mut host = Host::new();
    let packet = EventKind::Packet { direction: Direction::FromGuest, device: Some(TAP) };
    let message = EventKind::Raise(Line::Message(VECTOR.into()));
    host.kicks(QEMU)
        .runs(QEMU)
        .does(QEMU, &[EventKind::Take(KICK), packet, message, EventKind::Accept { vector: VECTOR }]);
    let report = host.guest_takes_it().report();
    let (queue, means) = only(&report);
    assert_eq!((means.variant, queue.by_vhost), (Variant::NoVhost, false));
    assert_eq!(rungs(means)[..3], [(Step::Woken, 20), (Step::Runs, 20), (Step::Packet, 20)]);
}

#[test]
fn a_posted_interrupt_of_a_vcpu_in_its_guest_is_the_last_that_the_host_sees() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().irqfd().does(WORKER, &[POSTED]).sleeps(WORKER);
    // The vCPU leaves and enters its guest for another reason.
    let report = host.does(VCPU, &[EventKind::Exit(3), EventKind::Entry]).report();
    let (_, means) = only(&report);
    assert_eq!((means.variant, steps(means).last()), (Variant::Posted, Some(&Step::Posted)));
}

#[test]
fn a_posted_interrupt_wakes_a_vcpu_that_sleeps_and_is_delivered_when_it_enters_its_guest() {
    let mut host = Host::new();
    host.kicks(WORKER).does(VCPU, &[EventKind::Exit(3)]).sleeps(VCPU).vhost_sends().irqfd();
    host.does(WORKER, &[POSTED, EventKind::Waking { pid: VCPU }])
        .sleeps(WORKER)
        .runs(VCPU)
        .does(VCPU, &[EventKind::Entry]);
    let report = host.kicks(WORKER).report();
    let (_, means) = only(&report);
    assert_eq!(means.variant, Variant::Posted);
    let last = [(Step::Raised, 20), (Step::Posted, 30), (Step::Reached, 30), (Step::Entered, 10)];
    assert_eq!(rungs(means)[3..], last);
    assert_eq!((means.next_kick.count, means.next_kick.sum_ns), (1, 10), "from the entry to the exit that kicks");
}

#[test]
fn a_vcpu_that_somebody_else_wakes_is_not_taken_for_the_interrupts() {
    let mut host = Host::new();
    host.kicks(WORKER).does(VCPU, &[EventKind::Exit(3)]).sleeps(VCPU).vhost_sends().irqfd().does(WORKER, &[POSTED]);
    let report = host.does(5, &[EventKind::Waking { pid: VCPU }]).runs(VCPU).does(VCPU, &[EventKind::Entry]).report();
    assert_eq!(steps(only(&report).1).last(), Some(&Step::Posted));
}

#[test]
fn interrupts_that_are_posted_without_vhost_or_by_its_relay_are_of_these_variants() {
    let mut host = Host::new();
    let packet = EventKind::Packet { direction: Direction::FromGuest, device: Some(TAP) };
    let message = EventKind::Raise(Line::Message(VECTOR.into()));
    host.kicks(QEMU).runs(QEMU);
    let report = host
        .does(QEMU, &[EventKind::Take(KICK), packet, message, EventKind::Accept { vector: VECTOR }, POSTED])
        .sleeps(QEMU)
        .report();
    let (queue, means) = only(&report);
    assert_eq!((means.variant, queue.by_vhost), (Variant::NoVhost, false));
    assert_eq!(steps(means).last(), Some(&Step::Posted));

    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().relay().does(QEMU, &[POSTED]);
    let report = host.does(VCPU, &[EventKind::Exit(2), EventKind::Read, EventKind::Entry]).report();
    let (_, means) = only(&report);
    assert_eq!(means.variant, Variant::Relayed);
    assert_eq!(steps(means)[5..], [Step::Raised, Step::Posted, Step::Handled], "the handler reads the device");
}

#[test]
fn the_doorbell_is_known_whether_kvm_reports_the_write_before_the_signal_or_after_it() {
    let doorbell = EventKind::Write(Doorbell { is_port: false, address: 0xfe00_3000, value: 0 });
    for whats in [[doorbell, EventKind::Signal(KICK)], [EventKind::Signal(KICK), doorbell]] {
        let mut host = Host::new();
        host.does(VCPU, &[EventKind::Exit(0)])
            .does(VCPU, &whats)
            .does(VCPU, &[EventKind::Waking { pid: WORKER }, EventKind::Entry]);
        let report = host.vhost_sends().sleeps(WORKER).report();
        assert_eq!(only(&report).0.doorbell.as_deref(), Some("0xfe003000"), "{whats:?}");
    }
}

#[test]
fn a_packet_to_the_guest_begins_at_the_tap() {
    let mut host = Host::new();
    let report = host.vhost_receives().irqfd().sleeps(WORKER).guest_takes_it().report();
    let (queue, means) = only(&report);
    assert_eq!((queue.direction, queue.kicks, means.variant), (Direction::ToGuest, 0, Variant::Irqfd));
    assert_eq!((means.total.sum_ns, means.exit_reasons.len()), (140, 0));
}

#[test]
fn both_directions_through_one_worker_have_their_own_ladders() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().sleeps(WORKER);
    let report = host.vhost_receives().irqfd().sleeps(WORKER).guest_takes_it().report();
    let got: Vec<(Direction, Variant)> =
        report.figures.queues.iter().map(|q| (q.direction, q.ladders[0].variant)).collect();
    assert_eq!(got, [(Direction::FromGuest, Variant::NoInterrupt), (Direction::ToGuest, Variant::Irqfd)]);
}

#[test]
fn a_round_belongs_to_the_first_kick_and_the_others_are_coalesced() {
    let mut host = Host::new();
    host.kicks(WORKER).kicks(WORKER).kicks(WORKER).vhost_sends();
    let packet = EventKind::Packet { direction: Direction::FromGuest, device: Some(TAP) };
    let report = host.does(WORKER, &[packet]).sleeps(WORKER).report();
    let (queue, means) = only(&report);
    assert_eq!((queue.kicks, queue.coalesced, queue.packets, means.total.count), (3, 2, 2, 1));
    assert_eq!(queue.packets_without_kick, 0, "each packet had its kick");
    assert_eq!(means.drawn[0].at_ns, 0);
    assert_eq!(means.total.sum_ns, 150 - 10, "from the first of three kicks");
}

#[test]
fn packets_that_need_no_kick_are_counted() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().sleeps(WORKER);
    let direction = Direction::FromGuest;
    let again =
        [EventKind::Serve { kick: KICK, call: CALL, direction }, EventKind::Packet { direction, device: Some(TAP) }];
    let report = host.does(3, &[EventKind::Waking { pid: WORKER }]).runs(WORKER).does(WORKER, &again).report();
    let (queue, _) = only(&report);
    assert_eq!((queue.kicks, queue.packets, queue.packets_without_kick), (1, 2, 1));
}

#[test]
fn further_packets_of_a_round_needed_no_kick() {
    let mut host = Host::new();
    let packet = EventKind::Packet { direction: Direction::FromGuest, device: Some(TAP) };
    let report = host.kicks(WORKER).vhost_sends().does(WORKER, &[packet, packet]).irqfd().sleeps(WORKER).report();
    assert_eq!((report.figures.queues.len(), report.figures.unfinished), (0, 1), "the transfer still goes on");
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().does(WORKER, &[packet, packet]).irqfd().sleeps(WORKER).guest_takes_it();
    let report = host.report();
    let (queue, _) = only(&report);
    assert_eq!((queue.kicks, queue.packets, queue.packets_without_kick), (1, 3, 2));
    let mut host = Host::new();
    let report = host.vhost_receives().does(3, &[EventKind::Arrive(TAP)]).irqfd().guest_takes_it().report();
    assert_eq!(report.figures.queues[0].packets_without_kick, 0, "nobody kicks for packets to the guest");
}

#[test]
fn the_time_until_the_next_kick_is_beside_the_transfer() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().irqfd().sleeps(WORKER).guest_takes_it();
    let report = host.kicks(WORKER).report();
    let (_, means) = only(&report);
    assert_eq!((means.next_kick.count, means.next_kick.sum_ns, means.total.sum_ns), (1, 50, 160));
}

#[test]
fn lost_events_end_the_transfers_that_go_on() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().does(0, &[EventKind::Lost(7)]);
    let report = host.irqfd().guest_takes_it().report();
    assert_eq!((report.lost_events, report.figures.ended_by_loss, report.figures.causality_violations), (7, 1, 0));
    assert!(report.figures.queues.is_empty(), "{report:#?}");
}

#[test]
fn a_thread_that_runs_unwoken_is_a_violation() {
    let mut host = Host::new();
    host.kicks(WORKER).vhost_sends().sleeps(WORKER);
    assert_eq!(host.runs(WORKER).report().figures.causality_violations, 1);
}

#[test]
fn an_interrupt_of_another_guest_is_not_taken_for_this_ones() {
    let mut host = Host::new();
    let stranger = 99;
    host.ladder.identify(stranger, Identity { name: "CPU 0/KVM".into(), process: Some(98), is_vhost: false });
    host.kicks(WORKER).vhost_sends().irqfd();
    host.does(stranger, &[EventKind::Exit(1), EventKind::Inject { vector: VECTOR }, EventKind::Entry]);
    let report = host.report();
    assert!(report.figures.queues.is_empty() && report.figures.unfinished == 1, "{report:#?}");
}

#[test]
fn other_devices_kicks_are_counted_apart() {
    let mut host = Host::new();
    host.does(VCPU, &[EventKind::Exit(0), EventKind::Signal(77), EventKind::Waking { pid: QEMU }, EventKind::Entry]);
    host.runs(QEMU).does(QEMU, &[EventKind::Take(77)]).sleeps(QEMU);
    let report = host.report();
    assert_eq!((report.figures.other_kicks, report.figures.queues.len(), report.figures.unfinished), (1, 0, 0));
}

#[test]
fn a_packet_left_over_from_a_nics_queue_is_not_one_of_the_device_that_qemu_turned_to_since() {
    let direction = Direction::FromGuest;
    let packet = EventKind::Packet { direction, device: Some(TAP) };
    let mut host = Host::new();
    host.kicks(QEMU)
        .runs(QEMU)
        .does(QEMU, &[EventKind::Take(KICK), packet, EventKind::Raise(Line::Message(VECTOR.into()))]);
    host.guest_takes_it();
    let other_kick = [EventKind::Exit(0), EventKind::Signal(77), EventKind::Entry];
    host.does(VCPU, &other_kick).does(QEMU, &[EventKind::Take(77), packet]).sleeps(QEMU);
    let report = host.report();
    let queues: Vec<_> =
        report.figures.queues.iter().map(|queue| (queue.packets, queue.packets_without_kick)).collect();
    assert_eq!((queues, report.figures.other_kicks), (vec![(2, 1)], 1), "{report:#?}");

    // A second queue of the same NIC, served after the server has slept, has its own transfers.
    let mut host = Host::new();
    host.kicks(QEMU)
        .runs(QEMU)
        .does(QEMU, &[EventKind::Take(KICK), packet, EventKind::Raise(Line::Message(VECTOR.into()))]);
    host.guest_takes_it().sleeps(QEMU);
    host.does(VCPU, &[EventKind::Exit(0), EventKind::Signal(77), EventKind::Waking { pid: QEMU }, EventKind::Entry]);
    host.runs(QEMU).does(QEMU, &[EventKind::Take(77), packet, EventKind::Raise(Line::Message(VECTOR.into()))]);
    let report = host.guest_takes_it().report();
    assert_eq!(report.figures.queues.iter().map(|queue| queue.packets).collect::<Vec<_>>(), [1, 1], "{report:#?}");
}

/// A second virtual machine, whose worker is a thread of its process.
fn with_another_vm(host: &mut Host) {
    const OTHER: [(u32, &str, bool); 2] = [(VCPU + 100, "CPU 0/KVM", false), (WORKER + 100, "vhost-130", true)];
    for (pid, name, is_vhost) in OTHER {
        host.ladder.identify(pid, Identity { name: name.into(), process: Some(QEMU + 100), is_vhost });
    }
}

#[test]
fn an_eventfd_whose_number_another_vm_gets_is_that_vms() {
    let mut host = Host::new();
    with_another_vm(&mut host);
    host.ladder.name_vm(QEMU, "a");
    host.ladder.name_vm(QEMU + 100, "b");
    host.kicks(WORKER).vhost_sends().irqfd().sleeps(WORKER).guest_takes_it();
    let direction = Direction::FromGuest;
    host.does(
        VCPU + 100,
        &[EventKind::Exit(0), EventKind::Signal(KICK), EventKind::Waking { pid: WORKER + 100 }, EventKind::Entry],
    );
    let serves = [EventKind::Serve { kick: KICK, call: 9, direction }, EventKind::Packet { direction, device: None }];
    host.runs(WORKER + 100).does(WORKER + 100, &serves).sleeps(WORKER + 100);
    let report = host.report();
    let mut vms: Vec<_> = report.figures.queues.iter().map(|queue| (queue.vm.as_deref(), queue.kicks)).collect();
    vms.sort_unstable();
    assert_eq!(vms, [(Some("a"), 1), (Some("b"), 1)], "{report:#?}");
}

#[test]
fn an_eventfd_that_was_an_interrupts_and_is_a_kicks_now_is_followed() {
    let direction = Direction::FromGuest;
    // Another virtual machine's interrupt reuses the eventfd's number.
    let mut host = Host::new();
    with_another_vm(&mut host);
    host.does(WORKER + 100, &[EventKind::Irqfd(KICK)]);
    let report = host.kicks(WORKER).vhost_sends().irqfd().sleeps(WORKER).guest_takes_it().report();
    assert_eq!(only(&report).0.kicks, 1);
    // The guest's driver restarts, and its worker now receives kicks through this eventfd.
    let mut host = Host::new();
    host.does(WORKER, &[EventKind::Irqfd(KICK), EventKind::Serve { kick: KICK, call: CALL, direction }]);
    let report = host.kicks(WORKER).vhost_sends().irqfd().sleeps(WORKER).guest_takes_it().report();
    assert_eq!(only(&report).0.kicks, 1);
}
