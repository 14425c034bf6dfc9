//! Settings that need a function of their own to be read.

use super::services::Service;
use super::{interrupts, scheduling as scheduling_stat, scheduling_of, words, PlacedValue, Source};
use crate::setting::{Read, Setting};
use latpath_linux::proc::{number, Root};
use latpath_linux::Cpus;
use latpath_vms::{Accel, Tap, TapKind, Thread, Vm};
use std::fs::File;
use std::io::Read as _;

/// Returns the places and values of a setting.
pub type Function = fn(&Source) -> Vec<PlacedValue>;

/// Maximum number of idle states per CPU (CPUIDLE_STATE_MAX).
const MAX_STATES: usize = 10;
/// Maximum number of directory entries to search for NUMA nodes or huge page sizes.
const MAX_NODES: usize = 4096;
/// Maximum length of the value kept from QEMU's `-cpu` argument, bytes.
const MAX_MODEL: usize = 512;

pub(crate) fn preemption(source: &Source) -> Vec<PlacedValue> {
    let Some(version) = source.line("proc/sys/kernel/version") else { return Vec::new() };
    let kinds = ["PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT"];
    let has = |kind: &&str| version.split_whitespace().any(|word| word.trim_matches(|c| "(),".contains(c)) == *kind);
    vec![PlacedValue::of_machine(kinds.into_iter().find(has).unwrap_or("none"))]
}

/// A list of CPUs from sysfs; `none` if it is empty or is the kernel's `(null)`.
fn list_of_cpus(source: &Source, name: &str) -> Vec<PlacedValue> {
    let Some(line) = source.line(&format!("sys/devices/system/cpu/{name}")) else { return Vec::new() };
    let cpus = line.parse::<Cpus>().unwrap_or_default();
    vec![PlacedValue::of_machine(if cpus.is_empty() { "none".into() } else { cpus.to_string() })]
}

pub(crate) fn isolated(source: &Source) -> Vec<PlacedValue> {
    list_of_cpus(source, "isolated")
}

pub(crate) fn nohz_full(source: &Source) -> Vec<PlacedValue> {
    list_of_cpus(source, "nohz_full")
}

/// E.g. `0: 10 21; 1: 21 10`.
pub(crate) fn numa_distances(source: &Source) -> Vec<PlacedValue> {
    let mut nodes: Vec<u32> =
        source.root.names("sys/devices/system/node", MAX_NODES).iter().filter_map(|name| node(name)).collect();
    nodes.sort_unstable();
    let one = |n: &u32| Some(format!("{n}: {}", source.line(&format!("sys/devices/system/node/node{n}/distance"))?));
    let all: Vec<String> = nodes.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| PlacedValue::of_machine(all.join("; "))).into_iter().collect()
}

/// The node number in a directory name such as `node0`.
fn node(name: &str) -> Option<u32> {
    name.strip_prefix("node")?.parse().ok()
}

pub(crate) fn numa_node(source: &Source) -> Vec<PlacedValue> {
    let of_cpu = |cpu: u32| {
        let names = source.root.names(&format!("sys/devices/system/cpu/cpu{cpu}"), MAX_NODES);
        Some(PlacedValue::of_cpu(cpu, names.iter().find_map(|name| node(name))?.to_string()))
    };
    source.cpus().filter_map(of_cpu).collect()
}

/// E.g. `2048 kB: 0, 1048576 kB: 16`.
pub(crate) fn hugepages(source: &Source) -> Vec<PlacedValue> {
    const FOLDER: &str = "sys/kernel/mm/hugepages";
    let size = |name: &String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> = source.root.names(FOLDER, MAX_NODES).iter().filter_map(size).collect();
    sizes.sort_unstable();
    let one = |kb: &u64| {
        let count = source.line(&format!("{FOLDER}/hugepages-{kb}kB/nr_hugepages"))?;
        Some(format!("{kb} kB: {count}"))
    };
    let all: Vec<String> = sizes.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| PlacedValue::of_machine(all.join(", "))).into_iter().collect()
}

pub(crate) fn ovs_bridges(source: &Source) -> Vec<PlacedValue> {
    let Some(config) = source.ovs() else { return Vec::new() };
    let all: Vec<String> = config.bridges.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
    vec![PlacedValue::of_machine(if all.is_empty() { "none".into() } else { all.join(", ") })]
}

pub(crate) fn ovs_config(source: &Source) -> Vec<PlacedValue> {
    let Some(config) = source.ovs() else { return Vec::new() };
    let all: Vec<String> = config.other_config.iter().map(|(key, value)| format!("{key}={value}")).collect();
    vec![PlacedValue::of_machine(if all.is_empty() { "none".into() } else { all.join(" ") })]
}

