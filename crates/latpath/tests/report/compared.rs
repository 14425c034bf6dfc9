//! `latpath compare` on runs with known journeys.

use crate::documents::row;
use crate::runs::{manifest, segment, stderr, stdout, Bench, START};
use latpath_compare::comparison::{Amount, Comparison, Row, Verdict};
use latpath_compare::{Excluded, Study};
use latpath_journey::Journey;
use latpath_model::Ns;
use latpath_run::{Manifest, Writer};
use latpath_stats::{units::duration, PatternKind, SegmentFigures, Summary};

/// Number of packets in a run: 20 s at 200/s of one stream.
const PACKETS: u64 = 4000;

/// Properties of a run.
#[derive(Clone, Copy)]
struct RunProperties {
    /// Seed of its noise.
    seed: u64,
    /// The VM's time, as a percentage of the other runs'.
    vm: Ns,
    /// Packets per second.
    rate: Ns,
    packets: u64,
    /// The application reads nothing between packets 2100 and 2140.
    is_held: bool,
}

const BASE: RunProperties = RunProperties { seed: 0, vm: 100, rate: 200, packets: PACKETS, is_held: false };

impl RunProperties {
    fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    fn write(self, bench: &Bench, name: &str) {
        self.write_with(bench, name, |_| {});
    }

    fn write_with(self, bench: &Bench, name: &str, change: impl FnOnce(&mut Manifest)) {
        let mut manifest = manifest();
        manifest.streams.truncate(1);
        manifest.joined.truncate(1);
        manifest.start.monotonic_ns = START + self.seed as Ns;
        change(&mut manifest);
        let mut writer = Writer::create(&bench.dir.path().join(name), manifest).unwrap();
        let mut state = self.seed + 1;
        for number in 0..self.packets {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = (state >> 44) as Ns / 64;
            let begin = START + number as Ns * 1_000_000_000 / self.rate;
            let in_vm = begin + 40_000 + (self.seed % 7) as Ns * 20 + (60_000 + noise) * self.vm / 100;
            let late = if number % 400 == 399 { 2_000_000 } else { 0 };
            let mut read = in_vm + late + 30_000 + noise / 2;
            if self.is_held && (2100..2140).contains(&number) {
                read = START + 2140 * 1_000_000_000 / self.rate + (number as Ns - 2100) * 2000;
            }
            let t = [begin, begin + 8_000, 0, begin + 40_000, in_vm + late, read];
            let journey = Journey {
                stream: 0,
                key: (number % 4000) as u32,
                number,
                seen: 0b11_1011,
                t: &t,
                cpu: &[2, 2, 2, 3, 0, 1],
                tid: &[0, 0, 0, 4711, 0, 815],
                ..Journey::default()
            };
            writer.push(&journey).unwrap();
        }
        writer.finish().unwrap();
    }
}

/// Two groups of equal runs: `a1` to `a5` and `b1` to `b5`. In group A the VM takes `vm` % of the time.
fn groups(vm: Ns) -> Bench {
    let bench = Bench::new();
    for seed in 1..=5 {
        RunProperties { vm, ..BASE }.seed(seed).write(&bench, &format!("a{seed}"));
        BASE.seed(10 + seed).write(&bench, &format!("b{seed}"));
    }
    bench
}

const FIVE: [&str; 4] = ["compare", "new=a1,a2,a3,a4,a5", "--against", "old=b1,b2,b3,b4,b5"];

fn compared(bench: &Bench, args: &[&str]) -> Comparison {
    bench.json(args)
}

/// The row of a figure of a segment.
fn row_of<'a>(page: &'a Comparison, segment: &str, figure: &str) -> &'a Row {
    let segment = page.segments.iter().find(|s| s.name == segment).unwrap();
    segment.rows.iter().find(|row| row.figure == figure).unwrap()
}

/// The verdict on a figure of a segment.
fn verdict(page: &Comparison, segment: &str, figure: &str) -> Verdict {
    row_of(page, segment, figure).verdict
}

