//! Data quality: packets lost by the network, sightings lost by latpath, and everything else that limits the figures.

use crate::page::Page;
use latpath_analysis::warnings;
use latpath_model::{Point, HOST};
use latpath_stats::units::share;
use latpath_stats::{
    figures::{longest_row, never_seen, packets},
    text::{date_time, short_stream, Table},
    units::bytes,
    Loss, Summary,
};

pub(crate) const NOT_KNOWN: &str = "not known: the run was imported from durations alone";

/// Writes the completeness of the journeys, and warnings. Warnings in `shown` were already shown and are not repeated.
pub(crate) fn write(page: &mut Page, summary: &Summary, shown: &[String]) {
    page.heading("Data quality");
    let lost = packets(&summary.lost);
    let of = |page: &Page, n: u64| format!("{} ({})", page.count(n), share(n, summary.journeys));
    page.item("journeys", &page.count(summary.journeys));
    if summary.durations_alone {
        page.item("lost", NOT_KNOWN);
        page.item("in a row", "not measured: nothing says which packets followed each other");
        notes(page, summary, shown);
        return;
    }
    page.item("complete", &of(page, summary.complete));
    let incomplete = match summary.points.is_empty() && summary.incomplete > 0 {
        true => format!("{}, no route is known", of(page, summary.incomplete)),
        false => format!("{}, arrived but lack a sighting on the route", of(page, summary.incomplete)),
    };
    page.item("incomplete", &incomplete);
    page.item("lost", &of(page, lost));
    let others = format!(
        "{} duplicates, {} out of order, {} never seen, {} malformed frames",
        page.count(summary.duplicates),
        page.count(summary.out_of_order),
        page.count(never_seen(summary)),
        page.count(summary.malformed)
    );
    page.item("also", &others);
    let over = page.duration(summary.threshold_ns);
    let row = match longest_row(summary) {
        Some((stream, row)) => format!(
            "{} late (over {over}) or missing: {}, key {}, {}",
            page.count(row.packets),
            page.clean(&short_stream(&stream.stream)),
            row.key,
            date_time(row.time_ns)
        ),
        None => format!("0 late (over {over}) or missing"),
    };
    page.item("in a row", &row);
    let tool = &summary.tool;
    let dropped = format!("{}, {} dropped", page.count(tool.sightings), page.count(tool.sightings_dropped));
    page.item("sightings", &dropped);
    notes(page, summary, shown);
}

fn notes(page: &mut Page, summary: &Summary, shown: &[String]) {
    // The notes of a run's report include its warnings.
    let warnings = warnings(summary).into_iter().filter(|w| !summary.notes.contains(w));
    let all: Vec<String> = warnings.chain(summary.notes.iter().cloned()).collect();
    let (before, new): (Vec<&String>, Vec<&String>) = all.iter().partition(|note| shown.contains(note));
    if !before.is_empty() {
        let n = page.number_of(before.len() as u64, "note");
        page.item("above", &format!("{n}, in what weakens the verdict"));
    }
    new.into_iter().for_each(|note| page.warning(note));
}

/// Writes, as footnotes, limits of observation for which there is no evidence that packets were affected.
pub(crate) fn footnotes(page: &mut Page, footnotes: &[String]) {
    if footnotes.is_empty() {
        return;
    }
    page.heading("Footnotes");
    for note in footnotes {
        let text = page.clean(note);
        page.wrapped("  ".into(), 4, &text);
    }
}

pub(crate) fn losses(page: &mut Page, summary: &Summary) {
    let lost = packets(&summary.lost);
    if lost == 0 {
        return;
    }
    page.heading("Lost packets, by the last place that saw them");
    let mut table = Table::new(&["<last seen at", "packets", "of lost", "of all", "kernel's count", "<why"]);
    for loss in &summary.lost {
        table.row(vec![
            page.clean(&loss.place),
            page.count(loss.count),
            share(loss.count, lost),
            share(loss.count, summary.journeys),
            loss.kernel_count.map_or("-".into(), |n| page.count(n)),
            why(page, loss),
        ]);
    }
    page.table(&table);
}

/// Cause of a loss: `queueing discipline at hout (QDISC_DROP in __dev_queue_xmit)`.
fn why(page: &Page, loss: &Loss) -> String {
    let at = loss.dropped_at.as_deref().and_then(device).map_or_else(String::new, |device| format!(" at {device}"));
    match (&loss.meaning, &loss.reason) {
        (Some(meaning), Some(reason)) => page.clean(&format!("{meaning}{at} ({reason})")),
        (Some(text), None) | (None, Some(text)) => page.clean(&format!("{text}{at}")),
        (None, None) => String::new(),
    }
}

/// Device of a `drop` point, preceded by the machine's name unless it is this host.
fn device(point: &str) -> Option<String> {
    let point: Point = point.parse().ok()?;
    match (point.machine.as_str(), point.device) {
        (_, device) if device == "-" => None,
        (HOST, device) => Some(device),
        (machine, device) => Some(format!("{machine}/{device}")),
    }
}

/// Writes the cost of tracing.
pub(crate) fn tool(page: &mut Page, summary: &Summary) {
    let tool = &summary.tool;
    page.heading("What tracing cost");
    let text = format!(
        "{} ns a sighting, {:.1} % of one CPU, {} of memory, {} of {} sightings dropped",
        tool.ns_per_sighting,
        tool.cpu_percent,
        bytes(tool.max_rss_bytes),
        page.count(tool.sightings_dropped),
        page.count(tool.sightings.saturating_add(tool.sightings_dropped)),
    );
    page.wrapped("  ".into(), 4, &text);
    for machine in &summary.machines {
        if let Some(percent) = machine.cpu_percent {
            page.line(format!("  on {}: {percent:.1} % of one of its CPUs", page.clean(&machine.machine)));
        }
    }
}
