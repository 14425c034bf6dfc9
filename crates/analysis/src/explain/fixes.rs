//! Fixes for the causes of an explanation: each fix once, with all causes that it removes, and without contradictions.

use super::{Explanation, RankedCause};
use latpath_cause::{advise, Advice, Row, RunContext};
use latpath_model::Ns;
use std::collections::HashMap;

/// Maximum number of threads of a culprit in a fix.
const MAX_PIDS: usize = 32;

/// A fix, and the causes that it removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// The fix.
    pub advice: Advice,
    /// Indexes of the ranking's rows whose causes the fix removes.
    pub rows: Vec<usize>,
    /// Time of these rows beyond the baseline, ns.
    pub excess_ns: Ns,
}

/// Values that commands assign, by machine and by thread or unit.
#[derive(Debug, Default)]
pub(super) struct Assigned(HashMap<(String, Object), String>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Object {
    CpusOfThread(u32),
    CpusOfUnit(String),
    PriorityOfThread(u32),
}

/// The objects that a command changes, and the values that it assigns to them.
fn set_by(command: &str) -> Vec<(Object, String)> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["taskset", "-cp", cpus, pid] => {
            pid.parse().ok().map(|pid| (Object::CpusOfThread(pid), (*cpus).to_owned())).into_iter().collect()
        }
        ["for", "pid", "in", pids @ .., "do", "taskset", "-cp", cpus, "$pid;", "done"] => {
            let pids = pids.iter().filter_map(|pid| pid.trim_end_matches(';').parse().ok());
            pids.map(|pid| (Object::CpusOfThread(pid), (*cpus).to_owned())).collect()
        }
        ["systemctl", "set-property", "--runtime", unit, value] => {
            vec![(Object::CpusOfUnit((*unit).to_owned()), (*value).to_owned())]
        }
        ["chrt", "-f", "-p", priority, pid] => {
            pid.parse().ok().map(|pid| (Object::PriorityOfThread(pid), (*priority).to_owned())).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

impl Assigned {
    /// Adds a fix unless it contradicts an earlier one; returns whether it was added.
    pub fn agrees(&mut self, advice: &Advice) -> bool {
        let all: Vec<_> = advice.commands.iter().flat_map(|command| set_by(command)).collect();
        let key = |object: &Object| (advice.machine.clone(), object.clone());
        if all.iter().any(|(object, value)| self.0.get(&key(object)).is_some_and(|known| known != value)) {
            return false;
        }
        self.0.extend(all.into_iter().map(|(object, value)| (key(&object), value)));
        true
    }
}

/// Makes the CPUs and threads of the rows consistent, so that one fix serves all of them: each waiting thread gets the
/// CPU on which it waited longest, and each culprit gets all of its threads.
fn harmonised(rows: &[Row]) -> Vec<Row> {
    type Name = (String, String);
    let mut cpus: HashMap<Name, HashMap<u32, Ns>> = HashMap::new();
    let mut pids: HashMap<Name, Vec<u32>> = HashMap::new();
    let victim =
        |row: &Row| Some((row.machine.clone(), row.actor.as_ref().filter(|a| a.pid().is_some())?.name.clone()));
    for row in rows {
        if let Some(victim) = victim(row) {
            let of_victim = cpus.entry(victim).or_default();
            for (cpu, ns) in &row.cpus {
                let sum = of_victim.entry(*cpu).or_default();
                *sum = sum.saturating_add(*ns);
            }
        }
        if let Some((by, _)) = row.by.first() {
            let known = pids.entry((row.machine.clone(), by.name.clone())).or_default();
            for pid in by.pids.iter().rev() {
                if known.len() < MAX_PIDS && !known.contains(pid) {
                    known.push(*pid);
                }
            }
        }
    }
    let one = |row: &Row| {
        let mut row = row.clone();
        let home =
            victim(&row).and_then(|victim| cpus.get(&victim)?.iter().max_by_key(|(cpu, ns)| (**ns, u32::MAX - **cpu)));
        if let Some((home, _)) = home {
            row.share.cpus.sort_by_key(|(cpu, _)| cpu != home);
            if row.share.cpus.first().is_some_and(|(cpu, _)| cpu != home) {
                row.share.cpus.insert(0, (*home, 0));
            }
        }
        let machine = row.machine.clone();
        if let Some((by, _)) = row.share.by.first_mut() {
            if let Some(pids) = pids.get(&(machine, by.name.clone())).filter(|pids| pids.len() > 1) {
                by.pids = pids.iter().rev().copied().collect();
            }
        }
        row
    };
    rows.iter().map(one).collect()
}

/// The thread ID and priority of a command such as `chrt -f -p 51 815`.
fn priority(advice: &Advice) -> Option<(u32, u32)> {
    let [command] = advice.commands.as_slice() else { return None };
    match set_by(command).as_slice() {
        [(Object::PriorityOfThread(pid), priority)] => Some((*pid, priority.parse().ok()?)),
        _ => None,
    }
}

/// The ranking with its fixes. If rows suggest different priorities for a thread, the highest is used; if they suggest
/// different CPUs, the CPU of the row with the largest excess.
pub fn with_fixes(rows: Vec<Row>, context: &RunContext) -> Vec<RankedCause> {
    let mut advice: Vec<Vec<Advice>> = harmonised(&rows).iter().map(|row| advise(row, None, context)).collect();
    let mut highest: HashMap<(String, u32), Advice> = HashMap::new();
    for one in advice.iter().flatten() {
        let Some((pid, wanted)) = priority(one) else { continue };
        let known = highest.entry((one.machine.clone(), pid)).or_insert_with(|| one.clone());
        if priority(known).is_some_and(|(_, known)| known < wanted) {
            known.clone_from(one);
        }
    }
    let mut assigned = Assigned::default();
    for of_row in &mut advice {
        for one in of_row.iter_mut() {
            let better = priority(one).and_then(|(pid, _)| highest.get(&(one.machine.clone(), pid)));
            if let Some(better) = better {
                one.clone_from(better);
            }
        }
        of_row.retain(|one| assigned.agrees(one));
    }
    rows.into_iter().zip(advice).map(|(row, advice)| RankedCause { row, advice }).collect()
}

/// Whether two fixes are the same.
fn is_same(a: &Advice, b: &Advice) -> bool {
    let same = if a.commands.is_empty() { a.what == b.what && b.commands.is_empty() } else { a.commands == b.commands };
    same && a.machine == b.machine
}

/// The fixes of some rows, each once, with all rows of the ranking that have it; the fix with the largest excess first.
pub fn fixes_of(explanation: &Explanation, rows: &[usize]) -> Vec<Fix> {
    let mut all: Vec<Fix> = Vec::new();
    let ranked = |at: &usize| explanation.ranking.get(*at);
    for advice in rows.iter().filter_map(ranked).flat_map(|ranked| &ranked.advice) {
        if all.iter().any(|known| is_same(&known.advice, advice)) {
            continue;
        }
        let has_it = |ranked: &RankedCause| ranked.advice.iter().any(|other| is_same(other, advice));
        let rows: Vec<usize> =
            explanation.ranking.iter().enumerate().filter(|(_, ranked)| has_it(ranked)).map(|(at, _)| at).collect();
        let excess = rows.iter().filter_map(ranked).map(|ranked| ranked.row.excess_ns);
        let excess_ns = excess.fold(0, Ns::saturating_add);
        all.push(Fix { advice: advice.clone(), rows, excess_ns });
    }
    all.sort_by_key(|fix| std::cmp::Reverse(fix.excess_ns));
    all
}
