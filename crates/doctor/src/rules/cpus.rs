//! Inconsistent isolation of CPUs.

use super::placed::free;
use super::Hit;
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_linux::Cpus;
use latpath_model::text::quoted;
use latpath_placement::Placement;
use latpath_settings::{Disturbance, Place, Setting};

/// Maximum number of programs named in a sentence.
const MAX_NAMES: usize = 6;

fn named(cpus: &Cpus) -> String {
    cpus.named().unwrap_or_else(|| "no CPU".into())
}

pub(super) fn no_housekeeping(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    if placement.online.is_empty() || placement.kept().is_empty() || !placement.housekeeping().is_empty() {
        return Vec::new();
    }
    let first: Cpus = placement.online.iter().take(1).collect();
    let should = placement.kept().without(&first);
    let list = should.to_string();
    let parameters = [(Setting::BootIsolcpus, list.as_str()), (Setting::BootNohzFull, list.as_str())];
    vec![Hit {
        what: format!("all CPUs ({}) are isolated or without tick: none is left for the host", placement.online),
        cpus: placement.online.clone(),
        now: placement.kept().to_string(),
        should: list.clone(),
        fix: Fix::boot(machine, &parameters),
        ..Hit::default()
    }]
}

/// CPUs that should be isolated on a machine where none is: those already reserved, if any. Otherwise the last CPUs,
/// one per vCPU, but at least a quarter of the CPUs, and at least one, is left to the host; `None` without virtual
/// machines, or with a single CPU.
pub(crate) fn to_isolate(placement: &Placement) -> Option<Cpus> {
    let reserved = placement.reserved();
    if !reserved.is_empty() {
        return Some(reserved);
    }
    let online: Vec<u32> = placement.online.iter().collect();
    let most = online.len() - (online.len() / 4).max(1).min(online.len());
    let chosen: Cpus = online.iter().rev().take(placement.vcpus().count().min(most)).copied().collect();
    (!chosen.is_empty()).then_some(chosen)
}

pub(super) fn none_isolated(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let by_group = placement.values_of(Setting::CgroupPartition).iter().any(|value| value.value.contains("isolated"));
    if !placement.kept().is_empty() || by_group {
        return Vec::new();
    }
    let Some(chosen) = to_isolate(placement).filter(|_| placement.vcpus().next().is_some()) else { return Vec::new() };
    let (vcpus, cpus) = (placement.vcpus().count(), chosen.iter().count());
    if vcpus > cpus {
        return vec![Hit {
            what: format!(
                "{vcpus} vCPUs share {} with everything else: too few to isolate one for each",
                named(&placement.online)
            ),
            now: "none".into(),
            should: format!("at most {cpus} vCPUs, each on an isolated CPU"),
            ..Hit::default()
        }];
    }
    let (list, others) = (chosen.to_string(), placement.online.without(&chosen).to_string());
    let parameters = [
        (Setting::BootIsolcpus, &*format!("managed_irq,domain,{list}")),
        (Setting::BootNohzFull, &list),
        (Setting::BootRcuNocbs, &list),
        (Setting::BootIrqaffinity, &others),
    ];
    vec![Hit {
        what: "no CPU is isolated: vCPUs share theirs with all programs, interrupts and kernel threads".into(),
        now: "none".into(),
        should: format!("{list}, or others with as many CPUs"),
        fix: Fix::boot(machine, &parameters),
        ..Hit::default()
    }]
}

/// The beginning of a sentence: `isolated CPU 3 has`, `isolated CPUs 2-3 have`.
fn isolated(cpus: &Cpus) -> String {
    let has = if cpus.iter().nth(1).is_some() { "have" } else { "has" };
    format!("isolated {} {has}", named(cpus))
}

/// Finds isolated CPUs that have a periodic tick. `nohz_full` implies `rcu_nocbs` (kernel/rcu/tree_nocb.h), but not in
/// all kernels, so the fix sets both.
pub(super) fn with_tick(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let missing = placement.isolated.without(&placement.nohz_full);
    if missing.is_empty() {
        return Vec::new();
    }
    let mut all = placement.nohz_full.clone();
    all.join(missing.clone());
    let list = all.to_string();
    vec![Hit {
        what: format!("{} a tick: no nohz_full", isolated(&missing)),
        now: placement.value(Setting::BootNohzFull).unwrap_or(Setting::ABSENT).into(),
        should: list.clone(),
        fix: Fix::boot(machine, &[(Setting::BootNohzFull, &list), (Setting::BootRcuNocbs, &list)]),
        cpus: missing,
        ..Hit::default()
    }]
}

