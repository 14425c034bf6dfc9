//! The text of `latpath study vhost`.

mod vm_study;

use latpath_ladder::{Direction, Step, Variant};
use latpath_model::Observation;
use latpath_observe::queues::{Agreement, Device, QueueFigures};
use latpath_observe::study::{network_queues, Configuration};
use latpath_queues::QueueCounts;
use latpath_report::study::{study_of_vms_html, study_of_vms_text};
use latpath_report::Style;
use latpath_stats::units::CharacterSet;
use vm_study::{both, ladder, seen, MS};

#[test]
fn what_queues_say_of_their_own_figures_is_not_lost() {
    let queue = QueueFigures {
        queue: "input.0".into(),
        counts: QueueCounts { used_buffers: 5, ..QueueCounts::default() },
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
    let (not_shown, notes) = (vec!["kicks".to_owned()], vec!["3 events skipped".to_owned()]);
    let (devices, notes) = network_queues(Observation { not_shown, notes, ..seen(vec![card]) });
    assert_eq!(devices[0].queues.len(), 1);
    let said = [
        "kicks",
        "3 events skipped",
        "eth0, input.0: its ring's own indices differ from what was counted: +7 posted, -1 used",
        "eth0: its queues differ from its own counter by -100 packets and -10 B to the guest",
    ];
    assert_eq!(notes, said, "a thousandth at the window's borders is none of it");
}

fn plain() -> Style {
    Style::from(CharacterSet::of_locale(Some("C.UTF-8")))
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
fn a_profile_whose_load_was_starved_is_compared_with_none() {
    let mut all = both();
    assert!(study_of_vms_text(&all, plain()).contains("Functions by context"));
    let part = all[1].profile.as_mut().expect("a profile");
    part.work.took_ns *= 80;
    part.work.reported_bits_per_second = part.work.reported_bits_per_second.map(|rate| rate / 80.0);
    let page = study_of_vms_text(&all, plain()).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        page.contains("vhost: while CPUs were sampled the load ran at") && page.contains("this profile is not shown")
    );
    assert!(!page.contains("Functions by context") && !page.contains("All CPUs of the host together"), "{page}");
    assert!(all[0].profile().is_some() && all[1].profile().is_none());
}

#[test]
fn in_emulation_no_ratio_of_times_or_rates_is_a_result() {
    let mut all = both();
    all.iter_mut().for_each(|one| one.emulated = true);
    let page = study_of_vms_text(&all, plain());
    let short: Vec<&str> = page.lines().skip_while(|line| !line.contains("In short")).skip(1).collect();
    let short = short[..short.iter().position(|line| line.is_empty()).unwrap()].join(" ");
    assert!(short.trim_start().starts_with("The host was emulated: counts"), "{short}");
    for ratio in ["carries", "CPU time", "as long"] {
        assert!(!short.contains(ratio), "{short}");
    }
    assert!(short.contains("times as often as those of standard"), "{short}");
}

#[test]
fn packets_to_the_guest_are_not_called_kicks() {
    let mut all = both();
    for one in &mut all {
        let queue = &mut one.ladder.as_mut().expect("a ladder").figures.figures.queues[0];
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
