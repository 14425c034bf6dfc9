//! Each setting is read from a machine that is a directory tree, and from the machine that runs the test.

use latpath_settings::{
    Address, Device, Located, Persistence, Place, Read, Scope, Setting, SettingValue, Source, Writable, Write,
    WriteError,
};
use latpath_testkit::machine_folder::{MachineFolder, VCPU_GROUP};
use latpath_vms::{Accel, Policy, Role, Tap, Thread, Vm};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn guest() -> Vm {
    let thread = |tid, role, vcpu, policy, rt_priority| Thread {
        tid,
        role,
        vcpu,
        policy,
        rt_priority,
        cpus_allowed: "2".parse().unwrap(),
        ..Thread::default()
    };
    Vm {
        name: "guest7".into(),
        pid: MachineFolder::QEMU,
        machine: Some("q35".into()),
        accel: Accel::Kvm,
        libvirt: true,
        vcpus: Some(1),
        memory_bytes: Some(4 << 30),
        taps: vec![Tap { device: "vnet0".into(), queues: 1, vhost: Some(true), ..Tap::default() }],
        threads: vec![
            thread(MachineFolder::QEMU, Role::MainLoop, None, Policy::Other, 0),
            thread(MachineFolder::VCPU, Role::Vcpu, Some(0), Policy::Fifo, 1),
        ],
        ..Vm::default()
    }
}

fn values() -> (tempfile::TempDir, Vec<SettingValue>) {
    let folder = tempfile::tempdir().unwrap();
    MachineFolder::lay_out(folder.path());
    let vms = [guest()];
    let reading = Source::below(folder.path(), &vms, Vec::new()).read();
    assert_eq!((reading.omitted, reading.notes), (0, vec![]));
    (folder, reading.values)
}

fn of(values: &[SettingValue], setting: Setting) -> Vec<(&str, &str)> {
    let all = values.iter().filter(|value| value.setting == setting.id());
    all.map(|value| (value.target.as_str(), value.value.as_str())).collect()
}

/// Whether the setting can only be read from a running program.
fn is_asked(setting: &Setting) -> bool {
    matches!(setting, Setting::OvsBridges | Setting::OvsConfig)
}

#[test]
fn each_setting_is_read_where_the_table_says() {
    let (_folder, values) = values();
    let read: BTreeSet<&str> = values.iter().map(|value| value.setting.as_str()).collect();
    let missing: Vec<_> = Setting::ALL.iter().filter(|s| !is_asked(s) && !read.contains(s.id())).collect();
    assert!(missing.is_empty(), "testkit's MachineFolder has nothing to read for {missing:?}");
    for value in &values {
        let setting = Setting::of_id(&value.setting).unwrap();
        let of_machine = matches!(setting.info().scope, Scope::Machine | Scope::BootParameter);
        assert_eq!(value.target.is_empty(), of_machine, "{value:?}");
    }
}

