//! The table of settings. An entry has a setting's name, meaning, scope, source, destination, disturbance and lifetime;
//! docs/settings.md is generated from the table.
//!
//! The sources are the kernel's admin-guide (kernel-parameters, sysctl, cpufreq, cpuidle), Documentation/ABI,
//! ethtool(8), cgroups(7), sched(7), and the kernel's documentation of KVM.

use crate::address::Address;
use crate::clock_sync;
use crate::ethtool;
use crate::network;
use crate::nic::{Nic, Written};
use crate::read::{special, Source};
use crate::shell;
use crate::write::Place;
use crate::writing;
use latpath_linux::proc::Root;
use latpath_net::Flag;
use latpath_vms::{Thread, Vm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Scope of a setting: the kind of thing to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The whole machine.
    Machine,
    /// One CPU.
    Cpu,
    /// One interrupt.
    Interrupt,
    /// One network device, or one of its queues.
    Device,
    /// One thread.
    Thread,
    /// One control group.
    ControlGroup,
    /// One virtual machine.
    Vm,
    /// A parameter of the kernel's command line.
    BootParameter,
}

impl Scope {
    /// All scopes, in the order in which documentation lists them.
    pub const ALL: [Self; 8] = [
        Self::Machine,
        Self::Cpu,
        Self::Interrupt,
        Self::Device,
        Self::Thread,
        Self::ControlGroup,
        Self::Vm,
        Self::BootParameter,
    ];

    /// The name used in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Cpu => "CPU",
            Self::Interrupt => "interrupt",
            Self::Device => "device",
            Self::Thread => "thread",
            Self::ControlGroup => "control group",
            Self::Vm => "VM",
            Self::BootParameter => "boot parameter",
        }
    }
}

/// Disturbance caused by changing a setting, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Disturbance {
    /// No packet is disturbed.
    Nothing,
    /// Some or all CPUs stop for a short time.
    CpuStall,
    /// The device's link goes down and comes up again, or its queues are recreated: packets are lost.
    LinkFlap,
    /// The virtual machine has to be restarted.
    VmRestart,
    /// The machine has to be rebooted.
    Reboot,
}

impl Disturbance {
    /// The name used in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::CpuStall => "CPU stall",
            Self::LinkFlap => "link flap",
            Self::VmRestart => "VM restart",
            Self::Reboot => "reboot",
        }
    }
}

/// How long a written value lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// Until the machine is rebooted.
    Reboot,
    /// Until the device's link goes down or its queues are recreated.
    LinkDown,
    /// Until the device moves to another network namespace.
    Move,
    /// Until the virtual machine or the program is restarted.
    VmRestart,
    /// Beyond a reboot.
    Persistent,
    /// While the program that wrote it keeps the file open.
    FileOpen,
}

impl Persistence {
    /// Whether changing a setting that disturbs like a link flap may reset the value, if both belong to the same
    /// device.
    pub fn is_reset_by_flap(self) -> bool {
        matches!(self, Self::LinkDown | Self::Move)
    }

    /// The name used in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reboot => "until reboot",
            Self::LinkDown => "until link down",
            Self::Move => "until a move to another namespace",
            Self::VmRestart => "until VM restart",
            Self::Persistent => "persistent",
            Self::FileOpen => "while the file is open",
        }
    }
}

