//! Settings of a run's machines: changes during the run, and the whole list.

use crate::page::{Block, Page};
use latpath_model::HOST;
use latpath_run::Run;
use latpath_settings::{MachineSettings, RunSettings, Setting, SettingChange};
use latpath_stats::text::Table;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;

/// Maximum number of changes in text output.
const MAX_CHANGES: usize = 20;
/// Maximum number of rows of the HTML table.
const MAX_ROWS: usize = 4000;

/// The settings of a run: the key `settings` of a report's JSON.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Settings<'a> {
    /// Settings that changed during the run.
    pub changes: Vec<SettingChange>,
    /// Settings of each machine at the start and the end of the run; empty for runs of earlier versions and imported
    /// runs.
    pub machines: Cow<'a, [MachineSettings]>,
}

impl<'a> Settings<'a> {
    /// Collects the settings of a run.
    pub fn of(run: &'a Run) -> Self {
        Self { changes: run.settings().changes(), machines: (&run.settings().machines).into() }
    }
}

/// Writes the settings that changed during the run, and the number of settings read.
pub(crate) fn write(page: &mut Page, run: &Run) {
    let settings = run.settings();
    if settings.is_empty() {
        return;
    }
    let read = page.number_of(settings.count() as u64, "setting");
    let changes = settings.changes();
    if changes.is_empty() {
        let text = if has_end(settings) {
            format!("{read} read, none changed during the run")
        } else {
            format!("{read} read when the run began; whether one changed is not known")
        };
        page.item("settings", &text);
        return;
    }
    page.heading("Settings that changed during the run");
    for change in changes.iter().take(MAX_CHANGES) {
        let text = change.text.replace('→', page.letters.arrow());
        page.wrapped("  ".into(), 4, &page.clean(&text));
    }
    let more = changes.len().saturating_sub(MAX_CHANGES);
    let more = if more > 0 { format!("and {more} more; ") } else { String::new() };
    page.line(format!("  {more}{read} read (latpath report --json has all)"));
}

fn has_end(settings: &RunSettings) -> bool {
    settings.machines.iter().any(|machine| machine.begin.is_some() && machine.end.is_some())
}

/// Writes a section of a document: the changes and, in HTML, a folded table of all settings.
pub(crate) fn document(page: &mut Page, run: &Run, html: bool) {
    let settings = run.settings();
    if settings.is_empty() {
        return;
    }
    page.heading("Settings");
    for change in settings.changes() {
        page.warning(&format!("changed during the run: {}", change.text));
    }
    let count = settings.count();
    let read = page.number_of(count as u64, "setting");
    page.item("read", &read);
    for note in settings.machines.iter().flat_map(|m| m.begin.iter().chain(&m.end)).flat_map(|reading| &reading.notes) {
        page.item("", &page.clean(note));
    }
    if !html {
        return;
    }
    let mut table = Table::new(&["<machine", "<setting", "<of", "<value", "<at the end", "<meaning"]);
    let mut rows = settings.machines.iter().flat_map(|machine| rows(page, machine));
    for row in rows.by_ref().take(MAX_ROWS) {
        table.row(row);
    }
    drop(rows);
    page.block(Block::Details(format!("{read} of all machines"), table));
    if count > MAX_ROWS {
        page.line(format!("and {} more: latpath report --json has all", count - MAX_ROWS));
    }
}

/// A row for each setting of a machine; `at the end` is empty if the value did not change.
fn rows<'a>(page: &'a Page, machine: &'a MachineSettings) -> impl Iterator<Item = Vec<String>> + 'a {
    let end = machine.end.iter().flat_map(|reading| &reading.values);
    let end: HashMap<_, _> = end.map(|value| ((&value.setting, &value.target), &value.value)).collect();
    let name = if machine.machine == HOST { HOST } else { &machine.machine };
    machine.values().map(move |value| {
        let after = end.get(&(&value.setting, &value.target)).filter(|after| **after != &value.value);
        let meaning = Setting::of_id(&value.setting).map_or("", |setting| setting.info().meaning);
        let cells = [name, &value.setting, &value.target, &value.value, after.map_or("", |after| after), meaning];
        cells.map(|cell| page.clean(cell)).to_vec()
    })
}
