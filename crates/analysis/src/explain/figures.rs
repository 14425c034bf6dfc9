//! The current ranking, as a part of a summary.

use super::selector::name;
use super::sentence::{one_line, place_of_row, subject};
use super::totals::{by_cause, by_culprit, described, latpath_to_warn_of};
use super::{ExplainedPacket, Explanation, RankedCause};
use crate::Notation;
use latpath_cause::{Cause, RunContext};
use latpath_model::Ns;
use latpath_stats::{units::CharacterSet, CauseFigures, DelayShare, LateFigures};

/// Maximum number of causes in a summary; `latpath explain` shows all.
const CAUSES: usize = 16;

/// `part` as a percentage of `all`, rounded to three decimals.
pub fn percent(part: Ns, all: Ns) -> f64 {
    match all {
        ..=0 => 0.0,
        all => (part as f64 / all as f64 * 1e5).round() / 1e3,
    }
}

/// The summary's figures on late packets; `latest` is described in a sentence.
pub fn late_figures(
    explanation: &Explanation,
    latest: Option<&ExplainedPacket>,
    context: &RunContext,
    letters: CharacterSet,
) -> LateFigures {
    let notation = Notation::from(letters);
    let cause = |ranked: &RankedCause| {
        let row = &ranked.row;
        CauseFigures {
            cause: row.cause.id().into(),
            machine: row.machine.clone(),
            cpus: row.cpus.iter().map(|(cpu, _)| *cpu).collect(),
            segment: row.hops.first().map_or(String::new(), |(hop, _)| place_of_row(*hop, context)),
            description: subject(&notation, row),
            first: row.first,
            excess_ns: row.excess_ns,
            median_ns: row.median_ns(),
            share_percent: percent(row.excess_ns, explanation.excess_ns),
        }
    };
    let (unexplained, causes): (Vec<_>, Vec<_>) =
        explanation.ranking.iter().partition(|r| r.row.cause == Cause::Unexplained);
    let latest = latest.and_then(|packet| {
        let explained = &packet.explained;
        let name = notation.clean(&name(explained.stream, explained.key, explained.begin()?, context));
        Some(format!("{name}  {}", one_line(&notation, packet, context)))
    });
    let of_all = |ns: Ns| percent(ns, explanation.excess_ns);
    let sum = |name: String, excess_ns: Ns| DelayShare { name, excess_ns, share_percent: of_all(excess_ns) };
    let by_cause =
        by_cause(explanation).into_iter().map(|total| sum(total.cause.info().phrase.into(), total.excess_ns));
    let by_culprit = by_culprit(explanation).into_iter().take(CAUSES);
    let by_culprit = by_culprit.map(|total| sum(notation.clean(&described(&total)), total.excess_ns));
    LateFigures {
        late: explanation.late,
        explained: explanation.late,
        excess_ns: explanation.excess_ns,
        unexplained_percent: explanation.unexplained_per_mille as f64 / 10.0,
        baseline_packets: explanation.baseline_packets,
        skipped: 0,
        by_cause: by_cause.collect(),
        by_culprit: by_culprit.collect(),
        latpath_percent: latpath_to_warn_of(explanation).map(of_all),
        causes: causes.into_iter().take(CAUSES).chain(unexplained).map(cause).collect(),
        latest,
        shown_after: None,
    }
}
