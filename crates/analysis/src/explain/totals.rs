//! Sums of the ranking's excess by cause and by culprit.

use super::Explanation;
use latpath_cause::{Actor, Cause, Culprit, Row};
use latpath_flight::Doing;
use latpath_model::{Ns, HOST};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum share of the excess, per mille, for a warning about latpath's own threads.
const WORTH_A_WARNING_PER_MILLE: i128 = 50;

/// Total of one cause over all late packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CauseTotal {
    /// The cause.
    pub cause: Cause,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Number of packets with this first cause.
    pub first: u64,
}

/// Total of one culprit over all late packets and causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CulpritTotal {
    /// Name of the process; or of the systemd unit or control group, if several of its processes are culprits.
    pub name: String,
    /// The machine.
    pub machine: String,
    /// The processes, if `name` is a unit.
    pub processes: Vec<String>,
    /// The unit, if it is known and the same for all threads.
    pub unit: Option<String>,
    /// The owner in human-readable form (`container web (docker)`), if it is known and the same for all threads.
    pub owner: Option<String>,
    /// Names of the threads that differ from the process name.
    pub threads: Vec<String>,
    /// The thread IDs, as far as they were kept.
    pub pids: Vec<u32>,
    /// Whether the culprit is latpath itself.
    pub is_latpath: bool,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
}

/// Totals by cause, the largest first, `unexplained` last.
pub fn by_cause(explanation: &Explanation) -> Vec<CauseTotal> {
    let mut sums: BTreeMap<Cause, (Ns, u64)> = BTreeMap::new();
    for ranked in &explanation.ranking {
        let (excess_ns, first) = sums.entry(ranked.row.cause).or_default();
        *excess_ns = excess_ns.saturating_add(ranked.row.excess_ns);
        *first += ranked.row.first;
    }
    let total = |(cause, (excess_ns, first))| CauseTotal { cause, excess_ns, first };
    let mut all: Vec<CauseTotal> = sums.into_iter().map(total).collect();
    all.sort_by_key(|total| (total.cause == Cause::Unexplained, Reverse((total.excess_ns, total.first))));
    all
}

/// Culprits of a row, each with its share of the row's excess; the actor itself if there is no other culprit.
fn culprits(row: &Row) -> Vec<(&Actor, Ns)> {
    let is_idle = |actor: &Actor| matches!(actor.doing, Doing::Idle { .. });
    match (row.cause.info().culprit, row.by.as_slice()) {
        (Culprit::Nobody, _) => Vec::new(),
        (Culprit::Actor | Culprit::IdleCpu, _) | (Culprit::Found, []) => {
            row.actor.iter().map(|actor| (actor, row.excess_ns)).collect()
        }
        (Culprit::Found, by) => {
            by.iter().filter(|(actor, _)| !is_idle(actor)).map(|(actor, ns)| (actor, *ns)).collect()
        }
    }
}

fn unit_of(actor: &Actor) -> Option<&str> {
    actor.process.as_ref()?.unit.as_deref().filter(|_| !actor.is_tool)
}

fn owner_of(actor: &Actor) -> Option<&str> {
    actor.process.as_ref()?.owner.as_deref().filter(|_| !actor.is_tool)
}

