//! The table of a study, as text and as documents.

use crate::document::{asciidoc_of, sheet, without_markup, Sheet};
use crate::page::{Block, Page, Picture, Style};
use crate::quality::footnotes;
use crate::study_charts::pictures;
use latpath_compare::sentence::by;
use latpath_compare::{StudyRow, Verdict};
use latpath_stats::text::Table;
use latpath_stats::units::{number_of, rate, share, CharacterSet};
use latpath_stats::DelayShare;
use latpath_study::{Against, CellRow, FigureDifference, RunSeries, StudyTable};

/// Minimum difference that is called an effect, in units of the deviation between recordings.
const EFFECT: f64 = 2.0;

/// Formats a study's table as text.
pub fn study_table_text(table: &StudyTable, style: Style) -> String {
    let mut page = Page::new(style);
    page.heading(&page.clean(&title(table)));
    write(&mut page, table);
    page.finish()
}

/// Formats a study as one HTML page, with a picture of each cell.
pub fn study_table_html(table: &StudyTable, series: &[Vec<RunSeries>]) -> String {
    let mut page = Page::new(Style { is_for_people: true, ..CharacterSet::Unicode.into() });
    page.heading("Trials");
    write(&mut page, table);
    let charts = pictures_of(&page, table, series, "");
    add_pictures(&mut page, charts);
    let data = serde_json::json!({ "begin_ms": 0, "slot_ns": 1, "slots": 0, "threshold_ns": table.threshold_ns, "segments": [] });
    sheet(&Sheet {
        title: format!("latpath study: {}", page.clean(&table.name)),
        blocks: page.into_blocks(),
        limits: &table.limits,
        is_weak: false,
        data: without_markup(&data),
        source: number_of(table.complete as u64, "recording"),
    })
}

/// Formats a study as AsciiDoc; also returns its pictures: their file names, which begin with `stem`, and their SVG.
/// The files belong beside the document.
pub fn study_table_asciidoc(
    table: &StudyTable,
    series: &[Vec<RunSeries>],
    stem: &str,
) -> (String, Vec<(String, String)>) {
    let mut page = Page::new(CharacterSet::Unicode);
    page.heading("Trials");
    write(&mut page, table);
    let charts = pictures_of(&page, table, series, stem);
    let files = charts.iter().map(|picture| (picture.file.clone(), picture.svg.clone())).collect();
    add_pictures(&mut page, charts);
    let title = page.clean(&title(table));
    (asciidoc_of(&title, &page.into_blocks()), files)
}

fn pictures_of(page: &Page, table: &StudyTable, series: &[Vec<RunSeries>], stem: &str) -> Vec<Picture> {
    let names = Names::of(table);
    pictures(table, series, stem, |cell| names.label(page, cell))
}

fn add_pictures(page: &mut Page, pictures: Vec<Picture>) {
    page.heading("Times over time, and how often each occurs");
    pictures.into_iter().for_each(|picture| page.block(Block::Picture(picture)));
}

/// The title of a study's pages.
fn title(table: &StudyTable) -> String {
    format!("Study {}", table.name)
}

/// Writes the table without its title.
fn write(page: &mut Page, table: &StudyTable) {
    head(page, table);
    effects(page, table);
    times(page, table);
    causes(page, table);
    differences(page, table);
    settings(page, table);
    failures(page, table);
    table.notes.iter().for_each(|note| page.warning(note));
    legend(page, table);
    footnotes(page, &table.footnotes);
}

