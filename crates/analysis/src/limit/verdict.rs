//! Verdicts on limits: kept, broken, or not to be judged because something was not measured or a run has deficiencies.

use super::{Counter, Limit, LimitOrigin, Subject, Where};
use latpath_model::{pattern::fits, Ns, Point, SegmentKind};
use latpath_stats::{
    figures::packets,
    text::short_stream,
    units::{count, duration, number_of},
    ConsecutiveFigures, Deficiency, DeficiencyKind, PacingFigures, Reach, SegmentFigures, StreamFigures, Summary,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verdict on a limit: kept if it is neither broken nor `cannot_be_judged`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitVerdict {
    /// The limit, as the user or the profile wrote it.
    pub limit: String,
    /// What the limit is for, if a profile gives it.
    pub about: Option<LimitOrigin>,
    /// The figure, as human-readable text; null if nothing was measured.
    pub measured: Option<String>,
    /// Error bound of a time measured by two clocks, ns; null if unknown, and for figures that are not times.
    pub bound_ns: Option<Ns>,
    /// The limit's segment; null for pacing and for counts of all packets.
    pub segment: Option<String>,
    /// Maximum allowed time, ns; null for counts.
    pub most_ns: Option<Ns>,
    /// Why the limit is broken; null if it is not.
    pub broken: Option<String>,
    /// Why it is unknown whether an unbroken limit is kept: nothing was measured, the clock error is too large, or
    /// missing data could break it. Null if known.
    pub cannot_be_judged: Option<String>,
}

impl LimitVerdict {
    /// The word for a limit that is neither known to be kept nor known to be broken.
    pub const CANNOT_BE_JUDGED: &'static str = "cannot be judged";

    /// Whether the limit is known to be kept.
    pub fn is_kept(&self) -> bool {
        self.why().is_none()
    }

    /// `kept`, `broken` or `cannot be judged`.
    pub fn word(&self) -> &'static str {
        match (&self.broken, &self.cannot_be_judged) {
            (Some(_), _) => "broken",
            (None, Some(_)) => Self::CANNOT_BE_JUDGED,
            (None, None) => "kept",
        }
    }

    /// Why the limit is not kept, or not known to be kept.
    pub fn why(&self) -> Option<&str> {
        self.broken.as_deref().or(self.cannot_be_judged.as_deref())
    }
}

/// Result for one figure; if there are several figures, the greatest result decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FigureResult {
    Kept,
    Open(String),
    Broken,
}

impl FigureResult {
    fn open(why: &str) -> Self {
        Self::Open(why.into())
    }
}

/// A figure compared with its limit; if there are several figures, the greatest result decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JudgedFigure {
    shown: FigureResult,
    value: i64,
    bound: Option<Ns>,
    text: String,
}

/// Why nothing was measured.
struct NotMeasured(String);

const TOO_CLOSE: &str = "the clocks may be wrong by more than what is left to the limit";
const NO_BOUND: &str = "how far the clocks were apart is not known";

impl Where {
    /// Figures of the segment, each with its stream (none if they are for all streams together).
    fn rows<'a>(&self, summary: &'a Summary) -> Vec<(Option<&'a StreamFigures>, &'a SegmentFigures)> {
        let is_it = |s: &&SegmentFigures| s.name == self.segment;
        let all = || summary.segments.iter().filter(is_it).map(|s| (None, s)).collect();
        if self.pooled {
            return all();
        }
        let of = |stream: &'a StreamFigures| stream.segments.iter().filter(is_it).map(move |s| (Some(stream), s));
        let each: Vec<_> = summary.streams.iter().flat_map(of).collect();
        if each.is_empty() {
            all()
        } else {
            each
        }
    }

    /// Whether `is_such` holds for any figures of the segment; without figures, for the kind that the segment's name
    /// implies.
    fn is_any(&self, summary: &Summary, is_such: impl Fn(SegmentKind, &str, &str) -> bool) -> bool {
        let rows = self.rows(summary);
        let by_name = || SegmentKind::classic(&self.segment).is_some_and(|kind| is_such(kind, "", ""));
        rows.iter().any(|(_, s)| is_such(s.kind, &s.from, &s.to)) || (rows.is_empty() && by_name())
    }
}

