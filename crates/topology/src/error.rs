//! Errors of topologies; each message tells the user what to do next.

use std::{io, path::PathBuf};

/// Why a topology could not be read, made, shown or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Devices, programs and processes need privileges.
    #[error("a topology makes network devices and needs root; try: sudo latpath net …")]
    NotRoot,
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The topology's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a valid topology.
    #[error("{}:{line}: {why}; `latpath net example WAY` prints a topology with all keys", path.display())]
    File {
        /// The topology's file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault.
        why: String,
    },
    /// A value, or a combination of values, cannot work.
    #[error("topology {name}: {key}: {why}")]
    Invalid {
        /// The topology's name.
        name: String,
        /// The key, e.g. `guest.relay.tap`.
        key: String,
        /// The fault, and what would be valid.
        why: String,
    },
    /// The topology is already up.
    #[error("topology {0} is up already; try: latpath net status {0}, or latpath net down {0}")]
    IsUp(String),
    /// Another process is making or removing the topology.
    #[error("topology {0} is being made by another latpath; wait until it has ended")]
    Busy(String),
    /// No topology with this name is up.
    #[error("topology {name}: it is not up (topologies that are up: {up})")]
    NotUp {
        /// The requested name.
        name: String,
        /// Names of the topologies that are up.
        up: String,
    },
    /// A device that must exist does not.
    #[error("{device}: no such device (devices here: {here})")]
    NoDevice {
        /// The requested name.
        device: String,
        /// The devices that exist.
        here: String,
    },
    /// A device cannot be used as requested.
    #[error("{device}: {why}")]
    Device {
        /// The device's name.
        device: String,
        /// The reason and the next step.
        why: String,
    },
    /// The network could not be read or changed.
    #[error(transparent)]
    Network(#[from] latpath_net::Error),
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
    /// Guests of this machine could not be listed.
    #[error(transparent)]
    Vms(#[from] latpath_vms::Error),
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// An external program failed.
    #[error("{command}: {why}")]
    Command {
        /// The command line.
        command: String,
        /// Its error message or exit status.
        why: String,
    },
    /// A guest's QEMU ended, or did not become ready.
    #[error("guest {guest}: {program} {why}")]
    Qemu {
        /// The guest's name.
        guest: String,
        /// The program.
        program: String,
        /// What happened, with the program's last messages.
        why: String,
    },
    /// The kernel rejected an XDP program.
    #[error("XDP on {device}: {why}")]
    Xdp {
        /// The device.
        device: String,
        /// The kernel's reason.
        why: String,
    },
    /// The user requested a stop.
    #[error("interrupted")]
    Interrupted,
    /// Some objects could not be removed. They stay in the journal.
    #[error("topology {name}: not removed: {}; what remains is in the journal: latpath net down {name} tries again", problems.join("; "))]
    NotUndone {
        /// The topology's name.
        name: String,
        /// The reasons, one for each object.
        problems: Vec<String>,
    },
    /// The topology could not be made. The objects made so far were removed again.
    #[error("{source}{}", undone(problems))]
    Failed {
        /// The first failure.
        source: Box<Error>,
        /// Objects that could not be removed afterwards.
        problems: Vec<String>,
    },
}

fn undone(problems: &[String]) -> String {
    match problems {
        [] => "; what was made until then is removed again".into(),
        _ => format!("; not removed again: {}", problems.join("; ")),
    }
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the failed operation to a system error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|e| Error::Io { doing: what.into(), source: e.into() })
    }
}
