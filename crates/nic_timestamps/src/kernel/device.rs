//! Requests about a device, by name: `SIOCETHTOOL`, `SIOCGHWTSTAMP`, `SIOCSHWTSTAMP`.

use crate::caps::Config;
use latpath_model::text::of_field;
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;

/// `struct ethtool_drvinfo` of `linux/ethtool.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    fw_version: [u8; 32],
    bus_info: [u8; 32],
    erom_version: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_ts_info` of `linux/ethtool.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct TsInfo {
    cmd: u32,
    pub(crate) so_timestamping: u32,
    pub(crate) phc_index: i32,
    pub(crate) tx_types: u32,
    tx_reserved: [u32; 3],
    pub(crate) rx_filters: u32,
    rx_reserved: [u32; 3],
}

/// `struct hwtstamp_config` of `linux/net_tstamp.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HwtstampConfig {
    flags: i32,
    tx_type: i32,
    rx_filter: i32,
}

/// A device of this network namespace, to be asked.
#[derive(Debug)]
pub(crate) struct Device {
    fd: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

impl Device {
    /// Only makes the socket to ask through; whether there is such a device shows at the first question.
    pub(crate) fn named(device: &str) -> io::Result<Self> {
        let mut name = [0; libc::IFNAMSIZ];
        // The kernel's name ends in a NUL; a longer one, or one with a NUL in it, is no device's.
        if device.is_empty() || device.len() >= libc::IFNAMSIZ || device.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        name[..device.len()].copy_from_slice(device.as_bytes());
        // Any socket will do, and one of this family is there in every kernel.
        let fd = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self { fd, name })
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: all zeros is a valid ifreq: an empty name and a null pointer.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        request
    }

    /// A request whose data the kernel reads and writes in `data`.
    ///
    /// # Safety
    /// `T` must be the C struct that the kernel takes for this request, and valid for any bytes.
    unsafe fn ask<T: Copy>(&self, code: libc::c_ulong, data: &mut T) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = std::ptr::from_mut(data).cast();
        // SAFETY: the request is an ifreq with a pointer to what the caller promises, which outlives the call.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), code as _, &mut request) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The driver's name, and where the device sits (`0000:01:00.0`; empty where that means nothing).
    pub(crate) fn driver(&self) -> io::Result<(String, String)> {
        // SAFETY: all zeros is a valid drvinfo, which is integers only.
        let mut info: DriverInfo = unsafe { zeroed() };
        info.cmd = ETHTOOL_GDRVINFO;
        // SAFETY: the struct is the one of this command.
        unsafe { self.ask(libc::SIOCETHTOOL, &mut info) }?;
        let text = |bytes: &[u8]| of_field(bytes).escape_debug().to_string();
        Ok((text(&info.driver), text(&info.bus_info)))
    }

    /// What the driver says that it can stamp.
    pub(crate) fn ts_info(&self) -> io::Result<TsInfo> {
        let mut info = TsInfo { cmd: ETHTOOL_GET_TS_INFO, ..TsInfo::default() };
        // SAFETY: the struct is the one of this command.
        unsafe { self.ask(libc::SIOCETHTOOL, &mut info) }?;
        Ok(info)
    }

    /// What the device is set to.
    pub(crate) fn config(&self) -> io::Result<Config> {
        self.hwtstamp(libc::SIOCGHWTSTAMP, Config::OFF)
    }

    /// Sets the device; returns what the driver made of it.
    pub(crate) fn set_config(&self, config: Config) -> io::Result<Config> {
        self.hwtstamp(libc::SIOCSHWTSTAMP, config)
    }

    fn hwtstamp(&self, code: libc::c_ulong, config: Config) -> io::Result<Config> {
        let mut c = HwtstampConfig { flags: config.flags, tx_type: config.tx_type.0, rx_filter: config.rx_filter.0 };
        // SAFETY: the struct is the one of these two requests.
        unsafe { self.ask(code, &mut c) }?;
        Ok(Config { flags: c.flags, tx_type: crate::TxType(c.tx_type), rx_filter: crate::RxFilter(c.rx_filter) })
    }

    /// Flags of the device (`IFF_UP` …).
    pub(crate) fn flags(&self) -> io::Result<i32> {
        let mut request = self.request();
        // SAFETY: the request is an ifreq, into which the kernel writes the flags.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request) } {
            // SAFETY: the kernel has set this member; any bytes are a valid integer.
            0.. => Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags })),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<DriverInfo>(), size_of::<TsInfo>(), size_of::<HwtstampConfig>()), (196, 44, 12));
    }

    #[test]
    fn a_name_that_no_device_can_have_is_no_device() {
        for name in ["", "sixteen-letters-", "a\0b"] {
            assert_eq!(Device::named(name).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }
}
