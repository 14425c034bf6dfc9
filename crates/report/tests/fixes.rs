//! Fixes of an explanation: each occurs once, and they do not contradict each other; sums by cause and by culprit.

use latpath_analysis::{
    explain::{by_cause, by_culprit, fixes_of, latpath_ns, with_fixes},
    Explanation,
};
use latpath_cause::{Actor, Attribution, Cause, CauseShare, Process, Ranking, RunContext, LATPATH_ITSELF};
use latpath_flight::{Class, Doing, Running};
use latpath_model::{Ns, Point, PointInfo};
use latpath_report::explanation_document;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

const MS: Ns = 1_000_000;

fn actor(name: &str, pids: &[u32], fifo: Option<i16>) -> Actor {
    let class = Some(fifo.map_or(Class { prio: 120, policy: 0 }, |n| Class { prio: 99 - n, policy: 1 }));
    let doing = Doing::Thread(Running { pid: pids[0], class, guest: false, work: None });
    let is_tool = name == LATPATH_ITSELF;
    Actor { name: name.into(), doing, class, pids: pids.to_vec(), is_tool, process: None, threads: vec![] }
}

fn share(cause: Cause, who: Actor, by: Option<Actor>, cpu: u32, ns: Ns) -> CauseShare {
    CauseShare {
        cause,
        machine: "host".into(),
        actor: Some(who),
        waiter: None,
        time_ns: ns,
        excess_ns: ns,
        by: by.into_iter().map(|by| (by, ns)).collect(),
        cpus: vec![(cpu, ns)],
        hops: vec![((0, 1), ns)],
        number: None,
        state: None,
        notes: vec![],
    }
}

fn explanation(shares: Vec<CauseShare>) -> Explanation {
    let points = ["host/tx@hout", "host/app-read@relay"].map(|name| PointInfo::from(name.parse::<Point>().unwrap()));
    let context = RunContext {
        points: points.into(),
        cpus: BTreeMap::from([("host".into(), "0-3".parse().unwrap())]),
        is_virtual: true,
        ..RunContext::default()
    };
    let mut ranking = Ranking::default();
    for share in shares {
        let (time_ns, excess_ns) = (share.time_ns, share.excess_ns);
        ranking.add(&Attribution { time_ns, excess_ns, shares: vec![share], ..Attribution::default() });
    }
    Explanation {
        late: ranking.late(),
        excess_ns: ranking.excess_ns(),
        ranking: with_fixes(ranking.rows(), &context),
        ..Explanation::default()
    }
}

/// Settings made by the commands of all fixes: thread or unit, and value.
fn settings(explanation: &Explanation) -> Vec<(String, String)> {
    let rows: Vec<usize> = (0..explanation.ranking.len()).collect();
    let mut all = Vec::new();
    for command in fixes_of(explanation, &rows).into_iter().flat_map(|fix| fix.advice.commands) {
        if let Some(rest) = command.strip_prefix("for pid in ") {
            let (pids, rest) = rest.split_once("; do taskset -cp ").unwrap();
            let cpus = rest.split(' ').next().unwrap();
            all.extend(pids.split(' ').map(|pid| (format!("CPUs of {pid}"), cpus.to_owned())));
        } else if let Some((cpus, pid)) = command.strip_prefix("taskset -cp ").and_then(|rest| rest.split_once(' ')) {
            all.push((format!("CPUs of {pid}"), cpus.to_owned()));
        } else if let Some((priority, pid)) = command.strip_prefix("chrt -f -p ").and_then(|rest| rest.split_once(' '))
        {
            all.push((format!("priority of {pid}"), priority.to_owned()));
        }
    }
    all
}

fn any_share() -> impl Strategy<Value = CauseShare> {
    let causes =
        [Cause::WaitingForCpu, Cause::Work, Cause::IdleExit, Cause::QdiscHeld, Cause::SoftirqWait, Cause::Throttled];
    let fifo = || prop::option::of(1_i16..99);
    // There are only a few names and numbers, so that a thread occurs in many rows, both as waiter and as culprit.
    let who = || (0_u32..4, prop::collection::vec(0_u32..3, 1..3), fifo());
    let actor_of = |(name, pids, fifo): (u32, Vec<u32>, Option<i16>)| {
        let pids: Vec<u32> = pids.into_iter().map(|pid| 100 + name * 10 + pid).collect();
        actor(["relay", "hog", "rustc", LATPATH_ITSELF][name as usize], &pids, fifo)
    };
    (0..causes.len(), who(), prop::option::of(who()), 0_u32..4, 1_i64..100)
        .prop_map(move |(cause, who, by, cpu, ms)| share(causes[cause], actor_of(who), by.map(actor_of), cpu, ms * MS))
}

