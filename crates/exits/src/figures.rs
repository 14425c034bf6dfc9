//! The results, as plain numbers.

use latpath_bpf::Window;
use latpath_histogram::Histogram;
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of a vCPU's thread; at each moment it is in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VcpuState {
    /// Unknown: before its first event.
    NotKnown,
    /// Runs guest code.
    Guest,
    /// KVM handles an exit, or returns to the guest.
    Kvm,
    /// The hypervisor's process (QEMU) handles an exit.
    Qemu,
    /// The guest is halted, and KVM polls for work before the thread sleeps (`halt_poll_ns`).
    Polling,
    /// The thread sleeps: halted, or waiting in the kernel.
    Asleep,
    /// Runnable, but another thread runs.
    Ready,
    /// An interrupt or softirq runs on its CPU.
    Interrupted,
}

impl VcpuState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::NotKnown,
        Self::Guest,
        Self::Kvm,
        Self::Qemu,
        Self::Polling,
        Self::Asleep,
        Self::Ready,
        Self::Interrupted,
    ];

    /// Name shown to the user.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotKnown => "not known",
            Self::Guest => "in the guest",
            Self::Kvm => "in KVM",
            Self::Qemu => "in QEMU",
            Self::Polling => "polling",
            Self::Asleep => "asleep",
            Self::Ready => "ready",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Time in each state, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VcpuTimes {
    /// Before the first event.
    pub not_known_ns: Ns,
    /// Running guest code.
    pub guest_ns: Ns,
    /// In KVM.
    pub kvm_ns: Ns,
    /// In the hypervisor's process.
    pub qemu_ns: Ns,
    /// Polling by KVM while the guest was halted.
    pub polling_ns: Ns,
    /// Asleep.
    pub asleep_ns: Ns,
    /// Runnable, waiting for a CPU.
    pub ready_ns: Ns,
    /// Interrupts and softirqs on its CPU.
    pub interrupted_ns: Ns,
}

impl VcpuTimes {
    /// Time in one state, ns.
    pub fn of(&mut self, tile: VcpuState) -> &mut Ns {
        match tile {
            VcpuState::NotKnown => &mut self.not_known_ns,
            VcpuState::Guest => &mut self.guest_ns,
            VcpuState::Kvm => &mut self.kvm_ns,
            VcpuState::Qemu => &mut self.qemu_ns,
            VcpuState::Polling => &mut self.polling_ns,
            VcpuState::Asleep => &mut self.asleep_ns,
            VcpuState::Ready => &mut self.ready_ns,
            VcpuState::Interrupted => &mut self.interrupted_ns,
        }
    }

    /// Each state with its time, ns.
    pub fn all(mut self) -> [(VcpuState, Ns); 8] {
        VcpuState::ALL.map(|tile| (tile, *self.of(tile)))
    }

    /// Divides the times by `n`: the average per item.
    pub fn for_each(self, n: f64) -> Self {
        let mut each = Self::default();
        self.all().iter().for_each(|(tile, ns)| *each.of(*tile) = (*ns as f64 / n) as Ns);
        each
    }

    /// Time in all states, ns.
    pub fn sum(self) -> Ns {
        self.all().iter().map(|(_, ns)| ns).sum()
    }

    /// Adds the times of `other`.
    pub fn add(&mut self, other: Self) {
        for (tile, ns) in other.all() {
            *self.of(tile) += ns;
        }
    }
}

/// Exits of one or more vCPUs for one reason.
#[derive(Clone, Debug, Default)]
pub struct Reason {
    /// Vendor that defines `code`: 1 Intel, 2 AMD, 3 ARM; 0 if `code` is `None`.
    pub isa: u32,
    /// Reason number; `None` for exits that began before the window, and for reasons beyond the maximum number.
    pub code: Option<u32>,
    /// Duration from `kvm_exit` to `kvm_entry`, ns; exits still open at the window's end are excluded.
    pub took: Histogram,
    /// The thread's time during these exits, including an exit still open at the window's end.
    pub tiles: VcpuTimes,
}

