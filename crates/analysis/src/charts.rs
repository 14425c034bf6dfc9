//! Data of charts, which a summary does not contain.

use crate::intervals::intervals;
use crate::summarise::{gather, without, Gathered, Reading};
use crate::Analysis;
use latpath_journey::segments::Segment;
use latpath_model::{Ns, PointId, SegmentKind, StreamId};
use latpath_run::{Rows, Run, Select};
use latpath_stats::{Aggregate, Batch, Batches, FineHistograms, OverTime, Setup, Slot, Summary, Worst};

/// Maximum number of segments with charts.
pub(crate) const CHARTED: usize = 24;

/// Data of a report's charts.
#[derive(Clone, Debug, Default)]
pub struct Charts {
    /// Start of the first slot on the run's timeline, ns.
    pub begin_ns: Ns,
    /// Start of the first slot, UTC, ns.
    pub begin_utc_ns: Ns,
    /// Length of a slot, ns.
    pub slot_ns: Ns,
    /// Segments with charts.
    pub segments: Vec<ChartedSegment>,
    /// A packet whose segment times are close to the medians.
    pub typical: Option<Worst>,
}

/// Data of a segment's charts.
#[derive(Clone, Debug)]
pub struct ChartedSegment {
    /// Index into the summary's segments.
    pub figures: usize,
    /// Times in equal slots of the run's time.
    pub slots: Vec<Slot>,
    /// Histograms of the times.
    pub histograms: FineHistograms,
}

impl ChartedSegment {
    /// Data of the setup's segments with these indexes (`charted`).
    pub(crate) fn all(aggregate: &Aggregate, charted: &[usize], over_time: &OverTime) -> Vec<Self> {
        let of = |(figures, histograms): (usize, FineHistograms)| {
            let at = charted.iter().position(|segment| *segment == histograms.segment)?;
            (!histograms.all.is_empty()).then(|| Self { figures, slots: over_time.segments()[at].clone(), histograms })
        };
        aggregate.fine_histograms().into_iter().enumerate().filter_map(of).collect()
    }
}

impl Analysis<'_> {
    /// Computes all figures, and the data of the charts.
    ///
    /// # Errors
    /// If [`Analysis::summarise`] fails.
    pub fn summarise_with_charts(&self) -> Result<(Summary, Charts), String> {
        let select = &self.options.select;
        let make = |setup: &Setup| {
            let (begin, end) = self.span(select)?;
            Some(OverTime::new(setup, &charted(setup, CHARTED), begin, end))
        };
        let add = |over_time: &mut Option<OverTime>, batch: &Batch| over_time.iter_mut().for_each(|o| o.add(batch));
        let intervals = intervals(self)?;
        let Gathered { mut summary, counted, patterns, more } = gather(self, &Reading::of_report(self), make, add);
        summary.without = without(self, &summary, &patterns);
        summary.intervals = intervals;
        let merged = more.into_iter().flatten().reduce(|mut all, one| {
            all.merge(&one);
            all
        });
        let Some(over_time) = merged else { return Ok((summary, Charts::default())) };
        let setup = counted.setup();
        let charts = Charts {
            begin_ns: over_time.begin(),
            begin_utc_ns: self.manifest.time_of_day().utc(over_time.begin()),
            slot_ns: over_time.slot_ns(),
            segments: ChartedSegment::all(&counted, &charted(setup, CHARTED), &over_time),
            typical: typical(self.run, select, setup, &summary).and_then(|one| self.slowest(&one)),
        };
        Ok((summary, charts))
    }

    /// The slowest packet of an aggregate, in the form of a summary.
    fn slowest(&self, counted: &Aggregate) -> Option<Worst> {
        latpath_stats::summarise(counted, &self.facts(false, 0)).worst.into_iter().next()
    }
}

/// Indexes in the setup of the segments with charts: at most `most`, segments of single steps only if there is room.
fn charted(setup: &Setup, most: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..setup.segments.len()).collect();
    chosen.sort_by_key(|at| setup.segments[*at].kind == SegmentKind::Step);
    chosen.truncate(most);
    chosen.sort_unstable();
    chosen
}

/// The complete packet whose segment times are closest to the medians, among the first `TRIED` packets of the stream
/// with the most packets.
fn typical(run: &Run, select: &Select, setup: &Setup, summary: &Summary) -> Option<Aggregate> {
    const TRIED: usize = 20_000;
    let streams = select.streams.clone();
    let ids = (0..setup.streams).filter(|id| streams.as_ref().is_none_or(|s| s.iter().any(|s| usize::from(*s) == *id)));
    let (id, stream) =
        ids.zip(&summary.streams).collect::<Vec<_>>().into_iter().rev().max_by_key(|(_, s)| s.journeys)?;
    let route = setup.routes.get(id)?.iter().fold(0_u64, |route, p| route | 1 << p);
    let name = |p: PointId| setup.points.get(usize::from(p)).map_or(String::new(), |info| info.point.to_string());
    let median = |s: &Segment| {
        let (from, to) = (name(s.from), name(s.to));
        let figures = stream.segments.iter().find(|f| f.times.count > 0 && f.from == from && f.to == to)?;
        Some((s.from, s.to, figures.times.p50_ns))
    };
    let medians: Vec<_> = setup.segments.iter().filter_map(median).collect();
    let streams = Some(vec![StreamId::try_from(id).ok()?]);
    let select = Select { streams, ..select.clone() };
    // Imported files contain no CPUs and threads.
    let select = if run.manifest().imported.is_empty() { select.with_cpus_and_threads() } else { select };
    let (mut tried, mut least) = (0, i128::MAX);
    let mut best = Rows::default();
    run.for_each(&select, |journey| {
        tried += 1;
        let off = |(from, to, median): &(PointId, PointId, Ns)| {
            let time = journey.at(*to).zip(journey.at(*from)).map(|(to, from)| i128::from(to) - i128::from(from));
            time.map_or(0, |time| (time - i128::from(*median)).abs())
        };
        let off = medians.iter().map(off).sum();
        if journey.seen & route == route && route != 0 && off < least {
            least = off;
            best.clear(setup.points.len());
            if journey.cpu.is_empty() {
                best.leave_out_details();
            }
            best.push(journey);
        }
        tried < TRIED
    });
    let mut aggregate = Aggregate::new(Setup { worst: 1, ..setup.clone() });
    Batches::new(setup).each(&best, |batch| aggregate.add(batch));
    (!best.is_empty()).then_some(aggregate)
}
