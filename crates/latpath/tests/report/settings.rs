//! Settings of the machine: each run stores them, report lists those that changed, and compare those that differ.

use crate::documents::row;
use crate::runs::{manifest, stderr, stdout, Bench, START};
use latpath_compare::Comparison;
use latpath_journey::Journey;
use latpath_model::{Ns, HOST};
use latpath_report::Report;
use latpath_run::Writer;
use latpath_settings::{DifferenceKind, Reading, Scope, Setting, Source};
use latpath_testkit::machine_folder::{MachineFolder, VCPU_GROUP};
use latpath_vms::{Policy, Role, Thread, Vm};
use serde_json::Value;
use std::process::Output;

/// A simulated machine in a directory, with a guest.
struct Machine {
    _dir: tempfile::TempDir,
    folder: MachineFolder,
    guest: Vm,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = MachineFolder::lay_out(dir.path());
        let vcpu = Thread {
            tid: MachineFolder::VCPU,
            role: Role::Vcpu,
            vcpu: Some(0),
            policy: Policy::Fifo,
            rt_priority: 1,
            cpus_allowed: "2".parse().unwrap(),
            ..Thread::default()
        };
        let guest = Vm {
            name: "guest7".into(),
            pid: MachineFolder::QEMU,
            memory_bytes: Some(4 << 30),
            threads: vec![vcpu],
            ..Vm::default()
        };
        Self { _dir: dir, folder, guest }
    }

    fn read(&self) -> Reading {
        Source::below(&self.folder.path(""), std::slice::from_ref(&self.guest), Vec::new()).read()
    }
}

/// Writes a run of a few packets, with the settings at its begin and, if it ended, at its end.
fn run(bench: &Bench, name: &str, begin: Option<Reading>, end: Option<Reading>) {
    let mut manifest = manifest();
    manifest.streams.truncate(1);
    manifest.joined.truncate(1);
    manifest.start.monotonic_ns = START + name.len() as Ns;
    manifest.host.boot_id = name.into();
    let mut writer = Writer::create(&bench.dir.path().join(name), manifest).unwrap();
    begin.into_iter().for_each(|reading| writer.begin_settings(HOST, reading).unwrap());
    for number in 0..200 {
        let t0 = START + 100 + number as Ns * 5_000_000;
        let t = [t0, t0 + 8_000, 0, t0 + 40_000, t0 + 100_000, t0 + 130_000];
        let key = number as u32;
        let journey = Journey { number, key, seen: 0b11_1011, t: &t, cpu: &[0; 6], tid: &[0; 6], ..Journey::default() };
        writer.push(&journey).unwrap();
    }
    end.into_iter().for_each(|reading| writer.end_settings(HOST, reading).unwrap());
    writer.finish().unwrap();
}

fn done(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

/// Compares two runs between which a setting was changed; text, JSON and HTML must name this setting and no other.
fn named(setting: Setting, place: &str, (before, after): (&str, &str), change: impl FnOnce(&mut Machine)) {
    let bench = Bench::new();
    let mut machine = Machine::new();
    run(&bench, "old", Some(machine.read()), Some(machine.read()));
    change(&mut machine);
    run(&bench, "newer", Some(machine.read()), Some(machine.read()));

    let args = ["compare", "newer", "--against", "old"];
    let settings = bench.json::<Comparison>(&args).settings;
    let [found] = &settings.differences[..] else { panic!("{:?}", settings.differences) };
    assert_eq!((found.kind, found.machine.as_str()), (DifferenceKind::Differs, HOST));
    assert_eq!((found.scope, &found.settings[..]), (Some(setting.info().scope), &[setting.id().to_owned()][..]));
    assert_eq!((&found.a[..], &found.b[..]), (&[after.to_owned()][..], &[before.to_owned()][..]));
    assert_eq!((settings.a_recorded, settings.b_recorded), (1, 1));

    let text = done(bench.latpath(&args));
    let (head, rest) = text.split_once("Settings that differ\n").unwrap_or_else(|| panic!("{text}"));
    assert!(!head.contains("stddev"), "what changed comes before the figures: {text}");
    let line =
        rest.lines().find(|line| line.trim_start().starts_with(setting.id())).unwrap_or_else(|| panic!("{text}"));
    // A long name continues on the next lines.
    let begin: String = place.chars().take(12).collect();
    for word in [&begin, before, after] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let html = done(bench.latpath(&[&args[..], &["--html", "-"]].concat()));
    assert_eq!(row(&html, &[setting.id()])[1..], [place, after, before]);
}

#[test]
fn a_changed_setting_of_the_machine_is_named() {
    named(Setting::Swappiness, "", ("10", "60"), |machine| machine.folder.write("proc/sys/vm/swappiness", "60"));
}

#[test]
fn a_changed_setting_of_cpus_is_named_once_for_all_of_them() {
    named(Setting::CpuGovernor, "CPUs 2-3", ("powersave", "performance"), |machine| {
        for cpu in 2..4 {
            machine.folder.write(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), "performance");
        }
    });
}

