//! What the host is, as far as it changes latencies: read once, at a run's start.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::Path};

/// Facts of the host. What cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Host name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// Kernel version line (`#1 SMP PREEMPT_RT …`).
    pub kernel_version: String,
    /// Kernel command line.
    pub kernel_command_line: String,
    /// Architecture.
    pub architecture: String,
    /// CPU model.
    pub cpu_model: String,
    /// CPUs that are on: `0-7`.
    pub cpus_online: String,
    /// CPUs that the scheduler leaves alone (`isolcpus`).
    pub cpus_isolated: String,
    /// CPUs whose tick stops (`nohz_full`).
    pub cpus_nohz_full: String,
    /// Frequency governors in use; empty where the host does not control its frequency (most VMs).
    pub governors: Vec<String>,
    /// Clock source.
    pub clocksource: String,
    /// Whether CPUs share cores: `on`, `off`, `notsupported`.
    pub smt: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel's boot, a random name: times of two runs with the same one are on one timeline.
    pub boot_id: String,
}

impl HostFacts {
    /// Reads them from `/proc` and `/sys`.
    pub fn read() -> Self {
        let cpu = |name: &str| line(format!("/sys/devices/system/cpu/{name}"));
        let (mut governors, cpuinfo) =
            (BTreeSet::new(), line_of("/proc/cpuinfo", &["model name", "Model", "cpu model"]));
        if let Ok(policies) = std::fs::read_dir("/sys/devices/system/cpu/cpufreq") {
            governors.extend(policies.flatten().map(|p| line(p.path().join("scaling_governor"))));
        }
        governors.remove("");
        let kib = line_of("/proc/meminfo", &["MemTotal"]);
        Self {
            name: line("/proc/sys/kernel/hostname"),
            kernel: line("/proc/sys/kernel/osrelease"),
            kernel_version: line("/proc/sys/kernel/version"),
            kernel_command_line: line("/proc/cmdline"),
            architecture: std::env::consts::ARCH.into(),
            cpu_model: cpuinfo,
            cpus_online: cpu("online"),
            cpus_isolated: cpu("isolated"),
            cpus_nohz_full: cpu("nohz_full").replace("(null)", ""),
            governors: governors.into_iter().collect(),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            smt: cpu("smt/control"),
            memory_bytes: kib.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
        }
    }
}

fn line(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// The value of the first line `NAME : value` with one of these names.
fn line_of(path: &str, names: &[&str]) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        names.contains(&name.trim()).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value).unwrap_or_default()
}
