//! Checks that exports contain the run's data: each is read back by an independent reader.

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::Histogram;
use latpath_analysis::Selection;
use latpath_export::{ExportRequest, EXPORTERS};
use latpath_journey::{segments, Journey, Route};
use latpath_model::{DropNote, Ns, Point, PointInfo, StreamSpec};
use latpath_run::{Manifest, Run, Select, Stamp, Writer};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const BEGIN: Ns = 1_767_225_600_000_000_000;
const POINTS: [&str; 3] = ["publisher/tx@eth0", "host/nic-rx@nic0", "relay/app-read@relay"];

/// Writes a run with 30 s of journeys: one in 50 is lost before the last point, one in 40 has a negative time.
fn run(path: &Path) -> Run {
    let names: Vec<Point> = POINTS.iter().map(|p| p.parse().unwrap()).collect();
    let points: Vec<PointInfo> = names.iter().cloned().map(PointInfo::from).collect();
    let layout = segments::layout(Route::from_points(&names, &[], &points), &points, &[]);
    let mut manifest = Manifest { start: Stamp::of_utc(BEGIN), points, ..Manifest::begin() };
    manifest.streams = vec![StreamSpec::svid("MU,\"01\""), StreamSpec::svid("MU02")];
    manifest.set_layout(&layout);
    let mut writer = Writer::create(path, manifest).unwrap();
    for n in 0..3000_u64 {
        let t = BEGIN + n as Ns * 10_000_000;
        let late = (n as Ns * 7919) % 1_000_000;
        let times = [t, if n % 40 == 7 { t - 500 } else { t + 1000 + late / 3 }, t + 5000 + late * (1 + n as Ns % 5)];
        let journey = Journey {
            stream: (n % 2) as u16,
            key: (n % 4000) as u32,
            number: n / 2,
            seen: if n % 50 == 3 { 0b011 } else { 0b111 },
            t: &times,
            cpu: &[1, 2, 3],
            tid: &[0, 77, 88],
            duplicates: (n % 3) as u32,
            out_of_order: n % 11 == 0,
            ..Journey::default()
        };
        writer.push(&journey).unwrap();
    }
    writer.finish().unwrap();
    Run::open(path).unwrap()
}

fn export(run: &Run, name: &str) -> (Vec<u8>, Vec<String>) {
    let exporter = EXPORTERS.iter().find(|exporter| exporter.name == name).unwrap();
    let (stop, mut progress) = (AtomicBool::new(false), |_| {});
    let selection = Selection::Worst(1);
    let mut request = ExportRequest { run, selection, stop: &stop, progress: &mut progress };
    let mut out = Vec::new();
    let exported = (exporter.write)(&mut request, &mut out).unwrap();
    (out, exported.notes)
}

/// A journey of the run: stream, key, t_ns, offsets, CPUs, duplicates, out of order.
type Row = (u16, u32, Ns, Vec<Option<Ns>>, Vec<Option<u16>>, u32, bool);

fn rows(run: &Run) -> Vec<Row> {
    let mut rows = Vec::new();
    run.for_each(&Select::default().with_cpus_and_threads(), |j| {
        let first = j.first().unwrap();
        let seen = |p: usize| j.seen >> p & 1 == 1;
        let offsets = (0..3).map(|p| seen(p).then(|| j.t[p] - first)).collect();
        let cpus = (0..3).map(|p| seen(p).then(|| j.cpu[p])).collect();
        rows.push((j.stream, j.key, first, offsets, cpus, j.duplicates, j.out_of_order));
        true
    });
    rows
}

#[test]
fn json_lines_hold_every_journey() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder.path().join("run"));
    let streams: Vec<String> = run.manifest().streams.iter().map(ToString::to_string).collect();
    let (text, _) = export(&run, "jsonl");
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.lines().count(), 3000);
    for (line, row) in text.lines().zip(rows(&run)) {
        let found: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(found["stream"], streams[usize::from(row.0)]);
        assert_eq!((found["key"].as_u64(), found["t_ns"].as_i64()), (Some(row.1.into()), Some(row.2)));
        assert_eq!((found["utc_ns"].as_i64(), found["duplicates"].as_u64()), (Some(row.2), Some(row.5.into())));
        for (p, point) in POINTS.iter().enumerate() {
            assert_eq!(found["points"][point]["offset_ns"].as_i64(), row.3[p]);
            assert_eq!(found["points"][point]["cpu"].as_u64(), row.4[p].map(u64::from));
        }
    }
}

