//! A machine in the form of a directory tree: `/proc`, `/sys` and `/etc` of a host with four CPUs, a NIC, a bridge and
//! a guest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The directory of such a machine. Tests overwrite its files to change settings.
#[derive(Debug)]
pub struct MachineFolder(PathBuf);

/// Files and their contents; a path with `*` stands for one file per CPU number.
const FILES: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.12.0-rt"),
    ("proc/sys/kernel/version", "#1 SMP PREEMPT_RT Debian 6.12.1 (2026-01-01)"),
    ("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro isolcpus=2-3 nohz_full=2-3 threadirqs log_buf_len=1M"),
    ("sys/kernel/debug/sched/preempt", "none voluntary (full) lazy"),
    ("sys/devices/system/cpu/online", "0-3"),
    ("sys/devices/system/cpu/isolated", "2-3"),
    ("sys/devices/system/cpu/nohz_full", "(null)"),
    ("sys/devices/system/cpu/smt/control", "off"),
    ("sys/devices/system/cpu/cpu*/topology/thread_siblings_list", "*"),
    ("sys/devices/system/cpu/cpu*/node0/cpulist", "0-3"),
    ("sys/devices/system/node/node0/distance", "10"),
    ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
    ("sys/devices/system/machinecheck/machinecheck0/check_interval", "300"),
    ("proc/sys/kernel/printk", "4\t4\t1\t7"),
    ("boot/grub/grub.cfg", "\tlinux /vmlinuz root=/dev/sda1 ro isolcpus=2-3 nohz_full=2-3 threadirqs log_buf_len=1M"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
    ("sys/devices/system/cpu/cpufreq/boost", "1"),
    ("sys/devices/system/cpu/intel_pstate/no_turbo", "0"),
    ("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle"),
    ("sys/devices/system/cpu/cpuidle/current_governor", "menu"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
    ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [never]"),
    ("sys/kernel/mm/ksm/run", "0"),
    ("sys/devices/virtual/workqueue/cpumask", "3"),
    ("sys/devices/virtual/workqueue/writeback/cpumask", "3"),
    ("sys/devices/system/machinecheck/machinecheck0/ignore_ce", "1"),
    ("sys/fs/selinux/avc/cache_threshold", "512"),
    ("proc/irq/default_smp_affinity", "3"),
    ("etc/tuned/active_profile", "realtime-virtual-host"),
    ("proc/sys/vm/swappiness", "10"),
    ("proc/sys/vm/compaction_proactiveness", "0"),
    ("proc/sys/vm/stat_interval", "10"),
    ("proc/sys/kernel/numa_balancing", "0"),
    ("proc/sys/kernel/sched_rt_runtime_us", "950000"),
    ("proc/sys/kernel/sched_rt_period_us", "1000000"),
    ("proc/sys/kernel/nmi_watchdog", "1"),
    ("proc/sys/kernel/soft_watchdog", "1"),
    ("proc/sys/kernel/watchdog_cpumask", "0-1"),
    ("proc/sys/kernel/hung_task_timeout_secs", "120"),
    ("proc/sys/kernel/timer_migration", "1"),
    ("proc/sys/net/core/busy_poll", "0"),
    ("proc/sys/net/core/busy_read", "0"),
    ("proc/sys/net/core/netdev_budget", "300"),
    ("proc/sys/net/core/netdev_budget_usecs", "2000"),
    ("proc/sys/net/core/netdev_max_backlog", "1000"),
    ("proc/sys/net/core/dev_weight", "64"),
    ("proc/sys/net/core/gro_normal_batch", "8"),
    ("proc/sys/net/core/rps_sock_flow_entries", "0"),
    ("proc/sys/net/core/rmem_default", "212992"),
    ("proc/sys/net/core/default_qdisc", "fq_codel"),
    ("proc/sys/net/bridge/bridge-nf-call-iptables", "0"),
    ("sys/module/kvm/parameters/halt_poll_ns", "200000"),
    ("sys/module/kvm/parameters/halt_poll_ns_grow", "2"),
    ("sys/module/kvm/parameters/halt_poll_ns_shrink", "0"),
    ("sys/module/kvm/parameters/lapic_timer_advance_ns", "-1"),
    ("sys/module/kvm/parameters/kvmclock_periodic_sync", "Y"),
    ("sys/module/kvm/parameters/nx_huge_pages", "N"),
    ("sys/module/kvm_intel/parameters/ple_gap", "128"),
    ("sys/module/kvm_intel/parameters/enable_apicv", "Y"),
    ("sys/module/kvm_intel/parameters/preemption_timer", "Y"),
    ("sys/module/kvm_amd/parameters/avic", "N"),
    ("sys/module/vhost_net/parameters/experimental_zcopytx", "0"),
    ("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "powersave"),
    ("sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference", "balance_power"),
    ("sys/devices/system/cpu/cpu*/cpufreq/scaling_min_freq", "800000"),
    ("sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq", "3600000"),
    ("sys/devices/system/cpu/cpu*/cpuidle/state0/latency", "0"),
    ("sys/devices/system/cpu/cpu*/cpuidle/state0/disable", "0"),
    ("sys/devices/system/cpu/cpu*/cpuidle/state1/latency", "2"),
    ("sys/devices/system/cpu/cpu*/cpuidle/state1/disable", "0"),
    ("sys/devices/system/cpu/cpu*/cpuidle/state2/latency", "170"),
    ("sys/devices/system/cpu/cpu*/cpuidle/state2/disable", "1"),
    ("sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us", "0"),
    ("sys/kernel/debug/sched/fair_server/cpu*/runtime", "50000000"),
    ("proc/irq/45/smp_affinity_list", "0-3"),
    ("proc/irq/45/effective_affinity_list", "1"),
    ("proc/irq/45/eth0-rx-0/name", ""),
    ("sys/class/net/eth0/device/msi_irqs/45", "msix"),
    ("sys/class/net/eth0/ifindex", "2"),
    ("sys/class/net/eth0/mtu", "1500"),
    ("sys/class/net/eth0/speed", "1000"),
    ("sys/class/net/eth0/tx_queue_len", "1000"),
    ("sys/class/net/eth0/device/numa_node", "0"),
    ("sys/class/net/eth0/device/power/control", "on"),
    ("sys/class/net/eth0/device/link/l1_aspm", "0"),
    ("sys/class/net/eth0/napi_defer_hard_irqs", "0"),
    ("sys/class/net/eth0/gro_flush_timeout", "0"),
    ("sys/class/net/eth0/threaded", "0"),
    ("sys/class/net/eth0/queues/rx-0/rps_cpus", "00000000,00000000"),
    ("sys/class/net/eth0/queues/rx-0/rps_flow_cnt", "0"),
    ("sys/class/net/eth0/queues/tx-0/xps_cpus", "00000000,0000000f"),
    ("sys/class/net/eth0/ethtool/rings", "rx 256 tx 256\nmax rx 4096 tx 4096"),
    ("sys/class/net/eth0/ethtool/channels", "combined 4\nmax combined 8"),
    ("sys/class/net/eth0/ethtool/coalescing", COALESCING),
    ("sys/class/net/eth0/ethtool/pause", "autoneg on rx on tx off"),
    ("sys/class/net/eth0/ethtool/eee", "eee off tx-lpi off tx-timer 0"),
    ("sys/class/net/eth0/ethtool/private-flags", "legacy-rx off"),
    ("sys/class/net/eth0/ethtool/features", FEATURES),
    ("sys/class/net/eth0/netlink/private-namespace", "none"),
    ("sys/class/net/eth0/netlink/namespace", "none"),
    ("sys/class/net/eth0/netlink/state", "up"),
    ("sys/class/net/eth0/netlink/addresses", "192.0.2.1/24 brd 192.0.2.255"),
    ("sys/class/net/eth0/netlink/neighbours", "none"),
    ("sys/class/net/eth0/netlink/multicast", "on"),
    ("sys/class/net/eth0/netlink/arp", "on"),
    ("sys/class/net/eth0/netlink/allmulticast", "off"),
    ("sys/class/net/eth0/netlink/promiscuous", "off"),
    ("sys/class/net/eth0/netlink/qdisc", "mq, fq_codel"),
    ("sys/class/net/eth0/netlink/napi", "defer-hard-irqs 0 gro-flush-timeout 0 irq-suspend-timeout 0"),
    ("sys/class/net/eth0/netlink/clock-sync", "none"),
    ("sys/class/net/eth0/device/d3cold_allowed", "1"),
    ("sys/class/net/eth0/device/link/clkpm", "0"),
    ("sys/class/net/eth0/device/link/l0s_aspm", "0"),
    ("sys/class/net/eth0/device/link/l1_1_aspm", "0"),
    ("sys/class/net/eth0/device/link/l1_2_aspm", "0"),
    ("proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0"),
    ("proc/sys/net/ipv6/conf/eth0/accept_ra", "1"),
    ("proc/sys/net/ipv4/conf/eth0/arp_ignore", "0"),
    ("proc/sys/net/ipv4/conf/eth0/arp_announce", "0"),
    ("proc/sys/net/ipv4/conf/eth0/rp_filter", "2"),
    ("proc/sys/net/ipv4/conf/eth0/accept_redirects", "1"),
    ("proc/sys/net/ipv4/conf/eth0/send_redirects", "1"),
    ("proc/sys/net/ipv4/conf/eth0/accept_source_route", "0"),
    ("sys/class/net/br0/ifindex", "3"),
    ("sys/class/net/br0/mtu", "1500"),
    ("sys/class/net/br0/bridge/multicast_snooping", "1"),
    ("sys/class/net/br0/bridge/vlan_filtering", "0"),
    ("sys/class/net/br0/bridge/stp_state", "0"),
    ("sys/class/net/br0/bridge/ageing_time", "30000"),
    ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory"),
    (
        "proc/5600/cmdline",
        "qemu-system-x86_64\0-cpu\0host,pmu=off\0-device\0virtio-net-pci,netdev=n0,rx_queue_size=1024,vectors=4\0",
    ),
    ("etc/libvirt/qemu/guest7.xml", "<domain><cputune><vcpupin vcpu='0' cpuset='2'/></cputune></domain>"),
    ("proc/5600/status", "Name:\tqemu\nVmLck:\t  4194304 kB\nMems_allowed_list:\t0\n"),
];

const COALESCING: &str = "adaptive-rx on adaptive-tx on rx-usecs 8 rx-frames 0 tx-usecs 8 tx-frames 0";
const FEATURES: &str = "rx-gro on rx-gro-hw off rx-lro off tx-tcp-segmentation on tx-generic-segmentation on \
                        rx-checksum on rx-ntuple-filter on hw-tc-offload off tx-tcp6-segmentation on \
                        tx-checksum-ip-generic on tx-checksum-ipv4 off tx-checksum-ipv6 off tx-checksum-sctp on \
                        rx-hashing on\nfixed rx-gro-hw rx-lro";

/// Kernel threads: thread ID, name, policy, real-time priority.
const KERNEL_THREADS: [(u32, &str, u32, u32); 5] = [
    (15, "ksoftirqd/0", 0, 0),
    (23, "ksoftirqd/1", 0, 0),
    (24, "ktimers/0", 1, 1),
    (25, "rcuc/0", 1, 4),
    (90, "irq/45-eth0-rx-", 1, 50),
];

/// Control group of the guest's vCPU.
pub const VCPU_GROUP: &str = "/machine.slice/machine-qemu\\x2d1\\x2dguest7.scope/libvirt/vcpu0";

impl MachineFolder {
    /// Process ID of the guest.
    pub const QEMU: u32 = 5600;
    /// Thread ID of the guest's vCPU 0.
    pub const VCPU: u32 = 6154;

    /// Writes the machine's files to a directory.
    pub fn lay_out(folder: &Path) -> Self {
        let machine = Self(folder.to_owned());
        for (path, text) in FILES {
            machine.write(path, text);
        }
        for (number, name, policy, priority) in KERNEL_THREADS {
            machine.kernel_thread(number, name, policy, priority);
        }
        machine.program(701, "ptp4l", 1, 1);
        machine.write("proc/701/status", "Name:\tptp4l\nCpus_allowed_list:\t0-1");
        machine.link("sys/class/net/eth0/master", "../br0");
        machine.write(&format!("proc/{}/cgroup", Self::VCPU), &format!("0::{VCPU_GROUP}\n"));
        for (file, text) in [
            ("cpu.max", "max 100000"),
            ("cpu.weight", "100"),
            ("cpuset.cpus", ""),
            ("cpuset.cpus.partition", "member"),
            ("memory.max", "max"),
        ] {
            machine.write(&format!("sys/fs/cgroup{VCPU_GROUP}/{file}"), text);
        }
        machine.write("dev/cpu_dma_latency", "");
        fs::write(machine.path("dev/cpu_dma_latency"), 2_000_000_000_i32.to_ne_bytes()).expect("a file of the folder");
        machine
    }

    /// A machine that was written to this directory earlier.
    pub fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// The path of one of the machine's files.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Writes a file of the machine; a path with `*` stands for one file per CPU number.
    pub fn write(&self, path: &str, text: &str) {
        let cpus = if path.contains('*') { 4 } else { 1 };
        for cpu in 0..cpus {
            let path = self.path(&path.replace('*', &cpu.to_string()));
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of the machine");
            let text = text.replace('*', &cpu.to_string());
            fs::write(&path, format!("{text}\n")).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }

    /// Creates a symbolic link in the machine.
    pub fn link(&self, path: &str, to: &str) {
        symlink(to, self.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// Creates a kernel thread, or changes its scheduling policy and priority.
    pub fn kernel_thread(&self, number: u32, name: &str, policy: u32, priority: u32) {
        self.stat(&format!("proc/{number}"), number, name, 0x20_0000, (policy, priority));
    }

    /// Creates a program, or changes its scheduling policy and priority.
    pub fn program(&self, number: u32, name: &str, policy: u32, priority: u32) {
        self.stat(&format!("proc/{number}"), number, name, 0, (policy, priority));
    }

    /// Creates a thread of a program; `cpus`: CPUs that it may use.
    pub fn program_thread(&self, program: u32, (tid, name): (u32, &str), (policy, priority): (u32, u32), cpus: &str) {
        let folder = format!("proc/{program}/task/{tid}");
        self.stat(&folder, tid, name, 0, (policy, priority));
        self.write(&format!("{folder}/status"), &format!("Name:\t{name}\nCpus_allowed_list:\t{cpus}"));
    }

    /// Removes a file or a directory of the machine.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    fn stat(&self, folder: &str, number: u32, name: &str, flags: u32, (policy, priority): (u32, u32)) {
        // proc_pid_stat(5): flags is field 9, nice 19, rt_priority 40, policy 41.
        let mut fields = vec!["0".to_owned(); 50];
        fields[0] = "S".into();
        fields[9 - 3] = flags.to_string();
        fields[40 - 3] = priority.to_string();
        fields[41 - 3] = policy.to_string();
        self.write(&format!("{folder}/stat"), &format!("{number} ({name}) {}", fields.join(" ")));
    }
}
