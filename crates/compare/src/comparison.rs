//! The result of a comparison, to be printed or written as JSON (docs/json.md).

use crate::recording::{Excluded, Recording, Source};
use latpath_histogram::Bucket;
use latpath_model::{Ns, SegmentKind};
use latpath_settings::SettingDifference;
use latpath_stats::Band;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Two groups of recordings side by side.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The group under test.
    pub a: Group,
    /// The reference group.
    pub b: Group,
    /// Threshold of `over` and `spikes`.
    pub threshold_ns: Ns,
    /// Band of `in_band`; absent if the user names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// Conclusion in sentences: which figures differ, how many do not, and which cannot be compared.
    pub conclusion: Vec<String>,
    /// Number of figures tested; all p-values are corrected for it.
    pub tested: usize,
    /// Whether a group has only one recording: a difference then applies to these recordings only, not to their
    /// configurations.
    pub is_single: bool,
    /// Reasons why nothing can be compared; empty if the groups are comparable.
    pub not_comparable: Vec<String>,
    /// The machines' settings, and which of them differ between the groups.
    pub settings: ComparedSettings,
    /// Segments that both groups have.
    pub segments: Vec<Segment>,
    /// Lost packets of all streams together, or of each stream.
    pub losses: Vec<LossRow>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Observations that a recording lacks, without evidence that packets were affected.
    pub footnotes: Vec<String>,
}

/// The settings of the machines of both groups.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ComparedSettings {
    /// Number of recordings of A that have settings.
    pub a_recorded: usize,
    /// Number of recordings of B that have settings.
    pub b_recorded: usize,
    /// Settings that differ, of all machines: first those that differ between the groups, then those that vary within a
    /// group, then those of only one group. Empty if a group has no settings at all.
    pub differences: Vec<SettingDifference>,
}

/// A side of a comparison.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Name: `A`, `B`, or a name given by the user.
    pub name: String,
    /// Recordings of the group.
    pub recordings: Vec<Recorded>,
}

/// Summary of one recording.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// Path as given by the user.
    pub path: String,
    /// Kind of recording.
    pub source: Source,
    /// Number of packets seen at any point.
    pub packets: u64,
    /// Number of packets that did not arrive; null if unknown.
    pub lost: Option<u64>,
    /// Time from the first packet to the last.
    pub elapsed_ns: Ns,
    /// Packets per second, excluded packets included.
    pub rate_hz: f64,
    /// Excluded packets; null if the user excludes none.
    pub excluded: Option<Excluded>,
}

impl Recorded {
    /// Summarises a recording.
    pub fn of(recording: &Recording) -> Self {
        Self {
            path: recording.path.clone(),
            source: recording.source,
            packets: recording.packets(),
            lost: recording.lost(),
            elapsed_ns: recording.elapsed_ns,
            rate_hz: recording.rate_hz(),
            excluded: recording.excluded.clone(),
        }
    }
}

/// A segment that both groups have.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    /// Stream; null for all streams together.
    pub stream: Option<String>,
    /// Kind of segment.
    pub kind: SegmentKind,
    /// Name of the segment.
    pub name: String,
    /// First point in A.
    pub from: String,
    /// Last point in A.
    pub to: String,
    /// First point in B.
    pub b_from: String,
    /// Last point in B.
    pub b_to: String,
    /// Error bound of a difference, from the clocks of several machines; null if unknown.
    pub error_bound_ns: Option<Ns>,
    /// Deficiencies of the recordings that could change these times. If there are any, limits on differences cannot be
    /// judged.
    pub lacks: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
    /// Times of all recordings of A.
    pub a_histogram: Vec<Bucket>,
    /// Times of all recordings of B.
    pub b_histogram: Vec<Bucket>,
}

/// One figure of both groups.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// Name of the figure.
    pub figure: Cow<'static, str>,
    /// `ns`, `packets`, `per_hour`, `percent`.
    pub unit: Unit,
    /// Value of A; null if too few packets support it.
    pub a: Option<Amount>,
    /// Value of B; null if too few packets support it.
    pub b: Option<Amount>,
    /// A − B.
    pub difference: Option<Amount>,
    /// Lower end of the difference's 95 % confidence interval.
    pub low: Option<Amount>,
    /// Upper end of the difference's 95 % confidence interval.
    pub high: Option<Amount>,
    /// A − B in percent of B; null where a ratio has no meaning.
    pub difference_percent: Option<f64>,
    /// Lower end of the confidence interval, in percent of B.
    pub low_percent: Option<f64>,
    /// Upper end of the confidence interval, in percent of B.
    pub high_percent: Option<f64>,
    /// p-value of this row alone; null if the row is not tested.
    pub p: Option<f64>,
    /// p-value corrected for all tested rows (Holm).
    pub p_corrected: Option<f64>,
    /// Verdict.
    pub verdict: Verdict,
    /// Reason why the row cannot be compared.
    #[serde(skip)]
    pub obstacle: Option<String>,
    /// The row as a sentence; empty if the row is not tested.
    pub sentence: String,
}

/// Lost packets of both groups.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LossRow {
    /// Stream; null for all streams together.
    pub stream: Option<String>,
    /// Number of packets lost in all recordings of A.
    pub a_lost: u64,
    /// Number of packets in all recordings of A.
    pub a_packets: u64,
    /// Number of packets lost in all recordings of B.
    pub b_lost: u64,
    /// Number of packets in all recordings of B.
    pub b_packets: u64,
    /// Share of packets lost.
    pub share: Row,
    /// Loss events per hour.
    #[serde(flatten)]
    pub row: Row,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// A count.
    Packets,
    /// Events per hour.
    PerHour,
    /// A share of all packets.
    Percent,
}

/// A figure's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Amount {
    /// Nanoseconds, or a count.
    Whole(i64),
    /// A rate, or a share.
    Rate(f64),
}

/// Verdict of a row on A against B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A has shorter times.
    Faster,
    /// A has longer times.
    Slower,
    /// A has fewer spikes or losses.
    Fewer,
    /// A has more spikes or losses.
    More,
    /// These recordings differ. With a single recording on a side, nothing can be concluded about the configurations.
    Differ,
    /// No significant difference.
    NoDifference,
    /// The groups cannot be compared in this figure.
    NotComparable,
    /// Too few packets support the figure.
    TooFew,
    /// The recordings are too short to estimate the variance: one on each side, and one of them shorter than 16 s.
    TooShort,
    /// Shown, not tested.
    NotTested,
}

impl Verdict {
    /// The verdict as printed in a table; empty if the figure is not tested.
    pub fn text(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Fewer => "fewer",
            Self::More => "more",
            Self::Differ => "differ",
            Self::NoDifference => "no difference",
            Self::NotComparable => "not comparable",
            Self::TooFew => "too few",
            Self::TooShort => "too short",
            Self::NotTested => "",
        }
    }

    /// Whether the groups differ significantly.
    pub fn is_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower | Self::Fewer | Self::More | Self::Differ)
    }
}
