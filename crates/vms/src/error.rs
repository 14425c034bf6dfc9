//! What can go wrong while guests are looked for.

use std::io;

/// Why guests cannot be looked for at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Without /proc nothing can be found.
    #[error("/proc: {0}; without it no process can be seen (mount -t proc proc /proc)")]
    NoProc(io::Error),
}
