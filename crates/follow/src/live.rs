//! Live figures of this machine alone: the kernel joins and counts, user space reads the results once a second.

use crate::by_path::ByPath;
use crate::cost::CostMeter;
use crate::counted::Counted;
use crate::flight::Flight;
use crate::follow::{FollowError, Options};
use crate::layout::Layout;
use crate::over::{Ends, Over};
use crate::span::SETTLE;
use crate::tables::{PointFilter, MAX_POINTS};
use latpath_capture::RankedCapture;
use latpath_flight::Figures;
use latpath_journey::{Journey, Paths, RouteFinder, Segment, Sequence};
use latpath_linux::monotonic;
use latpath_model::{DropNote, KeyRule, Ns, PointId, PointInfo, PointKind, Source, StreamId, HOST};
use latpath_probe::{LiveStream, Mode, Options as ProbeOptions, Probe};
use latpath_stats::figures::{rate, together};
use latpath_stats::kernel::KernelHistogram;
use latpath_stats::lost::explain;
use latpath_stats::{MachineFigures, SegmentFigures, StreamFigures, Summary};

/// Journeys that the route is found from, of each stream and at each look.
const SAMPLE: usize = 256;
/// Packets by which the order of a stream may differ between two points.
const REORDER: u64 = 256;
/// How often the route is looked at, and looked for.
const LOOK_EVERY: Ns = 1_000_000_000;
const SEARCH_EVERY: Ns = 100_000_000;
/// Journeys this young may still be on their way.
const YOUNG: Ns = 50_000_000;

/// Streams being counted by the kernel. Dropping it detaches the programs.
pub struct Live {
    options: Options,
    probe: Probe,
    finder: RouteFinder,
    layout: Layout,
    /// Pairs of points between which the kernel counts times; segments with the same ends share one.
    counted: Vec<(PointId, PointId)>,
    baseline: Vec<LiveStream>,
    since: Ns,
    look_due: Ns,
    meter: CostMeter,
    before: Counted,
    orders: Vec<Order>,
    flight: Option<(Flight, Over)>,
    begin: Ns,
}

/// The order of one stream's keys, which tells what no point saw.
struct Order {
    sequence: Option<Sequence>,
    /// The last journey that it has taken.
    taken: u32,
    /// Never seen before it was begun anew, and at the last reset.
    earlier: u64,
    baseline: u64,
}

impl Order {
    fn new(rule: KeyRule) -> Self {
        Self { sequence: Sequence::new(rule, REORDER), taken: 0, earlier: 0, baseline: 0 }
    }

    fn never_seen(&self) -> u64 {
        self.earlier + self.sequence.as_ref().map_or(0, Sequence::never_seen)
    }
}

impl Live {
    /// Attaches the programs.
    ///
    /// # Errors
    /// Where this machine cannot trace, or the streams cannot be followed.
    pub fn start(options: Options) -> Result<Self, FollowError> {
        let mut probe = ProbeOptions::new(HOST, options.streams.clone(), Mode::Live);
        (probe.window, probe.threshold) = (options.window, options.threshold);
        probe.keep_who = options.flight.is_some();
        let streams = options.streams.len();
        let flight = options.flight.as_ref().map(|f| (Flight::start(f, options.window, streams), Over::new(streams)));
        Ok(Self {
            flight,
            probe: Probe::attach(probe)?,
            finder: RouteFinder::default(),
            layout: Layout::default(),
            counted: Vec::new(),
            baseline: vec![LiveStream::default(); streams],
            since: monotonic(),
            look_due: Ns::MIN,
            meter: CostMeter::new(),
            before: Counted::begin(),
            orders: options.streams.iter().map(|s| Order::new(s.key)).collect(),
            begin: monotonic() + SETTLE,
            options,
        })
    }

    /// One round: looks for points and the route, often until they are known, then once a second.
    pub fn step(&mut self) {
        self.take_keys();
        let now = monotonic();
        self.freeze(now);
        if now < self.look_due {
            return;
        }
        self.look();
        self.look_due = now + if self.counted.is_empty() { SEARCH_EVERY } else { LOOK_EVERY };
    }