/// The first deficiency that could change the times of a segment.
pub(crate) fn lacking<'a>(summary: &'a Summary, segment: &str) -> Option<&'a Deficiency> {
    let at = Where { segment: segment.into(), pooled: true };
    let (text, what) = (String::new(), Subject::Time(at, |times| times.max_ns, false));
    let limit = Limit { text, what, bar: 0, about: None, is_not_measured: false };
    summary.deficiencies.iter().find(|one| limit.may_be_broken_by(one, summary))
}

impl Limit {
    /// Checks the limit. A limit that is broken remains so whatever the deficiencies; one that appears to be kept
    /// cannot be judged if a deficiency could have broken it.
    pub fn check(&self, summary: &Summary) -> LimitVerdict {
        let (segment, most_ns) = match &self.what {
            Subject::Time(at, ..) => (Some(at), Some(self.bar)),
            Subject::Over(at) | Subject::Negative(at) => (Some(at), None),
            Subject::Pacing(..) => (None, Some(self.bar)),
            Subject::Consecutive(_) | Subject::Journeys | Subject::All(..) => (None, None),
        };
        let (limit, about) = (self.text.clone(), self.about.clone());
        let segment = segment.map(|at| at.segment.clone());
        let mut verdict = LimitVerdict { limit, about, segment, most_ns, ..LimitVerdict::default() };
        let held = match self.is_not_measured {
            true => Err(NotMeasured("not measured here".into())),
            false => self.held(summary),
        };
        let lacking = summary.deficiencies.iter().find(|one| self.may_be_broken_by(one, summary));
        match held {
            Ok(JudgedFigure { shown: FigureResult::Broken, bound, text, .. }) => {
                verdict.broken = Some(text.clone());
                (verdict.measured, verdict.bound_ns) = (Some(text), bound);
            }
            Ok(JudgedFigure { shown, bound, text, .. }) => {
                let open = match shown {
                    FigureResult::Open(why) => Some(format!("{text}, and {why}")),
                    _ => None,
                };
                verdict.cannot_be_judged = lacking.map(|one| one.text.clone()).or(open);
                (verdict.measured, verdict.bound_ns) = (Some(text), bound);
            }
            Err(NotMeasured(why)) => {
                let lacking = lacking.map_or(String::new(), |one| format!("; {}", one.text));
                verdict.cannot_be_judged = Some(why + &lacking);
            }
        }
        verdict
    }

