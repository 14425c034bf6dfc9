//! The device used to send and receive frames, and its errors.

use latpath_linux::net::{self, PacketSocket};
use latpath_net::devices_here_and_elsewhere;
use nix::net::if_::if_nametoindex;
use std::io;
use std::time::{Duration, Instant};

/// Maximum time from a device going down until its name is gone, even on a busy machine: in between, the kernel waits
/// for all CPUs.
const VANISHING: Duration = Duration::from_secs(1);

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No device has this name (first string); the second lists the existing devices.
    #[error("{0}: no such device (devices here: {1})")]
    NoDevice(String, String),
    /// The process is not permitted to use raw sockets.
    #[error("{0}: raw packets need root or CAP_NET_RAW; try with sudo")]
    NotAllowed(String),
    /// The device carries no Ethernet frames.
    #[error("{0}: no Ethernet device; use UDP there")]
    NotEthernet(String),
    /// The device is down.
    #[error("{0}: the device is down; bring it up with: ip link set {0} up")]
    Down(String),
    /// The device vanished during use.
    #[error("{0}: the device vanished")]
    Vanished(String),
    /// A frame exceeds the MTU.
    #[error("{device}: {len} bytes are too long for its frames, whose MTU leaves space for {room}; send less (--size, fewer ASDUs, a shorter svID)")]
    TooLong {
        /// The device.
        device: String,
        /// Length of the frame, bytes.
        len: usize,
        /// Maximum length, bytes.
        room: usize,
    },
    /// More group addresses than a filter can contain.
    #[error("{count} groups: at most {most} can be joined")]
    Groups {
        /// Requested number.
        count: usize,
        /// Maximum number.
        most: usize,
    },
    /// Any other error.
    #[error("{device}: {doing}: {cause}")]
    Os {
        /// The device.
        device: String,
        /// The operation that failed.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// MAC address; zero if it carries no Ethernet frames.
    pub mac: [u8; 6],
    /// Maximum transmission unit, bytes.
    pub mtu: usize,
}

impl Device {
    /// Finds a device by name, and opens a packet socket on it that receives nothing yet.
    ///
    /// # Errors
    /// The device does not exist, or raw sockets are not permitted.
    pub fn open(name: &str) -> Result<(Self, PacketSocket), DeviceError> {
        let os = |doing| move |cause| DeviceError::Os { device: name.into(), doing, cause };
        let socket = PacketSocket::open(0).map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => DeviceError::NotAllowed(name.into()),
            _ => os("opening a packet socket")(cause),
        })?;
        let index =
            if_nametoindex(name).map_err(|_| DeviceError::NoDevice(name.into(), devices_here_and_elsewhere(name)))?;
        socket.bind(index, 0).map_err(os("binding"))?;
        let mac = socket.mac().map_err(os("asking for its address"))?.unwrap_or_default();
        let mtu = net::Device::named(name).and_then(|device| device.mtu()).map_err(os("asking for its MTU"))?;
        Ok((Self { name: name.into(), index, mac, mtu }, socket))
    }

    /// As [`Self::open`], for a device that must be up and carry Ethernet frames.
    ///
    /// # Errors
    /// As for [`Self::open`]; also if the device is down or carries no Ethernet frames.
    pub fn open_ethernet(name: &str) -> Result<(Self, PacketSocket), DeviceError> {
        let (device, socket) = Self::open(name)?;
        let flags = net::Device::named(name).and_then(|device| device.flags());
        let flags = flags.map_err(|e| device.failed("asking whether it is up", e))?;
        match socket.mac() {
            Ok(None) => Err(DeviceError::NotEthernet(name.into())),
            _ if flags & libc::IFF_UP == 0 => Err(DeviceError::Down(name.into())),
            _ => Ok((device, socket)),
        }
    }

    /// Whether it still exists, up or down.
    pub fn is_there(&self) -> bool {
        if_nametoindex(self.name.as_str()).is_ok_and(|index| index == self.index)
    }

    /// The error that a frame of `len` bytes is too long.
    pub(crate) fn too_long(&self, len: usize) -> DeviceError {
        DeviceError::TooLong { device: self.name.clone(), len, room: self.mtu + 14 }
    }

    /// Converts an error from a socket that is bound to the device.
    pub fn failed(&self, doing: &'static str, cause: io::Error) -> DeviceError {
        let device = self.name.clone();
        if cause.raw_os_error() == Some(libc::ENETDOWN) {
            // A device goes down shortly before it vanishes.
            let until = Instant::now() + VANISHING;
            while self.is_there() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        match cause.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) if !self.is_there() => DeviceError::Vanished(device),
            Some(libc::ENETDOWN) => DeviceError::Down(device),
            Some(libc::EPERM | libc::EACCES) => DeviceError::NotAllowed(device),
            _ => DeviceError::Os { device, doing, cause },
        }
    }
}