fn head(page: &mut Page, table: &StudyTable) {
    let repetitions = number_of(table.repetitions.into(), "repetition");
    let (warm_up, duration) = (page.duration(table.warm_up_ns), page.duration(table.duration_ns));
    page.item("trials", &format!("{} of {} complete, {repetitions} of each cell", table.complete, table.trials));
    page.item("each", &format!("{duration} recorded, after {warm_up} with stream and load"));
    page.item("order", &format!("random in each repetition, seed {}", table.seed));
    let left = table.trials - table.complete - table.failed.len();
    if left > 0 {
        page.warning(&format!("{} still to be made: the table is not complete", number_of(left as u64, "trial")));
    }
    if !table.failed.is_empty() {
        page.warning(&format!("{} failed, see below", number_of(table.failed.len() as u64, "trial")));
    }
    let broken = table.limits.iter().filter(|verdict| !verdict.is_kept()).count();
    match (table.limits.len(), broken) {
        (0, _) => {}
        (all, 0) => page.item("limits", &format!("all {all} are kept")),
        (all, broken) => page.warning(&format!("{broken} of {all} limits are not kept")),
    }
}

/// The parts of a cell's name that are shown because they differ between the cells of a table.
struct Names {
    shown: [bool; 4],
}

impl Names {
    fn of(table: &StudyTable) -> Self {
        let parts = |cell: &CellRow| [&cell.direction, &cell.topology, &cell.settings, &cell.load].map(String::clone);
        let first = table.cells.first().map(parts).unwrap_or_default();
        let differs = |at: usize| table.cells.iter().any(|cell| parts(cell)[at] != first[at]);
        let shown = [0, 1, 2, 3].map(differs);
        // If no part differs, as in a table of a single cell, the topology is shown.
        Self { shown: if shown == [false; 4] { [false, true, false, false] } else { shown } }
    }

    fn heads(&self) -> Vec<&'static str> {
        let all = ["<direction", "<topology", "<settings", "<load"];
        all.into_iter().zip(self.shown).filter(|(_, shown)| *shown).map(|(head, _)| head).collect()
    }

    fn cells(&self, page: &Page, cell: &CellRow) -> Vec<String> {
        let all = [&cell.direction, &cell.topology, &cell.settings, &cell.load];
        all.into_iter().zip(self.shown).filter(|(_, shown)| *shown).map(|(name, _)| page.clean(name)).collect()
    }

    /// The cell's name: `in, ovs, udp`.
    fn label(&self, page: &Page, cell: &CellRow) -> String {
        self.cells(page, cell).join(", ")
    }
}

fn times(page: &mut Page, table: &StudyTable) {
    let names = Names::of(table);
    page.heading(&page.clean(&format!("Times of {}", table.segment)));
    let over = format!("over {}", page.duration(table.threshold_ns));
    let band = table.band.map(|band| format!("in {} to {}", page.duration(band.from_ns), page.duration(band.to_ns)));
    let has_rates = table.cells.iter().any(|cell| cell.load_bits_per_second.is_some());
    let mut heads = names.heads();
    heads.extend(["runs", "mean", "±runs", "stddev", "min", "p50", "p99", "p99.9", "max", &over]);
    heads.extend(band.as_deref());
    heads.extend(["packets", "lost"]);
    heads.extend(has_rates.then_some("load"));
    let mut shown = Table::new(&heads);
    for cell in &table.cells {
        let mut row = names.cells(page, cell);
        match &cell.figures {
            Some(figures) => row.extend(times_of(page, cell, figures, table.band.is_some())),
            None => row.push("0".into()),
        }
        row.resize(heads.len() - usize::from(has_rates), String::new());
        row.extend(has_rates.then(|| cell.load_bits_per_second.map_or(String::new(), bits)));
        shown.row(row);
    }
    page.table(&shown);
}

fn times_of(page: &Page, cell: &CellRow, row: &StudyRow, has_band: bool) -> Vec<String> {
    let times = &row.times;
    let time = |ns| if times.count == 0 { "-".into() } else { page.duration(ns) };
    let mut cells = vec![row.recordings.to_string(), time(times.mean_ns)];
    cells.push(cell.between_runs_ns.map_or("-".into(), |ns| page.duration(ns)));
    let all = [times.stddev_ns, times.min_ns, times.p50_ns, times.p99_ns, times.p99_9_ns, times.max_ns];
    cells.extend(all.map(time));
    cells.push(page.count(row.over_threshold));
    cells.extend(has_band.then(|| share(row.in_band.unwrap_or(0), times.count)));
    cells.push(page.count(row.packets));
    cells.push(row.lost.map_or("not known".into(), |n| page.count(n)));
    cells
}

