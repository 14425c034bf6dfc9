//! The figures that latpath prints, live or from a run; serialised, they are the JSON that docs/json.md describes.

use crate::patterns::{Pattern, PatternKind};
use crate::units::Letters;
use crate::{PacingFigures, ReaderGap};
use latpath_histogram::{Bucket, Histogram};
use latpath_model::{Ns, Point, SegmentKind};
use latpath_run::{Deficiency, MachineFigures, ToolCost};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times of one thing, ns. Percentiles are nearest ranks, at most 0.2 % off; all else is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TimeFigures {
    /// How many.
    pub count: u64,
    /// Least.
    pub min_ns: Ns,
    /// Arithmetic mean, rounded.
    pub mean_ns: Ns,
    /// Standard deviation of the population, rounded.
    pub stddev_ns: Ns,
    /// Median.
    pub p50_ns: Ns,
    /// 90 %.
    pub p90_ns: Ns,
    /// 95 %.
    pub p95_ns: Ns,
    /// 99 %.
    pub p99_ns: Ns,
    /// 99.9 %.
    pub p99_9_ns: Ns,
    /// 99.99 %.
    pub p99_99_ns: Ns,
    /// 99.999 %.
    pub p99_999_ns: Ns,
    /// 99.9999 %.
    pub p99_9999_ns: Ns,
    /// Greatest.
    pub max_ns: Ns,
    /// Times below 0: between two machines a clock error, on one machine the points were passed in the opposite order.
    pub negative: u64,
}

impl TimeFigures {
    pub fn of(h: &Histogram) -> Self {
        let [p50_ns, p90_ns, p95_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, p99_9999_ns] =
            h.percentiles(Percentile::ALL.map(|p| p.per_million));
        Self {
            count: h.count(),
            min_ns: h.min(),
            mean_ns: h.mean(),
            stddev_ns: h.stddev(),
            p50_ns,
            p90_ns,
            p95_ns,
            p99_ns,
            p99_9_ns,
            p99_99_ns,
            p99_999_ns,
            p99_9999_ns,
            max_ns: h.max(),
            negative: h.negatives(),
        }
    }

    /// A percentile; `None` where fewer than one of the times lies beyond it: the maximum is the same.
    pub fn percentile(&self, which: Percentile) -> Option<Ns> {
        let beyond = u128::from(self.count) * u128::from(1_000_000 - which.per_million);
        (beyond >= 1_000_000).then(|| (which.figure)(self))
    }
}

/// A percentile that tables show.
#[derive(Clone, Copy, Debug)]
pub struct Percentile {
    /// `p99.9`.
    pub name: &'static str,
    /// So many millionths of all times do not exceed it.
    pub per_million: u32,
    /// The figure, however few times there are.
    pub figure: fn(&TimeFigures) -> Ns,
}

impl Percentile {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name == name)
    }

    /// All of them, rising.
    pub const ALL: [Self; 8] = [
        Self { name: "p50", per_million: 500_000, figure: |t| t.p50_ns },
        Self { name: "p90", per_million: 900_000, figure: |t| t.p90_ns },
        Self { name: "p95", per_million: 950_000, figure: |t| t.p95_ns },
        Self { name: "p99", per_million: 990_000, figure: |t| t.p99_ns },
        Self { name: "p99.9", per_million: 999_000, figure: |t| t.p99_9_ns },
        Self { name: "p99.99", per_million: 999_900, figure: |t| t.p99_99_ns },
        Self { name: "p99.999", per_million: 999_990, figure: |t| t.p99_999_ns },
        Self { name: "p99.9999", per_million: 999_999, figure: |t| t.p99_9999_ns },
    ];
}

/// Times from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Band {
    /// The least.
    pub from_ns: Ns,
    /// The greatest.
    pub to_ns: Ns,
}

impl Band {
    pub fn contains(&self, time: Ns) -> bool {
        (self.from_ns..=self.to_ns).contains(&time)
    }
}

