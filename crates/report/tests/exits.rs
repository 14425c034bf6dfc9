//! The text of `latpath exits`.

use latpath_bpf::Window;
use latpath_exits::{Events, Exits, Interrupts, KvmCounters, Reason, Traffic, Vcpu, VcpuTimes};
use latpath_histogram::Histogram;
use latpath_model::Observation;
use latpath_observe::exits::{ExitsFigures, VmFacts};
use latpath_report::exits::text;
use latpath_report::Style;
use latpath_stats::units::CharacterSet;
use latpath_vms::exit_reason::{Names, SVM};

const SECOND: i64 = 1_000_000_000;

fn reason(code: Option<u32>, took: &[i64], tiles: VcpuTimes) -> Reason {
    let mut histogram = Histogram::new();
    took.iter().for_each(|ns| histogram.record(*ns));
    Reason { isa: SVM, code, took: histogram, tiles }
}

/// A vCPU that halts twice and has two thousand exits to QEMU.
fn vcpu(id: u32) -> Vcpu {
    let halted = VcpuTimes {
        kvm_ns: 100_000,
        polling_ns: 150_000,
        asleep_ns: 399_700_000,
        ready_ns: 50_000,
        ..VcpuTimes::default()
    };
    let io = VcpuTimes { kvm_ns: 4_000_000, qemu_ns: 16_000_000, ..VcpuTimes::default() };
    let reasons = vec![reason(Some(0x78), &[200_000_000; 2], halted), reason(Some(0x7b), &[10_000; 2000], io)];
    let mut tiles = VcpuTimes { guest_ns: SECOND - 420_000_000, ..VcpuTimes::default() };
    reasons.iter().for_each(|reason| tiles.add(reason.tiles));
    Vcpu {
        tid: 500 + id,
        pid: 500,
        id: Some(id),
        from: SECOND,
        until: 2 * SECOND,
        tiles,
        entries: 2002,
        exits: 2002,
        to_qemu: 2000,
        halts: 2,
        slept: 1,
        injected: Some(7),
        interrupts: Some(Interrupts { vectors: [(0x22, (5, 0)), (0xec, (3, 1))].into(), nmis: 1, other: 2 }),
        events: vec![2002, 2002, 0, 5],
        reasons,
        ..Vcpu::default()
    }
}

fn observation(vcpus: Vec<Vcpu>, traffic: Option<Traffic>) -> Observation<ExitsFigures> {
    // The VM's main loop, its vhost worker, idle CPUs, another process.
    let by_process = [(500, vec![0, 0, 3, 0]), (9, vec![0, 0, 4, 0]), (0, vec![0, 0, 1, 0]), (77, vec![0, 0, 1, 0])];
    let names = ["kvm_entry", "kvm_exit", "kvm_set_irq", "kvm_eoi"].map(Into::into).into();
    let events = Events { names, by_process: by_process.into(), ..Events::default() };
    let window = Window { from: SECOND, until: 2 * SECOND, ..Window::default() };
    let exits = Exits { window, vcpus, accepted: Some(14), events: Some(events), ..Exits::default() };
    let kvm = KvmCounters {
        exits: 4004,
        halt_exits: 4,
        irq_injections: 14,
        nmi_injections: 2,
        halt_polling_ns: 300_000,
        halt_polls: 4,
        halt_polls_successful: 2,
        halt_wakeups: 3,
    };
    ExitsFigures::observe(&exits, &Names::default(), |_| VmFacts {
        name: Some("relay\u{1b}[2J1".into()),
        kvm: Some(kvm),
        traffic,
        workers: vec![9],
    })
}

#[test]
fn a_page_of_two_vcpus() {
    let traffic = Traffic { to_guest_packets: 4000, to_guest_bytes: 500_000, ..Traffic::default() };
    insta::assert_snapshot!(text(
        &observation(vec![vcpu(0), vcpu(1)], Some(traffic)),
        true,
        Style::from(CharacterSet::of_locale(Some("C.UTF-8")))
    ));
}

