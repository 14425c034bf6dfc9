//! The text of `latpath compare`.

use crate::page::{Page, Style};
use crate::quality::footnotes;
use latpath_compare::comparison::{Amount, ComparedSettings, Group, Row, Segment, Unit};
use latpath_compare::sentence::{amount, by};
use latpath_compare::{Comparison, Study, Verdict};
use latpath_settings::SettingDifference;
use latpath_stats::text::{short_stream, Table};
use latpath_stats::units::elapsed;
use latpath_stats::units::share;
use latpath_stats::Band;

/// Maximum number of differing settings in the text; the HTML page and JSON contain all of them.
const MAX_SETTINGS: usize = 40;

/// Formats a comparison as text.
pub fn comparison_text(comparison: &Comparison, style: Style) -> String {
    let mut page = Page::new(style);
    write(&mut page, comparison, MAX_SETTINGS, |_, _| {});
    page.finish()
}

/// Writes a comparison with at most `most_settings` settings; calls `more` after each segment, with the segment's
/// index.
pub(super) fn write(page: &mut Page, comparison: &Comparison, most_settings: usize, more: impl Fn(&mut Page, usize)) {
    let (a, b) = heads(page, comparison);
    page.heading(&format!("{a} against {b}"));
    for why in &comparison.not_comparable {
        page.warning(&format!("not comparable: {why}"));
    }
    for text in &comparison.conclusion {
        page.wrapped("  ".into(), 4, &page.clean(text));
    }
    group(page, &comparison.a, "");
    group(page, &comparison.b, ", against which it is compared");
    for note in &comparison.notes {
        page.warning(note);
    }
    settings(page, comparison, most_settings);
    losses(page, comparison);
    for (at, one) in comparison.segments.iter().enumerate() {
        segment(page, comparison, one);
        more(page, at);
    }
    page.heading("How to read this");
    legend(page, comparison);
    footnotes(page, &comparison.footnotes);
}

fn group(page: &mut Page, group: &Group, more: &str) {
    let recordings = page.number_of(group.recordings.len() as u64, "recording");
    let name = page.clean(&group.name);
    page.heading(&format!("{name}: {recordings}{more}"));
    let mut table = Table::new(&["<recording", "long", "packets", "rate/s", "lost"]);
    for one in &group.recordings {
        table.row(vec![
            page.clean(&one.path),
            elapsed(one.elapsed_ns),
            page.count(one.packets),
            page.rate(one.rate_hz),
            one.lost.map_or("not known".into(), |n| page.count(n)),
        ]);
    }
    page.table(&table);
}

/// Writes the settings that differ; at most `most` of them.
fn settings(page: &mut Page, comparison: &Comparison, most: usize) {
    let ComparedSettings { a_recorded, b_recorded, differences } = &comparison.settings;
    if a_recorded + b_recorded == 0 {
        return;
    }
    page.heading("Settings that differ");
    for (group, recorded) in [(&comparison.a, a_recorded), (&comparison.b, b_recorded)] {
        let (name, all) = (page.clean(&group.name), group.recordings.len());
        if *recorded < all {
            page.warning(&format!("{recorded} of {all} recordings of {name} have the settings of their machines"));
        }
    }
    if differences.is_empty() {
        let compared =
            if *a_recorded > 0 && *b_recorded > 0 { "  none of those that were read" } else { "  not known" };
        return page.line(compared);
    }
    let (a, b) = heads(page, comparison);
    let mut table = Table::new(&["<setting", "<of", &format!("<{a}"), &format!("<{b}")]);
    for one in differences.iter().take(most) {
        table.row(setting(page, one).to_vec());
    }
    page.whole_table(&table);
    let more = differences.len().saturating_sub(most);
    if more > 0 {
        page.line(format!("  and {more} more: --json and --html have all"));
    }
}

/// A row of the settings table.
fn setting(page: &Page, one: &SettingDifference) -> [String; 4] {
    let name = match one.settings.as_slice() {
        [name] => name.clone(),
        names => format!("{} settings", names.len()),
    };
    let side = |values: &[String]| match (values, one.settings.len()) {
        ([], _) => "not read".into(),
        (_, 2..) => "read".into(),
        (values, _) => page.clean(&values.join(" or ")),
    };
    [page.clean(&name), page.clean(&one.place()), side(&one.a), side(&one.b)]
}