/// One row: the times of one segment. All times in ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentFigures {
    /// Its kind: `tnet`, `thyp`, `tsub`, `total`, `tupcall`, `named` (by the user) or `step` (to the next point).
    #[serde(default)]
    pub kind: SegmentKind,
    /// `Tnet`, `Thyp`, `Tsub`, `total`, a name that the user gave, or `from→to` for neighbouring points.
    pub name: String,
    /// Where it starts, as `machine/kind@device`.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// Times of the journeys that were seen at both ends.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Journeys a second over the time covered.
    pub rate_hz: f64,
    /// Journeys that took longer here than the threshold.
    pub over_threshold: u64,
    /// Journeys whose time here is in [`Summary::band`]; none where no band was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_band: Option<u64>,
    /// How wrong a time here can be, because two machines' clocks took it. 0 on one machine.
    pub error_bound_ns: Ns,
    /// The packet that took the least time, the earliest of several; none where no packet crossed, and for one path by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_at: Option<PacketAt>,
    /// The packet that took the most time, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_at: Option<PacketAt>,
    /// Of the threshold, and of each further limit of rows: how many times do not exceed it, but may do so by what the clocks may be
    /// wrong by. Empty where both ends have one clock.
    #[serde(skip)]
    pub close_to: Vec<(Ns, u64)>,
    /// Non-empty buckets in rising order.
    pub histogram: Vec<Bucket>,
}

/// Which packet, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PacketAt {
    /// Its stream.
    pub stream: String,
    /// Its key (smpCnt).
    pub key: u32,
    /// Its number in the stream.
    pub number: u64,
    /// When it was at the segment's beginning, UTC.
    pub time_ns: Ns,
}

impl SegmentFigures {
    /// Whether another row is of this segment too.
    pub fn is_of_same(&self, other: &Self) -> bool {
        (&self.name, &self.from, &self.to) == (&other.name, &other.from, &other.to)
    }

    /// The row of a histogram, without name, ends, rate, threshold and error bound.
    pub fn of(histogram: &Histogram) -> Self {
        Self { times: TimeFigures::of(histogram), histogram: histogram.buckets(), ..Self::default() }
    }
}

/// Packets that did not arrive, by the last place that saw them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    /// The last point of the route that saw them.
    pub place: String,
    /// The kernel's reason and function where a `drop` point saw it, and few so dropped arrived: `FULL_RING in tun_net_xmit`.
    pub reason: Option<String>,
    /// What that means, in plain words, where it is known: `tap queue full`. See docs/drops.md.
    #[serde(default)]
    pub meaning: Option<String>,
    /// The `drop` point that saw them, and so the device that dropped them, which need not be that of the place: `host/drop@hout`.
    /// `None` where there is no reason, and in runs of earlier versions.
    #[serde(default)]
    pub dropped_at: Option<String>,
    /// What the kernel itself counted at that device in that time, for any packets: with no other traffic as many as were lost here.
    #[serde(default)]
    pub kernel_count: Option<u64>,
    /// Packets.
    pub count: u64,
}

/// The packets that took one path through the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathFigures {
    /// `direct`, `fast path`, `upcall`, `slow action` or `xdp`.
    pub path: String,
    /// Packets that took it.
    pub journeys: u64,
    /// Those of them that did not reach the last point.
    pub lost: u64,
    /// Their `Thyp` and `total`.
    pub segments: Vec<SegmentFigures>,
}

