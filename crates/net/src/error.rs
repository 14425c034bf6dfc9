//! Errors of reading and changing this machine's network.

use crate::Inode;
use std::io;

/// Why the network could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process, mount or name refers to the namespace: it no longer exists, or is hidden from this process.
    #[error("network namespace {0}: not found; it is gone, or only root can see it")]
    NoNamespace(Inode),
    /// This process may not enter the namespace.
    #[error("enter network namespace {inode}: {source} (needs root)")]
    Enter {
        /// The namespace's inode number.
        inode: Inode,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel rejected a request, or did not answer in time.
    #[error("{what}: {source}")]
    Ask {
        /// The request.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel rejected a change.
    #[error("{doing}: {source}{}", reason.as_ref().map_or(String::new(), |reason| format!(": {reason}")))]
    Refused {
        /// The change, and its object.
        doing: String,
        /// The system's error.
        source: io::Error,
        /// The kernel's reason, if it reports one.
        reason: Option<String>,
    },
    /// An answer is shorter than its length field.
    #[error("{0}: the kernel's answer cannot be read")]
    Answer(&'static str),
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
