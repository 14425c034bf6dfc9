//! The report's text, and the lines of `latpath live` in a pipe.

mod figures;

use figures::{run, summary};
use latpath_analysis::Limit;
use latpath_report::{text, Lines, Options, Style, WIDTH};
use latpath_stats::{
    units::CharacterSet, CauseFigures, Deficiency, DeficiencyKind, LateFigures, MachineFigures, ShownAfter, Summary,
};

use unicode_width::UnicodeWidthStr;

fn options(letters: CharacterSet) -> Options {
    Options { style: letters.into(), histograms: Vec::new(), covers: None, limits: Vec::new() }
}

#[test]
fn a_report_of_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let text = text(&summary(), Some(&run), &options(CharacterSet::Unicode));
    insta::assert_snapshot!(text.replace(&directory.path().display().to_string(), "RUN"));
}

#[test]
fn a_report_in_ascii_has_only_ascii() {
    let text = text(&summary(), None, &options(CharacterSet::Ascii));
    assert!(text.is_ascii());
    insta::assert_snapshot!(text);
}

#[test]
fn a_report_of_nothing_says_so() {
    insta::assert_snapshot!(text(&Summary::default(), None, &options(CharacterSet::Unicode)));
}

#[test]
fn what_spoils_the_figures_is_marked() {
    let mut summary = summary();
    summary.tool.sightings_dropped = 77;
    summary.segments[0].times.negative = 5;
    summary.machines.push(MachineFigures {
        machine: "guest1".into(),
        method: "timed exchanges".into(),
        fault: Some("no answer for 2.1 s".into()),
        ..MachineFigures::default()
    });
    summary.worst.clear();
    summary.streams.truncate(1);
    insta::assert_snapshot!(text(&summary, None, &options(CharacterSet::Unicode)));
}

#[test]
fn what_weakens_a_verdict_is_not_repeated_among_the_notes_and_footnotes_carry_no_mark() {
    let lacking =
        Deficiency::new(DeficiencyKind::Fragments, "udp::5000: 7 of its packets passed nic-rx@eth0 in fragments");
    let mut summary = Summary { deficiencies: vec![lacking.clone()], ..summary() };
    summary.notes = vec![lacking.text.clone(), "another note".into()];
    summary.footnotes = vec!["kernel 6.18: function xdp_do_redirect is not there".into()];
    let limits: Vec<_> = ["lost<=1000"].iter().map(|l| l.parse::<Limit>().unwrap().check(&summary)).collect();
    let page = |limits| text(&summary, None, &Options { limits, ..options(CharacterSet::Unicode) });
    for limits in [limits, Vec::new()] {
        let is_judged = !limits.is_empty();
        let page = page(limits);
        assert_eq!(page.matches("7 of its packets passed").count(), 1, "{page}");
        assert_eq!(page.contains("in what weakens the verdict"), is_judged, "{page}");
        assert!(page.contains("! another note") && page.contains("Footnotes\n  kernel 6.18"), "{page}");
    }
}

/// Returns the report's note on negative times of `Tsub`: 90 packets, up to 4 µs.
fn words_of_negative_times(fault: Option<&str>, from: &str, to: &str) -> String {
    let mut summary = summary();
    summary.machines[0].fault = fault.map(Into::into);
    let tsub = &mut summary.segments[1];
    (tsub.from, tsub.to, tsub.times.negative, tsub.times.min_ns) = (from.into(), to.into(), 90, -4_000);
    let text = text(&summary, None, &options(CharacterSet::Unicode));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.starts_with("! Tsub:")).unwrap();
    let rest = lines[at + 1..].iter().take_while(|line| !line.is_empty() && !line.starts_with('!'));
    rest.fold(lines[at].to_owned(), |all, line| all + " " + line).replace('\u{202f}', " ")
}

#[test]
fn one_machines_clock_is_not_blamed_for_points_passed_in_another_order() {
    let (tx, rx) = ("host/tx@veth0", "host/nic-rx@veth1");
    assert_eq!(
        words_of_negative_times(None, tx, rx),
        format!("! Tsub: 90 of 239 987 times are negative, by up to 4.000 µs: {rx} was passed before {tx}")
    );
    let (nic, app) = ("guest0/nic-rx@eth1", "guest0/app-read@relay");
    let words = words_of_negative_times(Some("it was set back"), nic, app);
    let jumped = format!("by up to 4.000 µs: the clock of guest0 jumped, or {app} was passed before {nic}");
    assert!(words.ends_with(&jumped), "{words}");
    let words = words_of_negative_times(None, tx, app);
    assert!(words.ends_with("by up to 4.000 µs: a clock is wrong by more than its bound"), "{words}");
}

#[test]
fn lines_of_a_live_view() {
    let mut lines = Lines::new(CharacterSet::Unicode);
    insta::assert_snapshot!(lines.block(&summary()));
    assert!(!lines.block(&summary()).contains("BTF"), "a note is printed once");
}

/// Whether a line of a block concerns late packets.
fn lines_are_of_late_packets(line: &str) -> bool {
    ["late ", "by c", "cause ", "latest ", "! "]
        .iter()
        .any(|begin| line.trim_start_matches("0:07").trim_start().starts_with(begin))
}

