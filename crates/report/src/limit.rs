//! Limits that figures must keep: `total:p99.9<=500us`, `lost<=0`.

use latpath_model::{pattern::fits, Ns};
use latpath_stats::{
    figures::{longest_row, never_seen, packets},
    units::{count, duration},
    PacingFigures, Percentile, SegmentFigures, Summary, TimeFigures,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::{fmt, str::FromStr};

/// A limit that the user set.
#[derive(Clone, Debug)]
pub struct Limit {
    text: String,
    what: What,
    most: i64,
    about: Option<About>,
}

/// What a limit of a profile is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct About {
    /// Its name, for people.
    pub name: String,
    /// Who asks for it.
    pub source: String,
}

/// Whether a limit was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LimitVerdict {
    /// The limit, as the user or the profile wrote it.
    pub limit: String,
    /// What it is for, where a profile says that.
    pub about: Option<About>,
    /// The figure, for people; null where nothing was measured.
    pub measured: Option<String>,
    /// Why it is broken; null if it is kept.
    pub broken: Option<String>,
}

#[derive(Clone, Debug)]
enum What {
    /// A time of a segment.
    Time(String, fn(&TimeFigures) -> Ns),
    /// A count of a segment.
    Count(String, fn(&SegmentFigures) -> u64),
    /// A time between packets that follow each other, at all points or at those that fit a pattern.
    Pacing(Option<String>, fn(&PacingFigures) -> Ns),
    /// A count over all journeys.
    All(fn(&Summary) -> u64),
}

/// Why a text is no limit, or a limit cannot be checked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadLimit {
    /// It has another form.
    #[error("{0:?}: not a limit; write SEGMENT:FIGURE<=TIME or COUNTER<=N, as in total:max<=3ms or lost<=0")]
    Form(String),
    /// The figure is unknown.
    #[error("{0:?}: no such figure (times of a segment: min, mean, stddev, p50, p90, p95, p99, p99.9, p99.99, p99.999, p99.9999, max; counts of a segment: over, negative; pacing: min, mean, max; counts of all: lost, consecutive, incomplete, duplicates, out_of_order, never_seen, malformed, sightings_dropped)")]
    Figure(String),
    /// The value is no time, or no number.
    #[error("{0:?}: not a value; write a time as 200us or 1.5ms, a count as a whole number")]
    Value(String),
    /// There is no such segment.
    #[error("{segment:?}: no such segment (there are: {known})")]
    Segment {
        /// Its name.
        segment: String,
        /// Those that are there.
        known: String,
    },
}

/// A figure of times by its name.
pub(crate) fn time_figure(name: &str) -> Option<fn(&TimeFigures) -> Ns> {
    Some(match name {
        "min" => |t| t.min_ns,
        "mean" => |t| t.mean_ns,
        "stddev" => |t| t.stddev_ns,
        "max" => |t| t.max_ns,
        name => Percentile::named(name)?.figure,
    })
}

/// A figure of pacing by its name.
fn pacing_figure(name: &str) -> Option<fn(&PacingFigures) -> Ns> {
    Some(match name {
        "min" => |p| p.min_ns,
        "mean" => |p| p.mean_ns,
        "max" => |p| p.max_ns,
        _ => return None,
    })
}

/// The points of `pacing` (all) or `pacing POINT`; `None` of anything else.
fn paced(text: &str) -> Option<Option<String>> {
    match text.strip_prefix("pacing")? {
        "" => Some(None),
        rest => rest.strip_prefix(' ').map(|point| Some(point.trim().into())),
    }
}

/// The counts of all journeys by name.
fn counter(name: &str) -> Option<fn(&Summary) -> u64> {
    Some(match name {
        "lost" => |s| packets(&s.lost),
        "consecutive" => |s| longest_row(s).map_or(0, |(_, row)| row.packets),
        "incomplete" => |s| s.incomplete,
        "duplicates" => |s| s.duplicates,
        "out_of_order" => |s| s.out_of_order,
        "never_seen" => never_seen,
        "malformed" => |s| s.malformed,
        "sightings_dropped" => |s| s.tool.sightings_dropped,
        _ => return None,
    })
}

