//! Round trips of probes: an emitter sends, a reflector answers, and stamps divide every transaction into segments.
//!
//! ```text
//!   emitter                                              reflector
//!   T1 app ─ sched ─ driver ─ nic ═════ wire there ═════ nic ─ kernel ─ T2 app
//!                                                                        │ processing
//!   T4 app ────────── kernel ─ nic ═════ wire back ═════ nic ─ driver ─ sched ─ T3 app
//! ```
//!
//! docs/ping.md describes the clock of each stamp, the common timeline, and the format of a probe on the wire.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits
#![deny(unsafe_code)]

pub mod breach;
pub mod breach_context;
pub mod clocks;
pub mod document;
pub mod emit;
pub mod ethernet;
pub mod figures;
pub mod fixed_width;
mod in_the_way;
pub mod log;
mod nic_clock;
pub mod reflect;
pub mod sequenced;
pub mod session;
mod session_number;
pub mod table;
pub mod timeline;
pub mod transport;
pub mod turnaround;
pub mod udp;
pub mod wire;
pub mod xdp;

pub use latpath_model::round_trip as transaction;
pub use transaction::{Route, Segment, Source, Stamp, Stamps, Transaction};
