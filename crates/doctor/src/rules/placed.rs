//! Threads and interrupts on the wrong CPUs: the collisions found by crate placement, with the commands that resolve
//! them.

use super::Hit;
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_linux::Cpus;
use latpath_model::text::quoted;
use latpath_placement::{Collision, CollisionKind, Interrupt, Job, Placement, Worker};
use latpath_settings::{Disturbance, Place, Setting};

/// Words in the names of interrupts that the kernel places itself (managed interrupts): their affinity cannot be
/// changed.
const MANAGED: [&str; 4] = ["nvme", "mpi3mr", "megasas", "hisi_sas"];

/// CPUs for threads of the host: those that are neither isolated nor reserved; if there are none, those that are not
/// reserved; if all are reserved, all.
pub(super) fn free(placement: &Placement) -> Cpus {
    let free = placement.housekeeping().without(&placement.reserved());
    let free = if free.is_empty() { placement.online.without(&placement.reserved()) } else { free };
    if free.is_empty() {
        placement.online.clone()
    } else {
        free
    }
}

/// Sets a thread's CPUs, through libvirt if it manages the virtual machine.
pub(super) fn pin(machine: &Machine, worker: &Worker, cpus: &str) -> Fix {
    let old = worker.cpus.to_string();
    let place = worker.tid.map_or_else(|| Place::expression("$TID"), Place::name);
    let vm = machine.vms.iter().find(|vm| vm.name == worker.vm && vm.libvirt);
    let Some(vm) = vm else { return Fix::set(Setting::ThreadCpus, &place, &old, cpus) };
    let name = quoted(&vm.name);
    let command = |cpus: &str| match worker.job {
        Job::Vcpu => {
            let number = worker.name.rsplit(' ').next().unwrap_or_default();
            format!("virsh vcpupin {name} {} {cpus} --live --config", quoted(number))
        }
        _ => format!("virsh emulatorpin {name} {cpus} --live --config"),
    };
    Fix::commands(Setting::ThreadCpus, Disturbance::Nothing, [command(cpus)]).undone_by([command(&old)])
}

fn worker<'a>(machine: &'a Machine, collision: &Collision) -> Option<&'a Worker> {
    machine.placement.workers.iter().find(|worker| worker.name == collision.who)
}

fn of(machine: &Machine, kind: CollisionKind) -> Vec<Collision> {
    machine.placement.collisions().into_iter().filter(|collision| collision.kind == kind).collect()
}

fn with(collision: &Collision) -> String {
    collision.with.join(", ")
}

fn named(cpus: &Cpus) -> String {
    cpus.named().unwrap_or_else(|| "no CPU".into())
}

/// Converts a collision to a finding: the thread or interrupt should have other CPUs.
fn hit_of(collision: &Collision, what: String, should: String, fix: Fix) -> Hit {
    let Collision { who, on, cpus, .. } = collision;
    Hit { what, target: who.clone(), now: on.to_string(), should, cpus: cpus.clone(), fix }
}

/// Finds threads that should run elsewhere.
fn elsewhere(machine: &Machine, kind: CollisionKind, what: impl Fn(&Collision) -> String) -> Vec<Hit> {
    let free = free(&machine.placement).to_string();
    let hit = |collision: Collision| {
        let fix = worker(machine, &collision).map(|worker| pin(machine, worker, &free)).unwrap_or_default();
        hit_of(&collision, what(&collision), free.clone(), fix)
    };
    of(machine, kind).into_iter().map(hit).collect()
}

pub(super) fn main_loop(machine: &Machine) -> Vec<Hit> {
    elsewhere(machine, CollisionKind::MainLoopBehindVcpu, |c| {
        format!("{} may run only on {}, where {} has the CPU in real time: a deadlock", c.who, named(&c.on), with(c))
    })
}

