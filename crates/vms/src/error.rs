//! Errors of the search for guests.

use std::io;

/// Reason why the search for guests is impossible.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// /proc cannot be read.
    #[error("/proc: {0}; without it no process can be seen (mount -t proc proc /proc)")]
    NoProc(io::Error),
}
