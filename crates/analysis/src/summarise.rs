//! Computes the figures of a run.

use crate::intervals::intervals;
use crate::warnings::warnings;
use crate::{Analysis, SummaryOptions};
use latpath_model::{Ns, StreamId};
use latpath_run::{Deficiency, DeficiencyKind, Rows, Run, Select, Spans};
use latpath_stats::figures::packets;
use latpath_stats::{
    units::count, Aggregate, Batch, Batches, ClockFigures, DetectedPattern, DisorderedFigures, Pacing, PatternKind,
    Patterns, Setup, Summary, WithoutPatterns,
};

/// Computes all figures of a run; see [`Analysis::summarise`].
///
/// # Errors
/// If the run lacks the points of one of the user's segments, or cannot be divided into the requested intervals.
pub fn summarise(run: &Run, options: &SummaryOptions) -> Result<Summary, String> {
    Analysis::open(run, options.clone())?.summarise()
}

impl Analysis<'_> {
    /// Computes all figures. Skips damaged parts and lists them in the summary's notes.
    ///
    /// # Errors
    /// If the run cannot be divided into the requested intervals.
    pub fn summarise(&self) -> Result<Summary, String> {
        let intervals = intervals(self)?;
        let mut gathered = gather(self, &Reading::of_report(self), |_| (), |(), _| ());
        gathered.summary.without = without(self, &gathered.summary, &gathered.patterns);
        gathered.summary.clocks = clocks(self, gathered.summary.elapsed_ns);
        gathered.summary.intervals = intervals;
        Ok(gathered.summary)
    }
}

/// The figures without the packets that belong to the patterns excluded by the user; `None` if the user excludes none.
pub(crate) fn without(analysis: &Analysis, with: &Summary, found: &[DetectedPattern]) -> Option<WithoutPatterns> {
    let options = &analysis.options;
    if options.exclude.is_empty() {
        return None;
    }
    let (patterns, except) = touched(found, &options.exclude);
    let reading = Reading { select: Select { except, ..options.select.clone() }, worst: 0, is_report: false };
    let rest = gather(analysis, &reading, |_| (), |(), _| ()).summary;
    let lost = |summary: &Summary| packets(&summary.lost);
    Some(WithoutPatterns {
        kinds: options.exclude.clone(),
        patterns,
        packets: with.journeys.saturating_sub(rest.journeys),
        lost: lost(with).saturating_sub(lost(&rest)),
        segments: rest.segments,
    })
}

/// The clocks' figures, with separate figures for the packets seen while the clocks were disordered. `elapsed_ns` is
/// the duration of the whole report.
fn clocks(analysis: &Analysis, elapsed_ns: Ns) -> Option<ClockFigures> {
    let Analysis { run, manifest, options, .. } = analysis;
    let start = manifest.start.monotonic_ns;
    let mut figures = ClockFigures::of(run.sync(), &manifest.time_of_day(), start)?;
    let (first, last) = analysis.span(&options.select).unwrap_or_default();
    let spans = run.sync().disordered(start.saturating_add(run.elapsed_ns()));
    let spans: Vec<(Ns, Ns)> = spans.into_iter().filter(|(from, to)| *to >= first && *from <= last).collect();
    if spans.is_empty() || elapsed_ns == 0 {
        return Some(figures);
    }
    let streams = 0..manifest.streams.len().min(usize::from(StreamId::MAX)) as StreamId;
    let all = Spans::of(streams.flat_map(|stream| spans.iter().map(move |(from, to)| (stream, *from, *to))));
    let rest =
        |select: Select| gather(analysis, &Reading { select, worst: 0, is_report: false }, |_| (), |(), _| ()).summary;
    let disordered = rest(Select { only: Some(all.clone()), ..options.select.clone() });
    let in_order = rest(Select { except: all, ..options.select.clone() });
    let within = spans.iter().map(|(from, to)| (*to).min(last).saturating_sub((*from).max(first)).max(0));
    figures.disordered = Some(DisorderedFigures {
        elapsed_ns: within.fold(0, Ns::saturating_add),
        packets: disordered.journeys,
        disordered: disordered.segments,
        in_order: in_order.segments,
    });
    Some(figures)
}

/// Number of patterns of these kinds, and the spans that they cover in each stream.
pub(crate) fn touched(found: &[DetectedPattern], kinds: &[PatternKind]) -> (u64, Spans) {
    let named: Vec<&DetectedPattern> = found.iter().filter(|f| kinds.contains(&f.pattern.kind)).collect();
    let touched = named.iter().flat_map(|f| &f.touched);
    let spans = touched.flat_map(|t| t.streams.iter().map(|stream| (*stream, t.from, t.to)));
    (named.len() as u64, Spans::of(spans))
}

/// Figures of a run, and further results of the same pass.
pub(crate) struct Gathered<G> {
    /// The figures.
    pub summary: Summary,
    /// The counts behind the figures.
    pub counted: Aggregate,
    /// Patterns of the summary, with the packets that belong to them.
    pub patterns: Vec<DetectedPattern>,
    /// The caller's gatherers, one per worker.
    pub more: Vec<G>,
}

/// A worker's results that only reports need.
struct OfReport {
    pacing: Pacing,
    patterns: Patterns,
}

impl OfReport {
    fn add(&mut self, batch: &Batch) {
        self.pacing.add(batch);
        self.patterns.add(batch);
    }

    fn merge(&mut self, other: Self) {
        self.pacing.merge(other.pacing);
        self.patterns.merge(other.patterns);
    }
}

