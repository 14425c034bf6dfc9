//! Reads arbitrary files as those of a run. The result is an error, or a report, its JSON, CSV, the causes and a trace,
//! without a panic and without characters that control a terminal.
//!
//! Input: files, each with a byte for its kind, two bytes of length, and its bytes. The kinds are 0: `manifest.json`,
//! 1: `clocks.jsonl`, 2: `vms.json`, 3: a capture (in the input format of `capture`), 4: a part of journeys whose
//! points have ordinary names, 5: a part whose points have hostile names, 6: any bytes as a part.

use crate::agent::clean;
use latpath_analysis::{
    explain::run_context, layout_of, summarise, Chosen, Explainer, RunCaptures, Selection, SummaryOptions,
};
use latpath_capture::CaptureKind;
use latpath_export::{write_csv, ExportRequest, EXPORTERS};
use latpath_journey::Journey;
use latpath_model::{Point, PointInfo, StreamSpec};
use latpath_report::{explanation_document, explanation_text, report_json, text, Head, Options};
use latpath_run::{ClockSample, MachineFigures, MachineRecord, Manifest, NamedSegment, Run, Select, Writer};
use latpath_run::{JOURNEYS, MANIFEST, SPIKES};
use latpath_stats::units::CharacterSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::OnceLock;
use std::{fs, io};

const POINTS: [&str; 3] = ["host/nic-rx@eth0", "host/tx@vnet0", "guest0/app-read@relay"];
const HOSTILE: [&str; 3] = ["host/nic-rx@a\u{9b}2Jb", "host/tx@c\u{202e}d", "guest0/app-read@\u{1b}]0;x\u{7}"];

fn manifest(points: [&str; 3]) -> Manifest {
    let point = |text: &str| PointInfo::from(text.parse::<Point>().expect("a point"));
    let names = points.map(|p| p.parse::<Point>().expect("a point"));
    let segment =
        NamedSegment { kind: Default::default(), name: "total".into(), from: names[0].clone(), to: names[2].clone() };
    let machine = |machine: &str| MachineRecord {
        clock: MachineFigures { machine: machine.into(), error_bound_ns: 700, ..MachineFigures::default() },
        ..MachineRecord::default()
    };
    Manifest {
        format: 1,
        streams: vec![StreamSpec::svid("MU01")],
        points: points.map(point).to_vec(),
        route: names.to_vec(),
        routes: vec![names.to_vec()],
        segments: vec![segment],
        machines: vec![machine("host"), machine("guest0")],
        joined: vec![Default::default()],
        notes: vec!["a note".into()],
        threshold_ns: 200_000,
        ..Manifest::default()
    }
}

/// A temporary directory, in memory if /dev/shm exists.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory can be made")
}

/// A finished run: its manifest, clock samples and part.
fn made(points: [&str; 3]) -> [Vec<u8>; 3] {
    let directory = directory();
    let run = directory.path().join("run");
    let mut writer = Writer::create(&run, manifest(points)).expect("a run");
    for number in 0..40 {
        let t = [0, 5_000, 90_000].map(|after| number as i64 * 250_000 + after);
        let journey = Journey {
            key: number as u32,
            number,
            seen: 0b111,
            t: &t,
            cpu: &[1; 3],
            tid: &[7; 3],
            ..Journey::default()
        };
        writer.push(&journey).expect("a journey");
    }
    writer.clock_sample(ClockSample { clock: "guest0".into(), t_ns: 5, offset_ns: 1 << 40, error_bound_ns: 900 });
    writer.finish().expect("a whole run");
    [MANIFEST, "clocks.jsonl", "journeys/part-00000000.parquet"]
        .map(|file| fs::read(run.join(file)).expect("it was written"))
}

