//! Options of a search, and how it was attached.

use crate::pcap::Code;
use latpath_model::{Ns, StreamSpec};
use std::time::Duration;
/// Kinds of attachments; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum With {
    /// Tracepoints only.
    Tracepoints,
    /// Single kprobes, at some functions only, because each takes long to attach.
    Kprobes,
    /// One attachment to all functions (Linux 5.18, CONFIG_FPROBE).
    KprobeMulti,
}

impl With {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracepoints => "tracepoints",
            Self::Kprobes => "kprobes",
            Self::KprobeMulti => "kprobe-multi",
        }
    }
}

/// Options of a search.
#[derive(Clone, Debug)]
pub struct Options {
    /// Streams whose packets are followed; if empty, only the filter chooses.
    pub streams: Vec<StreamSpec>,
    /// A pcap filter that packets must also match.
    pub code: Option<Code>,
    /// The device on which packets are chosen; `None` for any.
    pub device: Option<Device>,
    /// Number of packets to follow.
    pub count: u32,
    /// Kind of attachment; `None` for the best that this kernel supports.
    pub with: Option<With>,
    /// Maximum time after a packet's last event at which an unrelated skb with the same bytes counts as that packet,
    /// ns.
    pub same: Ns,
}

/// The device on which packets are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Inode number of its network namespace; `None` for devices of this name in any.
    pub netns: Option<u32>,
}

/// How the programs were attached.
#[derive(Clone, Debug)]
pub struct How {
    /// Kind of attachment.
    pub with: With,
    /// Number of functions attached to.
    pub functions: usize,
    /// Number of functions that could have been attached to.
    pub functions_known: usize,
    /// Names of the functions, if they are not all.
    pub functions_shown: Option<Vec<String>>,
    /// Number of tracepoints attached to.
    pub tracepoints: usize,
    /// Time until all were attached.
    pub took: Duration,
    /// Limits of the search on this machine, one line each.
    pub notes: Vec<String>,
}
