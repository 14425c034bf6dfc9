//! The text of `latpath explain`: the culprit first, then the ranking, the fixes and the worst packets.

use super::advice_text::{fix, on_machine};
use super::selector::name;
use super::sentence::{row_sentence, sentence, subject};
use super::waterfall;
use super::{ExplainedPacket, ExplainedSpike, Explanation, RankedCause};
use crate::header::title;
use crate::page::{Page, Style};
use latpath_capture::CaptureKind;
use latpath_cause::{Actor, Advice, Cause, CauseShare, Others, Row, RunContext};
use latpath_linux::Cpus;
use latpath_model::{Ns, HOST};
use latpath_run::{Run, SpikeFiles};
use latpath_stats::text::Table;
use latpath_stats::units::{self, bytes};

/// Rows that are shown at most; the first few whatever they are, others if a packet or so many thousandths of the excess are theirs.
const ROWS: usize = 12;
const FEW: usize = 3;
const WORTH_A_ROW_PER_MILLE: i128 = 5;
/// Rows whose fixes are shown, if they make up as much of the excess.
const WITH_FIXES: usize = 3;
const WORTH_A_FIX_PER_MILLE: i128 = 50;

#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    pub run: &'a Run,
    pub files: &'a SpikeFiles,
}

/// All of it, in lines that are no wider than the style.
pub fn explanation_text(
    head: &Head,
    explanation: &Explanation,
    context: &RunContext,
    style: impl Into<Style>,
) -> String {
    let mut page = Page::new(style);
    if explanation.late > 0 {
        culprit(&mut page, explanation);
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

/// One packet, on its whole route.
pub fn packet_text(explained_packet: &ExplainedPacket, context: &RunContext, style: impl Into<Style>) -> String {
    let mut page = Page::new(style);
    waterfall::write(&mut page, explained_packet, context);
    page.finish()
}

fn share(part: Ns, all: Ns) -> String {
    units::share(part.unsigned_abs(), all.unsigned_abs())
}

fn is_unexplained(ranked: &RankedCause) -> bool {
    ranked.row.cause == Cause::Unexplained
}

/// The first line: the culprit.
fn culprit(page: &mut Page, explanation: &Explanation) {
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
        format!("{}: first cause of {first}, {share} of their delay.", row_sentence(page, &r.row))
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
        top.advice.first().into_iter().for_each(|advice| fix(page, advice, "  Fix: ", 7));
    }
}

fn write_head(page: &mut Page, head: &Head, explanation: &Explanation) {
    title(page, head.run, &head.run.path().display().to_string(), "");
    figures(page, head, explanation);
}

/// How many packets were late, and how many of them are explained.
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
        0 => "not known: packets were late at all times of this run; all of a late packet's time counts".into(),
        n => format!(
            "from {} of {} of this run",
            page.number_of(n, "on-time packet"),
            page.number_of(explanation.baseline_captures, "moment")
        ),
    };
    page.item("baseline", &baseline);
    if explanation.without_baseline > 0 && explanation.baseline_packets > 0 {
        let packets = page.number_of(explanation.without_baseline, "late packet");
        page.warning(&format!(
            "{packets} took a route that no on-time packet took: all their time there counts as delay"
        ));
    }
    for note in explanation.notes.iter().chain(&head.files.notes) {
        page.warning(note);
    }
}

