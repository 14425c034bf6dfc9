//! Settings that are read by their own functions.

use super::{interrupts, scheduling_of, words, Found, Source};
use crate::setting::{Read, Setting};
use latpath_linux::proc::{number, Root};
use latpath_vms::{Accel, Tap, TapKind, Thread, Vm};
use std::fs::File;
use std::io::Read as _;

/// Returns the places and values of a setting.
pub type Function = fn(&Source) -> Vec<Found>;

/// Maximum number of a CPU's idle states (CPUIDLE_STATE_MAX).
const MOST_STATES: usize = 10;
/// Maximum length of QEMU's argument that names the CPU, bytes.
const MOST_MODEL: usize = 512;

pub(crate) fn preemption(source: &Source) -> Vec<Found> {
    let Some(version) = source.line("proc/sys/kernel/version") else { return Vec::new() };
    let kinds = ["PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT"];
    let has = |kind: &&str| version.split_whitespace().any(|word| word.trim_matches(|c| "(),".contains(c)) == *kind);
    vec![Found::of_machine(kinds.into_iter().find(has).unwrap_or("none"))]
}

pub(crate) fn tuned(source: &Source) -> Vec<Found> {
    let profile = source.line("etc/tuned/active_profile").filter(|profile| !profile.is_empty());
    vec![Found::of_machine(profile.unwrap_or_else(|| "none".into()))]
}

pub(crate) fn irqbalance(source: &Source) -> Vec<Found> {
    let runs = source.processes().contains("irqbalance");
    vec![Found::of_machine(if runs { "running" } else { "not running" })]
}

/// Opening the file requests no limit, so nothing changes. The value is the lowest limit that any program requests.
pub(crate) fn cpu_latency(source: &Source) -> Vec<Found> {
    let read = || {
        let mut value = [0; 4];
        File::open(source.root.path("dev/cpu_dma_latency")).ok()?.read_exact(&mut value).ok()?;
        Some(i32::from_ne_bytes(value).to_string())
    };
    read().into_iter().map(Found::of_machine).collect()
}

/// The number, exit latency in µs and whether it is disabled of each idle state of a CPU.
fn idle_states(source: &Source, cpu: u32) -> Vec<(usize, u64, bool)> {
    let one = |n: usize| {
        let file = |name: &str| source.line(&format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{n}/{name}"));
        Some((n, file("latency")?.parse().ok()?, file("disable")? != "0"))
    };
    (0..MOST_STATES).map_while(one).collect()
}

pub(crate) fn idle_limit(source: &Source) -> Vec<Found> {
    let of_cpu = |cpu: u32| {
        let states = idle_states(source, cpu);
        let deepest = states.iter().filter(|(_, _, disabled)| !disabled).map(|(_, latency, _)| *latency).max()?;
        Some(Found::of_cpu(cpu, deepest.to_string()))
    };
    source.cpus().filter_map(of_cpu).collect()
}

pub(crate) fn idle_disabled(source: &Source) -> Vec<Found> {
    let of_cpu = |cpu: u32| {
        let states = idle_states(source, cpu);
        let disabled: Vec<String> = states.iter().filter(|(.., off)| *off).map(|(n, ..)| n.to_string()).collect();
        let value = if disabled.is_empty() { "none".into() } else { disabled.join(",") };
        (!states.is_empty()).then(|| Found::of_cpu(cpu, value))
    };
    source.cpus().filter_map(of_cpu).collect()
}

pub(crate) fn fair_server(source: &Source) -> Vec<Found> {
    let of_cpu = |cpu: u32| {
        Some(Found::of_cpu(cpu, source.line(&format!("sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime"))?))
    };
    source.cpus().filter_map(of_cpu).collect()
}

pub(crate) fn irq_threads(source: &Source) -> Vec<Found> {
    interrupts::threads(source)
}

/// The parameters that neither locate the system nor have an entry of their own.
pub(crate) fn boot_other(source: &Source) -> Vec<Found> {
    const ELSEWHERE: [&str; 8] = ["BOOT_IMAGE", "initrd", "root", "rootfstype", "resume", "ro", "rw", "quiet"];
    let Some(line) = source.line("proc/cmdline") else { return Vec::new() };
    let in_table = |key: &str| {
        Setting::ALL.iter().any(|setting| match setting.info().read {
            Read::Boot(name) => name.replace('-', "_") == key.replace('-', "_"),
            _ => false,
        })
    };
    let is_other = |word: &String| {
        let key = word.split('=').next().unwrap_or(word);
        !ELSEWHERE.contains(&key) && !in_table(key)
    };
    let rest: Vec<String> = words(&line).into_iter().filter(is_other).collect();
    vec![Found::of_machine(if rest.is_empty() { "none".into() } else { rest.join(" ") })]
}

pub(crate) fn scheduling(thread: &Thread) -> Option<String> {
    Some(scheduling_of(thread.policy.name(), thread.rt_priority, thread.nice))
}

pub(crate) fn affinity(thread: &Thread) -> Option<String> {
    (!thread.cpus_allowed.is_empty()).then(|| thread.cpus_allowed.to_string())
}

pub(crate) fn vm_vcpus(_: &Root, vm: &Vm) -> Option<String> {
    vm.vcpus.map(|n| n.to_string())
}

pub(crate) fn vm_memory(_: &Root, vm: &Vm) -> Option<String> {
    vm.memory_bytes.map(|n| n.to_string())
}

pub(crate) fn vm_machine(_: &Root, vm: &Vm) -> Option<String> {
    vm.machine.clone()
}

pub(crate) fn vm_accel(_: &Root, vm: &Vm) -> Option<String> {
    match vm.accel {
        Accel::Kvm => Some("kvm".into()),
        Accel::Tcg => Some("tcg".into()),
        Accel::Unknown => None,
    }
}

/// The argument after `-cpu`.
pub(crate) fn vm_cpu(root: &Root, vm: &Vm) -> Option<String> {
    let line = root.text(&format!("proc/{}/cmdline", vm.pid))?;
    let mut words = line.split('\0').skip_while(|word| !["-cpu", "--cpu"].contains(word)).skip(1);
    let model = words.next().filter(|model| !model.is_empty())?;
    Some(latpath_model::text::cut(model, MOST_MODEL).into())
}

/// Whether at least as much memory is locked as the guest has; QEMU's own memory is smaller.
pub(crate) fn vm_locked(root: &Root, vm: &Vm) -> Option<String> {
    let status = root.text(&format!("proc/{}/status", vm.pid))?;
    let locked = number(&status, "VmLck")?.saturating_mul(1024);
    Some(if locked > 0 && locked >= vm.memory_bytes.unwrap_or(1) { "yes" } else { "no" }.into())
}

/// A text for each NIC, in the order of the guest's devices: `tap of br0, vhost, 1 queue`.
pub(crate) fn vm_nics(_: &Root, vm: &Vm) -> Option<String> {
    let one = |tap: &Tap| {
        let kind = match tap.kind {
            TapKind::Tap => "tap",
            TapKind::Macvtap => "macvtap",
        };
        let by = match tap.vhost {
            Some(true) => ", vhost",
            Some(false) => ", QEMU",
            None => "",
        };
        let of = tap.bridge.as_ref().map(|bridge| &bridge.name).or(tap.lower.as_ref());
        let of = of.map_or(String::new(), |name| format!(" of {name}"));
        let s = if tap.queues == 1 { "" } else { "s" };
        format!("{kind}{of}{by}, {} queue{s}", tap.queues)
    };
    let all: Vec<String> = vm.taps.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}