#[test]
fn lines_of_a_live_view_name_who_held_late_packets() {
    let cause = |cause: &str, who: &str, first, excess_ns, share_percent| CauseFigures {
        cause: cause.into(),
        machine: "host".into(),
        cpus: vec![4],
        segment: "Thyp".into(),
        description: who.into(),
        first,
        excess_ns,
        median_ns: 14_000_000,
        share_percent,
    };
    let causes = vec![
        cause("waiting-for-cpu", "vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)", 41, 598_200_000, 92.013),
        cause("upcall", "handler12", 2, 50_000_000, 7.692),
        CauseFigures { machine: String::new(), cpus: vec![], ..cause("unexplained", "", 0, 2_000_000, 0.307) },
    ];
    let latest = Some("MU01:1072@01:08:48.859964  14.20 ms in Thyp: vhost of guest7 ready but not running".into());
    let late = LateFigures {
        late: 43,
        explained: 43,
        excess_ns: 650_200_000,
        skipped: 1,
        causes,
        latest,
        shown_after: Some(ShownAfter {
            spikes: 4,
            latest_ns: 210_000_000,
            median_ns: 190_400_000,
            worst_ns: 640_000_000,
        }),
        ..LateFigures::default()
    };
    let mut lines = Lines::new(CharacterSet::Unicode);
    let summary = Summary { elapsed_ns: 7_000_000_000, late: Some(late), ..Summary::default() };
    insta::assert_snapshot!(lines.block(&summary));
    assert!(!lines.block(&summary).contains("latest"), "a packet is reported once");
    let between = Lines::new(CharacterSet::Unicode).late_block(&summary);
    let (of_late, others): (Vec<_>, Vec<_>) = between.lines().partition(|line| lines_are_of_late_packets(line));
    assert!(!of_late.is_empty() && others.is_empty(), "between two blocks only late packets are reported: {others:?}");
}

#[test]
fn it_is_reported_that_latpath_itself_makes_packets_late() {
    let cause = CauseFigures {
        cause: "waiting-for-cpu".into(),
        description: "relay behind lp-flight".into(),
        ..Default::default()
    };
    let of = |latpath_percent| {
        let late =
            LateFigures { late: 4, explained: 4, causes: vec![cause.clone()], latpath_percent, ..Default::default() };
        let summary = Summary { late: Some(late), ..summary() };
        let page = text(&summary, None, &options(CharacterSet::Ascii));
        (page.split_whitespace().collect::<Vec<_>>().join(" "), summary)
    };
    let warning =
        "latpath itself took 23.4 % of the delay, in threads of its own (latpath, latpath-*, lp-*): without latpath \
        these packets would have been less late. To disturb less, record with --no-flight";
    let (page, summary) = of(Some(23.4));
    assert!(page.contains(&format!("! {warning}")), "{page}");
    let mut lines = Lines::new(CharacterSet::Ascii);
    assert!(lines.block(&summary).contains(&format!("! {warning}")));
    assert!(!lines.block(&summary).contains("latpath itself"), "a warning is printed once");
    assert!(!of(None).0.contains("latpath itself"));
}

#[test]
fn no_line_is_wider_than_the_page() {
    let mut summary = summary();
    for segment in &mut summary.segments {
        segment.from = format!("host/nic-rx@{}", "x".repeat(60));
        segment.times.count = u64::MAX;
        segment.over_threshold = u64::MAX;
        segment.times.negative = 1_000_000;
        segment.error_bound_ns = 123_456;
        segment.rate_hz = 1e9;
    }
    for letters in [CharacterSet::Unicode, CharacterSet::Ascii] {
        for line in text(&summary, None, &options(letters)).lines() {
            assert!(line.width() <= WIDTH, "{} columns: {line}", line.width());
        }
        for columns in [40, 60, 100, 200] {
            let style = Style::of_terminal(letters, columns, false);
            for line in text(&summary, None, &Options { style, ..options(letters) }).lines() {
                assert!(line.width() <= columns, "{} columns: {line}", line.width());
            }
        }
    }
}

#[test]
fn what_must_not_be_overlooked_has_a_colour_where_there_are_colours() {
    let summary = latpath_stats::Summary { notes: vec!["beware".into()], ..summary() };
    let shown = |colour| {
        let style = Style::of_terminal(CharacterSet::Ascii, 100, colour);
        text(&summary, None, &Options { style, ..options(CharacterSet::Ascii) })
    };
    assert!(shown(true).contains("\x1b[33m  ! beware\x1b[0m\n") && !shown(false).contains('\x1b'));
}

#[test]
fn names_from_outside_cannot_steer_the_terminal() {
    let mut summary = summary();
    summary.streams[0].stream = "svid:\u{1b}[2JMU\u{202e}01".into();
    summary.worst[0].stream = "svid:\u{7}".into();
    summary.notes = vec!["\u{1b}]0;gotcha\u{7}".into()];
    summary.lost[0].place = "host/tx@\u{9b}31m".into();
    let text = text(&summary, None, &options(CharacterSet::Unicode));
    assert!(!text.chars().any(|c| c.is_control() && c != '\n') && !text.contains('\u{202e}'));
}

#[test]
fn worst_packets_that_one_thing_held_are_drawn_once() {
    let mut summary = summary();
    let first = summary.worst[0].clone();
    let waterfalls = |summary: &Summary| {
        let text = text(summary, None, &options(CharacterSet::Ascii));
        (text.matches("since first").count(), text)
    };
    summary.worst.truncate(1);
    summary.worst.push(latpath_stats::Worst { key: 7, time_ns: first.time_ns + 1, ..first.clone() });
    assert_eq!(waterfalls(&summary).0, 1);
    assert!(waterfalls(&summary).1.contains("1 more of them waited there at the same time"));
    summary.worst[1].time_ns = first.time_ns + first.total_ns;
    assert_eq!(waterfalls(&summary).0, 2, "one after the other");
}
