//! The JSON document of `latpath ping caps`.

use crate::{Caps, Check, ClockRead, Config, Current, RxFilter, RxHardware, TxType, Verified};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Output of `latpath ping caps --json`: a device's claimed timestamps, and the results of its tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapsDocument {
    /// Name of the device.
    pub device: String,
    /// Index of the device in its network namespace.
    pub ifindex: u32,
    /// Whether the device is administratively up.
    pub up: bool,
    /// Whether the device has a carrier.
    pub link: bool,
    /// Name of the driver; null if unknown.
    pub driver: Option<String>,
    /// Bus address of the device, or null.
    pub bus: Option<String>,
    /// Clock of the NIC; null without one.
    pub phc: Option<ClockDocument>,
    /// Current setting of the NIC's timestamps; null if the driver does not report it.
    pub set: Option<SettingDocument>,
    /// Why the setting is unknown; null if it is known.
    pub set_unknown: Option<String>,
    /// Settings for sent packets that the driver claims to support, named as by `ethtool -T`.
    pub tx_types: Vec<String>,
    /// Settings for received packets that the driver claims to support, named as by `ethtool -T`.
    pub rx_filters: Vec<String>,
    /// Kinds of timestamps.
    pub stamps: StampsDocument,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// Clock of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockDocument {
    /// PHC index: N of `/dev/ptpN`.
    pub index: u32,
    /// Name of the clock, from its driver, or null.
    pub name: Option<String>,
    /// Request by which the clock was read; null if it could not be read.
    pub read_by: Option<String>,
    /// The clock's time minus `CLOCK_MONOTONIC`, ns; null if it could not be read.
    pub offset_ns: Option<Ns>,
    /// Error bound of the offset, ns; null if the clock could not be read.
    pub uncertainty_ns: Option<Ns>,
    /// Whether the clock runs.
    #[serde(flatten)]
    pub check: CheckDocument,
}

/// Setting of a NIC's timestamps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingDocument {
    /// Timestamps of sent packets, named as by `ethtool -T`.
    pub tx: String,
    /// Timestamps of received packets, named as by `ethtool -T`.
    pub rx: String,
}

impl From<&Config> for SettingDocument {
    fn from(config: &Config) -> Self {
        Self { tx: config.tx_type.to_string(), rx: config.rx_filter.to_string() }
    }
}

/// Kinds of timestamps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StampsDocument {
    /// On sent packets, before the queueing discipline.
    pub tx_sched: StampDocument,
    /// On sent packets, by the driver.
    pub tx_driver: StampDocument,
    /// On sent packets, by the NIC.
    pub tx_nic: StampDocument,
    /// On received packets, made by the NIC. Claimed if the NIC can stamp at least some packets; `check` is
    /// `not_offered` unless it can stamp all.
    pub rx_nic: StampDocument,
    /// On received packets, by the kernel.
    pub rx_kernel: StampDocument,
}

/// One kind of timestamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StampDocument {
    /// Whether the device claims to make the timestamp.
    pub claimed: bool,
    /// Whether `latpath ping` requests the timestamp.
    pub used: bool,
    /// Result of the test.
    #[serde(flatten)]
    pub check: CheckDocument,
}

/// Result of the test of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckDocument {
    /// Outcome of the test.
    pub state: CheckState,
    /// Why the test failed or was skipped; otherwise null.
    pub why: Option<String>,
}

/// Outcome of the test of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// The claim holds.
    Works,
    /// The claim is false.
    Fails,
    /// The claim could not be tested.
    NotTried,
    /// The device does not make the claim.
    NotOffered,
}

impl From<&Check> for CheckDocument {
    fn from(check: &Check) -> Self {
        let (state, why) = match check {
            Check::Works => (CheckState::Works, None),
            Check::Failed(why) => (CheckState::Fails, Some(why)),
            Check::Untried(why) => (CheckState::NotTried, Some(why)),
            Check::NotOffered => (CheckState::NotOffered, None),
        };
        Self { state, why: why.cloned() }
    }
}

impl CapsDocument {
    /// Builds the document from a device's claims and the results of its tests.
    pub fn of(caps: &Caps, verified: &Verified) -> Self {
        let (set, set_unknown) = match &caps.current {
            Current::Set(config) => (Some(config.into()), None),
            Current::Unknown(why) => (None, Some(why.clone())),
        };
        let bits = |mask: u32| (0..32).filter(move |n| mask & (1 << n) != 0);
        let used = verified.worth_asking();
        let stamp = |claimed, used, check: &Check| StampDocument { claimed, used, check: check.into() };
        let by_kernel = Check::Untried("the kernel makes them on every device".into());
        Self {
            device: caps.device.clone(),
            ifindex: caps.ifindex,
            up: caps.up,
            link: caps.running,
            driver: caps.driver.clone(),
            bus: caps.bus.clone(),
            phc: caps.phc.map(|index| ClockDocument::of(index, verified.clock_read.as_ref(), &verified.clock)),
            set,
            set_unknown,
            tx_types: bits(caps.tx_types).map(|n| TxType(n).to_string()).collect(),
            rx_filters: bits(caps.rx_filters).map(|n| RxFilter(n).to_string()).collect(),
            stamps: StampsDocument {
                tx_sched: stamp(true, used.tx_sched, &verified.tx_sched),
                tx_driver: stamp(caps.tx_driver(), used.tx_driver, &verified.tx_driver),
                tx_nic: stamp(caps.tx_nic(), used.tx_nic, &verified.tx_nic),
                rx_nic: stamp(caps.rx_nic() != RxHardware::Nothing, used.rx_nic, &verified.rx_nic),
                rx_kernel: stamp(true, used.rx_kernel, &by_kernel),
            },
            notes: verified.notes.clone(),
        }
    }
}

impl ClockDocument {
    fn of(index: u32, read: Option<&ClockRead>, check: &Check) -> Self {
        Self {
            index,
            name: read.and_then(|read| read.name.clone()),
            read_by: read.map(|read| read.method.to_string()),
            offset_ns: read.map(|read| read.reading.phc_ns.saturating_sub(read.reading.monotonic_ns)),
            uncertainty_ns: read.map(|read| read.reading.uncertainty_ns),
            check: check.into(),
        }
    }
}