/// Which journeys to read, and which figures to compute.
pub(crate) struct Reading {
    /// The journeys to read.
    pub select: Select,
    /// Number of the worst packets to keep.
    pub worst: usize,
    /// Whether to compute pacing and patterns as well.
    pub is_report: bool,
}

impl Reading {
    /// What a report with the options of `analysis` reads and computes.
    pub fn of_report(analysis: &Analysis) -> Self {
        Self { select: analysis.options.select.clone(), worst: analysis.options.worst, is_report: true }
    }
}

/// Computes the figures. Each worker creates a gatherer with the caller's `make`, and passes each batch of journeys to
/// it with `add`.
pub(crate) fn gather<G: Send>(
    analysis: &Analysis,
    reading: &Reading,
    make: impl Fn(&Setup) -> G + Sync,
    add: impl Fn(&mut G, &Batch) + Sync,
) -> Gathered<G> {
    let Analysis { run, manifest, layout, .. } = analysis;
    let points = run.points();
    let setup = Setup { worst: reading.worst, ..analysis.setup.clone() };
    let workers = analysis.workers();
    let select = Select { cpus_and_threads: false, ..reading.select.clone() };
    let (first, last) = analysis.span(&select).unwrap_or_default();
    let of_report = || {
        let (pacing, patterns) = (Pacing::new(setup.streams, points.len()), Patterns::new(&setup, first, last));
        // Pacing and patterns need real times; those of a run imported from durations alone are made up.
        (reading.is_report && !manifest.has_durations_alone()).then_some(OfReport { pacing, patterns })
    };
    let begin = || (Batches::new(&setup), ((Aggregate::new(setup.clone()), of_report()), make(&setup)));
    let mut scan = run.scan_rows(&select, workers, begin, |(batches, ((counted, of_report), more)), rows| {
        batches.each(rows, |batch| {
            counted.add(batch);
            of_report.iter_mut().for_each(|of_report| of_report.add(batch));
            add(more, batch);
        });
    });
    let gathered = scan.gathered.drain(..).map(|(_, gathered)| gathered);
    let (parts, more): (Vec<(Aggregate, Option<OfReport>)>, Vec<G>) = gathered.unzip();
    let (mut all, mut reports) = (Aggregate::new(setup.clone()), Vec::new());
    for (counted, one) in parts {
        all.merge(&counted);
        reports.extend(one);
    }
    let of_report = reports.into_iter().reduce(|mut all, one| {
        all.merge(one);
        all
    });
    let (pacing, patterns) = of_report.map(|one| (one.pacing, one.patterns)).unzip();
    add_details(run, &select, workers, &mut all);

    let whole = select.is_everything();
    let elapsed = last.saturating_sub(first).max(0);
    let mut summary = latpath_stats::summarise(&all, &analysis.facts(whole, elapsed));
    pacing.iter().for_each(|pacing| pacing.fill(&mut summary, points));
    let names: Vec<String> = manifest.streams.iter().map(ToString::to_string).collect();
    let find = |patterns: Patterns| patterns.find(all.setup(), manifest.start.monotonic_ns, &names);
    let patterns = patterns.map_or(Vec::new(), find);
    summary.patterns = patterns.iter().map(|found| found.pattern.clone()).collect();
    summary.notes.splice(0..0, run.notes().iter().cloned());
    if let Some(selected) = &select.streams {
        let mut id = 0..;
        summary.streams.retain(|_| id.next().is_some_and(|id| selected.contains(&id)));
    }
    let spoilt = warnings(&summary);
    summary.notes.extend(spoilt);
    summary.notes.extend(layout.notes.iter().cloned());
    let mut damaged: Vec<_> = scan.damaged.iter().map(ToString::to_string).collect();
    damaged.retain(|damage| !run.notes().contains(damage));
    // Sorted, because the order depends on the workers.
    damaged.sort();
    if all.strays() > 0 {
        let strays = count(all.strays());
        damaged.push(format!("{strays} journeys of streams that the manifest does not name are left out"));
    }
    let of_run = run.deficiencies().iter().filter(|one| !manifest.deficiencies.contains(one)).cloned();
    let found = damaged.into_iter().map(|text| Deficiency::new(DeficiencyKind::Damaged, text));
    let found: Vec<_> = found.chain(analysis.unread.iter().cloned()).collect();
    summary.notes.extend(found.iter().map(|one| one.text.clone()));
    summary.deficiencies.splice(0..0, of_run.chain(found).collect::<Vec<_>>());
    if !whole {
        let text =
            "only some journeys were chosen; never seen, malformed, sightings and cost are those of the whole run";
        summary.notes.push(text.into());
    }
    Gathered { summary, counted: all, patterns, more }
}

/// Adds the CPUs and threads of the worst packets in a second pass: reading them for all packets would double the time.
fn add_details(run: &Run, select: &Select, workers: usize, all: &mut Aggregate) {
    let slowest = all.slowest();
    if slowest.is_empty() || !run.manifest().imported.is_empty() {
        return;
    }
    let times = slowest.iter().map(|(_, _, first)| *first).collect();
    let select = select.clone().first_seen_at(times).with_cpus_and_threads();
    let details = run.scan(
        &select,
        workers,
        || Rows::new(run.points().len()),
        |rows, journey| {
            let is_it = |(stream, number, _): &_| (*stream, *number) == (journey.stream, journey.number);
            // The limit only matters for a forged run: otherwise, each packet occurs once.
            if rows.len() < slowest.len() && slowest.iter().any(is_it) {
                rows.push(journey);
            }
        },
    );
    details.gathered.iter().for_each(|rows| rows.for_each(|journey| all.detail(journey)));
}
