//! Captures as a trace for Perfetto: CPUs, threads, vCPUs and packets of host and guests on one timeline.
//!
//! [`Export`] writes packets in Perfetto's format; it only keeps names in memory, one capture at a time. Scheduler,
//! interrupt and softirq events are written in Perfetto's own types: its rows of CPUs and threads show them, and its
//! queries work. Each guest is a separate machine. Late packets have latpath's rows, with their segments and causes,
//! and arrows to the threads and CPUs that handled them. All times are on the host's timeline. docs/export.md describes
//! the rows.

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
