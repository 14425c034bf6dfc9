//! A row per segment.

use crate::page::{Page, Table};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::{SegmentFigures, Summary};
use std::collections::HashMap;

/// Both tables: how many and where, and how long.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    page.heading("Segments");
    if summary.segments.is_empty() {
        page.line("  none: a segment needs two points");
        return;
    }
    let numbers = Numbers::of(summary);
    let bound = format!("{}bound", page.plus_minus());
    let over = format!("over {}", page.duration(summary.threshold_ns));
    let mut table = Table::new(&["<segment", "<", "<from", "<to", "count", "rate/s", &over, "negative", &bound]);
    for s in &summary.segments {
        table.row(vec![
            short_name(page, s),
            numbers.of_segment(page, s),
            page.clean(&s.from),
            page.clean(&s.to),
            page.count(s.count),
            page.letters().rate(s.rate_hz),
            page.count(s.over_threshold),
            page.count(s.negative),
            page.duration(s.error_bound_ns),
        ]);
    }
    table.write(page);
    page.line("");
    let heads = ["<segment", "<", "min", "mean", "stddev", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let mut table = Table::new(&heads);
    let mut hidden = false;
    for s in &summary.segments {
        let mut row = vec![short_name(page, s), numbers.of_segment(page, s)];
        let times = [s.min_ns, s.mean_ns, s.stddev_ns, s.p50_ns, s.p90_ns, s.p99_ns, s.p99_9_ns, s.p99_99_ns, s.max_ns];
        for (i, time) in times.into_iter().enumerate() {
            // The deviation does not suffer from a wrong offset between two clocks.
            let within = i != 2 && is_within(time, s.error_bound_ns);
            hidden |= within && s.count > 0;
            row.push(match (s.count, within) {
                (0, _) => "-".into(),
                (_, true) => format!("<{}", page.duration(s.error_bound_ns)),
                (_, false) => page.duration(time),
            });
        }
        table.row(row);
    }
    table.write(page);
    if hidden {
        page.line("  < the time is shorter than the error bound between its two clocks, which is shown in its place");
    }
}

/// Whether a time says nothing, because the clocks may be that far apart.
pub(crate) fn is_within(time: Ns, bound: Ns) -> bool {
    bound > 0 && time.unsigned_abs() < bound.unsigned_abs()
}

/// A segment's name; none for neighbours, which are named by their ends anyway.
pub(crate) fn short_name(page: &Page, segment: &SegmentFigures) -> String {
    if segment.kind == SegmentKind::Step {
        String::new()
    } else {
        page.clean(&segment.name)
    }
}

/// The numbers of the path's points, from 1.
pub(crate) struct Numbers(HashMap<String, usize>);

impl Numbers {
    pub fn of(summary: &Summary) -> Self {
        Self(summary.points.iter().enumerate().map(|(i, p)| (p.to_string(), i + 1)).collect())
    }

    pub fn of_point(&self, point: &str) -> String {
        self.0.get(point).map_or(String::new(), ToString::to_string)
    }

    /// `2→3`.
    pub fn of_segment(&self, page: &Page, segment: &SegmentFigures) -> String {
        match (self.0.get(&segment.from), self.0.get(&segment.to)) {
            (Some(from), Some(to)) => format!("{from}{}{to}", page.arrow()),
            _ => String::new(),
        }
    }
}
