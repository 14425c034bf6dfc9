//! A virtual machine with its taps and threads.

use crate::passthrough::Passthrough;
use latpath_linux::Cpus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A virtual machine: a process that runs a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Vm {
    /// Name of the guest in libvirt, its program's command line, or its control group; else the program's name and
    /// process number.
    pub name: String,
    /// The owner of its process: `pod default/virt-launcher-a`, `unit relay.service`, `VM guest` in a scope of its own.
    #[serde(default)]
    pub owner: Option<String>,
    /// Process number.
    pub pid: u32,
    /// UUID of the guest, if set.
    pub uuid: Option<String>,
    /// Whether libvirt manages the guest, so that `virsh` accepts its name.
    #[serde(default)]
    pub libvirt: bool,
    /// Name of the executable: `qemu-system-x86_64`.
    pub program: String,
    /// QEMU's machine type: `pc-q35-7.2`.
    pub machine: Option<String>,
    /// Accelerator.
    pub accel: Accel,
    /// Number of vCPUs at the start, or in KVM.
    pub vcpus: Option<u32>,
    /// Memory at the start, bytes.
    pub memory_bytes: Option<u64>,
    /// Inode number of the process's network namespace; `None` if unreadable. A tap may be in another one.
    pub netns: Option<u32>,
    /// Context identifier of the guest on vhost-vsock.
    pub vsock_cid: Option<u32>,
    /// Number of open vhost-net devices: one per queue pair that vhost serves.
    pub vhost_net: u32,
    /// Number of open vhost-vsock devices.
    pub vhost_vsock: u32,
    /// Host sides of its NICs.
    pub taps: Vec<Tap>,
    /// NICs that another program serves in user space (vhost-user), without a tap.
    #[serde(default)]
    pub vhost_user: Vec<VhostUser>,
    /// PCI devices that the guest drives by itself (VFIO).
    #[serde(default)]
    pub passthrough: Vec<Passthrough>,
    /// Its threads, and kernel threads that work for it alone: main loop, vCPUs, vhost workers, others.
    pub threads: Vec<Thread>,
}

/// Accelerator: the executor of the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The CPU, by KVM.
    Kvm,
    /// QEMU's emulation; its times do not apply to real machines.
    Tcg,
    /// Another one, or unreadable.
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
    /// Bridge of which it is a port.
    pub bridge: Option<Bridge>,
    /// Lower device of a macvtap.
    pub lower: Option<String>,
    /// Number of queues open in the guest's process.
    pub queues: u32,
    /// Whether vhost serves it, from the command line; `None` if not given there.
    pub vhost: Option<bool>,
    /// Capacity of a queue, packets.
    pub tx_queue_len: Option<u32>,
    /// Packets for the guest dropped since the device's creation, because of a full queue or a missing reader. The
    /// kernel counts them as `tx_dropped` of a tap and `rx_dropped` of a macvtap.
    pub dropped: Option<u64>,
}

impl Tap {
    /// Namespace and device index; `None` if not found.
    pub fn place(&self) -> Option<(u32, u32)> {
        self.netns.zip(self.ifindex)
    }
}

/// A NIC that another program serves: it reads and writes the guest's memory itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VhostUser {
    /// Path of the socket between QEMU and the program.
    pub socket: String,
    /// Whether QEMU listens there, and not the program.
    pub listens: bool,
    /// Number of queue pairs.
    pub queues: u32,
    /// MAC address of the guest's NIC, if known.
    pub guest_mac: Option<String>,
    /// The program at the other end; `None` if none is connected, or this user may not see it.
    pub peer: Option<Peer>,
}

impl VhostUser {
    /// The program at the other end, for texts: `ovs-vswitchd (process 4711)`.
    pub fn served_by(&self) -> String {
        match &self.peer {
            Some(peer) => format!("{} (process {})", peer.program, peer.pid),
            None => "another program".into(),
        }
    }
}

/// The program at the other end of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Process number.
    pub pid: u32,
    /// Its name.
    pub program: String,
}

/// Kind of the host side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TapKind {
    /// A tap (`/dev/net/tun`).
    #[default]
    Tap,
    /// A macvtap or ipvtap (`/dev/tapN`).
    Macvtap,
}

/// Bridge of a tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bridge {
    /// Name of the bridge; for Open vSwitch the bridge from its database, else the datapath (`ovs-system`).
    pub name: String,
    /// `bridge`, `openvswitch`, or another kind of device with ports.
    pub kind: String,
}

/// A thread that works for the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Thread {
    /// Thread number.
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
    /// CPU on which it ran last.
    pub cpu: u32,
    /// Scheduling policy.
    pub policy: Policy,
    /// Real-time priority: 1 to 99 for `fifo` and `rr`, else 0.
    pub rt_priority: u32,
    /// Nice value, for other policies.
    pub nice: i32,
    /// Whether its CPUs are without load balancing.
    pub isolated: Isolated,
    /// Whether no other thread may run on its CPUs, kernel threads aside.
    pub alone: bool,
}

/// Role of a thread for its guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// QEMU's main loop: taps without vhost, monitor, timers.
    MainLoop,
    /// Runs a vCPU.
    Vcpu,
    /// vhost worker: carries packets between tap (or vsock) and guest.
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
    /// The role's name in texts.
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
    /// By the owner's number in the name of a kernel thread (`vhost-PID`, up to Linux 6.3).
    KernelThread,
    /// By creating system call or name of a kernel worker inside the process (from Linux 6.4 on).
    UserWorker,
    /// By its name alone, which QEMU sets with `debug-threads=on`.
    Name,
    /// By none of these.
    #[default]
    Nothing,
}

impl FoundBy {
    /// The method's name in texts.
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

    /// Name as in chrt and ps.
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
