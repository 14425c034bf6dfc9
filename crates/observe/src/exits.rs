//! Exits of vCPUs by reason, their durations, and the time of the vCPUs' threads by activity.

mod instrument;

use latpath_exits::{Events, Exits as Counted, Interrupts, KvmCounters, Reason, Traffic, Vcpu, VcpuTimes};
use latpath_histogram::Histogram;
use latpath_model::{Ns, Observation};
use latpath_stats::units::number_of;
use latpath_stats::TimeFigures;
use latpath_vms::exit_reason::{is_halt, Names};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use instrument::Exits;

/// The exits of all VMs in a window.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExitsFigures {
    /// VMs with an observed vCPU.
    pub vms: Vec<VmExits>,
    /// Number of interrupts that the virtual local APICs of all VMs accepted, including those that APICv or AVIC
    /// delivered without KVM.
    pub apic_interrupts: Option<u64>,
    /// KVM's events outside the VMs' threads, if requested (`--events`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_events: Option<OtherEvents>,
    /// Number of entries of vCPUs that did not fit in the table; these vCPUs are missing.
    pub events_without_room: u64,
}

/// One VM.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VmExits {
    /// Its name; `null` if it had ended by the end of the window.
    pub name: Option<String>,
    /// Its process ID.
    pub pid: u32,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuExits>,
    /// All vCPUs together.
    pub all: VcpuFigures,
    /// KVM's events in the VM's threads, if requested (`--events`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventFigures>,
    /// KVM's own counters for all VMs of the process, over nearly the same window.
    pub kvm: Option<KvmCounters>,
    /// Traffic of its taps.
    pub traffic: Option<Traffic>,
    /// Exits and time per packet and per 10^9 bytes on the taps; `null` if no tap is known, or without traffic.
    pub per_work: Option<PerWork>,
}

/// One vCPU.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VcpuExits {
    /// KVM's vCPU index.
    pub vcpu: Option<u32>,
    /// Thread ID.
    pub tid: u32,
    /// Length of its window: shorter than the whole window if the vCPU was created or ended during it.
    pub window_ns: Ns,
    /// Whether its thread ended.
    pub ended: bool,
    /// Its figures.
    #[serde(flatten)]
    pub figures: VcpuFigures,
}

/// Figures of one vCPU, or of several together.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VcpuFigures {
    /// Its time by activity; the sum is the length of its window.
    pub tiles: VcpuTimes,
    /// Number of `kvm_entry` events.
    pub entries: u64,
    /// Number of `kvm_exit` events.
    pub exits: u64,
    /// Number of returns to the hypervisor's process.
    pub exits_to_qemu: u64,
    /// Time outside the guest, including waits for a CPU but excluding halts (their polling, sleep and handling).
    pub exit_time_without_halts_ns: Ns,
    /// `exit_time_without_halts_ns` by activity of the thread.
    #[serde(default)]
    pub tiles_without_halts: VcpuTimes,
    /// Number of times that KVM blocked a vCPU, which polled or slept until an event arrived for it.
    pub halts: u64,
    /// Number of halts in which the vCPU slept; the others ended while KVM polled.
    pub halts_slept: u64,
    /// Number of interrupts that KVM injected, excluding those that APICv or AVIC delivered. `null` if KVM does not
    /// report it, e.g. on ARM.
    pub injected: Option<u64>,
    /// Interrupts that the virtual local APICs accepted; `null` if the kernel does not report which vCPU's APIC
    /// accepted one.
    #[serde(default)]
    pub apic: Option<ApicFigures>,
    /// Number of events skipped because they occurred while another event was being counted.
    pub events_skipped: u64,
    /// Exits by reason, in descending order of total time, with halts last.
    pub reasons: Vec<ReasonFigures>,
}

/// Exits for one reason.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReasonFigures {
    /// The kernel's name of the reason; `null` for exits that began before the window, and for reasons beyond the
    /// table's size.
    pub reason: Option<String>,
    /// The CPU's code for the reason.
    pub code: Option<u32>,
    /// Whether the exit is a halt: the guest was idle.
    pub is_halt: bool,
    /// Rate per second.
    pub per_second: f64,
    /// Times from `kvm_exit` to `kvm_entry`; percentiles have an error of at most 3 %.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Sum of the times.
    pub sum_ns: Ns,
    /// Standard error of the mean, under the assumption that exits are independent.
    pub mean_error_ns: Ns,
    /// Time of these exits by activity of the vCPU's thread.
    pub tiles: VcpuTimes,
}

