//! What was seen, as plain numbers.

use latpath_bpf::Window;
use latpath_histogram::Histogram;
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a vCPU's thread does. At each moment it does one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tile {
    /// Before its first event it is not known.
    NotKnown,
    /// It runs guest code.
    Guest,
    /// KVM handles an exit, or goes back into the guest.
    Kvm,
    /// The hypervisor's process (QEMU) handles an exit.
    Qemu,
    /// The guest is halted, and KVM polls for something to do before it sleeps (`halt_poll_ns`).
    Polling,
    Asleep,
    /// It would run, but another thread does.
    Ready,
    /// An interrupt or softirq is served on its CPU.
    Interrupted,
}

impl Tile {
    /// All of them, in order of their numbers.
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

/// How long each tile was, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tiles {
    /// Before the first event.
    pub not_known_ns: Ns,
    /// Guest code ran.
    pub guest_ns: Ns,
    /// KVM worked.
    pub kvm_ns: Ns,
    /// The hypervisor's process worked.
    pub qemu_ns: Ns,
    /// KVM polled while the guest was halted.
    pub polling_ns: Ns,
    /// The thread slept.
    pub asleep_ns: Ns,
    /// The thread was ready, and waited for a CPU.
    pub ready_ns: Ns,
    /// An interrupt or softirq was served on its CPU.
    pub interrupted_ns: Ns,
}

impl Tiles {
    pub fn of(&mut self, tile: Tile) -> &mut Ns {
        match tile {
            Tile::NotKnown => &mut self.not_known_ns,
            Tile::Guest => &mut self.guest_ns,
            Tile::Kvm => &mut self.kvm_ns,
            Tile::Qemu => &mut self.qemu_ns,
            Tile::Polling => &mut self.polling_ns,
            Tile::Asleep => &mut self.asleep_ns,
            Tile::Ready => &mut self.ready_ns,
            Tile::Interrupted => &mut self.interrupted_ns,
        }
    }

    pub fn all(mut self) -> [(Tile, Ns); 8] {
        Tile::ALL.map(|tile| (tile, *self.of(tile)))
    }

    /// For each of `n` things.
    pub fn for_each(self, n: f64) -> Self {
        let mut each = Self::default();
        self.all().iter().for_each(|(tile, ns)| *each.of(*tile) = (*ns as f64 / n) as Ns);
        each
    }

    pub fn sum(self) -> Ns {
        self.all().iter().map(|(_, ns)| ns).sum()
    }

    /// These and those.
    pub fn add(&mut self, other: Self) {
        for (tile, ns) in other.all() {
            *self.of(tile) += ns;
        }
    }
}

/// Exits of one vCPU, or of several, for one reason.
#[derive(Clone, Debug, Default)]
pub struct Reason {
    /// The vendor whose number it is: 1 Intel, 2 AMD, 3 ARM; 0 where none is known.
    pub isa: u32,
    /// The number; `None` for exits that began before the window, and for reasons that were too many to be distinguished.
    pub code: Option<u32>,
    /// From `kvm_exit` to `kvm_entry`. Exits that had not ended are not in it.
    pub took: Histogram,
    /// What the thread did in that time, with the exit that had not ended.
    pub tiles: Tiles,
}

#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    pub tid: u32,
    /// The hypervisor's process.
    pub pid: u32,
    /// KVM's number of the vCPU.
    pub id: Option<u32>,
    /// Begin of its window: later than the watch's where the vCPU was made later.
    pub from: Ns,
    /// End of its window: earlier than the watch's where the thread ended.
    pub until: Ns,
    /// Whether the thread ended.
    pub gone: bool,
    /// What it did all the time: adds up to `until - from`.
    pub tiles: Tiles,
    /// `kvm_entry`.
    pub entries: u64,
    /// `kvm_exit`.
    pub exits: u64,
    /// `kvm_userspace_exit`: returns to the hypervisor's process.
    pub to_qemu: u64,
    /// Halts that ended (`kvm_vcpu_wakeup`).
    pub halts: u64,
    /// How many of these found it asleep; the others ended while KVM polled.
    pub slept: u64,
    /// `kvm_inj_virq`; `None` where KVM has no such event. A CPU with APICv or AVIC delivers interrupts without it.
    pub injected: Option<u64>,
    /// What its virtual APIC took; `None` where this kernel does not say whose APIC takes an interrupt.
    pub interrupts: Option<Interrupts>,
    /// All of KVM's events in its thread, in the order of [`Events::names`]; empty where they were not asked for.
    pub events: Vec<u64>,
    /// Events that came while another one of the same vCPU was counted, and were not.
    pub skipped: u64,
    /// Its exits, those that took the longest in all first.
    pub reasons: Vec<Reason>,
}

/// Interrupts that KVM gave to a virtual local APIC: from devices, from vCPUs, from the APIC's own timer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// By vector: how many, and how many of these the CPU delivers by itself (APICv, AVIC).
    pub vectors: BTreeMap<u8, (u64, u64)>,
    pub nmis: u64,
    /// Those without a vector that are no NMIs: SMI, INIT, start-up.
    pub other: u64,
}

impl Interrupts {
    /// These and those.
    pub fn add(&mut self, other: &Self) {
        for (vector, (accepted, posted)) in &other.vectors {
            let sum = self.vectors.entry(*vector).or_default();
            *sum = (sum.0 + accepted, sum.1 + posted);
        }
        self.nmis += other.nmis;
        self.other += other.other;
    }

    /// Those with a vector, and how many of these the CPU delivers by itself.
    pub fn sum(&self) -> (u64, u64) {
        self.vectors.values().fold((0, 0), |sum, (accepted, posted)| (sum.0 + accepted, sum.1 + posted))
    }

    pub fn all(&self) -> u64 {
        self.sum().0 + self.nmis + self.other
    }
}

/// KVM's events, outside vCPUs' threads.
#[derive(Clone, Debug, Default)]
pub struct Events {
    pub names: Vec<String>,
    /// Events at which no program can stand, and why.
    pub not_counted: Vec<String>,
    /// By process, which for a kernel thread is that thread; 0: on CPUs that were idle.
    pub by_process: BTreeMap<u32, Vec<u64>>,
    /// Events of processes that were too many.
    pub no_room: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Exits {
    pub window: Window,
    pub vcpus: Vec<Vcpu>,
    /// Interrupts that virtual local APICs of all VMs accepted, also those that APICv or AVIC delivered. `None` where
    /// this kernel does not say.
    pub accepted: Option<u64>,
    /// KVM's events, where they were asked for.
    pub events: Option<Events>,
    /// Entries of vCPUs for which there was no room.
    pub no_room: u64,
}
