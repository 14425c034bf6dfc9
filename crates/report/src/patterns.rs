//! Patterns of a recording.

use crate::page::Page;
use latpath_clock::TimeOfDay;
use latpath_model::Ns;
use latpath_stats::text::{date_time, short_stream, Table};
use latpath_stats::{Pattern, Summary};

/// Writes a row and a sentence for each pattern. If the run's time of day is given, each row also has the pattern's
/// start in UTC, as in other tables of a document.
pub(crate) fn write(page: &mut Page, summary: &Summary, utc: Option<TimeOfDay>) {
    if summary.patterns.is_empty() {
        return;
    }
    page.heading("Patterns");
    let mut heads = vec!["<", "<pattern", "<where", "from", "to", "times", "packets", "<streams"];
    heads.extend(utc.as_ref().map(|_| "<from (UTC)"));
    let mut table = Table::new(&heads);
    for (n, pattern) in (1..).zip(&summary.patterns) {
        let mut cells = vec![
            format!("{n}."),
            pattern.kind.to_string(),
            place(page, summary, pattern),
            since(pattern.since_start_ns),
            since(pattern.until_ns),
            page.count(pattern.count),
            page.count(pattern.packets),
            streams(page, pattern),
        ];
        cells.extend(utc.as_ref().map(|utc| date_time(utc.utc(pattern.from_ns))));
        table.row(cells);
    }
    page.table(&table);
    for (n, pattern) in (1..).zip(&summary.patterns) {
        let text = page.clean(&pattern.text);
        page.wrapped(format!("  {n}. "), 5, &text);
    }
}

/// Lists the segments with the pattern, by name or by the numbers of their ends; if there are none, the pattern's path.
fn place(page: &Page, summary: &Summary, pattern: &Pattern) -> String {
    let (from, to) = (summary.number(&pattern.from), summary.number(&pattern.to));
    let ends = match (from, to) {
        (Some(from), Some(to)) => format!("{from}{}{to}", page.letters.arrow()),
        (None, Some(to)) if pattern.from.is_empty() => format!("before {to}"),
        _ => String::new(),
    };
    let is_named = |name: &&String| !name.contains('/');
    let names = pattern.segments.iter().filter(is_named).map(|name| page.clean(name));
    let all: Vec<String> = [ends].into_iter().filter(|ends| !ends.is_empty()).chain(names).collect();
    match (all.is_empty(), &pattern.path) {
        (true, Some(path)) => page.clean(path),
        _ => all.join(", "),
    }
}

/// The name of the stream if there is only one, otherwise the number of streams.
fn streams(page: &Page, pattern: &Pattern) -> String {
    match pattern.streams.as_slice() {
        [one] => page.clean(&short_stream(one)),
        several => page.number_of(several.len() as u64, "stream"),
    }
}

/// Seconds since the start of the recording, with two decimals.
fn since(ns: Ns) -> String {
    format!("{}.{:02} s", ns / 1_000_000_000, ns.rem_euclid(1_000_000_000) / 10_000_000)
}