/// One stream's share of a summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamFigures {
    /// The stream, as the user may write it.
    pub stream: String,
    /// Its own route: its points in the order in which packets pass. Streams may lead into different VMs, or in both directions.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Packets seen at any point.
    pub journeys: u64,
    /// Packets seen at every point of the route.
    pub complete: u64,
    /// Packets that reached the last point but lack a sighting before it, and those of a stream without a route. `journeys` =
    /// `complete` + `incomplete` + `lost`.
    #[serde(default)]
    pub incomplete: u64,
    /// Packets that did not reach the last point.
    pub lost: Vec<Loss>,
    /// Times that a packet came again to the last point of the route.
    pub duplicates: u64,
    /// Packets that came to the last point of the route behind a later one, wherever they were overtaken.
    pub out_of_order: u64,
    /// Sequence numbers that no point saw (the publisher skipped them, or they were lost before the first point).
    pub never_seen: u64,
    /// The most packets in a row that were late (over the threshold from the first point of the route to the last), lost, or never
    /// seen; `None` where none was.
    #[serde(default)]
    pub consecutive: Option<ConsecutiveFigures>,
    /// The same for other times than the threshold, where limits ask for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consecutive_over: Vec<ConsecutiveOver>,
    /// How regularly its packets come, at each point that saw them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pacing: Vec<PacingFigures>,
    /// The stream's segments.
    pub segments: Vec<SegmentFigures>,
    /// The paths that its packets took; empty where there is only one path.
    #[serde(default)]
    pub paths: Vec<PathFigures>,
}

/// Packets in a row that were late, lost or never seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsecutiveFigures {
    /// How many.
    pub packets: u64,
    /// Key of the first of them that was seen; of the packet behind them where none was.
    pub key: u32,
    /// That packet's number in its stream.
    pub number: u64,
    /// When it was first seen, UTC.
    pub time_ns: Ns,
}

/// The longest row of packets that were lost, never seen or took longer than a time of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsecutiveOver {
    /// The threshold that they exceeded.
    pub over_ns: Ns,
    /// The row; of 0 packets where there was none.
    #[serde(flatten)]
    pub row: ConsecutiveFigures,
}

/// One step of a packet's waterfall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorstStep {
    /// The point.
    pub point: String,
    /// Time since the packet's first sighting.
    pub since_first_ns: Ns,
    /// Time since the step before.
    pub since_last_ns: Ns,
    /// CPU that took it; null in a run of files that do not say.
    pub cpu: Option<u16>,
    /// Thread that ran, likewise.
    pub tid: Option<u32>,
    /// What that thread does for a virtual machine of the host, where it does: `vhost of relay1`.
    #[serde(default)]
    pub role: Option<String>,
}

/// One of the worst packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worst {
    /// The stream.
    pub stream: String,
    /// Its key (smpCnt).
    pub key: u32,
    /// The path that it took; empty where there is only one path.
    #[serde(default)]
    pub path: String,
    /// Its first sighting, TAI or UTC ns since 1970, by the run's clock.
    pub time_ns: Ns,
    /// From the first to the last point of the route that saw it.
    pub total_ns: Ns,
    /// All sightings in order.
    pub steps: Vec<WorstStep>,
}

/// What held late packets, the running ranking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LateFigures {
    /// Late packets.
    pub late: u64,
    /// Those of them that were explained.
    pub explained: u64,
    /// What of their time is beyond the baseline.
    pub excess_ns: Ns,
    /// Share of a packet's excess that is unexplained: the median over the packets.
    pub unexplained_percent: f64,
    /// On-time packets that the baseline is from.
    pub baseline_packets: u64,
    /// Spikes that came faster than they could be explained.
    pub skipped: u64,
    /// Sums by cause, the largest first, `unexplained` last.
    #[serde(default)]
    pub by_cause: Vec<DelayShare>,
    /// Sums by culprit, the largest first: processes and systemd units.
    #[serde(default)]
    pub by_culprit: Vec<DelayShare>,
    /// Share of the excess that latpath's own threads took, where that is worth a warning: 5 % or more.
    #[serde(default)]
    pub latpath_percent: Option<f64>,
    /// The causes by their excess, the largest first, `unexplained` last.
    pub causes: Vec<CauseFigures>,
    /// The latest late packet, in a sentence.
    pub latest: Option<String>,
    /// How soon causes were shown; nothing where none was.
    pub shown_after: Option<ShownAfter>,
}

/// What one cause, or one culprit, took of all late packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DelayShare {
    /// `waiting for its CPU`, or `rustc (16 threads: opt cgu.14, …)`.
    pub name: String,
    /// Its time beyond the baseline, summed over all packets.
    pub excess_ns: Ns,
    /// Its share of all excess.
    pub share_percent: f64,
}