#[test]
fn values_are_what_a_user_would_look_for() {
    let (_folder, values) = values();
    let of = |setting| of(&values, setting);
    assert_eq!(of(Setting::KernelPreemption), [("", "PREEMPT_RT")]);
    assert_eq!(of(Setting::TransparentHugepages), [("", "madvise")]);
    assert_eq!(of(Setting::CpuLatencyLimit), [("", "2000000000")]);
    assert_eq!(of(Setting::Irqbalance), [("", "not running")]);
    assert_eq!(of(Setting::CpuGovernor), [("0-3", "powersave")]);
    assert_eq!(of(Setting::CpuEnergyPreference), [("0-1", "balance_power")], "isolated CPUs are not called");
    assert_eq!(of(Setting::CpuIdleLimit), [("0-3", "2")]);
    assert_eq!(of(Setting::CpuIdleDisabled), [("0-3", "2")]);
    assert_eq!(of(Setting::RcucPriority), [("0", "fifo 4")]);
    assert_eq!(of(Setting::IrqAffinity), [("eth0-rx-0", "0-3")]);
    assert_eq!(of(Setting::IrqThreadPriority), [("eth0-rx-", "fifo 50")]);
    assert_eq!(of(Setting::DeviceRings), [("eth0", "rx 256 tx 256")]);
    assert_eq!((of(Setting::DeviceGro), of(Setting::DeviceLro)), (vec![("eth0", "on")], vec![("eth0", "off")]));
    assert_eq!(of(Setting::DeviceMaster), [("br0", "none"), ("eth0", "br0")]);
    assert_eq!(of(Setting::DeviceXps), [("eth0 tx-0", "f")]);
    assert_eq!(of(Setting::DeviceRps), [("eth0 rx-0", "0")]);
    assert_eq!(of(Setting::ThreadPriority), [("guest7 main loop", "other"), ("guest7 vCPU 0", "fifo 1")]);
    assert_eq!((of(Setting::CpusIsolated), of(Setting::CpusNohzFull)), (vec![("", "2-3")], vec![("", "none")]));
    assert_eq!(of(Setting::CpuSiblings).len(), 4);
    assert_eq!((of(Setting::CpuNumaNode), of(Setting::NumaDistances)), (vec![("0-3", "0")], vec![("", "0: 10")]));
    assert_eq!((of(Setting::Hugepages), of(Setting::Printk)), (vec![("", "2048 kB: 0")], vec![("", "4 4 1 7")]));
    assert_eq!(of(Setting::ServicePriority), [("ptp4l", "fifo 1")]);
    assert_eq!(of(Setting::ServiceCpus), [("ptp4l", "0-1")]);
    assert_eq!(of(Setting::VmVirtqueues), [("guest7", "rx 1024 tx default vectors 4")]);
    assert_eq!((of(Setting::VmBalloon), of(Setting::VmMemoryNodes)), (vec![("guest7", "no")], vec![("guest7", "0")]));
    assert_eq!(of(Setting::VmMemoryBacking), [("guest7", "private pages")]);
    assert_eq!(of(Setting::VmPinning), [("guest7", "vCPU 0: 2")]);
    assert_eq!(of(Setting::VmCpuModel), [("guest7", "host,pmu=off")]);
    assert_eq!(of(Setting::VmMemoryLocked), [("guest7", "yes")]);
    assert_eq!(of(Setting::VmNics), [("guest7", "tap, vhost, 1 queue")]);
    let group = VCPU_GROUP.replacen("\\x2d1", "\\x2dN", 1);
    assert_eq!(of(Setting::CgroupCpus), [(group.as_str(), "none")]);
    assert_eq!(of(Setting::BootIsolcpus), [("", "2-3")]);
    assert_eq!((of(Setting::BootThreadirqs), of(Setting::BootIdle)), (vec![("", "set")], vec![("", "not set")]));
    assert_eq!(of(Setting::BootOther), [("", "log_buf_len=1M")]);
    let irq = values.iter().find(|value| value.setting == "irq-affinity").unwrap();
    assert_eq!(irq.at.as_deref(), Some("45"), "the number that the interrupt has at present");
}

#[test]
fn this_machine_is_read_within_its_time_and_the_loopback_device_is_asked() {
    let device = Device { name: "lo".into(), netns: 0, suffix: String::new() };
    let reading = Source::machine(&[], vec![device]).read();
    let of = |setting| of(&reading.values, setting);
    assert_eq!(of(Setting::KernelRelease).len(), 1, "{reading:?}");
    assert!(of(Setting::DeviceMtu).iter().any(|(target, _)| *target == "lo"), "{reading:?}");
    assert!(of(Setting::DeviceGro).iter().any(|(target, _)| *target == "lo"), "{reading:?}");
    assert!(of(Setting::DeviceQdisc).contains(&("lo", "noqueue")), "{reading:?}");
    assert!(!reading.values.is_empty() && reading.took_ns > 0);
}

