//! What a study keeps of each configuration of a VM.

mod measure;
mod setup;

use crate::exits::VmExits;
use crate::in_guest::figures_add_up;
use crate::profile::{without_vm_name, CallLine};
use crate::queues::{Device, QueuesFigures};
use latpath_exits::Traffic;
use latpath_ladder::LadderFigures;
use latpath_model::{Ns, Observation};
use latpath_profile::Profile;
use latpath_queues::Side;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use measure::{Progress, Study, StudyError};
use setup::setup;

/// Version of [`Configuration`] that this latpath writes.
pub const VERSION: u32 = 3;

/// What every version of a [`Configuration`] has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// A VM in one of its configurations, under one load.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Version of this format.
    pub version: u32,
    /// What the user calls it: `standard`, `vhost`.
    pub name: String,
    /// The VM.
    pub vm: String,
    /// The host's kernel.
    pub kernel: String,
    /// latpath's version.
    pub latpath: String,
    /// What else may differ between configurations.
    #[serde(default)]
    pub setup: Setup,
    /// The load.
    pub command: Vec<String>,
    /// The load with nothing attached, several times.
    pub alone: Vec<Work>,
    /// The load while exits were counted.
    pub exits: Option<Part<VmExits>>,
    /// The load while its transfers were followed.
    pub ladder: Option<Part<Observation<LadderFigures>>>,
    /// The load while the buffers of its virtqueues were counted.
    pub queues: Option<Part<Vec<Device>>>,
    /// The load while CPUs were sampled.
    pub profile: Option<Part<KeptProfile>>,
    /// What could not be measured, and why; what the reader must know.
    pub notes: Vec<String>,
    /// The host was emulated: times and rates there say nothing of hardware.
    #[serde(default)]
    pub emulated: bool,
}

/// What a VM runs on and with, as far as its host shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Setup {
    /// The hypervisor's version, as the file of its program contains it; `None` where it is not known.
    pub hypervisor: Option<String>,
    /// QEMU's machine type: `pc-q35-7.2`.
    pub machine: Option<String>,
    /// CPUs of the host that are online.
    pub host_cpus: String,
    /// The CPUs that each vCPU's thread may run on, by its number.
    pub vcpus: Vec<String>,
    /// The CPUs that the VM's vhost workers may run on.
    pub vhost_workers: Vec<String>,
    /// How long KVM polls in halts at most (its parameter `halt_poll_ns`).
    pub halt_poll_ns: Option<u64>,
    /// Whether KVM lets hardware deliver interrupts (its parameters `enable_apicv`, `avic`).
    pub posted_interrupts: Option<bool>,
}

/// A measurement, and what the load did in its window.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part<T> {
    /// What the load did.
    pub work: Work,
    /// What was measured.
    pub figures: T,
}

/// What was counted of packets may differ by this part from what the device counted: both windows are nearly the same.
const TOLERATED: f64 = 0.01;

/// The network cards and taps that `latpath queues` has seen, with the queues that were used, and what must be known of their figures.
pub fn network_queues(observation: Observation<QueuesFigures>) -> (Vec<Device>, Vec<String>) {
    let mut notes: Vec<String> = observation.remarks().cloned().collect();
    let is_net = |device: &Device| device.side == Side::Vhost || device.driver.as_deref() == Some("virtio_net");
    let mut devices: Vec<Device> = observation.figures.devices.into_iter().filter(is_net).collect();
    for device in &mut devices {
        device.queues.retain(|queue| queue.used_buffers + queue.kicks > 0);
        let name = device.known_as.first().or(device.name.as_ref()).map_or("a device", |name| name.as_str());
        for queue in &device.queues {
            let (posted, used) = (queue.posted_index_difference, queue.used_index_difference);
            if posted != 0 || used != 0 {
                notes.push(format!(
                    "{name}, {}: its ring's own indices differ from what was counted: {posted:+} posted, {used:+} used",
                    queue.queue
                ));
            }
        }
        for (direction, agreement) in [("to", device.to_guest), ("from", device.from_guest)] {
            notes.extend(agreement.and_then(|agreement| {
                let (packets, bytes) = agreement.difference();
                let is_much = |n: i64, of: u64| n.unsigned_abs() as f64 > of as f64 * TOLERATED;
                let differs = is_much(packets, agreement.device_packets) || is_much(bytes, agreement.device_bytes);
                let text = || format!("{name}: its queues differ from its own counter by {packets:+} packets and {bytes:+} B {direction} the guest");
                differs.then(text)
            }));
        }
    }
    (devices, notes)
}

/// Where the CPUs' time went.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeptProfile {
    /// The text that `latpath profile -o` keeps.
    pub kept: String,
    /// System calls of the VM's threads.
    pub system_calls: Vec<CallLine>,
}

