//! The figures that latpath prints, live or from a run; serialised, they are the JSON in docs/json.md.

use crate::clocks::ClockFigures;
use crate::patterns::{Pattern, PatternKind};
use crate::units::CharacterSet;
use crate::{LanFigures, PacingFigures, ReaderGap};
use latpath_histogram::{Bucket, Histogram};
use latpath_model::{Ns, Point, PointInfo, SegmentKind};
use latpath_run::{Deficiency, MachineFigures, ToolCost};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Distribution of times, ns. Percentiles are nearest ranks with an error of at most 0.2 %; all other figures are
/// exact.
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
    /// Number of negative times. Between two machines, they result from a clock error; on one machine, from points
    /// passed in the opposite order.
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

    /// A percentile; `None` if less than one time lies above it, because it would equal the maximum.
    pub fn percentile(&self, which: Percentile) -> Option<Ns> {
        let beyond = u128::from(self.count) * u128::from(1_000_000 - which.per_million);
        (beyond >= 1_000_000).then(|| (which.figure)(self))
    }
}

/// A percentile shown in tables.
#[derive(Clone, Copy, Debug)]
pub struct Percentile {
    /// Its name, e.g. `p99.9`.
    pub name: &'static str,
    /// Share of times that do not exceed it, millionths.
    pub per_million: u32,
    /// Returns the percentile, regardless of the number of times.
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
    /// Name: `Tnet`, `Thyp`, `Tsub`, `total`, a user-defined one, or `from→to` for neighbouring points.
    pub name: String,
    /// Its first point, as `machine/kind@device`.
    pub from: String,
    /// Its last point.
    pub to: String,
    /// Times of the journeys that were seen at both ends.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Journeys per second.
    pub rate_hz: f64,
    /// Number of journeys that took longer than the threshold.
    pub over_threshold: u64,
    /// Number of journeys with a time in [`Summary::band`]; `None` without a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_band: Option<u64>,
    /// Maximum error of the times due to the clocks at the segment's ends, ns; 0 if both times are from the same
    /// machine's own clock.
    pub error_bound_ns: Ns,
    /// The packet with the minimum time, or the earliest of several; `None` without packets, and in the figures of a
    /// single path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_at: Option<PacketAt>,
    /// The packet with the maximum time, or the earliest of several; `None` without packets, and in the figures of a
    /// single path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_at: Option<PacketAt>,
    /// For the threshold and each further row limit: the limit, and the number of times below it by less than the clock
    /// error. Empty if the clock error is 0.
    #[serde(skip)]
    pub close_to: Vec<(Ns, u64)>,
    /// Non-empty buckets, ascending.
    pub histogram: Vec<Bucket>,
}

/// A packet, and when it entered a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PacketAt {
    /// Its stream.
    pub stream: String,
    /// Its key (smpCnt).
    pub key: u32,
    /// Its number in the stream.
    pub number: u64,
    /// Time at the start of the segment, UTC, ns.
    pub time_ns: Ns,
}

impl SegmentFigures {
    /// Whether both are figures of the same segment.
    pub fn is_of_same(&self, other: &Self) -> bool {
        (&self.name, &self.from, &self.to) == (&other.name, &other.from, &other.to)
    }

    /// The figures of a histogram; without name, ends, rate, threshold and error bound.
    pub fn of(histogram: &Histogram) -> Self {
        Self { times: TimeFigures::of(histogram), histogram: histogram.buckets(), ..Self::default() }
    }
}

/// Lost packets, by the place where they were last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    /// The last point of the route that saw them; if none did, the last point off the route.
    pub place: String,
    /// The kernel's reason and function, e.g. `FULL_RING in tun_net_xmit`, if a `drop` point saw the packets and few
    /// packets with this reason arrived.
    pub reason: Option<String>,
    /// The meaning in plain words, if known, e.g. `tap queue full`. See docs/drops.md.
    #[serde(default)]
    pub meaning: Option<String>,
    /// The `drop` point, e.g. `host/drop@hout`: its device dropped the packets, and may differ from that of the place.
    /// `None` without a reason, and in runs of earlier versions.
    #[serde(default)]
    pub dropped_at: Option<String>,
    /// The kernel's own count at that device, of any packets: without other traffic, equal to the loss.
    #[serde(default)]
    pub kernel_count: Option<u64>,
    /// Number of packets.
    pub count: u64,
}

