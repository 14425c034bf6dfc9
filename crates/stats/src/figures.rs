//! The figures that latpath prints, live or from a run; serialised, they are the JSON in docs/json.md.

use crate::clocks::ClockFigures;
use crate::patterns::{Pattern, PatternKind};
use crate::units::Letters;
use crate::{LanFigures, PacingFigures, ReaderGap};
use latpath_histogram::{Bucket, Histogram};
use latpath_model::{Ns, Point, PointInfo, SegmentKind};
use latpath_run::{Deficiency, MachineFigures, ToolCost};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Distribution of times, ns. Percentiles are nearest ranks with an error of at most 0.2 %; all else is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TimeFigures {
    /// Number of times.
    pub count: u64,
    /// Minimum.
    pub min_ns: Ns,
    /// Arithmetic mean, rounded.
    pub mean_ns: Ns,
    /// Standard deviation of the population, rounded.
    pub stddev_ns: Ns,
    /// Median.
    pub p50_ns: Ns,
    /// 90th percentile.
    pub p90_ns: Ns,
    /// 95th percentile.
    pub p95_ns: Ns,
    /// 99th percentile.
    pub p99_ns: Ns,
    /// 99.9th percentile.
    pub p99_9_ns: Ns,
    /// 99.99th percentile.
    pub p99_99_ns: Ns,
    /// 99.999th percentile.
    pub p99_999_ns: Ns,
    /// 99.9999th percentile.
    pub p99_9999_ns: Ns,
    /// Maximum.
    pub max_ns: Ns,
    /// Number of negative times: between two machines a clock error, on one machine points passed in the opposite
    /// order.
    pub negative: u64,
}

impl TimeFigures {
    /// The figures of a histogram.
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

    /// A percentile; `None` if less than one of the times lies beyond it, so that it equals the maximum.
    pub fn percentile(&self, which: Percentile) -> Option<Ns> {
        let beyond = u128::from(self.count) * u128::from(1_000_000 - which.per_million);
        (beyond >= 1_000_000).then(|| (which.figure)(self))
    }
}

/// A percentile in tables.
#[derive(Clone, Copy, Debug)]
pub struct Percentile {
    /// Name: `p99.9`.
    pub name: &'static str,
    /// Share of times that do not exceed it, millionths.
    pub per_million: u32,
    /// The percentile, regardless of the number of times.
    pub figure: fn(&TimeFigures) -> Ns,
}

impl Percentile {
    /// The percentile with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name == name)
    }

    /// All percentiles, ascending.
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

/// A band of times, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Band {
    /// Lower end, ns.
    pub from_ns: Ns,
    /// Upper end, ns.
    pub to_ns: Ns,
}

impl Band {
    /// Whether the band contains a time.
    pub fn contains(&self, time: Ns) -> bool {
        (self.from_ns..=self.to_ns).contains(&time)
    }
}

/// Times of one segment, in ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentFigures {
    /// Kind: `tnet`, `thyp`, `tsub`, `total`, `tupcall`, `tskew`, `named` (user-defined) or `step` (to the next point).
    #[serde(default)]
    pub kind: SegmentKind,
    /// Name: `Tnet`, `Thyp`, `Tsub`, `total`, user-defined, or `from→to` for neighbouring points.
    pub name: String,
    /// Its first point, as `machine/kind@device`.
    pub from: String,
    /// Its last point.
    pub to: String,
    /// Times of the journeys seen at both ends.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Journeys per second.
    pub rate_hz: f64,
    /// Journeys that took longer than the threshold.
    pub over_threshold: u64,
    /// Journeys with a time in [`Summary::band`]; `None` without a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_band: Option<u64>,
    /// Maximum error of the times, because of two machines' clocks, ns; 0 on one machine.
    pub error_bound_ns: Ns,
    /// The packet with the minimum time, the earliest of several; `None` without packets, and for single paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_at: Option<PacketAt>,
    /// The packet with the maximum time, the earliest of several; `None` without packets, and for single paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_at: Option<PacketAt>,
    /// For the threshold and each further row limit: the count of times below it by less than the clock error. Empty if
    /// both ends have one clock.
    #[serde(skip)]
    pub close_to: Vec<(Ns, u64)>,
    /// Non-empty buckets, ascending.
    pub histogram: Vec<Bucket>,
}

