//! Errors of this crate.

use std::{io, path::PathBuf};

/// Why tracefs could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// tracefs is not mounted in any visible place, and could not be mounted privately.
    #[error("tracefs: not mounted here, and the kernel does not give it to us: {source} (needs root, and a kernel with CONFIG_TRACING)")]
    NoTracefs {
        /// The system's error.
        source: io::Error,
    },
    /// A file of tracefs could not be read or written.
    #[error("{}: {source}{}", path.display(), hint(source))]
    File {
        /// Its path as shown to the user.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Invalid instance name.
    #[error("{0:?}: no name for a tracefs instance; write 1 to 200 characters without /, not beginning with a dot")]
    Name(String),
    /// A running latpath uses the instance.
    #[error("tracefs instance {name}: process {pid} (latpath) uses it; name another instance, or end that one")]
    InUse {
        /// The instance.
        name: String,
        /// Process IDs of its users.
        pid: String,
    },
    /// The journal, which is needed to undo the changes made by a killed latpath, cannot be used.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
    /// The kernel rejected a setting.
    #[error("{}: the kernel refuses {requested:?}: {source}{}", path.display(), offered(there))]
    Refused {
        /// The setting's file.
        path: PathBuf,
        /// The requested value.
        requested: String,
        /// The values that the kernel offers, if it lists them.
        there: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel rejected a mark.
    #[error("{}: the kernel rejected the mark: {source}{}", path.display(), why_no_mark(source))]
    Mark {
        /// The trace_marker file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The saved trace could not be written.
    #[error("{}: {source}; the trace is not, or not all, saved", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Changes could not be undone; the next start tries again.
    #[error("tracefs instance {name}: it could not be undone completely: {}; the next start of latpath tries again", problems.join("; "))]
    NotUndone {
        /// The instance.
        name: String,
        /// The failures.
        problems: Vec<String>,
    },
}

/// Result type of this crate.
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
