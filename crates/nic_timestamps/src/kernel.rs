//! Requests about a device's timestamps. All unsafe code of this crate is in this module; each block states why it is
//! sound.
#![allow(unsafe_code)]

use crate::config::{Config, Settable};
use latpath_linux::net::Device;
use latpath_model::text::of_field;
use std::io;
use std::mem::zeroed;

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
    // SAFETY: drvinfo consists of integers, so all zeros are valid.
    let mut info: DriverInfo = unsafe { zeroed() };
    info.cmd = ETHTOOL_GDRVINFO;
    // SAFETY: the struct matches this command.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut info) }?;
    let text = |bytes: &[u8]| of_field(bytes).escape_debug().to_string();
    Ok((text(&info.driver), text(&info.bus_info)))
}

/// The timestamps that the driver claims to make.
pub(crate) fn ts_info(device: &Device) -> io::Result<TsInfo> {
    let mut info = TsInfo { cmd: ETHTOOL_GET_TS_INFO, ..TsInfo::default() };
    // SAFETY: the struct matches this command.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut info) }?;
    Ok(info)
}

/// Calls `SIOCGHWTSTAMP` or `SIOCSHWTSTAMP`.
fn hwtstamp(device: &Device, code: libc::c_ulong, config: Config) -> io::Result<Config> {
    let mut c = HwtstampConfig { flags: config.flags, tx_type: config.tx_type.0, rx_filter: config.rx_filter.0 };
    // SAFETY: the struct matches both requests.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<DriverInfo>(), size_of::<TsInfo>(), size_of::<HwtstampConfig>()), (196, 44, 12));
    }
}
