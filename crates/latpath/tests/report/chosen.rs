//! Options that select journeys, thresholds, segments and limits.

use crate::runs::{parsed, segment, stderr, stdout, Bench, PACKETS, POINTS, START, START_UTC, STREAMS};
use latpath_analysis::LimitOrigin;
use latpath_clock::Step;
use latpath_model::SegmentKind;
use latpath_report::Report;
use latpath_run::NamedSegment;
use latpath_stats::{Band, Summary};

#[test]
fn from_and_to_choose_by_the_first_sighting() {
    let bench = Bench::with_run();
    let utc = |ms: u32| format!("2026-01-02T03:04:05.{ms:03}Z");
    for (from, to) in [("100ms".to_string(), "200ms".to_string()), (utc(100), utc(200))] {
        let report = bench.figures(&["--from", &from, "--to", &to]);
        assert_eq!((report.journeys, report.elapsed_ns), (2 * 400, 100_000_000), "{from}");
        // The late packet, number 500, exists in both streams.
        let total = segment(&report, "total");
        assert_eq!((total.over_threshold, total.rate_hz.round()), (2, 7900.0));
        assert!(report.notes[0].starts_with("only some journeys were chosen"), "{:?}", report.notes);
    }
    assert_eq!(bench.figures(&["--from", "200ms"]).journeys, 2 * 200);
    assert_eq!(bench.figures(&["--to", "25ms"]).journeys, 2 * 100);
}

