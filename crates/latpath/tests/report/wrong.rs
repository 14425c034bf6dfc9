//! Missing, incomplete and unfinished runs.

use crate::runs::{latpath, manifest, packets, segment, stderr, stdout, Bench, POINTS, START};
use latpath_model::StreamSpec;
use latpath_run::Writer;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn what_is_no_run_is_named() {
    let bench = Bench::new();
    std::fs::write(bench.dir.path().join("file"), "").unwrap();
    std::fs::create_dir(bench.dir.path().join("empty")).unwrap();
    for (path, why) in [("none", "no such directory"), ("file", "it is a file"), ("empty", "it has no manifest.json")] {
        for command in ["report", "segments"] {
            let out = bench.latpath(&[command, path]);
            assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(1), &b""[..]));
            let text =
                format!("latpath: {path}: not a run: {why} (a run is a directory made by `latpath record -o DIR`)\n");
            assert_eq!(stderr(&out), text);
        }
    }
}

#[test]
fn a_run_of_a_newer_latpath_is_refused_by_its_format() {
    let bench = Bench::with_run();
    bench.edit(|manifest| {
        manifest.format = 99;
        manifest.latpath = "7.0.0".into();
    });
    let out = bench.latpath(&["report", "run"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("format 99 is newer than this latpath reads (1); use latpath 7.0.0 or later"));
}

#[test]
fn what_a_run_says_cannot_steer_a_terminal() {
    let bench = Bench::with_run();
    bench.edit(|manifest| {
        manifest.segments[0].name = "T\x1b[2Jhyp".into();
        manifest.points[0].point = "host/tx@a\x1b]0;x\x07".parse().unwrap();
    });
    for command in ["segments", "report", "explain"] {
        let out = bench.latpath(&[command, "run"]);
        let all = stdout(&out) + &stderr(&out);
        assert!(!all.chars().any(|c| c.is_control() && c != '\n'), "{command}: {all:?}");
    }
    bench.edit(|manifest| {
        manifest.format = 99;
        manifest.latpath = "7\x1b[2J".into();
    });
    let out = bench.latpath(&["segments", "run"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("use latpath 7?[2J or later"), "{:?}", stderr(&out));
}

#[test]
fn a_manifest_cannot_make_a_report_take_all_memory() {
    let bench = Bench::with_run();
    bench.edit(|manifest| manifest.segments = vec![manifest.segments[0].clone(); 5000]);
    let report = bench.figures(&["--worst", "0"]);
    assert_eq!(report.segments.len(), 4096);
    assert_eq!(report.notes, ["904 of the run's 5000 segments are left out"]);
    bench.edit(|manifest| manifest.streams = vec![StreamSpec::svid("A"); 257]);
    let out = bench.latpath(&["report", "run"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("it names 257 streams, a run has 256 at most"), "{}", stderr(&out));
}

#[test]
fn an_empty_run_has_an_empty_report() {
    let bench = Bench::new();
    let nothing = latpath_run::Manifest { points: Vec::new(), route: Vec::new(), segments: Vec::new(), ..manifest() };
    Writer::create(&bench.run(), nothing).unwrap().finish().unwrap();
    let text = stdout(&bench.latpath(&["report", "run"]));
    assert!(text.contains("no point saw a packet") && text.contains("none: a segment needs two points"), "{text}");
    let report = bench.figures(&[]);
    assert_eq!((report.journeys, report.segments.len(), report.worst.len()), (0, 0, 0));
    assert_eq!(bench.latpath(&["report", "run", "--limit", "lost<=0"]).status.code(), Some(3), "nothing was measured");
    assert_eq!(stdout(&bench.latpath(&["report", "run", "--csv", "-"])).lines().count(), 1);
    assert_eq!(bench.latpath(&["segments", "run"]).status.code(), Some(0));
}

#[test]
fn a_cut_part_is_named_and_the_others_are_reported() {
    let bench = Bench::new();
    let writer = bench.recording();
    // The test uses a copy, since the writer merges its parts when it ends.
    let copy = Bench::new();
    copy_run(&bench, &copy);
    drop(writer);
    let parts = copy.parts();
    let victim = &parts[2];
    let whole = std::fs::read(victim).unwrap();
    std::fs::write(victim, &whole[..whole.len() / 2]).unwrap();
    let report = copy.figures(&[]);
    assert_eq!((parts.len(), report.journeys), (4, 150));
    let name = victim.file_name().unwrap().to_str().unwrap();
    assert_eq!(report.notes.iter().filter(|note| note.contains(name)).count(), 1, "{:?}", report.notes);
    let out = copy.latpath(&["report", "run", "--csv", "-"]);
    assert_eq!(stdout(&out).lines().count(), 150 + 1);
    assert!(stderr(&out).contains(name));
}

#[test]
fn bytes_that_a_disk_spoiled_are_named_not_believed() {
    let bench = Bench::with_run();
    let part = &bench.parts()[0];
    let mut bytes = std::fs::read(part).unwrap();
    let n = bytes.len();
    bytes[n / 4..n / 2].fill(0xff);
    std::fs::write(part, bytes).unwrap();
    let notes = bench.figures(&[]).notes;
    assert!(notes.iter().any(|note| note.contains("damaged")), "{notes:?}");
}

#[test]
fn a_recording_that_goes_on_is_reported_so_far() {
    let bench = Bench::new();
    let writer = bench.recording();
    let report = bench.report(&[]);
    assert_eq!((report.run.state.as_ref(), report.run.end), ("recording", None));
    assert_eq!(report.summary.journeys, 200);
    assert_eq!(report.summary.notes[0], "the recording is still running: these are its journeys so far");
    drop(writer);
}

/// Copies a run in the state after a crash: no process holds the copy's lock.
fn copy_run(from: &Bench, to: &Bench) {
    let journeys = to.run().join(latpath_run::JOURNEYS);
    std::fs::create_dir_all(&journeys).unwrap();
    std::fs::copy(from.run().join(latpath_run::MANIFEST), to.run().join(latpath_run::MANIFEST)).unwrap();
    for part in from.parts() {
        std::fs::copy(&part, journeys.join(part.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_killed_recording_is_reported_with_a_way_found_from_its_journeys() {
    let (bench, killed) = (Bench::new(), Bench::new());
    let writer = bench.recording();
    copy_run(&bench, &killed);
    drop(writer);
    // Killed before the route was known, and a minute after the manifest was written.
    killed.edit(|manifest| {
        manifest.start.monotonic_ns = START - 65_000_000_000;
        manifest.written_ns = START - 60_000_000_000;
        manifest.route.clear();
        manifest.segments.clear();
    });
    let report = killed.report(&[]);
    assert_eq!(report.run.state, "killed");
    let report = report.summary;
    let note = "the recording was killed: the last seconds before that are missing; sightings, ";
    assert!(report.notes[0].starts_with(note), "{:?}", report.notes);
    assert_eq!((report.journeys, report.incomplete), (200, 2));
    let text = stdout(&killed.latpath(&["report", "run"]));
    assert!(
        text.contains(" UTC, 1:05 long") && text.contains("first 5 s"),
        "it is as long as its journeys show: {text}"
    );
    let total = segment(&report, "total");
    assert_eq!((total.from.as_str(), total.to.as_str()), (POINTS[0], POINTS[5]));
    assert_eq!(segment(&report, "Thyp").to, POINTS[4]);
    let places: Vec<_> = report.lost.iter().map(|l| (l.place.as_str(), l.count)).collect();
    assert_eq!(places, [(POINTS[4], 2), (POINTS[1], 2)]);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let bench = Bench::with_run();
    for args in [&["report", "run", "--csv", "-"][..], &["report", "run"], &["segments", "run"]] {
        let mut command = latpath(bench.dir.path());
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn clock_faults_are_shown_as_they_are() {
    let bench = Bench::new();
    let mut writer = Writer::create(&bench.run(), manifest()).unwrap();
    // The guest's clock is half a second behind.
    for p in packets().take(100) {
        let mut t = p.t;
        t[4..].iter_mut().for_each(|t| *t -= 500_000_000);
        let journey = latpath_journey::Journey {
            stream: p.stream,
            key: p.number as u32,
            number: p.number,
            seen: p.seen,
            t: &t,
            cpu: &[0; 6],
            tid: &[0; 6],
            ..latpath_journey::Journey::default()
        };
        writer.push(&journey).unwrap();
    }
    writer.finish().unwrap();
    let report = bench.figures(&[]);
    let (thyp, tsub) = (&segment(&report, "Thyp").times, &segment(&report, "Tsub").times);
    assert_eq!(thyp.negative, thyp.count);
    assert!(thyp.max_ns < -499_000_000);
    assert_eq!(tsub.negative, 0);
    let negative = |name: &str, most: &str| {
        format!("{name}: 98 of 98 times are negative, by up to {most} ms: a clock is wrong by more than its bound")
    };
    assert_eq!(report.notes, [negative("Thyp", "499.9"), negative("total", "499.8")]);
    let text = stdout(&bench.latpath(&["report", "run"]));
    assert_eq!(text.matches(&format!("! {}", negative("Thyp", "499.9"))).count(), 1, "{text}");
}

#[test]
fn times_shorter_than_their_error_bound_are_no_facts() {
    let bench = Bench::with_run();
    bench.edit(|manifest| manifest.machines[1].clock.error_bound_ns = 150_000);
    let report = bench.figures(&[]);
    let note = "Thyp: half of its times are below the error bound between its two clocks, 150.0 µs";
    assert_eq!(report.notes, [note]);
    assert_eq!(segment(&report, "Thyp").error_bound_ns, 150_000);
    let text = stdout(&bench.latpath(&["report", "run"]));
    assert!(text.contains("<150.0 µs") && text.contains(note), "{text}");
}

#[test]
fn sightings_that_latpath_lost_are_its_own_fault() {
    let bench = Bench::with_run();
    bench.edit(|manifest| manifest.counters.dropped = 72);
    let report = bench.figures(&[]);
    assert_eq!(report.tool.sightings_dropped, 72);
    let note =
        "latpath lost 0.72 % of its own sightings in full buffers: losses and incomplete journeys may be its own";
    assert_eq!(report.notes, [note]);
    assert_eq!(bench.latpath(&["report", "run", "--limit", "sightings_dropped<=0"]).status.code(), Some(3));
}

#[test]
fn a_machine_whose_clock_was_not_recorded_is_named() {
    let bench = Bench::with_run();
    bench.edit(|manifest| manifest.machines.clear());
    let note = "guest0: its clock is not known; times between it and other machines have no bound";
    assert_eq!(bench.figures(&[]).notes, [note]);
}

#[test]
fn a_run_whose_manifest_forgot_streams_says_what_is_left_out() {
    let bench = Bench::with_run();
    bench.edit(|manifest| manifest.streams.truncate(1));
    let report = bench.figures(&[]);
    assert_eq!(report.journeys, 1000);
    assert_eq!(report.notes, ["1000 journeys of streams that the manifest does not name are left out"]);
}

#[test]
fn points_that_only_journeys_know_are_points_all_the_same() {
    let bench = Bench::with_run();
    bench.edit(|manifest| {
        manifest.points.truncate(5);
        manifest.route.clear();
        manifest.segments.clear();
    });
    let report = bench.figures(&[]);
    assert_eq!(segment(&report, "total").to, POINTS[5]);
    assert!(report.notes[0].starts_with(POINTS[5]), "{:?}", report.notes);
}
