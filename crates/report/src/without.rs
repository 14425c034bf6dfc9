//! Figures with and without the packets that patterns affect.

use crate::page::Page;
use crate::segments::{label, percentile};
use latpath_stats::text::Table;
use latpath_stats::Summary;

/// Writes two rows for each segment: one of all packets, and one of the packets that no pattern affects.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    let Some(without) = &summary.without else { return };
    let kinds: Vec<&str> = without.kinds.iter().map(|kind| kind.name()).collect();
    page.heading("Segments with and without patterns");
    let text = format!(
        "without {}: {} found, {} left out, of them {} lost",
        kinds.join(", "),
        page.number_of(without.patterns, "pattern"),
        page.number_of(without.packets, "packet"),
        page.count(without.lost)
    );
    page.wrapped("  ".into(), 4, &text);
    let over = format!("over {}", page.duration(summary.threshold_ns));
    let percentiles = ["p50", "p99", "p99.9", "p99.99"];
    let heads = [&["<segment", "<packets", "count", "mean"], &percentiles[..], &["max", over.as_str()]].concat();
    let mut table = Table::new(&heads);
    for all in &summary.segments {
        let rest = without.segments.iter().find(|s| s.is_of_same(all));
        let rows = [(label(page, summary, all), "all", Some(all)), (String::new(), "without", rest)];
        for (name, which, s) in rows.into_iter().filter_map(|(name, which, s)| Some((name, which, s?))) {
            let mut row = vec![name, which.into(), page.count(s.times.count), page.time(s, s.times.mean_ns)];
            row.extend(percentiles.map(|name| percentile(page, s, name)));
            row.extend([page.time(s, s.times.max_ns), page.count(s.over_threshold)]);
            table.row(row);
        }
    }
    page.table(&table);
}
