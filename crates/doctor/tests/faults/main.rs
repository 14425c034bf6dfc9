//! Adds faults to a hypervisor that has none. Each must be the first finding; of several faults, the first must be the
//! one that a run shows.

mod host;

use host::{thread, Host, LINE, SECOND};
use latpath_caps::{Caps, Command, KernelOption, Lack, Works};
use latpath_doctor::{CostRow, DoctorDocument, Finding, Rule, RunCost, Severity};
use latpath_testkit::machine_folder::MachineFolder;
use latpath_vms::{Accel, Role, Vm};
use std::collections::BTreeSet;

/// Name of the rule that finds the fault, and a function that adds it.
type Fault = (&'static str, fn(&mut Host));

const FAULTS: &[Fault] = &[
    ("main-loop-behind-vcpu", |h| h.cpus(Role::MainLoop, "2")),
    ("main-loop-behind-vcpu", |h| {
        // The main loop of another virtual machine.
        let threads = vec![thread(SECOND, Role::MainLoop, None, "2", 0)];
        h.vms.push(Vm { name: "guest 8".into(), pid: SECOND, accel: Accel::Kvm, threads, ..Vm::default() });
    }),
    ("main-loop-behind-vcpu", |h| {
        h.add(thread(6155, Role::Vcpu, Some(1), "3", 1));
        h.cpus(Role::MainLoop, "2-3");
    }),
    ("vhost-behind-vcpu", |h| h.vhost("2", 0)),
    // At equal priority, the thread that runs first keeps the CPU.
    ("vhost-behind-vcpu", |h| h.vhost("2", 1)),
    ("two-realtime-vcpus", |h| h.add(thread(6155, Role::Vcpu, Some(1), "2", 1))),
    ("two-realtime-vcpus", |h| {
        // The scheduler does not balance load between isolated CPUs, so both vCPUs may stay on one.
        h.cpus(Role::Vcpu, "2-3");
        h.add(thread(6155, Role::Vcpu, Some(1), "2-3", 1));
    }),
    ("thread-may-meet-vcpu", |h| h.cpus(Role::MainLoop, "0-3")),
    ("thread-may-meet-vcpu", |h| h.vhost("1-2", 1)),
    ("thread-on-vcpu", |h| h.vhost("1-2", 2)),
    ("thread-may-meet-vcpu", |h| h.add(thread(6170, Role::Io, None, "0-3", 0))),
    ("no-housekeeping-cpu", |h| {
        h.write("sys/devices/system/cpu/isolated", "0-3");
        h.write("sys/devices/system/cpu/nohz_full", "0-3");
        let line = LINE.replace("2-3", "0-3");
        h.command_line(&line, &line);
    }),
    ("vm-emulated", |h| h.vms[0].accel = Accel::Tcg),
    ("vm-cpu-quota", |h| h.quota("50000 100000")),
    ("realtime-throttled", |h| {
        h.folder.remove("sys/kernel/debug/sched/fair_server");
        h.write("proc/sys/kernel/sched_rt_runtime_us", "950000");
    }),
    ("realtime-throttled", |h| h.write("sys/kernel/debug/sched/fair_server/cpu2/runtime", "50000000")),
    ("slow-clocksource", |h| h.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")),
    ("slow-clocksource", |h| h.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "acpi_pm")),
    ("vm-without-vhost", |h| h.vms[0].taps[0].vhost = Some(false)),
    ("tap-queue-short", |h| h.write("sys/class/net/vnet0/tx_queue_len", "50")),
    ("interrupt-on-vcpu", |h| h.write("proc/irq/45/effective_affinity_list", "2")),
    ("interrupt-on-vcpu", |h| h.interrupt(60, "nvme0q3", "2", "2")),
    ("interrupt-on-vcpu", |h| h.interrupt(61, "xhci_hcd", "0-3", "2")),
    ("interrupt-on-isolated", |h| h.interrupt(62, "ahci", "0-3", "3")),
    ("irqbalance-over-isolated", |h| {
        h.folder.program(800, "irqbalance", 0, 0);
        h.write("etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=0");
    }),
    ("irqaffinity-covers-isolated", |h| h.write("proc/irq/default_smp_affinity", "f")),
    ("thread-on-vcpu", |h| h.write("proc/701/status", "Name:\tptp4l\nCpus_allowed_list:\t2")),
    ("thread-on-vcpu", |h| {
        h.cpus(Role::MainLoop, "0-2");
        h.thread(Role::MainLoop).rt_priority = 10;
        h.thread(Role::MainLoop).policy = latpath_vms::Policy::Fifo;
    }),
    ("program-on-vcpu", |h| {
        h.folder.program(900, "backup", 0, 0);
        h.folder.program_thread(900, (900, "backup"), (0, 0), "0-3");
    }),
    ("two-vcpus", |h| {
        h.thread(Role::Vcpu).policy = latpath_vms::Policy::Other;
        h.thread(Role::Vcpu).rt_priority = 0;
        h.add(thread(6155, Role::Vcpu, Some(1), "2", 0));
    }),
    ("vcpu-across-isolation", |h| {
        h.cpus(Role::Vcpu, "1-2");
        h.cpus(Role::MainLoop, "0");
        h.cpus(Role::Vhost, "0");
        for (path, text) in [("proc/irq/45/smp_affinity_list", "0"), ("proc/irq/45/effective_affinity_list", "0")] {
            h.write(path, text);
        }
        h.write("proc/701/status", "Name:\tptp4l\nCpus_allowed_list:\t0");
    }),
    ("no-isolated-cpu", |h| {
        h.write("sys/devices/system/cpu/isolated", "");
        h.write("sys/devices/system/cpu/nohz_full", "");
        h.command_line("quiet", "quiet");
    }),
    ("vcpus-not-pinned", |h| h.cpus(Role::Vcpu, "0-1")),
    ("pmd-not-isolated", |h| {
        h.folder.program(950, "ovs-vswitchd", 0, 0);
        h.folder.program_thread(950, (951, "pmd-c01/id:9"), (0, 0), "1");
        for (path, text) in [("proc/irq/45/smp_affinity_list", "0"), ("proc/irq/45/effective_affinity_list", "0")] {
            h.write(path, text);
        }
        h.cpus(Role::MainLoop, "0");
        h.cpus(Role::Vhost, "0");
        h.write("proc/701/status", "Name:\tptp4l\nCpus_allowed_list:\t0");
    }),
    ("sibling-in-use", |h| {
        h.write("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1-2");
        h.write("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "1-2");
    }),
    ("vm-memory-on-other-node", |h| {
        h.second_node(&[]);
        h.write("proc/5600/status", "Name:\tqemu\nVmLck:\t  4194304 kB\nMems_allowed_list:\t1");
    }),
    ("nic-on-other-node", |h| {
        h.second_node(&[]);
        h.write("sys/class/net/eth0/device/numa_node", "1");
    }),
    ("vm-across-nodes", |h| {
        h.second_node(&[3]);
        h.add(thread(6155, Role::Vcpu, Some(1), "3", 1));
    }),
    ("isolated-with-tick", |h| h.write("sys/devices/system/cpu/nohz_full", "")),
    ("isolated-with-tick", |h| h.write("sys/devices/system/cpu/nohz_full", "2")),
    ("nohz-full-not-isolated", |h| h.write("sys/devices/system/cpu/isolated", "2")),
    ("kernel-work-on-vcpu", |h| h.write("sys/devices/virtual/workqueue/cpumask", "f")),
    ("kernel-work-on-vcpu", |h| h.write("sys/devices/virtual/workqueue/writeback/cpumask", "f")),
    ("virtio-vectors-few", |h| {
        h.write("proc/5600/cmdline", "qemu-system-x86_64\0-device\0virtio-net-pci,netdev=n0,vectors=2\0")
    }),
    ("ovs-slow-path", |h| h.datapath(90_000, 10_000, 0)),
    ("ovs-slow-path", |h| h.datapath(90_000, 100, 1)),
    ("irq-thread-behind-others", |h| {
        h.folder.kernel_thread(90, "irq/45-eth0-rx-", 1, 40);
        h.interrupt(60, "nvme0q1", "0-1", "1");
        h.folder.kernel_thread(91, "irq/60-nvme0q1", 1, 50);
    }),
    ("pinning-not-in-definition", |h| {
        h.write("etc/libvirt/qemu/guest7.xml", "<domain><cputune><vcpupin vcpu='0' cpuset='3'/></cputune></domain>")
    }),
    ("pinning-not-in-definition", |h| h.write("etc/libvirt/qemu/guest7.xml", "<domain></domain>")),
    ("isolated-cpu-missing", |h| {
        let line = LINE.replace("domain,2-3", "domain,2-5");
        h.command_line(&line, &line);
    }),
    ("boot-parameters-pending", |h| h.command_line(LINE, &format!("{LINE} idle=poll"))),
    ("boot-parameters-pending", |h| h.command_line(LINE, "quiet")),
    ("boot-parameters-pending", |h| h.command_line("isolcpus=managed_irq,domain,2-3 nohz_full=2-3", LINE)),
    ("boot-parameters-not-generated", |h| h.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"idle=poll\"")),
    ("no-clock-service", |h| h.folder.remove("proc/701")),
    // Faults that are lines of the profile.
    ("transparent-hugepages", |h| h.write("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")),
    ("swappiness", |h| h.write("proc/sys/vm/swappiness", "60")),
    ("numa-balancing", |h| h.write("proc/sys/kernel/numa_balancing", "1")),
    ("stat-interval", |h| h.write("proc/sys/vm/stat_interval", "1")),
    ("nmi-watchdog", |h| h.write("proc/sys/kernel/nmi_watchdog", "1")),
    ("watchdog-cpus", |h| h.write("proc/sys/kernel/watchdog_cpumask", "0-3")),
    ("timer-migration", |h| h.write("proc/sys/kernel/timer_migration", "1")),
    ("selinux-avc", |h| h.write("sys/fs/selinux/avc/cache_threshold", "512")),
    ("printk", |h| h.write("proc/sys/kernel/printk", "7 4 1 7")),
    ("ksm", |h| h.write("sys/kernel/mm/ksm/run", "1")),
    ("kvm-halt-poll", |h| h.write("sys/module/kvm/parameters/halt_poll_ns", "200000")),
    ("kvmclock-sync", |h| h.write("sys/module/kvm/parameters/kvmclock_periodic_sync", "Y")),
    ("bridge-iptables", |h| h.write("proc/sys/net/bridge/bridge-nf-call-iptables", "1")),
    ("mce-ignore-ce", |h| h.write("sys/devices/system/machinecheck/machinecheck0/ignore_ce", "0")),
    ("cpu-governor", |h| h.write("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave")),
    ("cpu-resume-latency", |h| h.write("sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us", "0")),
    ("ksoftirqd-priority", |h| h.folder.kernel_thread(31, "ksoftirqd/2", 0, 0)),
    ("thread-priority", |h| h.vhost("0-1", 0)),
    ("vm-memory-locked", |h| h.write("proc/5600/status", "Name:\tqemu\nVmLck:\t0 kB\nMems_allowed_list:\t0")),
    ("vm-balloon", |h| h.write("proc/5600/cmdline", "qemu\0-device\0virtio-balloon-pci,id=b\0")),
    ("boot-skew-tick", |h| {
        let line = LINE.replace("skew_tick=1", "");
        h.command_line(&line, &line);
    }),
];

#[test]
fn a_host_without_faults_has_no_findings() {
    let diagnosis = Host::clean().diagnosis(&[]);
    assert!(diagnosis.findings.is_empty(), "{:#?}", diagnosis.findings);
    assert!(diagnosis.lines_met >= 40, "{}: {:?}", diagnosis.lines_met, diagnosis.lines_left_out);
    assert!(diagnosis.map.collisions.is_empty(), "{:?}", diagnosis.map);
}

#[test]
fn each_fault_is_the_first_finding() {
    let mut missed = Vec::new();
    for (id, inject) in FAULTS {
        let mut host = Host::clean();
        inject(&mut host);
        let found = host.findings(&[]);
        found.iter().for_each(is_whole);
        if found.first().map(|first| first.id.as_str()) != Some(id) {
            missed.push((id, found.into_iter().map(|f| f.id).collect::<Vec<_>>()));
        }
    }
    let found = FAULTS.len() - missed.len();
    println!("{found} of {} faults are the first finding; others: {missed:?}", FAULTS.len());
    assert!(FAULTS.len() >= 40 && found * 100 >= FAULTS.len() * 95, "{missed:#?}");
}

/// Checks that a finding has a reason and a source, that it has no command without a setting, and that its JSON can be
/// read back.
fn is_whole(finding: &Finding) {
    assert!(!finding.why.is_empty() && !finding.source.is_empty() && !finding.what.is_empty(), "{finding:?}");
    assert!(!finding.settings.is_empty() || finding.commands.is_empty(), "{finding:?}");
    let text = serde_json::to_string(finding).unwrap();
    assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), *finding);
}

