//! Sums over the ranking: how much of all delay each cause took, and each culprit.

use super::Explanation;
use latpath_cause::{Actor, Cause, Culprit, Row};
use latpath_flight::Doing;
use latpath_model::{Ns, HOST};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Share of the delay, in thousandths, from which the text warns that latpath itself caused it.
const WORTH_A_WARNING_PER_MILLE: i128 = 50;

/// What one cause took of all late packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CauseTotal {
    pub cause: Cause,
    /// Its time beyond the baseline.
    pub excess_ns: Ns,
    /// Packets of which it took the most.
    pub first: u64,
}

/// What one culprit took of all late packets, by whatever cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CulpritTotal {
    /// The process; the systemd unit or control group, where several of its processes are culprits.
    pub name: String,
    pub machine: String,
    /// The processes, where `name` is a unit.
    pub processes: Vec<String>,
    /// The unit, where it is known and all threads are of one.
    pub unit: Option<String>,
    /// The names of its threads, where they differ from the process's.
    pub threads: Vec<String>,
    /// The threads' numbers, as far as they are kept.
    pub pids: Vec<u32>,
    pub is_latpath: bool,
    /// Its time beyond the baseline.
    pub excess_ns: Ns,
}

/// By cause, the largest first, `unexplained` last.
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

/// The culprits of a row, each with its part of the row's excess; the actor itself where nothing else kept it from acting.
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

/// By culprit, the largest first.
pub fn by_culprit(explanation: &Explanation) -> Vec<CulpritTotal> {
    let rows = || explanation.ranking.iter().map(|ranked| &ranked.row);
    // Units with several processes among the culprits. The unit of a thread that waited is not one culprit: it delays itself.
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
                threads: Vec::new(),
                pids: Vec::new(),
                is_latpath: actor.is_tool,
                excess_ns: 0,
            });
            total.excess_ns = total.excess_ns.saturating_add(ns);
            total.unit = total.unit.take().filter(|known| Some(known.as_str()) == unit);
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

/// What latpath's own threads took, on all machines.
pub fn latpath_ns(explanation: &Explanation) -> Ns {
    let own = by_culprit(explanation).into_iter().filter(|total| total.is_latpath);
    own.fold(0, |sum: Ns, total| sum.saturating_add(total.excess_ns))
}

/// The same, where it is worth a warning.
pub fn latpath_to_warn_of(explanation: &Explanation) -> Option<Ns> {
    let (own, all) = (latpath_ns(explanation), explanation.excess_ns);
    (i128::from(own) * 1000 >= i128::from(all) * WORTH_A_WARNING_PER_MILLE && own > 0).then_some(own)
}

/// `rustc (16 threads: opt cgu.14, opt cgu.02, …; builder.service)`, on another machine with its name.
pub fn described(total: &CulpritTotal) -> String {
    /// Names that are listed.
    const LISTED: usize = 3;
    let list = |what: &str, names: &[String]| match names {
        [] => None,
        names if names.len() <= LISTED => Some(names.join(", ")),
        names => Some(format!("{} {what}: {}, …", names.len(), names[..LISTED].join(", "))),
    };
    let inner = list("processes", &total.processes).or_else(|| list("threads", &total.threads));
    let unit = total.unit.clone().filter(|unit| *unit != total.name);
    let details: Vec<String> = inner.into_iter().chain(unit).collect();
    let machine =
        if matches!(total.machine.as_str(), HOST | "") { String::new() } else { format!("{}: ", total.machine) };
    match details.is_empty() {
        true => format!("{machine}{}", total.name),
        false => format!("{machine}{} ({})", total.name, details.join("; ")),
    }
}
