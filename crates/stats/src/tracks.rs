//! The tracks of a run's segments, gathered from batches of journeys.

use crate::aggregate::Setup;
use crate::times::{between, bit, Ends};
use crate::track::{Lost, Stretches, Track};
use latpath_model::{Ns, StreamId};
use latpath_run::Rows;
use std::ops::Range;

/// A track for each segment, of all streams together or of each; and when packets were lost.
#[derive(Clone, Debug)]
pub struct Tracks {
    ends: Vec<Ends>,
    sinks: Vec<u64>,
    by_stream: bool,
    /// The segments of the first stream, then those of the next.
    tracks: Vec<Track>,
    lost: Vec<Lost>,
    /// The tracks of one segment, while a batch is added.
    at: Vec<Ns>,
    times: Vec<Ns>,
}

impl Tracks {
    /// How many tracks there will be.
    pub fn count(setup: &Setup, by_stream: bool) -> usize {
        setup.segments.len() * if by_stream { setup.streams } else { 1 }
    }

    /// Nothing gathered yet.
    pub fn new(setup: &Setup, stretches: Stretches, by_stream: bool) -> Self {
        let last = |id: usize| setup.routes.get(id).and_then(|route| route.last()).map_or(0, |p| bit(*p));
        Self {
            ends: setup.segments.iter().map(|s| Ends::of(s, &setup.points)).collect(),
            sinks: (0..setup.streams).map(last).collect(),
            by_stream,
            tracks: vec![Track::new(stretches, setup.threshold); Self::count(setup, by_stream)],
            lost: vec![Lost::new(stretches); if by_stream { setup.streams } else { 1 }],
            at: Vec::new(),
            times: Vec::new(),
        }
    }

    /// Adds a batch of journeys.
    pub fn add_rows(&mut self, rows: &Rows) {
        rows.by_stream().for_each(|(stream, range)| self.add_rows_of(stream, rows, range));
    }

    fn add_rows_of(&mut self, id: StreamId, rows: &Rows, range: Range<usize>) {
        let Some(sink) = self.sinks.get(usize::from(id)) else { return };
        let lane = if self.by_stream { usize::from(id) } else { 0 };
        let tracks = &mut self.tracks[lane * self.ends.len()..][..self.ends.len()];
        let seen = &rows.seen[range.clone()];
        let by_all = seen.iter().fold(u64::MAX, |all, seen| all & seen);
        for (ends, track) in self.ends.iter().zip(tracks) {
            let (from, to) = (&rows.t[ends.from][range.clone()], &rows.t[ends.to][range.clone()]);
            let all = from.iter().zip(to).map(|(from, to)| (*from, between(*from, *to)));
            self.times.clear();
            if by_all & ends.both == ends.both && !ends.in_order {
                self.times.extend(all.map(|(_, time)| time));
                track.add_all(from, &self.times);
                continue;
            }
            self.at.clear();
            let crossed =
                all.zip(seen).filter(|((_, time), seen)| *seen & ends.both == ends.both && ends.counts(*time));
            crossed.for_each(|((at, time), _)| {
                self.at.push(at);
                self.times.push(time);
            });
            track.add_all(&self.at, &self.times);
        }
        // As in an aggregate: without a route nobody knows where packets were to arrive.
        for row in range.filter(|row| *sink != 0 && rows.seen[*row] & sink == 0) {
            self.lost[lane].add(rows.first_time(row));
        }
    }

    /// Adds all that another one, of the same setup, has.
    pub fn merge(&mut self, other: Self) {
        self.tracks.iter_mut().zip(other.tracks).for_each(|(own, others)| own.merge(others));
        self.lost.iter_mut().zip(other.lost).for_each(|(own, others)| own.merge(others));
    }

    /// For each stream, or once for all: a track for each segment, and when packets were lost.
    pub fn finish(self) -> Vec<(Vec<Track>, Lost)> {
        let mut tracks = self.tracks.into_iter();
        let segments = self.ends.len();
        let lane = |lost| (tracks.by_ref().take(segments).collect(), lost);
        self.lost.into_iter().map(lane).collect()
    }
}