#[test]
fn what_the_command_prints_is_read_as_it_was() {
    let mut host = Host::clean();
    host.cpus(Role::MainLoop, "2");
    let lack = Lack { what: "no BTF".into(), lost: String::new(), remedy: None };
    let command = Command {
        commands: vec!["path".into()],
        title: "path".into(),
        works: Works::No,
        lacks: vec![lack],
        not_observable: vec!["mapped rings".into()],
    };
    let option =
        KernelOption { name: "CONFIG_KVM".into(), needed_for: "exits".into(), setting: latpath_caps::Setting::BuiltIn };
    let capabilities = Caps {
        kernel: "6.12".into(),
        architecture: "x86_64".into(),
        config_file: None,
        commands: vec![command],
        options: vec![option],
    };
    let document = DoctorDocument { diagnosis: host.diagnosis(&[]), capabilities: Some(capabilities) };
    assert!(!document.diagnosis.map.collisions.is_empty(), "{:?}", document.diagnosis.map);
    let text = serde_json::to_string(&document).unwrap();
    assert_eq!(serde_json::from_str::<DoctorDocument>(&text).unwrap(), document);
}

#[test]
fn each_rule_has_a_fault_that_it_finds() {
    let tried: BTreeSet<&str> = FAULTS.iter().map(|(id, _)| *id).collect();
    let missing: Vec<&str> = Rule::ALL.iter().map(|rule| rule.id()).filter(|id| !tried.contains(id)).collect();
    assert!(missing.is_empty(), "no fault for {missing:?}");
}

