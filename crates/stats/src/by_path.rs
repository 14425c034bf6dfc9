//! Figures by path through the host.

use crate::times::{between, Ends, Times};
use crate::{Bucket, PathFigures, SegmentFigures};
use latpath_journey::PathClass;
use latpath_model::Ns;

/// Times by path. Paths are allocated on first use, because few of them occur.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByPath([Option<Box<OnePath>>; PathClass::ALL.len()]);

#[derive(Clone, Debug, Default)]
pub(crate) struct OnePath {
    journeys: u64,
    lost: u64,
    /// Times by segment; empty for segments that do not depend on the path.
    segments: Vec<Times>,
}

impl ByPath {
    pub fn of(&mut self, class: PathClass, segments: usize) -> &mut OnePath {
        let new = || Box::new(OnePath { segments: vec![Times::default(); segments], ..OnePath::default() });
        let path = self.0[class as usize].get_or_insert_with(new);
        if path.segments.len() < segments {
            path.segments.resize_with(segments, Times::default);
        }
        path
    }

    pub fn merge(&mut self, other: &Self) {
        for (class, others) in PathClass::ALL.into_iter().zip(&other.0) {
            let Some(others) = others else { continue };
            let own = self.of(class, others.segments.len());
            own.journeys += others.journeys;
            own.lost += others.lost;
            own.segments.iter_mut().zip(&others.segments).for_each(|(own, others)| own.merge(others));
        }
    }

    fn taken(&self) -> impl Iterator<Item = (PathClass, &OnePath)> {
        PathClass::ALL.into_iter().zip(&self.0).filter_map(|(class, path)| Some((class, path.as_deref()?)))
    }

    /// Histograms of a segment with fine buckets, for each path that has any times.
    pub fn fine_buckets(&self, segment: usize) -> Vec<(String, Vec<Bucket>)> {
        let of = |(class, path): (PathClass, &OnePath)| {
            let buckets = path.segments.get(segment)?.histogram.fine_buckets();
            (!buckets.is_empty()).then(|| (class.to_string(), buckets))
        };
        self.taken().filter_map(of).collect()
    }

    pub fn figures(&self, rows: impl Fn(&[Times]) -> Vec<SegmentFigures>) -> Vec<PathFigures> {
        let figures = |(class, path): (PathClass, &OnePath)| PathFigures {
            path: class.to_string(),
            journeys: path.journeys,
            lost: path.lost,
            segments: rows(&path.segments),
        };
        self.taken().map(figures).collect()
    }
}

impl OnePath {
    /// Adds a journey; `sink` is the bit of the last point of its route.
    #[inline]
    pub fn add(&mut self, seen: u64, sink: u64, ends: &[Ends], threshold: Ns, at: impl Fn(usize) -> Ns) {
        self.journeys += 1;
        self.lost += u64::from(seen & sink == 0);
        for (ends, times) in ends.iter().zip(&mut self.segments) {
            if ends.by_path && seen & ends.both == ends.both {
                let time = between(at(ends.from), at(ends.to));
                if ends.counts(time) {
                    times.record(time, threshold);
                }
            }
        }
    }
}
