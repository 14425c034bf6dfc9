//! Figures of a session's transactions.

use crate::fixed_width::{FixedWidthHistogram, HistogramAxis, SingleTime};
use crate::sequenced::{SequencedFigures, SequencedHistogram};
use crate::table::{Counts, End};
use crate::timeline::{Disturbance, Relation, Timeline};
use crate::transaction::{Route, Segment, Source, Stamp, Transaction};
use crate::wire::{NicReading, ReflectorCounters};
use latpath_model::Ns;
use latpath_stats::consecutive::Consecutive;
use latpath_stats::{Bucket, Histogram, TimeFigures};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One row of the table of segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoundTripSegmentFigures {
    /// Name in the table.
    pub name: String,
    /// The first stamp.
    pub from: Stamp,
    /// Source of the first stamp.
    pub from_source: Source,
    /// The last stamp.
    pub to: Stamp,
    /// Source of the last stamp.
    pub to_source: Source,
    /// Error bound of each time, ns; 0 if one clock took both stamps, null if unknown.
    pub error_bound_ns: Option<Ns>,
    /// Distribution of the times.
    #[serde(flatten)]
    pub times: TimeFigures,
}

/// A round trip kept individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct SingleRoundTrip {
    /// Round trip, ns.
    pub round_trip_ns: Ns,
    /// Sequence number of the transaction.
    pub sequence: u64,
}

/// One of the slowest transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worst {
    /// Sequence number of the transaction.
    pub sequence: u64,
    /// Send time, ns of the emitter's `CLOCK_MONOTONIC`.
    pub sent_at_ns: Ns,
    /// Round trip, ns.
    pub round_trip_ns: Ns,
    /// Times of its segments in the order of the table, ns; null if one of the stamps is missing.
    pub segments_ns: Vec<Option<Ns>>,
    /// The segment that exceeded its median by the most, or null.
    pub longest: Option<String>,
}

/// Collects a session's transactions in bounded memory.
pub struct Figures {
    taken: u16,
    table: Rows,
    detail: Rows,
    round_trip: SequencedHistogram,
    nic_round_trip: SequencedHistogram,
    nic_turnaround: SequencedHistogram,
    missing: [u64; Stamp::ALL.len()],
    unplaced: u64,
    options: FigureOptions,
    drawn: Option<FixedWidthHistogram>,
    breaches: u64,
    /// Runs of consecutive probes that were lost or over the threshold, and the same for each limit in `row_limits`.
    consecutive: Vec<Consecutive>,
    worst: Vec<Transaction>,
}

struct Rows {
    route: Route,
    segments: Vec<Segment>,
    times: Vec<Histogram>,
}

impl Rows {
    fn new(route: Route) -> Self {
        let segments: Vec<Segment> = route.segments().collect();
        Self { route, times: vec![Histogram::new(); segments.len()], segments }
    }

    #[inline]
    fn add(&mut self, t: &Transaction) {
        for (segment, times) in self.segments.iter().zip(&mut self.times) {
            if let Some(time) = t.mapped.between(segment.from, segment.to) {
                times.record(time);
            }
        }
    }
}

/// Options of the figures.
#[derive(Clone, Debug, Default)]
pub struct FigureOptions {
    /// Axis of the fixed-width histogram, if one is to be collected.
    pub drawn: Option<HistogramAxis>,
    /// Threshold for the round trip, ns.
    pub threshold: Option<Ns>,
    /// Further limits, ns: for each, the longest run of consecutive probes that were lost or took longer is counted.
    pub row_limits: Vec<Ns>,
    /// Number of worst transactions that are kept.
    pub worst: usize,
}