#[test]
fn a_segment_that_became_slower_is_named_and_no_other() {
    let bench = groups(110);
    let page = compared(&bench, &FIVE);
    for figure in ["mean", "p50", "p99"] {
        assert_eq!(verdict(&page, "Thyp", figure), Verdict::Slower);
        assert_eq!(verdict(&page, "Tsub", figure), Verdict::NoDifference);
    }
    assert_eq!(verdict(&page, "Thyp", "p99.9"), Verdict::TooFew);
    assert_eq!(verdict(&page, "Thyp", "spikes"), Verdict::NoDifference);
    let text = stdout(&bench.latpath(&FIVE));
    assert!(text.contains("p50 of Thyp: new is slower than old: "), "{text}");
    assert_eq!(bench.latpath(&FIVE).stdout, bench.latpath(&FIVE).stdout);

    let tested = page.tested;
    let slower = "mean of Thyp, p50 of Thyp, p99 of Thyp, mean of total, p50 of total, p99 of total";
    let conclusion = format!("of {tested} tested 6 are slower: {slower}");
    assert_eq!(page.conclusion[0], conclusion);
    assert!(text.starts_with("new against old\n  of "), "{text}");

    let limit = |limit: &str| bench.latpath(&[&FIVE[..], &["--limit", limit]].concat());
    assert_eq!(limit("Thyp:p50<=+20%").status.code(), Some(0));
    let broken = limit("Thyp:p50<=+5%");
    assert_eq!(broken.status.code(), Some(3));
    assert!(stderr(&broken).contains("limit Thyp:p50<=+5% broken: p50 of Thyp: new is slower"), "{}", stderr(&broken));
    let open = limit("Thyp:p99.9<=+5%");
    assert_eq!(open.status.code(), Some(3));
    assert!(stderr(&open).contains("limit Thyp:p99.9<=+5% cannot be judged: "), "{}", stderr(&open));
    assert_eq!(limit("Tfoo:p50<=+5%").status.code(), Some(2));

    let fewer = compared(&bench, &[&FIVE[..], &["--only", "Thyp"]].concat());
    assert!(fewer.tested < page.tested);
}

#[test]
fn what_did_not_happen_is_shown_as_such() {
    let bench = groups(100);
    // 20 s of each recording; no packet exceeds this threshold.
    let page = compared(&bench, &[&FIVE[..], &["--threshold", "1s"]].concat());
    let segment = &page.segments[0].name;
    let spikes = row_of(&page, segment, "spikes");
    assert_eq!([spikes.a, spikes.b, spikes.difference].map(|amount| amount.map(Amount::value)), [Some(0.0); 3]);
    assert_eq!(verdict(&page, segment, "p95"), Verdict::NotTested);
}

#[test]
fn recordings_whose_clocks_nobody_knows_are_not_compared_across_machines() {
    let bench = Bench::new();
    let unknown = |manifest: &mut Manifest| manifest.machines.retain(|m| m.clock.machine == "host");
    BASE.seed(1).write_with(&bench, "a1", unknown);
    BASE.seed(2).write(&bench, "b1");
    let page = compared(&bench, &["compare", "a1", "--against", "b1"]);
    assert_eq!(verdict(&page, "Thyp", "mean"), Verdict::NotComparable);
    assert_eq!(page.segments[0].error_bound_ns, None);
    // Both ends of this segment are in the guest.
    assert_ne!(verdict(&page, "Tsub", "mean"), Verdict::NotComparable);
    let text = stdout(&bench.latpath(&["compare", "a1", "--against", "b1"]));
    assert!(text.contains("mean of Thyp: not comparable: how far the clocks were apart is not known"), "{text}");
}

#[test]
fn a_limit_without_a_sign_is_held_against_each_new_recording() {
    let bench = groups(100);
    let limit = |limits: &[&str]| bench.latpath(&[&FIVE[..], limits].concat());
    assert_eq!(limit(&["--limit", "total:max<=9ms", "--limit", "total:p50<=+20%"]).status.code(), Some(0));
    let broken = limit(&["--limit", "total:max<=1ms", "--limit", "consecutive(1ms)<=1"]);
    assert_eq!(broken.status.code(), Some(3));
    assert!(stderr(&broken).starts_with("latpath: limit a1: total:max<=1ms broken: 2."), "{}", stderr(&broken));
    assert_eq!(stderr(&broken).lines().count(), 5);
    assert_eq!(limit(&["--limit", "pacing:max<=1s"]).status.code(), Some(2));
    assert_eq!(limit(&["--limit", "Tfoo:max<=1s"]).status.code(), Some(3));
}

