//! The page of `latpath study vhost`.

use latpath_exits::{Exits, Reason, Tiles, Traffic, Vcpu};
use latpath_histogram::Histogram;
use latpath_ladder::{Direction, LadderReport, MeansReport, QueueReport, Rung, Step, Times, Variant};
use latpath_profile::{Frame, Header, Kind, Profile};
use latpath_queues::Side;
use latpath_report::cpu_profile::CallLine;
use latpath_report::exits::{About, Document};
use latpath_report::queues::{Agreement, Device, QueueFigures, Sizes};
use latpath_report::study::{
    network_queues, study_of_vms_html, study_of_vms_text, Configuration, KeptProfile, Part, Setup, Work, VERSION,
};
use latpath_report::Style;
use latpath_stats::units::Letters;
use latpath_stats::TimeFigures;
use latpath_vms::exit_reason::{Names, SVM};

const MS: i64 = 1_000_000;

/// A load that took so many ms for 500 MB.
fn work(ms: i64) -> Work {
    let traffic = Traffic {
        from_guest_packets: 9_000,
        from_guest_bytes: 490_000_000,
        to_guest_packets: 1_000,
        to_guest_bytes: 10_000_000,
    };
    Work { took_ns: ms * MS, traffic, reported_bits_per_second: None }
}

/// A vCPU that makes this many exits of 10 µs, and halts for the rest of 2 s.
fn exits(count: usize) -> Part<latpath_report::exits::VmExits> {
    let mut took = Histogram::new();
    (0..count).for_each(|_| took.record(10_000));
    let busy = Tiles { kvm_ns: count as i64 * 10_000, ..Tiles::default() };
    let mut halted = Histogram::new();
    halted.record(500 * MS);
    let asleep = Tiles { asleep_ns: 500 * MS, ..Tiles::default() };
    let reasons = vec![
        Reason { isa: SVM, code: Some(0x78), took: halted, tiles: asleep },
        Reason { isa: SVM, code: Some(0x7b), took, tiles: busy },
    ];
    let mut tiles = Tiles { guest_ns: 1_500 * MS - busy.sum(), ..asleep };
    tiles.add(busy);
    let vcpu =
        Vcpu { tid: 501, pid: 500, until: 2_000 * MS, tiles, exits: count as u64 + 1, reasons, ..Vcpu::default() };
    let exits = Exits { until: 2_000 * MS, vcpus: vec![vcpu], ..Exits::default() };
    let document = Document::new(&exits, &Names::default(), |_| About::default());
    Part { work: work(2_000), figures: document.vms.into_iter().next().unwrap() }
}

fn ladder(variant: Variant, rungs: &[(Step, i64)]) -> Part<LadderReport> {
    let times = |ns: i64| Times {
        count: 100,
        sum_ns: ns * 100,
        mean_ns: ns + 500,
        p50_ns: ns,
        p99_ns: 2 * ns,
        ..Times::default()
    };
    let rung = |(step, ns): &(Step, i64)| Rung { step: *step, time: times(*ns) };
    let means = MeansReport {
        variant,
        total: times(rungs.iter().map(|(_, ns)| ns).sum()),
        rungs: rungs.iter().map(rung).collect(),
        exit_reasons: Vec::new(),
        next_kick: Times::default(),
        drawn: Vec::new(),
    };
    let queue = QueueReport {
        device: Some("vnet0".into()),
        vm: Some("relay1".into()),
        direction: Direction::FromGuest,
        doorbell: None,
        kick_eventfd: None,
        by_vhost: variant != Variant::NoVhost,
        kicks: 120,
        coalesced: 20,
        kicks_without_packet: 0,
        packets: 9_000,
        packets_without_kick: 3,
        ladders: vec![means],
    };
    Part { work: work(2_200), figures: LadderReport { queues: vec![queue], ..LadderReport::default() } }
}

/// What `latpath queues` has seen: a network card, and a console that is none.
fn queues(configuration: &str) -> Part<Vec<Device>> {
    let queue = |name: &str| QueueFigures {
        queue: name.into(),
        device_reads: true,
        used_buffers: 9000,
        read_bytes: 500_000_000,
        kicks: 120,
        kicks_suppressed: 8880,
        interrupts: 100,
        per_kick: Sizes { count: 120, mean: 75.0, ..Sizes::default() },
        waited: TimeFigures { count: 9000, p50_ns: 190_000, ..TimeFigures::default() },
        ..QueueFigures::default()
    };
    let device = |side, driver: Option<&str>, queues| Device {
        side,
        name: Some("virtio0".into()),
        driver: driver.map(Into::into),
        queues,
        ..Device::default()
    };
    let rx = QueueFigures { device_reads: false, device_writes: true, ..queue("rx 0") };
    let unused = QueueFigures { queue: "rx 1".into(), ..QueueFigures::default() };
    let mut devices = vec![
        device(Side::Driver, Some("virtio_net"), vec![queue("output.0")]),
        device(Side::Driver, Some("virtio_console"), vec![queue("output.0")]),
    ];
    if configuration == "vhost" {
        devices.push(device(Side::Vhost, None, vec![rx, queue("tx 0"), unused]));
    }
    let (figures, notes) = network_queues(seen(devices));
    assert!(notes.is_empty(), "{notes:?}");
    Part { work: work(2_000), figures }
}

