//! The device that frames are sent and received by, and what can be wrong with it.

use latpath_linux::net::{self, PacketSocket};
use latpath_net::devices_here_and_elsewhere;
use nix::net::if_::if_nametoindex;
use std::io;
use std::time::{Duration, Instant};

/// Between a device going down and its name being gone lies less, also on a busy machine: the kernel waits for its CPUs in between.
const VANISHING: Duration = Duration::from_secs(1);

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is none of this name among these.
    #[error("{0}: no such device (devices here: {1})")]
    NoDevice(String, String),
    /// Raw sockets are not allowed.
    #[error("{0}: raw packets need root or CAP_NET_RAW; try with sudo")]
    NotAllowed(String),
    /// It carries no Ethernet frames.
    #[error("{0}: no Ethernet device; use UDP there")]
    NotEthernet(String),
    #[error("{0}: the device is down; bring it up with: ip link set {0} up")]
    Down(String),
    /// The device went away while it was used.
    #[error("{0}: the device vanished")]
    Vanished(String),
    /// A frame does not fit.
    #[error("{device}: {len} bytes are too long for its frames, whose MTU leaves space for {room}; send less (--size, fewer ASDUs, a shorter svID)")]
    TooLong {
        device: String,
        len: usize,
        /// What would fit.
        room: usize,
    },
    /// More groups than a filter can name.
    #[error("{count} groups: at most {most} can be joined")]
    Groups {
        /// How many were requested.
        count: usize,
        /// How many there may be.
        most: usize,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub index: u32,
    /// Its address; zeros where it carries no Ethernet frames.
    pub mac: [u8; 6],
    /// Most bytes behind its header.
    pub mtu: usize,
}

impl Device {
    /// Finds a device by its name, and opens a packet socket on it that hears nothing yet.
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

    /// The same for a device that is up and carries Ethernet frames.
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

    /// Says what an error of a socket that is bound to the device means.
    pub fn failed(&self, doing: &'static str, cause: io::Error) -> DeviceError {
        let device = self.name.clone();
        if cause.raw_os_error() == Some(libc::ENETDOWN) {
            // A device goes down a moment before it vanishes.
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
