//! The files of a hypervisor without faults, in a directory, and functions that add faults.

use latpath_counters::Datapath;
use latpath_doctor::{profile_of, Diagnosis, Finding, Machine, RunCost};
use latpath_testkit::machine_folder::{MachineFolder, VCPU_GROUP};
use latpath_tune::Profile;
use latpath_vms::{Accel, Bridge, Policy, Role, Tap, Thread, Vm};
use tempfile::TempDir;

/// Kernel command line of a tuned hypervisor.
pub const LINE: &str = "isolcpus=managed_irq,domain,2-3 nohz_full=2-3 rcu_nocbs=2-3 rcu_nocb_poll irqaffinity=0-1 \
                        skew_tick=1 tsc=reliable nosoftlockup processor.max_cstate=1";

/// Process ID of a second virtual machine.
pub const SECOND: u32 = 5700;

/// A hypervisor with four CPUs, of which 2 and 3 are isolated, and a virtual machine whose vCPU is pinned to CPU 2.
pub struct Host {
    dir: TempDir,
    pub folder: MachineFolder,
    pub vms: Vec<Vm>,
    pub datapaths: Vec<Datapath>,
}

pub fn thread(tid: u32, role: Role, vcpu: Option<u32>, cpus: &str, fifo: u32) -> Thread {
    Thread {
        tid,
        role,
        vcpu,
        policy: if fifo > 0 { Policy::Fifo } else { Policy::Other },
        rt_priority: fifo,
        cpus_allowed: cpus.parse().unwrap(),
        ..Thread::default()
    }
}

impl Host {
    /// Creates a host that is set up as by tuned's realtime-virtual-host and SEAPATH.
    pub fn clean() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = MachineFolder::lay_out(dir.path());
        for (path, text) in [
            ("sys/devices/system/cpu/nohz_full", "2-3"),
            ("proc/irq/45/smp_affinity_list", "0-1"),
            ("proc/sys/kernel/sched_rt_runtime_us", "-1"),
            ("sys/kernel/debug/sched/fair_server/cpu*/runtime", "0"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
            ("proc/sys/kernel/nmi_watchdog", "0"),
            ("proc/sys/kernel/hung_task_timeout_secs", "600"),
            ("proc/sys/kernel/timer_migration", "0"),
            ("proc/sys/kernel/printk", "3\t4\t1\t7"),
            ("sys/fs/selinux/avc/cache_threshold", "8192"),
            ("sys/module/kvm/parameters/halt_poll_ns", "0"),
            ("sys/module/kvm/parameters/kvmclock_periodic_sync", "N"),
            ("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "performance"),
            ("sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference", "performance"),
            ("sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us", "2"),
            ("sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", "2"),
            ("sys/class/net/vnet0/ifindex", "7"),
            ("sys/class/net/vnet0/tx_queue_len", "1000"),
            ("sys/class/net/vnet0/mtu", "1500"),
        ] {
            folder.write(path, text);
        }
        folder.link("sys/class/net/vnet0/master", "../br0");
        folder.kernel_thread(31, "ksoftirqd/2", 1, 2);
        folder.kernel_thread(39, "ksoftirqd/3", 1, 2);
        let vm = Vm {
            name: "guest7".into(),
            pid: MachineFolder::QEMU,
            libvirt: true,
            accel: Accel::Kvm,
            vcpus: Some(1),
            memory_bytes: Some(4 << 30),
            taps: vec![Tap {
                device: "vnet0".into(),
                queues: 1,
                vhost: Some(true),
                bridge: Some(Bridge { name: "br0".into(), kind: "bridge".into() }),
                ..Tap::default()
            }],
            threads: vec![
                thread(MachineFolder::QEMU, Role::MainLoop, None, "0-1", 0),
                thread(MachineFolder::VCPU, Role::Vcpu, Some(0), "2", 1),
                thread(6160, Role::Vhost, None, "0-1", 2),
            ],
            ..Vm::default()
        };
        let host = Self { dir, folder, vms: vec![vm], datapaths: Vec::new() };
        host.command_line(LINE, LINE);
        host
    }

    /// Sets the CPUs and the priority of the vhost worker.
    pub fn vhost(&mut self, cpus: &str, fifo: u32) {
        *self.thread(Role::Vhost) = thread(6160, Role::Vhost, None, cpus, fifo);
    }

    /// The virtual machine's thread with this role.
    pub fn thread(&mut self, role: Role) -> &mut Thread {
        self.vms[0].threads.iter_mut().find(|thread| thread.role == role).unwrap()
    }

    pub fn cpus(&mut self, role: Role, cpus: &str) {
        self.thread(role).cpus_allowed = cpus.parse().unwrap();
    }

    pub fn add(&mut self, thread: Thread) {
        self.vms[0].threads.push(thread);
    }

    pub fn write(&self, path: &str, text: &str) {
        self.folder.write(path, text);
    }

    /// Adds an Open vSwitch datapath with these counters.
    pub fn datapath(&mut self, hit: u64, missed: u64, lost: u64) {
        self.datapaths = vec![Datapath { name: "ovs-system".into(), hit, missed, lost, flows: 40 }];
    }

    /// Adds a NUMA node with these CPUs.
    pub fn second_node(&self, cpus: &[u32]) {
        self.write("sys/devices/system/node/node0/distance", "10 21");
        self.write("sys/devices/system/node/node1/distance", "21 10");
        for cpu in cpus {
            self.folder.remove(&format!("sys/devices/system/cpu/cpu{cpu}/node0"));
            self.write(&format!("sys/devices/system/cpu/cpu{cpu}/node1/cpulist"), "");
        }
    }

    /// Adds an interrupt of another device.
    pub fn interrupt(&self, number: u32, name: &str, may: &str, serving: &str) {
        self.write(&format!("proc/irq/{number}/smp_affinity_list"), may);
        self.write(&format!("proc/irq/{number}/effective_affinity_list"), serving);
        self.write(&format!("proc/irq/{number}/{name}/name"), "");
    }

    /// Limits the CPU time of the virtual machine's group.
    pub fn quota(&self, value: &str) {
        self.write(&format!("sys/fs/cgroup{VCPU_GROUP}/cpu.max"), value);
    }

    /// Sets the command line of the running kernel, and that of the next boot.
    pub fn command_line(&self, running: &str, next: &str) {
        self.write("proc/cmdline", &format!("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro {running}"));
        self.write("boot/grub/grub.cfg", &format!("\tlinux /vmlinuz root=/dev/sda1 ro {next}"));
    }

    pub fn findings(&self, runs: &[RunCost]) -> Vec<Finding> {
        self.diagnosis(runs).findings
    }

    /// Checks the host against the profile for hypervisors.
    pub fn diagnosis(&self, runs: &[RunCost]) -> Diagnosis {
        let mut machine = Machine::below(self.dir.path(), self.vms.clone());
        machine.datapaths = self.datapaths.clone();
        assert_eq!(profile_of(&machine), Some("sv-hypervisor"));
        let profile = Profile::named("sv-hypervisor").unwrap();
        Diagnosis::of(&machine, Some(&profile), runs)
    }
}
