//! Documents of a whole run: the same figures as in its JSON, reproducible byte by byte, and not longer for a longer
//! run.

use crate::runs::{manifest, stderr, stdout, Bench, LATE, START};
use latpath_journey::{Journey, Totals};
use latpath_model::{Ns, Point, PointInfo, SegmentKind};
use latpath_run::{Manifest, Writer};
use latpath_stats::units::duration;
use std::process::Output;

fn written(bench: &Bench, more: &[&str]) -> Output {
    bench.latpath(&[&["report", "run"], more].concat())
}

/// Returns the text of all cells in the first row that begins with these cells.
pub fn row(html: &str, begins: &[&str]) -> Vec<String> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(html, options).unwrap();
    let text =
        |node: roxmltree::Node| node.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect::<String>();
    let cells = |row: roxmltree::Node| row.children().filter(|n| n.is_element()).map(text).collect::<Vec<_>>();
    let mut rows = document.descendants().filter(|n| n.has_tag_name("tr")).map(cells);
    rows.find(|cells| cells.iter().zip(begins).all(|(cell, begin)| cell == begin)).unwrap()
}

#[test]
fn the_html_has_the_figures_of_the_json() {
    let bench = Bench::with_run();
    let html = stdout(&written(&bench, &["--html", "-"]));
    let report = bench.figures(&[]);
    for segment in report.segments.iter().filter(|s| s.kind != SegmentKind::Step) {
        let (t, bound) = (&segment.times, segment.error_bound_ns);
        let time = |ns: Ns| if ns < bound { format!("<{}", duration(bound)) } else { duration(ns) };
        let mut times = vec![time(t.min_ns), time(t.mean_ns), duration(t.stddev_ns)];
        times.extend([t.p50_ns, t.p90_ns, t.p95_ns, t.p99_ns, t.p99_9_ns].map(time));
        // None of 2000 packets exceeds the 99.99th percentile and higher ones.
        times.extend(["-", "-", "-"].map(String::from));
        times.push(time(t.max_ns));
        let label = [("Thyp", "Thyp 1→4"), ("Tsub", "Tsub 4→5"), ("total", "total 1→5")];
        let label = label.iter().find(|(of, _)| *of == segment.name).unwrap().1;
        let shown = row(&html, &[label, &times[0], &times[1]]);
        assert_eq!(shown[1..], times, "{}", segment.name);
    }
    let late = format!("{LATE}");
    assert!(html.contains(&format!("key {late}, number {late}")), "the packet with the greatest time is named");
    let at = &report.streams[0].pacing[0];
    assert_eq!(row(&html, &["MU01", &at.point])[3..], [at.min_ns, at.mean_ns, at.max_ns].map(duration));
}

#[test]
fn the_same_run_gives_the_same_bytes_and_another_one_another_name() {
    let bench = Bench::with_run();
    for format in ["--html", "--markdown", "--asciidoc"] {
        let first = written(&bench, &[format, "-"]);
        assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
        assert!(!first.stdout.is_empty() && first.stdout == written(&bench, &[format, "-"]).stdout, "{format}");
        bench.edit(|manifest| manifest.host.name = format.into());
        assert!(first.stdout != written(&bench, &[format, "-"]).stdout, "{format}");
    }
}

