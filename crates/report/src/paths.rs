//! Paths of packets through the host, if there are several.

use crate::page::Page;
use latpath_model::SegmentKind;
use latpath_stats::text::Table;
use latpath_stats::units::share;
use latpath_stats::{PathFigures, SegmentFigures, Summary};

/// Writes a row per path, with times of `Thyp`, or of `total` if the packets pass through no host.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    let Some(kind) = shown(&summary.paths) else { return };
    let name = kind.name().unwrap_or_default();
    page.heading(&format!("Paths through the host (times of {name})"));
    let over = format!("over {}", page.duration(summary.threshold_ns));
    let mut table = Table::new(&["<path", "packets", "of all", "lost", "p50", "p99", "p99.9", "max", &over]);
    for path in &summary.paths {
        let times = path.segments.iter().find(|s| s.kind == kind);
        let time = |of: fn(&SegmentFigures) -> i64| times.map_or("-".into(), |s| page.time(s, of(s)));
        table.row(vec![
            page.clean(&path.path),
            page.count(path.journeys),
            share(path.journeys, summary.journeys),
            page.count(path.lost),
            time(|s| s.times.p50_ns),
            time(|s| s.times.p99_ns),
            time(|s| s.times.p99_9_ns),
            time(|s| s.times.max_ns),
            times.map_or("-".into(), |s| page.count(s.over_threshold)),
        ]);
    }
    page.table(&table);
}

/// Returns the kind of segment whose times are shown: `Thyp` if any path has it, otherwise `total`; `None` if there are
/// no paths.
pub(crate) fn shown(paths: &[PathFigures]) -> Option<SegmentKind> {
    let has_thyp = || paths.iter().flat_map(|p| &p.segments).any(|s| s.kind == SegmentKind::Thyp);
    (!paths.is_empty()).then(|| if has_thyp() { SegmentKind::Thyp } else { SegmentKind::Total })
}
