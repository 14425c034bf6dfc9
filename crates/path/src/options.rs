//! Options of a search, and how it was attached.

use crate::pcap::Code;
use latpath_model::{Ns, StreamSpec};
use std::time::Duration;
/// Kinds of attachments; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum With {
    /// Tracepoints only.
    Tracepoints,
    /// Individual kprobes, only at some functions, because each takes long to attach.
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
    /// Streams whose packets are followed; if empty, only the filter chooses packets.
    pub streams: Vec<StreamSpec>,
    /// A pcap filter that packets must also match.
    pub code: Option<Code>,
    /// The device on which packets are chosen; `None` for any.
    pub device: Option<Device>,
    /// Number of packets to follow.
    pub count: u32,
    /// Kind of attachment; `None` for the best that this kernel supports.
    pub with: Option<With>,
    /// Maximum time since a packet's last event at which an otherwise unrelated skb with the same bytes is regarded as
    /// that packet, ns.
    pub same: Ns,
}

/// The device on which packets are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Inode number of its network namespace; `None` for devices with this name in any namespace.
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
    /// Names of the functions, unless all were attached to.
    pub functions_shown: Option<Vec<String>>,
    /// Number of tracepoints attached to.
    pub tracepoints: usize,
    /// Time until all attachments were made.
    pub took: Duration,
    /// Limits of the search on this machine, one line each.
    pub notes: Vec<String>,
}
