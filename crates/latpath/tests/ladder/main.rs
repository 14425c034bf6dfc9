//! `latpath ladder` from the command line.

use latpath_ladder::{LadderFigures, Variant};
use latpath_model::Observation;
use latpath_testkit::{equal, latpath, need_btf, need_root, trial, Failed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output};

fn main() -> ExitCode {
    latpath_testkit::main(vec![
        trial("a_trace_becomes_a_ladder_whose_rungs_sum_to_the_transfer", &[], imported),
        trial("the_page_draws_the_transfer_and_counts_what_was_lost", &[], page),
        trial("a_trace_whose_times_go_back_and_that_lost_more_than_any_sum_holds_is_said", &[], forged),
        trial("without_a_guest_there_is_no_ladder_and_nothing_is_lost", &[need_root(), need_btf()], alone),
        trial("a_commands_failure_is_reported_beside_the_figures", &[need_root(), need_btf()], command),
        trial("an_import_has_neither_a_duration_nor_a_vm", &[], conflicts),
        trial("what_is_no_trace_is_refused_with_the_next_step", &[], refused),
    ])
}

fn seed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/trace_text").join(name)
}

fn figures(output: &Output) -> Result<Observation<LadderFigures>, Failed> {
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn import(file: &Path, words: &str) -> Result<Output, Failed> {
    Ok(latpath(&format!("ladder {words}")).arg("--read").arg(file).output()?)
}

fn imported() -> Result<(), Failed> {
    let output = import(&seed("x86"), "--json")?;
    equal("the exit code", output.status.code(), Some(0))?;
    let figures = figures(&output)?.figures;
    equal("violations", figures.causality_violations, 0)?;
    equal("queues", figures.queues.len(), 2)?;
    for queue in &figures.queues {
        let ladder = &queue.ladders[0];
        equal("the rungs' sum", ladder.rungs.iter().map(|rung| rung.time.sum_ns).sum(), ladder.total.sum_ns)?;
        equal("the variant", ladder.variant, Variant::NoVhost)?;
    }
    Ok(())
}

fn page() -> Result<(), Failed> {
    let output = import(&seed("arm64"), "")?;
    let text = String::from_utf8(output.stdout)?;
    for said in ["3 events lost", "1 ended by lost events", "0 causality violations"] {
        equal(said, text.contains(said), true)?;
    }
    let text = String::from_utf8(import(&seed("x86"), "")?.stdout)?;
    for said in
        ["tap0", "A: no vhost", "QEMU hands the packet to the tap", "the interrupt is injected", "CPU 0/KVM (1240)"]
    {
        equal(said, text.contains(said), true)?;
    }
    Ok(())
}

fn forged() -> Result<(), Failed> {
    let output = import(&seed("loses-more-than-all-sums"), "")?;
    let text = String::from_utf8(output.stdout)?;
    equal("the exit code", output.status.code(), Some(0))?;
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    equal(&text, digits.contains(&u64::MAX.to_string()) && !text.contains("0 causality violations"), true)?;
    let report = figures(&import(&seed("loses-more-than-all-sums"), "--json")?)?;
    equal("lost", report.lost_events, u64::MAX)?;
    equal("violations", report.figures.causality_violations > 0, true)
}

fn refused() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("notes.txt");
    fs::write(&file, "nothing\nof the kind\n")?;
    let output = import(&file, "")?;
    let said = String::from_utf8(output.stderr)?;
    equal("the exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("notes.txt") && said.contains("trace-cmd report > FILE"), true)?;
    let output = import(&folder.path().join("none"), "")?;
    equal("of a file that is not there", output.status.code(), Some(1))
}

fn alone() -> Result<(), Failed> {
    let output = latpath("ladder --duration 300ms --cost --json").output()?;
    equal("the exit code", output.status.code(), Some(0))?;
    let report = figures(&output)?;
    let counts = &report.figures;
    let none = (counts.causality_violations, report.lost_events, counts.ambiguous_packets);
    equal("violations, lost and ambiguous", none, (0, 0, 0))?;
    equal("threads ran meanwhile", counts.events > 0, true)?;
    equal("what that cost is known", report.cost_per_event_ns > Some(0), true)
}

fn command() -> Result<(), Failed> {
    let output = latpath("ladder --json -- false").output()?;
    equal("the exit code", output.status.code(), Some(1))?;
    figures(&output)?;
    equal("the failure is reported", String::from_utf8(output.stderr)?.contains("the command failed"), true)
}

fn conflicts() -> Result<(), Failed> {
    for words in ["--duration 1s", "--vm a", "--cost"] {
        equal(words, import(&seed("x86"), words)?.status.code(), Some(2))?;
    }
    equal("of no time", latpath("ladder --duration 0s").output()?.status.code(), Some(2))
}
