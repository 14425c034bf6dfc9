//! Errors when a device's timestamps are read or set.

use latpath_net::devices_here_and_elsewhere;
use std::io;

/// Why a device's stamps cannot be read or set.
#[derive(Debug, thiserror::Error)]
pub enum StampError {
    /// No device has this name.
    #[error("{device}: no such device (devices here: {here})")]
    NoDevice {
        /// The requested name.
        device: String,
        /// List of the existing devices.
        here: String,
    },
    /// The process lacks a privilege.
    #[error("{device}: {doing} needs root or CAP_NET_ADMIN; try with sudo")]
    NotAllowed {
        /// The device.
        device: String,
        /// The operation.
        doing: &'static str,
    },
    /// The current setting cannot be read, so it could not be restored.
    #[error("{device}: its hardware stamps stay as they are, since they could not be put back: what is set now cannot be read ({why})")]
    NoWayBack {
        /// The device.
        device: String,
        /// The reason.
        why: String,
    },
    /// The setting cannot be recorded in the journal, which is needed to undo changes if latpath is killed.
    #[error("{device}: its hardware stamps stay as they are: {cause}")]
    NotNoted {
        /// The device.
        device: String,
        /// The journal's error.
        cause: latpath_undo::Error,
    },
    /// Any other error.
    #[error("{device}: {doing}: {cause}")]
    Os {
        /// The device.
        device: String,
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl StampError {
    /// Converts the kernel's error for a device to a variant of this type.
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