/// Figures of one vCPU.
#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    /// The vCPU's thread.
    pub tid: u32,
    /// The hypervisor's process.
    pub pid: u32,
    /// vCPU ID.
    pub id: Option<u32>,
    /// Start of its window: later than the watch's if the vCPU was created later.
    pub from: Ns,
    /// End of its window: earlier than the watch's if the thread ended.
    pub until: Ns,
    /// Whether the thread ended.
    pub gone: bool,
    /// The thread's time in each state; adds up to `until - from`.
    pub tiles: VcpuTimes,
    /// Number of `kvm_entry` events.
    pub entries: u64,
    /// Number of `kvm_exit` events.
    pub exits: u64,
    /// Number of `kvm_userspace_exit` events: returns to the hypervisor's process.
    pub to_qemu: u64,
    /// Number of halts that ended (`kvm_vcpu_wakeup`).
    pub halts: u64,
    /// Number of halts in which the thread slept; the others ended while KVM polled.
    pub slept: u64,
    /// Number of `kvm_inj_virq` events; `None` if KVM has no such event. A CPU with APICv or AVIC delivers interrupts
    /// without them.
    pub injected: Option<u64>,
    /// Interrupts that its virtual APIC accepted; `None` if this kernel does not report which APIC accepts an
    /// interrupt.
    pub interrupts: Option<Interrupts>,
    /// Counts of all KVM events in its thread, in the order of [`Events::names`]; empty if not requested.
    pub events: Vec<u64>,
    /// Number of events missed because they interrupted the handling of another event of the same vCPU.
    pub skipped: u64,
    /// Its exits, by total time in descending order.
    pub reasons: Vec<Reason>,
}

/// Interrupts that KVM passed to a virtual local APIC: from devices, vCPUs, and the APIC's own timer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// By vector: number of interrupts, and how many of them the CPU delivers by itself (APICv, AVIC).
    pub vectors: BTreeMap<u8, (u64, u64)>,
    /// Number of NMIs.
    pub nmis: u64,
    /// Number of interrupts without a vector, except NMIs: SMIs, INITs and start-up IPIs (SIPIs).
    pub other: u64,
}

impl Interrupts {
    /// Adds the interrupts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (vector, (accepted, posted)) in &other.vectors {
            let sum = self.vectors.entry(*vector).or_default();
            *sum = (sum.0 + accepted, sum.1 + posted);
        }
        self.nmis += other.nmis;
        self.other += other.other;
    }

    /// Number of interrupts with a vector, and how many of them the CPU delivers by itself.
    pub fn sum(&self) -> (u64, u64) {
        self.vectors.values().fold((0, 0), |sum, (accepted, posted)| (sum.0 + accepted, sum.1 + posted))
    }

    /// Number of all interrupts, with or without a vector.
    pub fn all(&self) -> u64 {
        self.sum().0 + self.nmis + self.other
    }
}

/// KVM's events outside vCPU threads.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Names of the events.
    pub names: Vec<String>,
    /// Events to which no program could attach, with the reason.
    pub not_counted: Vec<String>,
    /// Counts by process ID (for a kernel thread, its own ID); 0 stands for idle CPUs.
    pub by_process: BTreeMap<u32, Vec<u64>>,
    /// Number of events of processes for which the table had no room.
    pub no_room: u64,
}

/// Results of a watch.
#[derive(Clone, Debug, Default)]
pub struct Exits {
    /// The window.
    pub window: Window,
    /// The vCPUs, sorted by process, vCPU ID and thread.
    pub vcpus: Vec<Vcpu>,
    /// Number of interrupts that the virtual local APICs of all VMs accepted, including those delivered by APICv or
    /// AVIC; `None` if this kernel does not report them.
    pub accepted: Option<u64>,
    /// KVM's events outside vCPU threads; `None` if not requested.
    pub events: Option<Events>,
    /// Number of entries and exits of vCPUs for which there was no room.
    pub no_room: u64,
}
