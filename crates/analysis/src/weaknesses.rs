//! Reasons to doubt a verdict on limits.

use crate::warnings::warnings;
use latpath_run::Run;
use latpath_stats::figures::never_seen;
use latpath_stats::units::{number_of, of_things};
use latpath_stats::Summary;

/// Reasons to doubt a verdict, beginning with the deficiencies that keep limits from being judged. `part` is the
/// covered part of the run, if the figures do not cover all of it.
pub fn weaknesses(summary: &Summary, run: Option<&Run>, part: Option<String>) -> Vec<String> {
    let deficiencies = summary.deficiencies.iter().map(|one| one.text.clone());
    // Only notes added while reading the run concern the figures; those of the recorder do not.
    let of_run = run.into_iter().flat_map(|run| {
        let is_found = |note: &&String| !run.manifest().notes.contains(note);
        run.notes().iter().filter(is_found).cloned()
    });
    let part = part.map(|part| format!("it covers a part of the run: {part}"));
    let unseen = match never_seen(summary) {
        0 => None,
        n => Some(format!(
            "{} by no point: lost before the first one, or never sent",
            number_of(n, "packet") + if n == 1 { " was seen" } else { " were seen" }
        )),
    };
    let unread = summary.reader_gaps.iter().map(|gap| gap.text.clone());
    let open = summary.segments.iter().filter(|s| s.times.count > 0 && !summary.is_bound_known(s));
    let open: Vec<&str> = open.map(|s| s.name.as_str()).collect();
    let clocks = format!("how far the clocks were apart is not known: {}", open.join(", "));
    let patterns = summary.patterns.len() as u64;
    let found = format!("{} found, as listed below", of_things(&patterns.to_string(), patterns, "pattern"));
    let more = of_run.chain(part).chain(unread).chain(unseen).chain(warnings(summary));
    let more = more.chain((!open.is_empty()).then_some(clocks)).chain((patterns > 0).then_some(found));
    let mut all: Vec<String> = Vec::new();
    for text in deficiencies.chain(more) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}
