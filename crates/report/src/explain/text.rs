//! The text of `latpath explain`: sums by cause and by culprit, then the ranking, the fixes and the worst packets.

use super::advice_text::fix;
use super::waterfall;
use super::worst::worst;
use crate::header::title;
use crate::page::{Page, Style};
use latpath_analysis::explain::{
    at_device, by_cause, by_culprit, described, fixes_of, latpath_to_warn_of, place_of_row, reasons, row_sentence,
    subject, ExplainedPacket, Explanation, Fix, RankedCause,
};
use latpath_capture::CaptureKind;
use latpath_cause::{Cause, Others, Row, RunContext};
use latpath_linux::Cpus;
use latpath_model::{Ns, HOST};
use latpath_run::{Run, SpikeFiles};
use latpath_stats::text::Table;
use latpath_stats::units::{self, bytes};

/// Maximum number of rows shown. The first `FEW` are always shown; further ones only if they are the first cause of a
/// packet or have a minimum share of the excess, in thousandths (`WORTH_A_ROW_PER_MILLE`).
const ROWS: usize = 12;
const FEW: usize = 3;
const WORTH_A_ROW_PER_MILLE: i128 = 5;
/// Maximum number of rows whose fixes are shown, and the minimum share of the excess for this, in thousandths.
const WITH_FIXES: usize = 3;
const WORTH_A_FIX_PER_MILLE: i128 = 50;
/// Maximum number of causes, and of culprits, in the first lines, and their minimum share of the excess, in
/// thousandths.
const SUMS: usize = 5;
const WORTH_A_SUM_PER_MILLE: i128 = 10;

/// The first lines for a log of round trips.
const WITHOUT_CAUSES: &str =
    "No causes: a log of round trips has their times, and not what the machines did meanwhile. \
    latpath ping emit --threshold TIME, as root, shows with each breach which thread or interrupt held it. \
    latpath record --stream 'udp::6185,seq=12:4' (with the reflector's port) beside the ping records the causes of all \
    late round trips for latpath explain. Below is where they took longer than usual.";

/// What is explained.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its captures.
    pub files: &'a SpikeFiles,
}

/// Formats an explanation as text, in lines no longer than the style allows.
pub fn explanation_text(
    head: &Head,
    explanation: &Explanation,
    context: &RunContext,
    style: impl Into<Style>,
) -> String {
    let mut page = Page::new(style);
    if head.run.manifest().has_round_trips() {
        page.wrapped("".into(), 0, WITHOUT_CAUSES);
        page.line("");
    } else if explanation.late > 0 {
        sums(&mut page, explanation);
        culprit(&mut page, explanation, context);
        page.line("");
    }
    write_head(&mut page, head, explanation);
    if explanation.late > 0 {
        ranking(&mut page, explanation, context);
        fixes(&mut page, explanation);
    }
    worst(&mut page, explanation, context);
    page.finish()
}

/// Formats one packet along its whole route as text.
pub fn packet_text(explained_packet: &ExplainedPacket, context: &RunContext, style: impl Into<Style>) -> String {
    let mut page = Page::new(style);
    waterfall::write(&mut page, explained_packet, context);
    page.finish()
}

pub(super) fn share(part: Ns, all: Ns) -> String {
    units::share(part.unsigned_abs(), all.unsigned_abs())
}

fn is_unexplained(ranked: &RankedCause) -> bool {
    ranked.row.cause == Cause::Unexplained
}