/// A packet, and its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PacketAt {
    /// Its stream.
    pub stream: String,
    /// Its key (smpCnt).
    pub key: u32,
    /// Its number in the stream.
    pub number: u64,
    /// Time at the segment's beginning, UTC, ns.
    pub time_ns: Ns,
}

impl SegmentFigures {
    /// Whether both are of the same segment.
    pub fn is_of_same(&self, other: &Self) -> bool {
        (&self.name, &self.from, &self.to) == (&other.name, &other.from, &other.to)
    }

    /// The figures of a histogram, without name, ends, rate, threshold and error bound.
    pub fn of(histogram: &Histogram) -> Self {
        Self { times: TimeFigures::of(histogram), histogram: histogram.buckets(), ..Self::default() }
    }
}

/// Lost packets, by the last place that saw them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    /// The last point of the route that saw them.
    pub place: String,
    /// The kernel's reason and function, if a `drop` point saw them and few such packets arrived: `FULL_RING in
    /// tun_net_xmit`.
    pub reason: Option<String>,
    /// The meaning in plain words, if known: `tap queue full`. See docs/drops.md.
    #[serde(default)]
    pub meaning: Option<String>,
    /// The `drop` point, and thus the device that dropped them, which may differ from that of the place:
    /// `host/drop@hout`. `None` without a reason, and in runs of earlier versions.
    #[serde(default)]
    pub dropped_at: Option<String>,
    /// The kernel's own count at that device, for any packets: without other traffic equal to the loss.
    #[serde(default)]
    pub kernel_count: Option<u64>,
    /// Number of packets.
    pub count: u64,
}

/// Packets on one path through the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathFigures {
    /// `direct`, `fast path`, `upcall`, `slow action` or `xdp`.
    pub path: String,
    /// Number of packets.
    pub journeys: u64,
    /// Number of lost packets.
    pub lost: u64,
    /// Their `Thyp` and `total`.
    pub segments: Vec<SegmentFigures>,
}

/// Figures of one stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamFigures {
    /// The stream, in the syntax of the command line.
    pub stream: String,
    /// Its route: its points in the order in which packets pass. Streams may lead into different VMs, or in both
    /// directions.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Packets seen at any point.
    pub journeys: u64,
    /// Packets seen at every point of the route.
    pub complete: u64,
    /// Packets that reached the last point but lack an earlier sighting, and all packets of a stream without a route.
    /// `journeys` = `complete` + `incomplete` + `lost`.
    #[serde(default)]
    pub incomplete: u64,
    /// Packets that did not reach the last point.
    pub lost: Vec<Loss>,
    /// Duplicate arrivals at the last point of the route.
    pub duplicates: u64,
    /// Packets that reached the last point of the route after a later one.
    pub out_of_order: u64,
    /// Sequence numbers that no point saw (the publisher skipped them, or they were lost before the first point).
    pub never_seen: u64,
    /// The longest run of consecutive packets that were late (over the threshold from the first point of the route to
    /// the last), lost, or never seen; `None` without any.
    #[serde(default)]
    pub consecutive: Option<ConsecutiveFigures>,
    /// The longest runs over other thresholds, if limits request them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consecutive_over: Vec<ConsecutiveOver>,
    /// Copies of its packets by the LANs of redundant networks (PRP, HSR); empty without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lans: Vec<LanFigures>,
    /// Regularity of its packets at each point that saw them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pacing: Vec<PacingFigures>,
    /// The stream's segments.
    pub segments: Vec<SegmentFigures>,
    /// The paths of its packets; empty if there is only one path.
    #[serde(default)]
    pub paths: Vec<PathFigures>,
}

/// A run of consecutive packets that were late, lost or never seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsecutiveFigures {
    /// Number of packets.
    pub packets: u64,
    /// Key of its first packet that was seen; without one, of the packet after it.
    pub key: u32,
    /// That packet's number in its stream.
    pub number: u64,
    /// Time of that packet's first sighting, UTC, ns.
    pub time_ns: Ns,
}

