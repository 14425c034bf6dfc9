//! The state of this machine's clocks: one document, from the system clock up to its final reference.

use crate::chrony::Chrony;
use crate::management::{ClockIdentity, PortState};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a clock follows its reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Synchronised.
    Following,
    /// Not yet synchronised.
    Acquiring,
    /// Measurements are overdue.
    Holdover,
    /// Measured, but not steered.
    FreeRunning,
    /// No daemon steers the clock.
    #[default]
    Unsynchronised,
    /// The clock is the reference of others.
    Master,
    /// ptp4l stopped using the port after an error.
    Faulty,
}

impl LinkState {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Following => "following",
            Self::Acquiring => "acquiring",
            Self::Holdover => "holdover",
            Self::FreeRunning => "free-running",
            Self::Unsynchronised => "unsynchronised",
            Self::Master => "master",
            Self::Faulty => "faulty",
        }
    }
}

/// A clock, and the clock that it follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Link {
    /// The clock, e.g. `system clock` or `ptp0 (eth0)`.
    pub clock: String,
    /// Its reference, e.g. `ptp0 (eth0)`, `grandmaster 2eec9f.fffe.3c2efa` or `192.0.2.1`; empty if it has none.
    pub follows: String,
    /// The daemon that steers it, e.g. `ptp4l`, `phc2sys` or `chronyd`; empty if none does.
    pub by: String,
    /// State of the synchronisation.
    pub state: LinkState,
    /// Latest offset of the clock from its reference, ns.
    pub offset_ns: Option<Ns>,
    /// Maximum error of the clock relative to its reference, ns.
    pub bound_ns: Option<Ns>,
    /// Age of the offset, ns.
    pub age_ns: Option<Ns>,
}

/// A port of a ptp4l.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PtpPort {
    /// Its number, from 1.
    pub number: u16,
    /// Its network device; empty if unknown.
    pub device: String,
    /// Its state.
    pub state: PortState,
    /// Whether the NIC takes the timestamps; `None` if unknown.
    pub in_hardware: Option<bool>,
    /// PHC index of the NIC's clock: N of `/dev/ptpN`.
    pub phc: Option<u32>,
    /// Interval between the master's Sync messages, ns.
    pub sync_interval_ns: Ns,
    /// Whether the path delay is measured between neighbours (P2P).
    pub is_peer_to_peer: bool,
    /// Sync messages received; `None` before linuxptp 3.0.
    pub rx_sync: Option<u64>,
    /// Path delay requests sent.
    pub tx_delay_requests: Option<u64>,
    /// Whether the device has a carrier; `None` if the device is in another network namespace.
    pub has_carrier: Option<bool>,
}

/// A running ptp4l.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PtpInstance {
    /// Its socket.
    pub socket: String,
    /// domainNumber.
    pub domain: u8,
    /// transportSpecific.
    pub transport_specific: u8,
    /// Identity of its clock.
    pub identity: ClockIdentity,
    /// The grandmaster's identity; equals `identity` if this clock is the grandmaster.
    pub grandmaster: ClockIdentity,
    /// clockClass of the grandmaster: 6 with a primary reference, 7 in holdover, 248 by default.
    pub grandmaster_class: u8,
    /// clockAccuracy of the grandmaster: 33 (0x21) for 100 ns, 254 for unknown.
    pub grandmaster_accuracy: u8,
    /// Number of steps from this clock to the grandmaster (stepsRemoved).
    pub steps_removed: u16,
    /// TAI − UTC, s; `None` if the grandmaster does not know it.
    pub utc_offset_s: Option<i16>,
    /// Whether its time is TAI.
    pub is_ptp_timescale: bool,
    /// Whether its time is traceable to a primary reference.
    pub time_traceable: bool,
    /// State of the synchronisation.
    pub state: LinkState,
    /// Latest offset from the master, ns.
    pub offset_ns: Option<Ns>,
    /// Mean path delay to the master, ns.
    pub path_delay_ns: Ns,
    /// Maximum error relative to the grandmaster, ns: the largest offset in the last 10 s plus the path delay, which
    /// limits the error due to path asymmetry.
    pub bound_ns: Option<Ns>,
    /// Age of the latest measurement, ns.
    pub age_ns: Option<Ns>,
    /// Arrival of the measured Sync message, in the clock that takes the timestamps, ns.
    pub ingress_ns: Ns,
    /// Whether ptp4l does not answer at present because it does not get its CPU; the other fields then keep their last
    /// values.
    pub is_silent: bool,
    /// Its ports.
    pub ports: Vec<PtpPort>,
}

impl PtpInstance {
    /// Whether this machine is the grandmaster.
    pub fn is_grandmaster(&self) -> bool {
        self.grandmaster == self.identity
    }

    /// The port that follows a master.
    pub fn following_port(&self) -> Option<&PtpPort> {
        let is = |state| self.ports.iter().find(|port| port.state == state);
        is(PortState::Slave).or_else(|| is(PortState::Uncalibrated))
    }

    /// PHC index of the clock that it steers; `None` for the system clock.
    pub fn phc(&self) -> Option<u32> {
        let port = self.following_port().or(self.ports.first())?;
        port.phc.filter(|_| port.in_hardware != Some(false))
    }

    /// Whether the system clock takes the timestamps; ptp4l then steers it directly.
    pub fn uses_system_clock(&self) -> bool {
        self.following_port().or(self.ports.first()).is_some_and(|port| port.in_hardware == Some(false))
    }

    /// Name of its clock.
    pub fn clock(&self) -> String {
        let port = self.following_port().or(self.ports.first());
        let device = port.map(|port| port.device.as_str()).filter(|device| !device.is_empty());
        match (self.uses_system_clock(), self.phc(), device) {
            (true, ..) => SYSTEM_CLOCK.into(),
            (_, Some(phc), Some(device)) => format!("ptp{phc} ({device})"),
            (_, Some(phc), None) => format!("ptp{phc}"),
            (_, None, Some(device)) => format!("clock of {device}"),
            _ => format!("clock {}", self.identity),
        }
    }

