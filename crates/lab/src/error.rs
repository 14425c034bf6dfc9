//! What can go wrong while a lab is laid, said so that the user knows the next step.

use std::{io, path::PathBuf};

/// Why a lab could not be laid or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces and taps need privileges.
    #[error("the lab makes network namespaces and needs root; try: sudo latpath …")]
    NotRoot,
    /// A program is not installed.
    #[error("{program}: not installed; try: apt-get install {package}")]
    Missing {
        program: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, to what.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The network could not be read or changed.
    #[error(transparent)]
    Network(#[from] latpath_net::Error),
    /// The lab cannot be noted in the journal, from which its rests are removed after a kill.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
    /// A program that was run failed.
    #[error("{command}: {why}")]
    Command {
        command: String,
        /// Its own words, or its exit status.
        why: String,
    },
    /// No kernel for the guest, here or from the package mirror.
    #[error("no kernel for the guest: {0}")]
    NoKernel(String),
    /// What is kept could be changed by another user, who could so run programs as this one.
    #[error("{}: {why}; programs that are kept there are run: set LATPATH_CACHE to a folder that no other user can change", folder.display())]
    Unsafe { folder: PathBuf, why: String },
    /// A part of the lab cannot be fetched from the package mirror.
    #[error("{what}: not in the cache, and cannot be fetched ({why}); connect this machine to a Debian mirror")]
    Fetch {
        what: String,
        /// Why it could not.
        why: String,
    },
    /// The guest did not come up.
    #[error("the guest did not boot ({why}); the end of its console:\n{console}")]
    Boot {
        /// Each try and how it ended.
        why: String,
        /// Last lines of the serial console.
        console: String,
    },
    /// The guest answered wrongly or no longer answers.
    #[error("guest {guest}: {why}")]
    Guest {
        /// The guest's name.
        guest: String,
        why: String,
    },
    /// A machine does not answer, and has not ended.
    #[error("guest {guest}: no answer in time")]
    Silent {
        /// The machine's name.
        guest: String,
    },
    /// The user asked to stop while the lab was being laid.
    #[error("interrupted")]
    Interrupted,
}

/// Shorthand for this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Gives an I/O error the words that it lacks: what was being done.
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