#[test]
fn names_and_their_writing_do_not_depend_on_the_order_of_the_table() {
    let ids: BTreeSet<&str> = Setting::ALL.iter().map(|setting| setting.id()).collect();
    assert_eq!(ids.len(), Setting::ALL.len(), "a name is there twice");
    for setting in Setting::ALL {
        let info = setting.info();
        assert_eq!(Setting::of_id(info.id), Some(*setting));
        assert!(info.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{setting}");
        assert!(info.meaning.ends_with('.') && !info.meaning.contains('|'), "{setting}: a sentence");
        assert!(Scope::ALL.contains(&info.scope));
        let is_boot = info.scope == Scope::BootParameter;
        assert_eq!(is_boot, info.id.starts_with("boot-"), "{setting}");
        assert!(!is_boot || info.lasts == Persistence::Persistent, "{setting}");
    }
}

/// Splits a line into words and operators as a shell does, but without expansions, which do not occur in these tests.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut chars) = (Vec::new(), None::<String>, line.chars());
    while let Some(c) = chars.next() {
        match c {
            '\'' => word.get_or_insert_default().extend(chars.by_ref().take_while(|c| *c != '\'')),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            ' ' => words.extend(word.take()),
            '>' | '<' | ';' | '&' | '|' | '`' | '\n' => {
                words.extend(word.take());
                words.push(format!("\0{c}"));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Settings whose command line contains one command per item of the value.
const LISTS: [Setting; 3] = [Setting::CpuIdleDisabled, Setting::DeviceAddresses, Setting::DeviceNeighbours];

#[test]
fn a_line_is_the_same_command_whatever_the_names_and_values_are() {
    let hostile = ["a b", "$(reboot)", "'; reboot; '", "x`reboot`", "-rf", "a\nb", "a>b", "*", "|| reboot", ""];
    let operators = |line: &str| words(line).into_iter().filter(|word| word.starts_with('\0')).collect::<Vec<_>>();
    for setting in Setting::ALL {
        let Some(plain) = setting.shell(&Place::name("place"), "value") else {
            assert!(matches!(setting.info().write, Write::ReadOnly(_)), "{setting}: a line to write it");
            continue;
        };
        for text in hostile {
            let line = setting.shell(&Place::name(text), text).unwrap();
            // Each word of a value counts separately.
            let count = |line: &str| words(line).len();
            // An empty value removes a qdisc, and enables all idle states.
            let is_reset = text.is_empty() && *setting == Setting::DeviceQdisc;
            let is_list = is_reset || LISTS.contains(setting);
            let has_words = matches!(setting.info().write,
                Write::Command(template) | Write::Request(template, _) if template.contains("{words}"));
            assert!(is_list || has_words || count(&line) == count(&plain), "{setting}: {line}");
            assert!(is_list || operators(&line) == operators(&plain), "{setting}: {line}");
            let outside: String = line.split('\'').step_by(2).collect();
            assert!(
                !outside.contains("$(reboot)") && !outside.contains('`') && !outside.contains('*'),
                "{setting}: {line}"
            );
        }
    }
}

#[test]
fn lines_are_those_of_the_tools() {
    let line = |setting: Setting, at: &str, value: &str| setting.shell(&Place::name(at), value).unwrap();
    assert_eq!(line(Setting::CpuGovernor, "3", "performance"), "cpupower -c 3 frequency-set -g performance");
    assert_eq!(Setting::CpuIdleLimit.shell(&Place::All, "10").unwrap(), "cpupower idle-set -D 10");
    assert_eq!(
        line(Setting::CpuIdleDisabled, "3", "1,2"),
        "cpupower -c 3 idle-set -d 1 && cpupower -c 3 idle-set -d 2"
    );
    assert_eq!(line(Setting::IrqAffinity, "45", "0-1"), "echo 0-1 > /proc/irq/45/smp_affinity_list");
    assert_eq!(line(Setting::NmiWatchdog, "", "0"), "sysctl kernel.nmi_watchdog=0");
    assert_eq!(line(Setting::ThreadPriority, "815", "fifo 51"), "chrt -f -p 51 815");
    assert_eq!(line(Setting::ThreadPriority, "815", "other nice -5"), "chrt -o -p 0 815");
    assert_eq!(line(Setting::DeviceRings, "eth0", "rx 256 tx 512"), "ethtool -G eth0 rx 256 tx 512");
    assert_eq!(line(Setting::BootIsolcpus, "", "2-3"), "isolcpus=2-3");
    assert_eq!(line(Setting::BootThreadirqs, "", Setting::BARE), "threadirqs");
    assert_eq!(line(Setting::DeviceQdisc, "eth0", "default"), "tc qdisc del dev eth0 root");
    assert_eq!(
        line(Setting::CgroupCpus, "/sys/fs/cgroup/system.slice", "0-1"),
        "systemctl set-property --runtime system.slice AllowedCPUs=0-1"
    );
    assert_eq!(
        line(Setting::KvmPleGap, "", "0"),
        "echo options kvm_intel ple_gap=0 > /etc/modprobe.d/latpath-kvm_intel-ple_gap.conf"
    );
    let group = Place::expression("$(findmnt -fnt cgroup2 -o TARGET)/x");
    assert_eq!(
        Setting::CgroupQuota.shell(&group, "max").unwrap(),
        "echo max > $(findmnt -fnt cgroup2 -o TARGET)/x/cpu.max"
    );
}

#[test]
fn the_page_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    let (begin, end) = ("<!-- the table -->\n", "<!-- end of the table -->");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(begin).expect("the table's begin");
    let (table, after) = rest.split_once(end).expect("the table's end");
    let want = format!("{}\n", latpath_settings::page());
    if std::env::var_os("LATPATH_WRITE_PAGES").is_some() {
        std::fs::write(path, format!("{before}{begin}{want}{end}{after}")).unwrap();
        return;
    }
    assert!(
        table == want,
        "docs/settings.md is not the table: LATPATH_WRITE_PAGES=1 cargo test -p latpath-settings writes it"
    );
}

#[test]
fn the_interrupts_of_a_virtio_device_are_found_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MachineFolder::lay_out(dir.path());
    folder.write("sys/class/net/eth1/ifindex", "4");
    folder.write("sys/virtio1/uevent", "");
    folder.link("sys/class/net/eth1/device", "../../../virtio1");
    for (number, name) in [(50, "virtio1-input.0"), (51, "virtio1-output.0"), (52, "virtio10-input.0")] {
        folder.write(&format!("proc/irq/{number}/smp_affinity_list"), "0-3");
        folder.write(&format!("proc/irq/{number}/{name}/name"), "");
    }
    let reading = Source::below(dir.path(), &[], Vec::new()).read();
    let found = of(&reading.values, Setting::IrqAffinity);
    let all = ["eth0-rx-0", "eth1 virtio1-input.0", "eth1 virtio1-output.0", "virtio10-input.0"];
    assert_eq!(found, all.map(|name| (name, "0-3")), "an interrupt of another device has its own name");
}

#[test]
fn a_device_that_sleeps_is_not_asked_and_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MachineFolder::lay_out(dir.path());
    folder.write("sys/class/net/eth0/device/power/runtime_status", "suspended");
    let reading = Source::below(dir.path(), &[], Vec::new()).read();
    assert_eq!(of(&reading.values, Setting::DeviceSpeed), []);
    assert!(reading.notes.iter().any(|note| note.starts_with("eth0 is suspended")), "{:?}", reading.notes);
}

#[test]
fn cpus_with_the_same_value_are_one_list() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MachineFolder::lay_out(dir.path());
    folder.write("sys/devices/system/cpu/online", "0-255");
    for cpu in 0..256 {
        for (file, text) in [
            ("cpufreq/scaling_governor", "powersave"),
            ("cpuidle/state0/latency", "0"),
            ("cpuidle/state0/disable", "0"),
        ] {
            folder.write(&format!("sys/devices/system/cpu/cpu{cpu}/{file}"), text);
        }
    }
    let reading = Source::below(dir.path(), &[], Vec::new()).read();
    assert_eq!(of(&reading.values, Setting::CpuGovernor), [("0-255", "powersave")]);
}

