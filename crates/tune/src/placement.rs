//! Warns of harmful placements; they are planned as the user requests.

use crate::plan::Plan;
use crate::Machine;
use latpath_linux::Cpus;
use latpath_settings::{Address, Located, Setting};
use latpath_vms::{Role, Thread, Vm};
use std::collections::BTreeMap;

/// CPUs and real-time priority of a thread after the plan's steps; priority 0 means not real-time.
struct Placed<'a> {
    thread: &'a Thread,
    cpus: Cpus,
    priority: u32,
    is_fifo: bool,
}

/// Adds warnings to a plan.
pub(crate) fn warn(plan: &mut Plan, machine: &Machine, places: &[Located]) {
    let online = machine.online();
    let mut warnings = Vec::new();
    if let Some(isolated) = &plan.variables.isolated {
        if online.within(isolated) {
            warnings.push(format!(
                "all CPUs ({isolated}) are isolated: interrupts, kernel threads and programs have no CPU left; leave at \
                 least one to housekeeping"
            ));
        }
        if let Some(housekeeping) = &plan.variables.housekeeping {
            let both: Cpus = isolated.iter().filter(|cpu| housekeeping.contains(*cpu)).collect();
            if let Some(both) = both.named() {
                warnings.push(format!("{both} isolated and for housekeeping at once: housekeeping disturbs it"));
            }
        }
    }
    let values = after(plan, places);
    for vm in &machine.vms {
        warnings.extend(of_vm(vm, &values));
    }
    warnings.extend(shared_vcpus(machine, &values));
    warnings.extend(lost_routes(plan, machine));
    plan.warnings.extend(warnings);
}

/// Warns of gateway routes that are lost when a device moves to another network namespace.
fn lost_routes(plan: &Plan, machine: &Machine) -> Vec<String> {
    // include/uapi/linux/route.h
    const GATEWAY: u32 = 2;
    let text = machine.root().text("proc/net/route").unwrap_or_default();
    let moves = plan.steps.iter().filter(|step| step.setting == Setting::DeviceNamespace);
    let devices = moves.flat_map(|step| &step.places).filter_map(|place| place.address.device());
    let has_gateway = |device: &&str| {
        text.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let flags = fields.get(3).and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
            fields.first() == Some(device) && flags & GATEWAY != 0
        })
    };
    let one = |device: &str| {
        format!(
            "{device} has routes by a gateway: they end with its move to another network namespace, and tune undo does not \
             bring them back; a login through it ends too (--no-namespace leaves it where it is)"
        )
    };
    devices.filter(has_gateway).map(one).collect()
}

/// Priorities and CPUs of threads after the plan's steps, by TID and setting.
fn after<'a>(plan: &'a Plan, places: &'a [Located]) -> BTreeMap<(u32, Setting), &'a str> {
    let tid = |address: &Address| if let Address::Thread { tid, .. } = address { Some(*tid) } else { None };
    let now = places.iter().filter_map(|place| Some(((tid(&place.address)?, place.setting), place.value.as_str())));
    let planned = plan.steps.iter().flat_map(|step| {
        step.places.iter().filter_map(move |place| Some(((tid(&place.address)?, step.setting), step.to.as_str())))
    });
    now.chain(planned).collect()
}

fn placed<'a>(thread: &'a Thread, values: &BTreeMap<(u32, Setting), &str>) -> Option<Placed<'a>> {
    let scheduling = values.get(&(thread.tid, Setting::ThreadPriority))?;
    let cpus = values.get(&(thread.tid, Setting::ThreadCpus))?.parse().ok()?;
    let (policy, priority) = scheduling.split_once(' ').unwrap_or((scheduling, "0"));
    let is_fifo = policy == "fifo";
    let priority = if ["fifo", "rr"].contains(&policy) { priority.parse().ok()? } else { 0 };
    Some(Placed { thread, cpus, priority, is_fifo })
}

/// Warns if a vCPU under SCHED_FIFO shares a CPU with the main loop or a vhost worker of its virtual machine.
fn of_vm(vm: &Vm, values: &BTreeMap<(u32, Setting), &str>) -> Vec<String> {
    let of = |role: Role| vm.threads.iter().filter(move |t| t.role == role).filter_map(|t| placed(t, values));
    let vcpus: Vec<Placed> = of(Role::Vcpu).filter(|vcpu| vcpu.is_fifo).collect();
    let mut warnings = Vec::new();
    for server in of(Role::MainLoop).chain(of(Role::Vhost)) {
        let mut taken = Cpus::default();
        vcpus.iter().filter(|vcpu| vcpu.priority >= server.priority).for_each(|vcpu| taken.join(vcpu.cpus.clone()));
        if !server.cpus.overlaps(&taken) {
            continue;
        }
        let both: Cpus = server.cpus.iter().filter(|cpu| taken.contains(*cpu)).collect();
        let (name, role, both) = (&vm.name, server.thread.role.name(), both.named().unwrap_or_default());
        warnings.push(match server.cpus.within(&taken) {
            true => format!(
                "{name}: its {role} can only run on {both}, where a vCPU runs under SCHED_FIFO with at least its \
                 priority: a vCPU that waits for it waits for ever (a deadlock); give the {role} another CPU"
            ),
            false => format!(
                "{name}: its {role} may run on {both} behind a vCPU under SCHED_FIFO, which then delays it; keep it off \
                 that CPU"
            ),
        });
    }
    warnings
}

/// Warns of vCPUs under SCHED_FIFO that are pinned to the same CPU.
fn shared_vcpus(machine: &Machine, values: &BTreeMap<(u32, Setting), &str>) -> Vec<String> {
    let mut of_cpu: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for vm in &machine.vms {
        for thread in vm.threads.iter().filter(|thread| thread.role == Role::Vcpu) {
            let Some(vcpu) = placed(thread, values).filter(|vcpu| vcpu.is_fifo) else { continue };
            let cpus: Vec<u32> = vcpu.cpus.iter().take(2).collect();
            if let [cpu] = cpus.as_slice() {
                let number = thread.vcpu.map_or(String::new(), |n| format!(" {n}"));
                of_cpu.entry(*cpu).or_default().push(format!("{} vCPU{number}", vm.name));
            }
        }
    }
    let one = |(cpu, vcpus): (u32, Vec<String>)| {
        (vcpus.len() > 1).then(|| {
            format!("CPU {cpu} has {} under SCHED_FIFO: one keeps the other from running", vcpus.join(" and "))
        })
    };
    of_cpu.into_iter().filter_map(one).collect()
}