    /// Whether a deficiency could have broken the limit.
    fn may_be_broken_by(&self, deficiency: &Deficiency, summary: &Summary) -> bool {
        use DeficiencyKind::{Missing, NotJoined, SenderNotFollowed, SightingsDropped};
        match (deficiency.kind.reach(), &self.what) {
            // Packets that are missing from the run could only increase the count.
            (Reach::All, Subject::Journeys) => {
                !matches!(deficiency.kind, Missing | SightingsDropped | SenderNotFollowed)
            }
            // The count itself includes dropped sightings.
            (Reach::All, Subject::All(Counter::SightingsDropped)) => {
                !matches!(deficiency.kind, SightingsDropped | NotJoined)
            }
            (Reach::All, _) => true,
            (Reach::EndOfRoute, Subject::Time(at, ..) | Subject::Over(at) | Subject::Negative(at)) => {
                at.is_any(summary, |kind, _, _| matches!(kind, SegmentKind::Total | SegmentKind::Tsub))
            }
            (Reach::EndOfRoute, Subject::Consecutive(_)) => true,
            (Reach::EndOfRoute, Subject::Pacing(points, _)) => points.is_none(),
            (Reach::EndOfRoute, Subject::All(counter)) => match counter {
                Counter::Lost | Counter::Incomplete | Counter::Duplicates | Counter::OutOfOrder => true,
                Counter::NeverSeen | Counter::Malformed | Counter::SightingsDropped | Counter::LostOn(_) => false,
            },
            (Reach::BetweenMachines, Subject::Time(at, ..) | Subject::Over(at) | Subject::Negative(at)) => {
                at.is_any(summary, |_, from, to| machine(from) != machine(to))
            }
            (Reach::BetweenMachines, Subject::Consecutive(_)) => {
                let is_between = |stream: &StreamFigures| {
                    stream.points.first().zip(stream.points.last()).is_some_and(|(a, b)| a.machine != b.machine)
                };
                summary.streams.iter().any(is_between)
            }
            (Reach::BetweenMachines, Subject::Pacing(..)) => true,
            (Reach::BetweenMachines, Subject::All(_)) => false,
            (Reach::SequenceNumbers, Subject::Consecutive(_) | Subject::All(Counter::NeverSeen)) => true,
            (Reach::SequenceNumbers, _) => false,
            (Reach::FirstFragment, Subject::Time(at, ..) | Subject::Over(at) | Subject::Negative(at)) => {
                at.is_any(summary, |kind, _, to| match to {
                    "" => !matches!(kind, SegmentKind::Total | SegmentKind::Tsub) || !reaches_applications(summary),
                    to => !is_application(to),
                })
            }
            (Reach::FirstFragment, Subject::Consecutive(_)) => !reaches_applications(summary),
            (Reach::FirstFragment, Subject::All(Counter::Lost | Counter::Incomplete)) => !reaches_applications(summary),
            (Reach::FirstFragment, _) => false,
            (Reach::RouteEnds, Subject::Time(at, ..) | Subject::Over(at) | Subject::Negative(at)) => {
                use SegmentKind::{Tmu, Tnet, Total, Tsend, Tsub};
                at.is_any(summary, |kind, _, _| matches!(kind, Tmu | Tsend | Tnet | Tsub | Total))
            }
            (Reach::RouteEnds, Subject::Pacing(points, _)) => points.is_none(),
            (Reach::RouteEnds, Subject::Consecutive(_)) => true,
            (Reach::RouteEnds, Subject::All(counter)) => {
                !matches!(counter, Counter::Malformed | Counter::SightingsDropped)
            }
            (Reach::NoFigure, _) => false,
            (_, Subject::Journeys) => false,
        }
    }

    /// The figure, compared with the limit.
    fn held(&self, summary: &Summary) -> Result<JudgedFigure, NotMeasured> {
        match &self.what {
            Subject::Time(at, figure, is_exact) => {
                self.of_segment(at, summary, |s| self.time(summary, s, figure(&s.times), *is_exact))
            }
            Subject::Over(at) => self.of_segment(at, summary, |s| self.over(summary, s)),
            Subject::Negative(at) => self.of_segment(at, summary, |s| self.count(s.times.negative)),
            Subject::Pacing(points, figure) => {
                let is_meant = |at: &&PacingFigures| points.as_ref().is_none_or(|pattern| fits(pattern, &at.point));
                let all = summary.streams.iter().flat_map(|stream| &stream.pacing).filter(is_meant);
                let most = all.filter(|at| at.count > 0).map(figure).max();
                most.map(|ns| self.of_one_clock(ns)).ok_or_else(|| NotMeasured("no pacing was measured there".into()))
            }
            Subject::Consecutive(_) | Subject::All(..) if summary.durations_alone => {
                Err(NotMeasured("not measured: the run was imported from durations alone".into()))
            }
            Subject::Consecutive(own) => self.if_measured(summary, self.consecutive(summary, *own)),
            Subject::All(counter) => match counter.figure(summary) {
                Some(n) => self.if_measured(summary, self.count(n)),
                None => Err(NotMeasured("no packet of redundant networks (PRP, HSR) was seen".into())),
            },
            Subject::Journeys => {
                let n = summary.journeys;
                let shown = if n < self.bar.unsigned_abs() { FigureResult::Broken } else { FigureResult::Kept };
                Ok(JudgedFigure { shown, ..self.count(n) })
            }
        }
    }