/// The longest run of packets that were lost, never seen or over another threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsecutiveOver {
    /// The threshold, ns.
    pub over_ns: Ns,
    /// The run; of 0 packets without any.
    #[serde(flatten)]
    pub row: ConsecutiveFigures,
}

/// One step of a packet's waterfall.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorstStep {
    /// The point, as `machine/kind@device`.
    pub point: String,
    /// Time since the packet's first sighting, ns.
    pub since_first_ns: Ns,
    /// Time since the previous step, ns.
    pub since_last_ns: Ns,
    /// The CPU; null in runs imported from files.
    pub cpu: Option<u16>,
    /// The running thread; null in runs imported from files.
    pub tid: Option<u32>,
    /// The thread's role for a virtual machine of the point's machine, if any: `vhost of relay1`.
    #[serde(default)]
    pub role: Option<String>,
}

/// One of the worst packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worst {
    /// The stream, in the syntax of the command line.
    pub stream: String,
    /// Its key (smpCnt).
    pub key: u32,
    /// Its path; empty if there is only one path.
    #[serde(default)]
    pub path: String,
    /// Time of its first sighting, TAI or UTC ns since 1970, by the run's clock.
    pub time_ns: Ns,
    /// Time from the first to the last point of the route that saw it, ns.
    pub total_ns: Ns,
    /// All sightings in order of time.
    pub steps: Vec<WorstStep>,
}

/// Causes of late packets so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LateFigures {
    /// Number of late packets.
    pub late: u64,
    /// Number of explained late packets.
    pub explained: u64,
    /// Their time beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Unexplained share of a packet's excess: median over the packets, percent.
    pub unexplained_percent: f64,
    /// Number of on-time packets in the baseline.
    pub baseline_packets: u64,
    /// Spikes skipped because they came faster than they could be explained.
    pub skipped: u64,
    /// Sums by cause, largest first, `unexplained` last.
    #[serde(default)]
    pub by_cause: Vec<DelayShare>,
    /// Sums by culprit (processes and systemd units), largest first.
    #[serde(default)]
    pub by_culprit: Vec<DelayShare>,
    /// Share of the excess caused by latpath's own threads, percent, if it is 5 % or more.
    #[serde(default)]
    pub latpath_percent: Option<f64>,
    /// The causes, largest excess first, `unexplained` last.
    pub causes: Vec<CauseFigures>,
    /// The latest late packet, as a sentence.
    pub latest: Option<String>,
    /// Delay until causes were shown; `None` without any.
    pub shown_after: Option<ShownAfter>,
}

/// The share of one cause, or one culprit, in the delay of late packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DelayShare {
    /// `waiting for its CPU`, or `rustc (16 threads: opt cgu.14, …)`.
    pub name: String,
    /// Its time beyond the baseline, summed over all packets, ns.
    pub excess_ns: Ns,
    /// Its share of all excess, percent.
    pub share_percent: f64,
}

/// Time from the arrival of a spike's first late packet until its cause was shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShownAfter {
    /// Number of spikes.
    pub spikes: u64,
    /// The latest spike, ns.
    pub latest_ns: Ns,
    /// Median, with an error of at most 1 %, ns.
    pub median_ns: Ns,
    /// Maximum, ns.
    pub worst_ns: Ns,
}

/// One cause of late packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CauseFigures {
    /// Its name: `waiting-for-cpu`.
    pub cause: String,
    /// Its machine.
    pub machine: String,
    /// Its CPUs, the one with the largest part first.
    pub cpus: Vec<u32>,
    /// The segment with the largest part.
    pub segment: String,
    /// The actor and the culprit: `vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)`.
    pub description: String,
    /// Packets with this as their first cause.
    pub first: u64,
    /// Its time beyond the baseline, summed over all packets, ns.
    pub excess_ns: Ns,
    /// Median of that per packet, ns.
    pub median_ns: Ns,
    /// Its share of all excess, percent.
    pub share_percent: f64,
}

