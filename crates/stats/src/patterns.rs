//! Patterns in a recording: queues that were held and released, periodic spikes, clock swings, steps of the level, link
//! flaps, path changes.
//!
//! One pass over the journeys gathers a few figures per second, and the greatest times ([`Patterns`]). The patterns are
//! found in these figures. docs/patterns.md describes the criteria.

mod excursions;
mod find;
mod gather;
mod levels;
mod outages;
mod period;
mod point_sets;
mod sentence;
mod shifts;
mod slots;
mod swing;

pub use find::{DetectedPattern, Touched};
pub use gather::Patterns;

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Kinds of patterns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PatternKind {
    /// A queue was held and then released: packets sent one after another arrive at the same time.
    #[default]
    QueueRelease,
    /// Spikes recur periodically.
    PeriodicSpikes,
    /// The times between two machines rise and fall together, because one machine's clock swings relative to the
    /// other's.
    ServoSwing,
    /// The level of a segment's times changes within a second, and the new level persists.
    Step,
    /// At one place, all packets of all streams are missing for some time, and then return.
    LinkFlap,
    /// From one second to the next, packets take another path through the host.
    PathChange,
}

impl PatternKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::QueueRelease, Self::PeriodicSpikes, Self::ServoSwing, Self::Step, Self::LinkFlap, Self::PathChange];

    /// The name used in flags and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueRelease => "queue-release",
            Self::PeriodicSpikes => "periodic-spikes",
            Self::ServoSwing => "servo-swing",
            Self::Step => "step",
            Self::LinkFlap => "link-flap",
            Self::PathChange => "path-change",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for PatternKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A pattern. Times are from the host's `CLOCK_MONOTONIC`, ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pattern {
    /// Its kind.
    pub kind: PatternKind,
    /// The names of the segments that show it, the shortest first; empty for a link flap or a path change.
    pub segments: Vec<String>,
    /// First point of the shortest segment. For a link flap, the last point that saw the missing packets; empty if none
    /// did. Empty for a path change.
    pub from: String,
    /// Last point of the shortest segment. For a link flap, the next point on the missing packets' route. Empty for a
    /// path change.
    pub to: String,
    /// The affected streams.
    pub streams: Vec<String>,
    /// Start.
    pub from_ns: Ns,
    /// End; if the pattern continues, the end of the recording.
    pub to_ns: Ns,
    /// Start, relative to the recording's start, ns.
    pub since_start_ns: Ns,
    /// End, relative to the recording's start, ns.
    pub until_ns: Ns,
    /// Number of occurrences: released queues, spikes, turning points of a swing, flaps; 1 for a step or a path change.
    pub count: u64,
    /// Number of affected packets: late packets for spikes and queues; lost or never seen packets for flaps; packets
    /// since the change for a step or a path change; all packets during a swing.
    pub packets: u64,
    /// The period of spikes or of a swing, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<Ns>,
    /// Size, ns: the longest hold of a queue; the highest spike's maximum time; the range of a swing; the rise of a
    /// step (negative for a fall); the duration of the longest flap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_ns: Option<Ns>,
    /// The median before and after a step, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels_ns: Option<[Ns; 2]>,
    /// The path, or the point, through which more or fewer packets go than before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its share of the packets before and after the change, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<[f64; 2]>,
    /// The occurrences; only the first 64 if there are more.
    pub occurrences: Vec<Occurrence>,
    /// The pattern as a sentence.
    pub text: String,
}

/// An occurrence of a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// Time of its first packet.
    pub from_ns: Ns,
    /// Time of its last packet.
    pub to_ns: Ns,
    /// Its size, as for the pattern, ns.
    pub size_ns: Ns,
    /// Number of affected packets.
    pub packets: u64,
}

/// The median of the values, which are reordered; 0 if there are none.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Standard deviation of noise, estimated robustly against outliers from the median absolute deviation.
fn robust_deviation(values: &[f64]) -> f64 {
    let mut all = values.to_vec();
    let middle = median(&mut all);
    all.iter_mut().for_each(|value| *value = (*value - middle).abs());
    1.4826 * median(&mut all)
}