#[test]
fn a_stream_is_chosen_by_its_name_or_its_svid() {
    let bench = Bench::with_run();
    for name in [STREAMS[1], "MU02", "svid:MU02"] {
        let report = bench.figures(&["--stream", name]);
        assert_eq!(report.journeys, PACKETS);
        assert_eq!((report.streams.len(), report.streams[0].never_seen), (1, 3));
        assert_eq!(report.worst[0].stream, STREAMS[1]);
    }
    let out = bench.latpath(&["report", "run", "--stream", "MU03"]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(stderr(&out), "latpath: MU03: no such stream in the run (there are: svid:MU01, svid:MU02,vlan=7)\n");
}

#[test]
fn a_threshold_replaces_the_recorded_one() {
    let bench = Bench::with_run();
    assert_eq!(bench.figures(&[]).threshold_ns, 200_000);
    let report = bench.figures(&["--threshold", "60us"]);
    assert_eq!(report.threshold_ns, 60_000);
    let all = segment(&report, "total");
    assert_eq!(all.over_threshold, all.times.count);
}

#[test]
fn the_times_in_a_band_are_counted() {
    let bench = Bench::with_run();
    let csv = stdout(&bench.latpath(&["report", "run", "--stream", "MU01", "--csv", "-"]));
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let heads = lines.next().unwrap();
    let at = |point: &str| heads.iter().position(|head| *head == point).unwrap();
    let (from, to) = (at(POINTS[0]), at(POINTS[5]));
    let times: Vec<i64> =
        lines.filter_map(|line| Some(line[to].parse::<i64>().ok()? - line[from].parse::<i64>().ok()?)).collect();
    let mut sorted = times.clone();
    sorted.sort_unstable();
    let (low, high) = (sorted[sorted.len() / 4], sorted[sorted.len() / 2]);
    let within = times.iter().filter(|time| (low..=high).contains(time)).count();
    let report = bench.figures(&["--stream", "MU01", "--band", &format!("{low}ns..{high}ns")]);
    assert_eq!(report.band, Some(Band { from_ns: low, to_ns: high }));
    assert_eq!(segment(&report, "total").in_band, Some(within as u64));
    let text = stdout(&bench.latpath(&["report", "run", "--band", "1us..1s"]));
    assert!(text.contains("1.000 µs to 1.000 s"), "{text}");
    assert_eq!(bench.figures(&[]).segments[0].in_band, None);
    for wrong in ["40us", "2ms..1ms", "..1ms", "1..2"] {
        assert_eq!(bench.latpath(&["report", "run", "--band", wrong]).status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_segment_is_named_by_points_numbers_or_patterns() {
    let bench = Bench::with_run();
    for text in ["vhost=2..3", "vhost=host/tx@vnet0..host/vm-read@vnet0", "vhost=*tx@*..*/vm-read@*"] {
        let report = bench.figures(&["--segment", text]);
        let row = segment(&report, "vhost");
        assert_eq!((row.from.as_str(), row.to.as_str()), (POINTS[1], POINTS[3]), "{text}");
        assert_eq!(row.times.count, 2 * (1000 - 10 - 5));
    }
}

#[test]
fn a_segment_that_cannot_be_is_wrong_usage() {
    let bench = Bench::with_run();
    for (text, why) in [
        (
            "vhost=2..9",
            "the route has no point 9 (its points: 1 host/nic-rx@enp7s0, 2 host/tx@vnet0, 3 host/vm-read@vnet0, 4",
        ),
        ("vhost=host/tx@vnet7..3", "the run has no such points"),
        ("vhost", "write NAME=FROM..TO"),
        ("vhost=2..2", "the same point"),
    ] {
        for command in ["report", "segments"] {
            let out = bench.latpath(&[command, "run", "--segment", text]);
            assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(2), &b""[..]), "{text}");
            assert!(stderr(&out).contains(why), "{}", stderr(&out));
        }
    }
}

#[test]
fn the_histogram_is_that_of_the_named_segments() {
    let bench = Bench::with_run();
    let text = stdout(&bench.latpath(&["report", "run", "--histogram", "Tsub", "--histogram", "Thyp"]));
    assert!(text.contains("Histogram of Tsub") && text.contains("Histogram of Thyp"));
    assert!(!text.contains("Histogram of total"));
    let out = bench.latpath(&["report", "run", "--histogram", "Tfoo"]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(stderr(&out), "latpath: \"Tfoo\": no such segment (there are: Thyp, Tsub, total)\n");
}

#[test]
fn a_broken_limit_is_named_and_ends_with_3_after_the_report() {
    let bench = Bench::with_run();
    let out = bench.latpath(&["report", "run", "--json", "--limit", "total:max<=3ms", "--limit", "lost<=28"]);
    assert_eq!(out.status.code(), Some(3));
    assert_eq!(stderr(&out), "latpath: limit total:max<=3ms broken: 3.189 ms ±1.870 µs of MU02\n");
    assert_eq!(parsed::<Summary>(&out).journeys, 2000);
    let out = bench.latpath(&["report", "run", "--limit", "total:max<=4ms", "--limit", "total:p99<=200us"]);
    assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(0), &b""[..]));
    let out = bench.latpath(&["report", "run", "--csv", "-", "--limit", "lost<=27"]);
    assert_eq!(out.status.code(), Some(3));
    assert_eq!(stdout(&out).lines().count(), 2001);
}

#[test]
fn a_profile_sets_limits_and_ci_gets_them_as_junit_xml() {
    let bench = Bench::with_run();
    let rows = [("Transfer time", "total:max<=3ms"), ("Losses", "lost<=28"), ("Network", "Tnet:max<=1ms")];
    let rows = rows.map(|(name, limit)| format!("[[limit]]\nname = {name:?}\nlimit = {limit:?}\nsource = \"bay 7\"\n"));
    std::fs::write(bench.dir.path().join("bay7.toml"), rows.concat()).unwrap();
    let out = bench.latpath(&["report", "run", "--limits", "bay7.toml", "--json", "--junit", "limits.xml"]);
    assert_eq!(out.status.code(), Some(3));
    let said = stderr(&out);
    assert!(said.contains("limit total:max<=3ms broken: 3.189 ms ±1.870 µs of MU02\n"), "{said}");
    // A profile may name a segment that a run lacks: then the limit cannot be judged.
    assert!(said.contains("limit Tnet:max<=1ms cannot be judged: not measured"), "{said}");
    let limits = parsed::<Report>(&out).limits;
    assert_eq!(limits[1].about, Some(LimitOrigin { name: "Losses".into(), source: "bay 7".into() }));
    assert_eq!([&limits[1].broken, &limits[2].measured], [&None; 2]);
    let xml = std::fs::read_to_string(bench.dir.path().join("limits.xml")).unwrap();
    assert!(
        xml.contains("tests=\"3\" failures=\"2\"")
            && xml.contains(
                "message=\"total:max 3.189 ms ±1.870 µs of MU02, limit total:max&lt;=3ms\">Transfer time (bay 7)<"
            ),
        "{xml}"
    );
    // A test that is repeated replaces its own verdicts, but not another program's file.
    let again = || bench.latpath(&["report", "run", "--limits", "bay7.toml", "--junit", "limits.xml"]).status.code();
    assert_eq!(again(), Some(3));
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("limits.xml")).unwrap(), xml);
    std::fs::write(bench.dir.path().join("limits.xml"), "<testsuites name=\"other\"/>").unwrap();
    assert_eq!(again(), Some(1));
    assert_eq!(bench.latpath(&["report", "run", "--junit", "other.xml"]).status.code(), Some(2));
    assert_eq!(bench.latpath(&["report", "run", "--limits", "bay8.toml"]).status.code(), Some(2));
    let replay = ["live", "--replay", "run", "--speed", "max", "--limit"];
    assert_eq!(bench.latpath(&[&replay[..], &["total:max<=3ms"]].concat()).status.code(), Some(3));
    assert_eq!(bench.latpath(&[&replay[..], &["total:max<=4ms"]].concat()).status.code(), Some(0));
    let pacing = bench.latpath(&[&replay[..], &["pacing:max<=1s"]].concat());
    assert_eq!(pacing.status.code(), Some(0), "{}", stderr(&pacing));
    let pacing = bench.latpath(&[&replay[..], &["pacing:max<=1us"]].concat());
    assert_eq!(pacing.status.code(), Some(3), "{}", stderr(&pacing));
    let unknown = bench.latpath(&[&replay[..], &["Tfoo:max<=4ms"]].concat());
    let says = "latpath: \"Tfoo\": no such segment (there can be: Thyp, Tsub, total)\n";
    assert_eq!((unknown.status.code(), stderr(&unknown).as_str(), unknown.stdout.len()), (Some(2), says, 0));
}

