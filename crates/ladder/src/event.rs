//! What happened on the host, whichever source says it.

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of an eventfd: the same for the guest's kick and for whoever takes it.
pub type Eventfd = u64;

/// Something that happened on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in the source's clock.
    pub t: Ns,
    pub cpu: u32,
    /// The thread on that CPU; of a switch, the one that leaves.
    pub pid: u32,
    pub what: What,
}

/// The register that a guest writes to kick a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Doorbell {
    /// A port of x86, not an address in memory.
    pub is_port: bool,
    /// The guest-physical address, or the port.
    pub address: u64,
    /// What the guest wrote: the queue's number, where all queues share a register.
    pub value: u64,
}

/// The host's side of a guest's NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    pub ifindex: u32,
    /// The network namespace in which that is its index; 0 where the source does not say it.
    pub netns: u32,
}

/// How an interrupt is named when it is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    /// A message-signalled interrupt: its data.
    Message(u64),
    /// An interrupt line: its number. The guest's handler reads the device to learn why it was raised.
    Wire(u64),
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the guest to the host (the guest's TX queue).
    FromGuest,
    /// From the host to the guest (the guest's RX queue).
    ToGuest,
}

impl Direction {
    pub const ALL: [Self; 2] = [Self::FromGuest, Self::ToGuest];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The CPU goes on to another thread.
    Switch {
        /// That thread, 0 for none.
        next: u32,
        /// The thread that leaves sleeps from now on.
        asleep: bool,
    },
    /// The thread on the CPU begins to wake another one.
    Waking {
        pid: u32,
    },
    /// The vCPU leaves the guest, for a reason ([`crate::Ladder::reason`]).
    Exit(u16),
    /// The vCPU enters the guest.
    Entry,
    /// The guest wrote to a device's register.
    Write(Doorbell),
    /// The guest reads a device's register.
    Read,
    Signal(Eventfd),
    /// User space takes the signal of an eventfd.
    Take(Eventfd),
    /// A vhost worker turns to a queue.
    Serve {
        /// The eventfd of the queue's kicks; 0 for none.
        kick: Eventfd,
        /// The eventfd of its interrupt; 0 for none.
        call: Eventfd,
        direction: Direction,
    },
    /// KVM makes an interrupt of an eventfd's signal by itself.
    Irqfd(Eventfd),
    /// A packet is handed to the tap for the guest.
    Arrive(Device),
    /// The server (vhost's worker, or QEMU) carries a packet.
    Packet {
        direction: Direction,
        /// On this device, where the source says it.
        device: Option<Device>,
    },
    /// An interrupt is raised in KVM.
    Raise(Line),
    /// A vCPU's interrupt controller accepts an interrupt.
    Accept {
        vector: u32,
    },
    /// The interrupt is posted: hardware delivers it without KVM.
    Posted {
        vector: u32,
    },
    /// KVM injects an interrupt into the guest that this thread runs.
    Inject {
        vector: u32,
    },
    /// The guest ends an interrupt's handling.
    Eoi {
        vector: u32,
    },
    /// Number of events of this CPU that are missing before this time.
    Lost(u64),
}
