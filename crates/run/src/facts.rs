//! Properties of the host that affect latencies, read once at a run's start.

use latpath_linux::proc::{boot_id, field, kernel_release, line, number};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Properties of the host. Those that cannot be read are empty.
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
    /// Whether the host is a virtual machine, whose hypervisor may deschedule its CPUs. Only detected on x86.
    pub is_virtual: bool,
    /// Online CPUs: `0-7`.
    pub cpus_online: String,
    /// CPUs excluded from scheduling (`isolcpus`).
    pub cpus_isolated: String,
    /// CPUs whose tick is off while they run only one thread (`nohz_full`).
    pub cpus_nohz_full: String,
    /// Frequency governors in use; empty if the host does not control its frequency (most VMs).
    pub governors: Vec<String>,
    /// Clock source.
    pub clocksource: String,
    /// Simultaneous multithreading: `on`, `off`, `notsupported`.
    pub smt: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Boot ID of the kernel: runs with the same boot ID share a timeline.
    pub boot_id: String,
}

impl HostFacts {
    /// Reads the properties from `/proc` and `/sys`.
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

/// Whether `/proc/cpuinfo` has the CPU flag that hypervisors set.
fn is_virtual() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&text, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// The CPU's name, whose field depends on the architecture.
fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    ["model name", "Model", "cpu model"].iter().find_map(|name| field(&text, name)).unwrap_or_default().into()
}