/// Figures of the packets on one path through the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathFigures {
    /// `direct`, `fast path`, `upcall`, `slow action` or `xdp`.
    pub path: String,
    /// Number of packets.
    pub journeys: u64,
    /// Number of lost packets.
    pub lost: u64,
    /// Figures of their segments `Thyp` and `total`.
    pub segments: Vec<SegmentFigures>,
}

/// Figures of one stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamFigures {
    /// The stream, in the syntax of the command line.
    pub stream: String,
    /// Its route: its points in the order in which packets pass them. Streams may lead into different VMs, or in
    /// different directions.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Number of packets seen at any point.
    pub journeys: u64,
    /// Number of packets seen at every point of the route.
    pub complete: u64,
    /// Number of packets that reached the last point but lack an earlier sighting; without a route, of all packets.
    /// `journeys` = `complete` + `incomplete` + `lost`.
    #[serde(default)]
    pub incomplete: u64,
    /// Packets that did not reach the last point.
    pub lost: Vec<Loss>,
    /// Number of duplicate arrivals at the last point of the route.
    pub duplicates: u64,
    /// Number of packets that reached the last point of the route after a later packet.
    pub out_of_order: u64,
    /// Number of sequence numbers that no point saw (the publisher skipped them, or the packets were lost before the
    /// first point).
    pub never_seen: u64,
    /// The longest run of consecutive packets that were late (over the threshold from the first to the last point of
    /// the route), lost, or never seen; `None` if there is none.
    #[serde(default)]
    pub consecutive: Option<ConsecutiveFigures>,
    /// The longest runs for other thresholds, if limits require them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consecutive_over: Vec<ConsecutiveOver>,
    /// Copies of its packets by LAN of redundant networks (PRP, HSR); empty without such networks.
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
    /// Key of the first packet of the run that was seen; if none was, of the packet after the run.
    pub key: u32,
    /// That packet's number in its stream.
    pub number: u64,
    /// Time of that packet's first sighting, UTC, ns.
    pub time_ns: Ns,
}

/// The longest run of consecutive packets that were lost, never seen or over another threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsecutiveOver {
    /// The threshold, ns.
    pub over_ns: Ns,
    /// The run; with 0 packets if there is none.
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
    /// ID of the running thread; null in runs imported from files.
    pub tid: Option<u32>,
    /// The thread's role for a virtual machine on the point's machine, if any, e.g. `vhost of relay1`.
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
    /// Time of its first sighting, ns since 1970 in TAI or UTC, depending on the run's clock.
    pub time_ns: Ns,
    /// Time from the first to the last point of the route that saw it, ns.
    pub total_ns: Ns,
    /// All sightings, in chronological order.
    pub steps: Vec<WorstStep>,
}

/// Causes of late packets so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LateFigures {
    /// Number of late packets.
    pub late: u64,
    /// Number of late packets that were explained.
    pub explained: u64,
    /// Sum of their times beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Unexplained share of a packet's excess: median over the packets, percent.
    pub unexplained_percent: f64,
    /// Number of on-time packets in the baseline.
    pub baseline_packets: u64,
    /// Number of spikes skipped because they came faster than they could be explained.
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
    /// Delay until the causes were shown; `None` if none was shown.
    pub shown_after: Option<ShownAfter>,
}

/// The share that one cause, or one culprit, has in the delay of late packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DelayShare {
    /// Name of the cause, e.g. `waiting for its CPU`, or of the culprit, e.g. `rustc (16 threads: opt cgu.14, ...)`.
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
    /// Time for the latest spike, ns.
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
    /// Its CPUs, the one with the largest share first.
    pub cpus: Vec<u32>,
    /// The segment with the largest share.
    pub segment: String,
    /// The actor and the culprit, e.g. `vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)`.
    pub description: String,
    /// Number of packets with this as their first cause.
    pub first: u64,
    /// Its time beyond the baseline, summed over all packets, ns.
    pub excess_ns: Ns,
    /// Median of that time over the packets, ns.
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
    /// Number of excluded packets that did not reach the last point.
    pub lost: u64,
    /// The segments over all other packets, all streams together.
    pub segments: Vec<SegmentFigures>,
}

/// Figures of one interval of a run, for all streams together; all intervals have the same duration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IntervalFigures {
    /// Start of the interval, relative to the run's start, ns.
    pub since_start_ns: Ns,
    /// Start of the interval, UTC, ns.
    pub time_ns: Ns,
    /// Its duration, ns.
    pub elapsed_ns: Ns,
    /// Number of packets first seen in it.
    pub journeys: u64,
    /// Number of packets that did not reach the last point.
    pub lost: u64,
    /// Figures of the segments for these packets, without histograms.
    pub segments: Vec<SegmentFigures>,
}