    /// Name of its reference.
    pub fn reference(&self) -> String {
        format!("grandmaster {}", self.grandmaster)
    }

    /// Name in results: `ptp4l eth0, domain 24`.
    pub fn name(&self) -> String {
        const NAMED: usize = 4;
        let devices = self.ports.iter().map(|port| port.device.as_str()).filter(|device| !device.is_empty());
        let devices: Vec<&str> = devices.take(NAMED).collect();
        let space = if devices.is_empty() { "" } else { " " };
        format!("ptp4l{space}{}, domain {}", devices.join(" "), self.domain)
    }
}

/// A running phc2sys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Phc2sys {
    /// Its process.
    pub pid: u32,
    /// The clock that it copies, as a device or a PHC; empty if ptp4l selects it.
    pub source: String,
    /// The clock that it steers: `CLOCK_REALTIME` by default.
    pub sink: String,
}

/// The kernel's own record of the system clock (`adjtimex`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KernelClock {
    /// Whether a daemon keeps the clock synchronised.
    pub synchronised: bool,
    /// Maximum error, ns; the kernel adds 500 µs per second until the daemon sets it again.
    pub max_error_ns: Ns,
    /// Frequency correction, ppb.
    pub frequency_ppb: i64,
    /// TAI − UTC, s; 0 if unknown.
    pub tai_offset_s: i32,
}

/// The hypervisor's clock in a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct VirtualClock {
    /// The guest's system clock minus the host's, ns; `None` if this user cannot read the device.
    pub offset_ns: Option<Ns>,
    /// Maximum error of the offset, ns.
    pub error_ns: Option<Ns>,
}

/// A grandmaster's time, read from a clock that follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PtpTime {
    /// The grandmaster.
    pub grandmaster: ClockIdentity,
    /// Time of the reading, `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// The grandmaster's time at that moment, UTC, ns.
    pub utc_ns: Ns,
    /// Maximum error of `utc_ns`, ns.
    pub bound_ns: Ns,
}

impl PtpTime {
    /// The time at which another machine read `other`, in this machine's `CLOCK_MONOTONIC`, and its maximum error, both
    /// ns.
    ///
    /// # Errors
    /// The machines follow different grandmasters.
    pub fn moment_of(&self, other: &Self) -> Result<(Ns, Ns), String> {
        if self.grandmaster != other.grandmaster {
            let (own, others) = (self.grandmaster, other.grandmaster);
            return Err(format!("the other machine's grandmaster is {others}, this one's is {own}"));
        }
        // Both values are the same grandmaster's time, so their difference is the time between the readings.
        let at = self.monotonic_ns.saturating_add(other.utc_ns.saturating_sub(self.utc_ns));
        Ok((at, other.bound_ns.max(0).saturating_add(self.bound_ns)))
    }
}

/// State of all clocks of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClockReport {
    /// Time of the reading, `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// The same moment in `CLOCK_REALTIME` (UTC since 1970), ns.
    pub utc_ns: Ns,
    /// The same moment in `CLOCK_TAI`, ns; equals `utc_ns` if the kernel has no TAI offset.
    pub tai_ns: Ns,
    /// Maximum error of the relation between these clocks, ns.
    pub tie_error_ns: Ns,
    /// Links from the system clock up to its root, then those of clocks that no other clock follows.
    pub links: Vec<Link>,
    /// The final reference of the system clock; `None` if it is not synchronised.
    pub root: Option<String>,
    /// Maximum error of the system clock relative to `root`, ns: the sum over the links between them.
    pub system_bound_ns: Option<Ns>,
    /// The grandmaster that the system clock follows; `None` if it follows none.
    pub grandmaster: Option<ClockIdentity>,
    /// The grandmaster's time, derived from the system clock if that follows one, otherwise from a NIC's clock that
    /// does.
    pub grandmaster_time: Option<PtpTime>,
    /// The kernel's record of the system clock.
    pub kernel: KernelClock,
    /// The running instances of ptp4l that answer.
    pub ptp: Vec<PtpInstance>,
    /// The running phc2sys processes.
    pub phc2sys: Vec<Phc2sys>,
    /// chronyd, if it answers.
    pub chrony: Option<Chrony>,
    /// The hypervisor's clock, in a guest that has it.
    pub virtual_clock: Option<VirtualClock>,
    /// Notes on data that could not be read, with the next step for the user.
    pub notes: Vec<String>,
}

/// Name of `CLOCK_REALTIME` in results.
pub const SYSTEM_CLOCK: &str = "system clock";

impl ClockReport {
    /// Whether the system clock is within `bound_ns` of its root.
    pub fn is_within(&self, bound_ns: Ns) -> bool {
        self.system_bound_ns.is_some_and(|bound| bound <= bound_ns)
    }

    /// Why the system clock is not within `bound_ns` of its root.
    pub fn why_not_within(&self, bound_ns: Ns) -> Option<String> {
        let system = self.links.first();
        match (self.system_bound_ns, system) {
            (Some(bound), _) if bound <= bound_ns => None,
            (Some(bound), _) => {
                Some(format!("the system clock is within {bound} ns of {}", self.root.as_deref().unwrap_or("its root")))
            }
            (None, Some(link)) if !link.by.is_empty() => {
                let broken = self.links.iter().find(|link| link.state != LinkState::Following).unwrap_or(link);
                Some(format!("{} is {}", broken.clock, broken.state.name()))
            }
            (None, _) => Some("nobody steers the system clock".into()),
        }
    }
}
