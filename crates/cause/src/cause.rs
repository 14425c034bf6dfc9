//! The causes, by stable names.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! causes {
    ($($variant:ident $id:literal $meaning:literal)*) => {
        /// What held a packet. Names and meanings do not change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Cause {
            $(#[doc = $meaning] $variant,)*
        }

        impl Cause {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in files and options.
            pub fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)* }
            }

            /// What it means, in one line.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

causes! {
    Work "work" "Executor had to act ran, and did what is to be done for the packet."
    Interrupted "interrupted" "An interrupt, a softirq or an NMI took the CPU from who had to act."
    WaitingForCpu "waiting-for-cpu" "A thread was ready, and its CPU ran others."
    IdleExit "idle-exit" "A thread was ready, or a CPU was called, and that CPU came out of an idle state."
    Throttled "throttled" "A control group had used up its CPU time."
    Stopped "stopped" "A thread was stopped by a signal, a debugger or the freezer."
    Blocked "blocked" "A thread waited uninterruptibly: for a lock, a page or a device."
    SoftirqWait "softirq-wait" "A softirq was raised and had not begun."
    IrqWait "irq-wait" "An interrupt was raised and its handler had not begun."
    QueuedBehind "queued-behind" "Packets that came earlier were served first."
    PollInterval "poll-interval" "The reader slept for a time of its own choice."
    Upcall "upcall" "ovs-vswitchd worked on the packet, since no flow in the kernel matched it."
    QdiscHeld "qdisc-held" "A queueing discipline held the packet until a time."
    VmExit "vm-exit" "The vCPU had left its guest."
    VcpuPreempted "vcpu-preempted" "The vCPU was ready, and its CPU ran others."
    VcpuHalted "vcpu-halted" "The vCPU had halted, until something woke it."
    IrqInjection "irq-injection" "An interrupt for the guest was pending and had not been taken."
    Device "device" "A device or a wire had it, and no CPU that is recorded."
    Unexplained "unexplained" "No rule covers it, or the record lacks what would tell."
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}
