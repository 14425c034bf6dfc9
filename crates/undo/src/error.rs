//! Why the journal could not be used.

use std::{io, path::PathBuf};

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its directory cannot be made, or belongs to another user.
    #[error("{}: {source}; changes of this machine are noted there, to be undone after a kill", path.display())]
    Folder {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process keeps the journal locked.
    #[error("{}: another process has locked it for {seconds} s (fuser names the process)", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// How long this process has waited.
        seconds: u64,
    },
    /// An entry cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Its file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// An entry that latpath did not write, or that was damaged since.
    #[error("{}: damaged ({why}); nothing of it is undone: undo by hand what it says, then remove it", path.display())]
    Damaged {
        /// Its file.
        path: PathBuf,
        /// The first fault.
        why: String,
    },
    /// A subject whose name cannot be a file's.
    #[error(
        "{0:?}: not a subject of the journal: 1 to 200 characters without / and line ends, not beginning with a dot"
    )]
    Subject(String),
    /// What an earlier process changed could not be undone, so that it cannot be changed again.
    #[error("{subject}: left by a latpath that was killed; {}", problems.join("; "))]
    NotUndone {
        /// The kind and the subject.
        subject: String,
        /// Why each part could not be undone.
        problems: Vec<String>,
    },
}

/// Shorthand for this crate.
pub type Result<T> = std::result::Result<T, Error>;
