//! The text of `latpath doctor`: findings with their costs and commands, and the map of CPUs.

use latpath_doctor::{Diagnosis, Finding, FindingKind, RunShare, Severity};
use latpath_placement::{CpuMap, Placement};
use latpath_report::doctor::text;
use latpath_settings::{Setting, SettingValue};
use latpath_stats::units::CharacterSet;

fn finding(what: &str, cost: &[(&str, i64)]) -> Finding {
    Finding {
        id: "main-loop-behind-vcpu".into(),
        kind: FindingKind::Structure,
        severity: Severity::Deadlock,
        target: "guest7 main loop".into(),
        cpus: "2".parse().unwrap(),
        what: what.into(),
        now: "2".into(),
        should: "0-1".into(),
        why: "the guest stands still".into(),
        source: "sched(7)".into(),
        settings: vec![Setting::ThreadCpus.id().into()],
        causes: Vec::new(),
        cost: cost.iter().map(|(run, ns)| RunShare { run: (*run).into(), excess_ns: *ns }).collect(),
        commands: vec!["virsh emulatorpin guest7 0-1 --live --config".into()],
        undo: vec!["virsh emulatorpin guest7 2 --live --config".into()],
        disturbs: "nothing".into(),
        owners: Vec::new(),
    }
}

fn value(setting: Setting, target: &str, at: Option<&str>, value: &str) -> SettingValue {
    SettingValue { setting: setting.id().into(), target: target.into(), at: at.map(str::to_owned), value: value.into() }
}

/// Four CPUs, of which 2 and 3 are isolated; QEMU's main loop runs on a vCPU's CPU.
fn map() -> CpuMap {
    let values = [
        value(Setting::CpusOnline, "", None, "0-3"),
        value(Setting::CpusIsolated, "", None, "2-3"),
        value(Setting::CpusNohzFull, "", None, "2-3"),
        value(Setting::VmAccel, "guest7", None, "kvm"),
        value(Setting::ThreadCpus, "guest7 vCPU 0", Some("6154"), "2"),
        value(Setting::ThreadPriority, "guest7 vCPU 0", Some("6154"), "fifo 1"),
        value(Setting::ThreadCpus, "guest7 main loop", Some("5600"), "2"),
        value(Setting::ThreadPriority, "guest7 main loop", Some("5600"), "other"),
        value(Setting::IrqAffinity, "eth0-rx-0", Some("45"), "0-1"),
        value(Setting::IrqEffectiveAffinity, "eth0-rx-0", Some("45"), "1"),
    ];
    CpuMap::of(&Placement::of(&values))
}

#[test]
fn a_finding_has_its_cost_and_commands_that_can_be_copied() {
    let diagnosis = Diagnosis {
        runs: vec!["RUN".into()],
        findings: vec![finding("a deadlock", &[("RUN", 134_000_000_000)]), finding("another", &[])],
        ..Diagnosis::default()
    };
    let text = text(&diagnosis, false, CharacterSet::Ascii.into());
    for line in [
        "2 findings",
        "   1 a deadlock (deadlock)",
        "     now       2; should be 0-1",
        "     cost      134.0 s of delay in RUN",
        "     do        virsh emulatorpin guest7 0-1 --live --config",
        "     undo      virsh emulatorpin guest7 2 --live --config",
        "     cost      no run shows it",
    ] {
        assert!(text.lines().any(|known| known == line), "{line:?} in\n{text}");
    }
}

#[test]
fn the_map_marks_cpus_with_a_collision() {
    let diagnosis = Diagnosis { map: map(), ..Diagnosis::default() };
    let text = text(&diagnosis, false, CharacterSet::Ascii.into());
    let rows: Vec<&str> =
        text.lines().filter(|line| line.contains("isolated") || line.contains("housekeeping")).collect();
    assert_eq!(rows.len(), 4, "{text}");
    assert!(rows[1].trim().starts_with('1') && rows[1].contains("eth0-rx-0 (45)"), "{text}");
    assert!(rows[2].trim().starts_with("! 2") && rows[2].contains("guest7 vCPU 0 (fifo 1)"), "{text}");
    assert!(rows[3].trim().starts_with('3') && !rows[3].contains("guest7"), "{text}");
    assert!(text.contains("Nothing found"), "{text}");
}

#[test]
fn names_of_others_steer_no_terminal() {
    let diagnosis = Diagnosis { findings: vec![finding("a\x1b[2Jb", &[])], ..Diagnosis::default() };
    assert!(!text(&diagnosis, true, CharacterSet::Ascii.into()).contains('\x1b'));
}
