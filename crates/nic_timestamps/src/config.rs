//! Settings of a NIC's stamps.

use serde::{Deserialize, Serialize};
use std::{fmt, io};

/// Sent packets that a NIC stamps: a value of `enum hwtstamp_tx_types` (linux/net_tstamp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxType(pub i32);

impl TxType {
    /// None.
    pub const OFF: Self = Self(0);
    /// Packets whose sender requests a stamp.
    pub const ON: Self = Self(1);

    /// Whether packets whose sender requests a stamp are stamped.
    pub fn stamps(self) -> bool {
        // The other types (one-step PTP) also stamp them, except for certain PTP packets.
        (1..=3).contains(&self.0)
    }
}

impl fmt::Display for TxType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named(f, self.0, &["off", "on", "one-step-sync", "one-step-p2p"])
    }
}

/// Received packets that a NIC stamps: a value of `enum hwtstamp_rx_filters` (linux/net_tstamp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxFilter(pub i32);

impl RxFilter {
    /// None.
    pub const NONE: Self = Self(0);
    /// All packets.
    pub const ALL: Self = Self(1);
    const NAMES: [&str; 16] = [
        "none",
        "all",
        "some",
        "ptpv1-l4-event",
        "ptpv1-l4-sync",
        "ptpv1-l4-delay-req",
        "ptpv2-l4-event",
        "ptpv2-l4-sync",
        "ptpv2-l4-delay-req",
        "ptpv2-l2-event",
        "ptpv2-l2-sync",
        "ptpv2-l2-delay-req",
        "ptpv2-event",
        "ptpv2-sync",
        "ptpv2-delay-req",
        "ntp-all",
    ];
}

impl fmt::Display for RxFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named(f, self.0, &Self::NAMES)
    }
}

fn named(f: &mut fmt::Formatter<'_>, value: i32, names: &[&str]) -> fmt::Result {
    match usize::try_from(value).ok().and_then(|at| names.get(at)) {
        Some(name) => f.pad(name),
        None => write!(f, "unknown ({value})"),
    }
}

/// A NIC's timestamp setting (`struct hwtstamp_config`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Which sent packets are stamped.
    pub tx_type: TxType,
    /// Which received packets are stamped.
    pub rx_filter: RxFilter,
    /// `HWTSTAMP_FLAG_…`; never changed.
    pub flags: i32,
}

impl Config {
    /// Nothing is stamped.
    pub const OFF: Self = Self { tx_type: TxType::OFF, rx_filter: RxFilter::NONE, flags: 0 };
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx {}, rx {}", self.tx_type, self.rx_filter)
    }
}

/// The timestamp setting of a device, real or simulated by a test.
pub(crate) trait Settable {
    fn config(&self) -> io::Result<Config>;
    /// Changes the setting; returns the setting that the driver applied, which may differ.
    fn set_config(&self, config: Config) -> io::Result<Config>;
}

impl<T: Settable + ?Sized> Settable for &T {
    fn config(&self) -> io::Result<Config> {
        (**self).config()
    }
    fn set_config(&self, config: Config) -> io::Result<Config> {
        (**self).set_config(config)
    }
}
