//! The worst packets with their waterfalls: a row for each point, with its time and a bar for the preceding step.

use crate::page::{Block, Page};
use latpath_model::Ns;
use latpath_stats::text::{date_time, short_stream, Table};
use latpath_stats::{SegmentFigures, Summary, Worst, WorstStep};

/// Width of the bar of a packet's total time, columns.
const SPAN: usize = 20;

/// Point at the end of a packet's longest step.
fn held_before(worst: &Worst) -> Option<&str> {
    worst.steps.iter().max_by_key(|step| step.since_last_ns).map(|step| step.point.as_str())
}

/// Whether two packets waited for the same point at the same time, so that one cause probably delayed both.
fn together(a: &Worst, b: &Worst) -> bool {
    let overlap = a.time_ns < b.time_ns.saturating_add(b.total_ns) && b.time_ns < a.time_ns.saturating_add(a.total_ns);
    overlap && a.path == b.path && held_before(a).is_some_and(|place| held_before(b) == Some(place))
}

/// Rank (from 0) of the worst packet of a group, the packet itself, and further packets that the same cause delayed.
type Group<'a> = (usize, &'a Worst, Vec<&'a Worst>);

fn groups(summary: &Summary) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, worst) in summary.worst.iter().enumerate() {
        match groups.iter_mut().find(|(_, first, _)| together(first, worst)) {
            Some((_, _, more)) => more.push(worst),
            None => groups.push((i, worst, Vec::new())),
        }
    }
    groups
}

/// Formats the title of a packet: `14.61 ms  MU01, key 2375, 2026-01-02 03:04:05.593750006, upcall`.
fn title(page: &Page, worst: &Worst, summary: &Summary) -> String {
    let path = if worst.path.is_empty() { String::new() } else { format!(", {}", page.clean(&worst.path)) };
    let bound = bound(page, summary, worst);
    let (total, stream) = (page.duration(worst.total_ns) + &bound, page.clean(&short_stream(&worst.stream)));
    format!("{total}  {stream}, key {}, {}{path}", worst.key, date_time(worst.time_ns))
}

/// Figures of the segment between two points, of the packet's stream, or else of all streams.
fn between<'a>(summary: &'a Summary, worst: &Worst, from: &str, to: &str) -> Option<&'a SegmentFigures> {
    let of_stream = summary.streams.iter().filter(|s| s.stream == worst.stream).flat_map(|s| &s.segments);
    of_stream.chain(&summary.segments).find(|s| s.from == from && s.to == to && s.times.count > 0)
}

/// Formats the error bound of the packet's total time: ` ±1.870 µs`.
fn bound(page: &Page, summary: &Summary, worst: &Worst) -> String {
    let ends = worst.steps.first().zip(worst.steps.last());
    let whole = ends.and_then(|(from, to)| between(summary, worst, &from.point, &to.point));
    match whole.map(|s| (summary.is_bound_known(s), s.error_bound_ns)) {
        Some((true, 0)) | None => String::new(),
        Some((true, bound)) => format!(" {}{}", page.letters.plus_minus(), page.duration(bound)),
        Some((false, _)) => " (no bound is known)".into(),
    }
}

/// Returns a sentence on further packets that the same cause delayed.
fn others(page: &Page, more: &[&Worst]) -> Option<String> {
    let (most, least) = (page.duration(more.first()?.total_ns), page.duration(more.last()?.total_ns));
    let range = if more.len() == 1 { most } else { format!("{most} to {least}") };
    Some(format!("{} more of them waited there at the same time: {range}", more.len()))
}

/// Writes the worst packets. Of several packets delayed by one cause, only the first has a waterfall.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    if summary.worst.is_empty() {
        return;
    }
    page.heading("Worst packets");
    for (i, worst, more) in groups(summary) {
        if i > 0 {
            page.line("");
        }
        let title = title(page, worst, summary);
        page.wrapped(format!("  {}. ", i + 1), 5, &title);
        waterfall(page, worst, summary);
        others(page, &more).iter().for_each(|text| page.wrapped("     ".into(), 5, text));
    }
}

