//! The kernel's tracefs: finds it, even if hidden, and uses named instances.
//!
//! An [`Instance`] records events into its own buffers, accepts marks, takes snapshots, and can be stopped and saved as
//! text. Its changes are undone when it is closed or dropped or, after a kill, by the next start. [`text`] parses the
//! events of saved text.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod error;
mod instance;
mod place;
mod save;
mod settings;
pub mod text;
mod undo;

pub use error::{Error, Result};
pub use instance::{Instance, Options, LONGEST_MARK};
pub use place::Tracefs;
pub use save::{snapshot_file, LostEvents, Saved, SavedFile};
pub use undo::Instances;
