//! What the user asks for.

use crate::clock::Offset;
use crate::source::{Format, Source};
use crate::trace::Trace;
use latpath_model::{Ns, StreamSpec};
use std::str::FromStr;

#[derive(Clone, Debug)]
pub struct Options {
    /// Two files or more, or one whose packets say when they were sampled, in the order in which packets pass their points.
    pub sources: Vec<Source>,
    /// The format of all files, instead of what their first bytes say.
    pub format: Option<Format>,
    /// The streams; empty for all of protocols whose frames name them.
    pub streams: Vec<StreamSpec>,
    /// How far clocks are ahead of the first file's.
    pub offsets: Vec<Offset>,
    /// Machines whose offsets are estimated.
    pub estimates: Vec<Estimate>,
    /// Traces of what the machines did in that time.
    pub traces: Vec<Trace>,
    /// How far a trace's clock is ahead of that of its machine's packets.
    pub trace_offsets: Vec<Offset>,
    /// How far the clock of the first file's machine is off UTC at most, where that is known.
    pub clock_error: Option<Ns>,
    /// Segments that the user named: `NAME=FROM..TO`.
    pub segments: Vec<String>,
    /// Times over this are counted.
    pub threshold: Ns,
    /// A packet that takes longer than this counts as lost.
    pub window: Ns,
}

impl Options {
    /// All streams of these files, whose clocks are taken as they are; packets over 200 µs are counted, and after 1 s one is lost.
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

/// How long the fastest packets to a machine take at most, written `MACHINE=TIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    pub machine: String,
    /// What the fastest packet of each 10 s takes at most, from the first file's point to the machine's.
    pub most_ns: Ns,
}

impl FromStr for Estimate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Offset { machine, ns, bound_ns, .. } = text.parse()?;
        match (ns, bound_ns) {
            (0.., None) => Ok(Self { machine, most_ns: ns }),
            _ => Err(format!("{text:?}: write MACHINE=TIME, what the fastest packets take at most, as relay=60us")),
        }
    }
}
