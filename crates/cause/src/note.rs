//! Notes on intervals: as variants for programs, as text for people.

use crate::kernel_time::Reason;
use crate::NoFlow;
use latpath_model::Ns;
use std::fmt;

/// A note on an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The interval is the sum of this many intervals.
    Summed(usize),
    /// The times of two machines meet in the interval; error bound of the difference of their clocks, ns.
    Joined(Ns),
    /// Name of a VM exit reason.
    ExitReason(&'static str),
    /// Why a thread waited, and the kernel function in which it waited.
    WaitedFor(&'static Reason, String),
    /// A thread waited for block I/O, and during this time the kernel released a request that exceeded its control
    /// group's limit.
    ThrottledIo,
    /// A thread was in direct reclaim.
    Reclaims,
    /// A thread had at least this many page faults.
    PageFaults(u64),
    /// Why Open vSwitch had no flow for the packet.
    NoFlow(NoFlow),
    /// Any other text.
    Text(String),
}

impl Note {
    /// Whether the note is about the measurement of the times, not about events.
    pub fn is_of_times(&self) -> bool {
        matches!(self, Self::Summed(_) | Self::Joined(_))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Summed(times) => write!(f, "{times} times, put together"),
            Self::Joined(bound) => write!(f, "joined: two machines' clocks are known to ±{bound} ns"),
            Self::ExitReason(name) => f.write_str(name),
            Self::WaitedFor(reason, function) => write!(f, "it waited for {}, in {function}", reason.what),
            Self::ThrottledIo => {
                f.write_str("it waited for block I/O, and a control group's limit of that held requests")
            }
            Self::Reclaims => f.write_str("it had to free memory before it got some"),
            Self::PageFaults(count) => write!(f, "{count} page faults or more"),
            Self::NoFlow(reason) => f.write_str(reason.clause()),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<T: Into<String>> From<T> for Note {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}