/// Figures without the packets affected by patterns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WithoutPatterns {
    /// The kinds of the patterns.
    pub kinds: Vec<PatternKind>,
    /// Number of such patterns.
    pub patterns: u64,
    /// Number of excluded packets.
    pub packets: u64,
    /// Excluded packets that did not reach the last point.
    pub lost: u64,
    /// The segments over all other packets, all streams together.
    pub segments: Vec<SegmentFigures>,
}

/// Figures of one of equal intervals of a run, all streams together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IntervalFigures {
    /// Its beginning, since the run's start, ns.
    pub since_start_ns: Ns,
    /// Its beginning, UTC, ns.
    pub time_ns: Ns,
    /// Its duration, ns.
    pub elapsed_ns: Ns,
    /// Packets first seen in it.
    pub journeys: u64,
    /// Packets that did not reach the last point.
    pub lost: u64,
    /// Their times, without histograms.
    pub segments: Vec<SegmentFigures>,
}

/// All figures of one screen, one JSON line or one report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Duration, ns.
    pub elapsed_ns: Ns,
    /// Whether the run was imported from durations: losses, duplicates, order, runs of packets and pacing are unknown,
    /// and their keys are omitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durations_alone: bool,
    /// The threshold for `over_threshold`, ns.
    pub threshold_ns: Ns,
    /// The band for `in_band`; `None` if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The points of the route, in the order in which packets pass.
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Points off the route that saw packets too: copies made by a bridge, other readers.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub off_route: Vec<Point>,
    /// Packets seen at any point, all streams together.
    pub journeys: u64,
    /// Packets seen at every point of the route.
    pub complete: u64,
    /// Packets that reached the last point but lack an earlier sighting, and all packets of a stream without a route.
    /// `journeys` = `complete` + `incomplete` + `lost`.
    #[serde(default)]
    pub incomplete: u64,
    /// Packets that did not reach the last point.
    pub lost: Vec<Loss>,
    /// Gaps in reading of the applications at the ends of routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reader_gaps: Vec<ReaderGap>,
    /// Duplicate arrivals at the last point of the route.
    pub duplicates: u64,
    /// Packets that reached the last point of the route after a later one.
    pub out_of_order: u64,
    /// Copies of packets by the LANs of redundant networks (PRP, HSR), of all streams that use them; empty without
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lans: Vec<LanFigures>,
    /// Frames of the right ethertype that could not be read.
    pub malformed: u64,
    /// The segments, all streams together.
    pub segments: Vec<SegmentFigures>,
    /// The paths of packets, all streams together; empty if there is only one path.
    #[serde(default)]
    pub paths: Vec<PathFigures>,
    /// Figures of each stream.
    pub streams: Vec<StreamFigures>,
    /// The machines' clocks.
    pub machines: Vec<MachineFigures>,
    /// Synchronisation of the host's clocks, and their events; absent in runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClockFigures>,
    /// The worst packets, longest first (reports only).
    pub worst: Vec<Worst>,
    /// Patterns: released queues, periodic spikes, swings of a clock, steps, flaps of a link, changes of path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<Pattern>,
    /// The figures without packets affected by some patterns (reports only, on request).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<WithoutPatterns>,
    /// The figures of equal intervals of the run (reports only, on request).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalFigures>,
    /// Causes of late packets so far (live only, with a flight recorder; for a run see `latpath explain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateFigures>,
    /// The cost of tracing.
    pub tool: ToolCost,
    /// Deficiencies of the figures, because of which some limits cannot be judged; empty without any.
    #[serde(default)]
    pub deficiencies: Vec<Deficiency>,
    /// Notes for the reader: missing points, clock faults, streams without packets.
    pub notes: Vec<String>,
    /// Limits of what could be seen, without evidence that packets were affected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub footnotes: Vec<String>,
}

impl Summary {
    /// A point's number on the route, from 1.
    pub fn number(&self, point: &str) -> Option<usize> {
        self.points.iter().position(|p| p.to_string() == point).map(|at| at + 1)
    }

