//! Tests the search on records of real hosts: tests/data/linux-*.txt, each line a link or a file in /proc or /sys.

use crate::{
    find::{find_in, Guests},
    taps::Devices,
    vm::{Accel, FoundBy, Isolated, Role, Thread, Vm},
    Error,
};
use latpath_linux::proc::Root;
use latpath_net::{Inode, Interface};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const HOST: Inode = 4_026_531_840;

/// A recorded host in a directory.
struct Host {
    folder: TempDir,
}

impl Host {
    /// Unpacks the record of a host with Linux 6.1 or 6.12 and two KVM guests; see the record's first line.
    fn recorded(linux: &str) -> Self {
        let record = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/linux-{linux}.txt"));
        let host = Self { folder: TempDir::new().unwrap() };
        for line in fs::read_to_string(record).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("link"), Some(path), Some(target)) => symlink(target, host.prepared(path)).unwrap(),
                (Some("file"), Some(path), Some(content)) => {
                    host.write(path, &content.replace("\\0", "\0").replace("\\n", "\n"))
                }
                _ => panic!("{line}"),
            }
        }
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path.trim_start_matches('/'))
    }

    fn prepared(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn write(&self, path: &str, content: &str) {
        fs::write(self.prepared(path), content).unwrap();
    }

    fn replace(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(path)).unwrap();
        assert!(text.contains(from), "{path}: {text}");
        self.write(path, &text.replace(from, to));
    }

    fn search(&self) -> Result<Guests, Error> {
        let interface = |ifindex, name: &str, kind: &str, master, lower| Interface {
            ifindex,
            name: name.into(),
            kind: Some(kind.into()),
            master,
            port_kind: master.map(|_| "bridge".into()),
            lower,
            tx_queue_len: 200,
            ..Interface::default()
        };
        let devices = || {
            vec![
                interface(2, "br0", "bridge", None, None),
                interface(3, "vnet0", "tun", Some(2), None),
                interface(5, "v0", "veth", None, Some(4)),
                interface(6, "macvtap0", "macvtap", None, Some(5)),
            ]
        };
        let ask = |netns| (netns == HOST).then(devices);
        let all = || vec![HOST];
        find_in(&Root::of(self.folder.path()), &mut Devices::new(&ask, &all, &|_| None))
    }

    fn guests(&self) -> (Vm, Vm) {
        let mut vms = self.search().unwrap().vms;
        assert_eq!(vms.len(), 2, "{vms:?}");
        let busy = vms.pop().unwrap();
        (vms.pop().unwrap(), busy)
    }
}

/// TID, role, vCPU number and identification method of each thread.
fn roles(vm: &Vm) -> Vec<(u32, Role, Option<u32>, FoundBy)> {
    vm.threads.iter().map(|t| (t.tid, t.role, t.vcpu, t.found_by)).collect()
}

fn of_role(vm: &Vm, role: Role) -> Vec<&Thread> {
    vm.threads.iter().filter(|t| t.role == role).collect()
}

#[test]
fn guests_are_found_with_their_threads_and_taps() {
    for linux in ["6.1", "6.12"] {
        let (idle, busy) = Host::recorded(linux).guests();
        assert_eq!((idle.name.as_str(), busy.name.as_str()), ("idle", "busy"));
        assert_eq!(idle.uuid.as_deref(), Some("6c8a1b52-63f5-4ae8-9b0f-d8ed90a2e001"));
        assert_eq!((idle.accel, idle.vcpus, idle.memory_bytes), (Accel::Kvm, Some(2), Some(128 << 20)));
        assert_eq!((idle.machine.as_deref(), idle.program.as_str()), (Some("q35"), "qemu-system-x86_64"));
        assert_eq!((idle.netns, idle.vsock_cid, idle.vhost_net, idle.vhost_vsock), (Some(HOST), Some(42), 1, 1));
    }
}

