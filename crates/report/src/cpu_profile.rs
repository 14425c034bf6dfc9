//! Profiles as text, and as files for other tools.

mod firefox;
mod flame_graph;

use crate::page::{Page, Style};
use latpath_model::{Ns, Observation};
use latpath_observe::profile::{Diff, FunctionFigures, Modes, ProfileFigures};
use latpath_stats::text::Table;
use latpath_stats::units::{self, CharacterSet};

pub use firefox::{firefox, Machine};
pub use flame_graph::{flame_graph, flame_graph_of_difference};

/// Modes of CPU time, in the order of their columns.
pub(crate) const MODES: [(&str, fn(&Modes) -> Ns); 7] = [
    ("host sys", |modes| modes.host_sys_ns),
    ("host usr", |modes| modes.host_usr_ns),
    ("guest sys", |modes| modes.guest_sys_ns),
    ("guest usr", |modes| modes.guest_usr_ns),
    ("guest, not seen into", |modes| modes.guest_unseen_ns),
    ("not sampled", |modes| modes.not_sampled_ns),
    ("idle", |modes| modes.idle_ns),
];

/// Minimum share of a function's time for a context to be shown.
const MIN_SHARE: f64 = 0.01;
/// Maximum number of contexts shown per function.
const MAX_CONTEXTS: usize = 8;

/// Formats a profile as text: at most `most` processes and functions, and the contexts of the functions in `asked`.
pub fn text(observation: &Observation<ProfileFigures>, most: usize, asked: &[String], style: Style) -> String {
    let mut page = Page::new(style);
    let document = &observation.figures;
    let (units, header) = (page.letters, &document.header);
    page.line(format!(
        "{} on {} ({}): {} of CPU time, {}",
        units.duration(observation.window_ns),
        units.number_of(document.cpu_count, "CPU"),
        header.cpus,
        units.duration(document.modes.total_ns()),
        units.number_of(header.samples, "sample")
    ));
    page.gap();
    let mut table = Table::new(&["<of all CPUs", "time", "part"]);
    for (name, of) in MODES {
        let ns = of(&document.modes);
        if ns > 0 {
            table.row(vec![name.into(), units.duration(ns), percent(ns, document.modes.total_ns())]);
        }
    }
    page.table(&table);
    if let Some(kernel) = document.kernel_account {
        let parts =
            [("guest", kernel.guest_ns), ("user", kernel.user_ns - kernel.guest_ns), ("system", kernel.system_ns)];
        let parts = parts.into_iter().chain([("idle", kernel.idle_ns), ("steal", kernel.steal_ns)]);
        let parts = parts.map(|(name, ns)| format!("{name} {}", percent(ns, document.modes.total_ns())));
        page.line(format!("  the kernel's own account: {}", parts.collect::<Vec<_>>().join(", ")));
    }
    trust(document, units).iter().for_each(|line| page.line(format!("  {line}")));
    page.gap();
    processes(&mut page, document, most);
    page.gap();
    functions(&mut page, document, most);
    for function in asked {
        page.gap();
        contexts_of(&mut page, document, function);
    }
    if !document.system_calls.is_empty() {
        page.gap();
        calls(&mut page, observation, most);
    }
    page.finish()
}

/// Returns notes on the completeness of call chains and on the accuracy of the guests' clocks.
pub(crate) fn trust(document: &ProfileFigures, units: CharacterSet) -> Vec<String> {
    let header = &document.header;
    let mut lines = Vec::new();
    let mut chains = |of: &str, all: u64, alone: u64| {
        // The outermost function of a program has no caller, so up to one percent is normal.
        if alone * 100 > all {
            let part = alone as f64 * 100.0 / all as f64;
            lines.push(format!("{part:.0} % of {of} user samples have no callers: built without frame pointers"));
        }
    };
    chains("the host's", header.user_samples, header.user_samples_without_callers);
    for guest in &header.guests {
        let name = units.clean(&guest.name);
        chains(&format!("{name}'s"), guest.user_samples, guest.user_samples_without_callers);
    }
    for (guest, causality) in header.guests.iter().filter_map(|guest| Some((guest, guest.causality?))) {
        lines.push(format!(
            "{}: {} in {} samples, by a clock that is right within {}",
            units.clean(&guest.name),
            units.number_of(causality.violations, "causality violation"),
            units.count(causality.checked),
            units.duration(guest.clock_error_ns)
        ));
    }
    lines
}

/// A percentage with two decimals.
fn percent(part: Ns, whole: Ns) -> String {
    units::percent(part, whole, 2)
}

fn place(process: &str, guest: Option<&str>) -> String {
    guest.map_or_else(|| process.into(), |guest| format!("{guest}: {process}"))
}

fn processes(page: &mut Page, document: &ProfileFigures, most: usize) {
    let (units, busy) = (page.letters, document.modes.busy_ns());
    let shown: Vec<_> = MODES[..6].iter().filter(|(_, of)| of(&document.modes) > 0).collect();
    let heads: Vec<&str> =
        ["<process", "time", "of busy"].into_iter().chain(shown.iter().map(|(name, _)| *name)).collect();
    let mut table = Table::new(&heads);
    for process in document.processes.iter().take(most) {
        let name = units.clean(&place(&process.process, process.guest.as_deref()));
        let mut row = vec![name, units.duration(process.total_ns), percent(process.total_ns, busy)];
        row.extend(shown.iter().map(|(_, of)| percent(of(&process.modes), busy)));
        table.row(row);
    }
    top(page, &table, document.processes.len());
}

