//! From a run to its figures.

use crate::intervals::intervals;
use crate::layout::layout_of;
use crate::warnings::warnings;
use latpath_journey::{Layout, Segment};
use latpath_model::Ns;
use latpath_run::{Deficiency, DeficiencyKind, Manifest, Rows, Run, Select, Spans, CLOCKS};
use latpath_stats::figures::packets;
use latpath_stats::{
    units::{count, number_of},
    Aggregate, Band, Batch, Batches, Facts, Found, Pacing, PatternKind, Patterns, Setup, Summary, WithoutPatterns,
    Worst,
};

/// Histograms that all workers together may hold: each takes some 20 KiB.
const HISTOGRAMS: usize = 8192;

/// What to find out about a run.
#[derive(Clone, Debug, Default)]
pub struct SummaryOptions {
    /// Which journeys count.
    pub select: Select,
    /// Times over this are counted; what the recording said where there is none.
    pub threshold_ns: Option<Ns>,
    /// The longest rows of packets that took longer than each of these are found too.
    pub row_limits: Vec<Ns>,
    /// Times in it are counted too.
    pub band: Option<Band>,
    /// So many of the worst packets are shown.
    pub worst: usize,
    /// Further segments; see [`layout_of`].
    pub segments: Vec<String>,
    /// The figures are also computed without the packets that patterns of these kinds touch.
    pub exclude: Vec<PatternKind>,
    /// The figures are also computed for each interval of this length.
    pub every: Option<Ns>,
    /// Threads that read; 0 is one.
    pub workers: usize,
}

/// Computes all figures of a run.
///
/// What is damaged is passed over, and in the summary's notes.
///
/// # Errors
/// Where one of the user's segments or intervals cannot be.
pub fn summarise(run: &Run, options: &SummaryOptions) -> Result<Summary, String> {
    let intervals = intervals(run, options)?;
    let mut gathered = gather(run, options, true, |_| Ok(()), |_| (), |(), _| ())?;
    gathered.summary.without = without(run, options, &gathered.summary, &gathered.patterns)?;
    gathered.summary.intervals = intervals;
    Ok(gathered.summary)
}

/// The figures without the packets that the patterns touch which the user names, if any are named.
pub(crate) fn without(
    run: &Run,
    options: &SummaryOptions,
    with: &Summary,
    found: &[Found],
) -> Result<Option<WithoutPatterns>, String> {
    if options.exclude.is_empty() {
        return Ok(None);
    }
    let (patterns, except) = touched(found, &options.exclude);
    let select = Select { except, ..options.select.clone() };
    let options = SummaryOptions { select, worst: 0, ..options.clone() };
    let rest = gather(run, &options, false, |_| Ok(()), |_| (), |(), _| ())?.summary;
    let lost = |summary: &Summary| packets(&summary.lost);
    Ok(Some(WithoutPatterns {
        kinds: options.exclude,
        patterns,
        packets: with.journeys.saturating_sub(rest.journeys),
        lost: lost(with).saturating_sub(lost(&rest)),
        segments: rest.segments,
    }))
}

/// How many patterns of these kinds there are, and what they touch.
pub(crate) fn touched(found: &[Found], kinds: &[PatternKind]) -> (u64, Spans) {
    let named: Vec<&Found> = found.iter().filter(|f| kinds.contains(&f.pattern.kind)).collect();
    let touched = named.iter().flat_map(|f| &f.touched);
    let spans = touched.flat_map(|t| t.streams.iter().map(|stream| (*stream, t.from, t.to)));
    (named.len() as u64, Spans::of(spans))
}

/// The figures of a run, and what else was gathered while its journeys were read.
pub(crate) struct Gathered<G> {
    pub summary: Summary,
    pub counted: Aggregate,
    /// The patterns of the summary, and the packets that they touch.
    pub patterns: Vec<Found>,
    pub more: Vec<G>,
}

/// What a worker counts only for a report.
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

