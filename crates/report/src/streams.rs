//! Figures of each stream, if there are several.

use crate::page::Page;
use latpath_stats::figures::packets;
use latpath_stats::text::{short_stream, Table};
use latpath_stats::{StreamFigures, Summary};

/// Writes a row per stream, with times of `total`, or of the last segment.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    if summary.streams.len() < 2 {
        return;
    }
    let chosen = |s: &StreamFigures| {
        s.segments.iter().find(|s| s.kind.is_whole()).or(s.segments.last()).cloned().unwrap_or_default()
    };
    let name = summary.streams.iter().map(chosen).map(|s| s.name).find(|n| !n.is_empty()).unwrap_or_default();
    let name = page.clean(&name);
    page.heading(&format!("Streams (times of {name})"));
    let over = format!("over {}", page.duration(summary.threshold_ns));
    let heads = ["<stream", "journeys", "complete", "lost", "dupl.", "disord.", "unseen", "p50", "p99.9", "max", &over];
    let mut table = Table::new(&heads);
    for s in &summary.streams {
        let times = chosen(s);
        table.row(vec![
            page.clean(&short_stream(&s.stream)),
            page.count(s.journeys),
            page.count(s.complete),
            page.count(packets(&s.lost)),
            page.count(s.duplicates),
            page.count(s.out_of_order),
            page.count(s.never_seen),
            page.time(&times, times.times.p50_ns),
            page.time(&times, times.times.p99_9_ns),
            page.time(&times, times.times.max_ns),
            page.count(times.over_threshold),
        ]);
    }
    page.table(&table);
}

/// Writes the intervals between consecutive packets at each point. An interval is measured by one clock, so it has no
/// error bound.
pub(crate) fn pacing(page: &mut Page, summary: &Summary) {
    if summary.streams.iter().all(|s| s.pacing.is_empty()) {
        return;
    }
    page.heading("Pacing: the time from one packet to the next");
    let mut table = Table::new(&["<stream", "<point", "times", "min", "mean", "max"]);
    for (s, at) in summary.streams.iter().flat_map(|s| s.pacing.iter().map(move |at| (s, at))) {
        table.row(vec![
            page.clean(&short_stream(&s.stream)),
            page.clean(&at.point),
            page.count(at.count),
            page.duration(at.min_ns),
            page.duration(at.mean_ns),
            page.duration(at.max_ns),
        ]);
    }
    page.table(&table);
    page.line("A packet that a point did not see makes one long time of two. A negative time: the later packet was there first.");
}
