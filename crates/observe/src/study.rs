//! The record that a study keeps of each configuration of a VM.

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

/// The field common to all versions of [`Configuration`].
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// A VM in one of its configurations, under one load.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Version of this format.
    pub version: u32,
    /// Name that the user gave it, e.g. `standard`, `vhost`.
    pub name: String,
    /// The VM.
    pub vm: String,
    /// The host's kernel.
    pub kernel: String,
    /// latpath's version.
    pub latpath: String,
    /// Other settings that may differ between configurations.
    #[serde(default)]
    pub setup: Setup,
    /// Command of the load.
    pub command: Vec<String>,
    /// Runs of the load without an instrument.
    pub alone: Vec<Work>,
    /// The run in which exits were counted.
    pub exits: Option<Part<VmExits>>,
    /// The run in which transfers were followed.
    pub ladder: Option<Part<Observation<LadderFigures>>>,
    /// The run in which the buffers of the virtqueues were counted.
    pub queues: Option<Part<Vec<Device>>>,
    /// The run in which CPUs were sampled.
    pub profile: Option<Part<KeptProfile>>,
    /// Measurements that failed, with the reasons, and other notes for the reader.
    pub notes: Vec<String>,
    /// Whether the host was emulated, so that its times and rates do not apply to hardware.
    #[serde(default)]
    pub emulated: bool,
}

/// Host, hypervisor and CPU placement of a VM, as visible on its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Setup {
    /// Version of the hypervisor, determined from its executable; `None` if unknown.
    pub hypervisor: Option<String>,
    /// QEMU's machine type, e.g. `pc-q35-7.2`.
    pub machine: Option<String>,
    /// List of the host's online CPUs.
    pub host_cpus: String,
    /// CPUs on which each vCPU thread may run, by vCPU index.
    pub vcpus: Vec<String>,
    /// CPUs on which the VM's vhost workers may run.
    pub vhost_workers: Vec<String>,
    /// Maximum time that KVM polls in a halt, ns (its parameter `halt_poll_ns`).
    pub halt_poll_ns: Option<u64>,
    /// Whether KVM lets hardware deliver interrupts (its parameters `enable_apicv`, `avic`).
    pub posted_interrupts: Option<bool>,
}

/// A measurement, and the work that the load did during it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part<T> {
    /// Work of the load.
    pub work: Work,
    /// Results of the measurement.
    pub figures: T,
}

/// Maximum relative difference between the queues' counters and the device's for which no note is added. The windows of
/// the two differ slightly.
const TOLERATED: f64 = 0.01;

/// The network cards and taps in the figures of `latpath queues`, each with only the queues that were used, and notes
/// on the figures.
pub fn network_queues(observation: Observation<QueuesFigures>) -> (Vec<Device>, Vec<String>) {
    let mut notes: Vec<String> = observation.remarks().cloned().collect();
    let is_net = |device: &Device| device.side == Side::Vhost || device.driver.as_deref() == Some("virtio_net");
    let mut devices: Vec<Device> = observation.figures.devices.into_iter().filter(is_net).collect();
    for device in &mut devices {
        device.queues.retain(|queue| queue.counts.used_buffers + queue.counts.kicks > 0);
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

/// A profile of the CPUs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeptProfile {
    /// The profile, in the format of `latpath profile -o`.
    pub kept: String,
    /// System calls of the VM's threads.
    pub system_calls: Vec<CallLine>,
}

impl KeptProfile {
    /// Parses the profile.
    ///
    /// # Errors
    /// If the text is not a profile.
    pub fn profile(&self) -> Result<Profile, String> {
        Profile::parse(self.kept.as_bytes(), "the kept profile").map_err(|e| e.to_string())
    }
}

/// The load is starved if its rate is below this fraction of its lowest rate without instruments: a measurement then
/// does not describe the load.
const STARVED: f64 = 0.1;

impl Configuration {
    /// The profile without the VM's name, for comparison with other configurations; `None` if no profile was taken, or
    /// the load was starved.
    pub fn profile(&self) -> Option<Profile> {
        Some(without_vm_name(self.profiled()?.figures.profile().ok()?, &self.vm))
    }

    /// The run in which CPUs were sampled, unless the load was starved.
    pub fn profiled(&self) -> Option<&Part<KeptProfile>> {
        self.profile.as_ref().filter(|part| !self.is_starved(&part.work))
    }

    /// Whether the load was starved in this run.
    pub fn is_starved(&self, work: &Work) -> bool {
        let least = self.alone.iter().map(Work::bits_per_second).reduce(f64::min);
        least.is_some_and(|least| work.bits_per_second() < least * STARVED)
    }
}

/// Work of the load in one run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Time from the start of the load to its end, ns.
    pub took_ns: Ns,
    /// Traffic of the VM's taps in this time, as counted by the kernel.
    pub traffic: Traffic,
    /// Rate that the load itself reports (`end.sum_received.bits_per_second` of `iperf3 --json`).
    pub reported_bits_per_second: Option<f64>,
}

impl Work {
    /// Bits per second as reported by the load, if it reports them; otherwise the traffic of the taps divided by the
    /// time.
    pub fn bits_per_second(&self) -> f64 {
        let counted = || self.traffic.bytes() as f64 * 8e9 / self.took_ns.max(1) as f64;
        self.reported_bits_per_second.unwrap_or_else(counted)
    }

    /// Traffic of the taps in units of 10^9 bytes.
    pub fn gigabytes(&self) -> f64 {
        self.traffic.bytes() as f64 / 1e9
    }

    /// The rate in iperf3's JSON report.
    pub fn reported(printed: &str) -> Option<f64> {
        let report: Value = serde_json::from_str(printed.trim()).ok()?;
        let end = &report["end"];
        let rate = |key: &str| end[key]["bits_per_second"].as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
        rate("sum_received").or_else(|| rate("sum"))
    }
}

impl Configuration {
    /// Reads a configuration that an earlier run wrote.
    ///
    /// # Errors
    /// If the text is not a valid configuration of this version.
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

    /// Median rate of the load without an instrument.
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