pub(crate) fn service_priorities(source: &Source) -> Vec<PlacedValue> {
    services(source, |service| Some(scheduling_stat(&service.stat)))
}

pub(crate) fn service_cpus(source: &Source) -> Vec<PlacedValue> {
    services(source, |service| Some(service.cpus.as_ref()?.to_string()))
}

fn services(source: &Source, value: impl Fn(&Service) -> Option<String>) -> Vec<PlacedValue> {
    let one = |service: &Service| {
        let address = source.thread_address(service.tid);
        Some(PlacedValue::named(service.name.clone(), Some(service.tid.to_string()), address, value(service)?))
    };
    source.services().iter().filter_map(one).collect()
}

pub(crate) fn tuned(source: &Source) -> Vec<PlacedValue> {
    let profile = source.line("etc/tuned/active_profile").filter(|profile| !profile.is_empty());
    vec![PlacedValue::of_machine(profile.unwrap_or_else(|| "none".into()))]
}

pub(crate) fn irqbalance(source: &Source) -> Vec<PlacedValue> {
    let runs = source.has_program("irqbalance");
    vec![PlacedValue::of_machine(if runs { "running" } else { "not running" })]
}

/// The latency limit in effect: the lowest that any program has requested. Opening the file requests no limit, so this
/// changes nothing.
pub(crate) fn cpu_latency(source: &Source) -> Vec<PlacedValue> {
    let read = || {
        let mut value = [0; 4];
        File::open(source.root.path("dev/cpu_dma_latency")).ok()?.read_exact(&mut value).ok()?;
        Some(i32::from_ne_bytes(value).to_string())
    };
    read().into_iter().map(PlacedValue::of_machine).collect()
}

