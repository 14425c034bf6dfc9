//! Figures of equal intervals of a run, one after the other: `--every 1min`.

use crate::layout::layout_of;
use crate::summarise::{setup_of, span, with_sampled_bounds, workers, SummaryOptions};
use latpath_model::Ns;
use latpath_run::{Run, Select};
use latpath_stats::figures::packets;
use latpath_stats::{Aggregate, Batches, Facts, IntervalFigures};

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
