//! A report of a whole run, in each of its formats.

use crate::runs::{packets, segment, stderr, stdout, Bench, Packet, LATE, PACKETS, POINTS, START, START_UTC, STREAMS};
use latpath_analysis::SegmentsDocument;
use latpath_stats::{Loss, PacketAt, WorstStep};
use latpath_testkit::misfits;
use serde_json::{json, Value};

/// Removes sizes, which depend on the version of the compression library.
fn without_size(text: &str) -> String {
    let size = |line: &str| match line.split_once(" journeys, ") {
        Some((before, after)) if line.starts_with("  recorded") => {
            format!("{before} journeys, SIZE,{}", after.split_once(',').unwrap().1)
        }
        _ => line.to_owned(),
    };
    text.lines().map(size).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_text_of_a_report() {
    let out = Bench::with_run().latpath(&["report", "run", "--worst", "2"]);
    assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(0), &b""[..]));
    insta::assert_snapshot!(without_size(&stdout(&out)));
}

#[test]
fn the_text_is_ascii_where_the_locale_has_nothing_else() {
    let bench = Bench::with_run();
    let out = crate::runs::latpath(bench.dir.path()).args(["report", "run"]).env("LC_ALL", "C").output().unwrap();
    assert!(out.stdout.is_ascii());
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort();
    keys
}

fn sorted<const N: usize>(mut names: [&str; N]) -> Vec<&str> {
    names.sort();
    names.to_vec()
}

