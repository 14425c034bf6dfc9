//! The table of structural faults: those that no single setting reveals. docs/doctor.md has a row for each entry.
//!
//! Sources are the kernel's documentation, its source, tuned's profile realtime-virtual-host, and SEAPATH's issues.

mod boot;
pub(crate) mod cpus;
mod machine;
mod open_vswitch;
mod placed;
mod vms;

use crate::finding::{Finding, FindingKind, Severity};
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_cause::Cause;
use latpath_linux::Cpus;

/// An entry of the table.
pub struct RuleInfo {
    /// The rule's name; it never changes.
    pub id: &'static str,
    /// The fault's severity.
    pub severity: Severity,
    /// The fault, in one sentence without a full stop.
    pub fault: &'static str,
    /// Why it matters, in one sentence without a full stop.
    pub risk: &'static str,
    /// Where this is documented.
    pub source: &'static str,
    /// Causes of late packets that the fault produces.
    pub causes: &'static [Cause],
    find: fn(&Machine) -> Vec<Hit>,
}

/// A place where a machine has a rule's fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hit {
    pub target: String,
    pub cpus: Cpus,
    pub what: String,
    pub now: String,
    pub should: String,
    pub fix: Fix,
}

macro_rules! rules {
    ($($variant:ident $id:literal $severity:ident $fault:literal $risk:literal $source:literal [$($cause:ident),*] $find:path;)*) => {
        /// A structural fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $fault] $variant,)*
        }

        impl Rule {
            /// All rules, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The rule's entry.
            pub fn info(self) -> &'static RuleInfo {
                match self {
                    $(Self::$variant => &RuleInfo {
                        id: $id,
                        severity: Severity::$severity,
                        fault: $fault,
                        risk: $risk,
                        source: $source,
                        causes: &[$(Cause::$cause),*],
                        find: $find,
                    },)*
                }
            }
        }
    };
}

