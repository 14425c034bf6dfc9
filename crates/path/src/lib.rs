//! Follows single packets through every kernel function that handles them.
//!
//! [`Search::start`] attaches programs (bpf/) to the tracepoints that all packets pass, where packets are chosen by
//! their bytes, and to the functions that take a packet, where the chosen ones are followed. The result for each packet
//! is a [`Packet`]; [`paths`] groups the packets by path.

mod attach;
mod btf;
mod devices;
pub mod document;
mod functions;
mod layout;
mod links;
mod names;
mod options;
mod packet;
mod pcap;
mod search;
mod skel {
    #![allow(unused_imports, missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/path.skel.rs"));
}
mod summary;
mod tracepoints;
pub mod try_filter;

pub use attach::{best, SearchError};
pub use devices::{find_device, NoDevice};
pub use document::{FunctionsDocument, PathDocument};
pub use functions::Function;
pub use layout::{Counts, MAX_PACKETS};
pub use options::{Device, How, Options, With};
pub use packet::{Packet, Step, StepKind};
pub use pcap::{compile, BadExpression, Code, CompileError, Instruction, Library};
pub use search::{Remains, Search};
pub use summary::{paths, points, Hop, Path, Stage};

/// The traceable functions that take a packet, by address.
pub fn functions() -> Vec<Function> {
    functions::traceable().functions
}