#[test]
fn taps_and_macvtaps_have_their_guests_addresses() {
    for linux in ["6.1", "6.12"] {
        let (idle, busy) = Host::recorded(linux).guests();
        let (tap, macvtap) = (&idle.taps[0], &busy.taps[0]);
        assert_eq!((tap.device.as_str(), tap.guest_mac.as_deref()), ("vnet0", Some("52:54:00:0a:0b:0c")));
        assert_eq!((macvtap.device.as_str(), macvtap.guest_mac.as_deref()), ("macvtap0", Some("52:54:00:dd:ee:ff")));
        assert_eq!((tap.vhost, tap.queues, macvtap.lower.as_deref()), (Some(true), 1, Some("v0")));
    }
}

#[test]
fn vcpus_that_wait_are_seen_in_their_system_call_and_those_that_run_in_debugfs() {
    let (idle, busy) = Host::recorded("6.1").guests();
    let vcpus: Vec<_> = roles(&idle).into_iter().filter(|(_, role, ..)| *role == Role::Vcpu).collect();
    assert_eq!(vcpus, [(187, Role::Vcpu, Some(0), FoundBy::KvmRun), (189, Role::Vcpu, Some(1), FoundBy::KvmRun)]);
    assert_eq!(roles(&busy)[1], (188, Role::Vcpu, Some(0), FoundBy::Debugfs));
}

#[test]
fn without_debugfs_a_vcpu_that_runs_is_seen_by_its_guest_time() {
    let host = Host::recorded("6.12");
    fs::remove_dir_all(host.path("/sys/kernel/debug")).unwrap();
    let (_, busy) = host.guests();
    assert_eq!(roles(&busy)[1], (230, Role::Vcpu, None, FoundBy::GuestTime));
}

#[test]
fn a_vcpu_that_has_not_run_yet_is_known_by_its_name() {
    let host = Host::recorded("6.12");
    for (tid, number) in [(221, 0), (222, 1)] {
        host.write(&format!("/proc/216/task/{tid}/syscall"), "202 0x5581a0 0x80\n");
        host.write(&format!("/sys/kernel/debug/kvm/216-10/vcpu{number}/pid"), "0\n");
        let stat = fs::read_to_string(host.path(&format!("/proc/216/task/{tid}/stat"))).unwrap();
        let (_, rest) = stat.split_once(") ").unwrap();
        // In stat, field 43 is the guest time, and field 9 contains the thread's flags.
        let mut words: Vec<&str> = rest.split(' ').collect();
        (words[43 - 3], words[9 - 3]) = ("0", "4194368");
        let name = format!("CPU {number}/KVM");
        host.write(&format!("/proc/216/task/{tid}/stat"), &format!("{tid} ({name}) {}", words.join(" ")));
    }
    let (idle, _) = host.guests();
    let vcpus: Vec<_> = roles(&idle).into_iter().filter(|(_, role, ..)| *role == Role::Vcpu).collect();
    assert_eq!(vcpus, [(221, Role::Vcpu, Some(0), FoundBy::Name), (222, Role::Vcpu, Some(1), FoundBy::Name)]);
}

#[test]
fn vhost_workers_are_kernel_threads_of_their_owner_up_to_6_3() {
    let (idle, busy) = Host::recorded("6.1").guests();
    let workers: Vec<_> = of_role(&idle, Role::Vhost).iter().map(|t| (t.tid, t.found_by, t.kernel)).collect();
    assert_eq!(workers, [(185, FoundBy::KernelThread, true), (192, FoundBy::KernelThread, true)]);
    // With two workers, the kernel does not show which one serves the tap; a single worker is unambiguous.
    assert!(of_role(&idle, Role::Vhost).iter().all(|t| t.serves.is_none()));
    assert_eq!(of_role(&busy, Role::Vhost)[0].serves.as_deref(), Some("macvtap0"));
    let helpers: Vec<_> = of_role(&idle, Role::Kvm).iter().map(|t| t.comm.clone()).collect();
    assert_eq!(helpers, ["kvm-nx-lpage-recovery-175", "kvm-pit/175"]);
}

#[test]
fn vhost_workers_are_threads_of_qemu_from_6_4_on() {
    let (idle, busy) = Host::recorded("6.12").guests();
    let serve = |vm| -> Vec<_> {
        of_role(vm, Role::Vhost).iter().map(|t| (t.tid, t.found_by, t.serves.clone().unwrap_or_default())).collect()
    };
    let by = FoundBy::UserWorker;
    assert_eq!(serve(&idle), [(220, by, "vnet0".into()), (224, by, "vsock".into())]);
    assert_eq!(serve(&busy), [(229, by, "macvtap0".into())]);
}

