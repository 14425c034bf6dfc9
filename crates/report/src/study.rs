//! What `latpath study vhost` keeps of each configuration of a VM, and the page that compares them.

mod page;

use crate::cpu_profile::CallLine;
use crate::exits::VmExits;
use latpath_exits::Traffic;
use latpath_ladder::LadderReport;
use latpath_model::Ns;
use latpath_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use page::{study_of_vms_html, study_of_vms_text};

/// What the version of [`Configuration`] is that this latpath writes.
pub const VERSION: u32 = 1;

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
    /// The load.
    pub command: Vec<String>,
    /// The load with nothing attached, several times.
    pub alone: Vec<Work>,
    /// The load while exits were counted.
    pub exits: Option<Part<VmExits>>,
    /// The load while its transfers were followed.
    pub ladder: Option<Part<LadderReport>>,
    /// The load while the buffers of its virtqueues were counted.
    pub queues: Option<Part<Vec<QueueRow>>>,
    /// The load while CPUs were sampled.
    pub profile: Option<Part<KeptProfile>>,
    /// What could not be measured, and why; what the reader must know.
    pub notes: Vec<String>,
}

/// A measurement, and what the load did meanwhile.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part<T> {
    /// What the load did.
    pub work: Work,
    /// What was measured.
    pub figures: T,
}

/// What passed one virtqueue.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct QueueRow {
    /// `driver`: as the guest's driver saw it. `vhost`: as the host's vhost did.
    pub side: String,
    /// `input.0`, `tx 0`.
    pub queue: String,
    /// Buffers that were used.
    pub used_buffers: u64,
    /// Bytes that the device wrote to them or read from them, with virtio's headers.
    pub bytes: u64,
    /// Kicks.
    pub kicks: u64,
    /// Kicks that the device had said it does not need.
    pub kicks_suppressed: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Interrupts that the driver had said it does not need.
    pub interrupts_suppressed: u64,
    /// Buffers for each kick (vhost: each round of its worker): the mean.
    pub per_kick: f64,
    /// How long the device had a buffer: the median.
    pub waited_p50_ns: Ns,
}

impl QueueRow {
    /// The queues of network cards and taps in what `latpath queues --json` prints.
    pub fn of_printed(printed: &Value) -> Vec<Self> {
        let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
        let is_net = |device: &Value| device["side"] == "vhost" || device["driver"] == "virtio_net";
        let mut rows = Vec::new();
        for device in list(&printed["devices"]).iter().filter(|device| is_net(device)) {
            for queue in list(&device["queues"]) {
                let number = |name: &str| queue[name].as_u64().unwrap_or(0);
                let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
                rows.push(Self {
                    side: text(&device["side"]),
                    queue: text(&queue["queue"]),
                    used_buffers: number("used_buffers"),
                    bytes: number("written_bytes") + number("read_bytes"),
                    kicks: number("kicks"),
                    kicks_suppressed: number("kicks_suppressed"),
                    interrupts: number("interrupts"),
                    interrupts_suppressed: number("interrupts_suppressed"),
                    per_kick: queue["per_kick"]["mean"].as_f64().unwrap_or(0.0),
                    waited_p50_ns: queue["waited"]["p50_ns"].as_i64().unwrap_or(0),
                });
            }
        }
        rows.retain(|row| row.used_buffers + row.kicks > 0);
        rows
    }
}

/// Where the CPUs' time went.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeptProfile {
    /// The text that `latpath profile --out` keeps.
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

/// What the load did.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// From its start to its end.
    pub took_ns: Ns,
    /// What passed the VM's taps meanwhile, as the kernel counted it.
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
        let read: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match read.version {
            VERSION => {
                read.profile.iter().try_for_each(|part| part.figures.profile().map(drop))?;
                Ok(read)
            }
            other => Err(format!("it is of version {other}; this latpath reads {VERSION}")),
        }
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

    #[test]
    fn without_such_an_account_the_taps_say_it() {
        let traffic = Traffic { to_guest_bytes: 1_000_000, from_guest_bytes: 250_000, ..Traffic::default() };
        let work = Work { took_ns: 1_000_000_000, traffic, reported_bits_per_second: None };
        assert_eq!(work.bits_per_second(), 10e6);
    }
}
