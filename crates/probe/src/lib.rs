//! The probe: kernel programs that turn packets into sightings.
//!
//! [`Probe::attach`] loads the programs (bpf/) for a set of streams and attaches them to the kernel's tracepoints. It
//! is a [`latpath_model::Source`] of sightings.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod attach;
mod hooks;
mod layout;
mod nic_times;
mod points;
mod probe;
mod readers;
mod remarks;
mod ring;
mod send_times;
mod taps;
mod tx_done;
mod skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/probe.skel.rs"));
}

pub use attach::{Accept, AttachError, Options};
pub use hooks::lacks;
pub use layout::RECORD_BYTES;
pub use probe::Probe;
pub use remarks::{Remark, RemarkKind};
