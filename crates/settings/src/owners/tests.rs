use super::*;
use std::fs;

fn owners(files: &[(&str, &str)], running: &[&str], vms: &[Vm]) -> Owners {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Owners::read(&Root::of(dir.path()), &|name| running.contains(&name), vms)
}

fn texts(owners: &Owners, setting: Setting, target: &str) -> Vec<String> {
    owners.of(setting, target).iter().map(ToString::to_string).collect()
}

#[test]
fn lines_of_tuneds_profile_and_of_those_that_it_includes_are_merged() {
    let own = owners(
        &[
            ("etc/tuned/active_profile", "rt-host\n"),
            ("usr/lib/tuned/realtime/tuned.conf", "[sysctl]\nkernel.sched_rt_runtime_us=-1\nvm.swappiness=10\n"),
            (
                "etc/tuned/rt-host/tuned.conf",
                "[main]\ninclude=realtime\n[variables]\ninclude=/etc/tuned/rt-vars.conf\n[sysctl]\nvm.swappiness=5\n\
                 [sysfs]\n/sys/kernel/mm/ksm/run=2\n/sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us=1\n\
                 [boot]\ntype=bootloader\ncmdline_rt=+isolcpus=managed_irq,${isolated_cores} nosoftlockup\n\
                 [scheduler]\ngroup.ksoftirqd=0:f:2:*:^\\[?ksoftirqd\n\
                 [vm]\nenabled=0\ntransparent_hugepages=never\n",
            ),
            ("etc/tuned/rt-vars.conf", "# cores\nisolated_cores=2-3\n"),
        ],
        &[],
        &[],
    );
    let of = |setting, target| texts(&own, setting, target);
    assert_eq!(of(Setting::RtRuntime, ""), ["tuned (/usr/lib/tuned/realtime/tuned.conf: -1)"]);
    assert_eq!(of(Setting::Swappiness, ""), ["tuned (/etc/tuned/rt-host/tuned.conf: 5)"], "the outer profile counts");
    assert_eq!(of(Setting::Ksm, ""), ["tuned (/etc/tuned/rt-host/tuned.conf: 2)"]);
    assert_eq!(of(Setting::CpuResumeLatency, "0-3"), ["tuned (/etc/tuned/rt-host/tuned.conf: 1)"]);
    assert_eq!(
        of(Setting::BootIsolcpus, ""),
        ["tuned (/etc/tuned/rt-host/tuned.conf: isolcpus=managed_irq,2-3)"],
        "variables are replaced"
    );
    assert_eq!(of(Setting::KsoftirqdPriority, "0-3").len(), 1);
    assert_eq!(of(Setting::TransparentHugepages, ""), [""; 0], "a plugin that is switched off sets nothing");
}

#[test]
fn profiles_that_include_each_other_end() {
    let own = owners(
        &[
            ("etc/tuned/active_profile", "a"),
            ("etc/tuned/a/tuned.conf", "[main]\ninclude=b\n[sysctl]\nvm.swappiness=1\n"),
            ("etc/tuned/b/tuned.conf", "[main]\ninclude=a\n[variables]\nx=${x}${x}\n[sysctl]\nvm.stat_interval=${x}\n"),
        ],
        &[],
        &[],
    );
    assert_eq!(texts(&own, Setting::Swappiness, "").len(), 1);
}

