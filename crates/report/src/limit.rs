//! Limits that figures must keep: `total:p99.9<=500us`, `lost<=0`.

use latpath_model::{pattern::fits, Ns};
use latpath_stats::{
    figures::{never_seen, packets},
    text::short_stream,
    units::{count, duration},
    ConsecutiveFigures, PacingFigures, Percentile, SegmentFigures, StreamFigures, Summary, TimeFigures,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::{fmt, str::FromStr};

/// A limit that the user set.
#[derive(Clone, Debug)]
pub struct Limit {
    text: String,
    what: What,
    /// The most that is allowed; of journeys the least.
    bar: i64,
    about: Option<About>,
    /// Whoever measures does not measure this.
    is_not_measured: bool,
}

/// What a limit of a profile is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct About {
    /// Its name, for people.
    pub name: String,
    /// The standard, device or customer that asks for it.
    pub source: String,
}

/// Whether a limit was kept: where it is neither broken nor `not_shown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LimitVerdict {
    /// The limit, as the user or the profile wrote it.
    pub limit: String,
    /// What it is for, where a profile says that.
    pub about: Option<About>,
    /// The figure, for people; null where nothing was measured.
    pub measured: Option<String>,
    /// How wrong the figure can be, because the clocks of two machines took it; null where nobody knows, and of figures that are no times.
    pub bound_ns: Option<Ns>,
    /// The segment that it is on; null of pacing, and of counts of all packets.
    pub segment: Option<String>,
    /// The most that a time may be; null of counts.
    pub most_ns: Option<Ns>,
    /// Why it is broken; null if it is not.
    pub broken: Option<String>,
    /// Why neither is shown: nothing was measured, or the clocks may be wrong by too much. Null where one of both is shown.
    pub not_shown: Option<String>,
}

impl LimitVerdict {
    /// Whether it is shown that the limit is kept.
    pub fn is_kept(&self) -> bool {
        self.why().is_none()
    }

    /// `kept`, `broken` or `not shown`.
    pub fn word(&self) -> &'static str {
        match (&self.broken, &self.not_shown) {
            (Some(_), _) => "broken",
            (None, Some(_)) => "not shown",
            (None, None) => "kept",
        }
    }

    /// Why it is not shown that the limit is kept.
    pub fn why(&self) -> Option<&str> {
        self.broken.as_deref().or(self.not_shown.as_deref())
    }
}

#[derive(Clone, Debug)]
enum What {
    Time(Where, fn(&TimeFigures) -> Ns, IsExact),
    /// Times over the threshold, of a segment.
    Over(Where),
    /// Negative times of a segment.
    Negative(Where),
    /// A time between packets that follow each other, at all points or at those that fit a pattern.
    Pacing(Option<String>, fn(&PacingFigures) -> Ns),
    /// Packets in a row that were lost or took longer than this; than the threshold where there is none.
    Consecutive(Option<Ns>),
    /// Packets, at least.
    Journeys,
    /// A count over all journeys, by its name.
    All(&'static str, fn(&Summary) -> u64),
}

/// Whether a wrong offset between two clocks leaves a figure as it is.
type IsExact = bool;

/// A segment: of each stream, or of all of them together.
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

    /// Its figures, each with its stream where there are several.
    fn rows<'a>(&self, summary: &'a Summary) -> Vec<(Option<&'a StreamFigures>, &'a SegmentFigures)> {
        let is_it = |s: &&SegmentFigures| s.name == self.segment;
        let all = || summary.segments.iter().filter(is_it).map(|s| (None, s)).collect();
        if self.pooled {
            return all();
        }
        let several = summary.streams.len() > 1;
        let of = |stream: &'a StreamFigures| {
            stream.segments.iter().filter(is_it).map(move |s| (several.then_some(stream), s))
        };
        let each: Vec<_> = summary.streams.iter().flat_map(of).collect();
        if each.is_empty() {
            all()
        } else {
            each
        }
    }
}

/// What a figure says of a limit. The greater one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    Kept,
    Not(&'static str),
    Broken,
}

/// A figure held against its limit: the one that is worst for it counts, of several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    shown: Shown,
    value: i64,
    bound: Option<Ns>,
    text: String,
}