pub(super) fn vhost(machine: &Machine) -> Vec<Hit> {
    elsewhere(machine, CollisionKind::VhostBehindVcpu, |c| {
        format!("{} may run only on {}, where {} has the CPU in real time: a deadlock", c.who, named(&c.on), with(c))
    })
}

pub(super) fn may_meet(machine: &Machine) -> Vec<Hit> {
    elsewhere(machine, CollisionKind::MayMeetVcpu, |c| {
        format!("{} may run on {}, where {} has the CPU in real time", c.who, named(&c.cpus), with(c))
    })
}

pub(super) fn thread_on_reserved(machine: &Machine) -> Vec<Hit> {
    elsewhere(machine, CollisionKind::ThreadOnReserved, |c| {
        format!("{} may run on {}, which is reserved for {}", c.who, named(&c.cpus), with(c))
    })
}

/// A CPU that is not reserved for a vCPU or a polling thread: the first isolated one, otherwise the last of the others.
fn unused(placement: &Placement) -> Option<u32> {
    let free = placement.isolated.without(&placement.reserved());
    let other = placement.online.without(&placement.reserved());
    let first = free.iter().next();
    first.or_else(|| other.iter().last())
}

fn shared(machine: &Machine, kind: CollisionKind) -> Vec<Hit> {
    let hit = |collision: Collision| {
        let to = unused(&machine.placement);
        let fix = worker(machine, &collision).zip(to).map(|(worker, cpu)| pin(machine, worker, &cpu.to_string()));
        let what = format!("{} and {} are on {}", with(&collision), collision.who, named(&collision.cpus));
        let should = to.map_or("a CPU of its own".into(), |cpu| cpu.to_string());
        hit_of(&collision, what, should, fix.unwrap_or_default())
    };
    of(machine, kind).into_iter().map(hit).collect()
}

pub(super) fn two_realtime(machine: &Machine) -> Vec<Hit> {
    shared(machine, CollisionKind::TwoRealtimeVcpus)
}

pub(super) fn two_vcpus(machine: &Machine) -> Vec<Hit> {
    shared(machine, CollisionKind::TwoVcpus)
}

fn interrupts(machine: &Machine, kind: CollisionKind, what: impl Fn(&Collision) -> String) -> Vec<Hit> {
    let placement = &machine.placement;
    let free = free(placement).to_string();
    let hit = |collision: Collision| {
        let is_managed = MANAGED.iter().any(|name| collision.who.starts_with(name));
        let fix = match collision.number {
            _ if is_managed => {
                let isolated = placement.value(Setting::BootIsolcpus).unwrap_or_default();
                let list =
                    if placement.isolated.is_empty() { placement.reserved() } else { placement.isolated.clone() };
                match isolated.contains("managed_irq") {
                    true => Fix::default(),
                    false => Fix::boot(machine, &[(Setting::BootIsolcpus, &format!("managed_irq,domain,{list}"))]),
                }
            }
            Some(number) => Fix::set(Setting::IrqAffinity, &Place::name(number), &collision.on.to_string(), &free),
            None => Fix::default(),
        };
        let kernels = if is_managed { "; the kernel itself chose the CPU (a managed interrupt)" } else { "" };
        hit_of(&collision, what(&collision) + kernels, free.clone(), fix)
    };
    of(machine, kind).into_iter().map(hit).collect()
}

pub(super) fn interrupt_on_reserved(machine: &Machine) -> Vec<Hit> {
    interrupts(machine, CollisionKind::InterruptOnReserved, |c| {
        format!("{} is served on {}, which is reserved for {}", c.who, named(&c.cpus), with(c))
    })
}

pub(super) fn interrupt_on_isolated(machine: &Machine) -> Vec<Hit> {
    interrupts(machine, CollisionKind::InterruptOnIsolated, |c| {
        format!("{} is served on {}, which is isolated", c.who, named(&c.cpus))
    })
}

