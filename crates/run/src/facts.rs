//! What the host is, as far as it changes latencies: read once, at a run's start.

use latpath_linux::proc::{boot_id, field, kernel_release, line, number};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Facts of the host. What cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// It is a virtual machine itself: a hypervisor may keep its CPUs from running. Known of x86 alone.
    pub is_virtual: bool,
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
        let mut governors = BTreeSet::new();
        if let Ok(policies) = std::fs::read_dir("/sys/devices/system/cpu/cpufreq") {
            governors.extend(policies.flatten().map(|p| line(p.path().join("scaling_governor"))));
        }
        governors.remove("");
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            name: line("/proc/sys/kernel/hostname"),
            kernel: kernel_release(),
            kernel_version: line("/proc/sys/kernel/version"),
            kernel_command_line: line("/proc/cmdline"),
            architecture: std::env::consts::ARCH.into(),
            cpu_model: cpu_model(),
            is_virtual: is_virtual(),
            cpus_online: cpu("online"),
            cpus_isolated: cpu("isolated"),
            cpus_nohz_full: cpu("nohz_full").replace("(null)", ""),
            governors: governors.into_iter().collect(),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            smt: cpu("smt/control"),
            memory_bytes: number(&memory, "MemTotal").unwrap_or(0).saturating_mul(1024),
            boot_id: boot_id(),
        }
    }
}

/// The bit that hypervisors set.
fn is_virtual() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&text, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// A CPU's name: each architecture has another field for it.
fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    ["model name", "Model", "cpu model"].iter().find_map(|name| field(&text, name)).unwrap_or_default().into()
}