#[test]
fn packets_that_a_pattern_touches_are_left_out_where_that_is_asked_for() {
    let bench = Bench::new();
    for seed in 1..=5 {
        RunProperties { is_held: true, ..BASE }.seed(seed).write(&bench, &format!("a{seed}"));
        BASE.seed(10 + seed).write(&bench, &format!("b{seed}"));
    }
    let max = |page: &Comparison| row_of(page, "total", "max").a.unwrap().value();
    let whole = compared(&bench, &FIVE);
    let first = &whole.a.recordings[0];
    assert_eq!((&first.excluded, max(&whole) > 150_000_000.0), (&None, true));

    let without = compared(&bench, &[&FIVE[..], &["--exclude", "queue-release"]].concat());
    let (a, b) = (&without.a.recordings[0], &without.b.recordings[0]);
    let excluded = |patterns, packets| Some(Excluded { kinds: vec![PatternKind::QueueRelease], patterns, packets });
    assert_eq!((&a.excluded, &b.excluded), (&excluded(1, 40), &excluded(0, 0)));
    assert_eq!((a.packets, b.packets), (PACKETS - 40, PACKETS));
    assert_eq!((max(&without) < 5_000_000.0, a.rate_hz), (true, first.rate_hz));
    let text = stdout(&bench.latpath(&[&FIVE[..], &["--exclude", "all"]].concat()));
    assert!(text.contains("a1, a2 and 3 more: without queue-release, "), "{text}");
    assert_eq!(bench.latpath(&[&FIVE[..], &["--exclude", "bad"]].concat()).status.code(), Some(2));
}

#[test]
fn of_single_runs_no_more_is_said_than_that_they_differ() {
    let bench = groups(110);
    let page = compared(&bench, &["compare", "a1", "--against", "b1"]);
    assert_eq!(verdict(&page, "Thyp", "p50"), Verdict::Differ);
    let page = compared(&bench, &["compare", "a1", "a2", "a3", "--against", "b1"]);
    assert_eq!(verdict(&page, "Thyp", "p50"), Verdict::Differ);
    let page = compared(&bench, &["compare", "a1", "--against", "a1"]);
    assert_eq!(verdict(&page, "Thyp", "p50"), Verdict::NoDifference);
    assert!(page.notes.concat().contains("on both sides"), "{:?}", page.notes);
}

#[test]
fn a_difference_within_the_clocks_error_is_none() {
    let bench = Bench::new();
    for seed in 1..=3 {
        let wide = |m: &mut Manifest| m.machines[1].clock.error_bound_ns = 50_000;
        RunProperties { vm: 110, ..BASE }.seed(seed).write_with(&bench, &format!("a{seed}"), wide);
        BASE.seed(10 + seed).write(&bench, &format!("b{seed}"));
    }
    let args = ["compare", "a1", "a2", "a3", "--against", "b1", "b2", "b3"];
    assert_eq!(verdict(&compared(&bench, &args), "Thyp", "p50"), Verdict::NotComparable);
    assert!(stdout(&bench.latpath(&args)).contains("the clocks may be wrong by 51.87 µs"));
}

#[test]
fn what_was_loaded_otherwise_is_not_compared() {
    let bench = Bench::new();
    BASE.seed(1).write(&bench, "base");
    RunProperties { rate: 250, ..BASE }.seed(2).write(&bench, "faster");
    RunProperties { packets: 0, ..BASE }.seed(3).write(&bench, "empty");
    RunProperties { packets: 100, ..BASE }.seed(4).write(&bench, "short");
    BASE.seed(5).write_with(&bench, "other", |m| m.streams = vec!["svid:MU07".parse().unwrap()]);
    BASE.seed(6).write_with(&bench, "dropping", |m| m.tool.sightings_dropped = 500);
    for (run, why) in [
        ("faster", "unequal rates: A has 250.1 packets/s, B 200.1"),
        ("empty", "empty has no packet"),
        ("other", "other streams: other has svid:MU07, base has svid:MU01; choose common ones with --stream"),
    ] {
        let page = compared(&bench, &["compare", run, "--against", "base"]);
        assert!(page.not_comparable.concat().contains(why), "{:?}", page.not_comparable);
        let verdicts: Vec<Verdict> = page.segments.iter().flat_map(|s| &s.rows).map(|row| row.verdict).collect();
        let is_open = |v: &Verdict| matches!(v, Verdict::NotComparable | Verdict::NotTested | Verdict::TooFew);
        assert!(verdicts.iter().all(is_open), "{run}: {verdicts:?}");
    }
    let page = compared(&bench, &["compare", "short", "--against", "base"]);
    assert_eq!(verdict(&page, "Thyp", "p50"), Verdict::TooShort);
    let limit = bench.latpath(&["compare", "short", "--against", "base", "--limit", "Thyp:p50<=+900%"]);
    assert_eq!(limit.status.code(), Some(3));
    assert!(stderr(&limit).contains("too short"), "{}", stderr(&limit));
    assert!(row_of(&page, "Thyp", "p50").sentence.contains("too short to say"));
}