/// All figures of a screen, a JSON line or a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Duration, ns.
    pub elapsed_ns: Ns,
    /// Whether the run was imported from durations. If so, losses, duplicates, order, runs of packets and pacing are
    /// unknown, and their keys are omitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durations_alone: bool,
    /// The threshold to which `over_threshold` refers, ns.
    pub threshold_ns: Ns,
    /// The band to which `in_band` refers; `None` if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The points of the route, in the order in which packets pass them.
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Points off the route that also saw packets: copies made by a bridge, other readers.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub off_route: Vec<Point>,
    /// Number of packets seen at any point, all streams together.
    pub journeys: u64,
    /// Number of packets seen at every point of the route.
    pub complete: u64,
    /// Number of packets that reached the last point but lack an earlier sighting; also counts all packets of streams
    /// without a route. `journeys` = `complete` + `incomplete` + `lost`.
    #[serde(default)]
    pub incomplete: u64,
    /// Packets that did not reach the last point.
    pub lost: Vec<Loss>,
    /// Gaps in the reading by the applications at the ends of routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reader_gaps: Vec<ReaderGap>,
    /// Number of duplicate arrivals at the last point of the route.
    pub duplicates: u64,
    /// Number of packets that reached the last point of the route after a later packet.
    pub out_of_order: u64,
    /// Copies of packets by LAN of redundant networks (PRP, HSR), for all streams that use such networks; empty without
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lans: Vec<LanFigures>,
    /// Number of frames that had the right ethertype but could not be parsed.
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
    /// Synchronisation of the host's clocks, and the clocks' events; absent in runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClockFigures>,
    /// The worst packets, longest first (reports only).
    pub worst: Vec<Worst>,
    /// Patterns: released queues, periodic spikes, clock swings, steps, link flaps, path changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<Pattern>,
    /// The figures without packets affected by some patterns (reports only, on request).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<WithoutPatterns>,
    /// The figures of intervals of equal duration of the run (reports only, on request).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalFigures>,
    /// Causes of late packets so far (live only, with a flight recorder; for a run see `latpath explain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateFigures>,
    /// The cost of tracing.
    pub tool: ToolCost,
    /// Deficiencies of the figures, because of which some limits cannot be judged; empty if there are none.
    #[serde(default)]
    pub deficiencies: Vec<Deficiency>,
    /// Notes for the reader: missing points, clock faults, streams without packets.
    pub notes: Vec<String>,
    /// Limits of what could be observed, without evidence that packets were affected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub footnotes: Vec<String>,
}

impl Summary {
    /// A point's number on the route, counted from 1; `None` if it is off the route.
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

    /// A segment written as the numbers of its ends: `2→3`.
    pub fn numbers(&self, segment: &SegmentFigures, letters: CharacterSet) -> Option<String> {
        let (from, to) = (self.number(&segment.from)?, self.number(&segment.to)?);
        Some(format!("{from}{}{to}", letters.arrow()))
    }
}

/// Total number of lost packets.
pub fn packets(losses: &[Loss]) -> u64 {
    losses.iter().fold(0, |sum, loss| sum.saturating_add(loss.count))
}

/// The longest run of packets that were late, lost or never seen, and its stream.
pub fn longest_row(summary: &Summary) -> Option<(&StreamFigures, &ConsecutiveFigures)> {
    let rows = summary.streams.iter().filter_map(|stream| Some((stream, stream.consecutive.as_ref()?)));
    rows.rev().max_by_key(|(_, row)| row.packets)
}

/// Number of sequence numbers that no point saw, in all streams.
pub fn never_seen(summary: &Summary) -> u64 {
    summary.streams.iter().fold(0, |sum, stream| sum.saturating_add(stream.never_seen))
}

/// Merges losses with the same place and reason; sorts them, largest first.
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

/// Maximum error of a time between two points with timestamps from the same NIC clock, ns, for times up to about 100
/// µs: the same linear mapping converts both timestamps.
const ON_ONE_CLOCK: Ns = 10;

/// Maximum error of a time between two points, ns. Each point is given with the bound of its machine's clock against
/// the host's. The error is the sum of the machines' bounds, if the machines differ, and of the points' own bounds.
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
