//! The tracks of a run's segments, gathered from batches of journeys.

use crate::aggregate::Setup;
use crate::batch::Batch;
use crate::times::bit;
use crate::track::{Intervals, Lost, Track};
use latpath_journey::arrival;
use latpath_model::Ns;

/// A track per segment, for all streams together or for each stream; and the lost packets.
#[derive(Clone, Debug)]
pub struct Tracks {
    /// Index of the point at which each segment starts.
    from: Vec<usize>,
    sinks: Vec<u64>,
    by_stream: bool,
    /// The tracks, ordered by stream, then by segment.
    tracks: Vec<Track>,
    lost: Vec<Lost>,
    /// Buffer: times at which the packets of the batch being added entered a segment.
    when: Vec<Ns>,
}

impl Tracks {
    /// Number of tracks.
    pub fn count(setup: &Setup, by_stream: bool) -> usize {
        setup.segments.len() * if by_stream { setup.streams } else { 1 }
    }

    /// Empty tracks.
    pub fn new(setup: &Setup, intervals: Intervals, by_stream: bool) -> Self {
        let last = |id: usize| setup.routes.get(id).and_then(|route| arrival(route, &setup.points)).map_or(0, bit);
        Self {
            from: setup.segments.iter().map(|s| s.from.into()).collect(),
            sinks: (0..setup.streams).map(last).collect(),
            by_stream,
            tracks: vec![Track::new(intervals, setup.threshold); Self::count(setup, by_stream)],
            lost: vec![Lost::new(intervals); if by_stream { setup.streams } else { 1 }],
            when: Vec::new(),
        }
    }

    /// Adds a batch. Packets of streams beyond the setup are ignored.
    pub fn add(&mut self, batch: &Batch) {
        let Batch { rows, stream, ref range, .. } = *batch;
        let Some(sink) = self.sinks.get(usize::from(stream)) else { return };
        let lane = if self.by_stream { usize::from(stream) } else { 0 };
        let tracks = &mut self.tracks[lane * self.from.len()..][..self.from.len()];
        for (segment, (from, track)) in self.from.iter().zip(tracks).enumerate() {
            let crossings = batch.crossings(segment);
            track.add_all(crossings.when(&rows.t[*from], &mut self.when), &crossings.times);
        }
        // Without a route, the destination is unknown, as in an aggregate, so no packet counts as lost.
        if *sink != 0 && batch.seen_by_all & sink == 0 {
            for row in range.clone().filter(|row| rows.seen[*row] & sink == 0) {
                self.lost[lane].add(rows.first_time(row));
            }
        }
    }

    /// Adds the packets of another object with the same setup.
    pub fn merge(&mut self, other: Self) {
        self.tracks.iter_mut().zip(other.tracks).for_each(|(own, others)| own.merge(others));
        self.lost.iter_mut().zip(other.lost).for_each(|(own, others)| own.merge(others));
    }

    /// Per stream, or once for all streams: one track per segment, and the lost packets.
    pub fn finish(self) -> Vec<(Vec<Track>, Lost)> {
        let mut tracks = self.tracks.into_iter();
        let segments = self.from.len();
        let lane = |lost| (tracks.by_ref().take(segments).collect(), lost);
        self.lost.into_iter().map(lane).collect()
    }
}
