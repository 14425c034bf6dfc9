//! Why the network of this machine could not be read or changed.

use crate::Inode;
use std::io;

/// Why something could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process, mount or name leads to the namespace: it is gone, or hidden from this process.
    #[error("network namespace {0}: not found; it is gone, or only root can see it")]
    NoNamespace(Inode),
    /// The namespace may not be entered.
    #[error("enter network namespace {inode}: {source} (needs root)")]
    Enter {
        /// Its number.
        inode: Inode,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel refused a question, or gave no answer in time.
    #[error("{what}: {source}")]
    Ask {
        /// The question.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel refused a change.
    #[error("{doing}: {source}{}", reason.as_ref().map_or(String::new(), |reason| format!(": {reason}")))]
    Refused {
        /// The change, and its object.
        doing: String,
        /// The system's answer.
        source: io::Error,
        /// The kernel's reason, where it gives one.
        reason: Option<String>,
    },
    /// An answer that ends before its own length says.
    #[error("{0}: the kernel's answer cannot be read")]
    Answer(&'static str),
}

/// Shorthand for this crate.
pub type Result<T> = std::result::Result<T, Error>;
