//! Virtual machines that the host serves badly.

use super::Hit;
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_linux::Cpus;
use latpath_model::text::quoted;
use latpath_placement::{Job, Worker};
use latpath_settings::{Disturbance, Place, Setting};
use latpath_vms::{Tap, Vm};
use std::collections::BTreeSet;

/// Minimum length of a tap's queue, packets: it holds the burst after a stall of 1 ms at 500,000 packets per second.
const SHORTEST_QUEUE: u32 = 500;
/// Default queue length of a new tap, packets.
const USUAL_QUEUE: u32 = 1000;
/// Minimum number of vectors of a virtio network device with one pair of queues: one per queue, and one for its
/// configuration.
const MIN_VECTORS: u32 = 3;

/// Changes a virtual machine's definition, through virsh or options of its command line.
fn redefine(vm: &Vm, setting: Setting, element: &str, option: &str) -> Fix {
    let command = match vm.libvirt {
        true => format!("virsh edit {} # {element}", quoted(&vm.name)),
        false => format!("# start {} with {option}", vm.name.escape_debug()),
    };
    Fix::commands(setting, Disturbance::VmRestart, [command])
}

pub(super) fn emulated(machine: &Machine) -> Vec<Hit> {
    let is_one = |vm: &&Vm| machine.placement.value_at(Setting::VmAccel, &vm.name) == Some("tcg");
    let hit = |vm: &Vm| Hit {
        what: format!("{} is emulated: its instructions run in QEMU, not on the CPU", vm.name),
        target: vm.name.clone(),
        now: "tcg".into(),
        should: "kvm".into(),
        fix: redefine(vm, Setting::VmAccel, "<domain type='kvm'>", "-accel kvm"),
        ..Hit::default()
    };
    machine.vms.iter().filter(is_one).map(hit).collect()
}

pub(super) fn quota(machine: &Machine) -> Vec<Hit> {
    let values = machine.placement.values_of(Setting::CgroupQuota);
    // The values are those of guests' groups, the groups above them, and slices. Quotas of slices without guests are
    // omitted: they are the administrator's choice.
    let has_groups =
        |slice: &str| values.iter().any(|one| one.target.strip_prefix(slice).is_some_and(|rest| rest.starts_with('/')));
    let of_vms = values.iter().filter(|value| !value.target.ends_with(".slice") || has_groups(&value.target));
    let limited = of_vms.filter(|value| !value.value.starts_with("max"));
    let hit = |value: &latpath_settings::SettingValue| {
        let place = Place::name(value.at.as_deref().unwrap_or_default());
        Hit {
            what: format!(
                "{} may use only {} µs of CPU time in each period",
                value.target,
                value.value.replace(' ', " of ")
            ),
            target: value.target.clone(),
            now: value.value.clone(),
            should: "max".into(),
            fix: Fix::set(Setting::CgroupQuota, &place, &value.value, "max"),
            ..Hit::default()
        }
    };
    limited.map(hit).collect()
}

/// Pinned vCPUs with a real-time priority.
fn realtime(machine: &Machine) -> Vec<&Worker> {
    machine.placement.vcpus().filter(|vcpu| vcpu.priority > 0 && machine.placement.is_pinned(vcpu)).collect()
}

pub(super) fn throttling(machine: &Machine) -> Vec<Hit> {
    let vcpus = realtime(machine);
    let placement = &machine.placement;
    let Some(now) = placement.value(Setting::RtRuntime).filter(|now| *now != "-1" && !vcpus.is_empty()) else {
        return Vec::new();
    };
    // Since Linux 6.12 the fair server replaces this throttling.
    if !placement.values_of(Setting::FairServer).is_empty() {
        let cpus = placement.reserved();
        let of_vcpus: Vec<(u32, &str)> =
            placement.each_cpu(Setting::FairServer).filter(|(cpu, ns)| cpus.contains(*cpu) && *ns != "0").collect();
        let Some((_, ns)) = of_vcpus.first() else { return Vec::new() };
        let list: Cpus = of_vcpus.iter().map(|(cpu, _)| *cpu).collect();
        let each = |value: &str| -> Vec<String> {
            let line = |cpu: u32| Setting::FairServer.shell(&Place::name(cpu), value);
            list.iter().filter_map(line).collect()
        };
        return vec![Hit {
            what: format!(
                "the fair server takes {} from vCPUs in real time for {ns} ns of each second",
                list.named().unwrap_or_default()
            ),
            now: (*ns).into(),
            should: "0".into(),
            fix: Fix::commands(Setting::FairServer, Setting::FairServer.info().disturbs, each("0")).undone_by(each(ns)),
            cpus: list,
            ..Hit::default()
        }];
    }
    vec![Hit {
        what: format!("threads in real time, among them {}, may use {now} µs of each period", vcpus[0].name),
        now: now.into(),
        should: "-1".into(),
        fix: Fix::set(Setting::RtRuntime, &Place::All, now, "-1"),
        ..Hit::default()
    }]
}