#[test]
fn the_json_has_the_keys_that_others_script_against() {
    let report: Value = Bench::with_run().json(&["report", "run"]);
    let counts = ["journeys", "complete", "incomplete", "lost", "duplicates", "out_of_order"];
    let whole = [
        "elapsed_ns",
        "threshold_ns",
        "points",
        "off_route",
        "malformed",
        "segments",
        "paths",
        "streams",
        "machines",
        "worst",
        "tool",
        "limits",
    ];
    let mut all = [&counts[..], &whole, &["chosen", "deficiencies", "notes", "run", "settings", "weaknesses"]].concat();
    all.sort();
    assert_eq!(keys(&report), all);
    let percentiles = ["p50_ns", "p90_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "p99_999_ns", "p99_9999_ns"];
    let times = [&["min_ns", "mean_ns", "stddev_ns", "max_ns"], &percentiles[..]].concat();
    let about = [
        "kind",
        "name",
        "from",
        "to",
        "count",
        "rate_hz",
        "over_threshold",
        "negative",
        "error_bound_ns",
        "histogram",
        "min_at",
        "max_at",
    ];
    let mut row = [&times[..], &about].concat();
    row.sort();
    assert_eq!(keys(&report["segments"][0]), row);
    for key in times {
        assert!(report["segments"][0][key].is_i64(), "{key}");
    }
    assert_eq!(keys(&report["segments"][0]["max_at"]), sorted(["stream", "key", "number", "time_ns"]));
    let pacing = &report["streams"][0]["pacing"][0];
    assert_eq!(keys(pacing), sorted(["point", "count", "min_ns", "mean_ns", "max_ns"]));
    let tool = ["sightings", "sightings_dropped", "ns_per_sighting", "cpu_percent", "max_rss_bytes"];
    assert_eq!(keys(&report["tool"]), sorted(tool));
    assert_eq!(keys(&report["lost"][0]), sorted(["place", "dropped_at", "reason", "meaning", "kernel_count", "count"]));
    let machine =
        ["machine", "method", "offset_ns", "drift_ppb", "error_bound_ns", "exchanges", "fault", "cpu_percent"];
    assert_eq!(keys(&report["machines"][1]), sorted(machine));
    assert_eq!(keys(&report["worst"][0]), sorted(["stream", "key", "path", "time_ns", "total_ns", "steps"]));
    let step = ["point", "since_first_ns", "since_last_ns", "cpu", "tid", "role"];
    assert_eq!(keys(&report["worst"][0]["steps"][0]), sorted(step));
    let mut stream =
        [&counts[..], &["stream", "points", "never_seen", "consecutive", "pacing", "segments", "paths"]].concat();
    stream.sort();
    assert_eq!(keys(&report["streams"][0]), stream);
    assert_eq!(keys(&report["segments"][0]["histogram"][0]), sorted(["from_ns", "to_ns", "count"]));
    let run = ["path", "state", "interrupted_by", "latpath", "command", "start", "end", "streams", "host", "marks"];
    assert_eq!(keys(&report["run"]), sorted(run));
}

#[test]
fn every_packet_is_complete_incomplete_or_lost_at_a_place() {
    let report = Bench::with_run().figures(&[]);
    assert_eq!((report.journeys, report.complete, report.incomplete), (2 * PACKETS, 2 * 981, 2 * 5));
    // The run lacks the kernel's own counts.
    let loss = |place: &str, reason: Option<&str>, meaning: Option<&str>, count| Loss {
        place: place.into(),
        reason: reason.map(Into::into),
        meaning: meaning.map(Into::into),
        dropped_at: None,
        kernel_count: None,
        count,
    };
    let dropped = loss("host/tx@vnet0", Some("FULL_RING in tun_net_xmit"), Some("tap queue full"), 20);
    assert_eq!(report.lost, [dropped, loss("guest0/nic-rx@eth1", None, None, 8)]);
    assert_eq!((report.duplicates, report.out_of_order, report.malformed), (40, 16, 2));
    let [one, other] = &report.streams[..] else { panic!("{:?}", report.streams) };
    assert_eq!((other.stream.as_str(), other.never_seen), (STREAMS[1], 3));
    assert_eq!((one.journeys, one.complete, one.incomplete), (1000, 981, 5));
    // From the first packet's first sighting to that of the last packet.
    assert_eq!(report.elapsed_ns, (PACKETS as i64 - 1) * 250_000 + 7_000);
    let on_route: Vec<String> = report.points.iter().map(ToString::to_string).collect();
    assert_eq!(on_route, [0, 1, 3, 4, 5].map(|p| POINTS[p]));
}

#[test]
fn a_segments_times_are_those_of_its_packets() {
    let report = Bench::with_run().figures(&[]);
    for (name, from, to, bound) in [("Thyp", 0, 4, 1_870), ("Tsub", 4, 5, 0), ("total", 0, 5, 1_870)] {
        let both = packets().filter(|p| p.has(from) && p.has(to));
        let mut times: Vec<i64> = both.map(|p| p.t[to] - p.t[from]).collect();
        times.sort();
        let row = segment(&report, name);
        assert_eq!((row.from.as_str(), row.to.as_str()), (POINTS[from], POINTS[to]));
        assert_eq!((row.times.count, row.error_bound_ns), (times.len() as u64, bound));
        assert_eq!((row.times.min_ns, row.times.max_ns), (times[0], times[times.len() - 1]));
        let over = times.iter().filter(|t| **t > 200_000).count();
        assert_eq!((row.over_threshold, row.times.negative), (over as u64, 0));
        let slowest =
            packets().filter(|p| p.has(from) && p.has(to)).max_by_key(|p| (p.t[to] - p.t[from], -p.t[from])).unwrap();
        let at = PacketAt {
            stream: STREAMS[usize::from(slowest.stream)].into(),
            key: (slowest.number % 4000) as u32,
            number: slowest.number,
            time_ns: START_UTC + slowest.t[from] - START,
        };
        assert_eq!(row.max_at, Some(at), "{name}");
        let middle = times[times.len() / 2 - 1];
        assert!((row.times.p50_ns - middle).abs() * 100 <= middle, "{row:?}");
        let seconds = report.elapsed_ns as f64 / 1e9;
        assert!((row.rate_hz - times.len() as f64 / seconds).abs() < 0.1, "{row:?}");
    }
}

#[test]
fn pacing_is_the_time_from_one_packet_to_the_next_at_each_point() {
    let report = Bench::with_run().figures(&[]);
    for (id, stream) in report.streams.iter().enumerate() {
        // The points of the route come first.
        let points: Vec<String> = stream.pacing.iter().map(|at| at.point.clone()).collect();
        assert_eq!(points, [0, 1, 3, 4, 5, 2].map(|p| POINTS[p]));
        for (at, p) in stream.pacing.iter().zip([0, 1, 3, 4, 5, 2]) {
            let times: Vec<i64> =
                packets().filter(|q| usize::from(q.stream) == id && q.has(p)).map(|q| q.t[p]).collect();
            let gaps: Vec<i64> = times.windows(2).map(|two| two[1] - two[0]).collect();
            let extremes = (gaps.iter().min().copied(), gaps.iter().max().copied());
            assert_eq!((Some(at.min_ns), Some(at.max_ns)), extremes);
            let mean = gaps.iter().sum::<i64>() as f64 / gaps.len() as f64;
            assert!((at.mean_ns as f64 - mean).abs() <= 0.5 && at.count == gaps.len() as u64, "{at:?}");
        }
    }
}

#[test]
fn the_worst_packets_have_all_their_sightings() {
    let all = Bench::with_run().figures(&["--worst", "1"]).worst;
    let [worst] = &all[..] else { panic!("{all:?}") };
    let t = Packet::of(0, LATE).t;
    assert_eq!((worst.stream.as_str(), u64::from(worst.key)), (STREAMS[0], LATE));
    assert_eq!((worst.total_ns, worst.time_ns), (t[5] - t[0], t[0] - START + START_UTC));
    assert_eq!(worst.steps.len(), 5);
    let expected = WorstStep {
        point: POINTS[3].into(),
        since_first_ns: t[3] - t[0],
        since_last_ns: t[3] - t[1],
        cpu: Some(3),
        tid: Some(4711),
        role: None,
    };
    assert_eq!(worst.steps[2], expected);
}

#[test]
fn the_csv_has_every_packet_as_it_was() {
    let bench = Bench::with_run();
    let out = bench.latpath(&["report", "run", "--csv", "-"]);
    assert_eq!(out.status.code(), Some(0));
    let text = stdout(&out);
    let mut lines = text.lines();
    let cells = |line: &str| {
        line.replace("\"svid:MU02,vlan=7\"", "svid:MU02;vlan=7").split(',').map(String::from).collect::<Vec<_>>()
    };
    let heads = cells(lines.next().unwrap());
    let points: Vec<&str> = heads[5..11].iter().map(String::as_str).collect();
    assert_eq!(points, [0, 1, 3, 4, 5, 2].map(|p| POINTS[p]), "in the order of the route, the drop point behind it");
    let column = |name: &str| heads.iter().position(|h| h == name).unwrap();
    let mut found: Vec<(u16, u64, Vec<String>)> = lines
        .map(|line| {
            let cells = cells(line);
            let stream = u16::from(cells[0] != STREAMS[0]);
            (stream, cells[column("number")].parse().unwrap(), cells)
        })
        .collect();
    found.sort();
    let mut expected: Vec<Packet> = packets().collect();
    expected.sort_by_key(|p| (p.stream, p.number));
    assert_eq!(found.len(), expected.len());
    for ((stream, number, cells), packet) in found.iter().zip(expected) {
        assert_eq!((*stream, *number), (packet.stream, packet.number));
        let first: i64 = cells[column("t_ns")].parse().unwrap();
        assert_eq!(first, packet.t[0]);
        assert_eq!(cells[column("utc_ns")], (first - START + START_UTC).to_string());
        for (p, name) in POINTS.iter().enumerate() {
            let offset = if packet.has(p) { (packet.t[p] - first).to_string() } else { String::new() };
            assert_eq!(cells[column(name)], offset, "packet {number} at {name}");
        }
        let reason = if packet.drop_note > 0 { "FULL_RING in tun_net_xmit" } else { "" };
        assert_eq!(cells[column("drop_reason")], reason);
        assert_eq!(cells[column("duplicates")], packet.duplicates.to_string());
        assert_eq!(cells[column("out_of_order")], packet.out_of_order.to_string());
    }
}

#[test]
fn a_csv_file_stands_beside_the_report() {
    let bench = Bench::with_run();
    let report = bench.figures(&["--csv", "journeys.csv"]);
    let csv = std::fs::read_to_string(bench.dir.path().join("journeys.csv")).unwrap();
    let again = ["report", "run", "--csv", "journeys.csv"];
    let refused = bench.latpath(&again);
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(stderr(&refused).contains("exists already; name another file, or replace it with --force"));
    assert_eq!(bench.latpath(&["report", "run", "--csv", "run/manifest.json"]).status.code(), Some(1));
    assert_eq!(bench.latpath(&["report", "run", "--csv", "/dev/null"]).status.code(), Some(0));
    assert_eq!(bench.latpath(&[&again[..], &["--force"]].concat()).status.code(), Some(0));
    assert_eq!(csv.lines().count() as u64, report.journeys + 1);
}

#[test]
fn segments_lists_the_path_and_what_is_measured_on_it() {
    let bench = Bench::with_run();
    insta::assert_snapshot!(stdout(&bench.latpath(&["segments", "run", "--segment", "vhost=2..3"])));
    let listed: Value = bench.json(&["segments", "run"]);
    let document: SegmentsDocument = serde_json::from_value(listed.clone()).unwrap();
    let first = json!({ "kind": "thyp", "name": "Thyp", "from": POINTS[0], "to": POINTS[4] });
    assert_eq!(serde_json::to_value(&document.segments[0]).unwrap(), first);
    assert_eq!((document.points.len(), document.off_route.len()), (5, 0));
    assert_eq!(serde_json::to_value(document).unwrap(), listed);
}

#[test]
fn the_schema_fits_what_is_printed_and_knows_each_key() {
    let bench = Bench::with_run();
    let schema = |of: &str| -> Value { serde_json::from_slice(&bench.latpath(&["schema", of]).stdout).unwrap() };
    let (of_report, mut report) = (schema("report"), bench.json::<Value>(&["report", "run"]));
    assert_eq!(misfits(&of_report, &report), [""; 0]);
    report["segments"][0].as_object_mut().unwrap().remove("p99_ns");
    report["journeys"] = "many".into();
    assert_eq!(misfits(&of_report, &report).len(), 2);
    let (of_live, out) =
        (schema("live"), stdout(&bench.latpath(&["live", "--replay", "run", "--speed", "max", "--json"])));
    assert!(out.lines().count() > 0);
    for line in out.lines() {
        assert_eq!(misfits(&of_live, &serde_json::from_str(line).unwrap()), [""; 0]);
    }
    assert_eq!(misfits(&schema("segments"), &bench.json(&["segments", "run"])), [""; 0]);
    let compared = bench.json(&["compare", "run", "--against", "run"]);
    assert_eq!(misfits(&schema("compare"), &compared), [""; 0]);
}

/// Keys of all objects in a value, at any depth.
pub fn all_keys(value: &Value, keys: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                keys.insert(key.clone());
                all_keys(inner, keys);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| all_keys(item, keys)),
        _ => {}
    }
}

#[test]
fn every_key_is_in_the_docs() {
    let bench = Bench::with_run();
    let mut report: Value = bench.json(&["report", "run"]);
    // The host's facts are described in the documentation of the manifest.
    report["run"]["host"].take();
    let segments = bench.json(&["segments", "run"]);
    let manifest = serde_json::to_value(crate::runs::manifest()).unwrap();
    let top: serde_json::Map<_, _> = manifest.as_object().unwrap().keys().map(|k| (k.clone(), Value::Null)).collect();
    for (page, values) in [("json.md", vec![report, segments]), ("run-format.md", vec![Value::Object(top)])] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        let mut keys = std::collections::BTreeSet::new();
        values.iter().for_each(|value| all_keys(value, &mut keys));
        let missing: Vec<_> = keys.iter().filter(|key| !text.contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "{page} lacks {missing:?}");
    }
}
