//! Regularity of packets: the time between successive packets of a stream, at each point.

use crate::batch::{Batch, PIECE};
use crate::Summary;
use latpath_model::{Ns, PointInfo, StreamId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of separate parts per stream.
const MAX: usize = 1 << 14;
/// If packets arrive nearly in order: maximum number of separate parts, which all streams share, and the number that
/// each stream may have at least.
const MAX_IN_ORDER: (usize, usize) = (1 << 14, 16);

/// Times between successive packets of a stream seen at a point, in the order of the stream; negative if the later
/// packet arrived first. A lost packet merges two times into a long one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PacingFigures {
    /// The point, as `machine/kind@device`.
    pub point: String,
    /// Number of times: one less than the number of packets seen at the point.
    pub count: u64,
    /// Minimum, exact.
    pub min_ns: Ns,
    /// Arithmetic mean, rounded.
    pub mean_ns: Ns,
    /// Maximum, exact.
    pub max_ns: Ns,
}

/// Times between the packets of one stream at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gaps {
    first: Ns,
    last: Ns,
    count: u64,
    min: Ns,
    max: Ns,
}

impl Gaps {
    fn of(t: Ns) -> Self {
        Self { first: t, last: t, count: 0, min: Ns::MAX, max: Ns::MIN }
    }

    /// Pacing at a point that saw all packets of a batch; `is_exact` if no difference between two of the times can
    /// overflow.
    fn of_all(times: &[Ns], is_exact: bool) -> Option<Self> {
        let (first, last) = (*times.first()?, *times.last()?);
        let (mut min, mut max) = (Ns::MAX, Ns::MIN);
        let mut rest = times;
        while rest.len() > 1 {
            let piece = &rest[..rest.len().min(PIECE + 1)];
            rest = &rest[piece.len() - 1..];
            let pairs = || piece.iter().zip(&piece[1..]);
            // Combine the signs of all differences: faster than comparing each of them.
            let beyond = |all: Ns, (before, t): (&Ns, &Ns)| {
                let gap = t.wrapping_sub(*before);
                all | gap.wrapping_sub(min) | max.wrapping_sub(gap)
            };
            if min <= max && is_exact && pairs().fold(0, beyond) >= 0 {
                continue;
            }
            let gaps = pairs().map(|(before, t)| t.saturating_sub(*before));
            (min, max) = gaps.fold((min, max), |(min, max), gap| (min.min(gap), max.max(gap)));
        }
        Some(Self { first, last, count: times.len() as u64 - 1, min, max })
    }

    #[inline]
    fn then(self, next: Self) -> Self {
        let gap = next.first.saturating_sub(self.last);
        Self {
            first: self.first,
            last: next.last,
            count: self.count + next.count + 1,
            min: self.min.min(next.min).min(gap),
            max: self.max.max(next.max).max(gap),
        }
    }
}

/// Consecutive packets of one stream.
#[derive(Clone, Debug)]
struct ConsecutivePackets {
    /// Packet number after the last one.
    end: u64,
    points: Vec<Option<Gaps>>,
}

impl ConsecutivePackets {
    fn then(&mut self, next: &Self) {
        self.end = next.end;
        self.points.resize(self.points.len().max(next.points.len()), None);
        for (own, next) in self.points.iter_mut().zip(&next.points) {
            *own = match (*own, *next) {
                (Some(own), Some(next)) => Some(own.then(next)),
                (own, next) => own.or(next),
            };
        }
    }
}

/// Pacing of all streams, under construction. Merging several objects built from batches of the same journeys yields
/// the same result in any order.
#[derive(Clone, Debug)]
pub struct Pacing {
    points: usize,
    /// Maximum number of separate parts per stream.
    most: usize,
    /// The parts of each stream, by the number of their first packet.
    streams: Vec<BTreeMap<u64, ConsecutivePackets>>,
}

impl Pacing {
    /// Empty pacing. Journeys of streams with an ID of `streams` or above are ignored.
    pub fn new(streams: usize, points: usize) -> Self {
        Self { points, most: MAX, streams: vec![BTreeMap::new(); streams] }
    }

    /// Like [`Self::new`], but needs less memory; for batches that are nearly in packet order.
    pub fn in_order(streams: usize, points: usize) -> Self {
        let (all, least) = MAX_IN_ORDER;
        Self { most: (all / streams.max(1)).max(least), ..Self::new(streams, points) }
    }

    /// Adds points; existing counts remain.
    pub fn extend(&mut self, points: usize) {
        self.points = points;
    }

    /// Adds a batch; its packets must be in order.
    pub fn add(&mut self, batch: &Batch) {
        let Batch { rows, seen_by_all, ref range, .. } = *batch;
        let of_point = |point: usize| {
            if seen_by_all >> point & 1 == 1 {
                return Gaps::of_all(batch.at(point), rows.are_times_close());
            }
            let seen = |row: &usize| rows.seen[*row] >> point & 1 == 1;
            let mut times = range.clone().filter(seen).map(|row| rows.t[point][row]);
            let first = Gaps::of(times.next()?);
            Some(times.fold(first, |gaps, t| gaps.then(Gaps::of(t))))
        };
        let points = (0..self.points.min(rows.t.len())).map(of_point).collect();
        let end = rows.number[range.end - 1].saturating_add(1);
        self.keep(batch.stream, rows.number[range.start], ConsecutivePackets { end, points });
    }