#[test]
fn a_changed_setting_of_an_interrupt_is_named_though_its_number_is_another_one() {
    named(Setting::IrqAffinity, "eth0-rx-0", ("0-3", "1"), |machine| {
        for path in ["proc/irq/45", "sys/class/net/eth0/device/msi_irqs/45"] {
            let (from, to) = (machine.folder.path(path), machine.folder.path(&path.replace("45", "77")));
            std::fs::rename(from, to).unwrap();
        }
        machine.folder.write("proc/irq/77/smp_affinity_list", "1");
    });
}

#[test]
fn a_changed_setting_of_a_device_is_named() {
    named(Setting::DeviceDeferIrqs, "eth0", ("0", "2"), |machine| {
        machine.folder.write("sys/class/net/eth0/napi_defer_hard_irqs", "2");
    });
}

#[test]
fn a_changed_setting_of_a_thread_is_named() {
    named(Setting::ThreadPriority, "guest7 vCPU 0", ("fifo 1", "rr 10"), |machine| {
        let vcpu = &mut machine.guest.threads[0];
        (vcpu.policy, vcpu.rt_priority, vcpu.tid) = (Policy::Rr, 10, 7000);
        machine.folder.write("proc/7000/cgroup", &format!("0::{VCPU_GROUP}"));
    });
}

#[test]
fn a_changed_setting_of_a_control_group_is_named() {
    let group = VCPU_GROUP.replacen("\\x2d1", "\\x2dN", 1);
    named(Setting::CgroupQuota, &group, ("max 100000", "50000 100000"), |machine| {
        machine.folder.write(&format!("sys/fs/cgroup{VCPU_GROUP}/cpu.max"), "50000 100000");
    });
}

#[test]
fn a_changed_setting_of_a_virtual_machine_is_named() {
    named(Setting::VmCpuModel, "guest7", ("host,pmu=off", "max"), |machine| {
        let line = std::fs::read_to_string(machine.folder.path("proc/5600/cmdline")).unwrap();
        machine.folder.write("proc/5600/cmdline", &line.replace("host,pmu=off", "max"));
    });
}

#[test]
fn a_changed_boot_parameter_is_named_also_where_it_was_not_there() {
    named(Setting::BootIdle, "", ("not set", "poll"), |machine| {
        let line = std::fs::read_to_string(machine.folder.path("proc/cmdline")).unwrap();
        machine.folder.write("proc/cmdline", &format!("{} idle=poll", line.trim()));
    });
}