#[test]
fn the_threshold_is_the_greatest_of_all_recordings_whichever_is_named_first() {
    let bench = Bench::new();
    BASE.seed(1).write_with(&bench, "a", |m| m.threshold_ns = 300_000);
    BASE.seed(2).write_with(&bench, "b", |m| m.threshold_ns = 400_000);
    for [one, other] in [["a", "b"], ["b", "a"]] {
        assert_eq!(compared(&bench, &["compare", one, "--against", other]).threshold_ns, 400_000);
    }
}

#[test]
fn a_table_has_a_row_for_each_group() {
    let bench = groups(120);
    let args = ["compare", "ovs/idle=a1,a2", "bridge/idle=b1,b2,b3", "bridge/load=b4"];
    let table: Study = bench.json(&args);
    let rows: Vec<_> =
        table.rows.iter().map(|r| (r.configuration.as_str(), r.load.as_str(), r.recordings, r.packets)).collect();
    let rows_expected =
        [("ovs", "idle", 2, 2 * PACKETS), ("bridge", "idle", 3, 3 * PACKETS), ("bridge", "load", 1, PACKETS)];
    assert_eq!((rows, table.segment.as_str()), (rows_expected.to_vec(), "total"));
    assert!(stdout(&bench.latpath(&args)).contains("Times of total"));
}

#[test]
fn what_cannot_be_read_is_said() {
    let bench = groups(100);
    for (args, code, why) in [
        (vec!["compare", "none", "--against", "b1"], 1, "none"),
        (vec!["compare", "a1", "a1", "--against", "b1"], 2, "the same recording as a1"),
        (vec!["compare", "x=a1", "y=a2", "--against", "b1"], 2, "one side has one name"),
        (
            vec!["compare", "a1", "--against", "b1", "--only", "Tfoo"],
            2,
            "no segment \"Tfoo\" (there are: Thyp, Tsub, total)",
        ),
        (vec!["compare", "a1", "--against", "b1", "--stream", "MU09"], 2, "no such stream"),
        (vec!["compare", "a1", "--against", "b1", "--limit", "total"], 2, "not a limit"),
    ] {
        let out = bench.latpath(&args);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(why), "{args:?}: {}", stderr(&out));
    }
    let part = std::fs::read_dir(bench.dir.path().join("a1/journeys")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&part, b"no part").unwrap();
    let page = compared(&bench, &["compare", "a1", "--against", "b1"]);
    assert!(page.not_comparable.concat().contains("a1 has no packet"), "{:?}", page.not_comparable);
}

#[test]
fn the_page_of_a_comparison_has_its_figures_and_the_recordings_and_bears_hostile_names() {
    let bench = groups(110);
    let args = [&FIVE[..], &["--limit", "Thyp:p50<=+5%", "--html", "-"]].concat();
    let out = bench.latpath(&args);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    let html = stdout(&out);
    let page = compared(&bench, &FIVE);
    for segment in ["Thyp", "Tsub"] {
        let p50 = row_of(&page, segment, "p50");
        let values = [p50.a, p50.b].map(|side| duration(side.unwrap().value().round() as Ns));
        assert_eq!(row(&html, &["p50", &values[0], &values[1]]).len(), 8);
    }
    assert!(html.contains("A limit is broken"));
    let command = "cd a1 && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum";
    let digest = std::process::Command::new("sh").args(["-c", command]).current_dir(bench.dir.path()).output().unwrap();
    let digest = String::from_utf8(digest.stdout).unwrap();
    assert!(html.contains(digest.split(' ').next().unwrap()), "each recording is named by its content");
    assert_eq!(bench.latpath(&args).stdout, out.stdout, "the same bytes");

    let hostile = stdout(&bench.latpath(&["compare", "<script>x/y=a1", "b\u{1b}[2J=b1", "--html", "-"]));
    assert_eq!(row(&hostile, &["<script>x"])[1], "y");
    assert_eq!(hostile.matches("<script>").count(), 1, "the page's own");
    assert!(!hostile.contains('\u{1b}'));
}

