//! Errors of the journal.

use std::{io, path::PathBuf};

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The journal's directory cannot be created, or belongs to another user.
    #[error("{}: {source}; changes of this machine are noted there, to be undone after a kill", path.display())]
    Folder {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process holds the journal's lock.
    #[error("{}: another process has locked it for {seconds} s (fuser names the process)", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Time that this process has waited, s.
        seconds: u64,
    },
    /// An entry cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The entry's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An entry was not written by latpath, or has been damaged since.
    #[error("{}: damaged ({why}); nothing of it is undone: undo by hand what it says, then remove it", path.display())]
    Damaged {
        /// The entry's file.
        path: PathBuf,
        /// The first fault.
        why: String,
    },
    /// A subject cannot be part of a file name.
    #[error(
        "{0:?}: not a subject of the journal: 1 to 200 characters without / and line ends, not beginning with a dot"
    )]
    Subject(String),
    /// The changes of an earlier process could not be undone, so the subject cannot be changed again.
    #[error("{subject}: left by a latpath that was killed; {}", problems.join("; "))]
    NotUndone {
        /// The kind and the subject.
        subject: String,
        /// The reasons.
        problems: Vec<String>,
    },
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
