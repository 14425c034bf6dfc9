//! Live figures of each path that packets took through the host, from what the kernel counted.

use latpath_journey::{PathClass, Paths, Segment};
use latpath_model::{PointId, StreamId};
use latpath_probe::{HeldUp, LiveStream, Probe};
use latpath_stats::kernel::KernelHistogram;
use latpath_stats::{PathFigures, SegmentFigures};

/// Counts by path, and times by what held packets up, which is all of a path that the kernel tells apart.
pub(crate) struct ByPath {
    paths: Paths,
    journeys: [u64; PathClass::ALL.len()],
    lost: [u64; PathClass::ALL.len()],
    /// By [`HeldUp`]; of what is not held up alone, where nothing tells paths apart.
    times: Vec<Vec<KernelHistogram>>,
}

impl ByPath {
    /// Nothing counted, of so many segments.
    pub fn new(paths: Paths, segments: usize) -> Self {
        let ways = if paths.any() { HeldUp::ALL.len() } else { 1 };
        let times = vec![vec![KernelHistogram::default(); segments]; ways];
        Self { paths, journeys: Default::default(), lost: Default::default(), times }
    }

    /// Counts the packets of a stream whose way ends with the last point of `line`.
    pub fn count(&mut self, stream: &LiveStream, line: &[PointId]) {
        let Some(sink) = line.last() else { return };
        let ended = stream.ended.iter().map(|(seen, n)| (*seen, *n, true));
        for (seen, n, over) in ended.chain(stream.open.iter().map(|(seen, n)| (*seen, *n, false))) {
            let (class, arrived) = (self.paths.class(seen) as usize, seen >> sink & 1 == 1);
            if arrived || over {
                self.journeys[class] += n;
                self.lost[class] += if arrived { 0 } else { n };
            }
        }
    }

    /// Takes a stream's times from the kernel.
    pub fn take(&mut self, probe: &Probe, stream: StreamId) {
        for (held_up, times) in HeldUp::ALL.into_iter().zip(&mut self.times) {
            for (segment, all) in times.iter_mut().enumerate() {
                let Some(h) = probe.histogram(stream, segment, held_up) else { continue };
                all.merge(&KernelHistogram {
                    counts: h.buckets,
                    count: h.count,
                    sum: h.sum,
                    min: h.min,
                    max: h.max,
                    over_threshold: h.over,
                    negative: h.negative,
                });
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        let add = |own: &mut [u64], others: &[u64]| own.iter_mut().zip(others).for_each(|(a, b)| *a += b);
        add(&mut self.journeys, &other.journeys);
        add(&mut self.lost, &other.lost);
        for (own, others) in self.times.iter_mut().flatten().zip(other.times.iter().flatten()) {
            own.merge(others);
        }
    }

    /// The times of each segment, whatever the path.
    pub fn all_paths(&self) -> Vec<KernelHistogram> {
        let mut all = self.times[0].clone();
        for times in &self.times[1..] {
            all.iter_mut().zip(times).for_each(|(all, own)| all.merge(own));
        }
        all
    }

    /// A row for each path that was taken. Of the paths that nothing held up, the commonest has the times.
    pub fn figures(
        &self,
        shown: &[(&Segment, usize)],
        row: impl Fn(&Segment, &KernelHistogram) -> SegmentFigures,
    ) -> Vec<PathFigures> {
        if !self.paths.any() {
            return Vec::new();
        }
        let held_up = |class| match class {
            PathClass::Upcall => HeldUp::Upcall,
            PathClass::Slow => HeldUp::Slow,
            _ => HeldUp::No,
        };
        let free = PathClass::ALL.into_iter().filter(|c| held_up(*c) == HeldUp::No);
        let commonest = free.max_by_key(|c| self.journeys[*c as usize]);
        let figures = |class: PathClass| {
            let times = &self.times[held_up(class) as usize];
            let has_times = held_up(class) != HeldUp::No || Some(class) == commonest;
            let told = shown.iter().filter(|(s, _)| has_times && s.kind.is_counted_by_path());
            PathFigures {
                path: class.to_string(),
                journeys: self.journeys[class as usize],
                lost: self.lost[class as usize],
                segments: told.map(|(s, at)| row(s, &times[*at])).filter(|s| s.count > 0).collect(),
            }
        };
        PathClass::ALL.into_iter().filter(|c| self.journeys[*c as usize] > 0).map(figures).collect()
    }
}