#[test]
fn files_that_set_something_at_the_start_are_owners() {
    let own = owners(
        &[
            ("usr/lib/sysctl.d/50-default.conf", "vm.swappiness = 60\nkernel.nmi_watchdog=1\n"),
            ("etc/sysctl.d/99-local.conf", "# local\nvm/swappiness=10\n"),
            ("etc/sysctl.d/50-default.conf", "kernel.nmi_watchdog=0\n"),
            ("etc/tmpfiles.d/thp.conf", "w /sys/kernel/mm/transparent_hugepage/enabled - - - - never\n"),
            ("etc/modprobe.d/kvm.conf", "options kvm-intel ple_gap=0\n"),
            (
                "etc/udev/rules.d/70-net.rules",
                "SUBSYSTEM==\"net\", ATTR{address}==\"aa\", ATTR{tx_queue_len}=\"5000\", ATTR{queues/rx-1/rps_cpus}=\"f\"\n",
            ),
            ("etc/systemd/network/10-nic.link", "[Match]\nOriginalName=eth0\n[Link]\nRxBufferSize=4096\n"),
        ],
        &[],
        &[],
    );
    let of = |setting, target| texts(&own, setting, target);
    assert_eq!(of(Setting::Swappiness, ""), ["sysctl.d (/etc/sysctl.d/99-local.conf: 10)"]);
    assert_eq!(of(Setting::NmiWatchdog, ""), ["sysctl.d (/etc/sysctl.d/50-default.conf: 0)"], "/etc replaces /usr/lib");
    assert_eq!(of(Setting::TransparentHugepages, ""), ["tmpfiles.d (/etc/tmpfiles.d/thp.conf: never)"]);
    assert_eq!(of(Setting::KvmPleGap, ""), ["modprobe.d (/etc/modprobe.d/kvm.conf: 0)"]);
    assert_eq!(of(Setting::DeviceQueueLength, "vnet0"), ["udev (/etc/udev/rules.d/70-net.rules: 5000)"]);
    assert_eq!(of(Setting::DeviceRps, "eth0 rx-1"), ["udev (/etc/udev/rules.d/70-net.rules: f)"]);
    assert_eq!(of(Setting::DeviceRps, "eth0 rx-0"), [""; 0]);
    assert_eq!(of(Setting::DeviceRings, "eth0").len(), 1);
    assert_eq!(of(Setting::DeviceRings, "eth1"), [""; 0]);
    assert_eq!(of(Setting::Ksm, ""), [""; 0]);
}

#[test]
fn programs_that_run_are_owners_of_what_they_set() {
    let vm = Vm { name: "relay".into(), libvirt: true, ..Vm::default() };
    let files = [
        ("etc/default/irqbalance", "#IRQBALANCE_BANNED_CPULIST=1\nIRQBALANCE_BANNED_CPULIST=\"2-3\"\n"),
        ("etc/systemd/system/machine.slice.d/cpus.conf", "[Slice]\nAllowedCPUs=2-3\n"),
        (
            "etc/NetworkManager/system-connections/a.nmconnection",
            "[connection]\ninterface-name=eth0\n[ethtool]\nring-rx=4096\n",
        ),
    ];
    let own = owners(&files, &["irqbalance", "NetworkManager"], &[vm]);
    let programs = |setting, target| own.of(setting, target).iter().map(|o| o.program.clone()).collect::<Vec<_>>();
    assert_eq!(programs(Setting::IrqAffinity, "eth0-rx-0"), ["irqbalance"]);
    assert_eq!(programs(Setting::ThreadCpus, "relay vCPU 0"), ["libvirt"]);
    assert_eq!(programs(Setting::ThreadCpus, "relay2 vCPU 0"), [""; 0]);
    assert_eq!(programs(Setting::CgroupCpus, "/machine.slice"), ["systemd"]);
    assert_eq!(programs(Setting::DeviceRings, "eth0"), ["NetworkManager"]);
    let irqbalance = own.irqbalance().unwrap();
    assert_eq!((irqbalance.banned.to_string(), irqbalance.is_explicit), ("2-3".into(), true));
    let own = owners(&[("sys/devices/system/cpu/isolated", "3\n")], &["irqbalance"], &[]);
    let irqbalance = own.irqbalance().unwrap();
    assert_eq!((irqbalance.banned.to_string(), irqbalance.is_explicit), ("3".into(), false));
    assert!(owners(&files, &[], &[]).irqbalance().is_none());
}

#[test]
fn a_pattern_fits_the_whole_path() {
    assert!(fits("sys/a/cpu*/x", "sys/a/cpu12/x") && fits("sys/*/x", "sys/a/b/x") && fits("a", "a"));
    assert!(!fits("sys/a", "sys/ab") && !fits("sys/*/x", "sys/a/xy") && !fits("b*", "a"));
}