/// Interrupts that KVM passed to virtual local APICs, however the CPU then delivered them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ApicFigures {
    /// Number of interrupts with a vector.
    pub accepted: u64,
    /// Number of accepted interrupts that the CPU delivers without KVM (APICv, AVIC).
    pub posted: u64,
    /// Number of NMIs.
    pub nmis: u64,
    /// Number of SMIs, INITs and start-up IPIs (SIPIs).
    pub other: u64,
    /// Interrupts by vector.
    pub vectors: Vec<VectorFigures>,
}

/// Interrupts of one vector.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VectorFigures {
    /// The vector.
    pub vector: u8,
    /// Number of accepted interrupts.
    pub accepted: u64,
    /// Rate per second.
    pub per_second: f64,
    /// Number of accepted interrupts that the CPU delivers without KVM.
    pub posted: u64,
}

/// Counts of one of KVM's events in a VM.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventFigures {
    /// Its name, as in `kvm:NAME` of perf.
    pub event: String,
    /// Number of occurrences.
    pub count: u64,
    /// Rate per second.
    pub per_second: f64,
    /// Number of occurrences in vCPU threads. The others are in other threads of the VM's process and in vhost threads.
    pub in_vcpus: u64,
}

/// KVM's events outside the threads of the VMs shown.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OtherEvents {
    /// Number of events that this kernel has.
    pub known: usize,
    /// Number of occurrences on idle CPUs, in kernel threads and in other processes, by name of the event.
    pub counts: BTreeMap<String, u64>,
    /// Events that were not counted, each with the reason.
    pub not_counted: Vec<String>,
    /// Number of occurrences in processes that did not fit in the table.
    pub without_room: u64,
}

/// Exits in relation to traffic.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PerWork {
    /// Exits per packet on the taps, in both directions.
    pub exits_per_packet: f64,
    /// Time outside the guest, excluding halts, per packet.
    pub exit_time_per_packet_ns: Ns,
    /// Exits per 10^9 bytes.
    pub exits_per_gb: f64,
    /// Time outside the guest, excluding halts, per 10^9 bytes.
    pub exit_time_per_gb_ns: Ns,
    /// Figures of each reason, in the order of `all.reasons`.
    #[serde(default)]
    pub reasons: Vec<ReasonPerWork>,
    /// Time of all vCPUs by activity, per packet.
    #[serde(default)]
    pub tiles_per_packet: VcpuTimes,
    /// Time of all vCPUs by activity, per 10^9 bytes.
    #[serde(default)]
    pub tiles_per_gb: VcpuTimes,
}

/// Exits for one reason in relation to traffic.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReasonPerWork {
    /// The kernel's name of the reason; `null` for exits that began before the window, and for reasons beyond the
    /// table's size.
    pub reason: Option<String>,
    /// Exits per packet.
    pub exits_per_packet: f64,
    /// Their time per packet.
    pub time_per_packet_ns: Ns,
    /// Exits per 10^9 bytes.
    pub exits_per_gb: f64,
    /// Their time per 10^9 bytes.
    pub time_per_gb_ns: Ns,
}

/// Facts about a VM besides its vCPUs.
#[derive(Clone, Debug, Default)]
pub struct VmFacts {
    /// Its name.
    pub name: Option<String>,
    /// KVM's counters over the window.
    pub kvm: Option<KvmCounters>,
    /// Its taps' counters over the window.
    pub traffic: Option<Traffic>,
    /// TIDs of the kernel threads that work only for this VM.
    pub workers: Vec<u32>,
}