/// Creates a run in which the finding's fault delayed packets.
fn run_that_shows(finding: &Finding) -> RunCost {
    let row = CostRow {
        cause: finding.causes.first().cloned().unwrap_or_default(),
        cpus: finding.cpus.clone(),
        names: vec![finding.target.clone()],
        settings: finding.settings.clone(),
        excess_ns: 134_000_000_000,
    };
    RunCost { run: "RUN".into(), rows: vec![row] }
}

/// Combinations of faults that share no threads, CPUs or settings, so that a run can show one of them alone.
const APART: [[&str; 3]; 4] = [
    ["interrupt-on-isolated", "isolated-with-tick", "boot-parameters-not-generated"],
    ["vm-cpu-quota", "cpu-governor", "vm-memory-locked"],
    ["sibling-in-use", "ksm", "nic-on-other-node"],
    ["slow-clocksource", "tap-queue-short", "thread-priority"],
];

/// Returns the function that adds the fault for this rule.
fn fault(id: &str) -> fn(&mut Host) {
    FAULTS.iter().find(|(known, _)| *known == id).unwrap().1
}

#[test]
fn of_several_faults_the_one_that_a_run_shows_is_first() {
    for combination in APART {
        for id in combination {
            let mut alone = Host::clean();
            fault(id)(&mut alone);
            let run = run_that_shows(&alone.findings(&[])[0]);
            let mut host = Host::clean();
            combination.iter().for_each(|other| fault(other)(&mut host));
            let found = host.findings(std::slice::from_ref(&run));
            let ids: Vec<&str> = found.iter().map(|f| f.id.as_str()).collect();
            assert!(combination.iter().all(|other| ids.contains(other)), "of {combination:?}: {ids:?}");
            assert_eq!(ids.first(), Some(&id), "of {combination:?}: {ids:?}");
            assert_eq!(found[0].cost[0].excess_ns, 134_000_000_000, "{id}");
        }
    }
}

