//! The stable interface for scripts: names of JSON keys and CSV columns.

mod figures;

use figures::summary;
use latpath_analysis::Chosen;
use latpath_export::write_csv;
use latpath_journey::Journey;
use latpath_model::DropNote;
use latpath_report::report_json;
use latpath_run::{Manifest, Run, Select, Writer};
use latpath_testkit::point;
use serde_json::Value;
use std::collections::BTreeSet;

fn run(directory: &std::path::Path) -> Run {
    let points = ["host/tx@eth0", "host/drop@vnet0", "host/app-read@my, relay"];
    let mut manifest = Manifest {
        points: points.map(point).into(),
        streams: vec!["svid:MU01,vlan=7".parse().unwrap()],
        drop_notes: vec![DropNote { reason: "FULL_RING".into(), function: "tun_net_xmit".into(), at: None }],
        ..Manifest::begin()
    };
    (manifest.start.utc_ns, manifest.start.monotonic_ns) = (1_767_323_045_000_000_000, 1_000);
    let mut writer = Writer::create(directory, manifest).unwrap();
    let mut push = |number: u64, seen, t: [i64; 3], drop_note| {
        let (cpu, tid) = (&[0, 1, 2], &[0, 7, 815]);
        let key = number as u32;
        let (duplicates, out_of_order) = (number as u32, number == 1);
        let j = Journey {
            stream: 0,
            key,
            number,
            seen,
            t: &t,
            cpu,
            tid,
            duplicates,
            out_of_order,
            drop_note,
            ..Journey::default()
        };
        writer.push(&j).unwrap();
    };
    push(0, 0b101, [5_000, 0, 65_000], 0);
    push(1, 0b011, [255_000, 257_000, 0], 1);
    writer.finish().unwrap();
    Run::open(directory).unwrap()
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_keys_of_a_report_are_those_that_others_script_against() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let json: Value = serde_json::from_str(&report_json(&summary(), &run, &Chosen::default(), &[]).unwrap()).unwrap();

    let expected = [
        "off_route",
        "chosen",
        "complete",
        "deficiencies",
        "duplicates",
        "elapsed_ns",
        "incomplete",
        "journeys",
        "limits",
        "lost",
        "machines",
        "malformed",
        "notes",
        "out_of_order",
        "paths",
        "patterns",
        "points",
        "run",
        "segments",
        "settings",
        "streams",
        "threshold_ns",
        "tool",
        "weaknesses",
        "worst",
    ];
    assert_eq!(keys(&json), BTreeSet::from(expected));
    let expected = [
        "count",
        "error_bound_ns",
        "from",
        "histogram",
        "kind",
        "max_at",
        "max_ns",
        "mean_ns",
        "min_at",
        "min_ns",
        "name",
        "negative",
        "over_threshold",
        "p50_ns",
        "p90_ns",
        "p95_ns",
        "p99_9999_ns",
        "p99_999_ns",
        "p99_99_ns",
        "p99_9_ns",
        "p99_ns",
        "rate_hz",
        "stddev_ns",
        "to",
    ];
    assert_eq!(keys(&json["segments"][0]), BTreeSet::from(expected));
    let expected = ["cpu_percent", "max_rss_bytes", "ns_per_sighting", "sightings", "sightings_dropped"];
    assert_eq!(keys(&json["tool"]), BTreeSet::from(expected));
    let expected = [
        "count",
        "from",
        "from_ns",
        "kind",
        "occurrences",
        "packets",
        "segments",
        "since_start_ns",
        "size_ns",
        "streams",
        "text",
        "to",
        "to_ns",
        "until_ns",
    ];
    assert_eq!(keys(&json["patterns"][0]), BTreeSet::from(expected));
    assert_eq!(keys(&json["paths"][1]), BTreeSet::from(["journeys", "lost", "path", "segments"]));
    assert_eq!(
        keys(&json["lost"][0]),
        BTreeSet::from(["count", "dropped_at", "kernel_count", "meaning", "place", "reason"])
    );
    let expected = [
        "complete",
        "consecutive",
        "duplicates",
        "incomplete",
        "journeys",
        "lost",
        "never_seen",
        "out_of_order",
        "pacing",
        "paths",
        "points",
        "segments",
        "stream",
    ];
    assert_eq!(keys(&json["streams"][0]), BTreeSet::from(expected));
    let expected =
        ["cpu_percent", "drift_ppb", "error_bound_ns", "exchanges", "fault", "machine", "method", "offset_ns"];
    assert_eq!(keys(&json["machines"][0]), BTreeSet::from(expected));
    assert_eq!(keys(&json["worst"][0]), BTreeSet::from(["key", "path", "steps", "stream", "time_ns", "total_ns"]));
    let expected = ["cpu", "point", "role", "since_first_ns", "since_last_ns", "tid"];
    assert_eq!(keys(&json["worst"][0]["steps"][0]), BTreeSet::from(expected));
    assert_eq!(keys(&json["segments"][0]["histogram"][0]), BTreeSet::from(["count", "from_ns", "to_ns"]));
    let expected =
        ["command", "end", "host", "interrupted_by", "latpath", "marks", "path", "start", "state", "streams"];
    assert_eq!(keys(&json["run"]), BTreeSet::from(expected));
    assert_eq!(json["run"]["state"], "finished");
}

#[test]
fn every_key_of_a_report_is_in_its_docs() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let json: Value = serde_json::from_str(&report_json(&summary(), &run, &Chosen::default(), &[]).unwrap()).unwrap();
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    fn walk(value: &Value, docs: &str) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                assert!(docs.contains(&format!("`{key}`")), "docs/json.md does not name {key}");
                // The keys of `host` are documented in docs/run-format.md.
                if key != "host" {
                    walk(value, docs);
                }
            }),
            Value::Array(list) => list.iter().for_each(|value| walk(value, docs)),
            _ => {}
        }
    }
    walk(&json, &docs);
}

#[test]
fn journeys_as_csv() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let mut out = Vec::new();
    let select = Select { cpus_and_threads: true, ..Select::default() };
    assert!(write_csv(&run, &select, &mut out).unwrap().is_empty());
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

#[test]
fn csv_ends_with_the_error_of_its_output() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let error = write_csv(&run, &Select::default(), &mut full).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}
