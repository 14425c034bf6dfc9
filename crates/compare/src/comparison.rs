//! What comes out: a page that can be printed, or be JSON (docs/json.md).

use crate::recording::{Excluded, Recording, Source};
use latpath_histogram::Bucket;
use latpath_model::{Ns, SegmentKind};
use latpath_stats::Band;
use schemars::JsonSchema;
use serde::Serialize;

/// Two groups of recordings side by side.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Comparison {
    /// The recordings in question.
    pub a: Group,
    /// What they are compared against.
    pub b: Group,
    /// What `over` and `spikes` are counted against.
    pub threshold_ns: Ns,
    /// What `in_band` counts; missing where the user names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// What follows, in sentences: how many figures differ and which, how many do not, what cannot be compared.
    pub conclusion: Vec<String>,
    /// How many questions the page asks; all probabilities are corrected for them.
    pub tested: usize,
    /// Only one recording on a side: then no more can be said than that recordings differ.
    pub is_single: bool,
    /// Why nothing at all can be compared; empty where it can.
    pub not_comparable: Vec<String>,
    /// Segments that both groups have.
    pub segments: Vec<Segment>,
    /// Lost packets, of all streams or of each.
    pub losses: Vec<LossRow>,
    /// What the reader must know.
    pub notes: Vec<String>,
    /// What could not be seen in some recording, where nothing suggests that packets were affected.
    pub footnotes: Vec<String>,
}

/// A side of a comparison.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Group {
    /// Its name: `A`, `B`, or the user's.
    pub name: String,
    /// Its recordings.
    pub recordings: Vec<Recorded>,
}

/// One recording, in short.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Recorded {
    /// As the user named it.
    pub path: String,
    /// What it is.
    pub source: Source,
    /// Packets seen at any point.
    pub packets: u64,
    /// Those of these that did not arrive; null where that is not known.
    pub lost: Option<u64>,
    /// From the first packet to the last.
    pub elapsed_ns: Ns,
    /// Packets a second, with those that are left out.
    pub rate_hz: f64,
    /// The packets that were left out; null where the user asks for nothing.
    pub excluded: Option<Excluded>,
}

impl Recorded {
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

/// A segment of both groups.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Segment {
    /// Its stream; null where all streams are together.
    pub stream: Option<String>,
    /// What it is.
    pub kind: SegmentKind,
    /// Its name.
    pub name: String,
    /// Its ends in A.
    pub from: String,
    /// Its ends in A.
    pub to: String,
    /// Its ends in B.
    pub b_from: String,
    /// Its ends in B.
    pub b_to: String,
    /// How wrong a difference can be, because clocks of several machines took the times; null where nobody knows.
    pub error_bound_ns: Option<Ns>,
    /// What recordings lack that could change these times: no limit on a difference can be judged then.
    pub lacks: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
    /// All recordings of A together.
    pub a_histogram: Vec<Bucket>,
    /// All recordings of B together.
    pub b_histogram: Vec<Bucket>,
}

/// One figure of both groups.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Row {
    /// Its name.
    pub figure: &'static str,
    /// `ns`, `packets`, `per_hour`, `percent`.
    pub unit: Unit,
    /// A's value; null where too few packets say it.
    pub a: Option<Amount>,
    /// B's value.
    pub b: Option<Amount>,
    /// A − B, and its interval.
    pub difference: Option<Amount>,
    /// The interval's lower end.
    pub low: Option<Amount>,
    /// Its upper end.
    pub high: Option<Amount>,
    /// The same in percent of B; null where a ratio says nothing.
    pub difference_percent: Option<f64>,
    /// The interval's lower end.
    pub low_percent: Option<f64>,
    /// Its upper end.
    pub high_percent: Option<f64>,
    /// How probable it is by chance, taken by itself; null where it is not tested.
    pub p: Option<f64>,
    /// Corrected for all that is tested.
    pub p_corrected: Option<f64>,
    /// What follows.
    pub verdict: Verdict,
    /// What keeps it from being compared.
    #[serde(skip)]
    pub obstacle: Option<String>,
    /// The same in a sentence; empty where it is not tested.
    pub sentence: String,
}

/// Lost packets of both groups.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LossRow {
    /// The stream; null where all are together.
    pub stream: Option<String>,
    /// Packets that did not arrive, of all recordings of A.
    pub a_lost: u64,
    /// Packets of A.
    pub a_packets: u64,
    /// B's value.
    pub b_lost: u64,
    /// B's value.
    pub b_packets: u64,
    /// The share of packets that were lost.
    pub share: Row,
    /// How often an hour packets were lost.
    #[serde(flatten)]
    pub row: Row,
}

/// What a figure is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// A count.
    Packets,
    /// Events an hour.
    PerHour,
    /// A share of all packets.
    Percent,
}

/// A figure's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Amount {
    /// ns, or a count.
    Whole(i64),
    /// A rate, or a share.
    Rate(f64),
}

/// What a row says about A against B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its times are shorter.
    Faster,
    /// Its times are longer.
    Slower,
    /// It has fewer spikes, or losses.
    Fewer,
    /// It has more.
    More,
    /// These recordings differ: with one on a side that is all that can be said.
    Differ,
    /// No difference to be seen.
    NoDifference,
    /// The groups cannot be compared in this.
    NotComparable,
    /// Too few packets say it.
    TooFew,
    /// The recordings are too short to say how much it varies: one on each side, and one of them shorter than 16 s.
    TooShort,
    /// Shown, not tested.
    NotTested,
}

impl Verdict {
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

    pub fn is_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower | Self::Fewer | Self::More | Self::Differ)
    }
}