    /// One round of what is to be frozen.
    fn freeze(&mut self, now: Ns) {
        let Self { flight: Some((flight, over)), probe, layout, options, begin, .. } = self else { return };
        let points = probe.points().unwrap_or_else(|never| match never {});
        let mask = |points: &[PointId]| points.iter().fold(0, |set, p| set | 1 << p);
        let lines: Vec<u64> = (0..options.streams.len()).map(|id| mask(layout.route.line_of(id as StreamId))).collect();
        let ends = Ends { now, window: options.window, wanted: wanted(&options.points, &points) };
        let reached = over.take(probe, ends, &lines, &mut |journey| {
            if journey.seen != 0 && journey.first().is_some_and(|t| t >= *begin) {
                flight.take(journey);
            }
        });
        flight.round(now, reached, &mut []);
    }

    /// A capture that has been frozen. Each is told once; take them each round.
    pub fn next_capture(&mut self) -> Option<RankedCapture> {
        self.flight.as_mut()?.0.next_capture()
    }

    /// How this machine's flight recorder does, or why it does not; nothing where none was asked for.
    pub fn flight(&self) -> Option<Result<Figures, String>> {
        self.flight.as_ref().map(|(flight, _)| flight.figures())
    }

    /// Late packets of each stream, where a flight recorder was asked for.
    pub fn late(&self) -> Option<&[u64]> {
        self.flight.as_ref().map(|(flight, _)| flight.counted().late.as_slice())
    }

    /// Looks at the keys of new journeys for gaps.
    fn take_keys(&mut self) {
        for (id, order) in self.orders.iter_mut().enumerate() {
            let Some(sequence) = &mut order.sequence else { continue };
            let first = self.layout.route.line_of(id as StreamId).first().map_or(u64::MAX, |p| 1 << p);
            let (skipped, taken) = self.probe.live_since(id as StreamId, order.taken, &mut |key, t, seen| {
                if seen & first != 0 {
                    sequence.lead(key, t);
                } else {
                    sequence.follow(key, t);
                }
            });
            order.taken = taken;
            if skipped > 0 {
                // More came than the kernel's table holds: what is between says nothing about gaps.
                order.earlier += sequence.never_seen();
                order.sequence = Sequence::new(self.options.streams[id].key, REORDER);
            }
        }
    }

    /// Figures begin anew when the way changes.
    fn look(&mut self) {
        let points = self.points();
        let wanted = wanted(&self.options.points, &points);
        let nothing = [0; MAX_POINTS];
        for j in self.probe.live_journeys(SAMPLE, YOUNG) {
            let (cpu, tid) = (&[0_u16; MAX_POINTS][..], &[0_u32; MAX_POINTS][..]);
            let mut t = nothing;
            t[..j.t.len()].copy_from_slice(&j.t);
            let journey = Journey {
                stream: j.stream,
                key: j.key,
                number: u64::from(j.number),
                seen: j.seen & wanted,
                t: &t,
                cpu,
                tid,
                duplicates: 0,
                out_of_order: false,
                drop_note: 0,
            };
            if journey.seen != 0 {
                self.finder.observe(&journey);
            }
        }
        let layout = Layout::new(self.finder.route(&points), &points, &self.options.segments);
        let same = layout.segments == self.layout.segments && layout.route.lines == self.layout.route.lines;
        let more = layout.only_adds_to(&self.layout);
        self.layout = layout;
        if same {
            return;
        }
        if let Some((flight, _)) = &mut self.flight {
            let lines = self.layout.route.lines_of(self.options.streams.len());
            flight.detector.set_layout(&self.layout.segments, &lines);
        }
        // What is counted goes on where segments only come on top: a first upcall after hours must not cost the hours.
        let mut ends = if more { std::mem::take(&mut self.counted) } else { Vec::new() };
        let kept = ends.len();
        for segment in &self.layout.segments {
            if !ends.contains(&(segment.from, segment.to)) {
                ends.push((segment.from, segment.to));
            }
        }
        ends.truncate(self.probe.set_segments(&ends, kept));
        self.counted = ends;
        if !more {
            self.reset();
        }
    }

    /// Starts all figures anew.
    pub fn reset(&mut self) {
        self.since = self.probe.count_anew();
        self.baseline = self.probe.live_streams();
        self.before = Counted::begin();
        self.orders.iter_mut().for_each(|order| order.baseline = order.never_seen());
    }

    /// The route and the segments as they are known now.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Packets of a stream seen since the programs were attached.
    pub fn seen(&mut self) -> Vec<u64> {
        self.probe.live_streams().iter().map(|s| s.journeys).collect()
    }

