//! Options for an import.

use crate::clock::Offset;
use crate::source::{Format, Source};
use crate::trace::Trace;
use latpath_model::{Ns, StreamSpec};
use std::str::FromStr;

/// Options for an import.
#[derive(Clone, Debug)]
pub struct Options {
    /// The files, in the order in which packets pass their points: at least two, or one whose packets contain the times
    /// of their samples.
    pub sources: Vec<Source>,
    /// Format of all files; `None` to recognise the format of each by its first bytes.
    pub format: Option<Format>,
    /// The streams; empty for all of protocols whose frames name them.
    pub streams: Vec<StreamSpec>,
    /// Offsets of clocks from the first file's.
    pub offsets: Vec<Offset>,
    /// Requests to estimate offsets of machines.
    pub estimates: Vec<Estimate>,
    /// Traces of the machines' activity at the time of the packets.
    pub traces: Vec<Trace>,
    /// Offsets of the traces' clocks from those of their machines' packets.
    pub trace_offsets: Vec<Offset>,
    /// Maximum error of the first file's machine against UTC, ns, if known.
    pub clock_error: Option<Ns>,
    /// User-defined segments: `NAME=FROM..TO`.
    pub segments: Vec<String>,
    /// Threshold above which times are counted as late, ns.
    pub threshold: Ns,
    /// Time after which a packet counts as lost, ns.
    pub window: Ns,
}

impl Options {
    /// Imports all streams of these files with their clocks as they are, a threshold of 200 µs, and a window of 1 s.
    pub fn new(sources: Vec<Source>) -> Self {
        Self {
            sources,
            format: None,
            streams: Vec::new(),
            offsets: Vec::new(),
            estimates: Vec::new(),
            traces: Vec::new(),
            trace_offsets: Vec::new(),
            clock_error: None,
            segments: Vec::new(),
            threshold: 200_000,
            window: 1_000_000_000,
        }
    }
}

/// Maximum time that the fastest packets take to a machine, written `MACHINE=TIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Name of the machine.
    pub machine: String,
    /// Maximum time that the fastest packet in each 10 s takes from the first file's point to the machine's, ns.
    pub most_ns: Ns,
}

impl FromStr for Estimate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Offset { machine, ns, bound_ns, .. } = text.parse()?;
        match (ns, bound_ns) {
            (0.., None) => Ok(Self { machine, most_ns: ns }),
            _ => Err(format!("{text:?}: write MACHINE=TIME, what the fastest packets take at most, e.g. relay=60us")),
        }
    }
}