/// Source of a setting. Paths are relative to the root of the machine's file systems. No source wakes a device or
/// interrupts an isolated CPU.
#[derive(Clone, Copy)]
pub enum Read {
    /// The text of a one-line file.
    Line(&'static str),
    /// The word in brackets in a file that lists the possible values: `always [madvise] never`.
    Choice(&'static str),
    /// A sysctl(8), by its name.
    Sysctl(&'static str),
    /// A parameter of a kernel module: module, parameter.
    Module(&'static str, &'static str),
    /// A parameter of the kernel's command line, with all of its occurrences.
    Boot(&'static str),
    /// A file of each CPU, below `sys/devices/system/cpu/cpuN`.
    EachCpu(&'static str),
    /// A file of each CPU that is not isolated. Not of isolated ones, because with some drivers the kernel interrupts
    /// the CPU to read it.
    EachCalledCpu(&'static str),
    /// The scheduling of each CPU's own kernel thread with this name, e.g. `ksoftirqd`.
    CpuThread(&'static str),
    /// A file of an interrupt, below `proc/irq/N`.
    Interrupt(&'static str),
    /// A file of a network device, below `sys/class/net/DEVICE`.
    Device(&'static str),
    /// A symbolic link of a network device: the name of the link's target.
    DeviceLink(&'static str),
    /// A file of each queue of a network device: direction (`rx` or `tx`), file.
    Queue(&'static str, &'static str),
    /// A feature of a network device, by the kernel's name for it.
    Feature(&'static str),
    /// Another ethtool(8) request: the option, and the function that makes the request.
    Ethtool(&'static str, fn(&Nic) -> Option<String>),
    /// A request that does not wake the device: a description of the source, and the function that makes the request.
    Request(&'static str, fn(&Nic) -> Option<String>),
    /// A sysctl(8) of a network device, below `proc/sys`; `{}` stands for the device.
    DeviceSysctl(&'static str),
    /// The kinds of queueing disciplines of a network device, read through rtnetlink.
    Qdisc,
    /// A property of a virtual machine's thread: a description of the source, and the function that returns the
    /// property.
    Thread(&'static str, fn(&Thread) -> Option<String>),
    /// A file of a control group (version 2).
    Group(&'static str),
    /// A property of a virtual machine: a description of the source, and the function that returns the property.
    Vm(&'static str, fn(&Root, &Vm) -> Option<String>),
    /// A description of the source, and a function that returns places and values.
    Special(&'static str, special::Function),
}

/// Destination of a setting. [`Setting::write`] writes the settings that can be written at once according to
/// [`Setting::writable`]; [`Setting::shell`] returns the equivalent command.
#[derive(Clone, Copy)]
pub enum Write {
    /// The value is written to where it is read: a file, a sysctl(8), the kernel's command line.
    Same,
    /// The value is written to where it is read; also the equivalent command, in the form of [`Write::Command`].
    SameBy(&'static str),
    /// The value is written to where it is read; also the name of the equivalent command, and a function that returns
    /// the command.
    SameMade(&'static str, fn(&Place, &str) -> String),
    /// The value is written to this file; `{at}` stands for the place.
    File(&'static str),
    /// Policy and priority of the thread, set with sched_setscheduler(2); chrt(1) is equivalent.
    Scheduling,
    /// CPUs of the thread, set with sched_setaffinity(2); taskset(1) is equivalent.
    Affinity,
    /// Several files: the command's name, a function that returns the command, and a function that writes the files.
    Files(&'static str, fn(&Place, &str) -> String, fn(&Source, &Address, &str) -> Written),
    /// An option of a kernel module, read when the module is loaded: module, parameter.
    ModuleOption(&'static str, &'static str),
    /// A command. `{at}` stands for the place, `{value}` for the value as one word, `{words}` for the value's words.
    Command(&'static str),
    /// A request to a network device: the equivalent command in the form of `Command`, and the function that makes the
    /// request.
    Request(&'static str, fn(&Nic, &str) -> Written),
    /// A request like `Request`, but with the command's name, and a function that returns the command.
    MadeRequest(&'static str, fn(&Place, &str) -> String, fn(&Nic, &str) -> Written),
    /// The command's name, and a function that returns the command.
    Made(&'static str, fn(&Place, &str) -> String),
    /// latpath only reads the setting; the string names the program or person that sets it.
    ReadOnly(&'static str),
}

/// An entry of the table.
pub struct SettingInfo {
    /// The setting's name in files, JSON and pages; it never changes.
    pub id: &'static str,
    /// The setting's meaning, in one sentence.
    pub meaning: &'static str,
    /// Its scope.
    pub scope: Scope,
    /// How it is read.
    pub read: Read,
    /// How it is written.
    pub write: Write,
    /// Disturbance that a change causes.
    pub disturbs: Disturbance,
    /// How long a written value lasts.
    pub lasts: Persistence,
}

/// Write access to a feature of a network device.
macro_rules! feature {
    ($name:literal) => {
        Write::Request(concat!("ethtool -K {at} ", $name, " {value}"), |nic, value| {
            ethtool::set_feature(nic, $name, value)
        })
    };
}

/// Write access to a flag of a network device.
macro_rules! flag {
    ($flag:ident, $name:literal) => {
        Write::Request(concat!("ip link set dev {at} ", $name, " {value}"), |nic, value| {
            network::set_flag(nic, Flag::$flag, value)
        })
    };
}

macro_rules! settings {
    ($($variant:ident $id:literal $meaning:literal {
        $scope:ident, $read:expr, $write:expr, $disturbs:ident, $lasts:ident
    })*) => {
        /// A property of a machine that affects packets. Names and meanings do not change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Setting {
            $(#[doc = $meaning] $variant,)*
        }

        impl Setting {
            /// All settings, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The setting's entry in the table.
            pub fn info(self) -> &'static SettingInfo {
                match self {
                    $(Self::$variant => &SettingInfo {
                        id: $id,
                        meaning: $meaning,
                        scope: Scope::$scope,
                        read: $read,
                        write: $write,
                        disturbs: Disturbance::$disturbs,
                        lasts: Persistence::$lasts,
                    },)*
                }
            }
        }
    };
}

// Variant, name, meaning { scope, read, write, disturbance, lifetime of a written value }
settings! {
    KernelRelease "kernel-release" "The release of the running kernel." {
        Machine, Read::Line("proc/sys/kernel/osrelease"), Write::ReadOnly("the boot loader"), Reboot, Persistent
    }
    KernelPreemption "kernel-preemption"
        "How the kernel was built to be preempted: PREEMPT_RT, PREEMPT_DYNAMIC, PREEMPT, or none." {
        Machine, Read::Special("/proc/sys/kernel/version", special::preemption),
        Write::Made("the package of a kernel", shell::kernel), Reboot, Persistent
    }
    PreemptMode "preempt-mode" "How a kernel with PREEMPT_DYNAMIC is preempted now: none, voluntary, full, lazy." {
        Machine, Read::Choice("sys/kernel/debug/sched/preempt"), Write::Same, CpuStall, Reboot
    }
    Smt "smt" "Whether CPUs that share a core are on." {
        Machine, Read::Line("sys/devices/system/cpu/smt/control"), Write::Same, CpuStall, Reboot
    }
    CpusOnline "cpus-online" "The CPUs that are on." {
        Machine, Read::Line("sys/devices/system/cpu/online"), Write::Command("chcpu -e {value}"), CpuStall, Reboot
    }
    CpusIsolated "cpus-isolated" "The CPUs that the scheduler does not balance; none where no CPU is isolated." {
        Machine, Read::Special("/sys/devices/system/cpu/isolated", special::isolated),
        Write::ReadOnly("the kernel's command line: isolcpus"), Reboot, Persistent
    }
    CpusNohzFull "cpus-nohz-full" "The CPUs whose tick stops while one thread runs; none where there is no such CPU." {
        Machine, Read::Special("/sys/devices/system/cpu/nohz_full", special::nohz_full),
        Write::ReadOnly("the kernel's command line: nohz_full"), Reboot, Persistent
    }
    NumaDistances "numa-distances" "Distance of each NUMA node to all nodes; 10 is the node itself." {
        Machine, Read::Special("/sys/devices/system/node/nodeN/distance", special::numa_distances),
        Write::ReadOnly("the hardware"), Reboot, Persistent
    }
    Clocksource "clocksource" "The kernel's source of time: reading hpet or acpi_pm takes a microsecond or more." {
        Machine, Read::Line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        Write::Same, CpuStall, Reboot
    }
    CpuBoost "cpu-boost" "Whether CPUs may run above their nominal frequency (acpi-cpufreq, amd-pstate)." {
        Machine, Read::Line("sys/devices/system/cpu/cpufreq/boost"), Write::Same, Nothing, Reboot
    }
    IntelNoTurbo "intel-no-turbo" "1 keeps CPUs at or below their nominal frequency (intel_pstate)." {
        Machine, Read::Line("sys/devices/system/cpu/intel_pstate/no_turbo"), Write::Same, Nothing, Reboot
    }
    IdleDriver "idle-driver" "The driver of CPUs' idle states." {
        Machine, Read::Line("sys/devices/system/cpu/cpuidle/current_driver"),

        Write::ReadOnly("the kernel's command line: intel_idle.max_cstate, processor.max_cstate, idle"),
        Reboot, Persistent
    }
    IdleGovernor "idle-governor" "The policy that chooses an idle state: menu, teo, haltpoll." {
        Machine, Read::Line("sys/devices/system/cpu/cpuidle/current_governor"), Write::Same, Nothing, Reboot
    }
    CpuLatencyLimit "cpu-latency-limit"
        "Longest exit latency of an idle state that programs ask for, µs; 2000000000 where none does." {
        Machine, Read::Special("/dev/cpu_dma_latency", special::cpu_latency),
        Write::Made("a program that holds /dev/cpu_dma_latency open", shell::cpu_latency), Nothing, FileOpen
    }
    TransparentHugepages "transparent-hugepages"
        "Where the kernel makes huge pages by itself; making them stalls the program." {
        Machine, Read::Choice("sys/kernel/mm/transparent_hugepage/enabled"), Write::Same, Nothing, Reboot
    }
    HugepageDefrag "hugepage-defrag" "Whether a program waits while the kernel makes room for a huge page." {
        Machine, Read::Choice("sys/kernel/mm/transparent_hugepage/defrag"), Write::Same, Nothing, Reboot
    }
    Hugepages "hugepages" "Huge pages that are reserved, by their size." {
        Machine, Read::Special("/sys/kernel/mm/hugepages/hugepages-N/nr_hugepages", special::hugepages),
        Write::ReadOnly("sysctl vm.nr_hugepages, the kernel's command line: hugepages"), CpuStall, Reboot
    }
    Ksm "ksm" "Whether the kernel merges equal pages of programs: 0 off, 1 on, 2 off and pages taken apart again." {
        Machine, Read::Line("sys/kernel/mm/ksm/run"), Write::Same, CpuStall, Reboot
    }
    Swappiness "swappiness" "How readily the kernel swaps programs' memory out." {
        Machine, Read::Sysctl("vm.swappiness"), Write::Same, Nothing, Reboot
    }
    CompactionProactiveness "compaction-proactiveness" "How much the kernel moves pages in the background, 0 to 100." {
        Machine, Read::Sysctl("vm.compaction_proactiveness"), Write::Same, Nothing, Reboot
    }
    StatInterval "stat-interval" "Seconds between updates of memory statistics, which interrupt each CPU." {
        Machine, Read::Sysctl("vm.stat_interval"), Write::Same, Nothing, Reboot
    }
    NumaBalancing "numa-balancing" "Whether the kernel unmaps pages to learn which NUMA node uses them." {
        Machine, Read::Sysctl("kernel.numa_balancing"), Write::Same, Nothing, Reboot
    }
    RtRuntime "rt-runtime" "Time of each period that real-time threads may use, µs; -1 is all of it." {
        Machine, Read::Sysctl("kernel.sched_rt_runtime_us"), Write::Same, Nothing, Reboot
    }
    RtPeriod "rt-period" "The period that rt-runtime is of, µs." {
        Machine, Read::Sysctl("kernel.sched_rt_period_us"), Write::Same, Nothing, Reboot
    }
    NmiWatchdog "nmi-watchdog" "Whether a non-maskable interrupt looks for CPUs that hang." {
        Machine, Read::Sysctl("kernel.nmi_watchdog"), Write::Same, Nothing, Reboot
    }
    SoftWatchdog "soft-watchdog" "Whether a thread on each CPU looks for tasks that do not leave it." {
        Machine, Read::Sysctl("kernel.soft_watchdog"), Write::Same, Nothing, Reboot
    }
    WatchdogCpus "watchdog-cpus" "The CPUs that the watchdogs run on." {
        Machine, Read::Sysctl("kernel.watchdog_cpumask"), Write::Same, Nothing, Reboot
    }
    HungTaskTimeout "hung-task-timeout"
        "Seconds after which the kernel reports a thread that waits uninterruptibly; 0 is never." {
        Machine, Read::Sysctl("kernel.hung_task_timeout_secs"), Write::Same, Nothing, Reboot
    }
    Printk "printk" "Levels of the kernel's messages that a console prints; printing stalls the CPU that does it." {
        Machine, Read::Sysctl("kernel.printk"), Write::Same, Nothing, Reboot
    }
    TimerMigration "timer-migration" "Whether timers of an idle CPU run on another one." {
        Machine, Read::Sysctl("kernel.timer_migration"), Write::Same, Nothing, Reboot
    }
    WorkqueueCpus "workqueue-cpus"
        "The CPUs of the kernel's unbound work, as a mask; with many workqueues a write stalls for seconds." {
        Machine, Read::Line("sys/devices/virtual/workqueue/cpumask"), Write::Same, CpuStall, Reboot
    }
    WritebackCpus "writeback-cpus" "The CPUs of the threads that write files back, as a mask." {
        Machine, Read::Line("sys/devices/virtual/workqueue/writeback/cpumask"), Write::Same, CpuStall, Reboot
    }
    MceIgnoreCe "mce-ignore-ce"
        "1 stops the regular search for corrected errors of the memory, which interrupts each CPU." {
        Machine, Read::Line("sys/devices/system/machinecheck/machinecheck0/ignore_ce"), Write::Same, CpuStall, Reboot
    }
    MceInterval "mce-interval" "Seconds between searches for corrected errors, which interrupt each CPU; 0 is never." {
        Machine, Read::Line("sys/devices/system/machinecheck/machinecheck0/check_interval"), Write::Same, Nothing, Reboot
    }
    SelinuxAvc "selinux-avc" "Decisions that SELinux remembers; too few cost packets 0.2 ms now and then." {
        Machine, Read::Line("sys/fs/selinux/avc/cache_threshold"), Write::Same, Nothing, Reboot
    }
    DefaultIrqAffinity "default-irq-affinity" "The CPUs of interrupts that are requested from now on, as a mask." {
        Machine, Read::Line("proc/irq/default_smp_affinity"), Write::Same, Nothing, Reboot
    }
    BusyPoll "busy-poll" "How long poll and select look at the device's queue themselves, µs." {
        Machine, Read::Sysctl("net.core.busy_poll"), Write::Same, Nothing, Reboot
    }
    BusyRead "busy-read" "How long a read looks at the device's queue itself, µs." {
        Machine, Read::Sysctl("net.core.busy_read"), Write::Same, Nothing, Reboot
    }
    NetdevBudget "netdev-budget" "Packets that one run of the receive softirq takes at most." {
        Machine, Read::Sysctl("net.core.netdev_budget"), Write::Same, Nothing, Reboot
    }
    NetdevBudgetTime "netdev-budget-time" "Time that one run of the receive softirq takes at most, µs." {
        Machine, Read::Sysctl("net.core.netdev_budget_usecs"), Write::Same, Nothing, Reboot
    }
    NetdevMaxBacklog "netdev-max-backlog" "Packets that a CPU's backlog holds before it drops." {
        Machine, Read::Sysctl("net.core.netdev_max_backlog"), Write::Same, Nothing, Reboot
    }
    DevWeight "dev-weight" "Packets that the backlog's poll takes at once." {
        Machine, Read::Sysctl("net.core.dev_weight"), Write::Same, Nothing, Reboot
    }
    GroNormalBatch "gro-normal-batch" "Packets that GRO gathers before it passes them on." {
        Machine, Read::Sysctl("net.core.gro_normal_batch"), Write::Same, Nothing, Reboot
    }
    RpsFlows "rps-flows" "Flows that receive flow steering remembers; 0 is off." {
        Machine, Read::Sysctl("net.core.rps_sock_flow_entries"), Write::Same, Nothing, Reboot
    }
    SocketReceiveBuffer "socket-receive-buffer" "Bytes of a socket's receive buffer where the program asks for none." {
        Machine, Read::Sysctl("net.core.rmem_default"), Write::Same, Nothing, Reboot
    }
    DefaultQdisc "default-qdisc" "The queueing discipline that new devices get." {
        Machine, Read::Sysctl("net.core.default_qdisc"), Write::Same, Nothing, Reboot
    }
    BridgeIptables "bridge-iptables" "Whether bridged packets pass iptables." {
        Machine, Read::Sysctl("net.bridge.bridge-nf-call-iptables"), Write::Same, Nothing, Reboot
    }
    KvmHaltPoll "kvm-halt-poll" "How long KVM polls before a halted vCPU's thread sleeps, ns at most." {
        Machine, Read::Module("kvm", "halt_poll_ns"), Write::Same, Nothing, Reboot
    }
    KvmHaltPollGrow "kvm-halt-poll-grow" "By what factor KVM polls longer after polling was too short." {
        Machine, Read::Module("kvm", "halt_poll_ns_grow"), Write::Same, Nothing, Reboot
    }
    KvmHaltPollShrink "kvm-halt-poll-shrink"
        "By what divisor KVM polls shorter after polling was in vain; 0 starts from nothing." {
        Machine, Read::Module("kvm", "halt_poll_ns_shrink"), Write::Same, Nothing, Reboot
    }
    KvmTimerAdvance "kvm-timer-advance" "How much before its time KVM lets a guest's timer expire, ns; -1 is learnt." {
        Machine, Read::Module("kvm", "lapic_timer_advance_ns"),
        Write::ModuleOption("kvm", "lapic_timer_advance_ns"), VmRestart, Persistent
    }
    KvmclockSync "kvmclock-sync" "Whether KVM updates all guests' clocks every 300 s, which calls each vCPU." {
        Machine, Read::Module("kvm", "kvmclock_periodic_sync"),
        Write::ModuleOption("kvm", "kvmclock_periodic_sync"), VmRestart, Persistent
    }
    KvmNxHugePages "kvm-nx-huge-pages" "Whether KVM splits executable huge pages (iTLB multihit), which costs exits." {
        Machine, Read::Module("kvm", "nx_huge_pages"), Write::Same, CpuStall, Reboot
    }
    KvmPleGap "kvm-ple-gap"
        "Cycles between two PAUSEs of a guest's spin loop that count as one loop (Intel); 0 never leaves the guest." {
        Machine, Read::Module("kvm_intel", "ple_gap"),
        Write::ModuleOption("kvm_intel", "ple_gap"), VmRestart, Persistent
    }
    KvmApicv "kvm-apicv" "Whether Intel's CPUs deliver interrupts to a running guest themselves." {
        Machine, Read::Module("kvm_intel", "enable_apicv"),
        Write::ModuleOption("kvm_intel", "enable_apicv"), VmRestart, Persistent
    }
    KvmPreemptionTimer "kvm-preemption-timer" "Whether a guest's timer uses Intel's preemption timer." {
        Machine, Read::Module("kvm_intel", "preemption_timer"),
        Write::ModuleOption("kvm_intel", "preemption_timer"), VmRestart, Persistent
    }
    KvmAvic "kvm-avic" "Whether AMD's CPUs deliver interrupts to a running guest themselves." {
        Machine, Read::Module("kvm_amd", "avic"), Write::ModuleOption("kvm_amd", "avic"), VmRestart, Persistent
    }
    VhostZerocopy "vhost-zerocopy" "Whether vhost sends guests' packets without a copy." {
        Machine, Read::Module("vhost_net", "experimental_zcopytx"),
        Write::ModuleOption("vhost_net", "experimental_zcopytx"), VmRestart, Persistent
    }
    OvsBridges "ovs-bridges" "Bridges of Open vSwitch, with their datapaths: system is the kernel, netdev user space." {
        Machine, Read::Special("Open vSwitch's database", special::ovs_bridges),
        Write::ReadOnly("ovs-vsctl"), LinkFlap, Persistent
    }
    OvsConfig "ovs-config" "The switch-wide options of Open vSwitch: pmd-cpu-mask, n-handler-threads and others." {
        Machine, Read::Special("Open vSwitch's database", special::ovs_config),
        Write::ReadOnly("ovs-vsctl set Open_vSwitch ."), LinkFlap, Persistent
    }
    TunedProfile "tuned-profile" "The profile of tuned, which owns settings of this table." {
        Machine, Read::Special("/etc/tuned/active_profile", special::tuned),
        Write::ReadOnly("tuned-adm"), CpuStall, Persistent
    }
    Irqbalance "irqbalance" "Whether irqbalance runs, which owns interrupts' affinity." {
        Machine, Read::Special("/proc/N/stat", special::irqbalance), Write::ReadOnly("systemctl"), CpuStall, Reboot
    }
    CpuGovernor "cpu-governor" "The policy that chooses the CPU's frequency." {
        Cpu, Read::EachCpu("cpufreq/scaling_governor"),
        Write::SameMade("cpupower frequency-set", shell::governor), Nothing, Reboot
    }
    CpuEnergyPreference "cpu-energy-preference"
        "Whether the CPU's hardware prefers speed or saving; not read of isolated CPUs." {
        Cpu, Read::EachCalledCpu("cpufreq/energy_performance_preference"), Write::Same, Nothing, Reboot
    }
    CpuMinFrequency "cpu-min-frequency" "The CPU's lowest frequency, kHz." {
        Cpu, Read::EachCpu("cpufreq/scaling_min_freq"), Write::Same, Nothing, Reboot
    }
    CpuMaxFrequency "cpu-max-frequency" "The CPU's highest frequency, kHz." {
        Cpu, Read::EachCpu("cpufreq/scaling_max_freq"), Write::Same, Nothing, Reboot
    }
    CpuIdleLimit "cpu-idle-limit"
        "Exit latency of the deepest idle state enabled, µs; the command disables states of that latency or more." {
        Cpu, Read::Special("/sys/devices/system/cpu/cpuN/cpuidle/stateN", special::idle_limit),
        Write::Made("cpupower idle-set -D", shell::idle_limit), Nothing, Reboot
    }
    CpuIdleDisabled "cpu-idle-disabled" "The numbers of the CPU's idle states that are disabled." {
        Cpu, Read::Special("/sys/devices/system/cpu/cpuN/cpuidle/stateN", special::idle_disabled),
        Write::Files("cpupower idle-set -d", shell::idle_disabled, writing::idle_disabled), Nothing, Reboot
    }
    CpuResumeLatency "cpu-resume-latency"
        "Longest exit latency that is allowed on this CPU, µs; 0 allows any state, n/a none." {
        Cpu, Read::EachCpu("power/pm_qos_resume_latency_us"), Write::Same, Nothing, Reboot
    }
    FairServer "fair-server"
        "Time of each second that real-time threads leave to others on this CPU, ns (Linux 6.12 and later)." {
        Cpu, Read::Special("/sys/kernel/debug/sched/fair_server/cpuN/runtime", special::fair_server),
        Write::Files("/sys/kernel/debug/sched/fair_server/cpuN/runtime", shell::fair_server, writing::fair_server),
        CpuStall, Reboot
    }
    KsoftirqdPriority "ksoftirqd-priority" "Policy and priority of the CPU's ksoftirqd." {
        Cpu, Read::CpuThread("ksoftirqd"), Write::Scheduling, Nothing, Reboot
    }
    KtimersPriority "ktimers-priority" "Policy and priority of the CPU's ktimers (PREEMPT_RT)." {
        Cpu, Read::CpuThread("ktimers"), Write::Scheduling, Nothing, Reboot
    }
    RcucPriority "rcuc-priority" "Policy and priority of the CPU's rcuc." {
        Cpu, Read::CpuThread("rcuc"), Write::Scheduling, Nothing, Reboot
    }
    CpuNumaNode "cpu-numa-node" "The NUMA node that the CPU belongs to." {
        Cpu, Read::Special("/sys/devices/system/cpu/cpuN/nodeN", special::numa_node),
        Write::ReadOnly("the hardware"), Reboot, Persistent
    }
    CpuSiblings "cpu-siblings" "The CPUs that share the CPU's core, itself included." {
        Cpu, Read::EachCpu("topology/thread_siblings_list"), Write::ReadOnly("the hardware"), Reboot, Persistent
    }
    IrqAffinity "irq-affinity" "The CPUs that may serve the interrupt." {
        Interrupt, Read::Interrupt("smp_affinity_list"), Write::Same, Nothing, LinkDown
    }
    IrqEffectiveAffinity "irq-effective-affinity" "The CPU that serves the interrupt." {
        Interrupt, Read::Interrupt("effective_affinity_list"),
        Write::ReadOnly("the kernel, from irq-affinity"), Nothing, LinkDown
    }
    IrqThreadPriority "irq-thread-priority" "Policy and priority of the interrupt's thread (threadirqs, PREEMPT_RT)." {
        Interrupt, Read::Special("/proc/N/stat of the thread irq/N-NAME", special::irq_threads),
        Write::Scheduling, Nothing, LinkDown
    }
    DeviceMtu "device-mtu" "Bytes of a packet behind its Ethernet header, at most." {
        Device, Read::Device("mtu"), Write::SameBy("ip link set dev {at} mtu {value}"), LinkFlap, Reboot
    }
    DeviceSpeed "device-speed" "The link's speed, Mbit/s." {
        Device, Read::Device("speed"), Write::Command("ethtool -s {at} speed {value}"), LinkFlap, Reboot
    }
    DeviceQueueLength "device-queue-length"
        "Packets that the device's queue holds; for a tap, packets that the guest has not read yet." {
        Device, Read::Device("tx_queue_len"), Write::SameBy("ip link set dev {at} txqueuelen {value}"), LinkFlap, Reboot
    }
    DeviceMaster "device-master" "The bridge, bond or datapath that the device is a port of." {
        Device, Read::DeviceLink("master"), Write::Command("ip link set dev {at} master {value}"), LinkFlap, Reboot
    }
    DeviceNumaNode "device-numa-node" "The NUMA node that the device is attached to; -1 where there is one." {
        Device, Read::Device("device/numa_node"), Write::ReadOnly("the slot that the card is in"), Reboot, Persistent
    }
    DevicePower "device-power" "Whether the device may be suspended while it is idle: auto; on is never." {
        Device, Read::Device("device/power/control"),
        Write::File("/sys/class/net/{at}/device/power/control"), Nothing, Reboot
    }
    DeviceAspm "device-aspm" "Whether the device's PCIe link may go to sleep (L1)." {
        Device, Read::Device("device/link/l1_aspm"),
        Write::File("/sys/class/net/{at}/device/link/l1_aspm"), Nothing, Reboot
    }
    DeviceDeferIrqs "device-defer-irqs" "Polls without a packet before the device's interrupt is enabled again." {
        Device, Read::Device("napi_defer_hard_irqs"),
        Write::File("/sys/class/net/{at}/napi_defer_hard_irqs"), Nothing, Reboot
    }
    DeviceGroTimeout "device-gro-timeout" "How long GRO may hold packets, ns." {
        Device, Read::Device("gro_flush_timeout"), Write::File("/sys/class/net/{at}/gro_flush_timeout"), Nothing, Reboot
    }
    DeviceNapi "device-napi"
        "What each instance of the device's NAPI has of device-defer-irqs and device-gro-timeout, and how long its interrupt \
         stays off while a program polls, ns; a write to those two settings sets all instances." {
        Device, Read::Request("generic netlink: NETDEV_CMD_NAPI_GET", network::napi),
        Write::ReadOnly("programs that poll, by NETDEV_CMD_NAPI_SET"), Nothing, LinkDown
    }
    DeviceThreadedNapi "device-threaded-napi" "1 polls the device in threads of their own." {
        Device, Read::Device("threaded"), Write::File("/sys/class/net/{at}/threaded"), Nothing, Reboot
    }
    DeviceRps "device-rps" "The CPUs that this receive queue's packets are steered to, as a mask; 0 steers none." {
        Device, Read::Queue("rx", "rps_cpus"), Write::File("/sys/class/net/{at}/rps_cpus"), Nothing, LinkDown
    }
    DeviceRpsFlows "device-rps-flows" "Flows that this receive queue steers to where they are read." {
        Device, Read::Queue("rx", "rps_flow_cnt"), Write::File("/sys/class/net/{at}/rps_flow_cnt"), Nothing, LinkDown
    }
    DeviceXps "device-xps" "The CPUs that send by this queue, as a mask; 0 is any." {
        Device, Read::Queue("tx", "xps_cpus"), Write::File("/sys/class/net/{at}/xps_cpus"), Nothing, LinkDown
    }
    DeviceRings "device-rings" "Descriptors of the device's rings." {
        Device, Read::Ethtool("-g", ethtool::rings), Write::Request("ethtool -G {at} {words}", ethtool::set_rings), LinkFlap, Reboot
    }
    DeviceChannels "device-channels"
        "Queues that the device uses; changing them resets the affinity of its interrupts." {
        Device, Read::Ethtool("-l", ethtool::channels), Write::Request("ethtool -L {at} {words}", ethtool::set_channels), LinkFlap, Reboot
    }
    DeviceCoalescing "device-coalescing" "How long, and for how many packets, the device holds its interrupt back." {
        Device, Read::Ethtool("-c", ethtool::coalescing), Write::Request("ethtool -C {at} {words}", ethtool::set_coalescing), Nothing, Reboot
    }
    DevicePause "device-pause" "Whether the device stops sending for pause frames, and sends them." {
        Device, Read::Ethtool("-a", ethtool::pause), Write::Request("ethtool -A {at} {words}", ethtool::set_pause), LinkFlap, Reboot
    }
    DeviceEee "device-eee" "Whether the link sleeps between packets (Energy-Efficient Ethernet)." {
        Device, Read::Ethtool("--show-eee", ethtool::eee),
        Write::Request("ethtool --set-eee {at} {words}", ethtool::set_eee), LinkFlap, Reboot
    }
    DevicePrivateFlags "device-private-flags" "The driver's own flags." {
        Device, Read::Ethtool("--show-priv-flags", ethtool::private_flags),
        Write::Request("ethtool --set-priv-flags {at} {words}", ethtool::set_private_flags), LinkFlap, Reboot
    }
    DeviceGro "device-gro" "Whether received packets are joined (generic receive offload)." {
        Device, Read::Feature("rx-gro"), feature!("rx-gro"), Nothing, Reboot
    }
    DeviceGroHardware "device-gro-hardware" "Whether the device joins received packets by the rules of GRO." {
        Device, Read::Feature("rx-gro-hw"), feature!("rx-gro-hw"), LinkFlap, Reboot
    }
    DeviceLro "device-lro" "Whether the device joins received packets (large receive offload)." {
        Device, Read::Feature("rx-lro"), feature!("rx-lro"), LinkFlap, Reboot
    }
    DeviceTso "device-tso" "Whether the device splits long TCP segments." {
        Device, Read::Feature("tx-tcp-segmentation"),
        feature!("tx-tcp-segmentation"), Nothing, Reboot
    }
    DeviceGso "device-gso" "Whether long segments are split as late as possible (generic segmentation offload)." {
        Device, Read::Feature("tx-generic-segmentation"),
        feature!("tx-generic-segmentation"), Nothing, Reboot
    }
    DeviceReceiveChecksum "device-receive-checksum" "Whether the device checks checksums." {
        Device, Read::Feature("rx-checksum"), feature!("rx-checksum"), Nothing, Reboot
    }
    DeviceFilters "device-filters" "Whether the device sorts packets into queues by filters that users set." {
        Device, Read::Feature("rx-ntuple-filter"),
        feature!("rx-ntuple-filter"), Nothing, Reboot
    }
    DeviceTcOffload "device-tc-offload" "Whether rules of tc run in the device." {
        Device, Read::Feature("hw-tc-offload"), feature!("hw-tc-offload"), Nothing, Reboot
    }
    DeviceQdisc "device-qdisc" "The kinds of the device's queueing disciplines." {
        Device, Read::Qdisc, Write::MadeRequest("tc qdisc", shell::qdisc, network::set_qdisc), LinkFlap, Move
    }
    DevicePrivateNamespace "device-private-namespace" "The network namespace that was made for the device alone: ping-DEVICE." {
        Device, Read::Request("/run/netns", network::private_namespace),
        Write::MadeRequest("ip netns", shell::private_namespace, network::set_private_namespace), Nothing, Reboot
    }
    DeviceNamespace "device-namespace"
        "The device's network namespace; none is that of the machine's first process. A move takes the device down, and \
         removes its addresses, neighbours and routes." {
        Device, Read::Request("rtnetlink: RTM_GETLINK, /run/netns", network::namespace),
        Write::MadeRequest("ip link set netns", shell::namespace, network::set_namespace), LinkFlap, Reboot
    }
    DeviceState "device-state" "Whether the device is up." {
        Device, Read::Request("ioctl(2): SIOCGIFFLAGS", network::state),
        Write::Request("ip link set dev {at} {value}", network::set_state), LinkFlap, Move
    }
    DeviceAddresses "device-addresses" "The device's addresses that reach beyond the link." {
        Device, Read::Request("rtnetlink: RTM_GETADDR", network::addresses),
        Write::MadeRequest("ip addr", shell::addresses, network::set_addresses), LinkFlap, Move
    }
    DeviceNeighbours "device-neighbours" "Permanent neighbours of the device, which need no ARP." {
        Device, Read::Request("rtnetlink: RTM_GETNEIGH", network::neighbours),
        Write::MadeRequest("ip neigh", shell::neighbours, network::set_neighbours), Nothing, Move
    }
    DeviceMulticast "device-multicast" "Whether the device takes part in multicast." {
        Device, Read::Request("ioctl(2): SIOCGIFFLAGS", |nic| network::flag(nic, Flag::Multicast)),
        flag!(Multicast, "multicast"), Nothing, Reboot
    }
    DeviceArp "device-arp" "Whether the device resolves addresses by ARP; off deletes its neighbours, also permanent ones." {
        Device, Read::Request("ioctl(2): SIOCGIFFLAGS", |nic| network::flag(nic, Flag::Arp)),
        flag!(Arp, "arp"), Nothing, Reboot
    }
    DeviceAllMulticast "device-allmulticast" "Whether the device receives all multicast frames." {
        Device, Read::Request("ioctl(2): SIOCGIFFLAGS", |nic| network::flag(nic, Flag::AllMulticast)),
        flag!(AllMulticast, "allmulticast"), Nothing, Reboot
    }
    DevicePromiscuous "device-promiscuous" "Whether the device receives frames to other addresses too." {
        Device, Read::Request("ioctl(2): SIOCGIFFLAGS", |nic| network::flag(nic, Flag::Promiscuous)),
        flag!(Promiscuous, "promisc"), Nothing, Reboot
    }
    DeviceIpv6Off "device-ipv6-off" "1 switches IPv6 off on the device, and removes its IPv6 addresses." {
        Device, Read::DeviceSysctl("net/ipv6/conf/{}/disable_ipv6"), Write::Same, Nothing, Move
    }
    DeviceRouterAdvertisements "device-router-advertisements" "Whether the device takes IPv6 routers' advertisements." {
        Device, Read::DeviceSysctl("net/ipv6/conf/{}/accept_ra"), Write::Same, Nothing, Move
    }
    DeviceArpIgnore "device-arp-ignore" "Which ARP requests the device leaves unanswered; 1: those for addresses of other devices." {
        Device, Read::DeviceSysctl("net/ipv4/conf/{}/arp_ignore"), Write::Same, Nothing, Move
    }
    DeviceArpAnnounce "device-arp-announce" "Which own addresses the device names in ARP requests; 2: the best one alone." {
        Device, Read::DeviceSysctl("net/ipv4/conf/{}/arp_announce"), Write::Same, Nothing, Move
    }
    DeviceReversePath "device-reverse-path" "Whether packets are dropped whose sender is reached by another device: rp_filter." {
        Device, Read::DeviceSysctl("net/ipv4/conf/{}/rp_filter"), Write::Same, Nothing, Move
    }
    DeviceAcceptRedirects "device-accept-redirects" "Whether ICMP redirects change routes." {
        Device, Read::DeviceSysctl("net/ipv4/conf/{}/accept_redirects"), Write::Same, Nothing, Move
    }
    DeviceSendRedirects "device-send-redirects" "Whether the device sends ICMP redirects." {
        Device, Read::DeviceSysctl("net/ipv4/conf/{}/send_redirects"), Write::Same, Nothing, Move
    }
    DeviceSourceRoutes "device-source-routes" "Whether packets may name their route (IPv4 source routing)." {
        Device, Read::DeviceSysctl("net/ipv4/conf/{}/accept_source_route"), Write::Same, Nothing, Move
    }
    DeviceClockSync "device-clock-sync"
        "What keeps the device's clock (PHC) and the system's together: none; system-to-nic or nic-to-system: a phc2sys \
         that latpath started as unit latpath-phc2sys-DEVICE; other: another program's." {
        Device, Read::Request("/proc/N/cmdline, /run/systemd/transient", clock_sync::read),
        Write::MadeRequest("systemd-run … phc2sys", clock_sync::shell, clock_sync::write), Nothing, Reboot
    }
    DeviceD3cold "device-d3cold" "Whether power may be removed from the sleeping device." {
        Device, Read::Device("device/d3cold_allowed"),
        Write::File("/sys/class/net/{at}/device/d3cold_allowed"), Nothing, Reboot
    }
    DeviceClockPower "device-clock-power" "Whether the clock of the device's PCIe link may stop." {
        Device, Read::Device("device/link/clkpm"),
        Write::File("/sys/class/net/{at}/device/link/clkpm"), Nothing, Reboot
    }
    DeviceAspmL0s "device-aspm-l0s" "Whether the device's PCIe link may go to its lightest sleep (L0s)." {
        Device, Read::Device("device/link/l0s_aspm"),
        Write::File("/sys/class/net/{at}/device/link/l0s_aspm"), Nothing, Reboot
    }
    DeviceAspmL11 "device-aspm-l11" "Whether the device's PCIe link may go to sleep L1.1." {
        Device, Read::Device("device/link/l1_1_aspm"),
        Write::File("/sys/class/net/{at}/device/link/l1_1_aspm"), Nothing, Reboot
    }
    DeviceAspmL12 "device-aspm-l12" "Whether the device's PCIe link may go to its deepest sleep (L1.2)." {
        Device, Read::Device("device/link/l1_2_aspm"),
        Write::File("/sys/class/net/{at}/device/link/l1_2_aspm"), Nothing, Reboot
    }
    DeviceTso6 "device-tso6" "Whether the device splits long TCP segments of IPv6." {
        Device, Read::Feature("tx-tcp6-segmentation"), feature!("tx-tcp6-segmentation"), Nothing, Reboot
    }
    DeviceSendChecksum "device-send-checksum" "Whether the device makes checksums, for any protocol." {
        Device, Read::Feature("tx-checksum-ip-generic"), feature!("tx-checksum-ip-generic"), Nothing, Reboot
    }
    DeviceSendChecksum4 "device-send-checksum4" "Whether the device makes checksums of IPv4's packets." {
        Device, Read::Feature("tx-checksum-ipv4"), feature!("tx-checksum-ipv4"), Nothing, Reboot
    }
    DeviceSendChecksum6 "device-send-checksum6" "Whether the device makes checksums of IPv6's packets." {
        Device, Read::Feature("tx-checksum-ipv6"), feature!("tx-checksum-ipv6"), Nothing, Reboot
    }
    DeviceSendChecksumSctp "device-send-checksum-sctp" "Whether the device makes checksums of SCTP's packets." {
        Device, Read::Feature("tx-checksum-sctp"), feature!("tx-checksum-sctp"), Nothing, Reboot
    }
    DeviceHash "device-hash" "Whether the device gives received packets the hash of their flow." {
        Device, Read::Feature("rx-hashing"), feature!("rx-hashing"), Nothing, Reboot
    }
    BridgeSnooping "bridge-snooping" "Whether the bridge sends multicast only to ports that asked for it." {
        Device, Read::Device("bridge/multicast_snooping"),
        Write::SameBy("ip link set dev {at} type bridge mcast_snooping {value}"), Nothing, Reboot
    }
    BridgeVlanFiltering "bridge-vlan-filtering" "Whether the bridge keeps VLANs apart." {
        Device, Read::Device("bridge/vlan_filtering"),
        Write::SameBy("ip link set dev {at} type bridge vlan_filtering {value}"), LinkFlap, Reboot
    }
    BridgeStp "bridge-stp" "Whether the bridge runs the spanning tree protocol." {
        Device, Read::Device("bridge/stp_state"),
        Write::SameBy("ip link set dev {at} type bridge stp_state {value}"), LinkFlap, Reboot
    }
    BridgeAgeing "bridge-ageing" "How long the bridge remembers where an address is, hundredths of a second." {
        Device, Read::Device("bridge/ageing_time"),
        Write::SameBy("ip link set dev {at} type bridge ageing_time {value}"), Nothing, Reboot
    }
    ThreadPriority "thread-priority" "Policy and priority of a thread that works for a virtual machine." {
        Thread, Read::Thread("/proc/N/stat", special::scheduling), Write::Scheduling, Nothing, VmRestart
    }
    ThreadCpus "thread-cpus" "The CPUs of a thread that works for a virtual machine." {
        Thread, Read::Thread("/proc/N/status", special::affinity),
        Write::Affinity, Nothing, VmRestart
    }
    ServicePriority "service-priority"
        "Policy and priority of a thread of Open vSwitch or of a program that sets clocks (ptp4l, phc2sys, chronyd)." {
        Thread, Read::Special("/proc/N/task/N/stat", special::service_priorities),
        Write::Made("chrt", shell::chrt), Nothing, VmRestart
    }
    ServiceCpus "service-cpus" "The CPUs of a thread of Open vSwitch or of a program that sets clocks." {
        Thread, Read::Special("/proc/N/task/N/status", special::service_cpus),
        Write::Command("taskset -cp {value} {at}"), Nothing, VmRestart
    }
    CgroupQuota "cgroup-quota" "CPU time that the control group may use of each period, µs: max is all." {
        ControlGroup, Read::Group("cpu.max"), Write::SameMade("cpu.max", shell::quota), Nothing, VmRestart
    }
    CgroupWeight "cgroup-weight" "The control group's share of CPU time beside others; 100 is usual." {
        ControlGroup, Read::Group("cpu.weight"), Write::File("{at}/cpu.weight"), Nothing, VmRestart
    }
    CgroupCpus "cgroup-cpus" "The CPUs of the control group; empty is those of the group above." {
        ControlGroup, Read::Group("cpuset.cpus"),
        Write::SameMade("systemctl set-property AllowedCPUs=, cpuset.cpus", shell::group_cpus), Nothing, VmRestart
    }
    CgroupPartition "cgroup-partition" "Whether the control group has its CPUs for itself: member, root, isolated." {
        ControlGroup, Read::Group("cpuset.cpus.partition"),
        Write::File("{at}/cpuset.cpus.partition"), CpuStall, VmRestart
    }
    CgroupMemory "cgroup-memory" "Memory that the control group may use, bytes; max is all." {
        ControlGroup, Read::Group("memory.max"), Write::File("{at}/memory.max"), Nothing, VmRestart
    }
    VmVcpus "vm-vcpus" "vCPUs of the virtual machine." {
        Vm, Read::Vm("QEMU's command line, KVM", special::vm_vcpus),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmMemory "vm-memory" "Memory of the virtual machine, bytes." {
        Vm, Read::Vm("QEMU's command line", special::vm_memory),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmMachine "vm-machine" "QEMU's machine type." {
        Vm, Read::Vm("QEMU's command line", special::vm_machine),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmAccel "vm-accel" "How the guest's instructions run: kvm, or tcg (emulation)." {
        Vm, Read::Vm("the process's open files", special::vm_accel),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmCpuModel "vm-cpu-model" "The CPU that the guest sees." {
        Vm, Read::Vm("QEMU's command line", special::vm_cpu), Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmMemoryLocked "vm-memory-locked" "Whether the guest's memory is locked, so that no page of it has to be fetched." {
        Vm, Read::Vm("VmLck of /proc/N/status", special::vm_locked),
        Write::Made("virsh edit, QEMU's -overcommit", shell::memory_lock), VmRestart, Persistent
    }
    VmNics "vm-nics" "The virtual machine's network devices: what kind, how many queues, whether vhost serves them." {
        Vm, Read::Vm("the process's open files, QEMU's command line", special::vm_nics),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmVirtqueues "vm-virtqueues"
        "Sizes of the virtqueues and number of interrupt vectors of the virtual machine's network devices." {
        Vm, Read::Vm("QEMU's command line", special::vm_virtqueues),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmBalloon "vm-balloon" "Whether the guest has a memory balloon, by which the host takes memory away." {
        Vm, Read::Vm("QEMU's command line", special::vm_balloon),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmMemoryBacking "vm-memory-backing" "What the guest's memory is: private pages, shared pages, huge pages." {
        Vm, Read::Vm("QEMU's command line", special::vm_memory_backing),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmMemoryNodes "vm-memory-nodes" "The NUMA nodes that the guest's memory may come from." {
        Vm, Read::Vm("Mems_allowed_list of /proc/N/status", special::vm_memory_nodes),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    VmPinning "vm-pinning"
        "CPUs and priorities that libvirt's definition gives the virtual machine's threads at each start." {
        Vm, Read::Vm("/etc/libvirt/qemu/NAME.xml", special::vm_pinning),
        Write::Command("virsh edit {at}"), VmRestart, Persistent
    }
    BootIsolcpus "boot-isolcpus" "CPUs that the scheduler leaves alone." {
        BootParameter, Read::Boot("isolcpus"), Write::Same, Reboot, Persistent
    }
    BootNohzFull "boot-nohz-full" "CPUs whose tick stops while one thread runs." {
        BootParameter, Read::Boot("nohz_full"), Write::Same, Reboot, Persistent
    }
    BootNohz "boot-nohz" "Whether the tick of idle CPUs stops." {
        BootParameter, Read::Boot("nohz"), Write::Same, Reboot, Persistent
    }
    BootRcuNocbs "boot-rcu-nocbs" "CPUs that leave RCU's callbacks to threads." {
        BootParameter, Read::Boot("rcu_nocbs"), Write::Same, Reboot, Persistent
    }
    BootRcuNocbPoll "boot-rcu-nocb-poll" "Whether these threads poll, so that no CPU has to wake them." {
        BootParameter, Read::Boot("rcu_nocb_poll"), Write::Same, Reboot, Persistent
    }
    BootIrqaffinity "boot-irqaffinity" "CPUs of interrupts that nobody assigns." {
        BootParameter, Read::Boot("irqaffinity"), Write::Same, Reboot, Persistent
    }
    BootKthreadCpus "boot-kthread-cpus" "CPUs of the kernel's threads." {
        BootParameter, Read::Boot("kthread_cpus"), Write::Same, Reboot, Persistent
    }
    BootIdle "boot-idle" "Method of idling: poll never halts the CPU." {
        BootParameter, Read::Boot("idle"), Write::Same, Reboot, Persistent
    }
    BootIntelIdle "boot-intel-idle" "The deepest idle state of intel_idle; 0 leaves them to ACPI." {
        BootParameter, Read::Boot("intel_idle.max_cstate"), Write::Same, Reboot, Persistent
    }
    BootProcessorCstate "boot-processor-cstate" "The deepest idle state of ACPI." {
        BootParameter, Read::Boot("processor.max_cstate"), Write::Same, Reboot, Persistent
    }
    BootIntelPstate "boot-intel-pstate" "How intel_pstate sets frequencies, if it does." {
        BootParameter, Read::Boot("intel_pstate"), Write::Same, Reboot, Persistent
    }
    BootAmdPstate "boot-amd-pstate" "How amd_pstate sets frequencies, if it does." {
        BootParameter, Read::Boot("amd_pstate"), Write::Same, Reboot, Persistent
    }
    BootMitigations "boot-mitigations"
        "Whether the kernel works around flaws of the CPU, which makes entries and exits longer." {
        BootParameter, Read::Boot("mitigations"), Write::Same, Reboot, Persistent
    }
    BootNosmt "boot-nosmt" "Whether CPUs that share a core stay off." {
        BootParameter, Read::Boot("nosmt"), Write::Same, Reboot, Persistent
    }
    BootPreempt "boot-preempt" "How a kernel with PREEMPT_DYNAMIC is preempted." {
        BootParameter, Read::Boot("preempt"), Write::Same, Reboot, Persistent
    }
    BootThreadirqs "boot-threadirqs" "Whether interrupts are served by threads." {
        BootParameter, Read::Boot("threadirqs"), Write::Same, Reboot, Persistent
    }
    BootSkewTick "boot-skew-tick" "Whether CPUs' ticks come at different times." {
        BootParameter, Read::Boot("skew_tick"), Write::Same, Reboot, Persistent
    }
    BootTsc "boot-tsc" "Whether the kernel trusts the TSC." {
        BootParameter, Read::Boot("tsc"), Write::Same, Reboot, Persistent
    }
    BootClocksource "boot-clocksource" "The source of time that is asked for." {
        BootParameter, Read::Boot("clocksource"), Write::Same, Reboot, Persistent
    }
    BootHugepages "boot-hugepages" "Huge pages that are reserved." {
        BootParameter, Read::Boot("hugepages"), Write::Same, Reboot, Persistent
    }
    BootHugepageSize "boot-hugepage-size" "The size of huge pages where none is named." {
        BootParameter, Read::Boot("default_hugepagesz"), Write::Same, Reboot, Persistent
    }
    BootTransparentHugepages "boot-transparent-hugepages" "Where the kernel makes huge pages by itself." {
        BootParameter, Read::Boot("transparent_hugepage"), Write::Same, Reboot, Persistent
    }
    BootIommu "boot-iommu" "How the kernel uses the IOMMU." {
        BootParameter, Read::Boot("iommu"), Write::Same, Reboot, Persistent
    }
    BootIntelIommu "boot-intel-iommu" "Whether Intel's IOMMU is on, and its mode." {
        BootParameter, Read::Boot("intel_iommu"), Write::Same, Reboot, Persistent
    }
    BootAmdIommu "boot-amd-iommu" "Whether AMD's IOMMU is on, and its mode." {
        BootParameter, Read::Boot("amd_iommu"), Write::Same, Reboot, Persistent
    }
    BootPcieAspm "boot-pcie-aspm" "Whether PCIe links may sleep." {
        BootParameter, Read::Boot("pcie_aspm"), Write::Same, Reboot, Persistent
    }
    BootNosoftlockup "boot-nosoftlockup" "Whether the search for tasks that do not leave their CPU is off." {
        BootParameter, Read::Boot("nosoftlockup"), Write::Same, Reboot, Persistent
    }
    BootNmiWatchdog "boot-nmi-watchdog" "Whether a non-maskable interrupt looks for CPUs that hang." {
        BootParameter, Read::Boot("nmi_watchdog"), Write::Same, Reboot, Persistent
    }
    BootRcuNormal "boot-rcu-normal" "Whether RCU hurries no CPU once the machine has started." {
        BootParameter, Read::Boot("rcupdate.rcu_normal_after_boot"), Write::Same, Reboot, Persistent
    }
    BootAudit "boot-audit" "Whether system calls are audited." {
        BootParameter, Read::Boot("audit"), Write::Same, Reboot, Persistent
    }
    BootOther "boot-other"
        "All other parameters of the kernel's command line, without those that say where the system is." {
        BootParameter, Read::Special("/proc/cmdline", special::boot_other),
        Write::Command("{words}"), Reboot, Persistent
    }
}

impl Setting {
    /// The setting's name in files, JSON and pages.
    pub fn id(self) -> &'static str {
        self.info().id
    }

    /// The setting for a parameter of the kernel's command line, by the parameter's name.
    pub fn of_boot_parameter(parameter: &str) -> Option<Self> {
        let is_it = |setting: &Self| match setting.info().read {
            Read::Boot(name) => name.replace('-', "_") == parameter.replace('-', "_"),
            _ => false,
        };
        Self::ALL.iter().copied().find(is_it)
    }

    /// The setting with this name.
    pub fn of_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|setting| setting.id() == id)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}
