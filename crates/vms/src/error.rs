//! Errors of the search for guests.

use std::io;

/// Why guests cannot be searched for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// /proc cannot be read.
    #[error("/proc: {0}; without it no process can be seen (mount -t proc proc /proc)")]
    NoProc(io::Error),
}