/// Nothing was measured, and why.
struct Nothing(String);

const TOO_CLOSE: &str = "the clocks may be wrong by more than what is left to the limit";
const NO_BOUND: &str = "how far the clocks were apart is not known";

/// Why a text is no limit, or a limit cannot be checked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadLimit {
    /// It has another form.
    #[error(
        "{0:?}: not a limit; write SEGMENT:FIGURE<=TIME, COUNTER<=N or journeys>=N, as in total:max<=3ms or lost<=0"
    )]
    Form(String),
    #[error("{0:?}: no such figure (times of a segment: min, mean, stddev, p50, p90, p95, p99, p99.9, p99.99, p99.999, p99.9999, max; counts of a segment: over, negative; pacing: min, mean, max; counts of all: lost, consecutive, consecutive(TIME), incomplete, duplicates, out_of_order, never_seen, malformed, sightings_dropped)")]
    Figure(String),
    /// The value is no time, or no number.
    #[error("{0:?}: not a value; write a time as 200us or 1.5ms, a count as a whole number")]
    Value(String),
    /// There is no such segment.
    #[error("{segment:?}: no such segment (there are: {known})")]
    Segment {
        segment: String,
        /// Those that are there.
        known: String,
    },
}

pub(crate) fn time_figure(name: &str) -> Option<fn(&TimeFigures) -> Ns> {
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

/// The points of `pacing` (all) or `pacing POINT`; `None` of anything else.
fn paced(text: &str) -> Option<Option<String>> {
    match text.strip_prefix("pacing")? {
        "" => Some(None),
        rest => rest.strip_prefix(' ').map(|point| Some(point.trim().into())),
    }
}

/// The counts of all journeys by name.
fn counter(name: &str) -> Option<What> {
    let (name, figure): (_, fn(&Summary) -> u64) = match name {
        "lost" => ("lost", |s| packets(&s.lost)),
        "incomplete" => ("incomplete", |s| s.incomplete),
        "duplicates" => ("duplicates", |s| s.duplicates),
        "out_of_order" => ("out_of_order", |s| s.out_of_order),
        "never_seen" => ("never_seen", never_seen),
        "malformed" => ("malformed", |s| s.malformed),
        "sightings_dropped" => ("sightings_dropped", |s| s.tool.sightings_dropped),
        name => {
            let time = name.strip_prefix("consecutive")?;
            let own = time.strip_prefix('(').and_then(|time| parse_duration(time.strip_suffix(')')?));
            return (time.is_empty() || own.is_some()).then_some(What::Consecutive(own));
        }
    };
    Some(What::All(name, figure))
}

impl FromStr for Limit {
    type Err = BadLimit;

    fn from_str(text: &str) -> Result<Self, BadLimit> {
        let form = || BadLimit::Form(text.into());
        let unknown = |figure: &str| BadLimit::Figure(figure.into());
        let whole = |value: &str| value.parse::<u32>().map(i64::from).map_err(|_| BadLimit::Value(value.into()));
        let of = |what, bar| Self { text: text.into(), what, bar, about: None, is_not_measured: false };
        if let Some((left, value)) = text.rsplit_once(">=") {
            return if left.trim() == "journeys" { Ok(of(What::Journeys, whole(value.trim())?)) } else { Err(form()) };
        }
        let (left, value) = text.rsplit_once("<=").ok_or_else(form)?;
        let (left, value) = (left.trim(), value.trim());
        let time = || parse_duration(value).ok_or_else(|| BadLimit::Value(value.into()));
        let (what, bar) = match left.rsplit_once(':') {
            None => (counter(left).ok_or_else(|| unknown(left))?, whole(value)?),
            Some(("", _)) => return Err(form()),
            Some((segment, "over")) => (What::Over(Where::of(segment)), whole(value)?),
            Some((segment, "negative")) => (What::Negative(Where::of(segment)), whole(value)?),
            Some((what, figure)) => match paced(what) {
                Some(points) => (What::Pacing(points, pacing_figure(figure).ok_or_else(|| unknown(figure))?), time()?),
                None => {
                    let by_name = time_figure(figure).ok_or_else(|| unknown(figure))?;
                    (What::Time(Where::of(what), by_name, figure == "stddev"), time()?)
                }
            },
        };
        Ok(of(what, bar))
    }
}

impl Limit {
    pub(crate) fn of_profile(self, about: About) -> Self {
        Self { about: Some(about), ..self }
    }

    /// The segment that it is on, where it is on one and the user named it: a profile may name any.
    pub fn segment(&self) -> Option<&str> {
        match &self.what {
            What::Time(at, ..) | What::Over(at) | What::Negative(at) if self.about.is_none() => Some(&at.segment),
            _ => None,
        }
    }

    /// What it is for, where a profile says that.
    pub fn about(&self) -> Option<&About> {
        self.about.as_ref()
    }

    /// The count over all journeys that it is on: `lost`, `pacing`, `over` of a segment, …; none of times of segments and of journeys.
    pub fn counter(&self) -> Option<&'static str> {
        match self.what {
            What::All(name, _) => Some(name),
            What::Consecutive(_) => Some("consecutive"),
            What::Pacing(..) => Some("pacing"),
            What::Over(_) => Some("over"),
            What::Negative(_) => Some("negative"),
            What::Time(..) | What::Journeys => None,
        }
    }

    /// Packets in a row are to be counted that took longer than this.
    pub fn row_limit(&self) -> Option<Ns> {
        match self.what {
            What::Consecutive(own) => own,
            _ => None,
        }
    }

    /// A limit of a profile that nobody measures: it is never shown that it is kept.
    pub fn not_measured(&mut self) {
        self.is_not_measured = true;
    }

    /// Checks it.
    ///
    /// # Errors
    /// Where the user named a segment that is not there. A profile, which is written for many runs, may name it: then nothing
    /// shows that the limit is kept.
    pub fn check(&self, summary: &Summary) -> Result<LimitVerdict, BadLimit> {
        let (segment, most_ns) = match &self.what {
            What::Time(at, ..) => (Some(at), Some(self.bar)),
            What::Over(at) | What::Negative(at) => (Some(at), None),
            What::Pacing(..) => (None, Some(self.bar)),
            What::Consecutive(_) | What::Journeys | What::All(..) => (None, None),
        };
        let (limit, about) = (self.text.clone(), self.about.clone());
        let segment = segment.map(|at| at.segment.clone());
        let mut verdict = LimitVerdict { limit, about, segment, most_ns, ..LimitVerdict::default() };
        let held = match self.is_not_measured {
            true => Err(Nothing("not measured here".into())),
            false => self.held(summary)?,
        };
        match held {
            Err(Nothing(why)) => verdict.not_shown = Some(why),
            Ok(Held { shown, bound, text, .. }) => {
                match shown {
                    Shown::Kept => {}
                    Shown::Not(why) => verdict.not_shown = Some(format!("{text}, and {why}")),
                    Shown::Broken => verdict.broken = Some(text.clone()),
                }
                (verdict.measured, verdict.bound_ns) = (Some(text), bound);
            }
        }
        Ok(verdict)
    }

    /// The figure, and what it says.
    fn held(&self, summary: &Summary) -> Result<Result<Held, Nothing>, BadLimit> {
        let of_segment = |at: &Where, held: &dyn Fn(&SegmentFigures) -> Held| {
            let rows = at.rows(summary);
            if rows.is_empty() {
                let known: Vec<&str> = summary.segments.iter().map(|s| s.name.as_str()).collect();
                let error = BadLimit::Segment { segment: at.segment.clone(), known: known.join(", ") };
                let in_profile = self.about.is_some();
                let nothing = || Nothing(format!("not measured: no segment {:?}", at.segment));
                return if in_profile { Ok(Err(nothing())) } else { Err(error) };
            }
            // What nothing was measured against was not kept.
            if let Some((stream, _)) = rows.iter().find(|(_, s)| s.times.count == 0) {
                return Ok(Err(Nothing(format!("no journey{} crossed the segment", of_stream(*stream)))));
            }
            let held = |(stream, s): (Option<&StreamFigures>, &SegmentFigures)| {
                let held = held(s);
                Held { text: format!("{}{}", held.text, of_stream(stream)), ..held }
            };
            Ok(rows.into_iter().map(held).max().ok_or_else(|| Nothing("not measured".into())))
        };
        match &self.what {
            What::Time(at, figure, is_exact) => of_segment(at, &|s| self.time(summary, s, figure(&s.times), *is_exact)),
            What::Over(at) => of_segment(at, &|s| self.over(summary, s)),
            What::Negative(at) => of_segment(at, &|s| self.count(s.times.negative)),
            What::Pacing(points, figure) => {
                let is_meant = |at: &&PacingFigures| points.as_ref().is_none_or(|pattern| fits(pattern, &at.point));
                let all = summary.streams.iter().flat_map(|stream| &stream.pacing).filter(is_meant);
                let most = all.filter(|at| at.count > 0).map(figure).max();
                Ok(most.map_or_else(
                    || Err(Nothing("no pacing was measured there".into())),
                    |ns| Ok(self.of_one_clock(ns)),
                ))
            }
            What::Consecutive(_) | What::All(..) if summary.durations_alone => {
                Ok(Err(Nothing("not measured: the run was imported from durations alone".into())))
            }
            What::Consecutive(own) => Ok(self.if_measured(summary, self.consecutive(summary, *own))),
            What::All(_, counter) => Ok(self.if_measured(summary, self.count(counter(summary)))),
            What::Journeys => {
                let n = summary.journeys;
                let shown = if n < self.bar.unsigned_abs() { Shown::Broken } else { Shown::Kept };
                Ok(Ok(Held { shown, ..self.count(n) }))
            }
        }
    }

    fn of_one_clock(&self, ns: Ns) -> Held {
        let shown = if ns > self.bar { Shown::Broken } else { Shown::Kept };
        Held { shown, value: ns, bound: Some(0), text: duration(ns) }
    }

    /// A time of a segment, with what the clocks of its ends may be wrong by.
    fn time(&self, summary: &Summary, s: &SegmentFigures, ns: Ns, is_exact: bool) -> Held {
        let held = self.of_one_clock(ns);
        match summary.is_bound_known(s).then_some(s.error_bound_ns) {
            _ if is_exact => held,
            Some(0) => held,
            Some(bound) => {
                let is_close = ns.saturating_add(bound) > self.bar;
                let shown = if is_close { Shown::Not(TOO_CLOSE) } else { Shown::Kept };
                let text = format!("{} ±{}", duration(ns), duration(bound));
                Held { shown: shown.max(held.shown), bound: Some(bound), text, ..held }
            }
            None => Held { shown: Shown::Not(NO_BOUND).max(held.shown), bound: None, ..held },
        }
    }

    fn count(&self, n: u64) -> Held {
        let shown = if n > self.bar.unsigned_abs() { Shown::Broken } else { Shown::Kept };
        Held { shown, value: i64::try_from(n).unwrap_or(i64::MAX), bound: None, text: count(n) }
    }

    /// Times over the threshold, and those that may be, as far as the clocks say.
    fn over(&self, summary: &Summary, s: &SegmentFigures) -> Held {
        let held = self.count(s.over_threshold);
        let shown = match uncertain(summary, s, summary.threshold_ns) {
            None => Shown::Not(NO_BOUND),
            Some(more) if s.over_threshold.saturating_add(more) > self.bar.unsigned_abs() => Shown::Not(TOO_CLOSE),
            Some(_) => Shown::Kept,
        };
        Held { shown: shown.max(held.shown), ..held }
    }

    /// The longest row of a stream. Where clocks leave open which packets were late, so is what else is in a row.
    fn consecutive(&self, summary: &Summary, own: Option<Ns>) -> Held {
        let late = own.unwrap_or(summary.threshold_ns);
        let several = summary.streams.len() > 1;
        let of = |stream: &StreamFigures| {
            let row = match own.filter(|own| *own != summary.threshold_ns) {
                None => stream.consecutive.as_ref(),
                Some(own) => stream.consecutive_over.iter().find(|row| row.over_ns == own).map(|row| &row.row),
            };
            let held = self.count(row.map_or(0, |row: &ConsecutiveFigures| row.packets));
            let ends = stream.points.first().zip(stream.points.last()).map(|(a, b)| (a.to_string(), b.to_string()));
            let route = |s: &&SegmentFigures| ends.as_ref().is_some_and(|(from, to)| s.from == *from && s.to == *to);
            let shown = match stream.segments.iter().find(route).map(|s| uncertain(summary, s, late)) {
                Some(None) => Shown::Not(NO_BOUND),
                Some(Some(1..)) => Shown::Not(TOO_CLOSE),
                _ => Shown::Kept,
            };
            let text = format!("{}{}", held.text, of_stream(several.then_some(stream)));
            Held { shown: shown.max(held.shown.clone()), text, ..held }
        };
        summary.streams.iter().map(of).max().unwrap_or_else(|| self.count(0))
    }

    /// A count of packets, as far as there were any of each stream.
    fn if_measured(&self, summary: &Summary, held: Held) -> Result<Held, Nothing> {
        let silent = summary.streams.iter().find(|stream| stream.journeys == 0);
        match silent {
            _ if held.shown == Shown::Broken => Ok(held),
            _ if summary.journeys == 0 => Err(Nothing("no packet was measured".into())),
            Some(stream) => Err(Nothing(format!("no packet{} was measured", of_stream(Some(stream))))),
            None => Ok(held),
        }
    }
}

