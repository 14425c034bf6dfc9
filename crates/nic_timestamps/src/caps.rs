//! The timestamps that a device claims to make, and its current setting.

use crate::config::{Config, RxFilter, Settable, TxType};
use crate::kernel::{driver, ts_info};
use crate::StampError;
use latpath_linux::net::Device;
use std::io;
use std::time::{Duration, Instant};

/// A NIC's current setting, as its driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Current {
    /// The setting is known.
    Set(Config),
    /// The setting is unknown, for this reason.
    Unknown(String),
}

/// Received packets that a NIC can stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RxHardware {
    /// All frames.
    AllFrames,
    /// Only packets of these kinds, all of them PTP or NTP.
    Only(Vec<RxFilter>),
    /// No packets.
    Nothing,
}

/// Stamps that a device claims to make. Some devices claim more than they make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Name of the device.
    pub device: String,
    /// The device's index in this network namespace.
    pub ifindex: u32,
    /// Whether the device is administratively up (`IFF_UP`).
    pub up: bool,
    /// Whether the device has a link (`IFF_RUNNING`).
    pub running: bool,
    /// Name of the driver, if it reports one.
    pub driver: Option<String>,
    /// The device's bus address (`0000:01:00.0`), if it has one.
    pub bus: Option<String>,
    /// PHC index of the device's clock: N of `/dev/ptpN`.
    pub phc: Option<u32>,
    /// `SOF_TIMESTAMPING_…` flags that the driver reports.
    pub socket_flags: u32,
    /// Bit n: the device supports `TxType(n)`.
    pub tx_types: u32,
    /// Bit n: the device supports `RxFilter(n)`.
    pub rx_filters: u32,
    /// The stamps that are switched on.
    pub current: Current,
}

/// Maximum wait for a link: the kernel reports it shortly after a device was brought up.
const LINK: Duration = Duration::from_millis(100);

