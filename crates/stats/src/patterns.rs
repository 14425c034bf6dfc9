//! Patterns in a recording: a queue that was held and released, spikes that come periodically, swings of a clock, steps of the level,
//! flaps of a link, changes of path.
//!
//! One pass over the journeys gathers a little for each second and the greatest times ([`Patterns`]); the patterns are found in that.
//! docs/patterns.md describes the criteria.

mod excursions;
mod find;
mod gather;
mod levels;
mod outages;
mod period;
mod sentence;
mod shifts;
mod slots;
mod swing;
mod taken;

pub use find::{Found, Touched};
pub use gather::Patterns;

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a pattern is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PatternKind {
    /// A queue was held and then released: packets that were sent one after the other arrive at once.
    #[default]
    QueueRelease,
    /// Spikes come periodically.
    PeriodicSpikes,
    /// The times between two machines rise and fall together, because the clock of one swings against the clock of the other.
    ServoSwing,
    /// The level of a segment's times changes within a second, and stays.
    Step,
    /// All packets of all streams are missing at one place for a stretch, and come again after it.
    LinkFlap,
    /// From one second to the next packets take another path through the host.
    PathChange,
}

impl PatternKind {
    pub const ALL: [Self; 6] =
        [Self::QueueRelease, Self::PeriodicSpikes, Self::ServoSwing, Self::Step, Self::LinkFlap, Self::PathChange];

    /// As flags and JSON write it.
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

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for PatternKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A pattern that was found. Instants are of the host's `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pattern {
    /// Its kind.
    pub kind: PatternKind,
    /// The names of the segments that show it, the shortest first; empty for a link or a path.
    pub segments: Vec<String>,
    /// The point that the shortest begins with; the last point that saw the missing packets, or whose packets change their path.
    /// Empty where no point saw them.
    pub from: String,
    /// The point that the shortest ends at; the next point of a missing packet's route.
    pub to: String,
    /// The streams that it touches.
    pub streams: Vec<String>,
    /// When it begins.
    pub from_ns: Ns,
    /// When it ends; the end of the recording where it does not.
    pub to_ns: Ns,
    /// When it begins, since the recording's start.
    pub since_start_ns: Ns,
    /// When it ends, since the recording's start.
    pub until_ns: Ns,
    /// How often it occurs: queues released, spikes, reversals of a swing, flaps; 1 for a step and a change.
    pub count: u64,
    /// Packets that it touches: late in a spike or a queue, lost or never seen in a flap; since the change for a step, a swing or a path.
    pub packets: u64,
    /// The period of spikes or of a swing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<Ns>,
    /// The longest hold of a queue; the highest spike's duration from its packet's start; the range of a swing; the rise of a step
    /// (negative: a fall); the longest flap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_ns: Option<Ns>,
    /// The median before a step, and after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels_ns: Option<[Ns; 2]>,
    /// The path, or the point, that packets take more or less often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its share of the packets before the change, and after it, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<[f64; 2]>,
    /// The first occurrences, 64 at most.
    pub occurrences: Vec<Occurrence>,
    /// The pattern in a sentence.
    pub text: String,
}

/// One time that a pattern occurs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// From its first packet on.
    pub from_ns: Ns,
    /// To its last packet.
    pub to_ns: Ns,
    /// Its size, as the pattern's.
    pub size_ns: Ns,
    /// The packets that it touches.
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
