//! `latpath export` from the command line: perfetto on a run recorded here, pcapng on a known run.

mod pcapng;

use latpath_capture::CaptureKind;
use latpath_lab::{APPLICATION, PUBLISHER};
use latpath_run::Run;
use latpath_testkit::names::own;
use latpath_testkit::trace_processor::Processor;
use latpath_testkit::waits::{listens, until, LIMIT};
use latpath_testkit::Failed;
use latpath_testkit::{bench, equal, latpath, need_btf, need_lab, need_python, need_root, trial};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let mut with_processor = needs.to_vec();
    with_processor.push(latpath_testkit::trace_processor::lack());
    let mut with_python = needs.to_vec();
    with_python.push(need_python("pandas, polars, duckdb, pyarrow, matplotlib"));
    let mut tests = vec![
        trial("a_recorded_run_is_a_trace_without_errors", &with_processor, reads),
        trial("a_file_that_is_there_is_kept_unless_forced", &needs, keeps),
        trial("a_full_disk_is_reported_and_nothing_is_left", &needs, full),
        trial("stdout_gets_the_same_bytes", &needs, stdout),
        trial("one_packet_has_the_only_row_late_or_not", &with_processor, one_packet),
        trial("a_packet_is_named_as_explain_names_it", &needs, names),
        trial("what_is_not_there_is_refused_by_name", &needs, refuses),
        trial("the_snippets_of_the_notebook_run", &with_python, notebook),
    ];
    tests.extend(pcapng::trials());
    let code = latpath_testkit::main(tests);
    if let Some(folder) = RUN.get().and_then(|run| run.as_ref().ok()?.parent()) {
        let _ = std::fs::remove_dir_all(folder);
    }
    code
}

/// Runs every snippet of docs/notebook.md on a run with late packets; the last one compares its result with `latpath
/// report`.
fn notebook() -> Result<(), Failed> {
    let (run, folder) = (recorded()?, tempfile::tempdir()?);
    std::os::unix::fs::symlink(run, folder.path().join("RUN"))?;
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/notebook.md"))?;
    let snippets: Vec<&str> =
        text.split("```python\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    equal("snippets", snippets.len() >= 10, true)?;
    let mark = latpath(&format!("mark {} noon --at 100ms", run.display())).output()?;
    equal("mark", mark.status.code(), Some(0))?;
    let program = latpath("");
    let beside = Path::new(program.get_program()).parent().ok_or("no folder of latpath")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut python = Command::new(latpath_testkit::python());
    python.args(["-c", &snippets.join("\n")]).current_dir(folder.path());
    let out = python.env("PATH", format!("{}:{path}", beside.display())).output()?;
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    equal(&format!("exit code; {wrong}"), out.status.code(), Some(0))?;
    let journeys = Run::open(run)?.manifest().journeys;
    equal("journeys", said.lines().next().is_some_and(|line| line.starts_with(&format!("{journeys} journeys"))), true)?;
    equal("the mark", said.contains("from 'noon' on: "), true)?;
    equal("the picture", std::fs::read(folder.path().join("total.png"))?.starts_with(b"\x89PNG"), true)
}

/// The run that all tests export.
static RUN: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// A run in which all packets are late.
fn recorded() -> Result<&'static Path, Failed> {
    let record = || -> Result<PathBuf, Failed> {
        let bench = bench()?;
        let svid = own("export");
        let reader = format!("subscribe -i {APPLICATION} --stream svid:{svid} --json");
        let mut application = bench.start(bench.application(), latpath(&reader))?;
        listens(&mut application)?;
        let run = tempfile::tempdir()?.keep().join("late");
        let words =
            format!("record --stream svid:{svid} --threshold 1us --count 1000 --duration 120s -o {}", run.display());
        let mut recorder = bench.start(&bench.path.hypervisor, latpath(&words))?;
        until("the recording begins", || Run::open(&run).is_ok() || !recorder.runs())?;
        let words = format!("publish -i {PUBLISHER} --svid {svid} --rate 500 --count 1500 --json");
        bench.run(&bench.path.publisher, latpath(&words), LIMIT)?.json::<serde_json::Value>()?;
        let ended = recorder.finish(LIMIT)?;
        application.interrupt();
        application.finish(LIMIT)?;
        match ended.code {
            Some(0) => Ok(run),
            code => Err(format!("record ended with {code:?}: {}", ended.stderr).into()),
        }
    };
    let run = RUN.get_or_init(|| record().map_err(|e| e.message().unwrap_or("recording failed").to_owned()));
    run.as_deref().map_err(|e| e.clone().into())
}

