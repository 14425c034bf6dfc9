//! Kernel interfaces without a safe wrapper: requests for a device's stamps, and messages with control data. This
//! module has all unsafe code of this crate; each block states why it is sound.
#![allow(unsafe_code)]

use crate::config::{Config, Settable};
use latpath_linux::net::Device;
use latpath_model::text::of_field;
use nix::sys::socket::SockaddrStorage;
use std::io;
use std::mem::zeroed;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

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

/// The driver's name, and the device's bus address (`0000:01:00.0`; empty if it has none).
pub(crate) fn driver(device: &Device) -> io::Result<(String, String)> {
    // SAFETY: all zeros is a valid drvinfo, which consists of integers.
    let mut info: DriverInfo = unsafe { zeroed() };
    info.cmd = ETHTOOL_GDRVINFO;
    // SAFETY: the struct is that of this command.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut info) }?;
    let text = |bytes: &[u8]| of_field(bytes).escape_debug().to_string();
    Ok((text(&info.driver), text(&info.bus_info)))
}

/// The driver's report of its stamps.
pub(crate) fn ts_info(device: &Device) -> io::Result<TsInfo> {
    let mut info = TsInfo { cmd: ETHTOOL_GET_TS_INFO, ..TsInfo::default() };
    // SAFETY: the struct is that of this command.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut info) }?;
    Ok(info)
}

/// Calls `SIOCGHWTSTAMP` or `SIOCSHWTSTAMP`.
fn hwtstamp(device: &Device, code: libc::c_ulong, config: Config) -> io::Result<Config> {
    let mut c = HwtstampConfig { flags: config.flags, tx_type: config.tx_type.0, rx_filter: config.rx_filter.0 };
    // SAFETY: the struct is that of both requests.
    unsafe { device.ask(code, &mut c) }?;
    Ok(Config { flags: c.flags, tx_type: crate::TxType(c.tx_type), rx_filter: crate::RxFilter(c.rx_filter) })
}

impl Settable for Device {
    fn config(&self) -> io::Result<Config> {
        hwtstamp(self, libc::SIOCGHWTSTAMP, Config::OFF)
    }

    fn set_config(&self, config: Config) -> io::Result<Config> {
        hwtstamp(self, libc::SIOCSHWTSTAMP, config)
    }
}

/// Buffer for a packet's control messages: stamps, the device, an error with the address that caused it.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct Control([u8; Control::ROOM]);

impl Control {
    /// Size of the buffer, bytes; all messages that this crate requests take some 250.
    const ROOM: usize = 512;

    /// An empty buffer.
    pub const fn new() -> Self {
        Self([0; Self::ROOM])
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

/// A packet that [`receive`] has read.
#[derive(Clone, Copy, Debug)]
pub struct Received<'c> {
    /// Number of the packet's bytes in the caller's buffer.
    pub len: usize,
    /// Whether the packet was longer than the buffer and is truncated.
    pub cut: bool,
    /// The control messages, for [`rx_stamps`](crate::rx_stamps) or [`from_error_queue`](crate::from_error_queue).
    pub control: &'c [u8],
    /// The sender's address, for a packet received by IP.
    pub from: Option<SocketAddr>,
}

/// Reads one packet. `flags` are those of recvmsg(2), such as `MSG_DONTWAIT` and `MSG_ERRQUEUE`. A packet of the error
/// queue has all its headers from the link layer's on: the bytes that the program sent are its **last** ones.
///
/// # Errors
/// If the kernel reports an error; `EAGAIN` without a packet.
pub fn receive<'c>(
    fd: BorrowedFd<'_>,
    data: &mut [u8],
    control: &'c mut Control,
    flags: i32,
) -> io::Result<Received<'c>> {
    let mut vector = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeros is a valid address, and a valid msghdr: no name, no data, no control.
    let (mut from, mut header): (SockaddrStorage, libc::msghdr) = unsafe { zeroed() };
    header.msg_name = std::ptr::from_mut(&mut from).cast();
    header.msg_namelen = size_of_val(&from) as libc::socklen_t;
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = Control::ROOM as _;
    // SAFETY: the header points to an address, one vector over `data` and all of `control`, which outlive the call; the
    // kernel writes at most their lengths.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    Ok(Received {
        len: len.min(data.len()),
        cut: header.msg_flags & libc::MSG_TRUNC != 0,
        control: &control.0[..header.msg_controllen.min(Control::ROOM)],
        from: ip_address(&from),
    })
}

/// Reads one packet without control messages, which costs less than [`receive`]. Returns its length, and its sender if
/// it was received by IP. `flags` are those of recvfrom(2).
///
/// # Errors
/// If the kernel reports an error; `EAGAIN` without a packet.
#[inline]
pub fn receive_from(fd: BorrowedFd<'_>, data: &mut [u8], flags: i32) -> io::Result<(usize, Option<SocketAddr>)> {
    // SAFETY: all zeros is a valid address.
    let mut from: SockaddrStorage = unsafe { zeroed() };
    let mut room = size_of_val(&from) as libc::socklen_t;
    let address = std::ptr::from_mut(&mut from).cast();
    // SAFETY: the kernel writes at most `data.len()` bytes to `data` and `room` bytes to `from`; both outlive the call.
    let len =
        unsafe { libc::recvfrom(fd.as_raw_fd(), data.as_mut_ptr().cast(), data.len(), flags, address, &mut room) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    Ok((len.min(data.len()), ip_address(&from)))
}

fn ip_address(from: &SockaddrStorage) -> Option<SocketAddr> {
    let four = from.as_sockaddr_in().map(|a| SocketAddrV4::from(*a).into());
    four.or_else(|| from.as_sockaddr_in6().map(|a| SocketAddrV6::from(*a).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<DriverInfo>(), size_of::<TsInfo>(), size_of::<HwtstampConfig>()), (196, 44, 12));
    }
}
