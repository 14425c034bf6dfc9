//! Where CPUs spend their time, by call chain; a host's and its guests' in one profile.
//!
//! Times are exact: the scheduler's switches say how long each thread ran, so that all threads and idle CPUs together
//! have had the number of CPUs times the wall clock. Samples, some 99 a second on each CPU, say how a thread's time
//! is shared among its call chains.
//!
//! A [`Recorder`] runs on the host and, by the agent, in guests. It gives [`Slice`]s, which [`Samples`] adds up.
//! [`weigh`] makes one [`Profile`] of a host's samples and those of its guests: a vCPU's thread has spent its guest
//! time in what the guest says it did then.
//!
//! Times are in ns.

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

pub use causality::{Absence, CausalityCheck, Moment};
pub use debug_files::{has_debug_files, name_by_debug_files, FETCH_WITHIN};
pub use folded::{folded_name, BadProfile};
pub use model::{spent, Frame, GuestHeader, Header, Kind, Profile, Spent, NOT_SAMPLED};
pub use reader::qemu_version;
pub use recorder::Recorder;
pub use sampler::{CallFigures, Options, StartError, FREQUENCY};
pub use samples::{Samples, TooMuch};
pub use slice::*;
pub use symbols::{is_named, UNKNOWN};
pub use weigh::{is_of_vm, weigh, Guest, GuestTime};