    /// The worst of a segment's figures, compared with the limit.
    fn of_segment(
        &self,
        at: &Where,
        summary: &Summary,
        held: impl Fn(&SegmentFigures) -> JudgedFigure,
    ) -> Result<JudgedFigure, NotMeasured> {
        let rows = at.rows(summary);
        let several = summary.streams.len() > 1;
        let held = |(stream, s): &(Option<&StreamFigures>, &SegmentFigures)| {
            let held = held(s);
            let shown = match unmeasured(summary, *stream, s) {
                0 => FigureResult::Kept,
                n => {
                    let (are, n) = (if n == 1 { "is" } else { "are" }, number_of(n, "packet"));
                    FigureResult::Open(format!(
                        "the time of {n} that arrived {are} not known: one end of the segment did not see all"
                    ))
                }
            };
            let text = format!("{}{}", held.text, of_stream(stream.filter(|_| several)));
            JudgedFigure { shown: shown.max(held.shown), text, ..held }
        };
        let worst = rows.iter().filter(|(_, s)| s.times.count > 0).map(held).max();
        let empty = rows.iter().find(|(_, s)| s.times.count == 0);
        match (worst, empty) {
            (Some(worst), None) => self.if_measured(summary, worst),
            (Some(worst), Some(_)) if worst.shown == FigureResult::Broken => Ok(worst),
            // Without measurements, a limit does not count as kept.
            (_, Some((stream, _))) => {
                let of = of_stream(stream.filter(|_| several));
                Err(NotMeasured(format!("no journey{of} crossed the segment")))
            }
            (None, None) => {
                let known: Vec<&str> = summary.segments.iter().map(|s| s.name.as_str()).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(NotMeasured(format!("not measured: no segment {:?} (there are: {known})", at.segment)))
            }
        }
    }

    fn of_one_clock(&self, ns: Ns) -> JudgedFigure {
        let shown = if ns > self.bar { FigureResult::Broken } else { FigureResult::Kept };
        JudgedFigure { shown, value: ns, bound: Some(0), text: duration(ns) }
    }

    /// A segment's time, compared with the limit within the error bound of its clocks.
    fn time(&self, summary: &Summary, s: &SegmentFigures, ns: Ns, is_exact: bool) -> JudgedFigure {
        let held = self.of_one_clock(ns);
        match summary.is_bound_known(s).then_some(s.error_bound_ns) {
            _ if is_exact => held,
            Some(0) => held,
            Some(bound) => {
                let is_close = ns.saturating_add(bound) > self.bar;
                let shown = if is_close { FigureResult::open(TOO_CLOSE) } else { FigureResult::Kept };
                let text = format!("{} ±{}", duration(ns), duration(bound));
                JudgedFigure { shown: shown.max(held.shown), bound: Some(bound), text, ..held }
            }
            None => JudgedFigure { shown: FigureResult::open(NO_BOUND).max(held.shown), bound: None, ..held },
        }
    }

    fn count(&self, n: u64) -> JudgedFigure {
        let shown = if n > self.bar.unsigned_abs() { FigureResult::Broken } else { FigureResult::Kept };
        JudgedFigure { shown, value: i64::try_from(n).unwrap_or(i64::MAX), bound: None, text: count(n) }
    }

    /// Compares the number of times over the threshold, including those that may be over it within the clock error.
    fn over(&self, summary: &Summary, s: &SegmentFigures) -> JudgedFigure {
        let held = self.count(s.over_threshold);
        let shown = match uncertain(summary, s, summary.threshold_ns) {
            None => FigureResult::open(NO_BOUND),
            Some(more) if s.over_threshold.saturating_add(more) > self.bar.unsigned_abs() => {
                FigureResult::open(TOO_CLOSE)
            }
            Some(_) => FigureResult::Kept,
        };
        JudgedFigure { shown: shown.max(held.shown), ..held }
    }