/// The flags of a device, read once it has a link, is down, or the wait for the link is over.
fn settled(device: &Device) -> io::Result<i32> {
    let limit = Instant::now() + LINK;
    loop {
        let flags = device.flags()?;
        if flags & libc::IFF_UP == 0 || flags & libc::IFF_RUNNING != 0 || Instant::now() >= limit {
            return Ok(flags);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// PHC index of the clock with which a device of this network namespace stamps packets; `None` if it has none. Needs no
/// privileges.
///
/// # Errors
/// If the device does not exist, or the kernel does not report its capabilities.
pub fn phc_of(device: &str) -> io::Result<Option<u32>> {
    Ok(u32::try_from(ts_info(&Device::named(device)?)?.phc_index).ok())
}

impl Caps {
    /// Queries a device of this network namespace. Needs no privileges. Waits up to 100 ms for the link of a device
    /// that is up.
    ///
    /// # Errors
    /// If the device does not exist, or the kernel does not report its capabilities.
    pub fn of(device: &str) -> Result<Self, StampError> {
        let failed = |doing, cause| StampError::of(device, doing, cause);
        let asked = Device::named(device).map_err(|e| failed("opening a socket", e))?;
        let flags = settled(&asked).map_err(|e| failed("reading its state", e))?;
        let ifindex = nix::net::if_::if_nametoindex(device).map_err(|e| failed("reading its index", e.into()))?;
        let info = ts_info(&asked).map_err(|e| failed("asking what it can stamp (ETHTOOL_GET_TS_INFO)", e))?;
        let text = |text: String| (!text.is_empty()).then_some(text);
        let (driver, bus) = driver(&asked).unwrap_or_default();
        let current = match asked.config() {
            Ok(config) => Current::Set(config),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Current::Unknown("its driver does not say".into()),
            Err(e) => Current::Unknown(e.to_string()),
        };
        Ok(Self {
            device: device.into(),
            ifindex,
            up: flags & libc::IFF_UP != 0,
            running: flags & libc::IFF_RUNNING != 0,
            driver: text(driver),
            bus: text(bus),
            phc: u32::try_from(info.phc_index).ok(),
            socket_flags: info.so_timestamping,
            tx_types: info.tx_types,
            rx_filters: info.rx_filters,
            current,
        })
    }

    fn has(&self, flag: u32) -> bool {
        self.socket_flags & flag != 0
    }

    /// Whether the NIC claims to stamp sent packets.
    pub fn tx_nic(&self) -> bool {
        let flags = self.has(libc::SOF_TIMESTAMPING_TX_HARDWARE) && self.has(libc::SOF_TIMESTAMPING_RAW_HARDWARE);
        flags && self.tx_types & (1 << TxType::ON.0) != 0
    }

    /// Whether the driver claims to stamp sent packets as it passes them to the NIC. (The stamp before the queueing
    /// discipline is made by the kernel, for every device.)
    pub fn tx_driver(&self) -> bool {
        self.has(libc::SOF_TIMESTAMPING_TX_SOFTWARE)
    }

    /// The received packets that the NIC claims to stamp.
    pub fn rx_nic(&self) -> RxHardware {
        if !(self.has(libc::SOF_TIMESTAMPING_RX_HARDWARE) && self.has(libc::SOF_TIMESTAMPING_RAW_HARDWARE)) {
            return RxHardware::Nothing;
        }
        let filters: Vec<RxFilter> = self.offered().collect();
        match filters.as_slice() {
            [] => RxHardware::Nothing,
            all if all.contains(&RxFilter::ALL) => RxHardware::AllFrames,
            _ => RxHardware::Only(filters),
        }
    }

    fn offered(&self) -> impl Iterator<Item = RxFilter> + '_ {
        (1..32).filter(|n| self.rx_filters & (1 << n) != 0).map(RxFilter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(socket_flags: u32, tx_types: u32, rx_filters: u32) -> Caps {
        Caps { socket_flags, tx_types, rx_filters, ..Caps::of("lo").unwrap() }
    }

    const HARDWARE: u32 =
        libc::SOF_TIMESTAMPING_TX_HARDWARE | libc::SOF_TIMESTAMPING_RX_HARDWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE;

    #[test]
    fn lo_has_no_hardware_and_no_clock() {
        let caps = Caps::of("lo").unwrap();
        assert!(!caps.tx_nic() && caps.phc.is_none() && caps.ifindex == 1, "{caps:?}");
        assert_eq!(caps.rx_nic(), RxHardware::Nothing);
        assert!(matches!(caps.current, Current::Unknown(_)));
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        for name in ["lp-none", "a-name-that-is-much-too-long"] {
            let error = Caps::of(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: no such device (devices here: lo")), "{error}");
        }
    }

    #[test]
    fn what_a_nic_stamps_needs_the_flags_and_the_types() {
        let all = claims(HARDWARE, 0b11, 0b11);
        assert!(all.tx_nic());
        assert_eq!(all.rx_nic(), RxHardware::AllFrames);
        let ptp_only = claims(HARDWARE, 0b01, 1 | 1 << 12);
        assert!(!ptp_only.tx_nic());
        assert_eq!(ptp_only.rx_nic(), RxHardware::Only(vec![RxFilter(12)]));
        assert_eq!(claims(HARDWARE, 0b11, 1).rx_nic(), RxHardware::Nothing);
        let software = claims(libc::SOF_TIMESTAMPING_TX_SOFTWARE, 0b11, 0b11);
        assert!(!software.tx_nic() && software.tx_driver());
        assert_eq!(software.rx_nic(), RxHardware::Nothing);
    }

    #[test]
    fn values_have_the_names_that_ethtool_gives_them() {
        let config = Config { tx_type: TxType::ON, rx_filter: RxFilter(12), flags: 0 };
        assert_eq!(config.to_string(), "tx on, rx ptpv2-event");
        assert_eq!(RxFilter(15).to_string(), "ntp-all");
        assert_eq!((TxType(9).to_string(), RxFilter(-1).to_string()), ("unknown (9)".into(), "unknown (-1)".into()));
    }
}