#[test]
fn a_profile_brings_the_segments_that_it_limits_as_far_as_the_run_has_their_ends() {
    let bench = Bench::with_run();
    let report = |profile: &str| parsed::<Report>(&bench.latpath(&["report", "run", "--json", "--limits", profile]));
    let seapath = report("seapath");
    let limit = |name: &str| seapath.limits.iter().find(|l| l.segment.as_deref() == Some(name)).unwrap();
    let segment = |name: &str| {
        let segment = seapath.summary.segments.iter().find(|s| s.name == name)?;
        Some((segment.from.as_str(), segment.to.as_str()))
    };
    assert_eq!(segment("hypervisor"), Some(("host/nic-rx@enp7s0", "host/vm-read@vnet0")));
    assert_eq!(segment("transit"), Some(("host/vm-read@vnet0", "guest0/nic-rx@eth1")));
    for name in ["hypervisor", "transit", "total", "Tsub"] {
        assert!(limit(name).measured.is_some(), "{:?}", limit(name));
    }
    // Tnet was not measured, since the publisher is on another machine.
    assert!(limit("Tnet").cannot_be_judged.is_some() && segment("Tnet").is_none());
    let row = "name = 'a'\nsource = 'b'\n";
    let own =
        format!("[[segment]]\nname = 'x'\nfrom = 'host/tx@none'\nto = '*'\n[[limit]]\n{row}limit = 'x:max<=1s'\n");
    std::fs::write(bench.dir.path().join("own.toml"), own).unwrap();
    assert!(report("own.toml").limits[0].cannot_be_judged.is_some());
    // A recorded run already contains named segments, which must not appear twice.
    bench.edit(|manifest| {
        let (from, to) = ("host/nic-rx@enp7s0".parse().unwrap(), "host/vm-read@vnet0".parse().unwrap());
        manifest.segments.push(NamedSegment { kind: SegmentKind::Named, name: "hypervisor".into(), from, to });
    });
    let again = report("seapath").summary.into_owned();
    assert_eq!(again.segments.iter().filter(|s| s.name == "hypervisor").count(), 1);
}

#[test]
fn nothing_shows_that_a_limit_is_kept_where_no_packet_was_chosen() {
    let bench = Bench::with_run();
    let all = ["lost<=0", "total:over<=0", "consecutive<=1", "total:max<=3ms", "journeys>=1"];
    let limits = all.iter().flat_map(|limit| ["--limit", limit]);
    let args = ["report", "run", "--from", "100100ns", "--to", "100200ns", "--junit", "-"].into_iter().chain(limits);
    let out = bench.latpath(&args.collect::<Vec<_>>());
    assert_eq!(out.status.code(), Some(3));
    assert!(stdout(&out).contains("tests=\"5\" failures=\"5\""), "{}", stdout(&out));
    assert!(stderr(&out).contains("limit lost<=0 cannot be judged: no packet was measured\n"), "{}", stderr(&out));
}

#[test]
fn a_part_of_a_run_that_lies_beyond_it_is_refused() {
    let bench = Bench::with_run();
    for part in [["--from", "1h"], ["--to", "2020-01-01T00:00:00Z"], ["--from", "2030-01-01T00:00:00Z"]] {
        let out = bench.latpath(&[&["report", "run"], &part[..]].concat());
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{part:?}");
        assert!(
            stderr(&out).contains("--from, --to: run has nothing there: it began 2026-01-02T03:04:05 UTC"),
            "{}",
            stderr(&out)
        );
    }
}