// Variant, name, severity, fault, risk, source, causes of late packets, function
rules! {
    MainLoopBehindVcpu "main-loop-behind-vcpu" Deadlock
        "QEMU's main loop has no CPU but those of vCPUs in real time: a deadlock"
        "the vCPU waits for its device, which the main loop serves, and the main loop waits for the vCPU's CPU: the guest stands still, and with rt-runtime -1 for ever"
        "sched(7), SCHED_FIFO; SEAPATH issue 996" [WaitingForCpu, VcpuHalted] placed::main_loop;
    VhostBehindVcpu "vhost-behind-vcpu" Deadlock
        "a vhost worker has no CPU but those of vCPUs in real time: a deadlock"
        "packets for the guest wait until the vCPU sleeps, which it does not do while it polls for them"
        "sched(7), SCHED_FIFO; SEAPATH issue 996" [WaitingForCpu] placed::vhost;
    TwoRealtimeVcpus "two-realtime-vcpus" High
        "two vCPUs in real time are on one CPU"
        "one of them runs only while the other halts: spinning guests stop each other"
        "sched(7), SCHED_FIFO; SEAPATH issue 908" [VcpuPreempted] placed::two_realtime;
    MayMeetVcpu "thread-may-meet-vcpu" High
        "a thread may run on the CPU of a vCPU in real time"
        "once the scheduler puts it there, it waits for as long as the guest runs"
        "sched(7); libvirt: emulatorpin" [WaitingForCpu] placed::may_meet;
    NoHousekeeping "no-housekeeping-cpu" High
        "all CPUs are isolated or without tick"
        "interrupts, kernel threads and programs have no CPU but those of vCPUs"
        "Linux: admin-guide/kernel-parameters, isolcpus, nohz_full" [VcpuPreempted, Interrupted] cpus::no_housekeeping;
    VmEmulated "vm-emulated" High
        "a virtual machine is emulated, without KVM"
        "the guest runs ten times slower or worse, and its times mean nothing"
        "QEMU: -accel" [] vms::emulated;
    CpuQuota "vm-cpu-quota" High
        "a virtual machine's group has a quota of CPU time"
        "all threads of the group stop when it is used up, until its period ends"
        "Linux: scheduler/sched-bwc" [Throttled] vms::quota;
    RtThrottling "realtime-throttled" High
        "threads in real time are stopped for a part of each second"
        "a vCPU in real time that is always busy stops for 50 ms of each second"
        "Linux: scheduler/sched-rt-group; tuned: realtime" [Throttled, VcpuPreempted] vms::throttling;
    Clocksource "slow-clocksource" High
        "the kernel's source of time is not the CPU's"
        "each reading of the clock leaves the CPU for a microsecond or more, and guests get no kvm-clock"
        "Linux: admin-guide/kernel-parameters, clocksource; virt/kvm/x86/timekeeping" [] machine::clocksource;
    WithoutVhost "vm-without-vhost" High
        "QEMU serves a network device itself, without vhost"
        "each packet wakes QEMU's main loop, which has other work and copies in user space"
        "QEMU: -netdev tap,vhost=on; libvirt: <driver name='vhost'/>" [WaitingForCpu] vms::without_vhost;
    TapQueueShort "tap-queue-short" High
        "a tap's queue is short"
        "packets that come while the guest or its vhost worker waits are dropped"
        "Linux: drivers/net/tap.c; ip-link(8), txqueuelen" [] vms::tap_queue;
    InterruptOnReserved "interrupt-on-vcpu" Medium
        "an interrupt is served on a CPU that is reserved for a vCPU or a polling thread"
        "each interrupt takes the CPU from the guest"
        "Linux: core-api/irq/irq-affinity; tuned: realtime" [Interrupted, IrqWait, SoftirqWait, VmExit] placed::interrupt_on_reserved;
    InterruptOnIsolated "interrupt-on-isolated" Medium
        "an interrupt is served on an isolated CPU that nobody chose for it"
        "whatever is put on this CPU is interrupted"
        "Linux: admin-guide/kernel-parameters, irqaffinity, isolcpus=managed_irq" [Interrupted] placed::interrupt_on_isolated;
    IrqbalanceOverIsolated "irqbalance-over-isolated" Medium
        "irqbalance may assign interrupts to isolated CPUs"
        "it moves an interrupt there within ten seconds"
        "irqbalance(1), IRQBALANCE_BANNED_CPULIST" [Interrupted] cpus::irqbalance;
    IrqaffinityCovers "irqaffinity-covers-isolated" Medium
        "interrupts that are requested from now on may be served on isolated CPUs"
        "a device that is reset, or plugged in, interrupts the guests' CPUs"
        "Linux: admin-guide/kernel-parameters, irqaffinity; SEAPATH issues 865, 868" [Interrupted] cpus::irqaffinity;
    ThreadOnReserved "thread-on-vcpu" Medium
        "a thread of the host may run on a CPU that is reserved for a vCPU or a polling thread"
        "the guest stops while it runs"
        "libvirt: emulatorpin; cpuset(7)" [VcpuPreempted, WaitingForCpu] placed::thread_on_reserved;
    StrangerOnReserved "program-on-vcpu" Medium
        "other programs may run on CPUs that are reserved for vCPUs or polling threads"
        "the guest stops while they run"
        "cpuset(7); systemd.resource-control(5), AllowedCPUs" [VcpuPreempted] cpus::strangers;
    TwoVcpus "two-vcpus" Medium
        "two vCPUs are pinned to one CPU"
        "each waits for the other's time slice, some milliseconds"
        "libvirt: vcpupin; SEAPATH issue 908" [VcpuPreempted] placed::two_vcpus;
    VcpuAcross "vcpu-across-isolation" Medium
        "a vCPU may run on isolated and on other CPUs"
        "the scheduler does not balance isolated CPUs: the vCPU stays where it was put, with others"
        "Linux: admin-guide/kernel-parameters, isolcpus=domain" [VcpuPreempted] placed::across;
    NoneIsolated "no-isolated-cpu" Medium
        "virtual machines run, and no CPU is isolated"
        "a guest stops whenever the scheduler runs something else on its CPU"
        "Linux: admin-guide/kernel-parameters, isolcpus; tuned: realtime-virtual-host" [VcpuPreempted, Interrupted] cpus::none_isolated;
    VcpusUnpinned "vcpus-not-pinned" Medium
        "vCPUs are not pinned, although CPUs are isolated"
        "they share the other CPUs with all programs, and the isolated CPUs idle"
        "libvirt: vcpupin; tuned: realtime-virtual-host" [VcpuPreempted] vms::unpinned;
    PmdNotIsolated "pmd-not-isolated" Medium
        "a polling thread of Open vSwitch runs on a CPU that is not isolated"
        "packets of its ports wait while other programs have the CPU"
        "Open vSwitch: topics/dpdk/pmd; ovs-vswitchd.conf.db(5), pmd-cpu-mask" [WaitingForCpu] placed::pmd;
    OvsSlowPath "ovs-slow-path" Medium
        "many packets of Open vSwitch's datapath find no flow, or their upcalls are lost"
        "such a packet waits for ovs-vswitchd, which other programs delay, and is lost if its queue is full"
        "ovs-dpctl(8), show; ovs-vswitchd.conf.db(5), max-idle and flow-limit" [Upcall] open_vswitch::slow_path;
    SiblingInUse "sibling-in-use" Medium
        "the other CPU of a vCPU's core is in use"
        "both share the core's units and caches: the guest's times vary with its neighbour"
        "Linux: admin-guide/hw-vuln/core-scheduling; rant's config.sh" [] placed::sibling;
    NodesApart "vm-memory-on-other-node" Medium
        "a virtual machine's memory and its vCPUs are on different NUMA nodes"
        "each access to memory crosses the link between the sockets"
        "libvirt: numatune; numa(7)" [] vms::memory_apart;
    NicApart "nic-on-other-node" Medium
        "a network device and the vCPUs that it serves are on different NUMA nodes"
        "each packet crosses the link between the sockets"
        "Linux: networking/scaling; SEAPATH: NUMA" [] vms::nic_apart;
    VcpusApart "vm-across-nodes" Medium
        "a virtual machine's vCPUs are on several NUMA nodes"
        "its memory is far from some of them"
        "libvirt: numatune; numa(7)" [] vms::vcpus_apart;
    IsolatedWithTick "isolated-with-tick" Medium
        "isolated CPUs have a tick, and run RCU's callbacks"
        "the scheduler's tick interrupts a guest 100 to 1000 times per second, and callbacks of the whole machine's work run in its softirqs"
        "Linux: timers/no_hz; tuned: realtime-virtual-host" [Interrupted, VmExit] cpus::with_tick;
    TicklessNotIsolated "nohz-full-not-isolated" Medium
        "CPUs without tick are not isolated"
        "the scheduler puts other threads there, and the tick comes back"
        "Linux: timers/no_hz; admin-guide/kernel-parameters, isolcpus" [VcpuPreempted] cpus::not_isolated;
    WorkOnReserved "kernel-work-on-vcpu" Medium
        "the kernel's unbound work may run on reserved CPUs"
        "a guest stops while a worker of the kernel runs"
        "Linux: core-api/workqueue; tuned: realtime" [VcpuPreempted, WaitingForCpu] cpus::work;
    VectorsFew "virtio-vectors-few" Medium
        "a virtual network device has too few interrupt vectors"
        "its queues share an interrupt, and the guest looks at all of them for each"
        "QEMU: virtio-net-pci,vectors=" [] vms::vectors;
    IrqThreadOrder "irq-thread-behind-others" Medium
        "a network interrupt's thread has a lower priority than that of another device on the same CPU"
        "packets wait while disks are served"
        "rant: NVMe threads demoted, p50 14 to 5 µs; sched(7)" [IrqWait, WaitingForCpu] placed::irq_threads;
    PinningNotKept "pinning-not-in-definition" Low
        "a virtual machine's CPUs or priorities differ from libvirt's definition"
        "they are lost when the virtual machine starts again"
        "libvirt: cputune" [] vms::definition;
    IsolatedMissing "isolated-cpu-missing" Low
        "the command line isolates CPUs that are off or do not exist"
        "fewer CPUs are isolated than intended"
        "Linux: admin-guide/kernel-parameters, isolcpus" [] boot::missing;
    BootPending "boot-parameters-pending" Low
        "the next start has other parameters than the running kernel"
        "what was measured does not hold after the next start, or a change has not taken effect yet"
        "Linux: admin-guide/kernel-parameters; grub-mkconfig(8)" [] boot::pending;
    BootUngenerated "boot-parameters-not-generated" Low
        "parameters in /etc/default/grub are not in the boot loader's configuration"
        "they do not take effect, not even after the next start"
        "update-grub(8)" [] boot::ungenerated;
    NoClockService "no-clock-service" Low
        "no program sets the clock of this host"
        "times of guests and other machines cannot be compared with this host's"
        "ptp4l(8), phc2sys(8), chronyd(8)" [] machine::no_clock_service;
}