impl FromStr for Limit {
    type Err = BadLimit;

    fn from_str(text: &str) -> Result<Self, BadLimit> {
        let (left, value) = text.rsplit_once("<=").ok_or_else(|| BadLimit::Form(text.into()))?;
        let (left, value) = (left.trim(), value.trim());
        let time = || parse_duration(value).ok_or_else(|| BadLimit::Value(value.into()));
        let unknown = |figure: &str| BadLimit::Figure(figure.into());
        let whole = || value.parse::<u32>().map(i64::from).map_err(|_| BadLimit::Value(value.into()));
        let (what, most) = match left.rsplit_once(':') {
            None => (What::All(counter(left).ok_or_else(|| unknown(left))?), whole()?),
            Some(("", _)) => return Err(BadLimit::Form(text.into())),
            Some((segment, "over")) => (What::Count(segment.into(), |s| s.over_threshold), whole()?),
            Some((segment, "negative")) => (What::Count(segment.into(), |s| s.times.negative), whole()?),
            Some((what, figure)) => match paced(what) {
                Some(points) => (What::Pacing(points, pacing_figure(figure).ok_or_else(|| unknown(figure))?), time()?),
                None => (What::Time(what.into(), time_figure(figure).ok_or_else(|| unknown(figure))?), time()?),
            },
        };
        Ok(Self { text: text.into(), what, most, about: None })
    }
}

impl Limit {
    /// The same, as a profile has it.
    pub(crate) fn of_profile(self, about: About) -> Self {
        Self { about: Some(about), ..self }
    }

    /// The segment that it is on, where it is on one and the user named it: a profile may name any.
    pub fn segment(&self) -> Option<&str> {
        match &self.what {
            What::Time(name, _) | What::Count(name, _) if self.about.is_none() => Some(name),
            _ => None,
        }
    }

    /// What it is for, where a profile says that.
    pub fn about(&self) -> Option<&About> {
        self.about.as_ref()
    }

