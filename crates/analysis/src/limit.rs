//! Limits on figures: `total:p99.9<=500us`, `lost<=0`.

mod verdict;

use latpath_model::{point::Lan, Ns};
use latpath_stats::{
    figures::{never_seen, packets},
    lans::lost_on,
    PacingFigures, Percentile, Summary, TimeFigures,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

pub(crate) use verdict::lacking;
pub use verdict::LimitVerdict;

/// A limit set by the user or a profile.
#[derive(Clone, Debug)]
pub struct Limit {
    text: String,
    what: Subject,
    /// Maximum of the figure (times in ns); for journeys, the minimum.
    bar: i64,
    about: Option<LimitOrigin>,
    /// Whether the figure is not measured here.
    is_not_measured: bool,
}

/// What a profile's limit is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitOrigin {
    /// Human-readable name of the limit.
    pub name: String,
    /// The standard, device or customer that requires it.
    pub source: String,
}

#[derive(Clone, Debug)]
enum Subject {
    Time(Where, fn(&TimeFigures) -> Ns, IsExact),
    /// Number of a segment's times over the threshold.
    Over(Where),
    /// Number of a segment's negative times.
    Negative(Where),
    /// A time between consecutive packets, at all points or only at points that match a pattern.
    Pacing(Option<String>, fn(&PacingFigures) -> Ns),
    /// Number of consecutive packets that were lost or took longer than this time; `None` for the threshold.
    Consecutive(Option<Ns>),
    /// Minimum number of packets.
    Journeys,
    /// A count over all journeys.
    All(Counter),
}

/// A count over all journeys, or of packets without a journey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    Lost,
    Incomplete,
    Duplicates,
    OutOfOrder,
    NeverSeen,
    Malformed,
    SightingsDropped,
    /// Packets lost on one LAN of a redundant network.
    LostOn(Lan),
}

impl Counter {
    const ALL: [Self; 9] = [
        Self::Lost,
        Self::Incomplete,
        Self::Duplicates,
        Self::OutOfOrder,
        Self::NeverSeen,
        Self::Malformed,
        Self::SightingsDropped,
        Self::LostOn(Lan::A),
        Self::LostOn(Lan::B),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Incomplete => "incomplete",
            Self::Duplicates => "duplicates",
            Self::OutOfOrder => "out_of_order",
            Self::NeverSeen => "never_seen",
            Self::Malformed => "malformed",
            Self::SightingsDropped => "sightings_dropped",
            Self::LostOn(Lan::A) => "lost_on_lan_a",
            Self::LostOn(Lan::B) => "lost_on_lan_b",
        }
    }

    /// The count; `None` if it does not apply.
    fn figure(self, summary: &Summary) -> Option<u64> {
        Some(match self {
            Self::Lost => packets(&summary.lost),
            Self::Incomplete => summary.incomplete,
            Self::Duplicates => summary.duplicates,
            Self::OutOfOrder => summary.out_of_order,
            Self::NeverSeen => never_seen(summary),
            Self::Malformed => summary.malformed,
            Self::SightingsDropped => summary.tool.sightings_dropped,
            Self::LostOn(lan) => return lost_on(&summary.lans, lan),
        })
    }
}

/// Whether a figure is independent of the offset between two clocks.
type IsExact = bool;

/// A segment, for each stream separately or for all streams together (`pooled`).
#[derive(Clone, Debug)]
struct Where {
    segment: String,
    pooled: bool,
}

impl Where {
    fn of(text: &str) -> Self {
        let (segment, pooled) = text.strip_suffix("(all)").map_or((text, false), |segment| (segment, true));
        Self { segment: segment.into(), pooled }
    }
}

/// Why a string is not a limit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadLimit {
    /// The string does not have the form of a limit.
    #[error(
        "{0:?}: not a limit; write SEGMENT:FIGURE<=TIME, COUNTER<=N or journeys>=N, e.g. total:max<=3ms or lost<=0"
    )]
    Form(String),
    /// The figure is unknown.
    #[error("{0:?}: no such figure (times of a segment: min, mean, stddev, p50, p90, p95, p99, p99.9, p99.99, p99.999, p99.9999, max; counts of a segment: over, negative; pacing: min, mean, max; counts of all: lost, consecutive, consecutive(TIME), incomplete, duplicates, out_of_order, never_seen, malformed, sightings_dropped, lost_on_lan_a, lost_on_lan_b)")]
    Figure(String),
    /// The value is neither a time nor a number.
    #[error("{0:?}: not a value; write a time, e.g. 200us or 1.5ms, a count as a whole number")]
    Value(String),
}

/// Finds a figure of a segment's times by name: `p99.9`, `max`.
pub fn time_figure(name: &str) -> Option<fn(&TimeFigures) -> Ns> {
    Some(match name {
        "min" => |t| t.min_ns,
        "mean" => |t| t.mean_ns,
        "stddev" => |t| t.stddev_ns,
        "max" => |t| t.max_ns,
        name => Percentile::named(name)?.figure,
    })
}

