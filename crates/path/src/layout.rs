//! Types shared with the kernel programs, generated from bpf/event.h.

/// Counts of missed events; bpf/event.h describes the fields.
pub use crate::skel::types::counts as Counts;
pub use crate::skel::types::instruction as Instruction;
pub(crate) use crate::skel::types::{code as Instructions, event as Event, trial as Trial};
use crate::skel::types::{name_short, selection, trial};

pub(crate) mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// Maximum number of packets per search.
pub const MAX_PACKETS: u32 = constants::MAX_PACKETS as u32;
pub(crate) use constants::{CAPTURE, MAX_CODE};

latpath_bpf::plain!(Event, Counts, Instructions, name_short, selection, trial);