fn seen(devices: Vec<Device>) -> latpath_report::queues::Document {
    latpath_report::queues::Document {
        from_ns: 0,
        window_ns: 2_000 * MS,
        devices,
        events_without_room: 0,
        buffers_untimed: 0,
        events_missed: 0,
        cost_per_event_ns: None,
        not_shown: Vec::new(),
    }
}

#[test]
fn what_queues_say_of_their_own_figures_is_not_lost() {
    let queue = QueueFigures {
        queue: "input.0".into(),
        used_buffers: 5,
        posted_index_difference: 7,
        used_index_difference: -1,
        ..QueueFigures::default()
    };
    let counted = Agreement { packets: Some(100), bytes: 6000, device_packets: 200, device_bytes: 6010 };
    let card = Device {
        driver: Some("virtio_net".into()),
        known_as: vec!["eth0".into()],
        queues: vec![queue],
        to_guest: Some(counted),
        from_guest: Some(Agreement { device_packets: 100, ..counted }),
        ..Device::default()
    };
    let document = latpath_report::queues::Document { events_missed: 3, ..seen(vec![card]) };
    let (devices, notes) = network_queues(document);
    assert_eq!(devices[0].queues.len(), 1);
    let said = [
        "the kernel skipped 3 events: they are not counted",
        "eth0, input.0: its ring's own indices differ from what was counted: +7 posted, -1 used",
        "eth0: its queues differ from its own counter by -100 packets and -10 B to the guest",
    ];
    assert_eq!(notes, said, "a thousandth at the window's borders is none of it");
}

/// Two CPUs for 2 s. What hands packets to the tap is QEMU's system call or vhost's worker.
fn profile(configuration: &str) -> Part<KeptProfile> {
    let header = Header { window_ns: 2_000 * MS, idle_ns: 1_000 * MS, ..Header::default() };
    let mut profile = Profile { header, ..Profile::default() };
    let vm = "relay\u{1b}[2J1";
    let frame = |name: &str, kind| Frame::new(name, kind);
    let mut tun = |process: &str, under: &str, ms: i64| {
        let chain = [frame(process, Kind::Process), frame(under, Kind::Kernel), frame("tun_get_user", Kind::Kernel)];
        profile.add(chain.into(), ms * MS);
    };
    match configuration {
        "vhost" => tun(&format!("vhost of {vm}"), "handle_tx", 400),
        _ => {
            tun(&format!("{vm} (qemu-system-x86)"), "do_writev", 388);
            tun("iperf3", "__x64_sys_sendto", 10);
            tun("others", "__x64_sys_write", 2);
        }
    }
    let user = |name: &str| frame(name, Kind::User);
    let unnamed = [frame(&format!("{vm} (qemu-system-x86)"), Kind::Process), user("[libglib-2.0.so]"), user("ioctl")];
    profile.add(unnamed.into(), 50 * MS);
    let guest = [frame(vm, Kind::Process), frame("[guest]", Kind::Guest)];
    profile.add(guest.into(), 2_600 * MS);
    let call = CallLine {
        vm: vm.into(),
        thread: "main loop".into(),
        tid: 7,
        call: "writev".into(),
        count: 9_000,
        sum_ns: 300 * MS,
        mean_ns: 33_333,
        max_ns: MS,
        failed: 0,
    };
    let system_calls = if configuration == "vhost" { Vec::new() } else { vec![call] };
    Part { work: work(2_000), figures: KeptProfile { kept: profile.kept(), system_calls } }
}

/// The automotive study's own two transfers, in steps; the second takes a third of the time.
fn both() -> [Configuration; 2] {
    let one = |name: &str, ms: i64, exits, ladder| Configuration {
        version: VERSION,
        name: name.into(),
        vm: "relay\u{1b}[2J1".into(),
        kernel: "6.1.0".into(),
        latpath: "0.1.0".into(),
        setup: Setup {
            hypervisor: Some("QEMU emulator version 7.2.19".into()),
            machine: Some("pc-q35-7.2".into()),
            host_cpus: "0-3".into(),
            vcpus: vec!["0-3".into(); if name == "vhost" { 2 } else { 1 }],
            vhost_workers: if name == "vhost" { vec!["3".into()] } else { Vec::new() },
            halt_poll_ns: Some(200_000),
            posted_interrupts: Some(false),
        },
        command: vec!["iperf3".into(), "<x>".into()],
        alone: vec![work(ms), work(ms + 100), work(ms - 100)],
        exits: Some(exits),
        ladder: Some(ladder),
        queues: Some(queues(name)),
        profile: Some(profile(name)),
        notes: vec!["of both".into()],
    };
    let us = 1_000;
    let standard =
        [(Step::Runs, 29 * us), (Step::Packet, 193 * us), (Step::Raised, 248 * us), (Step::Handled, 101 * us)];
    let vhost = [(Step::Runs, 30 * us), (Step::Packet, 8 * us), (Step::RelayRuns, 51 * us), (Step::Handled, 101 * us)];
    [
        one("standard", 2_000, exits(10_000), ladder(Variant::NoVhost, &standard)),
        one("vhost", 1_000, exits(30_000), ladder(Variant::Relayed, &vhost)),
    ]
}

