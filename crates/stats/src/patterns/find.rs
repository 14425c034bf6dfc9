//! Finds the patterns in the gathered figures.

mod flaps;
mod paths;
mod spikes;
mod steps;
mod swings;

use super::gather::Patterns;
use super::sentence::sentence;
use super::{Occurrence, Pattern};
use crate::aggregate::Setup;
use latpath_model::{Ns, PointId, StreamId};

/// Maximum number of occurrences listed per pattern.
const LISTED: usize = 64;

/// A pattern, and the affected packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DetectedPattern {
    /// The pattern.
    pub pattern: Pattern,
    /// The affected packets.
    pub touched: Vec<Touched>,
}

/// Packets of some streams that were first seen in an interval, both ends inclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// The streams.
    pub streams: Vec<StreamId>,
    /// Start of the interval.
    pub from: Ns,
    /// End of the interval.
    pub to: Ns,
}

/// Names for the patterns' descriptions.
pub(super) struct Names<'a> {
    pub setup: &'a Setup,
    streams: &'a [String],
    /// Start of the recording.
    start: Ns,
}

impl Names<'_> {
    pub fn point(&self, id: PointId) -> String {
        self.setup.points.get(usize::from(id)).map_or(String::new(), |info| info.point.to_string())
    }

    pub fn stream(&self, id: StreamId) -> String {
        self.streams.get(usize::from(id)).cloned().unwrap_or_else(|| format!("stream {id}"))
    }

    /// Names of these streams, in the order of stream IDs.
    fn streams(&self, ids: impl Iterator<Item = StreamId>) -> Vec<String> {
        let mut ids: Vec<StreamId> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|id| self.stream(id)).collect()
    }

    /// Completes a pattern of a watched segment with the segment's ends, and with the names of the segment and of all
    /// segments that include it on a route.
    pub fn of_segment(&self, segment: usize, pattern: Pattern) -> Pattern {
        let own = &self.setup.segments[segment];
        let place = |route: &[PointId], p: PointId| route.iter().position(|other| *other == p);
        let holds = |from: PointId, to: PointId| {
            self.setup.routes.iter().any(|route| {
                let ends = [from, own.from, own.to, to].map(|p| place(route, p));
                ends.iter().all(Option::is_some) && ends.is_sorted()
            })
        };
        let mut segments = vec![own.name.clone()];
        for other in self.setup.segments.iter().filter(|s| holds(s.from, s.to)) {
            if !segments.contains(&other.name) {
                segments.push(other.name.clone());
            }
        }
        Pattern { segments, from: self.point(own.from), to: self.point(own.to), ..pattern }
    }

    /// Completes a pattern with its times, streams and sentence. The occurrences must be in order.
    pub fn finish(&self, pattern: Pattern, mut occurrences: Vec<Occurrence>, touched: Vec<Touched>) -> DetectedPattern {
        let streams = self.streams(touched.iter().flat_map(|t| t.streams.iter().copied()));
        let from_ns = occurrences.iter().map(|o| o.from_ns).min().unwrap_or(0);
        let to_ns = occurrences.iter().map(|o| o.to_ns).max().unwrap_or(0);
        let since = |t: Ns| t.saturating_sub(self.start);
        let packets = occurrences.iter().map(|o| o.packets).sum();
        occurrences.truncate(LISTED);
        let mut pattern = Pattern {
            streams,
            from_ns,
            to_ns,
            since_start_ns: since(from_ns),
            until_ns: since(to_ns),
            packets,
            occurrences,
            ..pattern
        };
        pattern.text = sentence(&pattern);
        DetectedPattern { pattern, touched }
    }
}

impl Patterns {
    /// The patterns, sorted by kind, time and place. `start`: start of the recording. `streams`: names of its streams,
    /// by stream ID.
    pub fn find(&self, setup: &Setup, start: Ns, streams: &[String]) -> Vec<DetectedPattern> {
        let names = Names { setup, streams, start };
        let mut found = swings::find(self, &names);
        found.extend(steps::find(self, &names));
        found.extend(paths::find(self, &names));
        found.extend(spikes::periodic(self, &names));
        let released = spikes::releases(self, &names);
        found.extend(flaps::find(self, &names, &released));
        found.extend(released);
        let order =
            |f: &DetectedPattern| (f.pattern.kind, f.pattern.from_ns, f.pattern.from.clone(), f.pattern.to.clone());
        found.sort_by_cached_key(order);
        found
    }

    /// The streams of a lane that cross a watched segment.
    fn streams_of(&self, at: usize, lane: usize) -> Vec<StreamId> {
        let ends = self.watched[at].ends;
        let crosses = |id: &usize| {
            let route = &self.streams[*id].route;
            [ends.from, ends.to].iter().all(|p| route.iter().any(|q| usize::from(*q) == *p))
        };
        (lane..self.streams.len()).step_by(self.lanes).filter(crosses).map(|id| id as StreamId).collect()
    }

    /// Mean interval between the packets of a stream on a segment, ns.
    fn interval(&self, at: usize) -> f64 {
        let lanes = &self.levels[at * self.lanes..][..self.lanes];
        let packets: u64 = lanes.iter().flatten().map(|level| level.packets).sum();
        let streams: usize = (0..self.lanes).map(|lane| self.streams_of(at, lane).len()).sum();
        let span = self.slots.count() as f64 * self.slots.length() as f64;
        span * streams as f64 / packets.max(1) as f64
    }

    /// The slots of one lane of a segment that have packets: index, number of packets, and quartiles of each.
    fn levels_of(&self, at: usize, lane: usize) -> Vec<(usize, u64, [f64; 3])> {
        let levels = &self.levels[at * self.lanes + lane];
        let there = levels.iter().enumerate().filter_map(|(slot, l)| Some((slot, l.packets, l.quartiles()?)));
        there.collect()
    }
}