/// Writes a table with the first of `all` rows, and the number of rows left out.
fn top(page: &mut Page, table: &Table, all: usize) {
    page.table(table);
    match all - table.rows().len() {
        0 => {}
        more => page.line(format!("  … {more} more (--rows)")),
    }
}

fn functions(page: &mut Page, document: &ProfileFigures, most: usize) {
    let (units, busy) = (page.letters, document.modes.busy_ns());
    let mut table = Table::new(&["<function", "own", "with calls", "<where", "<mostly in", "<under"]);
    let own: Vec<_> = document.functions.iter().filter(|function| function.self_ns > 0).collect();
    for function in own.iter().take(most) {
        let first = function.contexts.first();
        let share = first.map_or(0.0, |context| context.total_ns as f64 * 100.0 / function.total_ns.max(1) as f64);
        table.row(vec![
            units.clean(&function.function),
            percent(function.self_ns, busy),
            percent(function.total_ns, busy),
            side(function).into(),
            first.map_or_else(String::new, |context| format!("{} {share:.0} %", units.clean(&context.process))),
            first.and_then(|context| context.under.as_ref()).map_or_else(|| "-".into(), |under| units.clean(under)),
        ]);
    }
    top(page, &table, own.len());
}

fn side(function: &FunctionFigures) -> &'static str {
    match (function.guest.is_some(), function.in_kernel) {
        (false, true) => "host sys",
        (false, false) => "host usr",
        (true, true) => "guest sys",
        (true, false) => "guest usr",
    }
}

fn contexts_of(page: &mut Page, document: &ProfileFigures, name: &str) {
    let units = page.letters;
    let found: Vec<_> = document.functions.iter().filter(|function| function.function == name).collect();
    if found.is_empty() {
        page.line(format!("  {}: no sample met it", units.clean(name)));
    }
    for function in found {
        let all = percent(function.total_ns, document.modes.busy_ns());
        page.line(format!("  {} ({}): {all} of busy time with its calls", units.clean(name), side(function)));
        let is_shown = |part: Ns| part as f64 >= function.total_ns as f64 * MIN_SHARE;
        let mut table = Table::new(&["<in", "<under", "of it", "time"]);
        for context in function.contexts.iter().take(MAX_CONTEXTS).filter(|context| is_shown(context.total_ns)) {
            table.row(vec![
                units.clean(&place(&context.process, function.guest.as_deref())),
                context.under.as_ref().map_or_else(|| "-".into(), |under| units.clean(under)),
                percent(context.total_ns, function.total_ns),
                units.duration(context.total_ns),
            ]);
        }
        page.table_at(4, &table);
    }
}

fn calls(page: &mut Page, observation: &Observation<ProfileFigures>, most: usize) {
    let document = &observation.figures;
    let units = page.letters;
    let mut table =
        Table::new(&["<VM", "<thread", "<system call", "number", "per s", "time, asleep too", "mean", "max", "failed"]);
    for call in document.system_calls.iter().take(most) {
        table.row(vec![
            units.clean(&call.vm),
            units.clean(&call.thread),
            units.clean(&call.call),
            units.count(call.count),
            units.rate(call.count as f64 * 1e9 / observation.window_ns.max(1) as f64),
            units.duration(call.sum_ns),
            units.duration(call.mean_ns),
            units.duration(call.max_ns),
            if call.failed > 0 { units.count(call.failed) } else { "-".into() },
        ]);
    }
    top(page, &table, document.system_calls.len());
}

/// Formats the difference between two profiles as text, with at most `most` functions.
pub fn diff_text(diff: &Diff, most: usize, style: Style) -> String {
    let mut page = Page::new(style);
    let units = page.letters;
    let mut table = Table::new(&["<of all CPUs", "before", "after", "change"]);
    let all = |modes: &Modes| modes.total_ns().max(1) as f64 / 100.0;
    for (name, of) in MODES {
        let (before, after) = (of(&diff.modes_before), of(&diff.modes_after));
        let (before, after) = (before as f64 / all(&diff.modes_before), after as f64 / all(&diff.modes_after));
        if before > 0.0 || after > 0.0 {
            table.row(vec![
                name.into(),
                format!("{before:.2} %"),
                format!("{after:.2} %"),
                format!("{:+.2}", after - before),
            ]);
        }
    }
    page.table(&table);
    page.gap();
    let heads = ["<function", "<in", "<under", "before", "after", "change", "share before", "share after"];
    let mut table = Table::new(&heads);
    let percent = |ns: Ns| format!("{:.2} %", ns as f64 / 1e7);
    let share = |share: Option<f64>| share.map_or_else(|| "-".into(), |share| format!("{:.0} %", share * 100.0));
    for moved in diff.moved.iter().filter(|moved| moved.before_ns_per_s != moved.after_ns_per_s).take(most) {
        table.row(vec![
            units.clean(&moved.function),
            units.clean(&place(&moved.process, moved.guest.as_deref())),
            moved.under.as_ref().map_or_else(|| "-".into(), |under| units.clean(under)),
            percent(moved.before_ns_per_s),
            percent(moved.after_ns_per_s),
            format!("{:+.2}", (moved.after_ns_per_s as f64 - moved.before_ns_per_s as f64) / 1e7),
            share(moved.share_before),
            share(moved.share_after),
        ]);
    }
    page.table(&table);
    page.gap();
    page.line("  before, after: time in the function and in what it calls, in percent of one CPU");
    page.finish()
}