/// ` of MU01`
fn of_stream(stream: Option<&StreamFigures>) -> String {
    stream.map_or(String::new(), |stream| format!(" of {}", short_stream(&stream.stream)))
}

/// How many times are at most `late`, but may be over it by what the clocks may be wrong by; none where nobody knows by how much.
fn uncertain(summary: &Summary, s: &SegmentFigures, late: Ns) -> Option<u64> {
    let close = || s.close_to.iter().find(|(of, _)| *of == late).map_or(s.times.count, |(_, n)| *n);
    match summary.is_bound_known(s) {
        true if s.error_bound_ns == 0 => Some(0),
        true => Some(close()),
        false if s.times.count == 0 => Some(0),
        false => None,
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
    use latpath_stats::{ConsecutiveOver, Loss, MachineFigures};
    use proptest::prelude::*;

    fn total(max_ns: Ns) -> SegmentFigures {
        SegmentFigures {
            name: "total".into(),
            from: "host/nic-rx@eth0".into(),
            to: "guest0/app-read@relay".into(),
            times: TimeFigures { count: 9, max_ns, ..Default::default() },
            over_threshold: 2,
            ..Default::default()
        }
    }

    fn summary() -> Summary {
        let empty = SegmentFigures { name: "Tsub".into(), ..Default::default() };
        let lost = vec![Loss {
            place: "host/tx@vnet0".into(),
            reason: None,
            meaning: None,
            dropped_at: None,
            kernel_count: None,
            count: 3,
        }];
        let at = |point: &str, max_ns| PacingFigures { point: point.into(), count: 8, min_ns: 1, mean_ns: 2, max_ns };
        let pacing = vec![at("host/nic-rx@eth0", 300_000), at("guest0/app-read@relay", 700_000)];
        let row = |packets| ConsecutiveFigures { packets, ..Default::default() };
        let stream = StreamFigures {
            stream: "svid:MU01".into(),
            points: ["host/nic-rx@eth0", "guest0/app-read@relay"].map(|p| p.parse().unwrap()).into(),
            journeys: 12,
            consecutive: Some(row(4)),
            consecutive_over: vec![ConsecutiveOver { over_ns: 3_000_000, row: row(1) }],
            pacing,
            segments: vec![total(3_000_001), empty.clone()],
            ..StreamFigures::default()
        };
        Summary {
            journeys: 12,
            threshold_ns: 200_000,
            segments: vec![total(3_000_001), empty],
            lost,
            streams: vec![stream],
            ..Summary::default()
        }
    }

    /// Whether the clocks of its machines are known, and by how much a time of `total` can be wrong then.
    fn with_clocks(bound: Option<Ns>) -> Summary {
        let mut summary = summary();
        let known = ["host", "guest0"].into_iter().take(if bound.is_some() { 2 } else { 1 });
        summary.machines = known.map(|m| MachineFigures { machine: m.into(), ..Default::default() }).collect();
        let pooled = summary.segments.iter_mut();
        let all = pooled.chain(summary.streams.iter_mut().flat_map(|s| &mut s.segments)).filter(|s| s.name == "total");
        for s in all {
            s.error_bound_ns = bound.unwrap_or(0);
            let is_close = |late: Ns| s.times.max_ns <= late && s.times.max_ns + s.error_bound_ns > late;
            s.close_to = [200_000, 3_000_000, 3_100_000].map(|late| (late, u64::from(is_close(late)))).into();
        }
        summary
    }

    fn verdict(limit: &str, summary: &Summary) -> LimitVerdict {
        limit.parse::<Limit>().unwrap().check(summary).unwrap()
    }

    /// `kept`, or why it is not.
    fn check(limit: &str) -> Result<String, BadLimit> {
        let verdict = limit.parse::<Limit>()?.check(&summary())?;
        Ok(verdict.why().map_or("kept".into(), |why| format!("{}: {why}", verdict.word())))
    }

    fn says(text: &str) -> Result<String, BadLimit> {
        Ok(text.into())
    }

    #[test]
    fn a_limit_is_broken_by_what_exceeds_it() {
        assert_eq!(check("total:max<=3.000001ms"), says("kept"));
        assert_eq!(check("total:max<=3ms"), says("broken: 3.000 ms"));
        assert_eq!(check("total:over<=2"), says("kept"));
        assert_eq!(check("lost <= 3"), says("kept"));
        assert_eq!(check("lost<=2"), says("broken: 3"));
        assert_eq!(check("journeys>=12"), says("kept"));
        assert_eq!(check("journeys>=13"), says("broken: 12"));
    }

    #[test]
    fn packets_in_a_row_are_late_against_the_threshold_or_the_limits_own_time() {
        assert_eq!(check("consecutive<=3"), says("broken: 4"));
        assert_eq!(check("consecutive(3ms)<=1"), says("kept"));
        assert_eq!(check("consecutive(3ms)<=0"), says("broken: 1"));
        assert_eq!(check("consecutive(200us)<=3"), says("broken: 4"));
        assert_eq!("consecutive(3ms)<=1".parse::<Limit>().unwrap().row_limit(), Some(3_000_000));
        assert_eq!(check("consecutive(3)<=1"), Err(BadLimit::Figure("consecutive(3)".into())));
    }

    #[test]
    fn the_time_between_packets_is_limited_at_all_points_or_at_some() {
        assert_eq!(check("pacing:max<=700us"), says("kept"));
        assert_eq!(check("pacing:max<=500us"), says("broken: 700.0 µs"));
        assert_eq!(check("pacing host/nic-rx@eth0:max<=300us"), says("kept"));
        assert_eq!(check("pacing guest0/*:max<=699us"), says("broken: 700.0 µs"));
        assert_eq!(check("pacing:p99<=1ms"), Err(BadLimit::Figure("p99".into())));
        assert_eq!(check("pacing guest1/*:max<=1s"), says("not shown: no pacing was measured there"));
    }

    #[test]
    fn durations_alone_keep_no_limit_on_losses_and_packets_in_a_row() {
        let alone = Summary { durations_alone: true, lost: Vec::new(), ..summary() };
        for limit in ["lost<=0", "consecutive<=1", "never_seen<=0"] {
            let verdict = verdict(limit, &alone);
            assert_eq!((verdict.word(), &verdict.measured), ("not shown", &None), "{limit}");
            assert!(verdict.not_shown.is_some_and(|why| why.contains("durations alone")), "{limit}");
        }
        assert_eq!(verdict("total:over<=2", &alone).word(), "kept");
    }

    #[test]
    fn nothing_shows_that_a_limit_is_kept_on_what_was_not_measured() {
        assert_eq!(check("Tsub:max<=3ms"), says("not shown: no journey crossed the segment"));
        let mut nothing = summary();
        (nothing.journeys, nothing.streams[0].journeys, nothing.lost) = (0, 0, Vec::new());
        (nothing.streams[0].consecutive, nothing.streams[0].segments[0].times.count) = (None, 0);
        for limit in ["lost<=0", "consecutive<=1", "total:over<=0", "total:negative<=0", "malformed<=0"] {
            let verdict = verdict(limit, &nothing);
            assert_eq!((verdict.word(), verdict.measured), ("not shown", None), "{limit}");
        }
        assert_eq!(verdict("journeys>=1", &nothing).word(), "broken");
    }

    #[test]
    fn each_stream_that_was_asked_for_must_have_come() {
        let mut summary = summary();
        summary.streams.push(StreamFigures { stream: "svid:MU02".into(), ..StreamFigures::default() });
        let verdict = verdict("lost<=9", &summary);
        assert_eq!(verdict.not_shown.as_deref(), Some("no packet of MU02 was measured"));
    }

    #[test]
    fn each_stream_keeps_a_limit_on_a_segment_unless_it_is_of_all_together() {
        let mut summary = summary();
        let slow = vec![total(5_000_000)];
        let bad = StreamFigures { stream: "svid:MU02".into(), journeys: 9, segments: slow, ..StreamFigures::default() };
        summary.streams.push(bad);
        assert_eq!(verdict("total:max<=4ms", &summary).broken.as_deref(), Some("5.000 ms of MU02"));
        assert_eq!(verdict("total(all):max<=4ms", &summary).word(), "kept");
    }

    #[test]
    fn a_time_between_two_clocks_is_kept_with_its_error_bound_or_not_shown() {
        let (near, far) = (with_clocks(Some(150_000)), with_clocks(Some(1_870)));
        let open = verdict("total:max<=3.1ms", &near);
        assert_eq!(
            (open.word(), open.measured.as_deref(), open.bound_ns),
            ("not shown", Some("3.000 ms ±150.0 µs"), Some(150_000))
        );
        assert!(open.why().unwrap().contains("the clocks may be wrong by more than what is left"), "{open:?}");
        assert_eq!(verdict("total:max<=3.1ms", &far).word(), "kept");
        assert_eq!(verdict("total:max<=3ms", &near).broken.as_deref(), Some("3.000 ms ±150.0 µs"));
        // A deviation does not suffer from a wrong offset.
        assert_eq!(verdict("total:stddev<=1us", &near).word(), "kept");
        let unknown = verdict("total:max<=9s", &with_clocks(None));
        assert_eq!((unknown.word(), unknown.bound_ns), ("not shown", None));
        assert!(unknown.why().unwrap().contains("is not known"), "{unknown:?}");
    }

    #[test]
    fn counts_of_late_packets_are_kept_with_those_that_may_be_late() {
        let at = |threshold_ns, bound| Summary { threshold_ns, ..with_clocks(bound) };
        // Its greatest time is 3.000001 ms.
        assert_eq!(verdict("total:over<=2", &at(3_100_000, Some(1_870))).word(), "kept");
        assert_eq!(verdict("total:over<=2", &at(3_100_000, Some(150_000))).word(), "not shown");
        assert_eq!(verdict("total:over<=3", &at(3_100_000, Some(150_000))).word(), "kept");
        assert_eq!(verdict("total:over<=9", &at(3_100_000, None)).word(), "not shown");
        let close = |n| {
            let mut summary = with_clocks(Some(1_870));
            summary.streams[0].segments[0].close_to = vec![(3_000_000, n)];
            summary
        };
        assert_eq!(verdict("consecutive(3ms)<=1", &close(0)).word(), "kept");
        assert_eq!(verdict("consecutive(3ms)<=1", &close(1)).word(), "not shown");
        assert_eq!(verdict("consecutive<=4", &with_clocks(Some(1_870))).word(), "kept");
        assert_eq!(verdict("consecutive<=4", &with_clocks(None)).word(), "not shown");
        assert_eq!(verdict("consecutive<=3", &with_clocks(None)).word(), "broken");
    }

    #[test]
    fn a_profile_may_limit_what_nobody_measures() {
        let mut limit: Limit = "malformed<=0".parse().unwrap();
        assert_eq!(limit.counter(), Some("malformed"));
        limit.not_measured();
        assert_eq!(limit.check(&summary()).unwrap().not_shown.as_deref(), Some("not measured here"));
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
