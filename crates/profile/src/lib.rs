//! CPU time by call chain, of a host and its guests in one profile.
//!
//! Times are exact: the scheduler's switches give the run time of each thread, so that the times of all threads and
//! idle CPUs add up to the number of CPUs times the wall clock. Samples, about 99 per second on each CPU, give the
//! share of each call chain in a thread's time.
//!
//! A [`Recorder`] runs on the host and, through the agent, in guests. It produces [`Slice`]s, which [`Samples`]
//! accumulates. [`weigh`] combines the samples of a host and its guests into one [`Profile`]: it distributes the guest
//! time of a vCPU's thread among the call chains that the guest reports for it.
//!
//! Times are in ns.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod calls;
mod causality;
mod code;
mod debug_files;
mod debuginfod;
mod events;
mod folded;
mod layout;
mod model;
mod reader;
mod recorder;
mod sampler;
mod samples;
mod slice;
mod symbols;
mod weigh;
mod skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/profile.skel.rs"));
}

pub use calls::CallFigures;
pub use causality::{Absence, CausalityCheck, Moment};
pub use debug_files::{has_debug_files, name_by_debug_files, FETCH_WITHIN};
pub use folded::{folded_name, BadProfile};
pub use model::{spent, Frame, GuestHeader, Header, Kind, Profile, Spent, Window, NOT_SAMPLED};
pub use reader::qemu_version;
pub use recorder::Recorder;
pub use sampler::{Options, StartError, FREQUENCY};
pub use samples::{Samples, TooMuch};
pub use slice::*;
pub use symbols::{is_named, UNKNOWN};
pub use weigh::{is_of_vm, weigh, Guest, GuestTime};