/// Paths of files that differ.
fn differing(a: &BTreeMap<PathBuf, Vec<u8>>, b: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let all: BTreeSet<&PathBuf> = a.keys().chain(b.keys()).collect();
    all.into_iter().filter(|path| a.get(*path) != b.get(*path)).cloned().collect()
}

/// The files in a directory, with their contents.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => all.extend(files(&entry.path())),
            kind if kind.is_file() => drop(all.insert(entry.path(), std::fs::read(entry.path()).unwrap())),
            _ => {}
        }
    }
    all
}

/// A different value that is valid for the setting.
fn other_value(setting: Setting, value: &str) -> String {
    match (setting, value) {
        (Setting::CpuIdleDisabled, _) => "0-1".into(),
        (_, "fifo 2" | "fifo 7") => "other nice -5".into(),
        (Setting::TransparentHugepages | Setting::HugepageDefrag, _) => "always".into(),
        (Setting::PreemptMode, _) => "none".into(),
        (_, "on") => "off".into(),
        (_, "off") => "on".into(),
        _ if matches!(setting.info().read, Read::Ethtool(..)) => {
            let (name, rest) = value.split_once(' ').unwrap();
            let first = rest.split(' ').next().unwrap();
            let number = |n: u32| if n > 1 { n - 1 } else { n + 1 };
            format!("{name} {}", first.parse().map_or_else(|_| other_value(setting, first), |n| number(n).to_string()))
        }
        _ => match setting.info().write {
            Write::Scheduling => "fifo 7".into(),
            Write::Affinity => "0-1".into(),
            Write::MadeRequest(..) => match setting {
                Setting::DeviceQdisc => "pfifo_fast".into(),
                Setting::DeviceClockSync => "system-to-nic".into(),
                Setting::DeviceAddresses => "192.0.2.7/24".into(),
                Setting::DeviceNeighbours => "192.0.2.2 02:00:00:00:00:02".into(),
                _ => latpath_settings::namespace_for("eth0"),
            },
            _ if value == "none" => "0-1".into(),
            _ if value == "up" => "down".into(),
            _ if value == "3" => "1".into(),
            _ => "3".into(),
        },
    }
}

