//! [`Instrument`]s: each is attached for a window, then read, and returns its figures in an
//! [`Observation`](latpath_model::Observation). The commands, the study, the check of this machine's capabilities and
//! the agents in guests all use the same table of instruments.
//!
//! This crate does not print.
//!
//! ```no_run
//! use latpath_observe::{Exits, Instrument, Scope};
//! use std::sync::atomic::AtomicBool;
//!
//! let mut exits = Exits::start(Scope::of(&[])?, Default::default())?;
//! for _ in 0..200 {
//!     std::thread::sleep(std::time::Duration::from_millis(50));
//!     exits.step();
//! }
//! let observation = exits.end(&AtomicBool::new(false), || ());
//! println!("{} VMs in {} ns", observation.figures.vms.len(), observation.window_ns);
//! # Ok::<(), latpath_observe::StartError>(())
//! ```
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

pub mod exits;
mod in_guest;
mod instrument;
mod ladder;
pub mod profile;
pub mod queues;
mod scope;
pub mod study;
mod workload;

pub use exits::Exits;
pub use in_guest::{figures_add_up, observer, InGuest, MAX_OF_GUEST};
pub use instrument::{instrument, Entry, Instrument, Needs, StartError, INSTRUMENTS};
pub use ladder::{Ladder, LadderOptions};
pub use profile::{ProfileOptions, Profiler};
pub use queues::{Queues, QueuesOptions};
pub use scope::Scope;
pub use workload::{pass, End, Workload};