#[test]
fn the_limits_of_a_comparison_become_tests_of_a_ci_server() {
    let bench = groups(110);
    let limits = ["--limit", "Thyp:p50<=+5%", "--limit", "Tsub:p50<=+5%", "--junit", "verdicts.xml"];
    let args = [&FIVE[..], &limits].concat();
    assert_eq!(bench.latpath(&args).status.code(), Some(3));
    let xml = std::fs::read_to_string(bench.dir.path().join("verdicts.xml")).unwrap();
    let document = roxmltree::Document::parse(&xml).unwrap();
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let is_failure = |node: roxmltree::Node| node.has_tag_name("failure");
    let found = cases.map(|case| (case.attribute("name").unwrap(), case.children().any(is_failure)));
    let found: Vec<_> = found.collect();
    assert_eq!(found, [("Thyp:p50<=+5%", true), ("Tsub:p50<=+5%", false)]);
    let again = bench.latpath(&args);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("verdicts.xml"), "{}", stderr(&again));
    let both = [&FIVE[..], &limits[..4], &["--junit", "-", "--html", "-"]].concat();
    assert_eq!(bench.latpath(&both).status.code(), Some(2));
}

#[test]
fn every_key_of_a_comparison_is_in_the_docs() {
    let bench = groups(100);
    let mut keys = std::collections::BTreeSet::new();
    for args in [&[&FIVE[..], &["--exclude", "all"]].concat()[..], &["compare", "x=a1", "y=b1"]] {
        crate::figures::all_keys(&bench.json(args), &mut keys);
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("## `latpath compare --json`").nth(1).unwrap();
    let missing: Vec<_> = keys.iter().filter(|key| !section.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "json.md lacks {missing:?}");
}

#[test]
fn the_share_within_a_band_stands_beside_the_other_figures_and_in_a_studys_table() {
    let bench = groups(100);
    let of_run = |run: &str| {
        let report: Summary = bench.json(&["report", run, "--band", "130us..150us"]);
        segment(&report, "total").clone()
    };
    let (a, b) = (of_run("a1"), of_run("b1"));
    let share = |figures: &SegmentFigures| figures.in_band.unwrap() as f64 * 100.0 / figures.times.count as f64;
    assert!((1.0..99.0).contains(&share(&a)), "{a:?}");
    let words = ["compare", "a1", "--against", "b1", "--band", "130us..150us"];
    let page = compared(&bench, &words);
    let row = row_of(&page, "total", "in_band");
    assert_eq!(row.verdict, Verdict::NotTested);
    assert!((row.a.unwrap().value() - share(&a)).abs() < 1e-9, "{row:?}");
    assert!((row.b.unwrap().value() - share(&b)).abs() < 1e-9, "{row:?}");
    let text = stdout(&bench.latpath(&words));
    assert!(text.contains("in 130.0 µs to 150.0 µs"), "{text}");
    let table = ["compare", "x=a1", "y=b1", "--band", "130us..150us"];
    let rows = bench.json::<Study>(&table).rows;
    assert_eq!([rows[0].in_band, rows[1].in_band], [a.in_band, b.in_band]);
    assert!(stdout(&bench.latpath(&table)).contains("130.0 µs to 150.0 µs"));
    assert_eq!(compared(&bench, &["compare", "a1", "--against", "b1"]).band, None);
}

#[test]
fn streams_of_two_sites_are_set_against_each_other_by_pairs() {
    let bench = Bench::new();
    BASE.seed(1).write(&bench, "here");
    BASE.seed(2).write_with(&bench, "there", |manifest| manifest.streams = vec!["svid:MU07".parse().unwrap()]);
    let compare = |more: &[&str]| bench.latpath(&[&["compare", "here", "--against", "there"], more].concat());
    let why = stdout(&compare(&[]));
    assert!(why.contains("not comparable"), "{why}");
    for more in [&["--pair", "MU01=MU07"][..], &["--pair", "MU01=MU07", "--by-stream"]] {
        let page = compared(&bench, &[&["compare", "here", "--against", "there"], more].concat());
        assert_eq!(page.not_comparable, [""; 0]);
        assert_eq!(verdict(&page, "Thyp", "p50"), Verdict::NoDifference);
    }
    for wrong in [&["--pair", "MU01"][..], &["--pair", "MU01=MU09"], &["--pair", "MU02=MU07"]] {
        assert_eq!(compare(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
