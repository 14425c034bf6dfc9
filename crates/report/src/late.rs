//! Causes of late packets as a part of a summary: in reports, and in the lines of `latpath live`.

use crate::explain::latpath_warning;
use crate::page::Page;
use latpath_stats::text::Table;
use latpath_stats::{DelayShare, LateFigures, Summary};

/// Maximum number of sums in a line.
const SUMS: usize = 5;
/// Minimum share of the delay for a sum to be named, percent.
const WORTH_NAMING: f64 = 1.0;
/// Maximum number of rows in a report; `latpath explain` shows all.
const ROWS: usize = 5;

/// Formats sums as text: `waiting for its CPU 82.0 %, at work 9.1 %`.
pub(crate) fn sums(page: &Page, all: &[DelayShare]) -> String {
    let named = all.iter().filter(|sum| sum.share_percent >= WORTH_NAMING).take(SUMS);
    let named: Vec<String> = named.map(|sum| format!("{} {:.1} %", page.clean(&sum.name), sum.share_percent)).collect();
    named.join(", ")
}

/// Returns a warning that latpath itself made packets late; `None` if its share is negligible.
pub(crate) fn own_share(late: &LateFigures) -> Option<String> {
    late.latpath_percent.map(|percent| latpath_warning(&format!("{percent:.1} %")))
}

/// Writes the causes of late packets in a report.
pub(crate) fn write(page: &mut Page, summary: &Summary, run: Option<&str>) {
    let Some(late) = summary.late.as_ref().filter(|late| !late.causes.is_empty()) else { return };
    page.heading("Causes of late packets");
    let (causes, culprits) = (sums(page, &late.by_cause), sums(page, &late.by_culprit));
    if !causes.is_empty() {
        page.item("by cause", &causes);
    }
    if !culprits.is_empty() {
        page.item("by culprit", &culprits);
    }
    own_share(late).iter().for_each(|text| page.warning(text));
    let mut table = Table::new(&["<cause", "packets", "delay", "median", "share", "<where", "<what"]);
    for cause in late.causes.iter().take(ROWS) {
        table.row(vec![
            page.clean(&cause.cause),
            page.count(cause.first),
            page.duration(cause.excess_ns),
            page.duration(cause.median_ns),
            format!("{:.1} %", cause.share_percent),
            page.clean(&cause.segment),
            page.clean(&cause.description),
        ]);
    }
    page.table(&table);
    match run {
        Some(run) => page.line(format!("More, with fixes: latpath explain {}", page.clean(run))),
        None => page.line("More, with fixes: record with latpath record, then latpath explain RUN"),
    }
}
