//! A flipped bit in any file of a run causes an error or a note, or changes no figure.

use latpath_analysis::{explain::run_context, summarise, Explainer, RunCaptures, SummaryOptions};
use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet, RankedCapture, RetentionLimits, RetentionPolicy};
use latpath_export::write_csv;
use latpath_flight::{CpuRecord, Event, EventKind, Left, Snapshot, Thread, Window};
use latpath_journey::Journey;
use latpath_model::{Ns, PacketSighting, Point, StreamSpec};
use latpath_report::explanation_document;
use latpath_run::{ClockSample, MachineFigures, Manifest, NamedSegment, Run, Select, Writer};
use latpath_vms::{Tap, Vm};
use std::path::{Path, PathBuf};

const FLIPS: usize = 1_000;
const POINTS: [&str; 3] = ["host/nic-rx@eth0", "host/tx@vnet0", "guest0/app-read@relay"];

fn capture(number: u32, kind: CaptureKind) -> RankedCapture {
    let t = 1_000_000 * Ns::from(number);
    let class = latpath_flight::Class { prio: 120, policy: 0 };
    let switch = |n: Ns| EventKind::Switch {
        next: 7 + n as u32 % 2,
        left: Left::Ready { preempted: true, throttled: false },
        prev: class,
        next_class: class,
    };
    let events = (0..40).map(|n| Event { t: t + n * 20_000, pid: 8 - n as u32 % 2, what: switch(n) }).collect();
    let cpu = CpuRecord { cpu: 1, events, since: t, overwritten: 0, unfinished: 0 };
    let thread = |name: &str| Thread { name: name.into(), tgid: 7 };
    let record = Ok(Snapshot {
        window: Window { from: t, to: t + 900_000, cpus: vec![cpu] },
        threads: [(7, thread("relay")), (8, thread("hog"))].into(),
        ..Snapshot::default()
    });
    let machines = vec![MachineSnapshot { machine: "host".into(), offset_ns: 0, error_bound_ns: 0, record }];
    let late = kind == CaptureKind::Spike;
    let worst = if late { 700_000 } else { 60_000 };
    let seen = |point, after| PacketSighting { point, t: t + after, cpu: Some(1), tid: Some(7) };
    let sightings = vec![seen(0, 0), seen(1, 5_000), seen(2, worst)];
    let packets = vec![Packet { stream: 0, key: number, number: number.into(), late, sightings }];
    let capture = Capture { number, kind, from: t, to: t + 900_000, machines, packets, more_late: 0 };
    RankedCapture { capture, worst, late: vec![u64::from(late)] }
}

fn record(path: &Path) {
    let names = POINTS.map(|p| p.parse::<Point>().unwrap());
    let (from, to) = (names[0].clone(), names[2].clone());
    let machine = |machine: &str, error_bound_ns| latpath_run::MachineRecord {
        clock: MachineFigures { machine: machine.into(), error_bound_ns, ..MachineFigures::default() },
        ..latpath_run::MachineRecord::default()
    };
    let manifest = Manifest {
        streams: vec![StreamSpec::svid("MU01")],
        points: POINTS.map(latpath_testkit::point).into(),
        route: names.to_vec(),
        routes: vec![names.to_vec()],
        segments: vec![NamedSegment { kind: Default::default(), name: "total".into(), from, to }],
        machines: vec![machine("host", 0), machine("guest0", 900)],
        joined: vec![Default::default()],
        threshold_ns: 500_000,
        ..Manifest::begin()
    };
    let mut writer = Writer::create(path, manifest).unwrap();
    let tap = Tap { device: "vnet0".into(), ..Tap::default() };
    let vm = Vm { name: "relay1".into(), pid: 7, taps: vec![tap], ..Vm::default() };
    writer.keep_vms(&vec![vm].into()).unwrap();
    writer.begin_spikes(RetentionPolicy::new(RetentionLimits::default())).unwrap();
    for number in 0..2_000 {
        let t = [0, 5_000, 60_000 + number as Ns * 331 % 9_000].map(|after| number as Ns * 250_000 + after);
        let (cpu, tid) = ([1; 3], [7; 3]);
        let journey =
            Journey { key: number as u32, number, seen: 7, t: &t, cpu: &cpu, tid: &tid, ..Journey::default() };
        writer.push(&journey).unwrap();
    }
    for number in 0..20 {
        let clock = "guest0".into();
        writer.clock_sample(ClockSample { clock, t_ns: number, offset_ns: 1 << 40, error_bound_ns: 900 + number });
    }
    writer.push_capture(capture(1, CaptureKind::Baseline));
    writer.push_capture(capture(2, CaptureKind::Spike));
    writer.finish().unwrap();
}

/// Returns all figures of a run and its notes, or the error.
fn read(path: &Path) -> Result<(String, Vec<String>), String> {
    let run = Run::open(path).map_err(|e| e.to_string())?;
    let options = SummaryOptions { worst: 5, workers: 1, ..SummaryOptions::default() };
    let mut summary = summarise(&run, &options)?;
    let mut csv = Vec::new();
    let damaged = write_csv(&run, &Select { cpus_and_threads: true, ..Select::default() }, &mut csv).unwrap();
    let mut captures = RunCaptures::new(&run);
    let mut explainer = Explainer::new(run_context(&run), 5);
    captures.each(CaptureKind::Baseline, |capture| explainer.learn(capture));
    captures.each(CaptureKind::Spike, |capture| explainer.add(capture));
    let mut explanation = explainer.explanation();
    let mut notes = std::mem::take(&mut summary.notes);
    notes.append(&mut explanation.notes);
    notes.extend(damaged.iter().map(ToString::to_string));
    notes.extend(captures.files.notes.iter().cloned());
    let vms = serde_json::to_string(&run.vms()).unwrap();
    let document = explanation_document(None, &explanation, explainer.context());
    let explained = serde_json::to_string(&document).unwrap();
    let figures = serde_json::to_string(&summary).unwrap();
    Ok((format!("{figures} {explained} {vms} {}", String::from_utf8(csv).unwrap()), notes))
}

fn files(of: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(of).unwrap() {
        let path = entry.unwrap().path();
        all.extend(if path.is_dir() { files(&path) } else { vec![path] });
    }
    all.retain(|path| path.metadata().unwrap().len() > 0 && !path.ends_with(".reserve"));
    all.sort();
    all
}

#[test]
fn a_bit_that_flips_anywhere_in_a_run_is_reported_or_changes_no_figure() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    record(&path);
    let (figures, notes) = read(&path).unwrap();
    assert!(figures.contains("relay1"), "{}", &figures[..2_000]);
    let files = files(&path);
    assert_eq!(files.len(), 6, "{files:?}");
    let mut silent = 0;
    for file in &files {
        let whole = std::fs::read(file).unwrap();
        let flips = FLIPS.div_ceil(files.len());
        for n in 0..flips {
            // Flips bits at positions spread over the file, and at all positions within a byte.
            let bit = n * (whole.len() * 8) / flips + n % 8;
            let mut bytes = whole.clone();
            bytes[(bit / 8).min(whole.len() - 1)] ^= 1 << (bit % 8);
            std::fs::write(file, bytes).unwrap();
            if let Ok((other, noted)) = read(&path) {
                let is_reported = noted != notes;
                silent += usize::from(!is_reported);
                assert!(is_reported || other == figures, "bit {bit} of {}: another figure", file.display());
            }
        }
        std::fs::write(file, whole).unwrap();
    }
    assert!(silent < FLIPS / 10, "{silent} bits mean nothing");
}