/// How soon spikes were explained: from when the first late packet of each had come until what held it was shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShownAfter {
    /// Spikes.
    pub spikes: u64,
    /// The latest of them.
    pub latest_ns: Ns,
    /// The median, at most 1 % off.
    pub median_ns: Ns,
    /// The longest.
    pub worst_ns: Ns,
}

/// One cause of late packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CauseFigures {
    /// Its name: `waiting-for-cpu`.
    pub cause: String,
    /// On which machine.
    pub machine: String,
    /// CPUs, the one with the most of it first.
    pub cpus: Vec<u32>,
    /// In which segment most of it was.
    pub segment: String,
    /// The actor and the culprit: `vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)`.
    pub description: String,
    /// Packets with this as their first cause.
    pub first: u64,
    /// Its time beyond the baseline, summed over all packets.
    pub excess_ns: Ns,
    /// The median of that.
    pub median_ns: Ns,
    /// Its share of all excess.
    pub share_percent: f64,
}

/// Figures without the packets that patterns touch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WithoutPatterns {
    /// The kinds of the patterns.
    pub kinds: Vec<PatternKind>,
    /// How many of these were found.
    pub patterns: u64,
    /// Packets that are left out.
    pub packets: u64,
    /// Those left out that did not reach the last point.
    pub lost: u64,
    /// The segments over all other packets: all streams together.
    pub segments: Vec<SegmentFigures>,
}

/// All streams together, in one of equal intervals of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IntervalFigures {
    /// Its begin, since the run's start.
    pub since_start_ns: Ns,
    /// The same, UTC.
    pub time_ns: Ns,
    /// How long it is.
    pub elapsed_ns: Ns,
    /// Packets that were first seen in it.
    pub journeys: u64,
    /// Those of them that did not reach the last point.
    pub lost: u64,
    /// Their times, without histograms.
    pub segments: Vec<SegmentFigures>,
}

/// Everything one screen, one JSON line or one report shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Time covered.
    pub elapsed_ns: Ns,
    /// The run was imported from durations alone: losses, duplicates, order, packets in a row and pacing are not known, and their keys are
    /// left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durations_alone: bool,
    /// The threshold that `over_threshold` counts against.
    pub threshold_ns: Ns,
    /// The band that `in_band` counts; none where none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The points of the route, in the order in which packets pass.
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Points off the route that saw packets too: copies that a bridge makes, other readers.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub off_route: Vec<Point>,
    /// All streams together: packets seen at any point.
    pub journeys: u64,
    /// Packets seen at every point of the route.
    pub complete: u64,
    /// Packets that reached the last point but lack a sighting before it, and those of a stream without a route. `journeys` =
    /// `complete` + `incomplete` + `lost`.
    #[serde(default)]
    pub incomplete: u64,
    /// Packets that did not reach the last point.
    pub lost: Vec<Loss>,
    /// Times in which the application at the end of a route read none of the packets that came to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reader_gaps: Vec<ReaderGap>,
    /// Times that a packet came again to the last point of the route.
    pub duplicates: u64,
    /// Packets that came to the last point of the route behind a later one, wherever they were overtaken.
    pub out_of_order: u64,
    /// Frames of the right ethertype that could not be read.
    pub malformed: u64,
    /// All streams together, a row per segment.
    pub segments: Vec<SegmentFigures>,
    /// All streams together, a row per path that packets took; empty where there is only one path.
    #[serde(default)]
    pub paths: Vec<PathFigures>,
    /// The streams one by one.
    pub streams: Vec<StreamFigures>,
    /// The machines' clocks.
    pub machines: Vec<MachineFigures>,
    /// The worst packets, longest first (reports only).
    pub worst: Vec<Worst>,
    /// Patterns: queues that were released, periodic spikes, swings of a clock, steps, flaps of a link, changes of path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<Pattern>,
    /// The figures without the packets that some of the patterns touch (reports only, where that was asked for).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<WithoutPatterns>,
    /// The figures of equal intervals of the run, one after the other (reports only, where that was asked for).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalFigures>,
    /// Causes of late packets so far (live only, where a flight recorder runs; for a run see `latpath explain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateFigures>,
    /// What tracing cost.
    pub tool: ToolCost,
    /// Deficiencies of the figures, because of which some limits cannot be judged; empty without any.
    #[serde(default)]
    pub deficiencies: Vec<Deficiency>,
    /// What the reader must know: missing points, clock faults, streams that never came.
    pub notes: Vec<String>,
    /// What could not be seen on the machines, where nothing suggests that packets were affected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub footnotes: Vec<String>,
}

