//! The worst packets, each with its waterfall: every point, when it saw the packet, and a bar for the time before it.

use crate::{
    page::{right, Page, Table},
    segments::Numbers,
};
use latpath_model::{Ns, StreamSpec};
use latpath_stats::{Summary, Worst};
use std::time::{Duration, SystemTime};

/// Columns for the whole of a packet's time.
const SPAN: usize = 30;

/// All worst packets.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    if summary.worst.is_empty() {
        return;
    }
    page.heading("Worst packets");
    let numbers = Numbers::of(summary);
    for (i, worst) in summary.worst.iter().enumerate() {
        if i > 0 {
            page.line("");
        }
        let path = if worst.path.is_empty() { String::new() } else { format!(", {}", page.clean(&worst.path)) };
        page.line(format!(
            "  {}. {}  {}, key {}, {}{path}",
            i + 1,
            page.duration(worst.total_ns),
            stream(page, &worst.stream),
            worst.key,
            clock_time(worst.time_ns)
        ));
        waterfall(page, worst, &numbers);
    }
}

fn waterfall(page: &mut Page, worst: &Worst, numbers: &Numbers) {
    let mut table = Table::new(&["<", "<point", "since first", "step", "cpu", "<thread", "<"]);
    let mut before = 0;
    for step in &worst.steps {
        let number = numbers.of_point(&step.point);
        table.row(vec![
            right(&number, 3),
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
    table.write(page);
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

/// A stream's short name: the svID of Sampled Values.
pub(crate) fn stream(page: &Page, text: &str) -> String {
    page.clean(&text.parse::<StreamSpec>().map_or_else(|_| text.to_owned(), |spec| spec.short()))
}

/// `2026-01-02 03:04:05.000000006`
fn clock_time(ns: Ns) -> String {
    let since = Duration::from_nanos(ns.unsigned_abs());
    match SystemTime::UNIX_EPOCH.checked_add(since).filter(|_| ns >= 0) {
        Some(time) => humantime::format_rfc3339_nanos(time).to_string().replace('T', " ").replace('Z', ""),
        None => format!("{ns} ns"),
    }
}