fn losses(page: &mut Page, comparison: &Comparison) {
    if comparison.losses.iter().all(|l| l.a_lost + l.b_lost == 0) {
        return;
    }
    page.heading("Lost packets");
    let (a, b) = heads(page, comparison);
    let mut table = Table::new(&["<stream", &a, "of all", &b, "of all", "difference", "95 % interval", "<"]);
    for loss in &comparison.losses {
        table.row(vec![
            loss.stream.as_ref().map_or("all".into(), |s| page.clean(&short_stream(s))),
            page.count(loss.a_lost),
            share(loss.a_lost, loss.a_packets),
            page.count(loss.b_lost),
            share(loss.b_lost, loss.b_packets),
            by(&loss.share).0.unwrap_or_default(),
            by(&loss.share).1.unwrap_or_default(),
            loss.share.verdict.text().into(),
        ]);
    }
    page.table(&table);
    let some = comparison.losses.iter().filter(|l| l.a_lost + l.b_lost > 0);
    let rows: Vec<&Row> = some.flat_map(|l| [&l.share, &l.row]).collect();
    sentences(page, &rows);
}

fn heads(page: &Page, comparison: &Comparison) -> (String, String) {
    // `<` at the start of a heading marks a text column.
    let head = |name: &str| page.clean(name).trim_start_matches('<').to_owned();
    (head(&comparison.a.name), head(&comparison.b.name))
}

/// A segment's label: `total`, or `total of MU01`.
pub(super) fn label(page: &Page, segment: &Segment) -> String {
    let of = segment.stream.as_ref().map_or(String::new(), |s| format!(" of {}", short_stream(s)));
    page.clean(&format!("{}{of}", segment.name))
}

fn segment(page: &mut Page, comparison: &Comparison, segment: &Segment) {
    let name = label(page, segment);
    page.heading(&name);
    let (in_a, in_b) = ((&segment.from, &segment.to), (&segment.b_from, &segment.b_to));
    let arrow = page.letters.arrow();
    for (name, (from, to)) in [(&comparison.a.name, in_a), (&comparison.b.name, in_b)] {
        let name = if in_a == in_b { String::new() } else { format!("{}: ", page.clean(name)) };
        page.wrapped("  ".into(), 4, &page.clean(&format!("{name}{from} {arrow} {to}")));
        if in_a == in_b {
            break;
        }
    }
    let (a, b) = heads(page, comparison);
    let mut table = Table::new(&["<", &a, &b, "difference", "95 % interval", "p", "corrected", "<"]);
    for row in &segment.rows {
        let value = |side| match (side, row.verdict) {
            (None, Verdict::TooFew) => "too few".into(),
            (None, _) => "-".into(),
            (Some(Amount::Rate(percent)), _) if row.unit == Unit::Percent => share_of(percent),
            (Some(value), _) => page.clean(&amount(value, row.unit)),
        };
        let (by, interval) = by(row);
        let cell = |text: Option<String>| text.map_or(String::new(), |text| page.clean(&text));
        table.row(vec![
            match row.figure.as_ref() {
                "over" => format!("over {}", page.duration(comparison.threshold_ns)),
                "in_band" => comparison.band.map_or(String::new(), |band| format!("in {}", in_words(page, band))),
                figure => figure.into(),
            },
            value(row.a),
            value(row.b),
            cell(by),
            cell(interval),
            cell(row.p.map(probability)),
            cell(row.p_corrected.map(probability)),
            row.verdict.text().into(),
        ]);
    }
    page.table(&table);
    let rows: Vec<&Row> = segment.rows.iter().filter(|row| row.verdict != Verdict::TooFew).collect();
    sentences(page, &rows);
}

/// Writes a sentence for each tested row; consecutive rows that cannot be compared for the same reason share one.
fn sentences(page: &mut Page, rows: &[&Row]) {
    let mut last = None;
    // Recordings that are too short are mentioned once, in the conclusion.
    for row in rows.iter().filter(|row| !row.sentence.is_empty() && row.verdict != Verdict::TooShort) {
        // Consecutive rows with the same reason share a sentence.
        if row.obstacle.is_none() || row.obstacle != last {
            let text = page.clean(&row.sentence);
            page.wrapped("  ".into(), 4, &text);
        }
        last.clone_from(&row.obstacle);
    }
}