impl Summary {
    /// A point's number on the route, from 1.
    pub fn number(&self, point: &str) -> Option<usize> {
        self.points.iter().position(|p| p.to_string() == point).map(|at| at + 1)
    }

    /// Whether it is known how far the clocks of a segment's ends were apart.
    pub fn is_bound_known(&self, segment: &SegmentFigures) -> bool {
        let machine = |point: &str| point.split('/').next().unwrap_or_default().to_owned();
        let (from, to) = (machine(&segment.from), machine(&segment.to));
        let known = |name: &String| self.machines.is_empty() || self.machines.iter().any(|m| m.machine == *name);
        from == to || (known(&from) && known(&to))
    }

    /// A segment by the numbers of its ends: `2→3`.
    pub fn numbers(&self, segment: &SegmentFigures, letters: Letters) -> Option<String> {
        let (from, to) = (self.number(&segment.from)?, self.number(&segment.to)?);
        Some(format!("{from}{}{to}", letters.arrow()))
    }
}

pub fn packets(losses: &[Loss]) -> u64 {
    losses.iter().fold(0, |sum, loss| sum.saturating_add(loss.count))
}

/// The longest row of packets that were late, lost or never seen, and its stream.
pub fn longest_row(summary: &Summary) -> Option<(&StreamFigures, &ConsecutiveFigures)> {
    let rows = summary.streams.iter().filter_map(|stream| Some((stream, stream.consecutive.as_ref()?)));
    rows.rev().max_by_key(|(_, row)| row.packets)
}

/// Sequence numbers that no point saw, of all streams.
pub fn never_seen(summary: &Summary) -> u64 {
    summary.streams.iter().fold(0, |sum, stream| sum.saturating_add(stream.never_seen))
}

/// Losses at one place for one reason as one, the greatest first; of each, what names it and how many packets they are.
pub fn together(losses: impl Iterator<Item = Loss>) -> Vec<Loss> {
    let mut counts = BTreeMap::new();
    for Loss { place, reason, dropped_at, count, .. } in losses {
        *counts.entry((place, reason, dropped_at)).or_insert(0) += count;
    }
    let mut lost: Vec<Loss> = counts
        .into_iter()
        .map(|((place, reason, dropped_at), count)| Loss {
            place,
            reason,
            dropped_at,
            meaning: None,
            kernel_count: None,
            count,
        })
        .collect();
    lost.sort_by_key(|l| std::cmp::Reverse(l.count));
    lost
}

/// Journeys a second, to a tenth.
pub fn rate(count: u64, elapsed: Ns) -> f64 {
    if elapsed <= 0 {
        return 0.0;
    }
    (count as f64 / (elapsed as f64 / 1e9) * 10.0).round() / 10.0
}

/// How wrong a time between two machines' clocks can be, each given by its machine and its own bound against the host's:
/// not at all on one machine, else by both bounds.
pub fn error_bound((from, from_bound): (&str, Ns), (to, to_bound): (&str, Ns)) -> Ns {
    if from == to {
        0
    } else {
        from_bound.saturating_add(to_bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_histogram_gives_an_empty_row() {
        assert_eq!(SegmentFigures::of(&Histogram::new()), SegmentFigures::default());
    }
}
