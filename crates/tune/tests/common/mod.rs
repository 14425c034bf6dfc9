//! A machine in a folder with the settings of a fresh installation, and snapshots of it.

use latpath_testkit::machine_folder::MachineFolder;
use latpath_tune::{Machine, Variables};
use latpath_vms::{Accel, Bridge, Policy, Role, Tap, Thread, Vm};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const VHOST: u32 = 5610;
pub const VCPUS: [u32; 2] = [6154, 6155];

/// A guest with two vCPUs, a main loop and a vhost worker, all allowed on all CPUs.
pub fn guest() -> Vm {
    let thread = |tid, role, vcpu| Thread {
        tid,
        role,
        vcpu,
        policy: Policy::Other,
        cpus_allowed: "0-3".parse().expect("a list"),
        ..Thread::default()
    };
    let bridge = Some(Bridge { name: "br0".into(), kind: "bridge".into() });
    Vm {
        name: "guest7".into(),
        pid: MachineFolder::QEMU,
        accel: Accel::Kvm,
        vcpus: Some(2),
        memory_bytes: Some(4 << 30),
        libvirt: true,
        taps: vec![Tap { device: "vnet0".into(), queues: 1, vhost: Some(true), bridge, ..Tap::default() }],
        threads: vec![
            thread(MachineFolder::QEMU, Role::MainLoop, None),
            thread(VHOST, Role::Vhost, None),
            thread(VCPUS[0], Role::Vcpu, Some(0)),
            thread(VCPUS[1], Role::Vcpu, Some(1)),
        ],
        ..Vm::default()
    }
}

/// Creates a machine in a folder: four CPUs, none isolated, a NIC and the guest.
pub fn lay_out(folder: &Path) -> Machine {
    let machine = MachineFolder::lay_out(folder);
    for (path, text) in [
        ("proc/cpuinfo", "vendor_id\t: GenuineIntel"),
        ("proc/cmdline", "root=/dev/sda1 ro quiet"),
        ("proc/sys/kernel/osrelease", "6.12.0-rt"),
        ("proc/sys/kernel/printk", "7 4 1 7"),
        ("proc/sys/kernel/numa_balancing", "1"),
        ("proc/sys/kernel/watchdog_cpumask", "0-3"),
        ("proc/sys/vm/swappiness", "60"),
        ("proc/sys/vm/stat_interval", "1"),
        ("proc/sys/net/bridge/bridge-nf-call-iptables", "1"),
        ("sys/devices/system/cpu/isolated", ""),
        ("sys/devices/virtual/workqueue/cpumask", "f"),
        ("sys/devices/virtual/workqueue/writeback/cpumask", "f"),
        ("sys/devices/system/machinecheck/machinecheck0/ignore_ce", "0"),
        ("sys/kernel/mm/ksm/run", "1"),
        ("sys/module/kvm/parameters/nx_huge_pages", "Y"),
        ("proc/irq/default_smp_affinity", "f"),
        ("sys/class/net/eth0/device/power/control", "auto"),
        ("sys/class/net/eth0/device/link/l1_aspm", "1"),
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "f"),
        ("sys/class/net/eth0/queues/tx-0/xps_cpus", "f"),
        ("etc/tuned/active_profile", "virtual-host"),
    ] {
        machine.write(path, text);
    }
    for cpu in 0..4 {
        for (tid, name) in [(15, "ksoftirqd"), (24, "ktimers"), (25, "rcuc")] {
            let tid = if cpu == 0 { tid } else { tid + 100 * (cpu + 1) };
            machine.kernel_thread(tid, &format!("{name}/{cpu}"), 0, 0);
        }
    }
    machine.kernel_thread(90, "irq/45-eth0-rx-", 1, 49);
    let _ = fs::remove_dir_all(machine.path("proc/23"));
    for thread in guest().threads {
        machine.kernel_thread(thread.tid, "qemu", 0, 0);
        machine.write(&format!("proc/{}/status", thread.tid), "Name:\tqemu\nCpus_allowed_list:\t0-3\nVmLck:\t0 kB");
    }
    Machine::below(folder, vec![guest()])
}

/// CPUs 2 and 3 are isolated, and CPU 1 serves eth0.
pub fn variables() -> Variables {
    Variables {
        isolated: "2-3".parse().ok(),
        interfaces: vec!["eth0".into()],
        irq_cpu: Some(1),
        ..Variables::default()
    }
}

/// All files in a folder with their contents, and links with their targets.
pub fn snapshot(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        match () {
            () if kind.is_dir() => all.extend(snapshot(&path)),
            () if kind.is_symlink() => drop(all.insert(path.clone(), format!("{:?}", fs::read_link(&path)))),
            () => {
                drop(all.insert(path.clone(), String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned()))
            }
        }
    }
    all
}

/// Files that differ, with their contents before and after.
pub fn differences(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let paths: std::collections::BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    let differ = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    differ.map(|path| format!("{}: {:?} -> {:?}", path.display(), before.get(path), after.get(path))).collect()
}