#[test]
fn figures_of_all_vcpus_are_the_sum_of_each() {
    let document = observation(
        vec![vcpu(0), vcpu(1)],
        Some(Traffic { to_guest_packets: 4000, to_guest_bytes: 500_000, ..Traffic::default() }),
    );
    let vm = &document.figures.vms[0];
    assert_eq!((vm.all.exits, vm.all.tiles.sum(), vm.all.reasons[0].times.count), (4004, 2 * SECOND, 4000));
    for vcpu in &vm.vcpus {
        assert_eq!(vcpu.figures.tiles.sum(), vcpu.window_ns, "the tiles are the window");
    }
    // Without halts: 40 ms of I/O for 4000 packets.
    assert_eq!(vm.all.exit_time_without_halts_ns, 40_000_000);
    let per = vm.per_work.clone().expect("packets passed");
    assert_eq!((per.exits_per_packet, per.exit_time_per_packet_ns), (1.001, 10_000));
    assert_eq!((per.exits_per_gb, per.exit_time_per_gb_ns), (8_008_000.0, 80 * SECOND));
    assert_eq!(vm.all.reasons[0].mean_error_ns, 0, "all took the same");
    let parts = (vm.all.tiles_without_halts.kvm_ns, vm.all.tiles_without_halts.qemu_ns);
    assert_eq!(parts, (8_000_000, 32_000_000), "what the time without halts consists of");
    assert_eq!((per.reasons[0].exits_per_packet, per.reasons[0].time_per_packet_ns), (1.0, 10_000));
    assert_eq!((per.tiles_per_packet.qemu_ns, per.tiles_per_gb.qemu_ns), (8_000, 64 * SECOND));
    assert!(vm.all.reasons[1].is_halt && !vm.all.reasons[0].is_halt, "a halt is no cost: it stands last");
}

#[test]
fn what_was_skipped_and_what_is_not_known_are_said() {
    let mut odd = Vcpu { skipped: 3, ..vcpu(0) };
    let known = text(&observation(vec![odd.clone()], None), false, Style::from(CharacterSet::of_locale(None)));
    assert!(!known.contains("not known"), "{known}");
    odd.tiles.add(VcpuTimes { not_known_ns: SECOND, ..VcpuTimes::default() });
    let document = observation(vec![odd], None);
    let page = text(&document, false, Style::from(CharacterSet::of_locale(None)));
    assert!(page.contains("where time went  not known  in the guest") && page.contains("50.00 %"), "{page}");
    assert!(page.contains("none of its taps is known"), "{page}");
    assert_eq!(
        document.notes,
        ["relay\u{1b}[2J1: events that came while another one was counted, and whose times are counted with others: 3"]
    );
}

#[test]
fn events_are_those_of_the_vms_threads_and_the_rest_is_told_apart() {
    let document = observation(vec![vcpu(0), vcpu(1)], None);
    let events = &document.figures.vms[0].events;
    let counts: Vec<_> = events.iter().map(|e| (e.event.as_str(), e.count, e.in_vcpus)).collect();
    assert_eq!(
        counts,
        [("kvm_entry", 4004, 4004), ("kvm_exit", 4004, 4004), ("kvm_eoi", 10, 10), ("kvm_set_irq", 7, 0)]
    );
    let others = document.figures.other_events.clone().expect("they were asked for");
    assert_eq!((others.known, others.counts), (4, [("kvm_set_irq".to_owned(), 2)].into()));
    let apic = document.figures.vms[0].all.apic.as_ref().expect("the kernel says it");
    assert_eq!((apic.accepted, apic.posted, apic.nmis, apic.other), (16, 2, 2, 4));
}

#[test]
fn no_vcpu_and_no_packet_are_said_and_not_divided_by() {
    assert_eq!(
        text(&observation(Vec::new(), None), false, Style::from(CharacterSet::of_locale(None))),
        "no vCPU was seen in 1.000 s\n\
         events in no VM's thread  number\n\
         kvm_set_irq                    9\n\n\
         virtual APICs of all VMs accepted 14 interrupts\n"
    );
    assert!(observation(vec![vcpu(0)], Some(Traffic::default())).figures.vms[0].per_work.is_none());
    let unseen = Vcpu {
        until: 2 * SECOND,
        from: SECOND,
        tiles: VcpuTimes { asleep_ns: SECOND, ..VcpuTimes::default() },
        ..Vcpu::default()
    };
    assert!(
        text(&observation(vec![unseen], None), false, Style::from(CharacterSet::of_locale(None))).contains("no exit\n")
    );
}
