//! What to search for, and how it was attached.

use crate::pcap::Code;
use latpath_model::{Ns, StreamSpec};
use std::time::Duration;
/// Kinds of places that programs stand at; each has those before it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum With {
    Tracepoints,
    /// Single kprobes: at some functions, because each takes its time.
    Kprobes,
    /// One attachment to all functions (Linux 5.18, CONFIG_FPROBE).
    KprobeMulti,
}

impl With {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracepoints => "tracepoints",
            Self::Kprobes => "kprobes",
            Self::KprobeMulti => "kprobe-multi",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Streams whose packets are followed; with none, the filter alone chooses.
    pub streams: Vec<StreamSpec>,
    /// A pcap filter that packets must pass as well.
    pub code: Option<Code>,
    /// The device on which packets are chosen; with none, any.
    pub device: Option<Device>,
    /// Packets to follow.
    pub count: u32,
    /// What to attach; with none, the best that this kernel has.
    pub with: Option<With>,
    /// An skb that nothing ties to a packet is that packet if it has the same bytes within this time after the packet was seen
    /// last.
    pub same: Ns,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// Inode number of its network namespace; with none, devices of this name in all.
    pub netns: Option<u32>,
}

/// How and to what the programs are attached.
#[derive(Clone, Debug)]
pub struct How {
    /// What kind of places.
    pub with: With,
    pub functions: usize,
    /// Kernel functions that could have been attached to.
    pub functions_known: usize,
    /// Names of the functions, where they are not all.
    pub functions_shown: Option<Vec<String>>,
    pub tracepoints: usize,
    /// Time from the beginning until all were attached.
    pub took: Duration,
    /// What cannot be shown here, and why: a line each.
    pub notes: Vec<String>,
}