    /// The longest sequence of consecutive late packets of a stream; open if the clock error leaves it uncertain which
    /// packets were late.
    fn consecutive(&self, summary: &Summary, own: Option<Ns>) -> JudgedFigure {
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
            let whole = stream.segments.iter().find(route);
            let shown = match whole.map(|s| (unmeasured(summary, Some(stream), s), uncertain(summary, s, late))) {
                Some((1.., _)) => FigureResult::open("the times of some packets are not known"),
                Some((_, None)) => FigureResult::open(NO_BOUND),
                Some((_, Some(1..))) => FigureResult::open(TOO_CLOSE),
                _ => FigureResult::Kept,
            };
            let text = format!("{}{}", held.text, of_stream(several.then_some(stream)));
            JudgedFigure { shown: shown.max(held.shown.clone()), text, ..held }
        };
        summary.streams.iter().map(of).max().unwrap_or_else(|| self.count(0))
    }

    /// Returns the figure if packets of every stream were measured, or if it breaks the limit anyway.
    fn if_measured(&self, summary: &Summary, held: JudgedFigure) -> Result<JudgedFigure, NotMeasured> {
        let silent = summary.streams.iter().find(|stream| stream.journeys == 0);
        match silent {
            _ if held.shown == FigureResult::Broken => Ok(held),
            _ if summary.journeys == 0 => Err(NotMeasured("no packet was measured".into())),
            Some(stream) => Err(NotMeasured(format!("no packet{} was measured", of_stream(Some(stream))))),
            None => Ok(held),
        }
    }
}

/// Suffix with the stream's name: ` of MU01`.
fn of_stream(stream: Option<&StreamFigures>) -> String {
    stream.map_or(String::new(), |stream| format!(" of {}", short_stream(&stream.stream)))
}

fn machine(point: &str) -> &str {
    point.split('/').next().unwrap_or_default()
}

fn is_application(point: &str) -> bool {
    point.parse::<Point>().is_ok_and(|point| point.kind.is_application())
}

/// Whether the routes of all seen streams end at applications, which read whole packets.
fn reaches_applications(summary: &Summary) -> bool {
    let seen = summary.streams.iter().filter(|stream| stream.journeys > 0);
    seen.map(|stream| stream.points.last()).all(|end| end.is_some_and(|end| end.kind.is_application()))
}

/// Number of packets, of one stream or of all, that arrived but have no time for a segment of their route, because they
/// were not seen at one of its ends.
fn unmeasured(summary: &Summary, stream: Option<&StreamFigures>, segment: &SegmentFigures) -> u64 {
    let of = |stream: &StreamFigures| {
        let is_on_route = |end: &str| stream.points.iter().any(|point| point.to_string() == end);
        let own = stream.segments.iter().find(|s| s.is_of_same(segment));
        let own = own.filter(|s| is_on_route(&s.from) && is_on_route(&s.to));
        let arrived = stream.journeys.saturating_sub(packets(&stream.lost));
        own.map_or(0, |s| arrived.saturating_sub(s.times.count))
    };
    match stream {
        Some(stream) => of(stream),
        None => summary.streams.iter().map(of).sum(),
    }
}

/// Number of times not exceeding `late` that may exceed it within the clock error; `None` if the clock error is
/// unknown.
fn uncertain(summary: &Summary, s: &SegmentFigures, late: Ns) -> Option<u64> {
    let close = || s.close_to.iter().find(|(of, _)| *of == late).map_or(s.times.count, |(_, n)| *n);
    match summary.is_bound_known(s) {
        true if s.error_bound_ns == 0 => Some(0),
        true => Some(close()),
        false if s.times.count == 0 => Some(0),
        false => None,
    }
}
