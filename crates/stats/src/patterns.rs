//! Patterns in a recording: a queue that was held and released, periodic spikes, swings of a clock, steps of the level,
//! flaps of a link, changes of path.
//!
//! One pass over the journeys gathers a few figures per second and the greatest times ([`Patterns`]); the patterns are
//! found in these. docs/patterns.md describes the criteria.

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
    /// A queue was held and then released: packets sent one after another arrive at once.
    #[default]
    QueueRelease,
    /// Spikes come periodically.
    PeriodicSpikes,
    /// The times between two machines rise and fall together, because one machine's clock swings against the other's.
    ServoSwing,
    /// The level of a segment's times changes within a second, and remains.
    Step,
    /// All packets of all streams are missing at one place for some time, and return afterwards.
    LinkFlap,
    /// From one second to the next packets take another path through the host.
    PathChange,
}

impl PatternKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::QueueRelease, Self::PeriodicSpikes, Self::ServoSwing, Self::Step, Self::LinkFlap, Self::PathChange];

    /// Name in flags and JSON.
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

/// A pattern. Instants are of the host's `CLOCK_MONOTONIC`, ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pattern {
    /// Its kind.
    pub kind: PatternKind,
    /// The names of the segments that show it, the shortest first; empty for a link or a path.
    pub segments: Vec<String>,
    /// First point of the shortest segment; the last point that saw the missing packets, or whose packets change their
    /// path. Empty if no point saw them.
    pub from: String,
    /// Last point of the shortest segment; the next point of a missing packet's route.
    pub to: String,
    /// The affected streams.
    pub streams: Vec<String>,
    /// Beginning.
    pub from_ns: Ns,
    /// End; the end of the recording if the pattern continues.
    pub to_ns: Ns,
    /// Beginning, since the recording's start, ns.
    pub since_start_ns: Ns,
    /// End, since the recording's start, ns.
    pub until_ns: Ns,
    /// Number of occurrences: queues released, spikes, reversals of a swing, flaps; 1 for a step and a change.
    pub count: u64,
    /// Affected packets: late in a spike or a queue, lost or never seen in a flap; since the change for a step, a swing
    /// or a path.
    pub packets: u64,
    /// The period of spikes or of a swing, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<Ns>,
    /// The longest hold of a queue; the duration of the highest spike from its packet's start; the range of a swing;
    /// the rise of a step (negative: a fall); the longest flap; ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_ns: Option<Ns>,
    /// The median before a step, and after it, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels_ns: Option<[Ns; 2]>,
    /// The path, or the point, that packets take more or less often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its share of the packets before the change, and after it, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<[f64; 2]>,
    /// The first occurrences, at most 64.
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

/// The median of these values; 0 of an empty list. Reorders them.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Robust standard deviation of noise with outliers, from the median absolute deviation.
fn robust_deviation(values: &[f64]) -> f64 {
    let mut all = values.to_vec();
    let middle = median(&mut all);
    all.iter_mut().for_each(|value| *value = (*value - middle).abs());
    1.4826 * median(&mut all)
}