/// KVM's page recovery thread is created during a vCPU's first run, and shows that system call forever.
#[test]
fn a_worker_of_the_kernel_in_a_vcpus_system_call_is_no_vcpu() {
    let (idle, busy) = Host::recorded("6.12").guests();
    assert_eq!((of_role(&idle, Role::Vcpu).len(), of_role(&busy, Role::Vcpu).len()), (2, 1));
    assert!(roles(&idle).contains(&(225, Role::Kvm, None, FoundBy::UserWorker)));
}

#[test]
fn a_name_does_not_make_a_vhost_worker_or_a_vcpu() {
    let host = Host::recorded("6.12");
    host.replace("/proc/216/task/218/stat", "(qemu-system-x86)", "(vhost-216)");
    host.replace("/proc/216/task/219/stat", "(IO iothread1)", "(CPU 7/KVM)");
    let (idle, _) = host.guests();
    assert!(roles(&idle).contains(&(218, Role::Other, None, FoundBy::Nothing)));
    assert!(roles(&idle).contains(&(219, Role::Other, None, FoundBy::Nothing)));
    // A kernel worker keeps its role whatever its name.
    host.replace("/proc/216/task/220/stat", "(vhost-216)", "(x)");
    assert!(roles(&host.guests().0).contains(&(220, Role::Vhost, None, FoundBy::UserWorker)));
}

#[test]
fn a_kernel_thread_of_another_owner_is_nobodys() {
    let host = Host::recorded("6.1");
    host.replace("/proc/185/stat", "(vhost-175)", "(vhost-9999)");
    host.replace("/proc/186/stat", "2129984", "4194368");
    let (idle, busy) = host.guests();
    assert_eq!((of_role(&idle, Role::Vhost).len(), of_role(&busy, Role::Vhost).len()), (1, 0));
}

#[test]
fn isolation_and_company_are_known_for_each_thread() {
    let host = Host::recorded("6.12");
    host.write("/sys/devices/system/cpu/isolated", "4-5\n");
    host.write("/sys/fs/cgroup/cpuset.cpus.isolated", "6\n");
    for (tid, cpus) in [("221", "4"), ("222", "3-5"), ("220", "5"), ("224", "6")] {
        host.replace(&format!("/proc/216/task/{tid}/status"), "list:\t0-1", &format!("list:\t{cpus}"));
    }
    let found = host.search().unwrap();
    assert_eq!(found.isolated_cpus.to_string(), "4-6");
    let of = |tid| found.role_of_tid(tid).map(|(_, t)| (t.isolated, t.alone)).unwrap();
    assert_eq!(of(224), (Isolated::All, true));
    assert_eq!((of(221), of(222), of(220)), ((Isolated::All, false), (Isolated::Some, false), (Isolated::All, false)));
    assert_eq!(of(216), (Isolated::None, false));
}

#[test]
fn a_process_on_the_guests_cpus_ends_their_isolation() {
    let host = Host::recorded("6.12");
    host.replace("/proc/216/task/221/status", "list:\t0-1", "list:\t4");
    assert!(host.search().unwrap().role_of_tid(221).unwrap().1.alone);
    let stat = fs::read_to_string(host.path("/proc/216/task/218/stat")).unwrap();
    host.write("/proc/50/stat", &stat.replace("218 (qemu-system-x86)", "50 (ntpd)"));
    host.write("/proc/50/task/50/status", "Name:\tntpd\nCpus_allowed_list:\t0-7\n");
    fs::create_dir_all(host.path("/proc/50/fd")).unwrap();
    assert!(!host.search().unwrap().role_of_tid(221).unwrap().1.alone);
}

#[test]
fn a_guest_that_ends_during_the_search_is_no_error() {
    let host = Host::recorded("6.12");
    fs::remove_dir_all(host.path("/proc/216/task")).unwrap();
    fs::remove_file(host.path("/proc/226/task/229/stat")).unwrap();
    let vms = host.search().unwrap().vms;
    assert_eq!(vms.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>(), ["busy"]);
    assert!(of_role(&vms[0], Role::Vhost).is_empty());
}