    /// Whether the clock error between a segment's ends is known.
    pub fn is_bound_known(&self, segment: &SegmentFigures) -> bool {
        let machine = |point: &str| point.split('/').next().unwrap_or_default().to_owned();
        let (from, to) = (machine(&segment.from), machine(&segment.to));
        let known = |name: &String| self.machines.is_empty() || self.machines.iter().any(|m| m.machine == *name);
        from == to || (known(&from) && known(&to))
    }

    /// A segment as the numbers of its ends: `2→3`.
    pub fn numbers(&self, segment: &SegmentFigures, letters: Letters) -> Option<String> {
        let (from, to) = (self.number(&segment.from)?, self.number(&segment.to)?);
        Some(format!("{from}{}{to}", letters.arrow()))
    }
}

/// Total number of lost packets.
pub fn packets(losses: &[Loss]) -> u64 {
    losses.iter().fold(0, |sum, loss| sum.saturating_add(loss.count))
}

/// The longest run of packets that were late, lost or never seen, with its stream.
pub fn longest_row(summary: &Summary) -> Option<(&StreamFigures, &ConsecutiveFigures)> {
    let rows = summary.streams.iter().filter_map(|stream| Some((stream, stream.consecutive.as_ref()?)));
    rows.rev().max_by_key(|(_, row)| row.packets)
}

/// Sequence numbers that no point saw, of all streams.
pub fn never_seen(summary: &Summary) -> u64 {
    summary.streams.iter().fold(0, |sum, stream| sum.saturating_add(stream.never_seen))
}

/// Merges losses at one place for one reason, largest first.
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

/// Journeys per second, rounded to a tenth.
pub fn rate(count: u64, elapsed: Ns) -> f64 {
    if elapsed <= 0 {
        return 0.0;
    }
    (count as f64 / (elapsed as f64 / 1e9) * 10.0).round() / 10.0
}

/// Maximum error of a time between two points whose times one NIC's clock took, ns, for times up to some 100 µs: both
/// are mapped by the same line.
const ON_ONE_CLOCK: Ns = 10;

/// Maximum error of a time between two points, each given with the bound of its machine's clock against the host's, ns:
/// the sum of the machines' bounds, if they differ, and of the points' own.
pub fn error_bound((from, from_bound): (&PointInfo, Ns), (to, to_bound): (&PointInfo, Ns)) -> Ns {
    let is_one_machine = from.point.machine == to.point.machine;
    if is_one_machine && from.point.kind.is_by_nic() && to.point.kind.is_by_nic() && from.clock == to.clock {
        return ON_ONE_CLOCK;
    }
    let machines = if is_one_machine { 0 } else { from_bound.saturating_add(to_bound) };
    [from, to].iter().fold(machines, |bound, info| bound.saturating_add(info.error_bound_ns.max(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_a_time_is_that_of_the_clocks_which_took_it() {
        let point = |text: &str, error_bound_ns, clock: &str| PointInfo {
            error_bound_ns,
            clock: clock.into(),
            ..text.parse::<Point>().unwrap().into()
        };
        let driver = point("host/nic-rx@a", 0, "CLOCK_MONOTONIC");
        let arrived = point("host/nic-hw-rx@a", 700, "/dev/ptp0");
        let sent = point("host/nic-hw-tx@b", 900, "/dev/ptp0");
        let elsewhere = point("guest0/nic-hw-rx@a", 400, "/dev/ptp0");
        assert_eq!(error_bound((&driver, 0), (&driver, 0)), 0);
        assert_eq!(error_bound((&arrived, 0), (&driver, 0)), 700);
        assert_eq!(error_bound((&sent, 0), (&arrived, 0)), ON_ONE_CLOCK);
        assert_eq!(error_bound((&sent, 0), (&point("host/nic-hw-rx@c", 700, "/dev/ptp1"), 0)), 1_600);
        assert_eq!(error_bound((&sent, 0), (&elsewhere, 5_000)), 6_300, "a clock of the same name elsewhere");
        assert_eq!(error_bound((&point("host/nic-hw-rx@a", -5, ""), 0), (&driver, 0)), 0, "a damaged run");
    }

    #[test]
    fn an_empty_histogram_gives_an_empty_row() {
        assert_eq!(SegmentFigures::of(&Histogram::new()), SegmentFigures::default());
    }
}
