//! KVM's own counters, for comparison: `/sys/kernel/debug/kvm/TID-FD`.

use latpath_linux::proc::Root;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// KVM's counters of a process's VMs, since their creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvmCounters {
    /// Number of exits.
    pub exits: u64,
    /// Number of exits because the guest was idle.
    pub halt_exits: u64,
    /// Number of interrupts injected.
    pub irq_injections: u64,
    /// Number of NMIs injected.
    #[serde(default)]
    pub nmi_injections: u64,
    /// Time that KVM polled during halts, ns, successfully or not.
    pub halt_polling_ns: u64,
    /// Number of halts in which KVM polled.
    #[serde(default)]
    pub halt_polls: u64,
    /// Number of halts that ended while KVM polled, so that the vCPU did not sleep.
    #[serde(default)]
    pub halt_polls_successful: u64,
    /// Number of halts ended by anything other than a signal or a host timer.
    #[serde(default)]
    pub halt_wakeups: u64,
}

impl KvmCounters {
    /// Reads the counters of a process's VMs; `None` if debugfs is not mounted or has no entry for them.
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
            // On ARM, halts are waits for events and for interrupts.
            sum.halt_exits += read("halt_exits") + read("wfe_exit_stat") + read("wfi_exit_stat");
            sum.irq_injections += read("irq_injections");
            sum.nmi_injections += read("nmi_injections");
            sum.halt_polling_ns += read("halt_poll_success_ns") + read("halt_poll_fail_ns");
            sum.halt_polls += read("halt_attempted_poll");
            sum.halt_polls_successful += read("halt_successful_poll");
            sum.halt_wakeups += read("halt_wakeup");
        }
        sum
    }

    /// Increments since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            exits: self.exits.saturating_sub(before.exits),
            halt_exits: self.halt_exits.saturating_sub(before.halt_exits),
            irq_injections: self.irq_injections.saturating_sub(before.irq_injections),
            nmi_injections: self.nmi_injections.saturating_sub(before.nmi_injections),
            halt_polling_ns: self.halt_polling_ns.saturating_sub(before.halt_polling_ns),
            halt_polls: self.halt_polls.saturating_sub(before.halt_polls),
            halt_polls_successful: self.halt_polls_successful.saturating_sub(before.halt_polls_successful),
            halt_wakeups: self.halt_wakeups.saturating_sub(before.halt_wakeups),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_kvm_counts_of_all_vms_of_a_process_is_added_up() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("proc/7/task/7")).expect("a process");
        let files = [
            ("exits", 100),
            ("halt_exits", 9),
            ("irq_injections", 5),
            ("nmi_injections", 1),
            ("halt_poll_success_ns", 300),
            ("halt_poll_fail_ns", 700),
            ("halt_attempted_poll", 8),
            ("halt_successful_poll", 3),
            ("halt_wakeup", 6),
        ];
        for vm in ["7-11", "7-12"] {
            let folder = root.path().join("sys/kernel/debug/kvm").join(vm);
            fs::create_dir_all(&folder).expect("a folder of KVM's");
            files.iter().for_each(|(name, n)| fs::write(folder.join(name), format!("{n}\n")).expect("a counter"));
        }
        let counters = KvmCounters::at(&Root::of(root.path()), 7).expect("counters");
        let expected = KvmCounters {
            exits: 200,
            halt_exits: 18,
            irq_injections: 10,
            nmi_injections: 2,
            halt_polling_ns: 2000,
            halt_polls: 16,
            halt_polls_successful: 6,
            halt_wakeups: 12,
        };
        assert_eq!(counters, expected);
        assert_eq!(counters.since(counters), KvmCounters::default());
        assert_eq!(KvmCounters::at(&Root::of(root.path()), 8), None);
    }
}
