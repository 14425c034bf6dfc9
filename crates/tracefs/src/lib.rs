//! The kernel's tracefs: where it is, also where it is hidden, and its named instances.
//!
//! An [`Instance`] records events into buffers of its own, takes marks and snapshots, is stopped and saved as text, and is
//! undone when it is closed, dropped, or, after a kill, by the next start. [`text`] reads the events of such text.

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
