//! Errors of schedules, worded so that they tell the user the next step.

use std::{io, path::PathBuf};

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a schedule could not be read, applied or undone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// The file is not a schedule.
    #[error("{}:{line}: {why}; docs/gates.md lists the keys", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The fault.
        why: String,
    },
    /// A value, or a combination of values, cannot work.
    #[error("{}: {key}: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key, e.g. `gate.2.interval`.
        key: String,
        /// The fault, and a correct form.
        why: String,
    },
    /// The device does not exist.
    #[error("{device}: no such device in this network namespace; `latpath gates show` lists the devices")]
    NoDevice {
        /// The device.
        device: String,
    },
    /// The device's queueing discipline has been configured by someone else.
    #[error(
        "{device}: it has the queueing discipline {kind}, which somebody has configured and latpath does not replace; \
         remove it first: tc qdisc del dev {device} root"
    )]
    Configured {
        /// The device.
        device: String,
        /// Kind of the queueing discipline.
        kind: String,
    },
    /// The device already has a schedule applied by latpath.
    #[error("{device}: gates are applied already; undo them first: latpath gates undo FILE")]
    AppliedAlready {
        /// The device.
        device: String,
    },
    /// latpath has applied no schedule to the device.
    #[error("{device}: latpath has applied no gates to it")]
    NotApplied {
        /// The device.
        device: String,
    },
    /// The undo did not succeed.
    #[error("{device}: {why}")]
    NotUndone {
        /// The device.
        device: String,
        /// The reasons.
        why: String,
    },
    /// The kernel cannot be queried, or refuses the schedule.
    #[error(transparent)]
    Net(#[from] latpath_net::Error),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
}