impl ExitsFigures {
    /// Computes the figures from the programs' counts; `about` returns the facts about the VM with this process ID.
    pub fn observe(exits: &Counted, names: &Names, about: impl Fn(u32) -> VmFacts) -> Observation<Self> {
        let mut vms: BTreeMap<u32, Vec<&Vcpu>> = BTreeMap::new();
        exits.vcpus.iter().for_each(|vcpu| vms.entry(vcpu.pid).or_default().push(vcpu));
        let window_ns = exits.window.length();
        let mut others = exits.events.clone();
        let vms = vms.into_iter().map(|(pid, vcpus)| {
            let about = about(pid);
            let events = others.as_mut().map_or_else(Vec::new, |others| {
                let processes = about.workers.iter().chain([&pid]);
                let beside = processes.filter_map(|process| others.by_process.remove(process)).collect::<Vec<_>>();
                event_figures(&others.names, &vcpus, &beside, window_ns)
            });
            VmExits { events, ..VmExits::new(pid, &vcpus, names, about, window_ns) }
        });
        let figures = Self {
            vms: vms.collect(),
            other_events: others.map(OtherEvents::of),
            apic_interrupts: exits.accepted,
            events_without_room: exits.no_room,
        };
        let notes = figures.notes(exits.window.missed);
        exits.window.observation(figures, notes)
    }

    /// Notes on the figures.
    fn notes(&self, missed: u64) -> Vec<String> {
        let mut notes = Vec::new();
        if self.events_without_room > 0 {
            notes.push("the table was full: some vCPUs that appeared while it watched are missing".into());
        }
        if let Some(others) = &self.other_events {
            notes.extend(others.not_counted.iter().map(|event| format!("event {event} cannot be counted")));
            if others.without_room > 0 {
                notes.push(format!(
                    "events in more processes than the table holds, not counted: {}",
                    others.without_room
                ));
            }
        }
        if missed > 0 {
            let missed = number_of(missed, "event");
            notes.push(format!("the kernel skipped {missed}: times of their exits are counted with others"));
        }
        for vm in &self.vms {
            let name = vm.name.clone().unwrap_or_else(|| format!("process {}", vm.pid));
            let all = &vm.all;
            if all.events_skipped > 0 {
                notes.push(format!(
                    "{name}: events that came while another one was counted, and whose times are counted with others: {}",
                    all.events_skipped
                ));
            }
            if all.exits == 0 && all.entries == 0 && all.exits_to_qemu > 0 {
                notes.push(format!(
                    "{name}: KVM does not say when it enters and leaves this guest (no kvm_entry, no kvm_exit came): its \
                     guest time cannot be separated from KVM's"
                ));
            }
        }
        notes
    }
}

impl VmExits {
    fn new(pid: u32, vcpus: &[&Vcpu], names: &Names, about: VmFacts, window: Ns) -> Self {
        let all = VcpuFigures::of(vcpus, names, window);
        let per_work = about.traffic.filter(|traffic| traffic.packets() > 0).map(|traffic| PerWork::of(&all, &traffic));
        let one = |vcpu: &&Vcpu| VcpuExits {
            vcpu: vcpu.id,
            tid: vcpu.tid,
            window_ns: vcpu.until - vcpu.from,
            ended: vcpu.gone,
            figures: VcpuFigures::of(&[vcpu], names, vcpu.until - vcpu.from),
        };
        let vcpus = vcpus.iter().map(one).collect();
        Self { name: about.name, pid, vcpus, all, events: Vec::new(), kvm: about.kvm, traffic: about.traffic, per_work }
    }
}

impl PerWork {
    fn of(all: &VcpuFigures, traffic: &Traffic) -> Self {
        let (exits, ns) = (all.exits as f64, all.exit_time_without_halts_ns as f64);
        let (packets, gb) = (traffic.packets() as f64, traffic.bytes() as f64 / 1e9);
        Self {
            exits_per_packet: exits / packets,
            exit_time_per_packet_ns: (ns / packets) as Ns,
            exits_per_gb: exits / gb,
            exit_time_per_gb_ns: (ns / gb) as Ns,
            reasons: all.reasons.iter().map(|reason| ReasonPerWork::of(reason, packets, gb)).collect(),
            tiles_per_packet: all.tiles.for_each(packets),
            tiles_per_gb: all.tiles.for_each(gb),
        }
    }
}

impl ReasonPerWork {
    fn of(reason: &ReasonFigures, packets: f64, gb: f64) -> Self {
        let (count, ns) = (reason.times.count as f64, reason.tiles.sum() as f64);
        Self {
            reason: reason.reason.clone(),
            exits_per_packet: count / packets,
            time_per_packet_ns: (ns / packets) as Ns,
            exits_per_gb: count / gb,
            time_per_gb_ns: (ns / gb) as Ns,
        }
    }
}

