//! Reports streams without packets, and the user's points and segments at which no packet was seen.

use crate::event::{Event, EventQueue};
use latpath_follow::Follow;
use latpath_model::{Ns, StreamSpec};
use std::time::{Duration, Instant};

/// Time without a packet, in addition to the packets' window, after which a stream, a point or a segment is reported.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Reports each absent stream, point and segment once.
pub(crate) struct Absent {
    streams: Vec<StreamSpec>,
    /// The user's own segments, `NAME=FROM..TO`.
    segments: Vec<String>,
    /// Whether each stream was reported, indexed by stream ID.
    reported: Vec<bool>,
    began: Instant,
    /// Time without a packet after which a stream, a point or a segment is absent.
    patience: Duration,
    /// Points and segments that were reported.
    unseen: Vec<String>,
    route: Vec<String>,
}

impl Absent {
    /// `window`: that of packets, ns. A packet counts as seen once it has passed.
    pub fn new(streams: Vec<StreamSpec>, segments: Vec<String>, window: Ns) -> Self {
        let reported = vec![false; streams.len()];
        let patience = PATIENCE + Duration::from_nanos(window.max(0) as u64);
        Self { streams, segments, patience, reported, began: Instant::now(), unseen: Vec::new(), route: Vec::new() }
    }

    /// Reports a changed route, streams that have become absent or have arrived, and points and segments without
    /// packets. Points and segments are reported after [`PATIENCE`] and the window, or at once if `is_over` (the session
    /// has ended). `seen`: number of packets per stream.
    pub fn check(&mut self, follow: &Follow, seen: &[u64], events: &mut EventQueue, is_over: bool) {
        self.check_route(follow, events);
        if !is_over {
            self.check_streams(seen, events);
        }
        if is_over || self.began.elapsed() >= self.patience {
            self.check_points(follow, events);
        }
    }

    fn check_route(&mut self, follow: &Follow, events: &mut EventQueue) {
        let points = follow.points();
        let route = follow.layout().route.points.iter().map(|id| points[usize::from(*id)].point.to_string());
        let route: Vec<String> = route.collect();
        if route != self.route {
            self.route.clone_from(&route);
            events.push(Event::Route { points: route });
        }
    }

    fn check_streams(&mut self, seen: &[u64], events: &mut EventQueue) {
        let waited = self.began.elapsed();
        let waited_ns = waited.as_nanos() as Ns;
        for ((stream, reported), seen) in self.streams.iter().zip(&mut self.reported).zip(seen) {
            let name = || stream.to_string();
            // A stream of reactions may have no packets: there may be nothing to react to.
            if *seen == 0 && !*reported && waited >= self.patience && stream.reaction.is_none() {
                *reported = true;
                let is_listed = stream.matcher.protocol().info().is_listed;
                events.push(Event::StreamAbsent { stream: name(), waited_ns, is_listed });
            } else if *seen > 0 && *reported {
                *reported = false;
                events.push(Event::StreamArrived { stream: name(), after_ns: waited_ns });
                self.began = Instant::now();
            }
        }
    }

    fn check_points(&mut self, follow: &Follow, events: &mut EventQueue) {
        let points: Vec<String> = follow.points().iter().map(|info| info.point.to_string()).collect();
        let mut report = |name: &str, event: fn(String, Vec<String>) -> Event| {
            if !self.unseen.iter().any(|known| known == name) {
                self.unseen.push(name.into());
                events.push(event(name.into(), points.clone()));
            }
        };
        for pattern in follow.unseen_points() {
            report(pattern, |pattern, points| Event::PointUnseen { pattern, points });
        }
        for segment in follow.unseen_segments(&self.segments) {
            report(segment, |segment, points| Event::SegmentUnseen { segment, points });
        }
    }
}