/// A machine on which all settings can be written; masks have the form that the kernel prints on a machine with few
/// CPUs.
fn writable_machine(folder: &Path) -> MachineFolder {
    let machine = MachineFolder::lay_out(folder);
    machine.write("sys/class/net/eth0/queues/rx-0/rps_cpus", "0");
    machine.write("sys/class/net/eth0/queues/tx-0/xps_cpus", "f");
    machine.write("proc/sys/kernel/printk", "4 4 1 7");
    for tid in [MachineFolder::QEMU, MachineFolder::VCPU] {
        machine.kernel_thread(tid, "CPU 0/KVM", 0, 0);
        machine.write(&format!("proc/{tid}/status"), "Name:\tqemu\nCpus_allowed_list:\t2\nVmLck:\t  4194304 kB");
    }
    machine
}

#[test]
fn each_setting_that_latpath_writes_is_written_and_back_at_each_place() {
    let folder = tempfile::tempdir().unwrap();
    writable_machine(folder.path());
    let vms = [guest()];
    let source = || Source::below(folder.path(), &vms, Vec::new());
    let before = files(folder.path());
    let (places, notes) = source().places();
    assert_eq!(notes, [""; 0]);
    let mut written = BTreeSet::new();
    for Located { setting, address, .. } in places {
        if setting.writable() != Writable::Now || is_asked(&setting) {
            continue;
        }
        written.insert(setting);
        let old = source().value(setting, &address).unwrap();
        let new = other_value(setting, &old);
        assert_ne!(old, new, "{setting}");
        match setting.write(&source(), &address, &new) {
            Err(WriteError::NotOffered { why, .. }) => {
                assert!(why.contains("fixed") && files(folder.path()) == before, "{why}");
                continue;
            }
            answer => answer.unwrap_or_else(|e| panic!("{e}")),
        }
        assert!(setting.is_met(&source().value(setting, &address).unwrap(), &new));
        assert_ne!(differing(&files(folder.path()), &before), [""; 0].map(PathBuf::from), "{setting}");
        setting.write(&source(), &address, &old).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(differing(&files(folder.path()), &before), [""; 0].map(PathBuf::from), "{setting}");
    }
    let all = Setting::ALL.iter().filter(|setting| setting.writable() == Writable::Now && !is_asked(setting));
    assert_eq!(all.copied().collect::<BTreeSet<_>>(), written);
}