#[test]
fn guests_are_looked_up_by_tap_and_by_thread() {
    let found = Host::recorded("6.12").search().unwrap();
    let name = |vm: Option<&Vm>| vm.map(|vm| vm.name.clone());
    assert_eq!(name(found.vm_of_tap(HOST, "vnet0")).as_deref(), Some("idle"));
    assert_eq!(name(found.vm_of_ifindex(HOST, 6)).as_deref(), Some("busy"));
    assert_eq!(name(found.vm_of_ifindex(HOST + 1, 6)), None);
    assert_eq!(found.role_of_tid(220).map(|(vm, t)| (vm.pid, t.role)), Some((216, Role::Vhost)));
    assert_eq!(found.role_of_tid(1), None);
}

#[test]
fn a_process_name_alone_does_not_make_a_guest() {
    let host = Host::recorded("6.12");
    for path in ["/proc/216/exe", "/proc/216/fd/10"] {
        fs::remove_file(host.path(path)).unwrap();
    }
    symlink("/usr/bin/python3", host.path("/proc/216/exe")).unwrap();
    assert_eq!(host.search().unwrap().vms.iter().map(|vm| vm.pid).collect::<Vec<_>>(), [226]);
}

#[test]
fn a_virtual_machine_of_another_program_than_qemu_is_found_by_its_descriptor() {
    let host = Host::recorded("6.12");
    fs::remove_file(host.path("/proc/226/exe")).unwrap();
    symlink("/usr/bin/firecracker", host.path("/proc/226/exe")).unwrap();
    let (_, other) = host.guests();
    assert_eq!((other.name.as_str(), other.accel, other.vcpus), ("firecracker-226", Accel::Kvm, Some(1)));
    assert_eq!((other.taps[0].device.as_str(), other.taps[0].guest_mac.as_deref()), ("macvtap0", None));
}

#[test]
fn a_host_without_guests_has_none() {
    let host = Host { folder: TempDir::new().unwrap() };
    assert!(matches!(host.search(), Err(Error::NoProc(_))));
    fs::create_dir(host.path("proc")).unwrap();
    assert_eq!(host.search().unwrap(), Guests::default());
}

/// Adds a guest that drives function 2 of a NIC, in its own IOMMU group, to the host's files.
fn with_a_virtual_function(host: &Host, pid: u32) {
    let link = |path: &str, target: &str| symlink(target, host.prepared(path)).unwrap();
    link(&format!("proc/{pid}/fd/400"), "/dev/vfio/vfio");
    link(&format!("proc/{pid}/fd/401"), "/dev/vfio/12");
    link("sys/kernel/iommu_groups/12/devices/0000:03:10.4", "../../../../devices/pci0000:00/0000:03:10.4");
    let of = "sys/bus/pci/devices/0000:03:10.4";
    for (file, text) in [("vendor", "0x8086"), ("device", "0x1520"), ("class", "0x020000"), ("numa_node", "-1")] {
        host.write(&format!("{of}/{file}"), text);
    }
    link(&format!("{of}/driver"), "../../../bus/pci/drivers/vfio-pci");
    link(&format!("{of}/physfn"), "../0000:03:00.0");
    link(&format!("{of}/iommu"), "../../virtual/iommu/dmar1");
    for (function, address) in [(0, "0000:03:10.0"), (2, "0000:03:10.4")] {
        link(&format!("sys/bus/pci/devices/0000:03:00.0/virtfn{function}"), &format!("../{address}"));
    }
    host.write("sys/bus/pci/devices/0000:03:00.0/net/eno2/ifindex", "4");
    host.write("sys/class/iommu/dmar1/intel-iommu/cap", "8d2078c106f0466\n");
    host.write("sys/module/kvm_intel/parameters/enable_apicv", "Y\n");
    host.write("proc/irq/41/effective_affinity_list", "1\n");
    host.write(
        "proc/interrupts",
        "            CPU0       CPU1       \n   9:          0          4   IO-APIC   9-fasteoi   acpi\n\
         \x20 41:         12      30000  IR-PCI-MSIX-0000:03:10.4    0-edge      vfio-msix[0](0000:03:10.4)\n\
         \x20 42:          1          2  IR-PCI-MSIX-0000:03:10.0    0-edge      vfio-msix[0](0000:03:10.0)\n\
         \x20PIN:          7          8   Posted-interrupt notification event\n\
         \x20PIW:          0          3   Posted-interrupt wakeup event\nERR:          0\n",
    );
}