fn plain() -> Style {
    Style::from(Letters::of_locale(Some("C.UTF-8")))
}

#[test]
fn two_configurations_stand_side_by_side() {
    insta::assert_snapshot!(study_of_vms_text(&both(), plain()));
}

#[test]
fn a_function_stands_with_all_of_its_contexts_on_both_sides() {
    let page = study_of_vms_text(&both(), plain());
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.trim_start().starts_with("tun_get_user"))
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let context = |row: &Vec<&str>| format!("{} under {}: {} -> {}", row[1], row[2], row[4], row[6]);
    let contexts: Vec<String> = rows.iter().map(context).collect();
    assert_eq!(
        contexts,
        ["vhost under handle_tx: 0 % -> 100 %", "QEMU under writev: 97 % -> 0 %", "iperf3 under sendto: 2 % -> 0 %"],
        "{page}"
    );
    assert!(!page.contains("libglib"), "an address without a name is no caller: {page}");
}

#[test]
fn transfers_that_are_seen_until_other_steps_are_not_compared() {
    let mut all = both();
    all[1].ladder = Some(ladder(Variant::NoInterrupt, &[(Step::Runs, 30_000), (Step::Packet, 8_000)]));
    let page = study_of_vms_text(&all, plain()).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        page.contains(
            "Transfers from the guest are not compared: those of standard are seen until \"the guest's handler reads or \
             ends it\", those of vhost until \"it hands the packet to the tap\"."
        ),
        "{page}"
    );
}

#[test]
fn the_same_means_on_both_sides_and_what_else_differs_are_said() {
    let mut all = both();
    all[1].ladder = all[0].ladder.clone();
    let page = study_of_vms_text(&all, plain());
    assert!(page.contains("Packets from the guest go by the same means in standard and vhost: no vhost."), "{page}");
    assert!(page.contains("! standard and vhost also differ in the vCPUs or their CPUs"), "{page}");
}

#[test]
fn a_measurement_under_another_rate_is_marked() {
    let mut all = both();
    all[1].exits.as_mut().expect("exits").work.took_ns = 1_000 * MS;
    let page = study_of_vms_text(&all, plain()).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        page.contains("vhost: while transfers were followed the load ran at 1.82 Gbit/s, but by itself at 3.64 Gbit/s"),
        "{page}"
    );
    assert!(!page.contains("vhost: while exits were counted"), "{page}");
    assert!(!page.contains("standard: while"), "within a tenth: {page}");
}

#[test]
fn packets_to_the_guest_are_not_called_kicks() {
    let mut all = both();
    for one in &mut all {
        let queue = &mut one.ladder.as_mut().expect("a ladder").figures.queues[0];
        (queue.direction, queue.kicks, queue.coalesced) = (Direction::ToGuest, 0, 864);
    }
    let page = study_of_vms_text(&all, plain()).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("9000 packets, of which 864 joined one that waited"), "{page}");
    assert!(!page.contains("0 kicks"), "{page}");
}

#[test]
fn what_was_kept_gives_the_same_page() {
    let kept = both().map(|one| Configuration::read(&serde_json::to_string(&one).unwrap()).unwrap());
    assert_eq!(study_of_vms_text(&kept, plain()), study_of_vms_text(&both(), plain()));
    let other = serde_json::to_string(&Configuration { version: 9, ..both()[0].clone() }).unwrap();
    assert!(Configuration::read(&other).unwrap_err().contains("version 9"));
}

#[test]
fn what_was_not_measured_leaves_its_place_empty() {
    let mut all = both();
    all[1] = Configuration {
        exits: None,
        ladder: None,
        queues: None,
        profile: None,
        notes: vec!["exits was not measured: no KVM".into()],
        ..all[1].clone()
    };
    all[0].notes.clear();
    let page = study_of_vms_text(&all, plain());
    assert!(page.contains("! vhost: exits was not measured: no KVM"), "{page}");
    assert!(page.contains("vhost carries 2.00 times the traffic of standard."), "{page}");
    let alone = study_of_vms_text(&all[..1], plain());
    assert!(alone.contains("nothing to compare it with"), "{alone}");
    let empty = Configuration { alone: Vec::new(), ..all[1].clone() };
    study_of_vms_text(&[empty], plain());
}

#[test]
fn the_html_shows_names_as_text() {
    let page = study_of_vms_html(&both());
    assert!(page.contains("&lt;x&gt;") && !page.contains("<x>") && !page.contains('\u{1b}'));
    assert_eq!(page, study_of_vms_html(&both()), "the same input gives the same bytes");
}
