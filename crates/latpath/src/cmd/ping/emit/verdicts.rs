//! Verdicts on limits of round trips.

use super::one::Done;
use crate::cmd::limits::{check, Measures};
use crate::cmd::Usage;
use anyhow::Result;
use latpath_analysis::{Limit, LimitVerdict};
use latpath_model::Ns;
use latpath_ping::{figures::Report, table::Counts, Segment};
use latpath_stats::{
    ConsecutiveFigures, ConsecutiveOver, Histogram, Loss, MachineFigures, SegmentFigures, StreamFigures, Summary,
    TimeFigures,
};

/// The machine whose clock took the times.
const EMITTER: &str = "emitter";
/// Names of the figures of a whole round trip.
const WHOLE: [&str; 3] = ["round_trip", "nic_round_trip", "nic_turnaround"];

/// Refuses limits on figures that round trips do not have, before probes are sent.
pub fn refuse_others(limits: &mut [Limit], has_threshold: bool) -> Result<(), Usage> {
    let is_part = |name: &str| Segment::all().any(|segment| segment.name() == name);
    let mut not = vec!["incomplete", "malformed", "never_seen", "sightings_dropped", "pacing"];
    not.extend((!has_threshold).then_some("over"));
    Measures {
        segments: WHOLE.map(Into::into).into(),
        steps: Some(("a part of the table, as \"wire there\"", is_part as fn(&str) -> bool)),
        not: &not,
    }
    .refuse_others(limits)
}

/// The verdicts on all sessions.
pub fn of(all: &[Done], limits: &[Limit]) -> Result<Vec<LimitVerdict>> {
    let mut verdicts = Vec::new();
    for done in all {
        let of_this = check(limits, &measured(&done.report));
        // With several reflectors, each limit names its reflector.
        let target = if all.len() > 1 { format!("{}: ", done.target) } else { String::new() };
        verdicts.extend(of_this.into_iter().map(|v| LimitVerdict { limit: format!("{target}{}", v.limit), ..v }));
    }
    Ok(verdicts)
}

/// The verdicts on one size and rate of a sweep.
pub fn of_cell(name: &str, counts: &Counts, times: &Histogram, limits: &[Limit]) -> Vec<LimitVerdict> {
    let times = TimeFigures::of(times);
    let round_trip =
        SegmentFigures { name: WHOLE[0].into(), from: EMITTER.into(), to: EMITTER.into(), times, ..Default::default() };
    let summary = summary(counts, if round_trip.times.count > 0 { vec![round_trip] } else { Vec::new() });
    check(limits, &summary).into_iter().map(|v| LimitVerdict { limit: format!("{name}: {}", v.limit), ..v }).collect()
}

/// The figures on which limits can be set: round trips and their parts, by name, and the counts of the probes.
fn measured(report: &Report) -> Summary {
    // Without a bound on the clocks' difference, the other end is named as a machine with an unknown clock.
    let row = |name: &str, times: &TimeFigures, bound: Option<Ns>| SegmentFigures {
        name: name.into(),
        from: EMITTER.into(),
        to: if bound.is_some() { EMITTER } else { "reflector" }.into(),
        times: times.clone(),
        over_threshold: report.over_threshold,
        error_bound_ns: bound.unwrap_or(0),
        ..SegmentFigures::default()
    };
    let of_nics = [("nic_round_trip", &report.nic_round_trip), ("nic_turnaround", &report.nic_turnaround)];
    let of_nics = of_nics.into_iter().filter_map(|(name, times)| Some(row(name, &times.as_ref()?.times, Some(0))));
    let parts = report.segments.iter().map(|s| row(&s.name, &s.times, s.error_bound_ns));
    let segments = [row(WHOLE[0], &report.round_trip, Some(0))].into_iter().chain(of_nics).chain(parts).collect();
    let counts = &report.counts;
    let row = |packets| ConsecutiveFigures { packets, ..ConsecutiveFigures::default() };
    let over = report.consecutive_over.iter().map(|(over_ns, n)| ConsecutiveOver { over_ns: *over_ns, row: row(*n) });
    let probes = StreamFigures {
        journeys: counts.sent,
        consecutive: Some(row(report.consecutive)),
        consecutive_over: over.collect(),
        ..StreamFigures::default()
    };
    Summary { threshold_ns: report.threshold_ns.unwrap_or(Ns::MAX), streams: vec![probes], ..summary(counts, segments) }
}

/// The counts of the probes, with these segments.
fn summary(counts: &Counts, segments: Vec<SegmentFigures>) -> Summary {
    let lost = Loss {
        place: String::new(),
        reason: None,
        meaning: None,
        dropped_at: None,
        kernel_count: None,
        count: counts.lost,
    };
    Summary {
        threshold_ns: Ns::MAX,
        journeys: counts.sent,
        segments,
        machines: vec![MachineFigures { machine: EMITTER.into(), ..MachineFigures::default() }],
        lost: vec![lost],
        duplicates: counts.duplicates,
        out_of_order: counts.reordered,
        ..Summary::default()
    }
}
