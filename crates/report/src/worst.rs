//! The worst packets, each with its waterfall: every point, when it saw the packet, and a bar for the time before it.

use crate::page::Page;
use latpath_model::Ns;
use latpath_stats::text::{date_time, short_stream, Table};
use latpath_stats::{Summary, Worst};

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

/// All worst packets. Of those that one thing held, the first alone is drawn.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    if summary.worst.is_empty() {
        return;
    }
    page.heading("Worst packets");
    let mut groups: Vec<(usize, &Worst, Vec<&Worst>)> = Vec::new();
    for (i, worst) in summary.worst.iter().enumerate() {
        match groups.iter_mut().find(|(_, first, _)| together(first, worst)) {
            Some((_, _, more)) => more.push(worst),
            None => groups.push((i, worst, Vec::new())),
        }
    }
    for (i, worst, more) in groups {
        if i > 0 {
            page.line("");
        }
        let path = if worst.path.is_empty() { String::new() } else { format!(", {}", page.clean(&worst.path)) };
        page.line(format!(
            "  {}. {}  {}, key {}, {}{path}",
            i + 1,
            page.duration(worst.total_ns),
            page.clean(&short_stream(&worst.stream)),
            worst.key,
            date_time(worst.time_ns)
        ));
        waterfall(page, worst, summary);
        if let (Some(most), Some(least)) = (more.first(), more.last()) {
            let (most, least) = (page.duration(most.total_ns), page.duration(least.total_ns));
            let range = if more.len() == 1 { most } else { format!("{most} to {least}") };
            page.line(format!("     {} more of them waited there at the same time: {range}", more.len()));
        }
    }
}

fn waterfall(page: &mut Page, worst: &Worst, summary: &Summary) {
    let mut table = Table::new(&["<", "<point", "since first", "step", "cpu", "<thread", "<"]);
    let mut before = 0;
    for step in &worst.steps {
        let number = summary.number(&step.point).map_or(String::new(), |n| n.to_string());
        table.row(vec![
            format!("{number:>3}"),
            page.clean(&step.point),
            page.duration(step.since_first_ns),
            page.duration(step.since_last_ns),
            step.cpu.to_string(),
            match &step.role {
                Some(role) => format!("{} {}", step.tid, page.clean(role)),
                None => step.tid.to_string(),
            },
            bar(page, before, step.since_first_ns, worst.total_ns),
        ]);
        before = step.since_first_ns;
    }
    page.table(&table);
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