/// Names come from packets, devices and other machines, so they may be malicious. Text formats must contain no control
/// characters that a terminal obeys, and CSV no formulas for a spreadsheet; JSON contains the names unchanged.
#[test]
fn names_are_neither_orders_to_a_terminal_nor_formulas() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let turned = "\u{202e}=\u{9b}2J";
    let points: Vec<PointInfo> = POINTS.iter().map(|p| p.parse::<Point>().unwrap().into()).collect();
    let layout = segments::layout(Route::from_points(&POINTS.map(|p| p.parse().unwrap()), &[], &points), &points, &[]);
    let notes = ["=1+1", "+1", "-1", "@x", turned];
    let mut manifest = Manifest { start: Stamp::of_utc(BEGIN), points, ..Manifest::begin() };
    manifest.streams = vec![StreamSpec::svid(turned)];
    manifest.drop_notes =
        notes.iter().map(|reason| DropNote { reason: (*reason).into(), function: turned.into(), at: None }).collect();
    manifest.set_layout(&layout);
    let mut writer = Writer::create(&path, manifest).unwrap();
    for n in 0..notes.len() {
        let times = [BEGIN + n as Ns * 1000, 0, 0];
        let journey = Journey {
            key: n as u32,
            seen: 1,
            drop_note: n as u16 + 1,
            t: &times,
            cpu: &[0; 3],
            tid: &[0; 3],
            ..Journey::default()
        };
        writer.push(&journey).unwrap();
    }
    writer.finish().unwrap();
    let run = Run::open(&path).unwrap();
    // Every text format.
    let mut tried = 0;
    for format in EXPORTERS.iter().filter(|exporter| exporter.is_text).map(|exporter| exporter.name) {
        let text = String::from_utf8(export(&run, format).0).unwrap();
        let steers = |c: char| c != '\n' && c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!text.contains(steers) && !text.is_empty(), "{format}: {text:?}");
        tried += 1;
    }
    assert!(tried >= 3, "{tried} formats are text");
    for format in ["csv", "jsonl"] {
        let text = String::from_utf8(export(&run, format).0).unwrap();
        assert_eq!(text.lines().count(), notes.len() + usize::from(format == "csv"), "{text:?}");
        for (line, note) in text.lines().skip(usize::from(format == "csv")).zip(notes) {
            if format == "jsonl" {
                let found: serde_json::Value = serde_json::from_str(line).unwrap();
                let said = (found["drop"]["reason"].as_str(), found["drop"]["function"].as_str());
                assert_eq!(said, (Some(note), Some(turned)));
                continue;
            }
            let first = |field: &str| field.trim_start_matches('"').chars().next();
            let formulas = line.split(',').filter(|field| field.parse::<i64>().is_err()).filter_map(first);
            assert_eq!(formulas.filter(|c| "=+-@".contains(*c)).count(), 0, "{line}");
            assert!(note == turned || line.contains(&format!("'{note} in ")), "{line}");
        }
    }
}

#[test]
fn a_parquet_file_holds_every_journey() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder.path().join("run"));
    let streams: Vec<String> = run.manifest().streams.iter().map(ToString::to_string).collect();
    let (bytes, _) = export(&run, "parquet");
    let path = folder.path().join("journeys.parquet");
    std::fs::write(&path, bytes).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let names: Vec<String> =
        reader.metadata().file_metadata().schema_descr().columns().iter().map(|c| c.name().to_owned()).collect();
    assert_eq!(names[..5], ["stream", "key", "number", "utc_ns", "t_ns"]);
    assert_eq!(names[5..8], POINTS);
    let found: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), 3000);
    for (found, row) in found.iter().zip(rows(&run)) {
        assert_eq!(found.get_string(0).unwrap(), &streams[usize::from(row.0)]);
        assert_eq!((found.get_uint(1).unwrap(), found.get_long(3).unwrap()), (row.1, row.2));
        for (p, offset) in row.3.iter().enumerate() {
            assert_eq!(found.get_long(5 + p).ok(), *offset);
            assert_eq!(found.get_ushort(8 + 2 * p).ok(), row.4[p]);
        }
        let duplicates = names.iter().position(|name| name == "duplicates").unwrap();
        let ends = (found.get_uint(duplicates).unwrap(), found.get_bool(duplicates + 1).unwrap());
        assert_eq!(ends, (row.5, row.6));
    }
}

#[test]
fn a_log_of_hdrhistogram_holds_the_times_of_all_segments() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder.path().join("run"));
    let (log, notes) = export(&run, "hdr");
    assert!(notes[0].starts_with("75 negative times"), "{notes:?}");
    let mut found: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    let mut lines = BTreeMap::<String, u32>::new();
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        let tag = interval.tag().unwrap().as_str().to_owned();
        let bytes = decode(interval.encoded_histogram());
        let part: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        assert_eq!(interval.duration().as_secs(), 10);
        *lines.entry(tag.clone()).or_default() += 1;
        found.entry(tag).or_insert_with(|| Histogram::new(3).unwrap()).add(&part).unwrap();
    }
    assert_eq!(lines.values().copied().collect::<Vec<_>>(), vec![3; lines.len()]);
    for segment in &run.manifest().segments {
        let end = |point: &Point| POINTS.iter().position(|p| *p == point.to_string()).unwrap();
        let (from, to) = (end(&segment.from), end(&segment.to));
        let mut expected: Histogram<u64> = Histogram::new(3).unwrap();
        for row in rows(&run) {
            if let (Some(a), Some(b)) = (row.3[from], row.3[to]) {
                if let Ok(time) = u64::try_from(b - a) {
                    expected.record(time).unwrap();
                }
            }
        }
        let found = &found[&segment.name];
        assert_eq!((found.len(), found.max()), (expected.len(), expected.max()), "{}", segment.name);
        for quantile in [0.0, 0.5, 0.9, 0.99, 1.0] {
            assert_eq!(found.value_at_quantile(quantile), expected.value_at_quantile(quantile), "{}", segment.name);
        }
    }
}

fn decode(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut word) = (Vec::new(), 0, 0_u32);
    for letter in text.bytes().filter(|c| *c != b'=') {
        word = word << 6 | u32::from(value(letter));
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}