/// Writes a run of late packets on a route of 40 points, each packet with its own delay.
fn long_route(bench: &Bench, packets: u64) {
    let point = |n: usize| PointInfo::from(format!("host/tx@device{n}").parse::<Point>().unwrap());
    let points: Vec<PointInfo> = (0..40).map(point).collect();
    let (route, streams) = (points.iter().map(|info| info.point.clone()).collect(), vec!["svid:MU01".parse().unwrap()]);
    let mut writer = Writer::create(&bench.run(), Manifest { points, route, streams, ..manifest() }).unwrap();
    for number in 0..packets {
        let begin = START + number as Ns * 10_000_000;
        let t: [Ns; 40] = std::array::from_fn(|p| begin + p as Ns * (20_000 + number as Ns));
        let (seen, key) = ((1 << 40) - 1, number as u32);
        writer
            .push(&Journey { key, number, seen, t: &t, cpu: &[3; 40], tid: &[77; 40], ..Journey::default() })
            .unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_page_of_many_worst_packets_stays_short_and_says_how_many_are_left_out() {
    let bench = Bench::new();
    long_route(&bench, 1100);
    let html = stdout(&written(&bench, &["--worst", "1000", "--html", "-"]));
    assert!((4_000_000..=5_000_000).contains(&html.len()), "{}", html.len());
    let drawn = (1..=1000).take_while(|n| html.contains(&format!("<h3>{n}. "))).count();
    let says = format!("{} of the 1000 packets asked for are left out here", 1000 - drawn);
    assert!(html.contains(&says), "{drawn} are drawn");
    let few = stdout(&written(&bench, &["--worst", "100", "--html", "-"]));
    assert!(few.contains("<h3>100. ") && !few.contains("left out here"));
}

/// Writes a recording with the maximum number of streams, each with packets on the whole route.
fn many_streams(bench: &Bench, streams: u16) {
    let names = (0..streams).map(|n| format!("svid:MU{n:03}_of_a_long_name_in_a_large_substation").parse().unwrap());
    let joined = vec![Totals::default(); usize::from(streams)];
    let manifest = Manifest { streams: names.collect(), joined, ..manifest() };
    let points = manifest.points.len();
    let mut writer = Writer::create(&bench.run(), manifest).unwrap();
    for number in 0..100 {
        for stream in 0..streams {
            let begin = START + number as Ns * 10_000_000 + Ns::from(stream) * 1000;
            let t: Vec<Ns> = (0..points).map(|p| begin + p as Ns * 20_000 + Ns::from(stream)).collect();
            let journey = Journey { stream, key: number as u32, number, seen: 0b11_1011, t: &t, ..Journey::default() };
            writer.push(&Journey { cpu: &[3; 6], tid: &[77; 6], ..journey }).unwrap();
        }
    }
    writer.finish().unwrap();
}

#[test]
fn a_page_of_256_streams_is_bounded_and_has_each_of_them() {
    let bench = Bench::new();
    many_streams(&bench, 256);
    let html = stdout(&written(&bench, &["--html", "-", "--limit", "total:max<=3ms"]));
    for stream in ["MU000_", "MU128_", "MU255_"] {
        assert!(html.contains(stream), "{stream}");
    }
    assert!(html.len() <= 5_000_000, "{}", html.len());
}

#[test]
fn a_file_is_written_beside_the_text_and_replaced_only_by_force() {
    let bench = Bench::with_run();
    let out = written(&bench, &["--html", "a.html", "--asciidoc", "a.adoc", "--limit", "lost<=0"]);
    assert_eq!(out.status.code(), Some(3));
    assert!(stdout(&out).starts_with("Run run"));
    let html = std::fs::read_to_string(bench.dir.path().join("a.html")).unwrap();
    assert!(html.contains("A limit is broken") && html.contains("lost&lt;=0"));
    assert!(html.len() < 5_000_000, "{}", html.len());
    assert!(stderr(&written(&bench, &["--html", "a.html"])).contains("--force"));
    assert_eq!(written(&bench, &["--html", "a.html", "--force"]).status.code(), Some(0));
    let twice = written(&bench, &["--html", "x", "--markdown", "x"]);
    assert_eq!(twice.status.code(), Some(2), "{}", stderr(&twice));
    assert_eq!(written(&bench, &["--force"]).status.code(), Some(2));
}

#[test]
fn a_page_of_a_part_of_a_run_says_which_part_and_what_else_weakens_its_verdict() {
    let bench = Bench::with_run();
    let limit = ["--limit", "total:max<=4ms"];
    let part = ["--from", "100ms", "--to", "200ms", "-s", "MU02", "--threshold", "150us", "--html", "-"];
    let html = stdout(&written(&bench, &[&limit[..], &part].concat()));
    let covers = "100.0 ms to 200.0 ms of 249.8 ms, of MU02 alone";
    assert_eq!(html.matches(&format!("<dt>covers</dt><dd>{covers}</dd>")).count(), 2, "{html}");
    for part in [
        "All limits are kept, but see what weakens this",
        &format!("it covers a part of the run: {covers}"),
        "3 packets were seen by no point",
        "<dt>threshold</dt><dd>150.0 µs</dd>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    let chosen = bench.report(&["--from", "100ms"]).chosen;
    assert_eq!((chosen.from_ns, chosen.to_ns), (Some(100_000_000), None));
    let xml = stdout(&bench.latpath(&[&["report", "run", "--from", "100ms", "--junit", "-"], &limit[..]].concat()));
    assert!(xml.contains("<testsuite name=\"run, 100.0 ms to the end of 249.8 ms\""), "{xml}");
    assert!(stdout(&written(&bench, &["--from", "100ms"])).contains("covers      100.0 ms to the end"));
    // A complete record of a stream weakens no verdict.
    let whole = stdout(&written(&bench, &["--limit", "lost<=99", "--html", "-"]));
    assert!(!whole.contains("<dt>covers</dt>") && whole.contains("class=\"weak\""));
}

#[test]
fn what_the_author_says_stands_first_and_how_the_path_was_typed_nowhere() {
    let bench = Bench::with_run();
    let html = |run: &str| {
        let words =
            ["report", run, "--html", "-", "--title", "FAT of <bay 7>", "--note", "serial=1VX2", "--note", "by=A = B"];
        stdout(&bench.latpath(&words))
    };
    let page = html("run");
    assert!(page.contains("<h1>FAT of &lt;bay 7&gt;</h1>"));
    assert!(page.contains("<dt>serial</dt><dd>1VX2</dd>\n<dt>by</dt><dd>A = B</dd>"));
    let whole = bench.run().canonicalize().unwrap();
    assert_eq!(page, html(whole.to_str().unwrap()));
    assert_eq!(page, html("./run/../run"));
    assert_eq!(bench.latpath(&["report", "run", "--note", "=x"]).status.code(), Some(2));
}

#[test]
fn charts_know_the_limits_of_their_segments_and_how_many_packets_each_slot_has() {
    let bench = Bench::with_run();
    let html = stdout(&written(&bench, &["--html", "-", "--limit", "total:max<=3ms", "--limit", "lost<=0"]));
    let data = html.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let segments = data["segments"].as_array().unwrap();
    let total = segments.iter().find(|s| s["label"] == "total 1→5").unwrap();
    assert_eq!(total["limits"], serde_json::json!([["total:max<=3ms", 3_000_000]]));
    assert!(segments.iter().filter(|s| s["label"] != "total 1→5").all(|s| s["limits"] == serde_json::json!([])));
    assert_eq!(total["count"].as_str().unwrap().len(), total["mean"].as_str().unwrap().len());
}
