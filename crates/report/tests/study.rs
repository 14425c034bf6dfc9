//! The page of `latpath study vhost`.

use latpath_exits::{Exits, Reason, Tiles, Traffic, Vcpu};
use latpath_histogram::Histogram;
use latpath_ladder::{LadderReport, MeansReport, QueueReport, Rung, Step, Times, Variant};
use latpath_profile::{Frame, Header, Kind, Profile};
use latpath_report::cpu_profile::CallLine;
use latpath_report::exits::{About, Document};
use latpath_report::study::{
    study_of_vms_html, study_of_vms_text, Configuration, KeptProfile, Part, QueueRow, Work, VERSION,
};
use latpath_report::Style;
use latpath_stats::units::Letters;
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
    let times = |ns: i64| Times { count: 100, sum_ns: ns * 100, p50_ns: ns, p99_ns: 2 * ns, ..Times::default() };
    let rung = |(step, ns): &(Step, i64)| Rung { step: step.key().into(), of: Some(*step), time: times(*ns) };
    let means = MeansReport {
        variant: variant.key().into(),
        of: Some(variant),
        total: times(rungs.iter().map(|(_, ns)| ns).sum()),
        rungs: rungs.iter().map(rung).collect(),
        exit_reasons: Vec::new(),
        next_kick: Times::default(),
        drawn: Vec::new(),
    };
    let queue = QueueReport {
        device: Some("vnet0".into()),
        vm: Some("relay1".into()),
        direction: "from_guest".into(),
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

/// What `latpath queues --json` prints, as far as it is read: a network card, and a console that is none.
fn queues(configuration: &str) -> Part<Vec<QueueRow>> {
    let queue = serde_json::json!({
        "queue": "output.0", "used_buffers": 9000, "written_bytes": 0, "read_bytes": 500_000_000u64, "kicks": 120,
        "kicks_suppressed": 8880, "interrupts": 100, "interrupts_suppressed": 0, "per_kick": { "mean": 75.0 },
        "waited": { "p50_ns": 190_000 },
    });
    let card = serde_json::json!({ "side": "driver", "driver": "virtio_net", "queues": [queue] });
    let console = serde_json::json!({ "side": "driver", "driver": "virtio_console", "queues": [queue] });
    let vhost = serde_json::json!({ "side": "vhost", "queues": [queue, { "queue": "rx 0" }] });
    let devices = if configuration == "vhost" { vec![card, console, vhost] } else { vec![card, console] };
    Part { work: work(2_000), figures: QueueRow::of_printed(&serde_json::json!({ "devices": devices })) }
}

/// Two CPUs for 2 s. What hands packets to the tap is QEMU's system call or vhost's worker.
fn profile(configuration: &str) -> Part<KeptProfile> {
    let header = Header { window_ns: 2_000 * MS, idle_ns: 1_000 * MS, ..Header::default() };
    let mut profile = Profile { header, ..Profile::default() };
    let vm = "relay\u{1b}[2J1";
    let (process, under) = match configuration {
        "vhost" => (format!("vhost of {vm}"), "handle_tx"),
        _ => (format!("{vm} (qemu-system-x86)"), "writev"),
    };
    let frame = |name: &str, kind| Frame::new(name, kind);
    let begins = if configuration == "vhost" { Kind::Kernel } else { Kind::User };
    let tun = [frame(&process, Kind::Process), frame(under, begins), frame("tun_get_user", Kind::Kernel)];
    profile.add(tun.into(), 400 * MS);
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
fn what_was_kept_gives_the_same_page() {
    let kept = both().map(|one| Configuration::read(&serde_json::to_string(&one).unwrap()).unwrap());
    assert_eq!(study_of_vms_text(&kept, plain()), study_of_vms_text(&both(), plain()));
    let other = serde_json::to_string(&both()[0]).unwrap().replacen(r#""version":1"#, r#""version":9"#, 1);
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
