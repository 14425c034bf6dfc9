//! Captures as a trace for Perfetto: CPUs, threads, vCPUs and packets of host and guests on one timeline.
//!
//! [`Export`] writes captures in Perfetto's format. It keeps only names in memory and processes one capture at a time.
//! Scheduler, interrupt and softirq events are written in Perfetto's own types, so that its rows of CPUs and threads
//! show them and its queries work. Each guest is a separate machine. Late packets have rows of latpath's own, with
//! their segments and causes, and arrows to the threads and CPUs that handled them. All times are on the host's
//! timeline. docs/export.md describes the rows.

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
