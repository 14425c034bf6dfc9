//! A row per segment.

use crate::page::Page;
use latpath_analysis::{is_within, time_figure};
use latpath_model::SegmentKind;
use latpath_stats::text::{date_time, short_stream, Table};
use latpath_stats::units::share;
use latpath_stats::{PacketAt, Percentile, SegmentFigures, Summary};

/// Writes two tables: ends and counts, and times.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    page.heading("Segments");
    if summary.segments.is_empty() {
        page.line("  none: a segment needs two points");
        return;
    }
    let bound = format!("{}bound", page.letters.plus_minus());
    let over = over(page, summary);
    let mut table = Table::new(&["<segment", "<", "<from", "<to", "count", "rate/s", &over, "negative", &bound]);
    for s in &summary.segments {
        table.row(vec![
            short_name(page, s),
            numbers(page, summary, s),
            page.clean(&s.from),
            page.clean(&s.to),
            page.count(s.times.count),
            page.rate(s.rate_hz),
            page.count(s.over_threshold),
            page.count(s.times.negative),
            bound_text(page, summary, s),
        ]);
    }
    page.table(&table);
    in_band(page, summary);
    page.line("");
    let heads = ["<segment", "<", "min", "mean", "stddev", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let mut table = Table::new(&heads);
    let mut hidden = false;
    for s in &summary.segments {
        let names = [short_name(page, s), numbers(page, summary, s)];
        table.row(names.into_iter().chain(times(page, s, &heads[2..], &mut hidden)).collect());
    }
    page.table(&table);
    explain_bounds(page, hidden);
}

/// The segments other than steps, or all segments if there are only steps.
pub(crate) fn most_telling(summary: &Summary) -> Vec<&SegmentFigures> {
    let classic: Vec<_> = summary.segments.iter().filter(|s| s.kind != SegmentKind::Step).collect();
    if classic.is_empty() {
        summary.segments.iter().collect()
    } else {
        classic
    }
}

/// Writes the tables of a document, which are wide enough for all percentiles, and the packets with the minimum and
/// maximum times.
pub(crate) fn document(page: &mut Page, summary: &Summary) {
    page.heading("Segments");
    if summary.segments.is_empty() {
        page.line("none: a segment needs two points");
        return;
    }
    let (bound, over) = (format!("{}bound", page.letters.plus_minus()), over(page, summary));
    let mut table =
        Table::new(&["<segment", "<from", "<to", "count", "rate/s", &over, "of all", "negative", "of all", &bound]);
    for s in &summary.segments {
        let count = s.times.count;
        table.row(vec![
            label(page, summary, s),
            page.clean(&s.from),
            page.clean(&s.to),
            page.count(count),
            page.rate(s.rate_hz),
            page.count(s.over_threshold),
            share(s.over_threshold, count),
            page.count(s.times.negative),
            share(s.times.negative, count),
            bound_text(page, summary, s),
        ]);
    }
    page.table(&table);
    in_band(page, summary);
    let mut table = Table::new(&[&["<segment"], &TIMES[..]].concat());
    let mut hidden = false;
    for s in &summary.segments {
        let times = times(page, s, &TIMES, &mut hidden);
        table.row([label(page, summary, s)].into_iter().chain(times).collect());
    }
    page.table(&table);
    explain_bounds(page, hidden);
    let mut table = Table::new(&["<segment", "min", "<packet", "<when (UTC)", "max", "<packet", "<when (UTC)"]);
    for s in &summary.segments {
        let (Some(least), Some(most)) = (&s.min_at, &s.max_at) else { continue };
        let packet = |p: &PacketAt| {
            let name = page.clean(&short_stream(&p.stream));
            [format!("{name}, key {}, number {}", p.key, p.number), date_time(p.time_ns)]
        };
        let (min, max) = (page.time(s, s.times.min_ns), page.time(s, s.times.max_ns));
        let cells = [label(page, summary, s), min].into_iter().chain(packet(least)).chain([max]).chain(packet(most));
        table.row(cells.collect());
    }
    if !table.rows().is_empty() {
        page.table(&table);
    }
}

/// Headings of the time columns.
const TIMES: [&str; 12] =
    ["min", "mean", "stddev", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "p99.999", "p99.9999", "max"];

/// Formats a percentile, given by name; `-` if too few packets are beyond it.
pub(crate) fn percentile(page: &Page, s: &SegmentFigures, name: &str) -> String {
    let known = Percentile::named(name).and_then(|p| s.times.percentile(p));
    known.map_or("-".into(), |time| page.time(s, time))
}

/// Formats the times of a row in the columns with these headings. Sets `hidden` if a time is shorter than its error
/// bound.
fn times(page: &Page, s: &SegmentFigures, heads: &[&str], hidden: &mut bool) -> Vec<String> {
    let time = |head: &&str| {
        let is_known = Percentile::named(head).is_none_or(|p| s.times.percentile(p).is_some());
        let Some(time) = time_figure(head).filter(|_| is_known).map(|figure| figure(&s.times)) else {
            return "-".into();
        };
        // The standard deviation is independent of the offset between the clocks.
        let is_exact = *head == "stddev" && s.times.count > 0;
        *hidden |= !is_exact && s.times.count > 0 && is_within(time, s.error_bound_ns);
        if is_exact {
            page.duration(time)
        } else {
            page.time(s, time)
        }
    };
    TIMES.iter().filter(|head| heads.contains(head)).map(time).collect()
}

/// Writes the number of times in the requested band.
fn in_band(page: &mut Page, summary: &Summary) {
    let Some(band) = summary.band else { return };
    let head = format!("{} to {}", page.duration(band.from_ns), page.duration(band.to_ns));
    let mut table = Table::new(&["<segment", &head, "of all"]);
    for s in &summary.segments {
        let count = s.in_band.unwrap_or(0);
        table.row(vec![label(page, summary, s), page.count(count), share(count, s.times.count)]);
    }
    page.line("");
    page.table(&table);
}

fn over(page: &Page, summary: &Summary) -> String {
    format!("over {}", page.duration(summary.threshold_ns))
}

fn explain_bounds(page: &mut Page, hidden: bool) {
    if hidden {
        let text = "the time is shorter than the error bound between its two clocks, which is shown in its place";
        page.wrapped("  < ".into(), 4, text);
    }
}

/// Label of a segment: `Thyp 1→4`, `1→2`; its full name if it has neither a short name nor numbers.
pub(crate) fn label(page: &Page, summary: &Summary, segment: &SegmentFigures) -> String {
    match (short_name(page, segment), numbers(page, summary, segment)) {
        (name, numbers) if name.is_empty() && numbers.is_empty() => page.clean(&segment.name),
        (name, numbers) => format!("{name} {numbers}").trim().into(),
    }
}

/// Name of a segment; empty for a step between neighbours, which is named after its ends.
pub(crate) fn short_name(page: &Page, segment: &SegmentFigures) -> String {
    if segment.kind == SegmentKind::Step {
        String::new()
    } else {
        page.clean(&segment.name)
    }
}

/// Numbers of a segment's ends: `1→4`; empty if an end is off the route.
pub(crate) fn numbers(page: &Page, summary: &Summary, segment: &SegmentFigures) -> String {
    summary.numbers(segment, page.letters).unwrap_or_default()
}

/// Error bound of a segment's times, if both clocks are known.
fn bound_text(page: &Page, summary: &Summary, s: &SegmentFigures) -> String {
    match summary.is_bound_known(s) {
        true => page.duration(s.error_bound_ns),
        false => "not known".into(),
    }
}