impl Figures {
    /// Creates empty figures.
    pub fn new(options: &FigureOptions) -> Self {
        Self {
            taken: 0,
            table: Rows::new(Route::of_seven(0)),
            detail: Rows::new(Route::detailed(0)),
            round_trip: SequencedHistogram::default(),
            nic_round_trip: SequencedHistogram::default(),
            nic_turnaround: SequencedHistogram::default(),
            missing: [0; Stamp::ALL.len()],
            unplaced: 0,
            options: options.clone(),
            drawn: options.drawn.map(FixedWidthHistogram::new),
            breaches: 0,
            consecutive: vec![Consecutive::default(); 1 + options.row_limits.len()],
            worst: Vec::new(),
        }
    }

    /// Sets the stamps that both ends take.
    pub fn set_route(&mut self, taken: u16) {
        self.taken = taken;
        self.table = Rows::new(Route::of_seven(taken));
        self.detail = Rows::new(Route::detailed(taken));
    }

    /// Discards everything so far, at the end of the warm-up.
    pub fn clear(&mut self) {
        let taken = self.taken;
        *self = Self::new(&self.options);
        self.set_route(taken);
    }

    /// The route: the stamps of the table.
    pub fn route(&self) -> &Route {
        &self.table.route
    }

    /// Stamps that both ends take.
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Histogram of the round trips so far.
    pub fn round_trip(&self) -> &SequencedHistogram {
        &self.round_trip
    }

    /// Medians of the table's segments so far.
    pub fn medians(&self) -> Vec<Ns> {
        self.table.times.iter().map(|h| h.percentile(500_000)).collect()
    }

    /// Adds a transaction with its outcome.
    #[inline]
    pub fn add(&mut self, t: &Transaction, end: End) {
        let late = self.options.threshold.unwrap_or(Ns::MAX);
        for (late, rows) in std::iter::once(&late).chain(&self.options.row_limits).zip(&mut self.consecutive) {
            let bad = end == End::Lost || t.round_trip().is_some_and(|time| time > *late);
            rows.add(t.sequence, t.sequence as u32, 0, bad, || 0);
        }
        if end == End::Lost {
            return;
        }
        let Some(round_trip) = t.round_trip() else { return };
        self.round_trip.record(t.sequence, round_trip);
        self.table.add(t);
        if self.detail.segments.len() > self.table.segments.len() {
            self.detail.add(t);
        }
        if let Some(time) = t.nic_round_trip() {
            self.nic_round_trip.record(t.sequence, time);
        }
        if let Some(time) = t.nic_turnaround() {
            self.nic_turnaround.record(t.sequence, time);
        }
        let missing = self.taken & !t.raw.mask();
        if missing != 0 {
            for stamp in Stamp::ALL {
                self.missing[stamp as usize] += u64::from(missing & stamp.bit() != 0);
            }
        }
        self.unplaced += u64::from(t.raw.mask() & !t.mapped.mask() & self.taken != 0);
        self.breaches += u64::from(self.options.threshold.is_some_and(|limit| round_trip > limit));
        if let Some(drawn) = &mut self.drawn {
            drawn.add(t.sequence, round_trip);
        }
        self.keep_if_worst(t, round_trip);
    }

    #[inline]
    fn keep_if_worst(&mut self, t: &Transaction, round_trip: Ns) {
        let time = |t: &Transaction| t.round_trip().unwrap_or(Ns::MIN);
        if self.worst.len() < self.options.worst {
            self.worst.push(*t);
        } else if self.worst.first().is_some_and(|least| time(least) < round_trip) {
            self.worst[0] = *t;
        } else {
            return;
        }
        // In ascending order, so that the first one is replaced next.
        self.worst.sort_unstable_by_key(time);
    }

