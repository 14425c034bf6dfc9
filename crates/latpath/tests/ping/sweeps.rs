//! Sweeps over sizes and rates, and the command that runs when a packet is late.

use crate::link::{is, need, Link, Says, ANSWER_WITHIN};
use latpath_ping::document::{EmitDocument, ReflectDocument, SweepDocument};
use latpath_testkit::{equal, trial, Failed, Trial};
use std::collections::BTreeMap;
use std::path::Path;

pub fn tests() -> Vec<Trial> {
    let needs = need();
    vec![
        trial("a_sweep_measures_each_size_and_rate_in_each_round", &needs, swept),
        trial("a_sweep_judges_limits_of_each_size_and_rate", &needs, judged),
        trial("a_sweep_without_an_end_or_with_two_reflectors_is_refused", &needs, refused),
        trial("memory_is_locked_at_both_ends", &needs, locked),
        trial("a_command_runs_for_late_packets_of_both_ends", &needs, commands),
    ]
}

fn swept() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    let sweep = "10.77.0.2 --sweep-size 64,512 --sweep-rate 500,1k --sweep-rounds 2 --count 50";
    let said = link.emit(sweep)?;
    equal(&said.stderr, said.code, Some(0))?;
    let cells = said.document::<SweepDocument>()?.cells;
    let expected = [(64, 500.0), (64, 1000.0), (512, 500.0), (512, 1000.0)];
    let expected = expected.map(|(size, rate)| (size, Some(rate), 2)).to_vec();
    equal("the cells", cells.iter().map(|c| (c.size_bytes, c.rate_hz, c.rounds)).collect(), expected)?;
    for cell in &cells {
        equal("probes", cell.counts.sent, 100)?;
        equal("round trips", cell.round_trip.count, cell.counts.answered)?;
        is("in order", cell.round_trip.min_ns <= cell.round_trip.p95_ns)?;
    }
    let text = link.emit_text(sweep)?.stdout;
    let is_row = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit()) && line.contains("/s ");
    let rows: Vec<&str> = text.lines().filter(is_row).collect();
    is(&text, rows.len() == 4 && rows[0].trim_start().starts_with("64 ") && rows[3].trim_start().starts_with("512 "))?;
    let reflected: ReflectDocument = reflector.ends()?.document()?;
    equal("a session for each visit", reflected.sessions.len(), 16)
}

fn judged() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let limits = "--limit round_trip:max<=9s --limit round_trip:p50<=1ns --limit lost<=0";
    let said = link.emit(&format!("10.77.0.2 --sweep-size 64,128 --sweep-rounds 1 --count 20 {limits}"))?;
    equal(&said.stderr, said.code, Some(3))?;
    let broken: Vec<&str> = said.stderr.lines().filter(|line| line.contains("limit ")).collect();
    let is_it = |at: usize, size: &str| broken[at].contains(size) && broken[at].contains("p50<=1ns broken");
    is(&said.stderr, broken.len() == 2 && is_it(0, "64 bytes") && is_it(1, "128 bytes"))
}

fn refused() -> Result<(), Failed> {
    let link = Link::new()?;
    let wrong = [
        ("10.77.0.2 --sweep-size 64", "--count or --duration"),
        ("10.77.0.2 10.77.0.3 --sweep-rate 1k --count 9", "one HOST"),
        ("10.77.0.2 --sweep-size 64 --size 64 --count 9", "cannot be used with"),
        ("10.77.0.2 --sweep-rate 1k --flood --count 9", "cannot be used with"),
        ("10.77.0.2 --sweep-rate 1k --count 9 --limit consecutive<=1", "not measured here"),
    ];
    for (words, why) in wrong {
        let said = link.emit(words)?;
        equal(&said.stderr, said.code, Some(2))?;
        is(&format!("{why:?} in {}", said.stderr), said.stderr.contains(why))?;
    }
    Ok(())
}

/// Locked memory of a process according to the kernel, KiB.
fn locked_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmLck:"))?.split_whitespace().next()?.parse().ok()
}

fn locked() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    let emitter = link.start_emit("10.77.0.2 --rate 100")?;
    reflector.answers(50)?;
    // More than the program's own text and data, so all of its memory is locked.
    for pid in [emitter.pid(), reflector.0.pid()] {
        is("its memory is locked", locked_kib(pid) > Some(4096))?;
    }
    emitter.interrupt();
    let notes = emitter.finish(ANSWER_WITHIN)?.session()?.notes;
    equal("nothing to note", notes, Vec::new())
}

/// Option whose command writes its environment variables to a file, unless the file already exists.
fn keeps(file: &Path) -> String {
    let file = file.display();
    format!("--on-spike \"sh -c 'test -e {file} || env > {file}'\"")
}

fn variables(file: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let text = std::fs::read_to_string(file)?;
    let ours = text.lines().filter_map(|line| line.strip_prefix("LATPATH_")?.split_once('='));
    Ok(ours.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn commands() -> Result<(), Failed> {
    let link = Link::new()?;
    let (here, there) = (link.lab.folder().join("here"), link.lab.folder().join("there"));
    let reflector = link.reflect_words("--threshold 1ns --keep-going", &keeps(&there))?;
    let emitter = link.start_words("10.77.0.2 --count 100 --threshold 1ns --keep-going", &keeps(&here))?;
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    let runs = said.document::<EmitDocument>()?.on_spike.ok_or("no runs")?;
    is("it ran", runs.started >= 1 && runs.failed == 0)?;
    equal("each breach is counted", runs.started + runs.not_started, 100)?;
    let set = variables(&here)?;
    let get = |name: &str| set.get(name).map(String::as_str);
    equal("of the emitter", (get("EVENT"), get("STREAM")), (Some("round_trip"), Some("10.77.0.2:6185")))?;
    is("a time", get("TOTAL_NS").and_then(|ns| ns.parse::<i64>().ok()) > Some(0))?;
    is("when", get("TIME").is_some_and(|time| time.starts_with("20") && time.ends_with('Z')))?;
    reflector.ends()?;
    let set = variables(&there)?;
    let get = |name: &str| set.get(name).map(String::as_str);
    equal("of the reflector", (get("EVENT"), get("CLOCK")), (Some("turnaround"), Some("kernel")))
}
