//! Errors of a lab, worded so that the user knows the next step.

use std::{io, path::PathBuf};

/// Why a lab could not be set up or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces and taps need privileges.
    #[error("the lab makes network namespaces and needs root; try: sudo latpath …")]
    NotRoot,
    /// A program is not installed.
    #[error("{program}: not installed; try: apt-get install {package}")]
    Missing {
        /// Name of the program.
        program: &'static str,
        /// Debian package of the program.
        package: &'static str,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// The network could not be read or changed.
    #[error(transparent)]
    Network(#[from] latpath_net::Error),
    /// The lab cannot be recorded in the journal, which is needed to clean up after a kill.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
    /// A command failed.
    #[error("{command}: {why}")]
    Command {
        /// The command line.
        command: String,
        /// The command's error message, or its exit status.
        why: String,
    },
    /// There is no kernel for the guest on this machine or the package mirror.
    #[error("no kernel for the guest: {0}")]
    NoKernel(String),
    /// Another user could change the cache, and so run programs as this user.
    #[error("{}: {why}; programs that are kept there are run: set LATPATH_CACHE to a folder that no other user can change", folder.display())]
    Unsafe {
        /// The cache's folder.
        folder: PathBuf,
        /// Who could change it.
        why: String,
    },
    /// A part of the lab could not be fetched from the package mirror.
    #[error("{what}: not in the cache, and cannot be fetched ({why}); connect this machine to a Debian mirror")]
    Fetch {
        /// The missing part.
        what: String,
        /// The reason.
        why: String,
    },
    /// The guest did not boot.
    #[error("the guest did not boot ({why}); the end of its console:\n{console}")]
    Boot {
        /// Each attempt and its result.
        why: String,
        /// The last lines of the serial console.
        console: String,
    },
    /// The guest sent an invalid answer, or stopped answering.
    #[error("guest {guest}: {why}")]
    Guest {
        /// The guest's name.
        guest: String,
        /// The guest's actual behaviour.
        why: String,
    },
    /// A machine runs but does not answer.
    #[error("guest {guest}: no answer in time")]
    Silent {
        /// The machine's name.
        guest: String,
    },
    /// The user requested a stop while the lab was being set up.
    #[error("interrupted")]
    Interrupted,
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the failed operation to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what.into(), source })
    }
}

impl<T> Doing<T> for nix::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|e| Error::Io { doing: what.into(), source: e.into() })
    }
}
