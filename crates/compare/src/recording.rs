//! The figures of one recording, a run or a ping log, that a comparison needs.

use crate::estimate::{lost_share, spike_rate, Estimate, Span, Times};
use latpath_histogram::Histogram;
use latpath_model::{Ns, SegmentKind};
use latpath_settings::RunSettings;
use latpath_stats::track::{Interval, Lost, Spikes};
use latpath_stats::{Band, PatternKind, Percentile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A figure of a segment by which recordings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Minimum.
    Min,
    /// Arithmetic mean.
    Mean,
    /// Population standard deviation.
    Stddev,
    /// Percentile, in millionths: 999_000 is p99.9.
    Percentile(u32),
    /// Maximum.
    Max,
    /// Packets over the threshold.
    Over,
    /// Spikes per hour. Packets over the threshold that are close together count as one spike.
    Spikes,
    /// Share of packets with times in the band given by the user.
    InBand,
}

impl Figure {
    /// All figures, in display order.
    pub const ALL: [Self; 15] = [
        Self::Min,
        Self::Mean,
        Self::Stddev,
        Self::Percentile(500_000),
        Self::Percentile(900_000),
        Self::Percentile(950_000),
        Self::Percentile(990_000),
        Self::Percentile(999_000),
        Self::Percentile(999_900),
        Self::Percentile(999_990),
        Self::Percentile(999_999),
        Self::Max,
        Self::Over,
        Self::Spikes,
        Self::InBand,
    ];

    /// Name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Mean => "mean",
            Self::Stddev => "stddev",
            Self::Percentile(n) => Percentile::ALL.iter().find(|p| p.per_million == n).map_or("percentile", |p| p.name),
            Self::Max => "max",
            Self::Over => "over",
            Self::Spikes => "spikes",
            Self::InBand => "in_band",
        }
    }

    /// Whether the figure gets a verdict. Each additional test makes the correction stricter, so few figures are
    /// tested: minimum and maximum depend on a single packet, and the others left out are correlated with tested ones.
    pub fn is_tested(self) -> bool {
        matches!(self, Self::Mean | Self::Percentile(500_000 | 990_000 | 999_000) | Self::Spikes)
    }

    /// Share of packets beyond the figure, against which the difference in lost packets is judged.
    pub fn beyond(self) -> f64 {
        match self {
            Self::Percentile(per_million) => 1.0 - f64::from(per_million) / 1e6,
            _ => 0.01,
        }
    }
}

/// One segment of one recording.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Stream; `None` for all streams together.
    pub stream: Option<String>,
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Name of the segment.
    pub name: String,
    /// First point, as `machine/kind@device`.
    pub from: String,
    /// Last point, as `machine/kind@device`.
    pub to: String,
    /// Error bound of a time between two machines' clocks, ns; `None` if unknown.
    pub error_bound_ns: Option<Ns>,
    /// Cost of latpath's own sightings within the segment, ns per packet.
    pub cost_ns: Ns,
    /// Number of packets over the threshold.
    pub over: u64,
    /// The band given by the user, and the number of times in it; `None` without a band.
    pub in_band: Option<(Band, u64)>,
    /// All times of the segment, ns.
    pub histogram: Histogram,
    /// Number of spikes; `None` if they are too many to be distinguished.
    pub spikes: Option<usize>,
    /// Whether spikes cover more than a tenth of the recording; their number is then meaningless.
    pub is_late_often: bool,
    /// Deficiency of the recording that could change these times, as a sentence.
    pub lacks: Option<String>,
    /// Estimates of the figures that vary between recordings.
    pub estimates: Vec<(Figure, Option<Estimate>)>,
}

impl Measured {
    /// Computes the figures from a segment's times, in total and by interval. The caller fills in name, ends and costs.
    pub fn of(histogram: Histogram, (intervals, spikes): (Vec<(usize, Interval)>, Spikes), span: Span) -> Self {
        let times = Times { histogram, intervals };
        let rate = spike_rate(&spikes, span);
        let estimate = |figure| match figure {
            Figure::Mean => times.mean(),
            Figure::Percentile(per_million) => times.quantile(f64::from(per_million) / 1e6),
            Figure::Spikes => rate,
            Figure::Min | Figure::Stddev | Figure::Max | Figure::Over | Figure::InBand => None,
        };
        Self {
            estimates: Figure::ALL.into_iter().map(|figure| (figure, estimate(figure))).collect(),
            stream: None,
            kind: SegmentKind::default(),
            name: String::new(),
            from: String::new(),
            to: String::new(),
            error_bound_ns: Some(0),
            cost_ns: 0,
            over: 0,
            in_band: None,
            lacks: None,
            spikes: spikes.count(),
            is_late_often: is_often(&spikes, span),
            histogram: times.histogram,
        }
    }

