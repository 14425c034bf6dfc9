//! What the reader must know of an interval beside its cause: programs match the variant, people read its text.

use crate::kernel_time::Reason;
use latpath_model::Ns;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It is the sum of this many.
    Summed(usize),
    /// Two machines' times meet here, and the difference of their clocks is known only as well as this, in ns.
    Joined(Ns),
    /// A VM exit's reason, by its name.
    ExitReason(&'static str),
    /// A thread waited for this, in this function of the kernel.
    WaitedFor(&'static Reason, String),
    /// A thread waited for block I/O while a request was released that was over its control group's limit.
    ThrottledIo,
    /// A thread had to free memory.
    Reclaims,
    /// A thread met this many page faults at least.
    PageFaults(u64),
    /// What else there is to say.
    Text(String),
}

impl Note {
    /// Whether it says how its times were made, and nothing of what happened.
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
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<T: Into<String>> From<T> for Note {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}
