//! Reads arbitrary text as a file written by `latpath profile -o` or `latpath study -o`, which read such files again
//! for comparisons. The result is an error, or pages, JSON and flame graphs. Checks that nothing panics, that a
//! profile's total is the sum of its stacks, idle time and unattributed time, and that the output contains no control
//! characters.
//!
//! Input: a text that begins with `{` is a study's configuration; any other text is a profile.

use crate::agent::clean;
use latpath_bpf::Window;
use latpath_exits::{Exits, Reason, Traffic, Vcpu, VcpuTimes};
use latpath_histogram::Histogram;
use latpath_ladder::trace_text::import;
use latpath_observe::exits::{ExitsFigures, VmFacts};
use latpath_observe::profile::{of_one_vm, Diff, ProfileFigures};
use latpath_observe::queues::{Device, QueueCounts, QueueFigures};
use latpath_observe::study::{Configuration, KeptProfile, Part, Setup, Work, VERSION};
use latpath_profile::{Frame, Header, Kind, Profile};
use latpath_report::cpu_profile::{diff_text, flame_graph_of_difference, text};
use latpath_report::study::{study_of_vms_html, study_of_vms_text};
use latpath_stats::units::CharacterSet;
use latpath_vms::exit_reason::{Names, SVM};
use std::sync::atomic::AtomicBool;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let _ = read(bytes);
}

/// Reads the input; returns whether it is valid.
fn read(bytes: &[u8]) -> bool {
    let refused = match bytes.first() {
        Some(b'{') => Configuration::read(&String::from_utf8_lossy(bytes)).map(show_study),
        _ => Profile::parse(bytes, "kept").map(show_profile).map_err(|why| why.to_string()),
    };
    refused.map_err(|why| assert!(!why.is_empty())).is_ok()
}

/// Shows the configuration alone, and next to a copy under another name.
fn show_study(one: Configuration) {
    let other = Configuration { name: "another".into(), ..one.clone() };
    for all in [vec![one.clone()], vec![one.clone(), other]] {
        clean(&study_of_vms_text(&all, CharacterSet::Unicode.into()));
        clean(&study_of_vms_html(&all));
        clean(&serde_json::to_string(&all).expect("figures are JSON"));
    }
    if let Some(profile) = one.profile() {
        show_profile(profile);
    }
}

/// Shows the profile alone, and compared with an empty one, both as the earlier and as the later profile.
fn show_profile(profile: Profile) {
    clean(&text(&ProfileFigures::observe(&profile, 0), 20, &["main".into()], CharacterSet::Unicode.into()));
    let again = Profile::parse(profile.kept().as_bytes(), "kept").expect("what was read is kept as it was");
    assert_eq!(again.stacks, profile.stacks);
    let of_lines: i128 = profile.stacks.values().map(|ns| i128::from(*ns)).sum();
    assert_eq!(
        i128::from(profile.total()),
        of_lines + i128::from(profile.header.idle_ns + profile.header.unattributed_ns)
    );
    for (before, after) in [(profile.clone(), Profile::default()), (Profile::default(), profile)] {
        let (before, after, _) = of_one_vm(before, after);
        let diff = Diff::new(&before, &after);
        clean(&diff_text(&diff, 20, CharacterSet::Unicode.into()));
        clean(&serde_json::to_string(&diff).expect("figures are JSON"));
        // Flame graphs with many frames are slow.
        if before.stacks.len() + after.stacks.len() < 64 {
            let _ = flame_graph_of_difference(&before, &after).map(|graph| clean(&graph));
        }
    }
}

/// A profile of a host and its guest.
fn some_profile(window_ns: i64) -> Profile {
    let header = Header { frequency: 99, cpus: "0-1".parse().expect("CPUs"), idle_ns: 7, ..Header::default() };
    let mut profile = Profile { header, window_ns, ..Profile::default() };
    let frame = |(name, kind): &(&str, Kind)| Frame::new(name, *kind);
    let chains: [&[(&str, Kind)]; 3] = [
        &[("qemu", Kind::Process), ("main", Kind::User), ("tun_get_user", Kind::Kernel)],
        &[("qemu", Kind::Process), ("[guest guest0]", Kind::Guest), ("relay", Kind::Process), ("busy", Kind::User)],
        &[("relay", Kind::Process), ("busy", Kind::User)],
    ];
    for (n, chain) in chains.iter().enumerate() {
        profile.add(chain.iter().map(frame).collect(), 300 + n as i64);
    }
    profile
}

/// A configuration with all parts that a study stores.
fn some_configuration(traffic: Traffic) -> Configuration {
    let work = Work { took_ns: 1_000_000, traffic, reported_bits_per_second: Some(1e9) };
    let mut took = Histogram::new();
    took.record(10_000);
    let tiles = VcpuTimes { guest_ns: 90_000, kvm_ns: 10_000, ..VcpuTimes::default() };
    let reasons = vec![Reason { isa: SVM, code: Some(0x78), took, tiles }];
    let vcpu = Vcpu { tid: 501, pid: 500, until: 100_000, tiles, exits: 1, reasons, ..Vcpu::default() };
    let window = Window { until: 100_000, ..Window::default() };
    let exits = Exits { window, vcpus: vec![vcpu], ..Exits::default() };
    let exits = ExitsFigures::observe(&exits, &Names::default(), |_| VmFacts::default()).figures.vms.pop();
    let trace = include_bytes!("../seeds/trace_text/x86");
    let ladder = import(&mut &trace[..], &AtomicBool::new(false)).ok().map(|imported| imported.report);
    let counts = QueueCounts { used_buffers: 9, read_bytes: 900, kicks: 3, ..QueueCounts::default() };
    let queue = QueueFigures { queue: "tx 0".into(), counts, ..QueueFigures::default() };
    let device = Device { name: Some("vnet0".into()), queues: vec![queue], ..Device::default() };
    let profile = KeptProfile { kept: some_profile(1_000).kept(), system_calls: Vec::new() };
    Configuration {
        version: VERSION,
        name: "vhost".into(),
        vm: "guest0".into(),
        kernel: "6.12".into(),
        latpath: "0.1.0".into(),
        setup: Setup::default(),
        command: vec!["iperf3".into()],
        alone: vec![work; 3],
        exits: exits.map(|figures| Part { work, figures }),
        ladder: ladder.map(|figures| Part { work, figures }),
        queues: Some(Part { work, figures: vec![device] }),
        profile: Some(Part { work, figures: profile }),
        notes: vec!["a\u{1b}[2J note".into()],
        emulated: false,
    }
}

/// Files as written by latpath, with an empty window, and with sums that overflow.
pub fn seeds() -> Vec<Vec<u8>> {
    let most = Traffic { to_guest_packets: u64::MAX, from_guest_packets: 1, ..Traffic::default() };
    let studies = [Traffic { to_guest_bytes: 500, ..Traffic::default() }, most]
        .map(|traffic| serde_json::to_vec(&some_configuration(traffic)).expect("figures are JSON"));
    let long = some_profile(0).kept().replace(" 300\n", &format!(" {}\n", i64::MAX / 16));
    [some_profile(1_000).kept(), long].map(String::into_bytes).into_iter().chain(studies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_read_but_for_those_whose_sums_no_number_holds() {
        let read: Vec<bool> = seeds().iter().map(|seed| read(seed)).collect();
        assert_eq!(read, [true, true, true, false]);
        let whole = some_configuration(Traffic::default());
        assert!(
            whole.exits.is_some() && whole.ladder.is_some() && whole.profile().is_some_and(|p| p.stacks.len() == 3)
        );
    }
}
