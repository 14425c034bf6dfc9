//! A virtual machine with its taps and threads.

use crate::passthrough::Passthrough;
use latpath_linux::Cpus;
use latpath_net::Statistics;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A virtual machine: a process that runs a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Vm {
    /// Name of the guest according to libvirt, its program's command line, or its control group; otherwise the
    /// program's name and process ID.
    pub name: String,
    /// The owner of its process, e.g. `pod default/virt-launcher-a`, `unit relay.service`, or `VM guest` if it has its
    /// own scope.
    #[serde(default)]
    pub owner: Option<String>,
    /// Process ID.
    pub pid: u32,
    /// UUID of the guest, if set.
    pub uuid: Option<String>,
    /// Whether libvirt manages the guest, so that `virsh` accepts its name.
    #[serde(default)]
    pub libvirt: bool,
    /// Name of the executable, e.g. `qemu-system-x86_64`.
    pub program: String,
    /// QEMU's machine type, e.g. `pc-q35-7.2`.
    pub machine: Option<String>,
    /// Accelerator.
    pub accel: Accel,
    /// Number of vCPUs that are open in KVM or, if unknown, with which the VM was started; otherwise the number of vCPU
    /// threads.
    pub vcpus: Option<u32>,
    /// Memory with which the VM was started, bytes.
    pub memory_bytes: Option<u64>,
    /// Inode number of the process's network namespace; `None` if unreadable. A tap may be in another one.
    pub netns: Option<u32>,
    /// vsock context ID (CID) of the guest's vhost-vsock device.
    pub vsock_cid: Option<u32>,
    /// Number of open vhost-net devices, one per queue pair served by vhost.
    pub vhost_net: u32,
    /// Number of open vhost-vsock devices.
    pub vhost_vsock: u32,
    /// Host sides of its NICs.
    pub taps: Vec<Tap>,
    /// NICs served by another program in user space (vhost-user), without a tap.
    #[serde(default)]
    pub vhost_user: Vec<VhostUser>,
    /// PCI devices that the guest drives itself (VFIO).
    #[serde(default)]
    pub passthrough: Vec<Passthrough>,
    /// Its threads, including kernel threads that work only for it: main loop, vCPUs, vhost workers, others.
    pub threads: Vec<Thread>,
}

/// Accelerator: what executes the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The CPU, using KVM.
    Kvm,
    /// QEMU's emulation; its times say nothing about real machines.
    Tcg,
    /// Another accelerator, or unreadable.
    #[default]
    Unknown,
}

/// The host side of a guest's NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tap {
    /// Device name; `ifindex N` for a macvtap that was not found.
    pub device: String,
    /// Device index in its namespace; `None` if not found.
    pub ifindex: Option<u32>,
    /// Inode number of its namespace; `None` if not found.
    pub netns: Option<u32>,
    /// Tap or macvtap.
    pub kind: TapKind,
    /// MAC address of the guest's NIC, if known.
    pub guest_mac: Option<String>,
    /// Bridge of which the tap is a port.
    pub bridge: Option<Bridge>,
    /// Lower device of the macvtap.
    pub lower: Option<String>,
    /// Number of queues open in the guest's process.
    pub queues: u32,
    /// Whether vhost serves it, according to the command line; `None` if not specified there.
    pub vhost: Option<bool>,
    /// Maximum length of a queue, packets.
    pub tx_queue_len: Option<u32>,
    /// Packets for the guest that were dropped since the device's creation because a queue was full or had no reader.
    /// The kernel counts them as `tx_dropped` for a tap and as `rx_dropped` for a macvtap.
    pub dropped: Option<u64>,
}

impl Tap {
    /// Namespace and device index; `None` if not found.
    pub fn place(&self) -> Option<(u32, u32)> {
        self.netns.zip(self.ifindex)
    }
}

/// A NIC served by another program, which reads and writes the guest's memory directly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VhostUser {
    /// Path of the socket between QEMU and the program.
    pub socket: String,
    /// Whether QEMU listens on the socket, rather than the program.
    pub listens: bool,
    /// Number of queue pairs.
    pub queues: u32,
    /// MAC address of the guest's NIC, if known.
    pub guest_mac: Option<String>,
    /// The program at the other end; `None` if no program is connected, or this user may not see it.
    pub peer: Option<Peer>,
}