fn taps(machine: &Machine) -> impl Iterator<Item = (&Vm, &Tap)> {
    machine.vms.iter().flat_map(|vm| vm.taps.iter().map(move |tap| (vm, tap)))
}

pub(super) fn without_vhost(machine: &Machine) -> Vec<Hit> {
    let hit = |(vm, tap): (&Vm, &Tap)| Hit {
        what: format!("QEMU itself carries the packets of {} ({})", tap.device, vm.name),
        target: tap.device.clone(),
        now: "QEMU".into(),
        should: "vhost".into(),
        fix: redefine(vm, Setting::VmNics, "<interface>: <driver name='vhost'/>", "-netdev tap,vhost=on"),
        ..Hit::default()
    };
    taps(machine).filter(|(_, tap)| tap.vhost == Some(false)).map(hit).collect()
}

pub(super) fn tap_queue(machine: &Machine) -> Vec<Hit> {
    let hit = |(vm, tap): (&Vm, &Tap)| {
        let value = machine.placement.value_at(Setting::DeviceQueueLength, &tap.device).and_then(|n| n.parse().ok());
        let now = value.or(tap.tx_queue_len).filter(|now| *now < SHORTEST_QUEUE)?.to_string();
        let should = USUAL_QUEUE.to_string();
        Some(Hit {
            what: format!("the queue of {} ({}) holds {now} packets", tap.device, vm.name),
            target: tap.device.clone(),
            fix: Fix::set(Setting::DeviceQueueLength, &Place::name(&tap.device), &now, &should),
            now,
            should,
            ..Hit::default()
        })
    };
    taps(machine).filter_map(hit).collect()
}

pub(super) fn vectors(machine: &Machine) -> Vec<Hit> {
    let few = |text: &str| {
        let counts =
            text.split("vectors ").skip(1).filter_map(|rest| rest.split(';').next()?.trim().parse::<u32>().ok());
        counts.min().filter(|n| *n < MIN_VECTORS)
    };
    let hit = |vm: &Vm| {
        let text = machine.placement.value_at(Setting::VmVirtqueues, &vm.name)?;
        let now = few(text)?;
        let option = "virtio-net-pci,vectors=4 (2 for each pair of queues, and 2)";
        Some(Hit {
            what: format!("a network device of {} has {now} interrupt vectors for its queues", vm.name),
            target: vm.name.clone(),
            now: now.to_string(),
            should: "default".into(),
            fix: redefine(vm, Setting::VmVirtqueues, option, option),
            ..Hit::default()
        })
    };
    machine.vms.iter().filter_map(hit).collect()
}

pub(super) fn unpinned(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let unused = placement.isolated.without(&placement.reserved());
    let free: Vec<u32> = unused.iter().collect();
    let loose: Vec<&Worker> = placement.vcpus().filter(|vcpu| !vcpu.cpus.overlaps(&placement.isolated)).collect();
    if free.is_empty() || loose.is_empty() {
        return Vec::new();
    }
    let hit = |(vcpu, cpu): (&&Worker, &u32)| Hit {
        what: format!(
            "{} runs on CPUs {} with all programs, although CPU {cpu} is isolated and unused",
            vcpu.name, vcpu.cpus
        ),
        target: vcpu.name.clone(),
        now: vcpu.cpus.to_string(),
        should: cpu.to_string(),
        cpus: vcpu.cpus.clone(),
        fix: super::placed::pin(machine, vcpu, &cpu.to_string()),
    };
    loose.iter().zip(&free).map(hit).collect()
}

/// CPUs of a virtual machine's pinned vCPUs.
fn vcpu_cpus(machine: &Machine, vm: &str) -> Cpus {
    let mut cpus = Cpus::default();
    let own = machine.placement.vcpus().filter(|vcpu| vcpu.vm == vm && machine.placement.is_pinned(vcpu));
    own.for_each(|vcpu| cpus.join(vcpu.cpus.clone()));
    cpus
}

fn list(nodes: &BTreeSet<u32>) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub(super) fn memory_apart(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let hit = |vm: &Vm| {
        let nodes = placement.nodes_of(&vcpu_cpus(machine, &vm.name));
        let memory: Cpus = placement.value_at(Setting::VmMemoryNodes, &vm.name)?.parse().ok()?;
        let memory: BTreeSet<u32> = memory.iter().collect();
        // Memory that may come from all nodes is the default, and no fault: it is allocated near the vCPUs.
        let is_apart = !nodes.is_empty() && memory.iter().all(|m| nodes.iter().all(|n| placement.are_apart(*n, *m)));
        (is_apart && !memory.is_empty()).then(|| Hit {
            what: format!(
                "{} has its vCPUs on node {} and its memory on node {}",
                vm.name,
                list(&nodes),
                list(&memory)
            ),
            target: vm.name.clone(),
            now: list(&memory),
            should: list(&nodes),
            fix: redefine(
                vm,
                Setting::VmMemoryNodes,
                &format!("<numatune><memory mode='strict' nodeset='{}'/></numatune>", list(&nodes)),
                &format!("numactl --membind={}", list(&nodes)),
            ),
            ..Hit::default()
        })
    };
    machine.vms.iter().filter_map(hit).collect()
}

