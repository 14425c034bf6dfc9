//! The route of a run's packets, and the segments on it.

use latpath_journey::segments::{classic, parse, split};
use latpath_journey::{Layout, Route, RouteFinder, Segment};
use latpath_model::{Point, PointId, PointInfo, SegmentKind, StreamId};
use latpath_run::{NamedSegment, Run, Select};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of journeys, from the run's start, that are read to find the order of its points.
const SAMPLE: usize = 20_000;
/// Maximum number of segments (16 for each of 256 streams); limited, because each segment takes memory for each stream.
const MAX_SEGMENTS: usize = 4096;

/// Output of `latpath segments --json`: the points and segments of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentsDocument {
    /// Points of the route, in the order in which packets pass.
    #[schemars(with = "Vec<String>")]
    pub points: Vec<Point>,
    /// Points off the route.
    #[schemars(with = "Vec<String>")]
    pub off_route: Vec<Point>,
    /// Segments in the order of the route; user-defined segments are last.
    pub segments: Vec<NamedSegment>,
    /// Segments that are merged or unknown, with the reason.
    pub notes: Vec<String>,
}

impl SegmentsDocument {
    /// The document for the layout of a run with these points.
    pub fn of(layout: &Layout, points: &[PointInfo]) -> Self {
        let all = |ids: &[PointId]| ids.iter().map(|id| points[usize::from(*id)].point.clone()).collect();
        Self {
            points: all(&layout.route.points),
            off_route: all(&layout.route.off_route),
            segments: layout.segments.iter().map(|segment| NamedSegment::of(segment, points)).collect(),
            notes: layout.notes.clone(),
        }
    }
}

/// A run's route and segments, including the user's segments `NAME=FROM..TO`. Each end is a point, a pattern with `*`,
/// or a point's number on the route, from 1.
///
/// # Errors
/// If the run lacks the points of one of the user's segments.
pub fn layout_of(run: &Run, own: &[String]) -> Result<Layout, String> {
    let mut layout = recorded_layout(run);
    add_segments(&mut layout, run.points(), own)?;
    Ok(layout)
}

/// A run's route and segments as the recorder last found them; otherwise, as derived from the run's first journeys.
pub fn recorded_layout(run: &Run) -> Layout {
    let (points, manifest) = (run.points(), run.manifest());
    let found = found(run);
    let route = Route::from_points(&manifest.route, &manifest.routes, points);
    let mut route = route.with_reactions(&manifest.streams, points);
    let ends_at_sender = route.ends_at_sender(points);
    if route.points.is_empty() || ends_at_sender || (route.points == found.points && route.by_stream == found.by_stream)
    {
        // The recorder stores only the route; the journeys also show the order of points off the route.
        route = found;
    }
    let id = |p: &Point| points.iter().position(|info| info.point == *p).map(|i| i as PointId);
    // If the recorded route is wrong, so are its segments, except the user's.
    let is_kept = |s: &&NamedSegment| !ends_at_sender || s.kind == SegmentKind::Named;
    let recorded = manifest.segments.iter().filter(is_kept).filter_map(|s| {
        let (from, to) = (id(&s.from)?, id(&s.to)?);
        Some(Segment { kind: s.kind, name: s.name.clone(), from, to })
    });
    let mut layout = Layout { segments: recorded.take(MAX_SEGMENTS).collect(), ..Layout::default() };
    let left_out = manifest.segments.len().saturating_sub(MAX_SEGMENTS);
    if left_out > 0 {
        layout.notes.push(format!("{left_out} of the run's {} segments are left out", manifest.segments.len()));
    }
    if layout.segments.is_empty() || ends_at_sender {
        let recorded = layout;
        layout = classic(route, points);
        layout.segments.extend(recorded.segments);
        layout.notes.splice(0..0, recorded.notes);
    } else {
        layout.route = route;
    }
    if ends_at_sender {
        layout.notes.push("the recorded route ended at a reader on the sender's side: the route is found again".into());
    }
    layout
}

/// Adds the user's segments.
pub(crate) fn add_segments(layout: &mut Layout, points: &[PointInfo], own: &[String]) -> Result<(), String> {
    for text in own {
        layout.segments.push(one(text, points, &layout.route)?);
    }
    Ok(())
}

/// Adds those segments of a profile whose names are new and whose points the run has; returns them.
pub(crate) fn add_possible(
    layout: &mut Layout,
    points: &[PointInfo],
    of_profile: Vec<String>,
) -> Result<Vec<String>, String> {
    let is_new = |text: &str| split(text).is_ok_and(|(name, ..)| layout.segments.iter().all(|s| s.name != name));
    let can_be = |text: &String| is_new(text) && matches!(parse(text, points, &layout.route), Ok(Some(_)));
    let possible: Vec<String> = of_profile.into_iter().filter(can_be).collect();
    add_segments(layout, points, &possible)?;
    Ok(possible)
}

/// Derives the route from the run's first journeys.
fn found(run: &Run) -> Route {
    let (mut finder, mut left) = (RouteFinder::default(), SAMPLE);
    let streams = &run.manifest().streams;
    let reacts = |id: StreamId| streams.get(usize::from(id)).is_some_and(|stream| stream.reaction.is_some());
    // Damage is ignored here; it is reported when the whole run is read.
    run.for_each(&Select::default().with_cpus_and_threads(), |journey| {
        // The routes of reactions are derived from those of packets.
        if !reacts(journey.stream) {
            finder.observe(journey);
        }
        left -= 1;
        left > 0
    });
    finder.route(run.points()).with_reactions(streams, run.points())
}

/// Parses one of the user's segments.
fn one(text: &str, points: &[PointInfo], route: &Route) -> Result<Segment, String> {
    let (name, from, to) = split(text)?;
    let known = || {
        let names = route.order.iter().map(|p| points[usize::from(*p)].point.to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    let end = |end: &str| match end.parse::<usize>() {
        Ok(number) => {
            let id = number.checked_sub(1).and_then(|i| route.points.get(i));
            let numbered = || {
                let names = (1..).zip(&route.points).map(|(n, p)| format!("{n} {}", points[usize::from(*p)].point));
                names.collect::<Vec<_>>().join(", ")
            };
            let none = || format!("{text}: the route has no point {number} (its points: {})", numbered());
            Ok::<_, String>(points[usize::from(*id.ok_or_else(none)?)].point.to_string())
        }
        Err(_) => Ok(end.to_owned()),
    };
    let (from, to) = (end(from)?, end(to)?);
    let missing = || format!("{text}: the run has no such points (its points: {})", known());
    parse(&format!("{name}={from}..{to}"), points, route)?.ok_or_else(missing)
}