fn bits(per_second: f64) -> String {
    match per_second {
        bits if bits >= 1e9 => format!("{:.2} Gbit/s", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{} bit/s", rate(bits)),
    }
}

fn causes(page: &mut Page, table: &StudyTable) {
    if table.cells.iter().all(|cell| cell.explained == 0) {
        return;
    }
    let names = Names::of(table);
    page.heading("What held the late packets");
    let mut heads = names.heads();
    heads.extend(["late", "<by cause", "<by culprit"]);
    let mut shown = Table::new(&heads);
    for cell in table.cells.iter().filter(|cell| cell.explained > 0) {
        let mut row = names.cells(page, cell);
        row.push(page.count(cell.explained));
        let list = |all: &[DelayShare]| {
            let one = |one: &DelayShare| format!("{} {:.0} %", page.clean(&one.name), one.share_percent);
            all.iter().take(3).map(one).collect::<Vec<_>>().join("; ")
        };
        row.extend([list(&cell.causes), list(&cell.culprits)]);
        shown.row(row);
    }
    page.whole_table(&shown);
}

fn differences(page: &mut Page, table: &StudyTable) {
    if table.differences.is_empty() {
        return;
    }
    let names = Names::of(table);
    page.heading("Differences");
    let heads = ["<cell", "<against", "<figure", "difference", "95 % interval", "corrected p", "× noise", "<"];
    let mut shown = Table::new(&heads);
    for against in &table.differences {
        let label = |at: usize| names.label(page, &table.cells[at]);
        let (mut cell, mut reference) = (label(against.cell), label(against.reference));
        if let Some(why) = against.not_comparable.first() {
            let mut row = vec![cell, reference, "all".into()];
            row.resize(heads.len() - 1, String::new());
            row.push(format!("not comparable: {}", page.clean(why)));
            shown.row(row);
            continue;
        }
        for figure in &against.figures {
            shown.row(difference(page, figure, std::mem::take(&mut cell), std::mem::take(&mut reference)));
        }
    }
    page.whole_table(&shown);
}

fn difference(page: &Page, figure: &FigureDifference, cell: String, reference: String) -> Vec<String> {
    let (by, interval) = by(&figure.row);
    let text = |text: Option<String>| text.map_or(String::new(), |text| page.clean(&text));
    let p = figure.row.p_corrected.map_or(String::new(), |p| match p {
        p if p < 0.0001 => "<0.0001".into(),
        p => format!("{p:.4}"),
    });
    let name = if figure.row.figure == "lost_share" { "lost" } else { &figure.row.figure };
    let noise = figure.difference_per_noise.map_or(String::new(), |n| format!("{:.1}", n.abs()));
    let verdict = figure.row.verdict.text().into();
    vec![cell, reference, name.into(), text(by), text(interval), p, noise, verdict]
}

/// Writes, for each pair of settings, the settings that differ and their values.
fn settings(page: &mut Page, table: &StudyTable) {
    let is_of_settings = |one: &&Against| {
        let (cell, reference) = (&table.cells[one.cell], &table.cells[one.reference]);
        cell.settings != reference.settings && cell.topology == reference.topology
    };
    let pairs: Vec<&Against> = table.differences.iter().filter(is_of_settings).collect();
    let mut shown: Vec<&str> = Vec::new();
    for against in pairs {
        let (cell, reference) = (&table.cells[against.cell], &table.cells[against.reference]);
        if shown.contains(&cell.settings.as_str()) {
            continue;
        }
        shown.push(&cell.settings);
        page.heading(&page.clean(&format!("What {} changes against {}", cell.settings, reference.settings)));
        if against.settings.is_empty() {
            page.line("  none of the settings that were read differs");
            continue;
        }
        let mut table = Table::new(&["<setting", "<of", &page.clean(&reference.settings), &page.clean(&cell.settings)]);
        for one in &against.settings {
            let name = match one.settings.as_slice() {
                [name] => name.clone(),
                names => format!("{} settings", names.len()),
            };
            let side = |values: &[String]| match values {
                [] => "not read".into(),
                values => page.clean(&values.join(" or ")),
            };
            table.row(vec![page.clean(&name), page.clean(&one.place()), side(&one.b), side(&one.a)]);
        }
        page.whole_table(&table);
    }
}

/// Writes the conclusion: one sentence for each cell that has a reference.
fn effects(page: &mut Page, table: &StudyTable) {
    if table.differences.is_empty() {
        return;
    }
    let names = Names::of(table);
    page.heading("In short");
    for against in &table.differences {
        let label = |at: usize| names.label(page, &table.cells[at]);
        let (cell, reference) = (label(against.cell), label(against.reference));
        let text = conclusion(page, against);
        page.wrapped("  ".into(), 4, &format!("{cell} against {reference}: {text}"));
    }
}

fn conclusion(page: &Page, against: &Against) -> String {
    if let Some(why) = against.not_comparable.first() {
        return format!("not comparable: {}", page.clean(why));
    }
    let is_clear = |one: &&FigureDifference| one.row.verdict.is_difference();
    let clear: Vec<&FigureDifference> = against.figures.iter().filter(is_clear).collect();
    let named = |one: &&FigureDifference| {
        let by = by(&one.row).0.unwrap_or_default();
        let name = if one.row.figure == "lost_share" { "lost packets" } else { &one.row.figure };
        let size = match one.difference_per_noise.map(f64::abs) {
            Some(noise) if noise < EFFECT => format!(", below {EFFECT:.0} × noise"),
            Some(noise) => format!(", {noise:.1} × noise"),
            None => String::new(),
        };
        format!("{name} {by} ({}{size})", one.row.verdict.text())
    };
    match clear.as_slice() {
        [] => {
            let is_same = |one: &&FigureDifference| one.row.verdict == Verdict::NoDifference;
            match against.figures.iter().filter(is_same).count() {
                0 => "nothing could be tested".into(),
                n => format!("no difference to be seen in {}", number_of(n as u64, "figure")),
            }
        }
        clear => page.clean(&clear.iter().map(named).collect::<Vec<_>>().join("; ")),
    }
}

fn failures(page: &mut Page, table: &StudyTable) {
    if table.failed.is_empty() {
        return;
    }
    page.heading("Failed trials");
    let mut shown = Table::new(&["<trial", "<reason"]);
    for failed in &table.failed {
        shown.row(vec![page.clean(&failed.trial), page.clean(&failed.reason)]);
    }
    page.whole_table(&shown);
}

fn legend(page: &mut Page, table: &StudyTable) {
    page.heading("How to read this");
    let mut lines =
        vec!["Times are those of all runs of a cell together; ±runs is the standard deviation of its runs' means."
            .to_owned()];
    if !table.differences.is_empty() {
        lines.push(format!(
            "Tested: {}. The corrected p is the probability to differ so much by chance, corrected for all of them \
             (Holm); runs count first, then blocks of seconds within them (docs/compare.md). × noise: the difference, in \
             units of the deviation between runs of one cell.",
            number_of(table.tested as u64, "figure")
        ));
    }
    let obstacles = table.differences.iter().flat_map(|one| &one.figures).filter_map(|one| one.row.obstacle.as_ref());
    let mut why: Vec<&String> = obstacles.collect();
    why.sort();
    why.dedup();
    lines.extend(why.into_iter().map(|why| format!("Not comparable: {why}.")));
    if table.repetitions < 5 {
        lines.push("With fewer than 5 repetitions only large differences show.".into());
    }
    for line in lines {
        page.wrapped("  ".into(), 2, &page.clean(&line));
    }
}