proptest! {
    #[test]
    fn no_command_is_printed_twice_and_no_two_contradict_each_other(shares in prop::collection::vec(any_share(), 1..30)) {
        let explanation = explanation(shares);
        let rows: Vec<usize> = (0..explanation.ranking.len()).collect();
        let mut commands = HashSet::new();
        for command in fixes_of(&explanation, &rows).into_iter().flat_map(|fix| fix.advice.commands) {
            prop_assert!(commands.insert(command.clone()), "{} is there twice", command);
        }
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        for (of, value) in settings(&explanation) {
            let before = known.insert(of.clone(), value.clone());
            prop_assert!(before.as_ref().is_none_or(|before| *before == value), "{of}: {before:?} and {value}");
        }
    }

    #[test]
    fn sums_by_cause_are_all_of_the_delay(shares in prop::collection::vec(any_share(), 1..30)) {
        let explanation = explanation(shares);
        let sum: Ns = by_cause(&explanation).iter().map(|total| total.excess_ns).sum();
        prop_assert_eq!(sum, explanation.excess_ns);
        let by_culprit: Ns = by_culprit(&explanation).iter().map(|total| total.excess_ns).sum();
        prop_assert!(by_culprit <= explanation.excess_ns);
    }
}

#[test]
fn one_fix_of_several_causes_is_one_with_all_of_them() {
    let relay = || actor("relay", &[77], None);
    let waits =
        |by: &str, pid, fifo, ms| share(Cause::WaitingForCpu, relay(), Some(actor(by, &[pid], fifo)), 1, ms * MS);
    let explanation = explanation(vec![waits("hog", 90, Some(50), 60), waits("rustc", 91, None, 30)]);
    let fixes = fixes_of(&explanation, &[0, 1]);
    let commands: Vec<&str> = fixes.iter().map(|fix| fix.advice.commands[0].as_str()).collect();
    assert_eq!(commands, ["chrt -f -p 51 77", "taskset -cp 1 77", "taskset -cp 0,2-3 90", "taskset -cp 0,2-3 91"]);
    let rows: Vec<&[usize]> = fixes.iter().map(|fix| fix.rows.as_slice()).collect();
    assert_eq!(rows, [&[0, 1][..], &[0, 1], &[0], &[1]]);
    assert_eq!(fixes[0].excess_ns, 90 * MS);
}

#[test]
fn processes_of_one_unit_are_one_culprit_and_latpath_is_another() {
    let relay = || actor("relay", &[77], None);
    let of_unit = |name: &str, pid| {
        let process = Process { pid, name: name.into(), unit: Some("builder.service".into()), owner: None };
        Actor { process: Some(process), threads: vec![format!("{name} thread")], ..actor(name, &[pid], None) }
    };
    let by = |by, ms| share(Cause::WaitingForCpu, relay(), Some(by), 1, ms * MS);
    let own = Actor { threads: vec!["lp-flight".into()], ..actor(LATPATH_ITSELF, &[5], None) };
    let explanation = explanation(vec![by(of_unit("rustc", 90), 40), by(of_unit("ld", 91), 20), by(own, 10)]);
    let found = by_culprit(&explanation);
    assert_eq!(
        found.iter().map(|c| (c.name.as_str(), c.excess_ns / MS)).collect::<Vec<_>>(),
        [("builder.service", 60), (LATPATH_ITSELF, 10)]
    );
    assert_eq!(found[0].processes, ["rustc", "ld"]);
    assert_eq!(latpath_ns(&explanation), 10 * MS);
    let document = explanation_document(None, &explanation, &RunContext::default());
    assert!(document.by_culprit[1].latpath);
    assert_eq!(document.by_cause[0].phrase, "waiting for its CPU");
}