pub(super) fn across(machine: &Machine) -> Vec<Hit> {
    let hit = |collision: Collision| {
        let fix = worker(machine, &collision).map(|w| pin(machine, w, &collision.cpus.to_string()));
        Hit {
            what: format!(
                "{} may run on {}, of which only {} is isolated",
                collision.who,
                named(&collision.on),
                collision.cpus
            ),
            target: collision.who.clone(),
            now: collision.on.to_string(),
            should: collision.cpus.to_string(),
            cpus: collision.on,
            fix: fix.unwrap_or_default(),
        }
    };
    of(machine, CollisionKind::VcpuAcross).into_iter().map(hit).collect()
}

pub(super) fn pmd(machine: &Machine) -> Vec<Hit> {
    let isolated = machine.placement.isolated.without(&machine.placement.reserved());
    let hit = |collision: Collision| {
        let mask = |cpus: &Cpus| {
            format!("ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask={}", cpus.mask().replace(',', ""))
        };
        let fix =
            Fix::commands(Setting::OvsConfig, Disturbance::LinkFlap, (!isolated.is_empty()).then(|| mask(&isolated)))
                .undone_by([mask(&collision.on)]);
        let what = format!("{} runs on {}, which is not isolated", collision.who, named(&collision.on));
        let should = if isolated.is_empty() { "an isolated CPU".into() } else { isolated.to_string() };
        hit_of(&collision, what, should, fix)
    };
    of(machine, CollisionKind::PmdNotIsolated).into_iter().map(hit).collect()
}

pub(super) fn sibling(machine: &Machine) -> Vec<Hit> {
    let hit = |collision: Collision| {
        let smt = machine.placement.value(Setting::Smt).unwrap_or("on").to_owned();
        Hit {
            what: format!("{} shares its core with {}, which others use", collision.who, named(&collision.cpus)),
            target: collision.who.clone(),
            now: smt.clone(),
            should: "off".into(),
            cpus: collision.cpus,
            fix: Fix::set(Setting::Smt, &Place::All, &smt, "off"),
        }
    };
    of(machine, CollisionKind::SiblingInUse).into_iter().map(hit).collect()
}

/// Real-time priority of an interrupt's thread; 0 if there is none.
fn priority(interrupt: &Interrupt) -> u32 {
    let thread = interrupt.thread.as_deref().unwrap_or_default();
    thread.strip_prefix("fifo ").or(thread.strip_prefix("rr ")).and_then(|n| n.parse().ok()).unwrap_or(0)
}

pub(super) fn irq_threads(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let devices = placement.values_of(Setting::DeviceMtu);
    let is_of_network = |interrupt: &&Interrupt| {
        devices.iter().any(|device| interrupt.name.split([' ', '-']).next() == Some(device.target.as_str()))
    };
    let (network, others): (Vec<&Interrupt>, Vec<&Interrupt>) =
        placement.interrupts.iter().filter(|interrupt| interrupt.thread.is_some()).partition(is_of_network);
    let hit = |own: &&Interrupt| {
        let is_above = |other: &&&Interrupt| priority(other) > priority(own) && other.serving.overlaps(&own.serving);
        let above = others.iter().filter(is_above).max_by_key(|other| priority(other))?;
        let now = own.thread.clone().unwrap_or_default();
        let should = format!("fifo {}", (priority(above) + 1).min(98));
        let threads = placement.values_of(Setting::IrqThreadPriority);
        let thread = threads.iter().find(|thread| own.name.starts_with(&thread.target));
        let place = thread.and_then(|thread| thread.at.clone()).map_or_else(|| Place::expression("$TID"), Place::name);
        Some(Hit {
            what: format!(
                "the thread of {} ({now}) waits behind that of {} ({}) on {}",
                own.name,
                above.name,
                above.thread.clone().unwrap_or_default(),
                named(&own.serving)
            ),
            target: own.name.clone(),
            cpus: own.serving.clone(),
            fix: Fix::set(Setting::IrqThreadPriority, &place, &now, &should),
            now,
            should,
        })
    };
    network.iter().filter_map(hit).collect()
}