/// Writes the first lines: shares of the delay by cause and by culprit.
fn sums(page: &mut Page, explanation: &Explanation) {
    if explanation.excess_ns <= 0 {
        return;
    }
    let of_all = |ns: Ns| share(ns, explanation.excess_ns);
    let is_shown = |ns: Ns| i128::from(ns) * 1000 >= i128::from(explanation.excess_ns) * WORTH_A_SUM_PER_MILLE;
    let mut parts = Vec::new();
    let mut causes = by_cause(explanation);
    causes.sort_by_key(|total| std::cmp::Reverse(total.excess_ns));
    for total in causes.iter().filter(|total| is_shown(total.excess_ns)).take(SUMS) {
        let phrase = total.cause.info().phrase;
        match parts.is_empty() {
            true => {
                let packets = page.number_of(explanation.late, "late packet");
                let phrase = phrase[..1].to_uppercase() + &phrase[1..];
                parts.push(format!("{phrase}: {} of the delay of {packets}", of_all(total.excess_ns)));
            }
            false => parts.push(format!("{phrase} {}", of_all(total.excess_ns))),
        }
    }
    if !parts.is_empty() {
        page.wrapped("".into(), 0, &format!("{}.", parts.join("; ")));
    }
    let culprits = by_culprit(explanation);
    let culprits = culprits.iter().filter(|total| is_shown(total.excess_ns)).take(SUMS);
    let culprits: Vec<String> =
        culprits.map(|total| format!("{} {}", page.clean(&described(total)), of_all(total.excess_ns))).collect();
    if !culprits.is_empty() {
        page.wrapped("".into(), 0, &format!("By culprit: {}.", culprits.join(", ")));
    }
}

/// Writes the largest cause with its culprit and best fix.
fn culprit(page: &mut Page, explanation: &Explanation, context: &RunContext) {
    let rows = &explanation.ranking;
    let unexplained = rows.iter().find(|r| is_unexplained(r));
    let top = rows.iter().find(|r| !is_unexplained(r));
    let (late, excess) = (explanation.late, explanation.excess_ns);
    let of = |r: &RankedCause, page: &Page| {
        let first = match r.row.first {
            _ if late == 1 => "the late packet".into(),
            first if first == late => format!("all {} late packets", page.count(late)),
            first => format!("{} of {} late packets", page.count(first), page.count(late)),
        };
        let share = share(r.row.excess_ns, excess);
        let text = at_device(page, row_sentence(page, &r.row), &r.row, context);
        format!("{text}: first cause of {first}, {share} of their delay.")
    };
    let mut then = "";
    match (top, unexplained) {
        (None, None) => page.wrapped("".into(), 0, "No late packet took longer than the baseline."),
        (top, Some(u)) if top.is_none_or(|top| top.row.excess_ns < u.row.excess_ns) => {
            page.wrapped("".into(), 0, &of(u, page));
            then = "Then: ";
        }
        _ => {}
    }
    if let Some(top) = top {
        page.wrapped("".into(), 0, &format!("{then}{}", of(top, page)));
        top.advice.first().into_iter().for_each(|advice| fix(page, advice, "", "  Fix: ", 7));
    }
}

fn write_head(page: &mut Page, head: &Head, explanation: &Explanation) {
    title(page, head.run, &head.run.path().display().to_string(), "");
    figures(page, head, explanation);
}

/// Writes the number of late packets, and of those explained.
fn figures(page: &mut Page, head: &Head, explanation: &Explanation) {
    let of = |kind| head.files.files.iter().filter(move |f| f.head.kind() == kind);
    let size: u64 = head.files.files.iter().map(|f| f.bytes).sum();
    let record = head.run.manifest().spikes.clone().unwrap_or_default();
    let not_kept = match record.captures_not_kept {
        0 => "none left out".into(),
        n => format!("{} less bad ones left out", page.count(n)),
    };
    page.item("spikes", &format!("{} kept, {not_kept}, {}", of(CaptureKind::Spike).count(), bytes(size)));
    let late: u64 = record.late.iter().sum();
    let time = format!(
        "{} together, {} of it beyond the baseline",
        page.duration(explanation.time_ns),
        page.duration(explanation.excess_ns)
    );
    let explained_packet = page.count(explanation.late);
    let text = match late > explanation.late {
        true => format!("{}, {explained_packet} of them in these spikes: {time}", page.number_of(late, "packet")),
        false => format!("{}: {time}", page.number_of(explanation.late, "packet")),
    };
    page.item("late", &text);
    if explanation.excess_ns > 0 {
        let explained = units::share(1000 - explanation.unexplained_per_mille.min(1000), 1000);
        page.item("explained", &format!("{explained} of a packet's delay (median)"));
    }
    let baseline = match explanation.baseline_packets {
        0 if explanation.late == 0 => "not needed: no packet was late".into(),
        0 => "not known: packets were late at all times of this run; all of a late packet's time counts".into(),
        n => format!(
            "from {} of {} of this run",
            page.number_of(n, "on-time packet"),
            page.number_of(explanation.baseline_captures, "moment")
        ),
    };
    page.item("baseline", &baseline);
    if !explanation.no_flow.is_empty() {
        page.item("no flow", &format!("in Open vSwitch for late packets: {}", reasons(page, &explanation.no_flow)));
    }
    if explanation.without_baseline > 0 && explanation.baseline_packets > 0 {
        let packets = page.number_of(explanation.without_baseline, "late packet");
        page.warning(&format!(
            "{packets} took a route that no on-time packet took: all their time there counts as delay"
        ));
    }
    if let Some(own) = latpath_to_warn_of(explanation) {
        page.warning(&latpath_warning(&share(own, explanation.excess_ns)));
    }
    for note in explanation.notes.iter().chain(&head.files.notes) {
        page.warning(note);
    }
}