#[test]
fn a_setting_that_latpath_does_not_write_says_who_does() {
    let folder = tempfile::tempdir().unwrap();
    writable_machine(folder.path());
    let source = Source::below(folder.path(), &[], Vec::new());
    let before = files(folder.path());
    for (setting, texts) in [
        (Setting::BootIsolcpus, ["next boot", "isolcpus=3"]),
        (Setting::KvmPleGap, ["module load", "/etc/modprobe.d/latpath-kvm_intel-ple_gap.conf"]),
        (Setting::TunedProfile, ["never", "tuned-adm sets it"]),
        (Setting::CpusOnline, ["by command", "chcpu -e 3"]),
    ] {
        let error = setting.write(&source, &Address::Machine, "3").unwrap_err().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
    assert_eq!(differing(&files(folder.path()), &before), [""; 0].map(PathBuf::from));
}

#[test]
fn a_write_to_what_is_gone_or_refused_names_setting_place_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    writable_machine(folder.path());
    let source = Source::below(folder.path(), &[], Vec::new());
    let thread = |tid, start_ticks| Address::Thread { tid, start_ticks };
    for (setting, address, value, why) in [
        (Setting::IrqAffinity, Address::Interrupt { number: 99 }, "0", "/proc/irq/99/smp_affinity_list: No such file"),
        (Setting::ThreadPriority, thread(90, 7), "fifo 1", "another one has its number"),
        (Setting::ThreadPriority, thread(99, 0), "fifo 1", "the thread has ended"),
        (Setting::ThreadPriority, thread(90, 0), "fifo 100", "not a policy"),
        (Setting::ThreadCpus, thread(90, 0), "x", "x"),
        (Setting::TransparentHugepages, Address::Machine, "sometimes", "sometimes is none of always, madvise, never"),
        (Setting::Swappiness, Address::Cpu { cpu: 0 }, "1", "not a place of this setting"),
        (Setting::CpuIdleDisabled, Address::Cpu { cpu: 0 }, "7", "no idle state 7 (it has 3)"),
        (Setting::KsoftirqdPriority, Address::Cpu { cpu: 3 }, "fifo 2", "no thread ksoftirqd/3"),
    ] {
        let error = setting.write(&source, &address, value).unwrap_err();
        assert!(matches!(error, WriteError::Refused { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{setting} of {address}: ")) && text.contains(why), "{text}");
    }
}

#[test]
fn a_thread_of_this_machine_is_scheduled_as_chrt_and_taskset_show() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let source = Source::machine(&[], Vec::new());
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let start_ticks = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let address = Address::Thread { tid: child.id(), start_ticks };
    let cpus = source.value(Setting::ThreadCpus, &address).unwrap();
    let first = cpus.split(['-', ',']).next().unwrap();
    let written = Setting::ThreadPriority.write(&source, &address, "batch nice 3");
    let moved = Setting::ThreadCpus.write(&source, &address, first);
    let shown = |tool: &str, flag: &str| {
        let out = std::process::Command::new(tool).args([flag, &child.id().to_string()]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let (policy, affinity) = (shown("chrt", "-p"), shown("taskset", "-cp"));
    child.kill().unwrap();
    child.wait().unwrap();
    written.unwrap();
    moved.unwrap();
    assert!(policy.contains("SCHED_BATCH"), "{policy}");
    assert!(affinity.trim_end().ends_with(&format!("list: {first}")), "{affinity}");
}