fn export(run: &Path, words: &str) -> Result<Output, Failed> {
    Ok(latpath(&format!("export perfetto {} {words}", run.display())).output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn reads() -> Result<(), Failed> {
    let run = recorded()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("t.pftrace");
    let output = export(run, &format!("--worst 5 -o {}", file.display()))?;
    equal("exit code", output.status.code(), Some(0))?;
    let mut processor = Processor::load(&std::fs::read(&file)?)?;
    equal("errors", processor.errors()?, Vec::new())?;
    let rows = "select count(distinct t.id) from slice s join track t on s.track_id = t.id where s.category = 'step'";
    equal("packets with rows", processor.number(rows)?, 5)?;
    // The delays add up to the latencies.
    let of = |sql: &str| format!("select sum(dur) from ({sql})");
    let why = of("select dur from slice s join track t on s.track_id = t.id where t.name = 'why'");
    let whole = of("select max(dur) as dur from slice where category = 'segment' group by track_id");
    equal("causes", processor.number(&why)?, processor.number(&whole)?)?;
    // Each CPU's slices are contiguous, as in the recorder.
    let gaps = "select count(*) from (select ts + dur as until, lead(ts) over (partition by ucpu order by ts) as next from sched
        where dur >= 0) where next is not null and until != next";
    equal("holes in the CPUs' rows", processor.number(gaps)?, 0)?;
    let switches = processor.number("select count(*) from sched")?;
    equal("there are switches", switches > 100, true)?;
    // The application read its packets in its own thread.
    let reader =
        "select distinct thread.name from slice s join thread_track t on s.track_id = t.id join thread using (utid)
        where s.name like 'app-read@%'";
    equal("who read them", processor.texts(reader)?, vec!["subscribe".to_owned()])
}

fn keeps() -> Result<(), Failed> {
    let run = recorded()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("t.pftrace");
    std::fs::write(&file, "mine")?;
    let words = format!("--worst 1 -o {}", file.display());
    let output = export(run, &words)?;
    equal("exit code", output.status.code(), Some(1))?;
    equal("it says why", said(&output).contains("exists already"), true)?;
    equal("the file", std::fs::read(&file)?, b"mine".to_vec())?;
    equal("forced", export(run, &format!("{words} --force"))?.status.code(), Some(0))?;
    equal("the file is another", std::fs::read(&file)? == b"mine", false)?;
    equal("files", std::fs::read_dir(folder.path())?.count(), 1)
}

fn full() -> Result<(), Failed> {
    let output = export(recorded()?, "--worst 1 --force -o /dev/full")?;
    equal("exit code", output.status.code(), Some(1))?;
    let said = said(&output);
    equal(&said, said.contains("/dev/full: the trace was not written: No space left"), true)
}

fn stdout() -> Result<(), Failed> {
    let run = recorded()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("t.pftrace");
    equal("exit code", export(run, &format!("-o {}", file.display()))?.status.code(), Some(0))?;
    let output = export(run, "-o - -q")?;
    equal("exit code", output.status.code(), Some(0))?;
    equal("nothing but the trace", said(&output), String::new())?;
    equal("the same", output.stdout == std::fs::read(&file)?, true)
}

/// Names of packets of the run's spikes: a late one and, if there is any, one on time.
fn packets(run: &Path) -> Result<Vec<(bool, String)>, Failed> {
    let run = Run::open(run)?;
    let started = run.manifest().start.monotonic_ns;
    let mut found: Vec<(bool, String)> = Vec::new();
    for file in run.spikes().files {
        for packet in run.capture(file.head.number)?.capture.packets {
            let Some(first) = packet.sightings.first().filter(|_| !found.iter().any(|(late, _)| *late == packet.late))
            else {
                continue;
            };
            let seconds = (first.t - started) as f64 / 1e9;
            let stream = run.manifest().streams[usize::from(packet.stream)].short();
            found.push((packet.late, format!("{stream}:{}@{seconds:.3}s", packet.key)));
        }
    }
    Ok(found)
}

fn one_packet() -> Result<(), Failed> {
    let run = recorded()?;
    let folder = tempfile::tempdir()?;
    for (late, packet) in packets(run)? {
        let file = folder.path().join(format!("{late}.pftrace"));
        let output = export(run, &format!("--packet {packet} -o {}", file.display()))?;
        equal(&format!("exit code of {packet}; it said {}", said(&output)), output.status.code(), Some(0))?;
        let mut processor = Processor::load(&std::fs::read(&file)?)?;
        let rows = "select count(*) from slice where name = 'total'";
        equal(&format!("rows for {packet}, late: {late}"), processor.number(rows)?, 1)?;
    }
    Ok(())
}

fn names() -> Result<(), Failed> {
    let run = recorded()?;
    let (found, folder) = (packets(run)?, tempfile::tempdir()?);
    equal("packets of the run", found.is_empty(), false)?;
    for packet in found.iter().map(|(_, packet)| packet.as_str()).chain(["worst", "1"]) {
        let output = export(run, &format!("--packet {packet} --force -o {}", folder.path().join("t").display()))?;
        equal(&format!("exit code of {packet}; it said {}", said(&output)), output.status.code(), Some(0))?;
        equal(&said(&output), said(&output).contains("around 1 packet,"), true)?;
    }
    for (packet, why) in [
        ("none:1@1s", "no such packet in the run's spikes"),
        ("MU01", "not a packet"),
        ("9999", "spikes with late packets"),
    ] {
        let output = export(run, &format!("--packet {packet} --force -o {}", folder.path().join("t").display()))?;
        equal(&format!("exit code of {packet}"), output.status.code(), Some(2))?;
        equal(&said(&output), said(&output).contains(why), true)?;
    }
    let output = export(run, "--packet worst --worst 3 -o -")?;
    equal("exit code of both", output.status.code(), Some(2))
}

fn refuses() -> Result<(), Failed> {
    let run = recorded()?;
    let output = export(run, "--spike 99999 -o -")?;
    equal("exit code", output.status.code(), Some(2))?;
    equal("it says which there are", said(&output).contains("no such spike"), true)?;
    let empty = tempfile::tempdir()?;
    let output = export(empty.path(), "-o -")?;
    equal("exit code", output.status.code(), Some(1))?;
    equal("it is no run", said(&output).contains("not a run"), true)?;
    let known = Run::open(run)?.spikes().files;
    let number = known.iter().find(|f| f.head.kind() == CaptureKind::Spike).ok_or("the run has no spike")?.head.number;
    equal("one that is there", export(run, &format!("--spike {number} -o - -q"))?.status.code(), Some(0))
}
