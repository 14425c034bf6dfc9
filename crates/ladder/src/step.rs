//! Steps and variants of transfers.

use crate::event::Direction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A step of a transfer. A rung is the time from the previous observed step to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The vCPU leaves the guest to kick, or the packet reaches the tap.
    Begin,
    /// The server (a vhost worker, or a QEMU thread) is woken.
    #[serde(rename = "server_woken")]
    Woken,
    /// The server runs.
    #[serde(rename = "server_runs")]
    Runs,
    /// The server carries the packet through the tap.
    Packet,
    /// The vhost worker wakes QEMU, which relays the interrupt.
    RelayWoken,
    /// QEMU runs.
    RelayRuns,
    /// The interrupt is raised in KVM.
    #[serde(rename = "interrupt_raised")]
    Raised,
    /// Hardware delivers the interrupt (APICv, AVIC), invisibly to KVM if the vCPU is in its guest.
    #[serde(rename = "interrupt_posted")]
    Posted,
    /// The vCPU leaves the guest to take the interrupt, or runs after sleeping.
    #[serde(rename = "vcpu_reached")]
    Reached,
    /// The vCPU that was asleep enters the guest, where hardware delivers the posted interrupt.
    #[serde(rename = "vcpu_enters")]
    Entered,
    /// KVM injects the interrupt.
    #[serde(rename = "interrupt_injected")]
    Injected,
    /// The guest's handler has read the device's interrupt status, or ended the interrupt.
    #[serde(rename = "guest_handler")]
    Handled,
}

impl Step {
    /// All steps, in order of occurrence.
    pub const ALL: [Self; 12] = [
        Self::Begin,
        Self::Woken,
        Self::Runs,
        Self::Packet,
        Self::RelayWoken,
        Self::RelayRuns,
        Self::Raised,
        Self::Posted,
        Self::Reached,
        Self::Entered,
        Self::Injected,
        Self::Handled,
    ];
}

/// Means by which a packet and its interrupt are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// A: QEMU carries the packet and raises the interrupt.
    NoVhost,
    /// B: vhost carries the packet, and QEMU relays the interrupt (virtio-mmio, INTx).
    #[serde(rename = "vhost_relayed")]
    Relayed,
    /// C: vhost carries the packet, and KVM turns its signal into the interrupt (irqfd, MSI).
    #[serde(rename = "vhost_irqfd")]
    Irqfd,
    /// D: like C, but hardware delivers the interrupt (APICv, AVIC).
    #[serde(rename = "vhost_posted")]
    Posted,
    /// No interrupt was raised: the guest had disabled it.
    NoInterrupt,
}

impl Variant {
    /// Description of the variant.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoVhost => "no vhost",
            Self::Relayed => "vhost, interrupts relayed by QEMU",
            Self::Irqfd => "vhost, interrupts by irqfd",
            Self::Posted => "vhost, interrupts posted",
            Self::NoInterrupt => "no interrupt",
        }
    }
}

impl Step {
    /// Description of the step, independent of the server.
    pub fn words_of_any(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Woken, _) => "vhost's worker or QEMU is woken",
            (Self::Runs, _) => "it runs",
            (Self::Packet, Direction::FromGuest) => "it hands the packet to the tap",
            (Self::Packet, Direction::ToGuest) => "it takes the packet off the tap",
            (same, direction) => same.words(direction, true),
        }
    }

    /// Description of the step, for one kind of server.
    pub fn words(self, direction: Direction, by_vhost: bool) -> &'static str {
        match (self, direction, by_vhost) {
            (Self::Begin, Direction::FromGuest, _) => "the guest kicks: the vCPU leaves the guest",
            (Self::Begin, Direction::ToGuest, _) => "the packet is handed to the tap",
            (Self::Woken, _, true) => "vhost's worker is woken",
            (Self::Woken, _, false) => "QEMU is woken",
            (Self::Runs, _, true) => "vhost's worker runs",
            (Self::Runs, _, false) => "QEMU runs",
            (Self::Packet, Direction::FromGuest, true) => "vhost hands the packet to the tap",
            (Self::Packet, Direction::FromGuest, false) => "QEMU hands the packet to the tap",
            (Self::Packet, Direction::ToGuest, true) => "vhost takes the packet off the tap",
            (Self::Packet, Direction::ToGuest, false) => "QEMU takes the packet off the tap",
            (Self::RelayWoken, ..) => "QEMU is woken to relay the interrupt",
            (Self::RelayRuns, ..) => "QEMU runs",
            (Self::Raised, ..) => "the interrupt is raised",
            (Self::Posted, ..) => "the interrupt is posted to the vCPU",
            (Self::Reached, ..) => "the vCPU runs, or leaves the guest",
            (Self::Entered, ..) => "the vCPU enters the guest",
            (Self::Injected, ..) => "the interrupt is injected",
            (Self::Handled, ..) => "the guest's handler reads or ends it",
        }
    }
}
