//! Events on the host, independent of their source.

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Identity of an eventfd: the same for the guest's kick and for its receiver.
pub type Eventfd = u64;

/// An event on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time in the source's clock, ns.
    pub t: Ns,
    /// The CPU.
    pub cpu: u32,
    /// The thread on that CPU; for a switch, the previous thread.
    pub pid: u32,
    /// Kind of event.
    pub what: EventKind,
}

/// The register that a guest writes to kick a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Doorbell {
    /// Whether the register is an I/O port of x86, rather than an address in memory.
    pub is_port: bool,
    /// The guest-physical address, or the port.
    pub address: u64,
    /// Value that the guest wrote: the queue's number if all queues share a register.
    pub value: u64,
}

/// The host's side of a guest's NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// Interface index.
    pub ifindex: u32,
    /// Network namespace of the index; 0 if the source does not report it.
    pub netns: u32,
}

/// Identity of an interrupt when it is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    /// A message-signalled interrupt: its data.
    Message(u64),
    /// An interrupt line: its number. The guest's handler reads the device's interrupt status.
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
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::FromGuest, Self::ToGuest];
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The CPU switches to another thread.
    Switch {
        /// The next thread; 0 for none.
        next: u32,
        /// Whether the previous thread goes to sleep.
        asleep: bool,
    },
    /// The thread on the CPU starts to wake another thread.
    Waking {
        /// The thread to wake, by its TID.
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
    /// User space or KVM signals an eventfd.
    Signal(Eventfd),
    /// User space reads an eventfd.
    Take(Eventfd),
    /// A vhost worker begins to serve a queue.
    Serve {
        /// The eventfd of the queue's kicks; 0 for none.
        kick: Eventfd,
        /// The eventfd of its interrupt; 0 for none.
        call: Eventfd,
        /// Direction of the queue's packets.
        direction: Direction,
    },
    /// KVM turns an eventfd's signal into an interrupt by itself.
    Irqfd(Eventfd),
    /// A packet for the guest reaches the tap.
    Arrive(Device),
    /// The server (a vhost worker, or QEMU) carries a packet.
    Packet {
        /// Direction of the packet.
        direction: Direction,
        /// The device, if the source reports it.
        device: Option<Device>,
    },
    /// An interrupt is raised in KVM.
    Raise(Line),
    /// A vCPU's interrupt controller accepts an interrupt.
    Accept {
        /// Interrupt vector.
        vector: u32,
    },
    /// The interrupt is posted: hardware delivers it without KVM.
    Posted {
        /// Interrupt vector.
        vector: u32,
    },
    /// KVM injects an interrupt into the guest that this thread runs.
    Inject {
        /// Interrupt vector.
        vector: u32,
    },
    /// The guest ends an interrupt's handling.
    Eoi {
        /// Interrupt vector.
        vector: u32,
    },
    /// Number of lost events of this CPU before this time.
    Lost(u64),
}
