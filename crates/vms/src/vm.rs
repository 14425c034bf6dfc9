//! What is known of a virtual machine.

use latpath_linux::Cpus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A virtual machine: a process that runs a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Vm {
    /// The guest's name, as QEMU's command line or libvirt has it; else the program's name and the process's number.
    pub name: String,
    /// The process.
    pub pid: u32,
    /// The guest's UUID, where it was given one.
    pub uuid: Option<String>,
    /// Whether libvirt knows it, and `virsh` takes its name.
    #[serde(default)]
    pub libvirt: bool,
    /// The program that runs it: `qemu-system-x86_64`.
    pub program: String,
    /// QEMU's machine type: `pc-q35-7.2`.
    pub machine: Option<String>,
    /// What runs the guest's instructions.
    pub accel: Accel,
    /// vCPUs at the start, or as many as KVM has.
    pub vcpus: Option<u32>,
    /// Memory at the start.
    pub memory_bytes: Option<u64>,
    /// Inode number of the process's network namespace; `None` where it cannot be read. A tap may be in another one.
    pub netns: Option<u32>,
    /// The guest's address on vhost-vsock.
    pub vsock_cid: Option<u32>,
    /// vhost-net devices that it has open: one for each pair of queues that vhost serves.
    pub vhost_net: u32,
    /// vhost-vsock devices that it has open.
    pub vhost_vsock: u32,
    /// Its NICs' host sides.
    pub taps: Vec<Tap>,
    /// Its threads, and the kernel's that work for it alone: main loop first, then vCPUs, vhost workers and the rest.
    pub threads: Vec<Thread>,
}

/// What runs a guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The CPU, through KVM.
    Kvm,
    /// QEMU's emulation: its times say nothing about real machines.
    Tcg,
    /// Something else, or it cannot be seen from here.
    #[default]
    Unknown,
}

/// The host side of a guest's NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tap {
    /// The device's name; for a macvtap that cannot be found, `ifindex N`.
    pub device: String,
    /// Its index in its namespace; `None` where the device was not found.
    pub ifindex: Option<u32>,
    /// Inode number of the namespace that it is in; `None` where the device was not found.
    pub netns: Option<u32>,
    /// Tap or macvtap.
    pub kind: TapKind,
    /// The guest's NIC's address, where it is known.
    pub guest_mac: Option<String>,
    /// What it is a port of.
    pub bridge: Option<Bridge>,
    /// A macvtap's lower device.
    pub lower: Option<String>,
    /// Queues that the guest's process has open.
    pub queues: u32,
    /// Whether vhost serves it, as the command line says; `None` where that says nothing about it.
    pub vhost: Option<bool>,
    /// Packets that a queue holds before it drops.
    pub tx_queue_len: Option<u32>,
    /// Packets for the guest that were dropped since the device was made: the queue was full, or nobody read it. The
    /// kernel counts them as a tap's `tx_dropped` and a macvtap's `rx_dropped`.
    pub dropped: Option<u64>,
}

impl Tap {
    /// Its namespace, and its index in it; `None` where the device was not found.
    pub fn place(&self) -> Option<(u32, u32)> {
        self.netns.zip(self.ifindex)
    }
}

/// How the guest's NIC reaches the host's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TapKind {
    /// A tap (`/dev/net/tun`).
    #[default]
    Tap,
    /// A macvtap or ipvtap (`/dev/tapN`).
    Macvtap,
}

/// What a tap is a port of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bridge {
    /// The bridge; for Open vSwitch its own bridge where its database says, else the datapath (`ovs-system`).
    pub name: String,
    /// `bridge`, `openvswitch`, or another kind of device that has ports.
    pub kind: String,
}