    /// Builds the report: all figures, with the session's counts, clocks and disturbances.
    pub fn report(
        &self,
        counts: &Counts,
        seen: Option<ReflectorCounters>,
        timeline: &Timeline,
        (started, elapsed): (Ns, Ns),
    ) -> Report {
        let rows = |rows: &Rows| {
            let figures = |(segment, h): (&Segment, &Histogram)| RoundTripSegmentFigures {
                name: segment.name(),
                from: segment.from,
                from_source: segment.from.source(),
                to: segment.to,
                to_source: segment.to.source(),
                error_bound_ns: timeline.error_bound(*segment),
                times: TimeFigures::of(h),
            };
            rows.segments.iter().zip(&rows.times).map(figures).collect::<Vec<_>>()
        };
        let [nic_clock, reflector_nic_clock] = timeline.nic_clocks();
        let (disturbances, disturbed) = timeline.disturbances();
        let single = |one: SingleTime| SingleRoundTrip { round_trip_ns: one.time_ns, sequence: one.sequence };
        let overflow = self.drawn.iter().flat_map(FixedWidthHistogram::overflow).map(single).collect();
        Report {
            started_ns: started,
            elapsed_ns: elapsed,
            counts: *counts,
            reflector: seen,
            lost_there: seen.map(|s| counts.sent.saturating_sub(s.received)),
            lost_back: seen.map(|s| s.received.saturating_sub(counts.answered + counts.late)),
            round_trip: self.round_trip.figures(),
            nic_round_trip: self.nic_round_trip.some_figures(),
            nic_turnaround: self.nic_turnaround.some_figures(),
            segments: rows(&self.table),
            detail: if self.detail.segments.len() > self.table.segments.len() {
                rows(&self.detail)
            } else {
                Vec::new()
            },
            missing: Stamp::ALL
                .into_iter()
                .filter(|s| self.missing[*s as usize] > 0)
                .map(|stamp| Missing { stamp, count: self.missing[stamp as usize] })
                .collect(),
            unplaced: self.unplaced,
            clocks: timeline.relation(),
            error_bound_ns: timeline.bound().map(|b| b.0),
            max_error_bound_ns: timeline.bound().map(|b| b.1),
            drift_ppb: timeline.drift_ppb(),
            nic_clock,
            reflector_nic_clock,
            disturbances: disturbances.to_vec(),
            disturbed,
            threshold_ns: self.options.threshold,
            over_threshold: self.breaches,
            consecutive: self.consecutive.first().map_or(0, |rows| rows.longest().packets),
            consecutive_over: (self.options.row_limits.iter().copied())
                .zip(self.consecutive.iter().skip(1).map(|rows| rows.longest().packets))
                .collect(),
            // About ten buckets per decade if no axis was requested.
            histogram: match &self.drawn {
                Some(drawn) => drawn.buckets(),
                None => self.round_trip.times().buckets(),
            },
            overflow_from_ns: self.drawn.as_ref().map(FixedWidthHistogram::end),
            overflown: self.drawn.as_ref().map_or(0, FixedWidthHistogram::overflown),
            overflow,
            worst: self.worst.iter().rev().map(|t| self.worst_of(t)).collect(),
        }
    }

    fn worst_of(&self, t: &Transaction) -> Worst {
        Worst {
            sequence: t.sequence,
            sent_at_ns: t.raw.get(Stamp::T1App).unwrap_or(0),
            round_trip_ns: t.round_trip().unwrap_or(0),
            segments_ns: t.segments(self.route()).collect(),
            longest: self.route().longest(t, &self.medians()).map(|at| self.table.segments[at].name()),
        }
    }
}

/// Number of transactions in which a stamp is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// The missing stamp.
    pub stamp: Stamp,
    /// Number of transactions without the stamp.
    pub count: u64,
}

