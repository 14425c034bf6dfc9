//! The route and the segments along it, as far as they are known.

use latpath_journey::segments::{self, Segment};
use latpath_journey::Route;
use latpath_model::PointInfo;

/// The route and the segments; changes rarely.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The points in the order in which packets pass.
    pub route: Route,
    /// The segments along it: the classic ones and neighbours, then the user's own.
    pub segments: Vec<Segment>,
    /// What is not known, and why.
    pub notes: Vec<String>,
    /// Points that the layout knows.
    pub points: usize,
}

impl Layout {
    /// The layout of a route. `own` are the user's segments, `NAME=FROM..TO`.
    pub fn new(route: Route, points: &[PointInfo], own: &[String]) -> Self {
        let classic = segments::classic(&route, points);
        let (mut all, mut notes) = (classic.segments, classic.notes);
        if !route.points.is_empty() {
            for text in own {
                match segments::parse(text, points, &route) {
                    Ok(Some(segment)) => all.push(segment),
                    Ok(None) => notes.push(format!("--segment {text}: no packet was seen at one of its ends yet")),
                    Err(why) => notes.push(format!("--segment {why}")),
                }
            }
        }
        Self { route, segments: all, notes, points: points.len() }
    }
}