#[test]
fn a_finding_says_how_it_is_mended_and_undone() {
    let mut host = Host::clean();
    host.cpus(Role::MainLoop, "2");
    let [first, ..] = &host.findings(&[])[..] else { panic!("a finding") };
    assert_eq!((first.severity, first.target.as_str()), (Severity::Deadlock, "guest7 main loop"));
    assert!(first.what.ends_with("where guest7 vCPU 0 has the CPU in real time: a deadlock"), "{}", first.what);
    assert_eq!(first.commands, ["virsh emulatorpin guest7 0-1 --live --config"]);
    assert_eq!(first.undo, ["virsh emulatorpin guest7 2 --live --config"]);
    assert_eq!(first.owners.iter().map(|owner| owner.program.as_str()).collect::<Vec<_>>(), ["libvirt"]);

    let mut host = Host::clean();
    host.vms[0].libvirt = false;
    host.cpus(Role::MainLoop, "2");
    let first = &host.findings(&[])[0];
    assert_eq!(
        (&first.commands[0], &first.undo[0]),
        (&"taskset -cp 0-1 5600".to_owned(), &"taskset -cp 2 5600".to_owned())
    );
}

#[test]
fn vcpus_in_real_time_are_not_put_on_one_cpu() {
    let mut host = Host::clean();
    host.write("sys/devices/system/cpu/isolated", "3");
    host.write("sys/devices/system/cpu/nohz_full", "3");
    host.cpus(Role::Vcpu, "0-2");
    *host.thread(Role::Vcpu) = thread(MachineFolder::VCPU, Role::Vcpu, Some(0), "0-2", 0);
    host.add(thread(6155, Role::Vcpu, Some(1), "0-2", 0));
    let diagnosis = host.diagnosis(&[]);
    let of_vcpus = diagnosis.findings.iter().filter(|f| f.id.starts_with("thread-") && f.target.contains("vCPU"));
    assert_eq!(of_vcpus.count(), 0, "{:#?}", diagnosis.findings);
    assert!(diagnosis.lines_left_out.iter().any(|line| line.contains("2 vCPUs, and 1 CPUs for them")));
}

#[test]
fn parameters_are_added_by_the_files_of_the_boot_loader() {
    let host = Host::clean();
    host.write("sys/devices/system/cpu/nohz_full", "");
    let first = &host.findings(&[])[0];
    assert!(first.commands[0].contains("nohz_full=2-3 rcu_nocbs=2-3"), "{:?}", first.commands);
    assert!(first.commands[0].ends_with("&& update-grub") && first.undo[0].starts_with("rm "), "{first:?}");
    assert_eq!(first.disturbs, "reboot");
}

#[test]
fn the_page_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
    let (begin, end) = ("<!-- the table -->\n", "<!-- end of the table -->");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(begin).expect("the table's begin");
    let (table, after) = rest.split_once(end).expect("the table's end");
    let want = latpath_doctor::page();
    if std::env::var_os("LATPATH_WRITE_PAGES").is_some() {
        std::fs::write(path, format!("{before}{begin}{want}{end}{after}")).unwrap();
        return;
    }
    assert!(
        table == want,
        "docs/doctor.md: LATPATH_WRITE_PAGES=1 cargo test -p latpath-doctor --test faults writes it"
    );
}