/// The same, with pacing and patterns (for a `report`) or without, over the segments that `choose` leaves; each batch of journeys also goes
/// to the gatherers of the caller, of which each worker makes one.
pub(crate) fn gather<G: Send>(
    run: &Run,
    options: &SummaryOptions,
    report: bool,
    choose: impl FnOnce(&mut Vec<Segment>) -> Result<(), String>,
    make: impl Fn(&Setup) -> G + Sync,
    add: impl Fn(&mut G, &Batch) + Sync,
) -> Result<Gathered<G>, String> {
    let mut layout = layout_of(run, &options.segments)?;
    choose(&mut layout.segments)?;
    let points = run.points();
    let setup = setup_of(run, options, &layout);
    let Layout { route, notes, .. } = layout;
    let workers = workers(options, &setup);
    let select = Select { cpus_and_threads: false, ..options.select.clone() };
    let (first, last) = span(run, &select).unwrap_or_default();
    let of_report = || {
        let (pacing, patterns) = (Pacing::new(setup.streams, points.len()), Patterns::new(&setup, first, last));
        // What is found over time needs times.
        (report && !run.manifest().has_durations_alone()).then_some(OfReport { pacing, patterns })
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

    let mut unread = Vec::new();
    let manifest = &with_sampled_bounds(run, &mut unread);
    let whole = select.is_everything();
    let vms = run.vms();
    let elapsed = elapsed(run, &select);
    let facts = Facts { manifest, points, route: &route, before: &[], whole, vms: &vms, elapsed };
    let mut summary = latpath_stats::summarise(&all, &facts);
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
    summary.notes.extend(notes);
    let mut damaged: Vec<_> = scan.damaged.iter().map(ToString::to_string).collect();
    damaged.retain(|damage| !run.notes().contains(damage));
    // Which worker found it first is chance.
    damaged.sort();
    if all.strays() > 0 {
        let strays = count(all.strays());
        damaged.push(format!("{strays} journeys of streams that the manifest does not name are left out"));
    }
    let of_run = run.deficiencies().iter().filter(|one| !manifest.deficiencies.contains(one)).cloned();
    let found = damaged.into_iter().map(|text| Deficiency::new(DeficiencyKind::Damaged, text)).chain(unread);
    let found: Vec<_> = found.collect();
    summary.notes.extend(found.iter().map(|one| one.text.clone()));
    summary.deficiencies.splice(0..0, of_run.chain(found).collect::<Vec<_>>());
    if !whole {
        let text =
            "only some journeys were chosen; never seen, malformed, sightings and cost are those of the whole run";
        summary.notes.push(text.into());
    }
    Ok(Gathered { summary, counted: all, patterns, more })
}

/// How many threads may read, by the memory that their histograms take.
pub(crate) fn workers(options: &SummaryOptions, setup: &Setup) -> usize {
    let histograms = (setup.streams * setup.segments.len()).max(1);
    options.workers.clamp(1, (HISTOGRAMS / histograms).max(1))
}

pub(crate) fn setup_of(run: &Run, options: &SummaryOptions, layout: &Layout) -> Setup {
    let manifest = run.manifest();
    let threshold = options.threshold_ns.unwrap_or(manifest.threshold_ns);
    let setup = Setup::new(manifest.streams.len(), run.points(), layout, threshold, options.worst);
    Setup { row_limits: options.row_limits.clone(), band: options.band, ..setup }
}

/// The slowest packet that was counted, as a summary shows it.
pub(crate) fn slowest(run: &Run, options: &SummaryOptions, counted: &Aggregate) -> Option<Worst> {
    let (layout, vms) = (layout_of(run, &options.segments).ok()?, run.vms());
    let (manifest, points, route) = (run.manifest(), run.points(), &layout.route);
    let facts = Facts { manifest, points, route, before: &[], whole: false, vms: &vms, elapsed: 0 };
    latpath_stats::summarise(counted, &facts).worst.into_iter().next()
}

/// Reads CPUs and threads of the worst packets alone: to read those of all would take as long again.
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
            // Each is there once, unless somebody forged the run.
            if rows.len() < slowest.len() && slowest.iter().any(is_it) {
                rows.push(journey);
            }
        },
    );
    details.gathered.iter().for_each(|rows| rows.for_each(|journey| all.detail(journey)));
}

/// First sightings of the first journey and of the last, as far as they were chosen; none in an empty run.
pub(crate) fn span(run: &Run, select: &Select) -> Option<(Ns, Ns)> {
    let (first, last) = run.times()?;
    Some((select.from_ns.max(first), select.to_ns.min(last)))
}

/// The time from the first journey to the last, as far as it was chosen; rates are over it.
fn elapsed(run: &Run, select: &Select) -> Ns {
    span(run, select).map_or(0, |(first, last)| last.saturating_sub(first).max(0))
}

/// The run's manifest, with each machine's largest clock error of all samples: after a crash the samples are newer.
pub(crate) fn with_sampled_bounds(run: &Run, unread: &mut Vec<Deficiency>) -> Manifest {
    let mut manifest = run.manifest().clone();
    let read = run.for_each_clock_sample(|sample| {
        let machine = manifest.machines.iter_mut().map(|m| &mut m.clock).find(|m| m.machine == sample.clock);
        machine.into_iter().for_each(|m| m.error_bound_ns = m.error_bound_ns.max(sample.error_bound_ns));
    });
    let why = match read {
        Ok(0) => None,
        Ok(n) => {
            let are = if n == 1 { "is" } else { "are" };
            Some(format!("{CLOCKS}: {} {are} damaged; error bounds may be too small", number_of(n, "line")))
        }
        Err(error) => Some(error.to_string()),
    };
    unread.extend(why.map(|text| Deficiency::new(DeficiencyKind::Clock, text)));
    manifest
}