/// For each idle state of a CPU: its number, its exit latency in µs, and whether it is disabled.
fn idle_states(source: &Source, cpu: u32) -> Vec<(usize, u64, bool)> {
    let one = |n: usize| {
        let file = |name: &str| source.line(&format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{n}/{name}"));
        Some((n, file("latency")?.parse().ok()?, file("disable")? != "0"))
    };
    (0..MAX_STATES).map_while(one).collect()
}

pub(crate) fn idle_limit(source: &Source) -> Vec<PlacedValue> {
    let of_cpu = |cpu: u32| {
        let states = idle_states(source, cpu);
        let deepest = states.iter().filter(|(_, _, disabled)| !disabled).map(|(_, latency, _)| *latency).max()?;
        Some(PlacedValue::of_cpu(cpu, deepest.to_string()))
    };
    source.cpus().filter_map(of_cpu).collect()
}

pub(crate) fn idle_disabled(source: &Source) -> Vec<PlacedValue> {
    let of_cpu = |cpu: u32| {
        let states = idle_states(source, cpu);
        let disabled: Vec<String> = states.iter().filter(|(.., off)| *off).map(|(n, ..)| n.to_string()).collect();
        let value = if disabled.is_empty() { "none".into() } else { disabled.join(",") };
        (!states.is_empty()).then(|| PlacedValue::of_cpu(cpu, value))
    };
    source.cpus().filter_map(of_cpu).collect()
}

pub(crate) fn fair_server(source: &Source) -> Vec<PlacedValue> {
    let of_cpu = |cpu: u32| {
        Some(PlacedValue::of_cpu(cpu, source.line(&format!("sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime"))?))
    };
    source.cpus().filter_map(of_cpu).collect()
}

pub(crate) fn irq_threads(source: &Source) -> Vec<PlacedValue> {
    interrupts::threads(source)
}

/// Whether a word on the kernel's command line sets a setting of the table: a kernel parameter or a module parameter.
pub fn is_boot_setting(word: &str) -> bool {
    let key = word.split('=').next().unwrap_or(word);
    let of_module = |setting: &Setting| match setting.info().read {
        Read::Module(module, parameter) => key.split_once('.') == Some((module, parameter)),
        _ => false,
    };
    Setting::of_boot_parameter(key).is_some() || Setting::ALL.iter().any(of_module)
}

/// The parameters on the kernel's command line that have no setting of their own, except those that locate the system.
pub(crate) fn boot_other(source: &Source) -> Vec<PlacedValue> {
    const ELSEWHERE: [&str; 8] = ["BOOT_IMAGE", "initrd", "root", "rootfstype", "resume", "ro", "rw", "quiet"];
    let Some(line) = source.line("proc/cmdline") else { return Vec::new() };
    let is_other = |word: &String| {
        let key = word.split('=').next().unwrap_or(word);
        !ELSEWHERE.contains(&key) && Setting::of_boot_parameter(key).is_none()
    };
    let rest: Vec<String> = words(&line).into_iter().filter(is_other).collect();
    vec![PlacedValue::of_machine(if rest.is_empty() { "none".into() } else { rest.join(" ") })]
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
    Some(latpath_model::text::cut(model, MAX_MODEL).into())
}

/// `yes` if at least as much memory is locked as the guest has. QEMU's own memory alone is smaller than that.
pub(crate) fn vm_locked(root: &Root, vm: &Vm) -> Option<String> {
    let status = root.text(&format!("proc/{}/status", vm.pid))?;
    let locked = number(&status, "VmLck")?.saturating_mul(1024);
    Some(if locked > 0 && locked >= vm.memory_bytes.unwrap_or(1) { "yes" } else { "no" }.into())
}

/// The options of the VM's command line.
fn options(root: &Root, vm: &Vm) -> Option<Vec<(String, Vec<(String, String)>)>> {
    let line = root.text(&format!("proc/{}/cmdline", vm.pid))?;
    Some(latpath_vms::qemu_options(&line))
}

fn get<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

/// The driver of a device: the argument's first value.
fn driver(pairs: &[(String, String)]) -> &str {
    match pairs.first() {
        Some((key, value)) if key.is_empty() => value,
        _ => get(pairs, "driver").unwrap_or_default(),
    }
}

/// One string per virtio NIC: `rx 1024 tx 256 vectors 4`.
pub(crate) fn vm_virtqueues(root: &Root, vm: &Vm) -> Option<String> {
    let one = |(option, pairs): &(String, Vec<(String, String)>)| {
        if option != "device" || !driver(pairs).starts_with("virtio-net") {
            return None;
        }
        let value = |key| get(pairs, key).unwrap_or("default");
        Some(format!("rx {} tx {} vectors {}", value("rx_queue_size"), value("tx_queue_size"), value("vectors")))
    };
    let all: Vec<String> = options(root, vm)?.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

pub(crate) fn vm_balloon(root: &Root, vm: &Vm) -> Option<String> {
    let options = options(root, vm)?;
    let is_one = |(option, pairs): &(String, Vec<(String, String)>)| {
        option == "device" && driver(pairs).starts_with("virtio-balloon")
    };
    Some(if options.iter().any(is_one) { "yes" } else { "no" }.into())
}

/// `private pages`, `shared pages` or `huge pages`, from the memory objects on QEMU's command line.
pub(crate) fn vm_memory_backing(root: &Root, vm: &Vm) -> Option<String> {
    let (mut huge, mut shared) = (false, false);
    for (option, pairs) in options(root, vm)? {
        match option.as_str() {
            "mem-path" => huge |= driver(&pairs).contains("huge"),
            "object" => match driver(&pairs) {
                "memory-backend-file" => {
                    huge |= get(&pairs, "mem-path").is_some_and(|path| path.contains("huge"));
                    shared |= get(&pairs, "share").is_some_and(|on| on == "on" || on == "true");
                }
                "memory-backend-memfd" => {
                    huge |= get(&pairs, "hugetlb").is_some_and(|on| on == "on" || on == "true");
                    shared = true;
                }
                _ => {}
            },
            _ => {}
        }
    }
    Some(
        if huge {
            "huge pages"
        } else if shared {
            "shared pages"
        } else {
            "private pages"
        }
        .into(),
    )
}

pub(crate) fn vm_memory_nodes(root: &Root, vm: &Vm) -> Option<String> {
    let status = root.text(&format!("proc/{}/status", vm.pid))?;
    latpath_linux::proc::field(&status, "Mems_allowed_list").map(str::to_owned)
}

/// E.g. `vCPU 0: 2, vCPU 1: 3, emulator: 0-1, vCPU 0-1: fifo 1, memory locked`; `None` without a libvirt definition.
pub(crate) fn vm_pinning(root: &Root, vm: &Vm) -> Option<String> {
    let tune = if vm.libvirt { latpath_vms::cputune(root, &vm.name)? } else { return None };
    let vcpus = tune.vcpus.iter().map(|(n, cpus)| format!("vCPU {n}: {cpus}"));
    let emulator = tune.emulator.iter().map(|cpus| format!("emulator: {cpus}"));
    let schedulers = tune.schedulers.iter().map(|(vcpus, scheduler)| format!("vCPU {vcpus}: {scheduler}"));
    let locked = tune.locked.then(|| "memory locked".to_owned());
    let all: Vec<String> = vcpus.chain(emulator).chain(schedulers).chain(locked).collect();
    Some(if all.is_empty() { "none".into() } else { all.join(", ") })
}

/// The NICs, in the order of the guest's devices, separated by `; `, e.g. `tap of br0, vhost, 1 queue`; `None` if there
/// are none.
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
