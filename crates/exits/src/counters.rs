//! KVM's own counters, to hold ours against: `/sys/kernel/debug/kvm/TID-FD`.

use latpath_linux::proc::Root;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What KVM has counted for the VMs of a process since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvmCounters {
    /// Exits.
    pub exits: u64,
    /// Exits because the guest had nothing to do.
    pub halt_exits: u64,
    /// Interrupts injected.
    pub irq_injections: u64,
    /// NMIs injected.
    #[serde(default)]
    pub nmi_injections: u64,
    /// Polling in halts, in ns, whether it helped or not.
    pub halt_polling_ns: u64,
}

impl KvmCounters {
    /// Those of a process's VMs; `None` where debugfs is not mounted, or has none of them.
    pub fn of(pid: u32) -> Option<Self> {
        Self::at(&Root::of(Path::new("/")), pid)
    }

    fn at(root: &Root, pid: u32) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for folder in latpath_vms::kvm_folders(root, pid) {
            let read = |name: &str| -> u64 {
                root.text(&format!("{folder}/{name}")).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
            };
            let sum = sum.get_or_insert_with(Self::default);
            sum.exits += read("exits");
            // On ARM, waits for events and for interrupts.
            sum.halt_exits += read("halt_exits") + read("wfe_exit_stat") + read("wfi_exit_stat");
            sum.irq_injections += read("irq_injections");
            sum.nmi_injections += read("nmi_injections");
            sum.halt_polling_ns += read("halt_poll_success_ns") + read("halt_poll_fail_ns");
        }
        sum
    }

    /// What was counted since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            exits: self.exits.saturating_sub(before.exits),
            halt_exits: self.halt_exits.saturating_sub(before.halt_exits),
            irq_injections: self.irq_injections.saturating_sub(before.irq_injections),
            nmi_injections: self.nmi_injections.saturating_sub(before.nmi_injections),
            halt_polling_ns: self.halt_polling_ns.saturating_sub(before.halt_polling_ns),
        }
    }
}