    /// The points found so far.
    pub fn points(&mut self) -> Vec<PointInfo> {
        self.probe.points().unwrap_or_else(|never| match never {})
    }

    /// All figures as of now.
    pub fn summary(&mut self) -> Summary {
        let now = monotonic();
        let points = self.points();
        let streams = self.probe.live_streams();
        let notes = self.probe.drop_notes().unwrap_or_else(|never| match never {});
        let elapsed = (now - self.since).max(1);
        let counters = self.probe.counters().unwrap_or_else(|never| match never {});
        let mut summary = Summary {
            elapsed_ns: elapsed,
            threshold_ns: self.options.threshold,
            points: self.layout.line(&points),
            aside: self.layout.aside(&points),
            malformed: counters.malformed,
            machines: vec![MachineFigures { machine: HOST.into(), method: "same clock".into(), ..Default::default() }],
            tool: self.meter.read(&counters, &counters, self.flight().and_then(Result::ok).as_ref()),
            notes: self.notes(&points, &streams, counters),
            ..Default::default()
        };
        let shown: Vec<_> = self.layout.segments.iter().filter_map(|s| Some((s, self.counts(s)?))).collect();
        let mut of_all = vec![KernelHistogram::default(); self.counted.len()];
        let paths = Paths::of_points(&points);
        let mut paths_of_all = ByPath::new(paths, of_all.len());
        for (id, (stream, baseline)) in streams.iter().zip(&self.baseline).enumerate() {
            let line = self.layout.route.line_of(id as StreamId);
            let mut figures = Counts { points: &points, notes: &notes, line, paths }.of(stream, baseline);
            figures.stream = self.options.streams[id].to_string();
            figures.points = line.iter().map(|p| points[usize::from(*p)].point.clone()).collect();
            figures.never_seen = self.orders[id].never_seen().saturating_sub(self.orders[id].baseline);
            let mut by_path = ByPath::new(paths, of_all.len());
            by_path.count(stream, line);
            by_path.take(&self.probe, id as StreamId);
            let histograms = by_path.all_paths();
            of_all.iter_mut().zip(&histograms).for_each(|(all, own)| all.merge(own));
            for (segment, at) in &shown {
                let is_on_way = line.contains(&segment.from) && line.contains(&segment.to);
                if is_on_way || histograms[*at].count > 0 {
                    figures.segments.push(row(segment, &histograms[*at], &points, elapsed));
                }
            }
            figures.paths = by_path.figures(&shown, |s, h| row(s, h, &points, elapsed));
            paths_of_all.merge(&by_path);
            summary.journeys += figures.journeys;
            summary.complete += figures.complete;
            summary.incomplete += figures.incomplete;
            summary.duplicates += figures.duplicates;
            summary.out_of_order += figures.out_of_order;
            summary.streams.push(figures);
        }
        let lost = summary.streams.iter().flat_map(|s| &s.lost);
        summary.lost = together(lost.map(|l| ((l.place.clone(), l.reason.clone()), l.count)));
        summary.segments = shown.iter().map(|(s, at)| row(s, &of_all[*at], &points, elapsed)).collect();
        if !summary.lost.is_empty() {
            explain(&mut summary, &points, Some(&self.before.since(&points)));
        }
        summary.paths = paths_of_all.figures(&shown, |s, h| row(s, h, &points, elapsed));
        summary
    }

    /// Where the kernel counts a segment's times, if it does.
    fn counts(&self, segment: &Segment) -> Option<usize> {
        self.counted.iter().position(|ends| *ends == (segment.from, segment.to))
    }

    fn notes(&self, points: &[PointInfo], streams: &[LiveStream], counters: latpath_model::Counters) -> Vec<String> {
        let mut notes = self.probe.abilities().notes();
        if let Some(Err(why)) = self.flight() {
            notes.push(format!("no flight recorder, so nothing tells why packets are late: {why}"));
        }
        notes.extend(self.layout.notes.iter().cloned());
        let left_out = self.layout.segments.iter().filter(|s| self.counts(s).is_none()).count();
        if left_out > 0 && !self.counted.is_empty() {
            notes.push(format!("{left_out} segments more than the kernel counts at once: narrow with --points"));
        }
        let late: u64 = streams.iter().map(|s| s.late).sum();
        if late > 0 {
            notes.push(format!("{late} sightings came later than the window after their packet's first"));
        }
        for (count, what) in [
            (counters.points_overflow, "sightings found no room in the kernel's table of points: narrow with --points"),
            (counters.unreadable, "frames lay in memory that this kernel does not let us read"),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        }
        notes.extend(
            self.options.points.unmatched(points).iter().map(|p| format!("--points {p}: no packet was seen there yet")),
        );
        notes
    }

