//! The worst packets, each with its waterfall: every point, when it saw the packet, and a bar for the time before it.

use crate::page::{Block, Page};
use latpath_model::Ns;
use latpath_stats::text::{date_time, short_stream, Table};
use latpath_stats::{Summary, Worst, WorstStep};

/// Columns for the whole of a packet's time.
const SPAN: usize = 30;

/// Where a packet spent most of its time: the point at the end of the longest step.
fn held_before(worst: &Worst) -> Option<&str> {
    worst.steps.iter().max_by_key(|step| step.since_last_ns).map(|step| step.point.as_str())
}

/// Whether two packets waited at the same place at the same time: then one thing held both.
fn together(a: &Worst, b: &Worst) -> bool {
    let overlap = a.time_ns < b.time_ns.saturating_add(b.total_ns) && b.time_ns < a.time_ns.saturating_add(a.total_ns);
    overlap && a.path == b.path && held_before(a).is_some_and(|place| held_before(b) == Some(place))
}

/// A worst packet, its place among them, and those that the same thing held.
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

/// `14.61 ms  MU01, key 2375, 2026-01-02 03:04:05.593750006, upcall`
fn title(page: &Page, worst: &Worst) -> String {
    let path = if worst.path.is_empty() { String::new() } else { format!(", {}", page.clean(&worst.path)) };
    let (total, stream) = (page.duration(worst.total_ns), page.clean(&short_stream(&worst.stream)));
    format!("{total}  {stream}, key {}, {}{path}", worst.key, date_time(worst.time_ns))
}

/// That one thing held more of them.
fn others(page: &Page, more: &[&Worst]) -> Option<String> {
    let (most, least) = (page.duration(more.first()?.total_ns), page.duration(more.last()?.total_ns));
    let range = if more.len() == 1 { most } else { format!("{most} to {least}") };
    Some(format!("{} more of them waited there at the same time: {range}", more.len()))
}

/// All worst packets. Of those that one thing held, the first alone is drawn.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    if summary.worst.is_empty() {
        return;
    }
    page.heading("Worst packets");
    for (i, worst, more) in groups(summary) {
        if i > 0 {
            page.line("");
        }
        page.line(format!("  {}. {}", i + 1, title(page, worst)));
        waterfall(page, worst, summary);
        others(page, &more).iter().for_each(|text| page.line(format!("     {text}")));
    }
}

/// The same for documents, behind a packet that took the usual time; so many are drawn.
pub(crate) fn document(page: &mut Page, summary: &Summary, typical: Option<&Worst>, drawn: usize) {
    if !summary.worst.is_empty() {
        page.heading("A typical packet, and the worst");
    }
    if let Some(typical) = typical {
        page.block(Block::Subheading(format!("Typical: {}", title(page, typical))));
        steps(page, typical, summary);
    }
    let mut groups = groups(summary);
    let left_out = groups.split_off(drawn.min(groups.len()));
    for (i, worst, more) in groups {
        page.block(Block::Subheading(format!("{}. {}", i + 1, title(page, worst))));
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

const HEADS: [&str; 6] = ["<", "<point", "since first", "step", "cpu", "<thread"];

/// The steps' rows under [`HEADS`], with the time before each.
fn rows(page: &Page, worst: &Worst, summary: &Summary) -> Vec<(Ns, Vec<String>)> {
    let mut before = 0;
    let row = |step: &WorstStep| {
        let number = summary.number(&step.point).map_or(String::new(), |n| n.to_string());
        let cells = vec![
            format!("{number:>3}"),
            page.clean(&step.point),
            page.duration(step.since_first_ns),
            page.duration(step.since_last_ns),
            step.cpu.map_or("-".into(), |cpu| cpu.to_string()),
            match (step.tid, &step.role) {
                (Some(tid), Some(role)) => format!("{tid} {}", page.clean(role)),
                (Some(tid), None) => tid.to_string(),
                (None, _) => "-".into(),
            },
        ];
        (std::mem::replace(&mut before, step.since_first_ns), cells)
    };
    worst.steps.iter().map(row).collect()
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
    let total = worst.total_ns.max(1);
    let per_mille = |t: Ns| (i128::from(t.clamp(0, total)) * 1000 / i128::from(total)) as u32;
    for ((before, cells), step) in rows(page, worst, summary).into_iter().zip(&worst.steps) {
        bars.push((per_mille(before), per_mille(step.since_first_ns)));
        table.row(cells);
    }
    page.block(Block::Steps(table, bars));
}

/// The time from `from` to `to` as a bar in the packet's whole time; nothing where a clock fault made it negative.
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