/// Totals by culprit, the largest first.
pub fn by_culprit(explanation: &Explanation) -> Vec<CulpritTotal> {
    let rows = || explanation.ranking.iter().map(|ranked| &ranked.row);
    // Units with several processes among the culprits are shown as one culprit. A unit with a waiting thread is not: it
    // delays itself, so its processes are shown separately.
    let mut units: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for row in rows() {
        for (actor, _) in culprits(row) {
            if let Some(unit) = unit_of(actor) {
                units.entry((&row.machine, unit)).or_default().insert(&actor.name);
            }
        }
    }
    let victims: BTreeSet<(&str, &str)> =
        rows().filter_map(|row| Some((row.machine.as_str(), unit_of(row.actor.as_ref()?)?))).collect();
    units.retain(|unit, processes| processes.len() > 1 && !victims.contains(unit));

    let mut totals: BTreeMap<(String, String), CulpritTotal> = BTreeMap::new();
    for row in rows() {
        for (actor, ns) in culprits(row) {
            let unit = unit_of(actor);
            let grouped = unit.filter(|unit| units.contains_key(&(row.machine.as_str(), *unit)));
            let name = grouped.unwrap_or(&actor.name);
            let total = totals.entry((row.machine.clone(), name.to_owned())).or_insert_with(|| CulpritTotal {
                name: name.to_owned(),
                machine: row.machine.clone(),
                processes: Vec::new(),
                unit: unit.map(str::to_owned),
                owner: owner_of(actor).map(str::to_owned),
                threads: Vec::new(),
                pids: Vec::new(),
                is_latpath: actor.is_tool,
                excess_ns: 0,
            });
            total.excess_ns = total.excess_ns.saturating_add(ns);
            total.unit = total.unit.take().filter(|known| Some(known.as_str()) == unit);
            total.owner = total.owner.take().filter(|known| Some(known.as_str()) == owner_of(actor));
            let add = |list: &mut Vec<String>, name: &String| {
                if !list.contains(name) {
                    list.push(name.clone());
                }
            };
            if grouped.is_some() {
                add(&mut total.processes, &actor.name);
            }
            actor.threads.iter().for_each(|thread| add(&mut total.threads, thread));
            let new: Vec<u32> = actor.pids.iter().copied().filter(|pid| !total.pids.contains(pid)).collect();
            total.pids.extend(new);
        }
    }
    let mut all: Vec<CulpritTotal> = totals.into_values().filter(|total| total.excess_ns > 0).collect();
    all.sort_by_key(|total| Reverse(total.excess_ns));
    all
}

/// Excess that latpath's own threads caused on all machines, ns.
pub fn latpath_ns(explanation: &Explanation) -> Ns {
    let own = by_culprit(explanation).into_iter().filter(|total| total.is_latpath);
    own.fold(0, |sum: Ns, total| sum.saturating_add(total.excess_ns))
}

/// Excess that latpath's own threads caused, ns, if it is large enough for a warning.
pub fn latpath_to_warn_of(explanation: &Explanation) -> Option<Ns> {
    let (own, all) = (latpath_ns(explanation), explanation.excess_ns);
    (i128::from(own) * 1000 >= i128::from(all) * WORTH_A_WARNING_PER_MILLE && own > 0).then_some(own)
}

/// A culprit with details: `rustc (16 threads: opt cgu.14, opt cgu.02, …; unit builder.service)`; with the machine,
/// unless it is the host.
pub fn described(total: &CulpritTotal) -> String {
    /// Maximum number of listed names.
    const LISTED: usize = 3;
    let list = |what: &str, names: &[String]| match names {
        [] => None,
        names if names.len() <= LISTED => Some(names.join(", ")),
        names => Some(format!("{} {what}: {}, …", names.len(), names[..LISTED].join(", "))),
    };
    let inner = list("processes", &total.processes).or_else(|| list("threads", &total.threads));
    let owner = total.owner.clone().or(total.unit.clone());
    let (name, owner) = match owner {
        // The total is that of a unit, which is shown by its owner's name (e.g. a container or pod), if known.
        Some(owner) if total.unit.as_ref() == Some(&total.name) => (owner, None),
        owner => (total.name.clone(), owner),
    };
    let details: Vec<String> = inner.into_iter().chain(owner).collect();
    let machine =
        if matches!(total.machine.as_str(), HOST | "") { String::new() } else { format!("{}: ", total.machine) };
    match details.is_empty() {
        true => format!("{machine}{name}"),
        false => format!("{machine}{name} ({})", details.join("; ")),
    }
}