#[test]
fn each_scope_has_such_a_test() {
    let text = include_str!("settings.rs");
    let tested = |scope: &Scope| {
        let mut settings = Setting::ALL.iter().filter(|setting| setting.info().scope == *scope);
        settings.any(|setting| text.contains(&format!("named(Setting::{setting:?}")))
    };
    let missing: Vec<_> = Scope::ALL.iter().filter(|scope| !tested(scope)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_setting_that_changed_during_a_run_is_reported_and_varies_within_its_side() {
    let bench = Bench::new();
    let machine = Machine::new();
    let begin = machine.read();
    run(&bench, "old", Some(begin.clone()), Some(machine.read()));
    machine.folder.write("proc/sys/kernel/numa_balancing", "1");
    machine.folder.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance");
    run(&bench, "changed", Some(begin), Some(machine.read()));

    let text = done(bench.latpath(&["report", "changed"]));
    let block = text.split("Settings that changed during the run\n").nth(1).unwrap_or_else(|| panic!("{text}"));
    let lines: Vec<&str> = block.lines().take(3).map(str::trim).collect();
    assert!(lines[0].starts_with("numa-balancing: 0 ") && lines[0].ends_with(" 1"), "{lines:?}");
    assert!(lines[1].starts_with("cpu-governor of CPU 1: powersave "), "{lines:?}");
    assert!(lines[2].contains("settings read"), "{lines:?}");
    assert!(done(bench.latpath(&["report", "old"])).contains("settings read, none changed during the run"));

    let settings = bench.json::<Report>(&["report", "changed"]).settings;
    let [_, governor] = &settings.changes[..] else { panic!("{:?}", settings.changes) };
    assert_eq!((governor.targets[0].as_str(), governor.end.as_str()), ("1", "performance"));
    let count = settings.machines[0].begin.as_ref().map(|begin| begin.values.len());
    assert!(count > Some(100), "JSON has all of them: {count:?}");

    let html = done(bench.latpath(&["report", "changed", "--html", "-"]));
    assert_eq!(row(&html, &["host", "numa-balancing"])[3..5], ["0", "1"]);
    assert!(html.contains("<details>"), "the table is folded");

    let settings = bench.json::<Comparison>(&["compare", "changed", "--against", "old"]).settings;
    let kinds: Vec<_> = settings.differences.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [DifferenceKind::Varies; 2]);
}

#[test]
fn a_run_without_settings_is_read_and_compared_and_it_is_said_that_it_has_none() {
    let bench = Bench::new();
    run(&bench, "old", None, None);
    run(&bench, "newer", Some(Machine::new().read()), None);
    let text = done(bench.latpath(&["compare", "newer", "--against", "old"]));
    assert!(text.contains("0 of 1 recordings of B have the settings of their machines"), "{text}");
    assert!(!done(bench.latpath(&["report", "old"])).contains("settings"));
    assert!(done(bench.latpath(&["report", "newer"])).contains("whether one changed is not known"));
}

#[test]
fn what_only_one_side_has_is_one_line_for_each_place() {
    let bench = Bench::new();
    let machine = Machine::new();
    run(&bench, "old", Some(machine.read()), None);
    for file in ["ifindex", "mtu", "tx_queue_len"] {
        machine.folder.write(&format!("sys/class/net/x<b>1/{file}"), "9");
    }
    machine.folder.write("sys/class/net/x<b>1/device/numa_node", "0");
    run(&bench, "newer", Some(machine.read()), None);
    let args = ["compare", "newer", "--against", "old"];
    let found = bench.json::<Comparison>(&args).settings.differences;
    assert_eq!((found.len(), found[0].kind), (1, DifferenceKind::OnlyOneSide), "{found:?}");
    assert!(found[0].a.contains(&"device-mtu=9".into()), "{found:?}");
    let html = done(bench.latpath(&[&args[..], &["--html", "-"]].concat()));
    assert_eq!(row(&html, &["4 settings"])[1..], ["x<b>1", "read", "not read"]);
    assert!(!html.contains("x<b>1"), "names are no markup");
}

#[test]
fn a_damaged_file_of_settings_is_a_note_and_the_figures_stay() {
    let bench = Bench::new();
    run(&bench, "old", Some(Machine::new().read()), None);
    let file = bench.dir.path().join("old/settings.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("powersave", "powerslave", 1)).unwrap();
    let report: Report = bench.json(&["report", "old"]);
    assert_eq!((report.summary.journeys, report.settings.machines.len()), (200, 0));
    assert!(report.summary.notes.concat().contains("settings.json"), "{:?}", report.summary.notes);
    std::fs::remove_file(&file).unwrap();
    let notes = bench.json::<Report>(&["report", "old"]).summary.into_owned().notes;
    assert!(notes.concat().contains("settings.json is missing"), "{notes:?}");
}

#[test]
fn every_key_of_settings_is_in_the_docs() {
    let bench = Bench::new();
    let machine = Machine::new();
    run(&bench, "old", Some(machine.read()), None);
    let begin = machine.read();
    machine.folder.write("proc/sys/vm/swappiness", "60");
    run(&bench, "newer", Some(begin), Some(machine.read()));
    let mut keys = std::collections::BTreeSet::new();
    let report: Value = bench.json(&["report", "newer"]);
    crate::figures::all_keys(&report["settings"], &mut keys);
    let page: Value = bench.json(&["compare", "newer", "--against", "old"]);
    crate::figures::all_keys(&page["settings"], &mut keys);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = std::fs::read_to_string(path).unwrap();
    let missing: Vec<_> = keys.iter().filter(|key| !text.contains(&format!("`{key}`"))).collect();
    assert!(keys.len() > 15 && missing.is_empty(), "json.md lacks {missing:?}");
}
