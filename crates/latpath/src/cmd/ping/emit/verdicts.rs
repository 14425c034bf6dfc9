//! What becomes of limits on round trips.

use super::one::Done;
use crate::cmd::limits::{self, check};
use crate::cmd::Usage;
use anyhow::Result;
use latpath_ping::{figures::Report, Segment};
use latpath_report::{Limit, LimitVerdict};
use latpath_stats::{Loss, SegmentFigures, Summary, TimeFigures};

/// The figures of a whole round trip.
const WHOLE: [&str; 3] = ["round_trip", "nic_round_trip", "nic_turnaround"];

/// Refuses limits on segments that no round trip has, before probes are sent.
pub fn refuse_unknown(limits: &[Limit]) -> Result<(), Usage> {
    let is_part = |name: &str| Segment::all().any(|segment| segment.name() == name);
    let parts = Some(("a part of the table, as \"wire there\"", is_part as fn(&str) -> bool));
    limits::refuse_unknown(limits, &WHOLE.map(Into::into), parts)
}

/// Each session's verdicts.
pub fn of(all: &[Done], limits: &[Limit]) -> Result<Vec<LimitVerdict>> {
    let mut verdicts = Vec::new();
    for done in all {
        let of_this = check(limits, &measured(&done.report))?;
        // With several reflectors, each limit says which it is about.
        let target = if all.len() > 1 { format!("{}: ", done.target) } else { String::new() };
        verdicts.extend(of_this.into_iter().map(|v| LimitVerdict { limit: format!("{target}{}", v.limit), ..v }));
    }
    Ok(verdicts)
}

/// What limits can be set on: round trips and what they are made of, by their names, and what became of the probes.
fn measured(report: &Report) -> Summary {
    let row = |name: &str, times: &TimeFigures, over_threshold| SegmentFigures {
        name: name.into(),
        times: times.clone(),
        over_threshold,
        ..SegmentFigures::default()
    };
    let of_nics = [("nic_round_trip", &report.nic_round_trip), ("nic_turnaround", &report.nic_turnaround)];
    let of_nics = of_nics.into_iter().filter_map(|(name, times)| Some(row(name, times.as_ref()?, 0)));
    let round_trip = [row("round_trip", &report.round_trip, report.over_threshold)];
    let counts = &report.counts;
    let lost = Loss { place: String::new(), reason: None, meaning: None, kernel_count: None, count: counts.lost };
    Summary {
        segments: round_trip
            .into_iter()
            .chain(of_nics)
            .chain(report.segments.iter().map(|s| row(&s.name, &s.times, 0)))
            .collect(),
        lost: vec![lost],
        duplicates: counts.duplicates,
        out_of_order: counts.reordered,
        ..Summary::default()
    }
}