fn pacing_figure(name: &str) -> Option<fn(&PacingFigures) -> Ns> {
    Some(match name {
        "min" => |p| p.min_ns,
        "mean" => |p| p.mean_ns,
        "max" => |p| p.max_ns,
        _ => return None,
    })
}

/// The points of `pacing` (all points) or `pacing POINT`; `None` for other strings.
fn paced(text: &str) -> Option<Option<String>> {
    match text.strip_prefix("pacing")? {
        "" => Some(None),
        rest => rest.strip_prefix(' ').map(|point| Some(point.trim().into())),
    }
}

/// Finds a count by name.
fn counter(name: &str) -> Option<Subject> {
    if let Some(counter) = Counter::ALL.into_iter().find(|counter| counter.name() == name) {
        return Some(Subject::All(counter));
    }
    let time = name.strip_prefix("consecutive")?;
    let own = time.strip_prefix('(').and_then(|time| parse_duration(time.strip_suffix(')')?));
    (time.is_empty() || own.is_some()).then_some(Subject::Consecutive(own))
}

impl FromStr for Limit {
    type Err = BadLimit;

    fn from_str(text: &str) -> Result<Self, BadLimit> {
        let form = || BadLimit::Form(text.into());
        let unknown = |figure: &str| BadLimit::Figure(figure.into());
        let whole = |value: &str| value.parse::<u32>().map(i64::from).map_err(|_| BadLimit::Value(value.into()));
        let of = |what, bar| Self { text: text.into(), what, bar, about: None, is_not_measured: false };
        if let Some((left, value)) = text.rsplit_once(">=") {
            return if left.trim() == "journeys" {
                Ok(of(Subject::Journeys, whole(value.trim())?))
            } else {
                Err(form())
            };
        }
        let (left, value) = text.rsplit_once("<=").ok_or_else(form)?;
        let (left, value) = (left.trim(), value.trim());
        let time = || parse_duration(value).ok_or_else(|| BadLimit::Value(value.into()));
        let (what, bar) = match left.rsplit_once(':') {
            None => (counter(left).ok_or_else(|| unknown(left))?, whole(value)?),
            Some(("", _)) => return Err(form()),
            Some((segment, "over")) => (Subject::Over(Where::of(segment)), whole(value)?),
            Some((segment, "negative")) => (Subject::Negative(Where::of(segment)), whole(value)?),
            Some((what, figure)) => match paced(what) {
                Some(points) => {
                    (Subject::Pacing(points, pacing_figure(figure).ok_or_else(|| unknown(figure))?), time()?)
                }
                None => {
                    let by_name = time_figure(figure).ok_or_else(|| unknown(figure))?;
                    (Subject::Time(Where::of(what), by_name, figure == "stddev"), time()?)
                }
            },
        };
        Ok(of(what, bar))
    }
}

impl Limit {
    pub(crate) fn of_profile(self, about: LimitOrigin) -> Self {
        Self { about: Some(about), ..self }
    }

    /// The limit's segment, if the user named it; a profile may name segments that a run does not have.
    pub fn segment(&self) -> Option<&str> {
        match &self.what {
            Subject::Time(at, ..) | Subject::Over(at) | Subject::Negative(at) if self.about.is_none() => {
                Some(&at.segment)
            }
            _ => None,
        }
    }

    /// What the limit is for, if a profile set it.
    pub fn about(&self) -> Option<&LimitOrigin> {
        self.about.as_ref()
    }

    /// The name of the limit's count: `lost`, `pacing`, `over` for a segment, …; `None` for times of segments and for
    /// journeys.
    pub fn counter(&self) -> Option<&'static str> {
        match self.what {
            Subject::All(counter) => Some(counter.name()),
            Subject::Consecutive(_) => Some("consecutive"),
            Subject::Pacing(..) => Some("pacing"),
            Subject::Over(_) => Some("over"),
            Subject::Negative(_) => Some("negative"),
            Subject::Time(..) | Subject::Journeys => None,
        }
    }

    /// The limit's own threshold for consecutive late packets, ns.
    pub fn row_limit(&self) -> Option<Ns> {
        match self.what {
            Subject::Consecutive(own) => own,
            _ => None,
        }
    }

    /// Marks the limit's figure as not measured here, so that the limit cannot be judged.
    pub fn not_measured(&mut self) {
        self.is_not_measured = true;
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses a duration: `200us`, `1.5ms`, `3 s`, `2h30m`; units ns, us or µs, ms, s, m, h. Exact to the ns; not negative.
pub fn parse_duration(text: &str) -> Option<Ns> {
    let (mut rest, mut sum, mut hops) = (text.trim(), 0_i64, 0);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let after = after.trim_start();
        let end = after.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let one: i64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mut ns = whole.parse::<i64>().ok()?.checked_mul(one)?;
        let mut place = one;
        for digit in fraction.chars() {
            place /= 10;
            ns = ns.checked_add(i64::from(digit.to_digit(10)?).checked_mul(place)?)?;
        }
        sum = sum.checked_add(ns)?;
        hops += 1;
        rest = after.trim_start();
    }
    (hops > 0).then_some(sum)
}

#[cfg(test)]
mod tests;
