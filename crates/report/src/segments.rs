//! A row per segment.

use crate::page::{is_within, Page};
use latpath_model::SegmentKind;
use latpath_stats::text::Table;
use latpath_stats::{SegmentFigures, Summary};

/// Both tables: how many and where, and how long.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    page.heading("Segments");
    if summary.segments.is_empty() {
        page.line("  none: a segment needs two points");
        return;
    }
    let bound = format!("{}bound", page.letters.plus_minus());
    let over = format!("over {}", page.duration(summary.threshold_ns));
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
            page.duration(s.error_bound_ns),
        ]);
    }
    page.table(&table);
    page.line("");
    let heads = ["<segment", "<", "min", "mean", "stddev", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let mut table = Table::new(&heads);
    let mut hidden = false;
    for s in &summary.segments {
        let mut row = vec![short_name(page, s), numbers(page, summary, s)];
        let times = [
            s.times.min_ns,
            s.times.mean_ns,
            s.times.stddev_ns,
            s.times.p50_ns,
            s.times.p90_ns,
            s.times.p99_ns,
            s.times.p99_9_ns,
            s.times.p99_99_ns,
            s.times.max_ns,
        ];
        for (i, time) in times.into_iter().enumerate() {
            // The deviation does not suffer from a wrong offset between two clocks.
            let within = i != 2 && is_within(time, s.error_bound_ns);
            hidden |= within && s.times.count > 0;
            row.push(if i == 2 && s.times.count > 0 { page.duration(time) } else { page.time(s, time) });
        }
        table.row(row);
    }
    page.table(&table);
    if hidden {
        let text = "the time is shorter than the error bound between its two clocks, which is shown in its place";
        page.wrapped("  < ".into(), 4, text);
    }
}

/// A segment's name; none for neighbours, which are named by their ends anyway.
pub(crate) fn short_name(page: &Page, segment: &SegmentFigures) -> String {
    if segment.kind == SegmentKind::Step {
        String::new()
    } else {
        page.clean(&segment.name)
    }
}

/// A segment by the numbers of its ends; nothing where one is off the route.
pub(crate) fn numbers(page: &Page, summary: &Summary, segment: &SegmentFigures) -> String {
    summary.numbers(segment, page.letters).unwrap_or_default()
}