impl VhostUser {
    /// The program at the other end, for messages, e.g. `ovs-vswitchd (process 4711)`.
    pub fn served_by(&self) -> String {
        match &self.peer {
            Some(peer) => format!("{} (process {})", peer.program, peer.pid),
            None => "another program".into(),
        }
    }
}

/// The program at the other end of a vhost-user socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Process ID.
    pub pid: u32,
    /// Its name.
    pub program: String,
}

/// Kind of host side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TapKind {
    /// A tap (`/dev/net/tun`).
    #[default]
    Tap,
    /// A macvtap or ipvtap (`/dev/tapN`).
    Macvtap,
}

impl TapKind {
    /// Packets and bytes that the device counted to the guest, and those from the guest. A tap transmits to the guest;
    /// a macvtap receives for it, and transmits what the guest sends (drivers/net/macvlan.c).
    pub fn to_and_from_guest(self, counted: &Statistics) -> ((u64, u64), (u64, u64)) {
        let sent = (counted.tx_packets, counted.tx_bytes);
        let received = (counted.rx_packets, counted.rx_bytes);
        match self {
            Self::Tap => (sent, received),
            Self::Macvtap => (received, sent),
        }
    }
}

/// Bridge of a tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bridge {
    /// Name of the bridge; for Open vSwitch, the bridge according to its database, otherwise the datapath
    /// (`ovs-system`).
    pub name: String,
    /// `bridge`, `openvswitch`, or another kind of device with ports.
    pub kind: String,
}

/// A thread that works for the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Thread {
    /// Thread ID.
    pub tid: u32,
    /// Role.
    pub role: Role,
    /// Number of its vCPU, if known.
    pub vcpu: Option<u32>,
    /// Device of a vhost worker, if known: a tap, or `vsock`.
    pub serves: Option<String>,
    /// How its role was identified.
    pub found_by: FoundBy,
    /// Name of the thread.
    pub comm: String,
    /// Whether it is a kernel thread.
    pub kernel: bool,
    /// CPUs on which it may run.
    #[schemars(with = "String")]
    pub cpus_allowed: Cpus,
    /// CPU on which it last ran.
    pub cpu: u32,
    /// Scheduling policy.
    pub policy: Policy,
    /// Real-time priority: 1 to 99 for `fifo` and `rr`, otherwise 0.
    pub rt_priority: u32,
    /// Nice value, for the other policies.
    pub nice: i32,
    /// Which of its CPUs are excluded from scheduler load balancing: all, some or none.
    pub isolated: Isolated,
    /// Whether no other thread may run on its CPUs. Kernel threads do not count, except those that work for a guest.
    pub alone: bool,
}

/// What a thread does for its guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// QEMU's main loop: serves taps without vhost, the monitor and timers.
    MainLoop,
    /// Runs a vCPU.
    Vcpu,
    /// vhost worker: carries packets between the tap (or vsock) and the guest.
    Vhost,
    /// An I/O thread of QEMU or of io_uring.
    Io,
    /// A KVM helper: `kvm-pit`, `kvm-nx-lpage-recovery`.
    Kvm,
    /// Another thread of the process.
    #[default]
    Other,
}

impl Role {
    /// Name of the role in texts.
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

/// How a role was identified, most reliable first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FoundBy {
    /// By being the first thread of the process.
    FirstThread,
    /// By the system call that runs a vCPU (`ioctl(KVM_RUN)`).
    KvmRun,
    /// By KVM's debugfs.
    Debugfs,
    /// By time spent in a guest.
    GuestTime,
    /// By libvirt's status file.
    Libvirt,
    /// By the owner's process ID in the name of a kernel thread (`vhost-PID`, up to Linux 6.3).
    KernelThread,
    /// By the creating system call or the name of a kernel worker inside the process (since Linux 6.4).
    UserWorker,
    /// By its name only, which QEMU sets with `debug-threads=on`.
    Name,
    /// By none of these.
    #[default]
    Nothing,
}

impl FoundBy {
    /// Name of the method in texts.
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
    /// A policy not listed here.
    Unknown,
}

impl Policy {
    /// include/uapi/linux/sched.h
    pub fn from_number(number: u32) -> Self {
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

    /// Name as used by chrt and ps.
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

/// Isolation of a thread's CPUs (`isolcpus=`, or an isolated cpuset partition).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Isolated {
    /// All CPUs are isolated.
    All,
    /// Some CPUs are isolated.
    Some,
    /// No CPU is isolated.
    #[default]
    None,
}