/// A line of figures for each row, and below it actor and culprit. Names are never cut.
fn ranking(page: &mut Page, explanation: &Explanation, context: &RunContext) {
    page.heading("Causes, by the delay beyond the baseline");
    let mut table = Table::new(&HEADS);
    // The heads have none.
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

/// The rows under [`HEADS`], each with its actor and culprit.
fn ranked_rows(page: &Page, explanation: &Explanation, context: &RunContext) -> Vec<(Vec<String>, String)> {
    let all = explanation.ranking.iter().enumerate();
    let (unexplained, causes): (Vec<_>, Vec<_>) = all.partition(|(_, ranked)| is_unexplained(ranked));
    let excess = i128::from(explanation.excess_ns);
    let is_shown = |(at, r): &(usize, &RankedCause)| {
        let worth = r.row.first > 0 || i128::from(r.row.excess_ns) * 1000 >= excess * WORTH_A_ROW_PER_MILLE;
        *at < FEW || (*at < ROWS && worth)
    };
    let (causes, hidden): (Vec<_>, Vec<_>) = causes.into_iter().partition(is_shown);
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
    let mut rows: Vec<_> = causes.iter().map(|(at, r)| ranked((at + 1).to_string(), &r.row)).collect();
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

/// For documents: the ranking with actor and culprit in a column, the fixes, the worst spikes.
pub(crate) fn document(page: &mut Page, head: &Head, explanation: &Explanation, context: &RunContext) {
    page.heading("Causes of late packets");
    if explanation.late == 0 {
        page.line("No late packet was captured.");
        return;
    }
    culprit(page, explanation);
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

/// `CPU 4, Thyp`; with the machine, if it is not the host.
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

/// `CPU 4`, `CPUs 0-2`; of more than three, how many.
fn cpus(all: &[(u32, Ns)]) -> Option<String> {
    match all.len() {
        0..=3 => all.iter().map(|(cpu, _)| *cpu).collect::<Cpus>().named(),
        many => Some(format!("{many} CPUs")),
    }
}

/// A classic name; ends of others are too long for a table.
pub(crate) fn place_of_row(hop: (u16, u16), context: &RunContext) -> String {
    if let Some(segment) = context.segment_of(hop) {
        return segment.name.clone();
    }
    let kind = |id: u16| context.points.get(usize::from(id)).map_or("?".into(), |p| p.point.kind.to_string());
    format!("{}→{}", kind(hop.0), kind(hop.1))
}

/// Whether the fixes of a row are shown in full.
fn shows_fixes(at: usize, explanation: &Explanation) -> bool {
    let Some(ranked) = explanation.ranking.get(at).filter(|r| at < WITH_FIXES && !r.advice.is_empty()) else {
        return false;
    };
    let excess = i128::from(explanation.excess_ns.max(1));
    i128::from(ranked.row.excess_ns) * 1000 / excess >= WORTH_A_FIX_PER_MILLE
}

/// The fixes of the top rows.
fn fixes(page: &mut Page, explanation: &Explanation) {
    let rows: Vec<_> = explanation.ranking.iter().enumerate().filter(|(at, _)| shows_fixes(*at, explanation)).collect();
    if rows.is_empty() {
        return;
    }
    page.heading("Fixes");
    for (at, ranked) in rows {
        for (i, advice) in ranked.advice.iter().enumerate() {
            let before = if i == 0 { format!("  {:>2}  ", at + 1) } else { "  or  ".to_owned() };
            fix(page, advice, &before, 6);
        }
    }
}

/// A line for each of the worst spikes.
fn worst(page: &mut Page, explanation: &Explanation, context: &RunContext) {
    if explanation.spikes.is_empty() {
        return;
    }
    page.heading("The worst packet of each of the worst spikes (latpath explain RUN --packet N shows one)");
    for (at, ExplainedSpike { worst: explained_packet, more }) in explanation.spikes.iter().enumerate() {
        let explained = &explained_packet.explained;
        let begin = explained.begin().unwrap_or(0);
        let name = page.clean(&name(explained.stream, explained.key, begin, context));
        let mut line = format!("{name}  {}", one_line(page, explained_packet, context));
        line += &match more {
            0 => String::new(),
            1 => " 1 more packet was late then.".into(),
            n => format!(" {} more packets were late then.", page.count(*n)),
        };
        line += &match row_of(explained_packet, explanation) {
            Some(row) if shows_fixes(row, explanation) => format!(" Fix: see {}.", row + 1),
            _ => explained_packet.advice.first().map_or(String::new(), |advice| short_fix(page, advice)),
        };
        page.wrapped(format!("  {:>2}. ", at + 1), 6, &line);
    }
}

/// The row whose fixes are shown and that has this packet.
fn row_of(explained_packet: &ExplainedPacket, explanation: &Explanation) -> Option<usize> {
    let first = explained_packet.attribution.first()?;
    let name = |m: Option<&Actor>| m.map(|m| m.name.clone());
    explanation.ranking.iter().take(WITH_FIXES).position(|r| {
        let same = (r.row.cause, r.row.machine.as_str()) == (first.cause, first.machine.as_str());
        let by = |by: &[(Actor, Ns)]| name(by.first().map(|(m, _)| m));
        let actors = |share: &CauseShare| [name(share.actor.as_ref()), by(&share.by), name(share.waiter.as_ref())];
        same && actors(&r.row) == actors(first)
    })
}

fn short_fix(page: &Page, advice: &Advice) -> String {
    page.clean(&format!(" Fix: {}{}", on_machine(advice), advice.commands.first().unwrap_or(&advice.what)))
}

/// `14.61 ms in Thyp: vhost of guest7 (5620, CPU 4, SCHED_OTHER) ready but not running for 14.20 ms behind …`
pub(crate) fn one_line(page: &Page, explained_packet: &ExplainedPacket, context: &RunContext) -> String {
    let total = page.duration(explained_packet.attribution.time_ns);
    let Some(first) = explained_packet.attribution.first() else {
        return format!("{total}: no longer than the baseline.");
    };
    let at = first
        .hops
        .first()
        .map_or(String::new(), |(hop, _)| format!(" in {}", page.clean(&place_of_row(*hop, context))));
    let daemon = match explained_packet.explained.with_daemon(&context.points) {
        0 => String::new(),
        ns => format!(", {} of it with ovs-vswitchd", page.duration(ns)),
    };
    format!("{total}{at}{daemon}: {}.", sentence(page, first))
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