pub(super) fn vcpus_apart(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let hit = |vm: &Vm| {
        let cpus = vcpu_cpus(machine, &vm.name);
        let nodes = placement.nodes_of(&cpus);
        let is_apart = nodes.iter().any(|a| nodes.iter().any(|b| placement.are_apart(*a, *b)));
        is_apart.then(|| Hit {
            what: format!("the vCPUs of {} are on nodes {}", vm.name, list(&nodes)),
            target: vm.name.clone(),
            now: list(&nodes),
            should: "one node".into(),
            fix: redefine(vm, Setting::ThreadCpus, "<vcpupin> to CPUs of one node", "vCPUs on CPUs of one node"),
            cpus,
        })
    };
    machine.vms.iter().filter_map(hit).collect()
}

/// Devices that carry a virtual machine's packets (the ports of its taps' bridges, or the device below a macvtap), each
/// with its NUMA node.
fn nics(machine: &Machine, vm: &Vm) -> Vec<(String, u32)> {
    let placement = &machine.placement;
    let masters: BTreeSet<&str> = vm
        .taps
        .iter()
        .flat_map(|tap| {
            let master = placement.value_at(Setting::DeviceMaster, &tap.device).filter(|master| *master != "none");
            tap.bridge.iter().map(|b| b.name.as_str()).chain(master).chain(tap.lower.as_deref())
        })
        .collect();
    let nodes = placement.values_of(Setting::DeviceNumaNode).iter();
    nodes
        .filter(|node| {
            let master = placement.value_at(Setting::DeviceMaster, &node.target).unwrap_or_default();
            masters.contains(master) || masters.contains(node.target.as_str())
        })
        .filter_map(|node| Some((node.target.clone(), node.value.parse().ok()?)))
        .collect()
}

pub(super) fn nic_apart(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let hit = |vm: &Vm| {
        let nodes = placement.nodes_of(&vcpu_cpus(machine, &vm.name));
        let is_far =
            |(_, node): &(String, u32)| !nodes.is_empty() && nodes.iter().all(|n| placement.are_apart(*n, *node));
        let (nic, node) = nics(machine, vm).into_iter().find(is_far)?;
        let near: Cpus = placement.nodes.iter().filter(|(_, n)| **n == node).map(|(cpu, _)| *cpu).collect();
        let near = near.iter().filter(|cpu| !placement.reserved().contains(*cpu)).collect::<Cpus>();
        Some(Hit {
            what: format!("{nic} is on node {node}, the vCPUs of {} are on node {}", vm.name, list(&nodes)),
            target: vm.name.clone(),
            now: list(&nodes),
            should: node.to_string(),
            fix: redefine(
                vm,
                Setting::ThreadCpus,
                &format!("<vcpupin> to CPUs of {near}"),
                &format!("vCPUs on CPUs of {near}"),
            ),
            ..Hit::default()
        })
    };
    machine.vms.iter().filter_map(hit).collect()
}

/// A vCPU's CPUs in libvirt's definition, from the value of `vm-pinning`.
fn defined<'a>(text: &'a str, vcpu: &str) -> Option<&'a str> {
    text.split(", ").find_map(|part| part.strip_prefix(&format!("vCPU {vcpu}: ")))
}

pub(super) fn definition(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let mut all = Vec::new();
    for vcpu in placement.vcpus().filter(|vcpu| placement.is_pinned(vcpu) && vcpu.job == Job::Vcpu) {
        let Some(text) = placement.value_at(Setting::VmPinning, &vcpu.vm) else { continue };
        let number = vcpu.name.rsplit(' ').next().unwrap_or_default();
        let known = defined(text, number).unwrap_or("not pinned");
        let is_same = known.parse::<Cpus>().is_ok_and(|cpus| cpus == vcpu.cpus);
        if is_same {
            continue;
        }
        let (name, number) = (quoted(&vcpu.vm), quoted(number));
        let set = |cpus: &str| format!("virsh vcpupin {name} {number} {cpus} --config");
        all.push(Hit {
            what: format!("{} is on {} now, in libvirt's definition: {known}", vcpu.name, vcpu.cpus),
            target: vcpu.name.clone(),
            now: known.into(),
            should: vcpu.cpus.to_string(),
            fix: Fix::commands(Setting::VmPinning, Disturbance::Nothing, [set(&vcpu.cpus.to_string())])
                .undone_by([set(if known == "not pinned" { "r" } else { known })]),
            cpus: vcpu.cpus.clone(),
        });
    }
    all
}