    fn keep(&mut self, stream: StreamId, mut number: u64, mut part: ConsecutivePackets) {
        let Some(parts) = self.streams.get_mut(usize::from(stream)) else { return };
        let before = parts.range(..number).next_back().filter(|(_, before)| before.end == number);
        if let Some(at) = before.map(|(at, _)| *at) {
            if let Some(mut before) = parts.remove(&at) {
                before.then(&part);
                (number, part) = (at, before);
            }
        }
        if let Some(next) = parts.remove(&part.end) {
            part.then(&next);
        }
        // A restarted recording may reuse a number.
        match parts.get_mut(&number) {
            Some(known) => known.then(&part),
            None => drop(parts.insert(number, part)),
        }
        if parts.len() > self.most {
            if let (Some((at, mut oldest)), Some((_, next))) = (parts.pop_first(), parts.pop_first()) {
                oldest.then(&next);
                parts.insert(at, oldest);
            }
        }
    }

    /// Adds the packets of another object with the same setup.
    pub fn merge(&mut self, other: Self) {
        for (stream, parts) in other.streams.into_iter().enumerate() {
            parts.into_iter().for_each(|(number, part)| self.keep(stream as StreamId, number, part));
        }
    }

    /// Sets the pacing of each stream, in the order of its route. Points with computed times are omitted, because these
    /// times do not show when the packets were there.
    pub fn fill(&self, summary: &mut Summary, points: &[PointInfo]) {
        let name = |point: usize| points.get(point).map_or(String::new(), |info| info.point.to_string());
        let samples = points.iter().filter(|info| info.point.kind.is_computed());
        let samples: Vec<String> = samples.map(|info| info.point.to_string()).collect();
        for (id, stream) in summary.streams.iter_mut().enumerate() {
            stream.pacing = self.figures(id as StreamId, name);
            stream.pacing.retain(|at| !samples.contains(&at.point));
            let place = |at: &PacingFigures| stream.points.iter().position(|p| p.to_string() == at.point);
            stream.pacing.sort_by_cached_key(|at| place(at).unwrap_or(usize::MAX));
        }
    }

    /// A stream's pacing at each point that saw at least two of its packets, in the order of point IDs; `name` returns
    /// the name of a point.
    pub fn figures(&self, stream: StreamId, name: impl Fn(usize) -> String) -> Vec<PacingFigures> {
        let mut parts = self.streams.get(usize::from(stream)).into_iter().flat_map(BTreeMap::values);
        let Some(mut all) = parts.next().cloned() else { return Vec::new() };
        parts.for_each(|next| all.then(next));
        let figures = |(point, gaps): (usize, &Option<Gaps>)| {
            let gaps = gaps.filter(|gaps| gaps.count > 0)?;
            let (sum, n) = (i128::from(gaps.last) - i128::from(gaps.first), i128::from(gaps.count));
            let mean_ns = (2 * sum + n).div_euclid(2 * n) as Ns;
            let (point, Gaps { count, min: min_ns, max: max_ns, .. }) = (name(point), gaps);
            Some(PacingFigures { point, count, min_ns, mean_ns, max_ns })
        };
        all.points.iter().enumerate().filter_map(figures).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batches, Setup};
    use latpath_journey::Journey;
    use latpath_run::Rows;
    use proptest::prelude::*;

    fn batch(packets: &[(u64, Ns, bool)]) -> Rows {
        let mut rows = Rows::new(2);
        for (number, t, arrived) in packets {
            rows.push(&Journey {
                stream: 0,
                key: 0,
                number: *number,
                seen: if *arrived { 0b11 } else { 0b01 },
                t: &[*t, t + 10],
                cpu: &[],
                tid: &[],
                ..Journey::default()
            });
        }
        rows
    }

    proptest! {
        #[test]
        fn batches_in_any_order_give_the_times_between_all_packets(
            steps in prop::collection::vec((1..500_i64, prop::bool::weighted(0.9)), 2..60),
            size in 1..9_usize,
            turn in any::<prop::sample::Index>(),
            workers in 1..4_usize,
        ) {
            let mut t = 0;
            let mut packets = Vec::new();
            for (number, (step, arrived)) in steps.iter().enumerate() {
                t += step;
                packets.push((number as u64, t, *arrived));
            }
            let mut batches: Vec<Rows> = packets.chunks(size).map(batch).collect();
            let turn = turn.index(batches.len());
            batches.rotate_left(turn);
            let mut all = vec![Pacing::new(1, 2); workers];
            let mut cut = Batches::new(&Setup::default());
            batches.iter().enumerate().for_each(|(at, rows)| cut.each(rows, |batch| all[at % workers].add(batch)));
            let mut whole = Pacing::new(1, 2);
            all.into_iter().for_each(|one| whole.merge(one));
            let expected = |point: usize| {
                let times: Vec<Ns> = packets.iter().filter(|p| point == 0 || p.2).map(|p| p.1).collect();
                let gaps: Vec<Ns> = times.windows(2).map(|two| two[1] - two[0]).collect();
                let (min_ns, max_ns) = (*gaps.iter().min()?, *gaps.iter().max()?);
                let (sum, n) = (gaps.iter().sum::<Ns>(), gaps.len() as Ns);
                Some(PacingFigures { point: point.to_string(), count: n as u64, min_ns, mean_ns: (2 * sum + n) / (2 * n), max_ns })
            };
            let expected: Vec<_> = (0..2).filter_map(expected).collect();
            prop_assert_eq!(whole.figures(0, |point| point.to_string()), expected);
        }
    }
}
