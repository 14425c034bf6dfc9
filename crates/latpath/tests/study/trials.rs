//! Complete studies, and trials that fail.

use crate::bench::StudyBench;
use latpath_settings::SettingDifference;
use latpath_study::{Against, FailedTrial, Outcome, StudyTable};
use latpath_testkit::{equal, trial, Failed, Lack, Trial};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("a_study_measures_every_cell_and_leaves_nothing", needs, measures),
        trial("a_trial_that_fails_is_tried_twice_and_the_table_says_why", needs, fails),
        trial("a_trial_that_is_never_ready_says_so", needs, is_never_ready),
        trial("a_load_that_ends_early_is_a_failure", needs, ends_early),
        trial("what_settings_changed_is_named", needs, names_settings),
    ]
}

const SHORT: &str = "seed = 7\nwarm_up = '200ms'\nduration = '1s'\n";

fn measures() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    let udp = "udp_stream = { to = '10.77.0.2:5001', streams = 2, size = 500, rate = 1000, namespace = '{name}-pub', sink = '{name}-app' }";
    bench.write_plan(
        &format!("{SHORT}repetitions = 1\nband = '0us..10s'\nlimits = ['total:max<=60s']\nready = '{READY}'"),
        &format!("[[load]]\nname = 'idle'\n[[load]]\nname = 'udp'\n{udp}\n"),
    )?;
    let ran = bench.run("--json")?;
    let table: StudyTable = ran.json()?;
    equal(&ran.stderr, (table.trials, table.complete), (8, 8))?;
    equal("cells", table.cells.len(), 8)?;
    for cell in &table.cells {
        let figures = cell.figures.as_ref().ok_or_else(|| format!("no figures of {}", cell.label()))?;
        equal(&format!("runs of {}", cell.label()), figures.recordings, 1)?;
        equal("packets", figures.packets > 200, true)?;
        equal("in the band", figures.in_band, Some(figures.times.count))?;
        let rate = cell.load_bits_per_second;
        // 2 flows of 1,000 × 500 B/s are 8 Mbit/s; a busy machine may send less, and nothing sends more.
        let is_right = match cell.load.as_str() {
            "udp" => rate.is_some_and(|rate| rate > 0.0 && rate < 9e6),
            _ => rate.is_none(),
        };
        equal(&format!("rate of the load: {rate:?}"), is_right, true)?;
    }
    equal("tries until the first trial was ready, and once for each of the others", bench.lines("tries")?, 3 + 7)?;
    // The first cell of each direction is the reference, and has no difference itself.
    equal("differences and limits", (table.differences.len(), table.limits.len()), (6, 8))?;
    equal("processes that are left", bench.processes(), Vec::new())?;
    equal("namespaces that are left", bench.namespaces(), 0)?;
    let text = bench.report("")?;
    equal(&text.stderr, text.code, Some(0))?;
    for words in ["8 of 8 complete", "Times of total", "veth", "bridge", "seed 7", "Differences", "Mbit/s"] {
        equal(&format!("{words:?} in {}", text.stdout), text.stdout.contains(words), true)?;
    }
    // The same command has nothing left to do, and prints the same table.
    let before = bench.completed()?;
    let again = bench.run("")?;
    equal("the table", again.stdout, text.stdout)?;
    equal("trials", bench.completed()?, before)
}

/// A command that succeeds at the third attempt.
const READY: &str = "echo tried >> tries; test $(wc -l < tries) -ge 3";

fn is_never_ready() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    bench.write_plan(&format!("{SHORT}repetitions = 1\ncommand_limit = '1s'\nready = 'echo no guest; exit 1'"), "")?;
    let ran = bench.run("--json")?;
    equal(&ran.stderr, ran.code, Some(1))?;
    let last = "none of its trials has a recording; the first: ready: exit status: 1: no guest; it did not succeed \
                within 1 s (command_limit)";
    equal(&ran.stderr, ran.stderr.contains(last), true)?;
    equal("namespaces that are left", bench.namespaces(), 0)
}

fn fails() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    bench.write_plan(
        &format!("{SHORT}repetitions = 1"),
        "[[topology]]\nname = 'broken'\nup = 'echo tried >> tries; echo no such port >&2; exit 3'\ndown = 'true'\n",
    )?;
    let ran = bench.run("--json")?;
    let table: StudyTable = ran.json()?;
    equal(&ran.stderr, (table.complete, table.failed.len()), (4, 2))?;
    for FailedTrial { reason, .. } in &table.failed {
        equal(reason, reason.contains("exit status: 3") && reason.contains("no such port"), true)?;
    }
    let record = bench.record("r1-in-broken-nominal-idle")?;
    equal("its record", (matches!(record.outcome, Outcome::Failed { .. }), record.attempts), (true, 2))?;
    equal("attempts of two trials", bench.lines("tries")?, 4)?;
    let text = bench.report("")?.stdout;
    equal(&text, text.contains("2 trials failed") && text.contains("no such port"), true)?;
    // Failed trials are repeated only on request.
    bench.run("")?;
    equal("attempts", bench.lines("tries")?, 4)?;
    bench.run("--repeat-failed")?;
    equal("attempts", bench.lines("tries")?, 8)
}

fn ends_early() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    bench.write_plan(
        &format!("{SHORT}repetitions = 1"),
        "[[load]]\nname = 'short'\ncommand = 'echo the server said no >&2; exit 1'\n",
    )?;
    let ran = bench.run("")?;
    equal(&ran.stderr, ran.code, Some(1))?;
    let said = "load ended before the recording: exit status: 1: the server said no";
    equal(&ran.stderr, ran.stderr.contains(said) && ran.stderr.contains("none of its trials has a recording"), true)?;
    equal("namespaces that are left", bench.namespaces(), 0)
}

fn names_settings() -> Result<(), Failed> {
    let bench = StudyBench::new()?;
    bench.write_plan(
        &format!("{SHORT}repetitions = 1"),
        "[[settings]]\nname = 'nominal'\n[[settings]]\nname = 'short-queue'\n\
         apply = 'ip -n $name-pub link set pub0 txqueuelen 77'\nundo = 'ip -n $name-pub link set pub0 txqueuelen 1000'\n",
    )?;
    let ran = bench.run("--json")?;
    let table: StudyTable = ran.json()?;
    equal(&ran.stderr, table.complete, 8)?;
    let name = |at: usize| table.cells[at].label();
    let pair =
        |one: &&Against| name(one.cell) == "in veth short-queue idle" && name(one.reference) == "in veth nominal idle";
    let against = table.differences.iter().find(pair).ok_or("no such pair")?;
    let is_length = |one: &&SettingDifference| one.settings[0] == "device-queue-length" && one.targets == ["pub0"];
    let length = against.settings.iter().find(is_length);
    equal(
        &format!("{against:?}"),
        length.map(|one| (one.a.concat(), one.b.concat())),
        Some(("77".into(), "1000".into())),
    )?;
    let text = bench.report("")?.stdout;
    equal(
        &text,
        text.contains("What short-queue changes against nominal") && text.contains("device-queue-length"),
        true,
    )
}