impl VcpuFigures {
    fn of(vcpus: &[&Vcpu], names: &Names, window: Ns) -> Self {
        let mut figures = Self::default();
        let mut reasons: BTreeMap<(u32, Option<u32>), Reason> = BTreeMap::new();
        let mut apic: Option<Interrupts> = None;
        for vcpu in vcpus {
            figures.tiles.add(vcpu.tiles);
            figures.entries += vcpu.entries;
            figures.exits += vcpu.exits;
            figures.exits_to_qemu += vcpu.to_qemu;
            figures.halts += vcpu.halts;
            figures.halts_slept += vcpu.slept;
            if let Some(injected) = vcpu.injected {
                *figures.injected.get_or_insert(0) += injected;
            }
            if let Some(interrupts) = &vcpu.interrupts {
                apic.get_or_insert_with(Interrupts::default).add(interrupts);
            }
            figures.events_skipped += vcpu.skipped;
            for reason in &vcpu.reasons {
                let key = (reason.isa, reason.code);
                let sum = reasons.entry(key).or_insert_with(|| Reason { isa: key.0, code: key.1, ..Reason::default() });
                sum.took.merge(&reason.took);
                sum.tiles.add(reason.tiles);
            }
        }
        figures.apic = apic.map(|apic| ApicFigures::of(&apic, window));
        figures.reasons = reasons.into_values().map(|reason| ReasonFigures::of(&reason, names, window)).collect();
        figures.reasons.sort_by_key(|reason| (reason.is_halt, std::cmp::Reverse(reason.tiles.sum())));
        let counted = figures.reasons.iter().filter(|reason| !reason.is_halt && reason.code.is_some());
        counted.for_each(|reason| figures.tiles_without_halts.add(reason.tiles));
        figures.exit_time_without_halts_ns = figures.tiles_without_halts.sum();
        figures
    }
}

impl ReasonFigures {
    fn of(reason: &Reason, names: &Names, window: Ns) -> Self {
        let times = TimeFigures::of(&reason.took);
        Self {
            reason: reason.code.map(|code| names.get(reason.isa, code).into_owned()),
            code: reason.code,
            is_halt: reason.code.is_some_and(|code| is_halt(reason.isa, code)),
            per_second: per_second(times.count, window),
            sum_ns: reason.took.sum() as Ns,
            mean_error_ns: error_of_mean(&reason.took),
            times,
            tiles: reason.tiles,
        }
    }
}

impl ApicFigures {
    fn of(apic: &Interrupts, window: Ns) -> Self {
        let vectors = apic.vectors.iter().map(|(&vector, &(accepted, posted))| {
            let per_second = per_second(accepted, window);
            VectorFigures { vector, accepted, per_second, posted }
        });
        let (accepted, posted) = apic.sum();
        Self { accepted, posted, nmis: apic.nmis, other: apic.other, vectors: vectors.collect() }
    }
}

impl OtherEvents {
    fn of(others: Events) -> Self {
        let mut counts = BTreeMap::new();
        for (event, count) in others.by_process.values().flat_map(|counts| others.names.iter().zip(counts)) {
            if *count > 0 {
                *counts.entry(event.clone()).or_default() += count;
            }
        }
        Self { known: others.names.len(), counts, not_counted: others.not_counted, without_room: others.no_room }
    }
}

/// Counts of each event in the vCPU threads and in the VM's other threads (`beside`), in descending order.
fn event_figures(names: &[String], vcpus: &[&Vcpu], beside: &[Vec<u64>], window: Ns) -> Vec<EventFigures> {
    let figures = names.iter().enumerate().map(|(at, event)| {
        let of = |counts: &Vec<u64>| counts.get(at).copied().unwrap_or(0);
        let in_vcpus: u64 = vcpus.iter().map(|vcpu| of(&vcpu.events)).sum();
        let count = in_vcpus + beside.iter().map(of).sum::<u64>();
        EventFigures { event: event.clone(), count, per_second: per_second(count, window), in_vcpus }
    });
    let mut figures: Vec<EventFigures> = figures.filter(|figures| figures.count > 0).collect();
    figures.sort_by_key(|figures| std::cmp::Reverse(figures.count));
    figures
}

fn per_second(count: u64, window: Ns) -> f64 {
    count as f64 * 1e9 / window.max(1) as f64
}

fn error_of_mean(took: &Histogram) -> Ns {
    match took.count() {
        0 | 1 => 0,
        n => (took.stddev() as f64 / ((n - 1) as f64).sqrt()).round() as Ns,
    }
}
