//! Two configurations of a VM, as stored by `latpath study vhost`.

use latpath_bpf::Window;
use latpath_exits::{Exits, Reason, Traffic, Vcpu, VcpuTimes};
use latpath_histogram::Histogram;
use latpath_ladder::{Direction, LadderFigures, MeansReport, QueueReport, Rung, Step, Times, Variant};
use latpath_model::Observation;
use latpath_observe::exits::{ExitsFigures, VmExits, VmFacts};
use latpath_observe::profile::CallLine;
use latpath_observe::queues::{Device, QueueFigures, QueuesFigures, Sizes};
use latpath_observe::study::{network_queues, Configuration, KeptProfile, Part, Setup, Work, VERSION};
use latpath_profile::{Frame, Header, Kind, Profile};
use latpath_queues::{QueueCounts, Side};
use latpath_stats::TimeFigures;
use latpath_vms::exit_reason::{Names, SVM};

pub const MS: i64 = 1_000_000;

/// Work of a load that transferred 500 MB in `ms` milliseconds.
fn work(ms: i64) -> Work {
    let traffic = Traffic {
        from_guest_packets: 9_000,
        from_guest_bytes: 490_000_000,
        to_guest_packets: 1_000,
        to_guest_bytes: 10_000_000,
    };
    Work { took_ns: ms * MS, traffic, reported_bits_per_second: None }
}

/// A vCPU with `count` exits of 10 µs each in 2 s, and one halt of 0.5 s.
fn exits(count: usize) -> Part<VmExits> {
    let mut took = Histogram::new();
    (0..count).for_each(|_| took.record(10_000));
    let busy = VcpuTimes { kvm_ns: count as i64 * 10_000, ..VcpuTimes::default() };
    let mut halted = Histogram::new();
    halted.record(500 * MS);
    let asleep = VcpuTimes { asleep_ns: 500 * MS, ..VcpuTimes::default() };
    let reasons = vec![
        Reason { isa: SVM, code: Some(0x78), took: halted, tiles: asleep },
        Reason { isa: SVM, code: Some(0x7b), took, tiles: busy },
    ];
    let mut tiles = VcpuTimes { guest_ns: 1_500 * MS - busy.sum(), ..asleep };
    tiles.add(busy);
    let vcpu =
        Vcpu { tid: 501, pid: 500, until: 2_000 * MS, tiles, exits: count as u64 + 1, reasons, ..Vcpu::default() };
    let window = Window { until: 2_000 * MS, ..Window::default() };
    let exits = Exits { window, vcpus: vec![vcpu], ..Exits::default() };
    let seen = ExitsFigures::observe(&exits, &Names::default(), |_| VmFacts::default());
    Part { work: work(2_000), figures: seen.figures.vms.into_iter().next().unwrap() }
}

/// Result of `latpath ladder`: a hundred transfers of this variant.
pub fn ladder(variant: Variant, rungs: &[(Step, i64)]) -> Part<Observation<LadderFigures>> {
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
    let figures = LadderFigures { queues: vec![queue], ..LadderFigures::default() };
    Part { work: work(2_200), figures: Observation { figures, ..Observation::default() } }
}

/// Result of `latpath queues`: a NIC and a console.
fn queues(configuration: &str) -> Part<Vec<Device>> {
    let queue = |name: &str| QueueFigures {
        queue: name.into(),
        device_reads: true,
        counts: QueueCounts {
            used_buffers: 9000,
            read_bytes: 500_000_000,
            kicks: 120,
            kicks_suppressed: 8880,
            interrupts: 100,
            ..QueueCounts::default()
        },
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

/// Observation of `latpath queues` with these devices.
pub fn seen(devices: Vec<Device>) -> Observation<QueuesFigures> {
    let figures = QueuesFigures { devices, ..QueuesFigures::default() };
    Observation { window_ns: 2_000 * MS, figures, ..Observation::default() }
}

/// Profile of two CPUs over 2 s. Packets are passed to the tap by QEMU's system call or by vhost's worker.
fn profile(configuration: &str) -> Part<KeptProfile> {
    let header = Header { idle_ns: 1_000 * MS, ..Header::default() };
    let mut profile = Profile { header, window_ns: 2_000 * MS, ..Profile::default() };
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

/// The two transfers of the automotive study, in steps; the second takes a third of the time of the first.
pub fn both() -> [Configuration; 2] {
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
        emulated: false,
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