/// A thread that works for the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// What it does.
    pub role: Role,
    /// Which vCPU it runs, where that is known.
    pub vcpu: Option<u32>,
    /// The device that a vhost worker serves, where that is known: a tap, or `vsock`.
    pub serves: Option<String>,
    /// How its role was found.
    pub found_by: FoundBy,
    /// Its name.
    pub comm: String,
    /// Whether it is a thread of the kernel, not of the process.
    pub kernel: bool,
    /// CPUs that it may run on.
    #[schemars(with = "String")]
    pub cpus_allowed: Cpus,
    /// CPU that it last ran on.
    pub cpu: u32,
    /// Scheduling policy.
    pub policy: Policy,
    /// 1 to 99 under `fifo` and `rr`, else 0.
    pub rt_priority: u32,
    /// Nice value, under the other policies.
    pub nice: i32,
    /// Whether its CPUs are kept out of load balancing.
    pub isolated: Isolated,
    /// No thread but itself may run on its CPUs, of those that are not the kernel's own.
    pub alone: bool,
}

/// What a thread does for the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// QEMU's main loop: serves taps that vhost does not, monitor, timers.
    MainLoop,
    /// Runs a vCPU.
    Vcpu,
    /// Carries packets between tap (or vsock) and guest: vhost's worker.
    Vhost,
    /// An I/O thread of QEMU or of io_uring.
    Io,
    /// A helper of KVM: `kvm-pit`, `kvm-nx-lpage-recovery`.
    Kvm,
    /// Another thread of the process.
    #[default]
    Other,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::MainLoop => "main loop",
            Self::Vcpu => "vCPU",
            Self::Vhost => "vhost",
            Self::Io => "I/O",
            Self::Kvm => "KVM helper",
            Self::Other => "other",
        }
    }
}

/// How a role was found, the surest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FoundBy {
    /// The process's first thread.
    FirstThread,
    /// It was seen in the system call that runs a vCPU (`ioctl(KVM_RUN)`).
    KvmRun,
    /// KVM says so in debugfs.
    Debugfs,
    /// It spent time running a guest, or does now.
    GuestTime,
    /// libvirt says so.
    Libvirt,
    /// A thread of the kernel that has its owner's number in its name (`vhost-PID`, up to Linux 6.3).
    KernelThread,
    /// A thread that the kernel put into the process (from Linux 6.4 on), by the system call that made it or its name.
    UserWorker,
    /// Its name alone, which QEMU gives with `debug-threads=on`.
    Name,
    /// None of these applies.
    #[default]
    Nothing,
}

impl FoundBy {
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstThread => "first thread",
            Self::KvmRun => "KVM_RUN",
            Self::Debugfs => "debugfs",
            Self::GuestTime => "guest time",
            Self::Libvirt => "libvirt",
            Self::KernelThread => "kernel thread",
            Self::UserWorker => "user worker",
            Self::Name => "name",
            Self::Nothing => "-",
        }
    }
}

/// A scheduling policy (sched(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// SCHED_OTHER.
    #[default]
    Other,
    /// SCHED_FIFO.
    Fifo,
    /// SCHED_RR.
    Rr,
    /// SCHED_BATCH.
    Batch,
    /// SCHED_IDLE.
    Idle,
    /// SCHED_DEADLINE.
    Deadline,
    /// SCHED_EXT.
    Ext,
    /// One that this list lacks.
    Unknown,
}

impl Policy {
    /// include/uapi/linux/sched.h
    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Other,
            1 => Self::Fifo,
            2 => Self::Rr,
            3 => Self::Batch,
            5 => Self::Idle,
            6 => Self::Deadline,
            7 => Self::Ext,
            _ => Self::Unknown,
        }
    }

    /// As chrt and ps call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Fifo => "fifo",
            Self::Rr => "rr",
            Self::Batch => "batch",
            Self::Idle => "idle",
            Self::Deadline => "deadline",
            Self::Ext => "ext",
            Self::Unknown => "unknown",
        }
    }
}

/// How much of a thread's CPUs is isolated (`isolcpus=`, or an isolated cpuset partition).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Isolated {
    /// All of them.
    All,
    /// Some of them.
    Some,
    /// None of them.
    #[default]
    None,
}
