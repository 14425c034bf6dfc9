//! Figures of a run's consecutive intervals of equal length: `--every 1min`.

use crate::histogram;
use crate::page::Page;
use crate::segments::percentile;
use latpath_model::Ns;
use latpath_stats::text::Table;
use latpath_stats::units::elapsed;
use latpath_stats::Summary;

/// Writes a row per interval, for each named segment, or for `total` if none are named.
pub(crate) fn write(page: &mut Page, summary: &Summary, named: &[String]) {
    let Some(first) = summary.intervals.first() else { return };
    // In whole seconds, several intervals shorter than a second would have the same name.
    let is_in_seconds = first.elapsed_ns % 1_000_000_000 == 0;
    let begin = |page: &Page, t: Ns| if is_in_seconds { elapsed(t) } else { page.duration(t) };
    let percentiles = ["p50", "p99", "p99.9"];
    let over = format!("over {}", page.duration(summary.threshold_ns));
    for segment in histogram::chosen(summary, named) {
        let every = page.duration(first.elapsed_ns);
        page.heading(&format!("Over time: {}, in intervals of {every}", page.clean(&segment.name)));
        let heads = [&["from", "packets", "lost"], &percentiles[..], &["max", over.as_str()]].concat();
        let mut table = Table::new(&heads);
        for interval in &summary.intervals {
            let mut row =
                vec![begin(page, interval.since_start_ns), page.count(interval.journeys), page.count(interval.lost)];
            match interval.segments.iter().find(|s| s.is_of_same(segment)).filter(|s| s.times.count > 0) {
                Some(s) => {
                    row.extend(percentiles.map(|name| percentile(page, s, name)));
                    row.extend([page.time(s, s.times.max_ns), page.count(s.over_threshold)]);
                }
                None => row.resize(heads.len(), "-".into()),
            }
            table.row(row);
        }
        page.table(&table);
    }
}