pub(super) fn not_isolated(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let open = placement.nohz_full.without(&placement.isolated);
    if open.is_empty() || placement.housekeeping().is_empty() {
        return Vec::new();
    }
    let list = format!("managed_irq,domain,{}", placement.kept());
    vec![Hit {
        what: format!("{} without tick, but not isolated", named(&open)),
        now: placement.value(Setting::BootIsolcpus).unwrap_or(Setting::ABSENT).into(),
        should: list.clone(),
        fix: Fix::boot(machine, &[(Setting::BootIsolcpus, &list)]),
        cpus: open,
        ..Hit::default()
    }]
}

pub(super) fn irqaffinity(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let Some(now) = placement.value(Setting::DefaultIrqAffinity) else { return Vec::new() };
    let may = Cpus::of_mask(now).unwrap_or_default();
    let bad = may.common(&placement.isolated);
    let housekeeping = placement.housekeeping();
    if bad.is_empty() || housekeeping.is_empty() {
        return Vec::new();
    }
    let should = housekeeping.mask();
    let live = Fix::set(Setting::DefaultIrqAffinity, &Place::All, now, &should);
    vec![Hit {
        what: format!("new interrupts may be served on isolated {}", named(&bad)),
        now: now.into(),
        should,
        fix: live.and(Fix::boot(machine, &[(Setting::BootIrqaffinity, &housekeeping.to_string())])),
        cpus: bad,
        ..Hit::default()
    }]
}

pub(super) fn irqbalance(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let Some(irqbalance) = machine.owners.irqbalance() else { return Vec::new() };
    let mut keep_off = placement.isolated.clone();
    keep_off.join(placement.reserved());
    let bad = keep_off.without(&irqbalance.banned);
    if bad.is_empty() {
        return Vec::new();
    }
    let file = irqbalance.file.clone().unwrap_or_else(|| "/etc/default/irqbalance".into());
    let line = quoted(&format!("IRQBALANCE_BANNED_CPULIST={keep_off}"));
    let commands = [format!("echo {line} >> {file} && systemctl restart irqbalance")];
    let undo = [format!("sed -i '$d' {file} && systemctl restart irqbalance")];
    vec![Hit {
        what: format!("irqbalance may move interrupts to {}", named(&bad)),
        now: format!(
            "banned: {}",
            if irqbalance.banned.is_empty() { "none".into() } else { irqbalance.banned.to_string() }
        ),
        should: format!("banned: {keep_off}"),
        fix: Fix::commands(Setting::IrqAffinity, Disturbance::CpuStall, commands).undone_by(undo),
        cpus: bad,
        target: "irqbalance".into(),
    }]
}

pub(super) fn work(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let reserved = placement.reserved();
    let free = free(placement);
    if reserved.is_empty() || free.overlaps(&reserved) {
        return Vec::new();
    }
    let one = |setting: Setting, what: &str| {
        let now = placement.value(setting)?;
        let bad = Cpus::of_mask(now)?.common(&reserved);
        let should = free.mask();
        (!bad.is_empty()).then(|| Hit {
            what: format!("{what} may run on reserved {}", named(&bad)),
            now: now.into(),
            fix: Fix::set(setting, &Place::All, now, &should),
            should,
            cpus: bad,
            ..Hit::default()
        })
    };
    let unbound = one(Setting::WorkqueueCpus, "the kernel's unbound work");
    unbound.into_iter().chain(one(Setting::WritebackCpus, "the threads that write files back")).collect()
}

pub(super) fn strangers(machine: &Machine) -> Vec<Hit> {
    let all = &machine.strangers;
    if all.is_empty() {
        return Vec::new();
    }
    let placement = &machine.placement;
    let free = free(placement).to_string();
    let reserved = placement.reserved();
    let mut names: Vec<&str> = Vec::new();
    let mut cpus = Cpus::default();
    for stranger in all {
        cpus.join(stranger.cpus.common(&reserved));
        if !names.contains(&stranger.comm.as_str()) {
            names.push(&stranger.comm);
        }
    }
    let more = if names.len() > MAX_NAMES { ", …" } else { "" };
    let named_programs = names.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    let fix = match all.as_slice() {
        [one] => Fix::set(Setting::ThreadCpus, &Place::name(one.tid), &one.cpus.to_string(), &free),
        _ => {
            let slices = ["system.slice", "user.slice"];
            let set = |value: &str| slices.map(|slice| format!("systemctl set-property {slice} AllowedCPUs={value}"));
            Fix::commands(Setting::CgroupCpus, Disturbance::CpuStall, set(&free)).undone_by(set(""))
        }
    };
    let (count, s) = (all.len(), if all.len() == 1 { "" } else { "s" });
    vec![Hit {
        what: format!(
            "{count} thread{s} of other programs ({named_programs}{more}) may run on reserved {}",
            named(&cpus)
        ),
        target: named_programs,
        now: cpus.to_string(),
        should: free,
        cpus,
        fix,
    }]
}