impl KeptProfile {
    /// The profile.
    ///
    /// # Errors
    /// Where the text is none.
    pub fn profile(&self) -> Result<Profile, String> {
        Profile::parse(self.kept.as_bytes(), "the kept profile").map_err(|e| e.to_string())
    }
}

/// A load that runs at less than this part of its least rate by itself is starved: what is measured then is not the load.
const STARVED: f64 = 0.1;

impl Configuration {
    /// Its profile without the VM's name, so that it can be compared with another configuration's; `None` where none
    /// was taken, or its load was starved.
    pub fn profile(&self) -> Option<Profile> {
        Some(without_vm_name(self.profiled()?.figures.profile().ok()?, &self.vm))
    }

    /// The load while CPUs were sampled, unless it was starved.
    pub fn profiled(&self) -> Option<&Part<KeptProfile>> {
        self.profile.as_ref().filter(|part| !self.is_starved(&part.work))
    }

    /// Whether the load was starved while something was measured.
    pub fn is_starved(&self, work: &Work) -> bool {
        let least = self.alone.iter().map(Work::bits_per_second).reduce(f64::min);
        least.is_some_and(|least| work.bits_per_second() < least * STARVED)
    }
}

/// What the load did.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// From its start to its end.
    pub took_ns: Ns,
    /// What passed the VM's taps in that time, as the kernel counted it.
    pub traffic: Traffic,
    /// What the load itself says of its rate (`end.sum_received.bits_per_second` of `iperf3 --json`).
    pub reported_bits_per_second: Option<f64>,
}

impl Work {
    /// Bits a second: by its own account, else what passed the taps over its time.
    pub fn bits_per_second(&self) -> f64 {
        let counted = || self.traffic.bytes() as f64 * 8e9 / self.took_ns.max(1) as f64;
        self.reported_bits_per_second.unwrap_or_else(counted)
    }

    /// 10^9 bytes that passed the taps.
    pub fn gigabytes(&self) -> f64 {
        self.traffic.bytes() as f64 / 1e9
    }

    /// What iperf3 printed as JSON says of its rate.
    pub fn reported(printed: &str) -> Option<f64> {
        let report: Value = serde_json::from_str(printed.trim()).ok()?;
        let end = &report["end"];
        let rate = |key: &str| end[key]["bits_per_second"].as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
        rate("sum_received").or_else(|| rate("sum"))
    }
}

impl Configuration {
    /// Reads what an earlier run has written.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        match serde_json::from_str(text).map_err(|e| e.to_string())? {
            Versioned { version: VERSION } => {}
            Versioned { version } => return Err(format!("it is of version {version}; this latpath reads {VERSION}")),
        }
        figures_add_up(text, Ns::MAX / 4)?;
        let read: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        read.profile.iter().try_for_each(|part| part.figures.profile().map(drop))?;
        Ok(read)
    }

    /// The load's rate with nothing attached: the median.
    pub fn rate(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.alone.iter().map(Work::bits_per_second).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iperfs_own_account_is_read_and_nothing_else_is_taken_for_it() {
        let printed =
            r#"{"start":{},"end":{"sum_sent":{"bits_per_second":9},"sum_received":{"bits_per_second":8.5e6}}}"#;
        assert_eq!(Work::reported(printed), Some(8.5e6));
        assert_eq!(Work::reported(r#"{"end":{"sum":{"bits_per_second":7}}}"#), Some(7.0), "UDP");
        for other in ["", "64 bytes from 192.0.2.2", "{}", r#"{"end":{"sum":{"bits_per_second":-1}}}"#] {
            assert_eq!(Work::reported(other), None, "{other}");
        }
    }

    fn configuration(alone: Vec<Work>) -> String {
        let alone = serde_json::to_value(alone).unwrap();
        let (version, nothing) = (VERSION, Vec::<String>::new());
        serde_json::json!({"version": version, "name": "a", "vm": "vm", "kernel": "", "latpath": "", "command": nothing,
            "alone": alone, "exits": null, "ladder": null, "queues": null, "profile": null, "notes": nothing})
        .to_string()
    }

    #[test]
    fn figures_whose_sums_would_overflow_are_refused() {
        for traffic in [
            Traffic { to_guest_packets: u64::MAX, from_guest_packets: 1, ..Traffic::default() },
            Traffic { to_guest_bytes: 1 << 63, from_guest_bytes: 1 << 63, ..Traffic::default() },
        ] {
            let kept = configuration(vec![Work { traffic, ..Work::default() }]);
            assert!(Configuration::read(&kept).unwrap_err().contains("higher than any"));
        }
        assert!(Configuration::read(&configuration(vec![Work::default()])).is_ok());
    }

    #[test]
    fn without_such_an_account_the_taps_say_it() {
        let traffic = Traffic { to_guest_bytes: 1_000_000, from_guest_bytes: 250_000, ..Traffic::default() };
        let work = Work { took_ns: 1_000_000_000, traffic, reported_bits_per_second: None };
        assert_eq!(work.bits_per_second(), 10e6);
    }
}
