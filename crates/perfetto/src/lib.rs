//! Captures as a trace for Perfetto: CPUs, threads, vCPUs and packets of host and guests on one timeline.
//!
//! [`Export`] writes packets of Perfetto's format one after another; nothing but names is kept in memory, a capture at a time. What
//! the kernels' schedulers, interrupts and softirqs did is written as the events that Perfetto knows: its own rows of CPUs and
//! threads show it, and its queries work. Each guest is a machine of its own. Late packets have rows of latpath's own, with their
//! segments and what held them, and arrows to the threads and CPUs that had them. All times are on the host's timeline.
//! docs/export.md says what is seen where.

mod details;
mod export;
mod journey;
mod kernel;
mod profile;
pub mod proto;
mod thread_names;
mod tracks;
mod writer;

pub use export::{Export, Summary};
pub use kernel::Written;
pub use profile::{write_profile, SampledMachine};