    /// Checks it.
    ///
    /// # Errors
    /// Where the user named a segment that is not there. A profile, which is written for many runs, may name it: then nothing
    /// shows that the limit is kept, and it is broken.
    pub fn check(&self, summary: &Summary) -> Result<LimitVerdict, BadLimit> {
        let verdict = |measured: Option<String>, broken| LimitVerdict {
            limit: self.text.clone(),
            about: self.about.clone(),
            measured,
            broken,
        };
        let of_time = |ns| (ns > self.most, duration(ns));
        let of_count = |n: u64| (n > self.most.unsigned_abs(), count(n));
        // Streams may take different routes, and then several segments have one name: each has to keep the limit.
        fn named<'a>(summary: &'a Summary, name: &'a str) -> impl Iterator<Item = &'a SegmentFigures> {
            summary.segments.iter().filter(move |s| s.name == name)
        }
        let measured = match &self.what {
            What::All(counter) => Ok(of_count(counter(summary))),
            What::Pacing(points, figure) => {
                let is_meant = |at: &&PacingFigures| points.as_ref().is_none_or(|pattern| fits(pattern, &at.point));
                let all = summary.streams.iter().flat_map(|stream| &stream.pacing).filter(is_meant);
                match all.filter(|at| at.count > 0).map(figure).max() {
                    Some(ns) => Ok(of_time(ns)),
                    None => return Ok(verdict(None, Some("no pacing was measured there".into()))),
                }
            }
            What::Count(name, figure) => named(summary, name).map(figure).max().map(of_count).ok_or(name),
            What::Time(name, figure) => {
                // A limit that nothing was measured against was not kept.
                if named(summary, name).any(|s| s.times.count == 0) {
                    return Ok(verdict(None, Some("no journey crossed the segment".into())));
                }
                named(summary, name).map(|s| figure(&s.times)).max().map(of_time).ok_or(name)
            }
        };
        match measured {
            Ok((is_broken, figure)) => Ok(verdict(Some(figure.clone()), is_broken.then_some(figure))),
            Err(segment) => {
                let known: Vec<&str> = summary.segments.iter().map(|s| s.name.as_str()).collect();
                let error = BadLimit::Segment { segment: segment.clone(), known: known.join(", ") };
                match self.about {
                    None => Err(error),
                    Some(_) => Ok(verdict(None, Some(format!("not measured: {error}")))),
                }
            }
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads `200us`, `1.5ms`, `3 s`, `2h30m`; units ns, us or µs, ms, s, m, h. Exact to the ns; not negative.
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
mod tests {
    use super::*;
    use latpath_stats::{Loss, StreamFigures};
    use proptest::prelude::*;

    fn summary() -> Summary {
        let total = SegmentFigures {
            name: "total".into(),
            times: latpath_stats::TimeFigures { count: 9, max_ns: 3_000_001, ..Default::default() },
            over_threshold: 2,
            ..Default::default()
        };
        let empty = SegmentFigures { name: "Tsub".into(), ..Default::default() };
        let lost =
            vec![Loss { place: "host/tx@vnet0".into(), reason: None, meaning: None, kernel_count: None, count: 3 }];
        let at = |point: &str, max_ns| PacingFigures { point: point.into(), count: 8, min_ns: 1, mean_ns: 2, max_ns };
        let pacing = vec![at("host/nic-rx@eth0", 300_000), at("guest0/app-read@relay", 700_000)];
        let streams = vec![StreamFigures { pacing, ..StreamFigures::default() }];
        Summary { segments: vec![total, empty], lost, streams, ..Summary::default() }
    }

    fn check(limit: &str) -> Result<Option<String>, BadLimit> {
        limit.parse::<Limit>()?.check(&summary()).map(|verdict| verdict.broken)
    }

    #[test]
    fn a_limit_is_broken_by_what_exceeds_it() {
        assert_eq!(check("total:max<=3.000001ms"), Ok(None));
        assert_eq!(check("total:max<=3ms"), Ok(Some("3.000 ms".into())));
        assert_eq!(check("total:over<=2"), Ok(None));
        assert_eq!(check("lost <= 3"), Ok(None));
        assert_eq!(check("lost<=2"), Ok(Some("3".into())));
    }

    #[test]
    fn the_time_between_packets_is_limited_at_all_points_or_at_some() {
        assert_eq!(check("pacing:max<=700us"), Ok(None));
        assert_eq!(check("pacing:max<=500us"), Ok(Some("700.0 µs".into())));
        assert_eq!(check("pacing host/nic-rx@eth0:max<=300us"), Ok(None));
        assert_eq!(check("pacing guest0/*:max<=699us"), Ok(Some("700.0 µs".into())));
        assert_eq!(check("pacing:p99<=1ms"), Err(BadLimit::Figure("p99".into())));
        assert_eq!(check("pacing guest1/*:max<=1s"), Ok(Some("no pacing was measured there".into())));
    }

    #[test]
    fn a_limit_on_what_was_not_measured_is_broken() {
        assert!(check("Tsub:max<=3ms").unwrap().unwrap().contains("no journey crossed"));
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_would_be() {
        assert_eq!(check("total"), Err(BadLimit::Form("total".into())));
        assert_eq!(check("total:p98<=1ms"), Err(BadLimit::Figure("p98".into())));
        assert_eq!(check("total:max<=3"), Err(BadLimit::Value("3".into())));
        let known = "total, Tsub".into();
        assert_eq!(check("Tfoo:max<=3ms"), Err(BadLimit::Segment { segment: "Tfoo".into(), known }));
    }

    #[test]
    fn durations_are_exact() {
        for (text, ns) in [
            ("200us", 200_000),
            ("1.5ms", 1_500_000),
            ("3 s", 3_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("7µs", 7_000),
        ] {
            assert_eq!(parse_duration(text), Some(ns), "{text}");
        }
        for no in ["", "5", "ms", "1.2.3s", "5 parsecs", "99999999999h"] {
            assert_eq!(parse_duration(no), None, "{no}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = text.parse::<Limit>();
            let _ = parse_duration(&text);
        }
    }
}