/// Figures of a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Due time of the first probe after the warm-up, ns of the emitter's `CLOCK_MONOTONIC`; 0 if there was none.
    pub started_ns: Ns,
    /// Time from `started_ns` to the end, ns.
    pub elapsed_ns: Ns,
    /// The emitter's counts.
    pub counts: Counts,
    /// The reflector's counts; null if it did not report them.
    pub reflector: Option<ReflectorCounters>,
    /// Number of probes that did not reach the reflector; null without its report.
    pub lost_there: Option<u64>,
    /// Number of answers that did not reach the emitter; null without the reflector's report.
    pub lost_back: Option<u64>,
    /// Time from T1 app to T4 app.
    pub round_trip: SequencedFigures,
    /// Time from T1 nic to T4 nic, measured by the emitter's PHC alone; null without such stamps.
    pub nic_round_trip: Option<SequencedFigures>,
    /// Time from T2 nic to T3 nic, measured by the reflector's PHC alone; null without such stamps.
    pub nic_turnaround: Option<SequencedFigures>,
    /// Segments from application to application, at most seven.
    pub segments: Vec<RoundTripSegmentFigures>,
    /// Segments between all stamps; empty if there are no more than in `segments`.
    pub detail: Vec<RoundTripSegmentFigures>,
    /// Missing stamps.
    pub missing: Vec<Missing>,
    /// Number of transactions with NIC stamps that could not be placed on the timeline, because a clock was set or
    /// stopped.
    pub unplaced: u64,
    /// Relation between the clocks of both ends.
    pub clocks: Relation,
    /// Error bound of times between the two ends, as of the end of the run, ns; null if unknown.
    pub error_bound_ns: Option<Ns>,
    /// Maximum of this error bound over the run, ns; null if unknown.
    pub max_error_bound_ns: Option<Ns>,
    /// Drift of the reflector's `CLOCK_MONOTONIC` against the emitter's, ppb; positive if it runs faster, null if not
    /// estimated.
    pub drift_ppb: Option<i64>,
    /// Clock of the emitter's NIC; null without one.
    pub nic_clock: Option<NicReading>,
    /// Clock of the reflector's NIC; null without one.
    pub reflector_nic_clock: Option<NicReading>,
    /// Clock steps, servo swings and other disturbances: the first 100.
    pub disturbances: Vec<Disturbance>,
    /// Total number of disturbances.
    pub disturbed: u64,
    /// Threshold of round trips, ns; null without one.
    pub threshold_ns: Option<Ns>,
    /// Number of round trips over the threshold.
    pub over_threshold: u64,
    /// Maximum number of consecutive probes that were lost or over the threshold; without a threshold, that were lost.
    pub consecutive: u64,
    /// The same for each further limit: the limit in ns, and the number of probes.
    #[serde(skip)]
    pub consecutive_over: Vec<(Ns, u64)>,
    /// Non-empty buckets of round trips: of equal width with `--bucket`, otherwise about ten per decade.
    pub histogram: Vec<Bucket>,
    /// End of the fixed-width histogram, ns; null without one.
    pub overflow_from_ns: Option<Ns>,
    /// Number of round trips beyond the end.
    pub overflown: u64,
    /// Round trips beyond the end, longest first; at most 10,000.
    pub overflow: Vec<SingleRoundTrip>,
    /// The worst transactions, longest first.
    pub worst: Vec<Worst>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(sequence: u64, round_trip: Ns, processing: Ns) -> Transaction {
        let mut t = Transaction { sequence, ..Transaction::default() };
        let one_way = (round_trip - processing) / 2;
        let times = [
            (Stamp::T1App, 0),
            (Stamp::T2App, one_way),
            (Stamp::T3App, one_way + processing),
            (Stamp::T4App, round_trip),
        ];
        times.iter().for_each(|(stamp, time)| t.raw.set(*stamp, *time));
        t.mapped = t.raw;
        t
    }

    #[test]
    fn stamps_of_a_clock_that_was_set_are_counted_and_their_segments_omitted() {
        let mut f = Figures::new(&FigureOptions::default());
        f.set_route(Stamp::T1Nic.bit() | Stamp::T2App.bit());
        let mut t = transaction(0, 1_000, 100);
        t.raw.set(Stamp::T1Nic, 7);
        f.add(&t, End::Answered);
        let r = f.report(&Counts::default(), None, &Timeline::new(Relation::SameKernel), (0, 1));
        assert_eq!((r.unplaced, r.missing.len(), r.segments[0].times.count, r.round_trip.count), (1, 0, 0, 1));
    }

    fn figures(options: &FigureOptions) -> Figures {
        let mut figures = Figures::new(options);
        figures.set_route(Stamp::T2App.bit() | Stamp::T3App.bit());
        figures
    }

    #[test]
    fn times_beyond_the_histogram_and_the_worst_ones_are_kept_exactly() {
        let mut f = figures(&FigureOptions {
            drawn: Some(HistogramAxis { bucket: 300, end: 1_000 }),
            threshold: Some(5_000),
            row_limits: vec![900],
            worst: 2,
        });
        for (i, rtt) in [100, 7_777, 999, 1_000, 5_000].into_iter().enumerate() {
            f.add(&transaction(i as u64, rtt, 10), End::Answered);
        }
        f.add(&transaction(9, 9_999, 10), End::Lost);
        let r = f.report(&Counts::default(), None, &Timeline::new(Relation::SameKernel), (0, 1));
        let kept: Vec<_> = r.overflow.iter().map(|k| (k.sequence, k.round_trip_ns)).collect();
        assert_eq!(kept, [(1, 7_777), (4, 5_000), (3, 1_000)]);
        let buckets: Vec<_> = r.histogram.iter().map(|b| (b.from_ns, b.to_ns, b.count)).collect();
        assert_eq!(buckets, [(0, 300, 1), (900, 1_000, 1)]);
        assert_eq!((r.overflown, r.over_threshold, r.round_trip.count), (3, 1, 5));
        // Probe 9 does not follow probe 4, so it does not continue the run of consecutive probes.
        assert_eq!((r.consecutive, r.consecutive_over), (1, vec![(900, 4)]));
        assert_eq!(r.worst.iter().map(|w| w.sequence).collect::<Vec<_>>(), [1, 4]);
        assert_eq!((r.round_trip.max_ns, r.round_trip.min_ns), (7_777, 100));
        assert_eq!((r.round_trip.max_sequence, r.round_trip.min_sequence), (Some(1), Some(0)));
    }

    #[test]
    fn the_blamed_segment_is_the_one_beyond_its_median() {
        let mut f = figures(&FigureOptions { worst: 1, ..FigureOptions::default() });
        (0..100).for_each(|i| f.add(&transaction(i, 10_000, 100), End::Answered));
        f.add(&transaction(100, 13_000, 3_100), End::Answered);
        let r = f.report(&Counts::default(), None, &Timeline::new(Relation::SameKernel), (0, 1));
        assert_eq!(r.worst[0].longest.as_deref(), Some("processing"));
    }

    #[test]
    fn missing_stamps_are_counted_and_their_segments_omitted() {
        let mut f = Figures::new(&FigureOptions::default());
        f.set_route(Stamp::T2App.bit() | Stamp::T3App.bit() | Stamp::T1Nic.bit());
        f.add(&transaction(0, 1_000, 100), End::Answered);
        let r = f.report(&Counts::default(), None, &Timeline::new(Relation::SameKernel), (0, 1));
        assert_eq!(r.missing, [Missing { stamp: Stamp::T1Nic, count: 1 }]);
        let counts: Vec<u64> = r.segments.iter().map(|p| p.times.count).collect();
        assert_eq!(counts, [0, 0, 1, 1], "the two segments at T1 nic have no time");
    }

    #[test]
    fn the_warm_up_leaves_nothing() {
        let drawn = Some(HistogramAxis { bucket: 1, end: 0 });
        let mut f = figures(&FigureOptions { worst: 3, drawn, threshold: Some(0), ..FigureOptions::default() });
        f.add(&transaction(0, 1_000, 100), End::Answered);
        f.clear();
        let r = f.report(&Counts::default(), None, &Timeline::new(Relation::SameKernel), (0, 1));
        assert_eq!((r.round_trip.count, r.over_threshold, r.overflown, r.worst.len()), (0, 0, 0, 0));
        assert_eq!(r.consecutive, 0);
    }
}