/// Warning that latpath's own threads made packets late.
pub(crate) fn latpath_warning(share: &str) -> String {
    format!(
        "latpath itself took {share} of the delay, in threads of its own (latpath, latpath-*, lp-*): without latpath these packets \
         would have been less late. To disturb less, record with --no-flight, which finds no causes, or give the reader a CPU of its own"
    )
}

/// Writes a line of figures for each row, and actor and culprit below it. Names are not truncated.
fn ranking(page: &mut Page, explanation: &Explanation, context: &RunContext) {
    page.heading("Causes, by the delay beyond the baseline");
    let mut table = Table::new(&HEADS);
    // The header line of the table is not followed by an actor and culprit.
    let mut subjects = vec![String::new()];
    for (cells, subject) in ranked_rows(page, explanation, context) {
        table.row(cells);
        subjects.push(subject);
    }
    for (line, subject) in page.table_lines(&table).iter().zip(subjects) {
        page.line(line);
        if !subject.is_empty() {
            page.wrapped("        ".into(), 8, &subject);
        }
    }
}

const HEADS: [&str; 7] = ["", "<cause", "packets", "delay", "median", "share", "<where"];

/// Indexes of the rows of the ranking that are shown with a number: the first few, and the significant ones.
fn shown_rows(explanation: &Explanation) -> Vec<usize> {
    let excess = i128::from(explanation.excess_ns);
    let is_shown = |(at, r): &(usize, &RankedCause)| {
        let worth = r.row.first > 0 || i128::from(r.row.excess_ns) * 1000 >= excess * WORTH_A_ROW_PER_MILLE;
        !is_unexplained(r) && (*at < FEW || (*at < ROWS && worth))
    };
    explanation.ranking.iter().enumerate().filter(is_shown).map(|(at, _)| at).collect()
}

/// Returns the rows below [`HEADS`], each with its actor and culprit.
fn ranked_rows(page: &Page, explanation: &Explanation, context: &RunContext) -> Vec<(Vec<String>, String)> {
    let all = explanation.ranking.iter().enumerate();
    let (unexplained, causes): (Vec<_>, Vec<_>) = all.partition(|(_, ranked)| is_unexplained(ranked));
    let shown = shown_rows(explanation);
    let (causes, hidden): (Vec<_>, Vec<_>) = causes.into_iter().partition(|(at, _)| shown.contains(at));
    let ranked = |number: String, row: &Row| {
        let cells = vec![
            number,
            row.cause.id().into(),
            page.count(row.first),
            page.duration(row.excess_ns),
            page.duration(row.median_ns()),
            share(row.excess_ns, explanation.excess_ns),
            place(page, row, context),
        ];
        (cells, subject(page, row))
    };
    let mut rows: Vec<_> = causes.iter().zip(1..).map(|((_, r), number)| ranked(number.to_string(), &r.row)).collect();
    let Others { rows: mut others, mut excess_ns, mut first } = explanation.others;
    for (_, ranked) in hidden {
        others += 1;
        excess_ns = excess_ns.saturating_add(ranked.row.excess_ns);
        first += ranked.row.first;
    }
    if others > 0 {
        let others = format!("{} others", page.count(others));
        let share = share(excess_ns, explanation.excess_ns);
        let [none, median, place] = [""; 3].map(String::from);
        let cells = vec![none, others, page.count(first), page.duration(excess_ns), median, share, place];
        rows.push((cells, String::new()));
    }
    rows.extend(unexplained.iter().map(|(_, r)| ranked(String::new(), &r.row)));
    rows
}