#[test]
fn packets_in_a_row_are_held_against_the_time_that_their_limit_names() {
    let bench = Bench::with_run();
    let code = |args: &[&str]| {
        let out = bench.latpath(&[&["report", "run", "-s", "MU01", "--threshold", "60us"], args].concat());
        (out.status.code(), stderr(&out))
    };
    // All packets take about 188 µs, which exceeds the threshold; the late packet and the lost ones are isolated.
    assert_eq!(code(&["--limit", "consecutive<=1"]).0, Some(3));
    assert_eq!(code(&["--limit", "consecutive(3ms)<=1"]), (Some(0), String::new()));
    assert_eq!(code(&["--limit", "consecutive(3ms)<=0"]).0, Some(3));
    let replay = ["live", "--replay", "run", "--speed", "max", "--limit"];
    assert_eq!(bench.latpath(&[&replay[..], &["consecutive(3ms)<=1"]].concat()).status.code(), Some(0));
    assert_eq!(bench.latpath(&[&replay[..], &["consecutive(3ms)<=0"]].concat()).status.code(), Some(3));
}

#[test]
fn a_limit_that_makes_no_sense_is_wrong_usage() {
    let bench = Bench::with_run();
    for limit in ["total:p98<=3ms", "total:max<=3", "lost"] {
        assert_eq!(bench.latpath(&["report", "run", "--limit", limit]).status.code(), Some(2), "{limit}");
    }
    let out = bench.latpath(&["report", "run", "--limit", "Tfoo:max<=3ms"]);
    let says = "limit Tfoo:max<=3ms cannot be judged: not measured: no segment \"Tfoo\" (there are: Thyp, Tsub, total)";
    assert_eq!((out.status.code(), stderr(&out)), (Some(3), format!("latpath: {says}\n")));
}

#[test]
fn a_moment_that_somebody_marked_can_be_where_a_report_begins() {
    let bench = Bench::with_run();
    let mark = |args: &[&str]| bench.latpath(&[&["mark", "run"], args].concat());
    assert_eq!(mark(&["iperf on"]).status.code(), Some(2), "the run is over: when was it?");
    assert_eq!(mark(&["iperf on", "--at", "200ms"]).status.code(), Some(0));
    assert_eq!(mark(&["iperf \u{1b}off", "--at", "300ms"]).status.code(), Some(0));
    let text = stdout(&bench.latpath(&["report", "run"]));
    assert!(text.contains("2026-01-02 03:04:05.200000000 UTC  iperf on") && !text.contains('\u{1b}'), "{text}");
    let marks = bench.report(&[]).run.marks;
    assert_eq!((marks[0].since_start_ns, marks[0].text.as_ref()), (200_000_000, "iperf on"));
    let journeys = |args: &[&str]| bench.figures(args).journeys;
    assert_eq!(journeys(&["--from", "@iperf on"]), journeys(&["--from", "200ms"]));
    assert_ne!(journeys(&["--from", "@iperf on"]), journeys(&[]));
    let unknown = bench.latpath(&["report", "run", "--to", "@iperf"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("no such mark (there are: @iperf on"), "{}", stderr(&unknown));
}

#[test]
fn a_span_that_ends_before_it_begins_is_wrong_usage() {
    let bench = Bench::with_run();
    for args in [["--from", "2s", "--to", "1s"], ["--from", "yesterday", "--to", "1s"]] {
        assert_eq!(bench.latpath(&[&["report", "run"], &args[..]].concat()).status.code(), Some(2));
    }
}

#[test]
fn all_times_of_day_follow_a_step_of_the_clock() {
    let bench = Bench::with_run();
    let before = bench.figures(&[]);
    // The clock is set back by one hour, 100 ms after the start of a run of 250 ms.
    let step = Step { noticed_at_ns: START + 100_000_000, by_ns: -3_600_000_000_000 };
    bench.edit(|manifest| manifest.utc_steps = vec![step]);
    let after = bench.figures(&[]);
    let note = "the host's time of day was set: 100.0 ms after the start by -3600 s; times of day follow it, \
                and no duration is touched";
    assert_eq!(after.notes, [note]);
    // The late packet arrived at 125 ms, after the step.
    assert_eq!(after.worst[0].time_ns, before.worst[0].time_ns - 3_600_000_000_000);
    let chosen = |from: &str, to: &str| bench.figures(&["--from", from, "--to", to]).journeys;
    assert_eq!(chosen("2026-01-02T02:04:05.100Z", "2026-01-02T02:04:05.200Z"), 2 * 400);
    assert_eq!(chosen("2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"), 2 * 400);
    let csv = stdout(&bench.latpath(&["report", "run", "--csv", "-"]));
    let utc = |line: &str| line.split(',').rev().nth(23).unwrap_or_default().to_owned();
    let (first, last) = (csv.lines().nth(1).map(utc), csv.lines().last().map(utc));
    assert_eq!(first.unwrap(), START_UTC.to_string());
    assert!(last.unwrap().parse::<i64>().unwrap() < START_UTC - 3_000_000_000_000);
}
