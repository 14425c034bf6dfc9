//! Studies that are interrupted and resumed.

use crate::bench::StudyBench;
use latpath_study::{CellRow, StudyTable};
use latpath_testkit::waits::{fault_for, until, LIMIT};
use latpath_testkit::{equal, trial, Failed, Lack, Noise, Trial};
use nix::sys::signal::Signal;
use std::{fmt::Debug, time::Duration};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("a_study_that_is_killed_gives_the_same_table", needs, || killed(2, 1)),
        trial("a_study_that_is_killed_at_ten_random_moments_gives_the_same_table", needs, || killed(10, 2)).in_lab(),
        trial("ctrl_c_takes_down_what_was_set_up_and_keeps_what_is_complete", needs, stopped),
        trial("a_load_does_not_survive_a_killed_study_whatever_it_started", needs, nothing_survives),
    ]
}

const PLAN: &str = "seed = 11\nrepetitions = 2\nwarm_up = '100ms'\nduration = '1s'\n";
/// Trials of one repetition: two topologies, two loads, two directions.
const TRIALS: usize = 8;
const LOADS: &str = "[[load]]\nname = 'idle'\n[[load]]\nname = 'busy'\ncommand = 'while :; do :; done'\n";

/// The part of a table that does not depend on times: the cells, and the number of recordings of each.
fn shape(table: &StudyTable) -> impl PartialEq + Debug {
    let recordings = |cell: &CellRow| cell.figures.as_ref().map(|figures| figures.recordings);
    let cells: Vec<_> = table.cells.iter().map(|cell| (cell.label(), recordings(cell), cell.failed)).collect();
    let pairs: Vec<_> = table.differences.iter().map(|one| (one.cell, one.reference)).collect();
    let failed: Vec<_> = table.failed.iter().map(|failed| failed.trial.clone()).collect();
    (table.seed, table.trials, table.complete, failed, cells, pairs)
}

/// Kills a study a number of times, each time at a random moment, and resumes it.
fn killed(kills: usize, repetitions: usize) -> Result<(), Failed> {
    let plan = PLAN.replace("repetitions = 2", &format!("repetitions = {repetitions}"));
    let uninterrupted = StudyBench::new()?;
    uninterrupted.write_plan(&plan, LOADS)?;
    let reference: StudyTable = uninterrupted.run("--json")?.json()?;
    let order = uninterrupted.completed()?;
    equal("trials", order.len(), TRIALS * repetitions)?;

    let bench = StudyBench::new()?;
    bench.write_plan(&plan, LOADS)?;
    let mut noise = Noise(0x5eed_0011);
    for _ in 0..kills {
        let started = bench.study("")?;
        fault_for(Duration::from_millis(200 + (noise.unit() * 8_000.0) as u64));
        started.signal(Signal::SIGKILL);
        started.finish(LIMIT)?;
        until("processes of the trial are gone", || bench.processes().is_empty())?;
    }
    let resumed = bench.run("--json")?;
    let table: StudyTable = resumed.json()?;
    equal(&resumed.stderr, shape(&table), shape(&reference))?;
    equal("the order of trials", bench.completed()?, order)?;
    equal("namespaces that are left", bench.namespaces(), 0)?;
    equal("processes that are left", bench.processes(), Vec::new())
}

fn stopped() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    bench.write_plan(&format!("{PLAN}command_limit = '60s'"), LOADS)?;
    let mut started = bench.study("")?;
    until("the first trial is complete", || !started.runs() || bench.completed().is_ok_and(|all| !all.is_empty()))?;
    started.interrupt();
    let stopped = started.finish(LIMIT)?;
    equal(&stopped.stderr, stopped.code, Some(1))?;
    equal(&stopped.stderr, stopped.stderr.contains("Go on with: latpath study"), true)?;
    equal("namespaces that are left", bench.namespaces(), 0)?;
    equal("processes that are left", bench.processes(), Vec::new())?;
    let kept = bench.completed()?.len();
    let table: StudyTable = bench.report("--json")?.json()?;
    equal("complete so far", table.complete, kept)?;
    let text = bench.report("")?.stdout;
    equal(&text, text.contains("still to be made: the table is not complete"), true)
}

fn nothing_survives() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    // A load in its own session that ignores signals, and whose child has left its process group.
    let load = "trap \"\" TERM HUP INT; setsid sh -c \"trap : TERM; while :; do sleep 1; done\" & setsid sleep 1000 & wait; wait";
    bench.write_plan(PLAN, &format!("[[load]]\nname = 'stubborn'\ncommand = '{load}'\n"))?;
    let mut started = bench.study("")?;
    // Publisher and reader, each with its supervisor, and five processes of the load.
    until("the load runs", || bench.processes().len() >= 8 || !started.runs())?;
    started.signal(Signal::SIGKILL);
    started.finish(LIMIT)?;
    until("nothing of it runs", || bench.processes().is_empty())
}