fn part(hostile: bool) -> &'static [u8] {
    static PARTS: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    &PARTS.get_or_init(|| [POINTS, HOSTILE].map(|points| made(points)[2].clone()))[usize::from(hostile)]
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let directory = directory();
    let path = directory.path();
    [JOURNEYS, SPIKES].iter().for_each(|name| fs::create_dir(path.join(name)).expect("a directory"));
    let (mut rest, mut spikes, mut parts) = (bytes, 0, 0);
    while let Some((head, tail)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([head[1], head[2]])).min(tail.len());
        let (content, tail) = tail.split_at(length);
        rest = tail;
        let part_name = format!("{JOURNEYS}/part-{parts:08}.parquet");
        let (name, content) = match head[0] {
            0 => (MANIFEST.into(), content.to_vec()),
            1 => ("clocks.jsonl".into(), content.to_vec()),
            2 => ("vms.json".into(), content.to_vec()),
            3 => (format!("{SPIKES}/{spikes:06}.spike"), crate::capture::file(content)),
            4 => (part_name, part(false).to_vec()),
            5 => (part_name, part(true).to_vec()),
            6 => (part_name, content.to_vec()),
            _ => continue,
        };
        spikes += u32::from(head[0] == 3);
        parts += u32::from(name.starts_with(JOURNEYS));
        fs::write(path.join(name), content).expect("a file can be written");
    }
    if let Ok(run) = Run::open(path) {
        read(&run);
    }
}

/// Produces all outputs of a run, except those that are only for terminals.
fn read(run: &Run) {
    let options = SummaryOptions { worst: 4, workers: 1, ..SummaryOptions::default() };
    let summary = summarise(run, &options).expect("no segment is asked for");
    let letters = CharacterSet::Unicode;
    clean(&text(
        &summary,
        Some(run),
        &Options { style: letters.into(), histograms: vec!["total".into()], covers: None, limits: Vec::new() },
    ));
    clean(&report_json(&summary, run, &Chosen::default(), &[]).expect("figures are JSON"));
    let mut csv = Vec::new();
    write_csv(run, &Select { cpus_and_threads: true, ..Select::default() }, &mut csv).expect("memory takes any bytes");
    clean(&String::from_utf8(csv).expect("it is text"));
    layout_of(run, &[]).expect("no segment is asked for");
    let mut captures = RunCaptures::new(run);
    let mut explainer = Explainer::new(run_context(run), 4);
    captures.each(CaptureKind::Baseline, |capture| explainer.learn(capture));
    captures.each(CaptureKind::Spike, |capture| explainer.add(capture));
    let explanation = explainer.explanation();
    let head = Head { run, files: &captures.files };
    clean(&explanation_text(&head, &explanation, explainer.context(), letters));
    let document = explanation_document(Some((run, &captures.files)), &explanation, explainer.context());
    clean(&serde_json::to_string(&document).expect("plain structs become JSON"));
    let perfetto = EXPORTERS.iter().find(|exporter| exporter.name == "perfetto").expect("it is listed");
    let stop = AtomicBool::new(false);
    let mut request = ExportRequest { run, selection: Selection::Worst(4), stop: &stop, progress: &mut |_| () };
    // An error is permitted: the run may contain nothing to write.
    let _ = (perfetto.write)(&mut request, &mut io::sink());
}

/// Finished runs, with and without captures, and with names that could control a terminal.
pub fn seeds() -> Vec<Vec<u8>> {
    let file = |name: u8, content: &[u8]| [&[name][..], &(content.len() as u16).to_be_bytes(), content].concat();
    let [manifest, clocks, _] = made(POINTS);
    let [hostile, ..] = made(HOSTILE);
    let spike = file(3, &crate::capture::seeds()[0]);
    let vms = br#"[{"name":"relay1","pid":5600,"taps":[],"threads":[]}]"#;
    vec![
        [file(0, &manifest), file(1, &clocks), file(2, vms), file(4, b""), spike.clone()].concat(),
        [file(0, &hostile), file(5, b"")].concat(),
        [file(0, &manifest), file(5, b""), spike].concat(),
        [file(0, br#"{"format":1,"state":"finished"}"#), file(4, b""), file(6, b"PAR1")].concat(),
        file(0, br#"{"format":9,"latpath":"7\u001b[2J"}"#),
    ]
}