impl Rule {
    /// The rule's name.
    pub fn id(self) -> &'static str {
        self.info().id
    }

    /// The rule with this name.
    pub fn of_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.id() == id)
    }

    /// Finds the places where a machine has the fault.
    pub(crate) fn find(self, machine: &Machine) -> Vec<Finding> {
        let info = self.info();
        let finding = |hit: Hit| {
            let mut owners = Vec::new();
            for owner in hit.fix.settings.iter().flat_map(|setting| machine.owners.of(*setting, &hit.target)) {
                if !owners.contains(owner) {
                    owners.push(owner.clone());
                }
            }
            Finding {
                id: info.id.into(),
                kind: FindingKind::Structure,
                severity: info.severity,
                target: hit.target,
                cpus: hit.cpus,
                what: hit.what,
                now: hit.now,
                should: hit.should,
                why: info.risk.into(),
                source: info.source.into(),
                settings: hit.fix.settings.iter().map(|setting| setting.id().to_owned()).collect(),
                causes: info.causes.iter().map(|cause| cause.id().to_owned()).collect(),
                cost: Vec::new(),
                commands: hit.fix.commands,
                undo: hit.fix.undo,
                disturbs: hit.fix.disturbs.map_or("nothing", |disturbs| disturbs.name()).into(),
                owners,
            }
        };
        (info.find)(machine).into_iter().map(finding).collect()
    }
}

/// Writes the table in docs/doctor.md.
pub fn page() -> String {
    let mut text = String::from("| fault | name | severity | why it matters | source |\n|---|---|---|---|---|\n");
    for rule in Rule::ALL {
        let RuleInfo { id, severity, fault, risk, source, .. } = rule.info();
        text += &format!("| {fault} | `{id}` | {} | {risk} | {source} |\n", severity.name());
    }
    text
}
