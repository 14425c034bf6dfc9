//! Figures of equal intervals of a run, one after the other: `--every 1min`.

use crate::histogram;
use crate::layout::layout_of;
use crate::page::Page;
use crate::segments::percentile;
use crate::summarise::{setup_of, span, with_sampled_bounds, workers, SummaryOptions};
use latpath_model::Ns;
use latpath_run::{Run, Select};
use latpath_stats::figures::packets;
use latpath_stats::text::Table;
use latpath_stats::units::elapsed;
use latpath_stats::{Aggregate, Batches, Facts, IntervalFigures, Summary};

/// Most intervals of a run.
const MOST: Ns = 10_000;

/// The figures of each interval, counted from the run's start, from that of the first packet to that of the last; those in which no
/// packet came too.
///
/// # Errors
/// Where there are too many, and of a run that was made of durations alone: its times of day are made.
pub(crate) fn intervals(run: &Run, options: &SummaryOptions) -> Result<Vec<IntervalFigures>, String> {
    let Some((every, (first, last))) = options.every.zip(span(run, &options.select)) else { return Ok(Vec::new()) };
    if run.manifest().has_durations_alone() {
        return Err("--every: the run was imported from durations alone, which do not say when they were".into());
    }
    // What cannot be read is in the notes of the whole run.
    let (manifest, points) = (&with_sampled_bounds(run, &mut Vec::new()), run.points());
    let start = manifest.start.monotonic_ns;
    // What a clock puts before the start, or was sampled before it, is of the first interval.
    let number = |t: Ns| t.saturating_sub(start).max(0) / every;
    let many = number(last).saturating_sub(number(first)).saturating_add(1);
    if many > MOST {
        return Err(format!(
            "--every: the run has {many} intervals of this length; at most {MOST} are shown, so choose a longer one"
        ));
    }
    let layout = layout_of(run, &options.segments)?;
    let setup = setup_of(run, &SummaryOptions { worst: 0, ..options.clone() }, &layout);
    let (vms, time_of_day, workers) = (run.vms(), manifest.time_of_day(), workers(options, &setup));
    let one = |number: Ns| {
        let from = start.saturating_add(number.saturating_mul(every));
        let whole = Select { cpus_and_threads: false, ..options.select.clone() };
        let from_ns = if number == 0 { whole.from_ns } else { from.max(whole.from_ns) };
        let to_ns = from.saturating_add(every).min(whole.to_ns);
        let select = Select { from_ns, to_ns, ..whole };
        let begin = || (Batches::new(&setup), Aggregate::new(setup.clone()));
        let scan = run.scan_rows(&select, workers, begin, |(batches, counted), rows| {
            batches.each(rows, |batch| counted.add(batch));
        });
        let mut all = Aggregate::new(setup.clone());
        scan.gathered.iter().for_each(|(_, counted)| all.merge(counted));
        let facts =
            Facts { manifest, points, route: &layout.route, before: &[], whole: false, vms: &vms, elapsed: every };
        let mut summary = latpath_stats::summarise(&all, &facts);
        summary.segments.iter_mut().for_each(|segment| segment.histogram.clear());
        IntervalFigures {
            since_start_ns: from.saturating_sub(start),
            elapsed_ns: every,
            time_ns: time_of_day.utc(from),
            journeys: summary.journeys,
            lost: packets(&summary.lost),
            segments: summary.segments,
        }
    };
    Ok((number(first)..=number(last)).map(one).collect())
}

/// A row for each interval: of the segments that are named, else of `total`.
pub(crate) fn write(page: &mut Page, summary: &Summary, named: &[String]) {
    let Some(first) = summary.intervals.first() else { return };
    // Of intervals below a second, whole seconds would name several alike.
    let is_in_seconds = first.elapsed_ns % 1_000_000_000 == 0;
    let begin = |page: &Page, t: Ns| if is_in_seconds { elapsed(t) } else { page.duration(t) };
    let percentiles = ["p50", "p99", "p99.9"];
    let over = format!("over {}", page.duration(summary.threshold_ns));
    for segment in histogram::chosen(summary, named) {
        let every = page.duration(first.elapsed_ns);
        page.heading(&format!("Over time: {}, in intervals of {every}", page.clean(&segment.name)));
        let heads = [&["from", "packets", "lost"], &percentiles[..], &["max", over.as_str()]].concat();
        let mut table = Table::new(&heads);
        for interval in &summary.intervals {
            let mut row =
                vec![begin(page, interval.since_start_ns), page.count(interval.journeys), page.count(interval.lost)];
            match interval.segments.iter().find(|s| s.is_of_same(segment)).filter(|s| s.times.count > 0) {
                Some(s) => {
                    row.extend(percentiles.map(|name| percentile(page, s, name)));
                    row.extend([page.time(s, s.times.max_ns), page.count(s.over_threshold)]);
                }
                None => row.resize(heads.len(), "-".into()),
            }
            table.row(row);
        }
        page.table(&table);
    }
}
