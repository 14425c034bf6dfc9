//! What goes wrong with a device.

use latpath_net::devices_here_and_elsewhere;
use std::io;

/// Why a device's stamps cannot be read or set.
#[derive(Debug, thiserror::Error)]
pub enum StampError {
    /// There is none of this name.
    #[error("{device}: no such device (devices here: {here})")]
    NoDevice {
        device: String,
        /// Those that there are.
        here: String,
    },
    /// A right is missing.
    #[error("{device}: {doing} needs root or CAP_NET_ADMIN; try with sudo")]
    NotAllowed {
        device: String,
        /// What was being done.
        doing: &'static str,
    },
    /// What is set now cannot be read.
    #[error("{device}: its hardware stamps stay as they are, since they could not be put back: what is set now cannot be read ({why})")]
    NoWayBack {
        device: String,
        /// Why it cannot be read.
        why: String,
    },
    /// What it is set to cannot be noted in the journal, from which a killed latpath's changes are undone.
    #[error("{device}: its hardware stamps stay as they are: {cause}")]
    NotNoted {
        /// The device.
        device: String,
        /// Why not.
        cause: latpath_undo::Error,
    },
    /// Anything else.
    #[error("{device}: {doing}: {cause}")]
    Os {
        device: String,
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
}

impl StampError {
    /// What an answer of the kernel about a device means.
    pub(crate) fn of(device: &str, doing: &'static str, cause: io::Error) -> Self {
        let device = device.to_string();
        match cause.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => {
                let here = devices_here_and_elsewhere(&device);
                Self::NoDevice { device, here }
            }
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed { device, doing },
            _ => Self::Os { device, doing, cause },
        }
    }
}
