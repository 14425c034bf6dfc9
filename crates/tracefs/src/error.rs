//! What can go wrong with tracefs.

use std::{io, path::PathBuf};

/// Why tracefs could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// tracefs is mounted nowhere that we see, and could not be mounted out of sight.
    #[error("tracefs: not mounted here, and the kernel does not give it to us: {source} (needs root, and a kernel with CONFIG_TRACING)")]
    NoTracefs {
        /// The system's answer.
        source: io::Error,
    },
    /// A file of tracefs could not be read or written.
    #[error("{}: {source}{}", path.display(), hint(source))]
    File {
        /// Which, as the user can reach it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A name that no instance can have.
    #[error("{0:?}: no name for a tracefs instance; write 1 to 200 characters without /, not beginning with a dot")]
    Name(String),
    /// The instance is in use by a latpath that runs.
    #[error("tracefs instance {name}: process {pid} (latpath) uses it; name another instance, or end that one")]
    InUse {
        name: String,
        /// The process as it gave itself.
        pid: String,
    },
    /// The journal, from which a killed latpath's changes are undone, cannot be used.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
    /// A setting that the kernel refused.
    #[error("{}: the kernel refuses {requested:?}: {source}{}", path.display(), offered(there))]
    Refused {
        /// The file that stands for the setting.
        path: PathBuf,
        requested: String,
        /// What could have been, where the kernel lists it.
        there: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A mark that the kernel did not take.
    #[error("{}: the mark was not taken: {source}{}", path.display(), why_no_mark(source))]
    Mark {
        /// The trace_marker file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The saved trace could not be written.
    #[error("{}: {source}; the trace is not, or not all, saved", path.display())]
    Save {
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What was changed could not be put back; the next start tries again.
    #[error("tracefs instance {name}: not all of it could be undone: {}; the next start of latpath tries again", problems.join("; "))]
    NotUndone {
        name: String,
        /// What could not be undone, and why.
        problems: Vec<String>,
    },
}

/// Shorthand for this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::File { path, source }
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES) => " (needs root, or the group that tracefs is mounted for)",
        Some(libc::EPERM) => " (refused even to root where the kernel is locked down: /sys/kernel/security/lockdown)",
        _ => "",
    }
}

fn offered(there: &str) -> String {
    if there.is_empty() {
        String::new()
    } else {
        format!(" (there are: {there})")
    }
}

fn why_no_mark(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EBADF) => " (tracing is off: tracing_on is 0)",
        Some(libc::EINVAL) => " (marks are switched off: options/markers is 0)",
        _ => "",
    }
}
