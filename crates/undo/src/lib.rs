//! The journal of latpath's changes on this machine: after a kill, the next latpath undoes the remaining changes.
//!
//! A directory, `/run/latpath/journal`, contains one file per subject: a tracefs instance, a NIC, a lab. The first line
//! names the processes that need the change, the boot, the [`Lifetime`] and the reason; each further line is one
//! [`Undo::Step`], written and synced *before* the change that it describes. An entry names a [`Kind`] and a subject,
//! which is checked by the code for that kind. It never names a file to write: an undoer finds its targets itself.
//!
//! ```no_run
//! use latpath_undo::{Journal, Kind, Lifetime, Outcome, Undo};
//!
//! struct Brightness;
//!
//! impl Undo for Brightness {
//!     const KIND: Kind = Kind::Tracefs;
//!     type Step = u32;
//!     fn undo(&self, subject: &str, before: &[u32]) -> Outcome {
//!         // Check the subject, find the target, set it to before[0].
//!         Outcome::undone(format!("{subject}: put back to {}", before[0]))
//!     }
//! }
//!
//! let turn = Journal::of_this_machine().turn()?;
//! let mut entry = turn.begin::<Brightness>("panel", Lifetime::Process, "a darker picture")?;
//! entry.add_within(&turn, 70)?;
//! // Set it to 10.
//! drop(turn);
//! entry.leave(&Brightness)?;
//! # Ok::<(), latpath_undo::Error>(())
//! ```
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod entry;
mod error;
mod journal;
mod kinds;
mod owner;
mod record;

pub use entry::Entry;
pub use error::{Error, Result};
pub use journal::{Journal, LockedJournal};
pub use kinds::{Kind, Outcome, Undo, Undoer};
pub use owner::Owner;
pub use record::{Header, Lifetime};
