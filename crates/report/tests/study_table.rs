//! The table of a study as text, HTML and AsciiDoc.

use latpath_compare::StudyRow;
use latpath_report::{study_table_asciidoc, study_table_html, study_table_text, Style};
use latpath_stats::units::CharacterSet;
use latpath_stats::{Bucket, DelayShare, TimeFigures};
use latpath_study::{CellRow, FailedTrial, Point, RunSeries, StudyTable};

fn cell(topology: &str, load: &str, mean_ns: i64) -> CellRow {
    let times = TimeFigures { count: 1000, min_ns: 1_000, mean_ns, max_ns: 9 * mean_ns, ..TimeFigures::default() };
    let figures = StudyRow {
        configuration: topology.into(),
        load: load.into(),
        recordings: 2,
        packets: 1000,
        lost: Some(3),
        rate_hz: 500.0,
        times,
        mean_from_ns: mean_ns,
        mean_to_ns: mean_ns,
        over_threshold: 17,
        in_band: None,
        spikes: Some(4),
        histogram: vec![Bucket { from_ns: mean_ns, to_ns: mean_ns + 100, count: 1000 }],
    };
    CellRow {
        direction: "in".into(),
        topology: topology.into(),
        settings: "nominal".into(),
        load: load.into(),
        failed: 0,
        figures: Some(figures),
        between_runs_ns: Some(1_234),
        load_bits_per_second: (load == "udp").then_some(32e6),
        explained: 17,
        causes: vec![DelayShare { name: "waiting for its CPU".into(), excess_ns: 9, share_percent: 90.0 }],
        culprits: vec![DelayShare { name: "rustc <&>".into(), excess_ns: 9, share_percent: 90.0 }],
    }
}

fn table() -> StudyTable {
    let broken = CellRow { failed: 2, figures: None, explained: 0, causes: vec![], ..cell("ovs", "idle", 1) };
    StudyTable {
        name: "ways <of> all".into(),
        seed: 77,
        repetitions: 2,
        duration_ns: 60_000_000_000,
        warm_up_ns: 5_000_000_000,
        segment: "total".into(),
        threshold_ns: 200_000,
        band: None,
        trials: 7,
        complete: 4,
        failed: vec![FailedTrial {
            trial: "r1-in-ovs-nominal-idle".into(),
            reason: "up: no Open vSwitch | here".into(),
        }],
        cells: vec![cell("bridge", "idle", 20_000), cell("bridge", "udp", 90_000), broken],
        differences: Vec::new(),
        tested: 0,
        limits: Vec::new(),
        notes: vec!["a note".into()],
        footnotes: Vec::new(),
    }
}

fn series() -> Vec<Vec<RunSeries>> {
    let point = |max_ns| Some(Point { min_ns: 1_000, mean_ns: 20_000.0, max_ns });
    let run = |repetition| RunSeries { repetition, points: vec![point(50_000), None, point(7_000_000), point(30_000)] };
    vec![vec![run(1), run(2)], vec![run(1)], Vec::new()]
}

#[test]
fn the_text_has_what_differs_between_cells_and_what_failed() {
    let text = study_table_text(&table(), Style::from(CharacterSet::of_locale(Some("C.UTF-8"))));
    for words in [
        "Study ways <of> all",
        "4 of 7 complete, 2 repetitions of each cell",
        "seed 77",
        "2 trials still to be made: the table is not complete",
        "1 trial failed",
        "topology  load",
        "32.0 Mbit/s",
        "waiting for its CPU 90 %",
        "r1-in-ovs-nominal-idle",
        "no Open vSwitch | here",
        "With fewer than 5 repetitions",
    ] {
        assert!(text.contains(words), "{words:?} in\n{text}");
    }
    assert!(!text.contains("direction") && !text.contains("nominal  "), "all cells have one direction: {text}");
}

#[test]
fn the_page_is_well_formed_and_has_a_picture_of_each_cell_with_recordings() {
    let html = study_table_html(&table(), &series());
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let pictures = page.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg")));
    let labels: Vec<_> = pictures.filter_map(|svg| svg.attribute("aria-label")).collect();
    assert_eq!(labels.len(), 2, "{labels:?}");
    assert!(labels[0].starts_with("bridge, idle: ") && labels[1].starts_with("bridge, udp: "), "{labels:?}");
    assert!(html.contains("rustc &lt;&amp;&gt;") && !html.contains("rustc <&>"));
    assert_eq!(html, study_table_html(&table(), &series()), "the same study gives the same bytes");
}

#[test]
fn the_pictures_have_the_same_axes() {
    let (_, files) = study_table_asciidoc(&table(), &series(), "s");
    let axis = |svg: &str| -> Vec<String> {
        let svg = roxmltree::Document::parse(svg).unwrap();
        let texts = svg.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")));
        let names = texts.filter(|text| text.attribute("text-anchor") == Some("end"));
        names.map(|text| format!("{} {:?}", text.text().unwrap_or_default(), text.attribute("y"))).collect()
    };
    assert_eq!(axis(&files[0].1), axis(&files[1].1));
    assert!(axis(&files[0].1).len() >= 2);
}

#[test]
fn asciidoc_names_its_pictures() {
    let (text, files) = study_table_asciidoc(&table(), &series(), "my-study");
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["my-study-in-bridge-nominal-idle.svg", "my-study-in-bridge-nominal-udp.svg"]);
    assert!(names.iter().all(|name| text.contains(&format!("image::{name}["))), "{text}");
    assert!(text.starts_with("= ") && text.contains("== Times of total") && text.contains("|==="), "{text}");
    assert!(files.iter().all(|(_, svg)| roxmltree::Document::parse(svg).is_ok()));
}
