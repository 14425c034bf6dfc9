//! The device that frames are sent and received by, and what can be wrong with it.

use super::kernel::PacketSocket;
use latpath_traffic::kernel::device_list;
use nix::net::if_::if_nametoindex;
use std::io;

/// A device as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its address.
    pub mac: [u8; 6],
    /// Most bytes behind an Ethernet header.
    pub mtu: usize,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is none of this name.
    #[error("{device}: no such device (devices here: {here})")]
    NoDevice {
        /// The name.
        device: String,
        /// Those that there are.
        here: String,
    },
    /// Raw frames are not allowed.
    #[error("{0}: raw frames need root or CAP_NET_RAW; try with sudo")]
    NotAllowed(String),
    /// It carries no Ethernet frames.
    #[error("{0}: no Ethernet device; use UDP there")]
    NotEthernet(String),
    /// The device is down.
    #[error("{0}: the device is down; bring it up with: ip link set {0} up")]
    Down(String),
    /// The device went away while it was used.
    #[error("{0}: the device vanished")]
    Vanished(String),
    /// A message does not fit.
    #[error("{device}: a message of {len} bytes does not fit: its MTU leaves room for {room}")]
    TooLong {
        /// The device.
        device: String,
        /// The message's length.
        len: usize,
        /// What would fit.
        room: usize,
    },
    /// More groups than a filter can name.
    #[error("{count} groups: at most {most} can be joined")]
    Groups {
        /// How many were asked for.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A socket option cannot be set.
    #[error("{device}: {cause}")]
    Option {
        /// The device.
        device: String,
        /// Which, and why.
        cause: latpath_nic_timestamps::SocketError,
    },
    /// Anything else.
    #[error("{device}: {doing}: {cause}")]
    Os {
        /// The device.
        device: String,
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
}

/// ARPHRD_ETHER and ARPHRD_LOOPBACK of linux/if_arp.h: those whose frames begin with an Ethernet header.
const ETHERNET: [u16; 2] = [1, 772];

/// A packet socket for a device; it need not be there.
pub(crate) fn socket_for(device: &str) -> Result<PacketSocket, DeviceError> {
    PacketSocket::new().map_err(|cause| match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => DeviceError::NotAllowed(device.into()),
        _ => DeviceError::Os { device: device.into(), doing: "opening a packet socket", cause },
    })
}

impl Device {
    /// Finds a device that is up by its name. Needs the right to open packet sockets, as everything that is done with it.
    pub fn find(name: &str) -> Result<Self, DeviceError> {
        Self::find_by(&socket_for(name)?, name)
    }

    pub(super) fn find_by(socket: &PacketSocket, name: &str) -> Result<Self, DeviceError> {
        let index = index(name);
        let facts = match socket.facts(name) {
            Ok(facts) if index != 0 => facts,
            Err(cause) if index != 0 && cause.raw_os_error() != Some(libc::ENODEV) => {
                return Err(DeviceError::Os { device: name.into(), doing: "asking what it is", cause })
            }
            _ => return Err(DeviceError::NoDevice { device: name.into(), here: device_list() }),
        };
        if !ETHERNET.contains(&facts.kind) {
            return Err(DeviceError::NotEthernet(name.into()));
        }
        if !facts.up {
            return Err(DeviceError::Down(name.into()));
        }
        Ok(Self { name: name.into(), index, mac: facts.mac, mtu: facts.mtu })
    }

    /// Whether it still exists, up or down.
    pub(crate) fn is_there(&self) -> bool {
        index(&self.name) == self.index
    }

    /// Says what an error of a socket that is bound to the device means.
    pub(crate) fn failed(&self, doing: &'static str, cause: io::Error) -> DeviceError {
        let device = self.name.clone();
        match cause.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) if !self.is_there() => DeviceError::Vanished(device),
            Some(libc::ENETDOWN) => DeviceError::Down(device),
            Some(libc::EPERM | libc::EACCES) => DeviceError::NotAllowed(device),
            _ => DeviceError::Os { device, doing, cause },
        }
    }
}

/// The index of a device, 0 where there is none.
fn index(name: &str) -> u32 {
    if_nametoindex(name).unwrap_or(0)
}