/// Writes the packets of a document: a typical one, then at most `drawn` groups of the worst.
pub(crate) fn document(page: &mut Page, summary: &Summary, typical: Option<&Worst>, drawn: usize) {
    if !summary.worst.is_empty() {
        page.heading("A typical packet, and the worst");
    }
    if let Some(typical) = typical {
        page.block(Block::Subheading(format!("Typical: {}", title(page, typical, summary))));
        steps(page, typical, summary);
    }
    let mut groups = groups(summary);
    let left_out = groups.split_off(drawn.min(groups.len()));
    for (i, worst, more) in groups {
        page.block(Block::Subheading(format!("{}. {}", i + 1, title(page, worst, summary))));
        steps(page, worst, summary);
        others(page, &more).iter().for_each(|text| page.line(text));
    }
    if !left_out.is_empty() {
        let n: usize = left_out.iter().map(|(_, _, more)| 1 + more.len()).sum();
        let (n, all) = (page.count(n as u64), page.number_of(summary.worst.len() as u64, "packet"));
        page.warning(&format!(
            "{n} of the {all} asked for are left out here, to keep this file short; the report as text has them"
        ));
    }
}

const HEADS: [&str; 7] = ["<", "<point", "since first", "step", "usual", "cpu", "<thread"];

/// Returns a row of the columns [`HEADS`] for each step, and the step's start in ns since the packet's first point.
fn rows(page: &Page, worst: &Worst, summary: &Summary) -> Vec<(Ns, Vec<String>)> {
    let mut before = 0;
    let row = |(at, step): (usize, &WorstStep)| {
        let last = at.checked_sub(1).and_then(|last| worst.steps.get(last));
        let usual = last.and_then(|last| between(summary, worst, &last.point, &step.point));
        let number = summary.number(&step.point).map_or(String::new(), |n| n.to_string());
        let cells = vec![
            format!("{number:>3}"),
            page.clean(&step.point),
            page.duration(step.since_first_ns),
            page.duration(step.since_last_ns),
            usual.map_or(String::new(), |s| page.time(s, s.times.p50_ns)),
            step.cpu.map_or("-".into(), |cpu| cpu.to_string()),
            match (step.tid, &step.role) {
                (Some(tid), Some(role)) => format!("{tid} {}", page.clean(role)),
                (Some(tid), None) => tid.to_string(),
                (None, _) => "-".into(),
            },
        ];
        (std::mem::replace(&mut before, step.since_first_ns), cells)
    };
    worst.steps.iter().enumerate().map(row).collect()
}

fn waterfall(page: &mut Page, worst: &Worst, summary: &Summary) {
    let mut table = Table::new(&[&HEADS[..], &["<"]].concat());
    for ((before, mut cells), step) in rows(page, worst, summary).into_iter().zip(&worst.steps) {
        cells.push(bar(page, before, step.since_first_ns, worst.total_ns));
        table.row(cells);
    }
    page.table(&table);
}

fn steps(page: &mut Page, worst: &Worst, summary: &Summary) {
    let (mut table, mut bars) = (Table::new(&HEADS), Vec::new());
    // All packets of a page are drawn to the scale of the worst.
    let total = summary.worst.first().map_or(worst.total_ns, |first| first.total_ns.max(worst.total_ns)).max(1);
    let per_mille = |t: Ns| (i128::from(t.clamp(0, total)) * 1000 / i128::from(total)) as u32;
    for ((before, cells), step) in rows(page, worst, summary).into_iter().zip(&worst.steps) {
        bars.push((per_mille(before), per_mille(step.since_first_ns)));
        table.row(cells);
    }
    page.block(Block::Steps(table, bars));
}

/// Draws the bar from `from` to `to` on a scale of `total`; empty if a clock fault made the time negative.
fn bar(page: &Page, from: Ns, to: Ns, total: Ns) -> String {
    if total <= 0 || from < 0 || to <= from {
        return String::new();
    }
    let column = |t: Ns| (i128::from(t.min(total)) * (SPAN * 8) as i128 / i128::from(total)) as usize;
    let (begin, end) = (column(from), column(to));
    let start = begin / 8;
    let mut out = " ".repeat(start);
    out.push_str(&page.bar((end - start * 8).max(1)));
    out
}