    /// The estimate of a figure; `None` if the figure cannot be compared or too few packets support it.
    pub fn estimate(&self, figure: Figure) -> Option<Estimate> {
        self.estimates.iter().find(|(f, _)| *f == figure).and_then(|(_, estimate)| *estimate)
    }
}

/// Lost packets of all streams, or of one.
#[derive(Clone, Debug)]
pub struct Losses {
    /// Stream; `None` for all streams together.
    pub stream: Option<String>,
    /// Number of packets seen at any point.
    pub packets: u64,
    /// Number of packets that did not arrive; `None` if unknown.
    pub lost: Option<u64>,
    /// Share of lost packets, from [`crate::estimate::lost_share`].
    pub share: Option<Estimate>,
    /// Loss events per hour (losses close together count once), from [`crate::estimate::spike_rate`].
    pub rate: Option<Estimate>,
    /// Whether losses cover more than a tenth of the recording; the number of loss events is then meaningless.
    pub is_lost_often: bool,
}

impl Losses {
    /// Computes the count, share and rate of losses from their times. `is_known`: whether lost packets can be detected;
    /// without it, the count is `None`.
    pub fn of(stream: Option<String>, packets: u64, is_known: bool, mut when: Lost, span: Span) -> Self {
        let (share, lost) = (lost_share(&when, packets, span), is_known.then(|| when.count()));
        let events = when.events();
        Self { stream, packets, lost, share, rate: spike_rate(events, span), is_lost_often: is_often(events, span) }
    }
}

/// Whether spikes cover more than a tenth of the recording; their number is then meaningless.
fn is_often(spikes: &Spikes, span: Span) -> bool {
    let all = spikes.found().iter().map(|(first, last)| last.saturating_sub(*first));
    all.fold(0, Ns::saturating_add) > span.elapsed / 10
}

/// Kind of recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A run that latpath recorded.
    Run,
    /// A log of round trips.
    PingLog,
}

/// Packets excluded from a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Excluded {
    /// Kinds of patterns to exclude, as given by the user.
    pub kinds: Vec<PatternKind>,
    /// Number of patterns of these kinds.
    pub patterns: u64,
    /// Number of packets that these patterns affect.
    pub packets: u64,
}

/// Figures of one recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Path as given by the user.
    pub path: String,
    /// Whether it is a run or a ping log.
    pub source: Source,
    /// Identity of the content: equal for copies of one recording.
    pub identity: String,
    /// Names of the streams.
    pub streams: Vec<String>,
    /// Time from the first packet to the last.
    pub elapsed_ns: Ns,
    /// Threshold of `over` and `spikes`.
    pub threshold_ns: Ns,
    /// Number of sightings recorded, and number of sightings that latpath itself lost.
    pub sightings: (u64, u64),
    /// The machines' settings during the recording; empty if it has none.
    pub settings: RunSettings,
    /// Segments of all streams together, and of each stream.
    pub segments: Vec<Measured>,
    /// Packets and losses by stream.
    pub losses: Vec<Losses>,
    /// Excluded packets; `None` if the user excludes none.
    pub excluded: Option<Excluded>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Observations that the recording lacks, without evidence that packets were affected.
    pub footnotes: Vec<String>,
}

impl Recording {
    /// Number of packets of all streams.
    pub fn packets(&self) -> u64 {
        self.losses.iter().map(|l| l.packets).sum()
    }

    /// Number of lost packets; `None` if unknown.
    pub fn lost(&self) -> Option<u64> {
        self.losses.iter().map(|l| l.lost).sum()
    }

    /// Renames streams from the first to the second name of each pair, so that they match those of another site.
    pub fn rename_streams(&mut self, names: &[(String, String)]) {
        let of_segments = self.segments.iter_mut().filter_map(|m| m.stream.as_mut());
        let of_losses = self.losses.iter_mut().filter_map(|l| l.stream.as_mut());
        for stream in self.streams.iter_mut().chain(of_segments).chain(of_losses) {
            if let Some((_, name)) = names.iter().find(|(old, _)| old == stream) {
                stream.clone_from(name);
            }
        }
    }

    /// Packets per second, excluded packets included.
    pub fn rate_hz(&self) -> f64 {
        let left_out = self.excluded.as_ref().map_or(0, |excluded| excluded.packets);
        latpath_stats::figures::rate(self.packets().saturating_add(left_out), self.elapsed_ns)
    }
}