    /// Takes the programs off; the figures stay.
    pub fn detach(&mut self) {
        self.probe.detach();
    }
}

/// The points that count, as a set.
fn wanted(filter: &PointFilter, points: &[PointInfo]) -> u64 {
    let all = points.iter().enumerate().filter(|(_, p)| filter.wants(p));
    all.fold(0, |set, (id, _)| set | 1 << id)
}

/// A segment's figures.
fn row(s: &Segment, histogram: &KernelHistogram, points: &[PointInfo], elapsed: Ns) -> SegmentFigures {
    let name = |id: PointId| points[usize::from(id)].point.to_string();
    SegmentFigures {
        kind: s.kind,
        name: s.name.clone(),
        from: name(s.from),
        to: name(s.to),
        rate_hz: rate(histogram.count, elapsed),
        ..histogram.figures()
    }
}

/// Counts journeys by what became of them.
struct Counts<'a> {
    points: &'a [PointInfo],
    notes: &'a [DropNote],
    line: &'a [PointId],
    paths: Paths,
}

impl Counts<'_> {
    fn of(&self, now: &LiveStream, before: &LiveStream) -> StreamFigures {
        let mut figures = StreamFigures {
            duplicates: now.duplicates - before.duplicates,
            out_of_order: now.out_of_order - before.out_of_order,
            ..Default::default()
        };
        let line: u64 = self.line.iter().fold(0, |set, p| set | 1 << p);
        let Some(sink) = self.line.last() else { return figures };
        let mut lost = Vec::new();
        let arrived = |seen: u64| seen >> sink & 1 == 1;
        let ended = now.ended.iter().map(|(seen, n)| (*seen, *n, true));
        // Of those under way, the complete ones are over.
        let open = now.open.iter().map(|(seen, n)| (*seen, *n, false));
        let all: Vec<_> = ended.chain(open).collect();
        // Bridges flood frames, and give up copies of those that arrive all the same: a drop that most packets survived
        // explains no loss.
        let with = |point: PointId, there: bool| -> u64 {
            let counts = |(seen, _, over): &&(u64, u64, bool)| {
                seen >> point & 1 == 1 && arrived(*seen) == there && (there || *over)
            };
            all.iter().filter(counts).map(|(_, n, _)| n).sum()
        };
        let explains: u64 = (0..self.points.len().min(MAX_POINTS) as PointId)
            .filter(|p| self.points[usize::from(*p)].point.kind == PointKind::Drop && with(*p, true) < with(*p, false))
            .fold(0, |set, p| set | 1 << p);
        for (seen, n, over) in &all {
            let (seen, n) = (*seen, *n);
            if seen & line == line {
                figures.complete += n;
            } else if *over && arrived(seen) {
                figures.incomplete += n;
            } else if *over && n > 0 {
                let last = self.line.iter().rev().find(|p| seen >> **p & 1 == 1);
                let last = last.map(|last| self.paths.furthest(seen, *last));
                lost.extend(last.map(|last| ((self.name(last), self.reason(seen & explains, now)), n)));
            }
        }
        figures.lost = together(lost.into_iter());
        figures.journeys = figures.complete + figures.incomplete + figures.lost.iter().map(|l| l.count).sum::<u64>();
        figures
    }

    fn name(&self, id: PointId) -> String {
        self.points[usize::from(id)].point.to_string()
    }

    /// The commonest drop at these points.
    fn reason(&self, seen: u64, stream: &LiveStream) -> Option<String> {
        let here = stream.drops.iter().filter(|((point, _), _)| seen >> point & 1 == 1);
        let ((_, note), _) = here.max_by_key(|(_, n)| **n)?;
        let note = self.notes.get(usize::from(*note).checked_sub(1)?)?;
        Some(format!("{} in {}", note.reason, note.function))
    }
}