/// Formats a share: `95.90 %`; 0 % and 100 % only if exact.
fn share_of(percent: f64) -> String {
    let all = 100_000_000.0;
    let n = match percent {
        100.0.. => all,
        p if p > 0.0 => (p * all / 100.0).round().clamp(1.0, all - 1.0),
        _ => 0.0,
    };
    share(n as u64, all as u64)
}

fn in_words(page: &Page, band: Band) -> String {
    format!("{} to {}", page.duration(band.from_ns), page.duration(band.to_ns))
}

fn probability(p: f64) -> String {
    match p {
        p if p < 0.0001 => "<0.0001".into(),
        p if p < 0.0995 => format!("{p:.4}"),
        p => format!("{p:.2}"),
    }
}

fn legend(page: &mut Page, comparison: &Comparison) {
    let (a, b) = heads(page, comparison);
    let mut lines = vec![format!(
        "Tested: {}. Each has a probability p to differ so much by chance; the corrected one counts, so that on a page \
         without any true difference none is named in 95 % of cases (Holm).",
        page.number_of(comparison.tested as u64, "figure")
    )];
    if comparison.is_single {
        let less = match (comparison.a.recordings.len(), comparison.b.recordings.len()) {
            (1, 1) => "There is one recording on each side".into(),
            (1, _) => format!("There is only one recording of {a}"),
            _ => format!("There is only one recording of {b}"),
        };
        lines.push(format!(
            "{less}: whether {a} or {b} is faster cannot be said, only whether these recordings differ. Two recordings of the same \
             differ too. Record each five times or more."
        ));
    }
    let fewest = comparison.a.recordings.len().min(comparison.b.recordings.len());
    if (2..5).contains(&fewest) {
        lines.push(format!(
            "With {fewest} recordings on a side only large differences show. Record each five times or more."
        ));
    }
    lines.push("min, stddev, p90, p95, p99.99 and beyond, max and counts are shown, not tested.".into());
    for line in lines {
        page.wrapped("  ".into(), 2, &page.clean(&line));
    }
}

/// Formats a study as text: many groups in one table.
pub fn study_text(study: &Study, style: Style) -> String {
    let mut page = Page::new(style);
    write_study(&mut page, study);
    page.finish()
}

pub(super) fn write_study(page: &mut Page, study: &Study) {
    let segment = page.clean(&study.segment);
    page.heading(&format!("Times of {segment}"));
    let over = format!("over {}", page.duration(study.threshold_ns));
    let has_loads = study.rows.iter().any(|row| !row.load.is_empty());
    let mut heads = vec!["<configuration"];
    heads.extend(has_loads.then_some("<load"));
    heads.extend(["runs", "packets", "mean", "stddev", "p99", "max", &over]);
    let in_band = study.band.map(|band| in_words(page, band));
    heads.extend(in_band.as_deref());
    heads.extend(["spikes", "lost", "means of the runs"]);
    let mut table = Table::new(&heads);
    for row in &study.rows {
        let mut cells = vec![page.clean(&row.configuration)];
        cells.extend(has_loads.then(|| page.clean(&row.load)));
        let times = &row.times;
        cells.extend([row.recordings.to_string(), page.count(row.packets)]);
        let all = [times.mean_ns, times.stddev_ns, times.p99_ns, times.max_ns];
        cells.extend(all.map(|ns| if times.count == 0 { "-".into() } else { page.duration(ns) }));
        cells.push(page.count(row.over_threshold));
        cells.extend(study.band.map(|_| share(row.in_band.unwrap_or(0), times.count)));
        cells.push(row.spikes.map_or("-".into(), |n| page.count(n as u64)));
        cells.push(row.lost.map_or("not known".into(), |n| page.count(n)));
        cells.push(match row.recordings {
            0 | 1 => String::new(),
            _ => format!("{} to {}", page.duration(row.mean_from_ns), page.duration(row.mean_to_ns)),
        });
        table.row(cells);
    }
    page.table(&table);
    for note in &study.notes {
        page.warning(note);
    }
    footnotes(page, &study.footnotes);
}
