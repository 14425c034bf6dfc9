//! The map of a machine's CPUs: the purpose of each, and the threads and interrupts that run there.

use crate::page::Page;
use latpath_model::HOST;
use latpath_placement::{CpuMap, CpuRow, Placement};
use latpath_run::Run;
use latpath_stats::text::Table;

/// Maximum number of names in a cell.
const MAX_NAMES: usize = 8;

/// Writes the map. A `!` marks CPUs on which threads or interrupts disturb each other.
pub(crate) fn write(page: &mut Page, map: &CpuMap) {
    let has = |column: fn(&CpuRow) -> bool| map.rows.iter().any(column);
    let columns: [(&str, bool); 7] = [
        ("<CPU", true),
        ("<kept for", true),
        ("<node", has(|row| row.node.is_some_and(|node| node > 0))),
        ("<core shared with", has(|row| !row.siblings.is_empty())),
        ("<pinned threads", has(|row| !row.threads.is_empty())),
        ("<interrupts", has(|row| !row.interrupts.is_empty())),
        ("<kernel threads", has(|row| !row.kernel.is_empty())),
    ];
    let heads: Vec<&str> = columns.iter().filter(|(_, shown)| *shown).map(|(head, _)| *head).collect();
    let mut table = Table::new(&heads);
    for row in &map.rows {
        let mark = if row.has_collision { "! " } else { "" };
        let cells = [
            format!("{mark}{}", row.cpus),
            row.kept_for.name().into(),
            row.node.map_or_else(String::new, |node| node.to_string()),
            row.siblings.to_string(),
            list(page, &row.threads),
            list(page, &row.interrupts),
            list(page, &row.kernel),
        ];
        table.row(cells.into_iter().zip(&columns).filter(|(_, (_, shown))| *shown).map(|(cell, _)| cell).collect());
    }
    page.whole_table(&table);
    if !map.unpinned.is_empty() {
        let names = list(page, &map.unpinned);
        page.wrapped("  ".into(), 4, &format!("on any CPU for housekeeping: {names}"));
    }
}

/// The first [`MAX_NAMES`] names, and the number of further ones.
fn list(page: &Page, names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_NAMES).map(|name| page.clean(name)).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Writes a section of a document with the maps of a run's machines.
pub(crate) fn document(page: &mut Page, run: &Run) {
    for machine in &run.settings().machines {
        let map = CpuMap::of(&Placement::of(machine.values()));
        if map.rows.is_empty() {
            continue;
        }
        let name = if machine.machine == HOST { "this host".into() } else { page.clean(&machine.machine) };
        page.heading(&format!("CPUs of {name}"));
        write(page, &map);
        for collision in &map.collisions {
            let with =
                if collision.with.is_empty() { String::new() } else { format!(": {}", collision.with.join(", ")) };
            let text = format!("{} on CPUs {}: {}{with}", collision.who, collision.cpus, collision.kind.text());
            page.warning(&text);
        }
    }
}
