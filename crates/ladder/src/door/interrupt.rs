//! Interrupts on their way from a queue's server to the vCPU that takes them.

use super::Pending;
use latpath_model::{Ns, PointId};

/// Identity of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum QueueKey {
    /// A queue of vhost, by the eventfd of its interrupt.
    Call(u32),
    /// A queue of a QEMU thread, by the thread and the point of its tap.
    Tap(u32, PointId),
}

/// Identity of an interrupt that a QEMU thread raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Message(u64),
    Wire(u32),
}

/// Progress of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A vhost worker has signalled this eventfd.
    Signalled(u32),
    /// A QEMU thread has read the eventfd and will raise the interrupt, unless the interrupt line is already high.
    Relayed,
    Raised,
    /// Hardware delivers it.
    Posted,
    /// A vCPU thread has injected it, and will enter the guest.
    Injected(u32),
}

/// An interrupt that no vCPU has taken.
#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    pub stage: Stage,
    pub queue: QueueKey,
    pub process: Option<u32>,
    /// The thread that raises it.
    pub raiser: u32,
    pub line: Option<Line>,
    pub vector: Option<u32>,
    /// The vCPU that accepted it, by its number in the virtual machine.
    pub vcpu: Option<u32>,
    /// Time of its first event.
    pub since: Ns,
    /// Packets of which it notifies the guest.
    pub packets: Vec<Pending>,
}

impl Interrupt {
    /// Whether KVM has the interrupt.
    pub fn is_raised(&self) -> bool {
        !matches!(self.stage, Stage::Signalled(_) | Stage::Relayed)
    }
}
