//! What is known of one recording, whether a run or a log of ping: enough to compare it with others.

use crate::estimate::{lost_share, spike_rate, Estimate, Span, Times};
use latpath_histogram::Histogram;
use latpath_model::{Ns, SegmentKind};
use latpath_stats::track::{Lost, Spikes, Stretch};
use latpath_stats::{Band, PatternKind, Percentile};
use schemars::JsonSchema;
use serde::Serialize;

/// A figure of a segment that recordings are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The least time.
    Min,
    Mean,
    /// The standard deviation of the population.
    Stddev,
    /// The time that so many millionths of all times do not exceed.
    Percentile(u32),
    /// The greatest time.
    Max,
    /// Packets over the threshold.
    Over,
    /// Spikes an hour: packets over the threshold that lie close together are one.
    Spikes,
    /// The share of packets whose times are in the band that the user names.
    InBand,
}

impl Figure {
    /// All, in the order in which they are shown.
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

    /// Whether it gets a verdict. The more questions a page asks, the surer each answer must be: so these are few. A minimum and a maximum
    /// are single packets, and the figures between say the same as these.
    pub fn is_tested(self) -> bool {
        matches!(self, Self::Mean | Self::Percentile(500_000 | 990_000 | 999_000) | Self::Spikes)
    }

    /// The share of packets beyond it: so few must not be among the lost ones.
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
    /// Its stream; none where all streams are together.
    pub stream: Option<String>,
    pub kind: SegmentKind,
    pub name: String,
    /// Where it begins, as `machine/kind@device`.
    pub from: String,
    pub to: String,
    /// How wrong a time here can be, because two machines' clocks took it; `None` where nobody knows.
    pub error_bound_ns: Option<Ns>,
    /// What latpath's own sightings between its ends cost a packet here.
    pub cost_ns: Ns,
    /// Packets over the threshold.
    pub over: u64,
    /// The band that the user names, and how many times are in it; none where there is none.
    pub in_band: Option<(Band, u64)>,
    pub histogram: Histogram,
    /// Spikes; none where they are too many to be distinguished.
    pub spikes: Option<usize>,
    /// Spikes took more than a tenth of the time: then their number says nothing.
    pub is_late_often: bool,
    /// What the recording lacks that could change these times, in a sentence.
    pub lacks: Option<String>,
    /// The figures that vary from recording to recording.
    pub estimates: Vec<(Figure, Option<Estimate>)>,
}

impl Measured {
    /// From a segment's times, all of them and over time. Name, ends and costs are for the caller to fill in.
    pub fn of(histogram: Histogram, (stretches, spikes): (Vec<(usize, Stretch)>, Spikes), span: Span) -> Self {
        let times = Times { histogram, stretches };
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

    /// A figure that varies and can be compared; none where it cannot be, or too few packets say it.
    pub fn estimate(&self, figure: Figure) -> Option<Estimate> {
        self.estimates.iter().find(|(f, _)| *f == figure).and_then(|(_, estimate)| *estimate)
    }
}

/// Packets that did not arrive, of all streams or of one.
#[derive(Clone, Debug)]
pub struct Losses {
    /// The stream; none where all are together.
    pub stream: Option<String>,
    /// Packets seen at any point.
    pub packets: u64,
    /// Those of these that did not arrive; none where that is not known.
    pub lost: Option<u64>,
    /// The share of lost packets; as [`crate::estimate::lost_share`] has it.
    pub share: Option<Estimate>,
    /// How often an hour some were lost, those close together counted once; as [`crate::estimate::spike_rate`] has it.
    pub rate: Option<Estimate>,
    /// Packets were lost for more than a tenth of the time: then how often says nothing.
    pub is_lost_often: bool,
}

impl Losses {
    /// From when packets were lost, if that is known: their number, their share and how often are all of that.
    pub fn of(stream: Option<String>, packets: u64, is_known: bool, mut when: Lost, span: Span) -> Self {
        let (share, lost) = (lost_share(&when, packets, span), is_known.then(|| when.count()));
        let events = when.events();
        Self { stream, packets, lost, share, rate: spike_rate(events, span), is_lost_often: is_often(events, span) }
    }
}

/// Whether spikes take more than a tenth of the time: then their number says nothing.
fn is_often(spikes: &Spikes, span: Span) -> bool {
    let all = spikes.found().iter().map(|(first, last)| last.saturating_sub(*first));
    all.fold(0, Ns::saturating_add) > span.elapsed / 10
}

/// What a recording is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A run that latpath recorded.
    Run,
    /// A log of round trips.
    PingLog,
}

/// Packets that are left out of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Excluded {
    /// The kinds of patterns that the user named.
    pub kinds: Vec<PatternKind>,
    /// Patterns of these kinds that were found.
    pub patterns: u64,
    /// The packets that they touch.
    pub packets: u64,
}

#[derive(Clone, Debug)]
pub struct Recording {
    /// Its path, as the user named it.
    pub path: String,
    pub source: Source,
    /// The same for copies of one recording.
    pub identity: String,
    pub streams: Vec<String>,
    /// From its first packet to its last.
    pub elapsed_ns: Ns,
    /// What `over` and `spikes` are counted against.
    pub threshold_ns: Ns,
    /// Sightings, and of these the ones that latpath lost itself.
    pub sightings: (u64, u64),
    pub segments: Vec<Measured>,
    pub losses: Vec<Losses>,
    /// What was left out of all of this, because patterns touch it; none where the user asks for nothing.
    pub excluded: Option<Excluded>,
    /// What the reader must know of it.
    pub notes: Vec<String>,
    /// What could not be seen, where nothing suggests that packets were affected.
    pub footnotes: Vec<String>,
}

impl Recording {
    pub fn packets(&self) -> u64 {
        self.losses.iter().map(|l| l.packets).sum()
    }

    /// Packets that did not arrive; none where that is not known.
    pub fn lost(&self) -> Option<u64> {
        self.losses.iter().map(|l| l.lost).sum()
    }

    /// Gives streams other names, each the second of its pair instead of the first, so that they can be set against those of another site.
    pub fn rename_streams(&mut self, names: &[(String, String)]) {
        let of_segments = self.segments.iter_mut().filter_map(|m| m.stream.as_mut());
        let of_losses = self.losses.iter_mut().filter_map(|l| l.stream.as_mut());
        for stream in self.streams.iter_mut().chain(of_segments).chain(of_losses) {
            if let Some((_, name)) = names.iter().find(|(old, _)| old == stream) {
                stream.clone_from(name);
            }
        }
    }

    /// Packets a second, with those that are left out.
    pub fn rate_hz(&self) -> f64 {
        let left_out = self.excluded.as_ref().map_or(0, |excluded| excluded.packets);
        latpath_stats::figures::rate(self.packets().saturating_add(left_out), self.elapsed_ns)
    }
}