/// Writes the part of a document: the ranking with actor and culprit in a column, the fixes, the worst spikes.
pub(crate) fn document(page: &mut Page, head: &Head, explanation: &Explanation, context: &RunContext) {
    page.heading("Causes of late packets");
    if explanation.late == 0 {
        page.line("No late packet was captured.");
        return;
    }
    sums(page, explanation);
    culprit(page, explanation, context);
    figures(page, head, explanation);
    let mut table = Table::new(&[&HEADS[..], &["<what"]].concat());
    for (mut cells, subject) in ranked_rows(page, explanation, context) {
        cells.push(subject);
        table.row(cells);
    }
    page.table(&table);
    fixes(page, explanation);
    worst(page, explanation, context);
}

/// CPUs and segment of a row, e.g. `CPU 4, Thyp`; preceded by the machine unless it is the host.
fn place(page: &Page, row: &Row, context: &RunContext) -> String {
    if row.cause == Cause::Unexplained {
        return row.hops.first().map_or(String::new(), |(hop, _)| page.clean(&place_of_row(*hop, context)));
    }
    let mut hops = Vec::new();
    if row.machine != HOST {
        hops.push(page.clean(&row.machine));
    }
    hops.extend(cpus(&row.cpus));
    if let Some((hop, _)) = row.hops.first() {
        hops.push(page.clean(&place_of_row(*hop, context)));
    }
    hops.join(", ")
}

/// Formats a list of CPUs: `CPU 4`, `CPUs 0-2`; if there are more than three, only how many.
fn cpus(all: &[(u32, Ns)]) -> Option<String> {
    match all.len() {
        0..=3 => all.iter().map(|(cpu, _)| *cpu).collect::<Cpus>().named(),
        many => Some(format!("{many} CPUs")),
    }
}

/// Returns the fixes of the top rows, in the order of the rows' numbers.
pub(super) fn shown_fixes(explanation: &Explanation) -> Vec<Fix> {
    let excess = i128::from(explanation.excess_ns.max(1));
    let is_worth = |at: &usize| {
        explanation
            .ranking
            .get(*at)
            .is_some_and(|r| i128::from(r.row.excess_ns) * 1000 / excess >= WORTH_A_FIX_PER_MILLE)
    };
    let rows: Vec<usize> = shown_rows(explanation).into_iter().take(WITH_FIXES).filter(is_worth).collect();
    fixes_of(explanation, &rows)
}

/// Writes the fixes, each with the rows that it would fix.
fn fixes(page: &mut Page, explanation: &Explanation) {
    let fixes = shown_fixes(explanation);
    if fixes.is_empty() {
        return;
    }
    page.heading("Fixes, each with the causes that it is for");
    let shown = shown_rows(explanation);
    for (Fix { advice, rows, excess_ns }, number) in fixes.iter().zip(1..) {
        let number_of = |row: &usize| Some(shown.iter().position(|at| at == row)? as u32 + 1);
        let rows: Cpus = rows.iter().filter_map(number_of).collect();
        let for_rows = format!(" (cause {rows}: {})", share(*excess_ns, explanation.excess_ns));
        fix(page, advice, &for_rows, &format!("  {number:>2}  "), 6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_as_the_kernel_lists_them() {
        let text = |numbers: &[u32]| cpus(&numbers.iter().map(|cpu| (*cpu, 0)).collect::<Vec<_>>());
        assert_eq!(text(&[]), None);
        let lists = [&[4][..], &[1, 0], &[7, 0, 6], &[0, 1, 2, 3]].map(|numbers| text(numbers).unwrap());
        assert_eq!(lists, ["CPU 4", "CPUs 0-1", "CPUs 0,6-7", "4 CPUs"]);
    }
}