#[test]
fn a_passed_through_virtual_function_is_described() {
    let host = Host::recorded("6.12");
    let (idle, _) = host.guests();
    assert_eq!(idle.passthrough, []);
    with_a_virtual_function(&host, idle.pid);
    let found = host.search().unwrap();
    let [one] = &found.vms[0].passthrough[..] else { panic!("{:?}", found.vms) };
    assert_eq!((one.address.as_str(), one.id.as_str(), one.is_nic), ("0000:03:10.4", "8086:1520", true));
    assert_eq!((one.iommu_group, one.numa_node), (Some(12), None));
    let of = one.function_of.as_ref().unwrap();
    assert_eq!((of.address.as_str(), of.device.as_deref(), of.number), ("0000:03:00.0", Some("eno2"), 2));
    let [interrupt] = &one.interrupts[..] else { panic!("{one:?}") };
    assert_eq!((interrupt.number, interrupt.name.as_str(), interrupt.count), (41, "vfio-msix[0]", 30012));
    assert_eq!(interrupt.cpus.to_string(), "1");
    let posted = found.posted_interrupts.unwrap();
    assert_eq!((posted.notifications, posted.wake_ups), (15, 3));
    assert!(found.vms[1].passthrough.is_empty());
}

#[test]
fn interrupts_can_be_posted_if_cpu_and_iommu_both_can() {
    let host = Host::recorded("6.12");
    let (idle, _) = host.guests();
    with_a_virtual_function(&host, idle.pid);
    let posting = || host.search().unwrap().vms[0].passthrough[0].posting;
    assert_eq!(posting(), Some(true));
    host.write("sys/module/kvm_intel/parameters/enable_apicv", "N\n");
    assert_eq!(posting(), Some(false));
    host.write("sys/module/kvm_intel/parameters/enable_apicv", "Y\n");
    host.write("sys/class/iommu/dmar1/intel-iommu/cap", "d2078c106f0466\n");
    assert_eq!(posting(), Some(false));
    fs::remove_dir_all(host.path("sys/class/iommu/dmar1/intel-iommu")).unwrap();
    assert_eq!(posting(), None);
    host.write("sys/module/kvm_amd/parameters/avic", "1\n");
    for (features, expected) in
        [("246577efa2254afa:0", Some(true)), ("246577efa2254afa", Some(true)), ("40", Some(false))]
    {
        host.write("sys/class/iommu/dmar1/amd-iommu/features", features);
        assert_eq!(posting(), expected, "{features}");
    }
}

#[test]
fn a_device_opened_without_its_group_is_found_and_others_of_a_group_are_not() {
    let host = Host::recorded("6.12");
    let (idle, busy) = host.guests();
    with_a_virtual_function(&host, idle.pid);
    let link = |path: &str, target: &str| symlink(target, host.prepared(path)).unwrap();
    // The group also contains a bridge, and a device with a driver other than VFIO.
    link("sys/kernel/iommu_groups/12/devices/0000:03:01.0", "x");
    link("sys/bus/pci/devices/0000:03:01.0/driver", "../../../bus/pci/drivers/pcieport");
    link(&format!("proc/{}/fd/77", busy.pid), "/dev/vfio/devices/vfio0");
    link("sys/class/vfio-dev/vfio0/device", "../../../0000:05:00.0");
    host.write("sys/bus/pci/devices/0000:05:00.0/class", "0x010802");
    let found = host.search().unwrap();
    assert_eq!(found.vms[0].passthrough.len(), 1);
    let [disk] = &found.vms[1].passthrough[..] else { panic!("{:?}", found.vms[1]) };
    assert_eq!((disk.address.as_str(), disk.is_nic, disk.iommu_group), ("0000:05:00.0", false, None));
    assert_eq!((&disk.function_of, disk.posting), (&None, None));
}
