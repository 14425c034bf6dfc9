//! Figures of consecutive intervals of a run, all of the same length: `--every 1min`.

use crate::Analysis;
use latpath_model::Ns;
use latpath_run::Select;
use latpath_stats::figures::packets;
use latpath_stats::{Aggregate, Batches, IntervalFigures, Setup};

/// Maximum number of intervals of a run.
const MAX: Ns = 10_000;

/// Figures of the intervals from the first packet's interval to the last packet's, including empty ones. Intervals are
/// numbered from the run's start.
///
/// # Errors
/// If there are more than `MAX` intervals, or the run was imported from durations alone, so that its times of day are
/// made up.
pub(crate) fn intervals(analysis: &Analysis) -> Result<Vec<IntervalFigures>, String> {
    let Analysis { run, options, manifest, .. } = analysis;
    let Some((every, (first, last))) = options.every.zip(analysis.span(&options.select)) else { return Ok(Vec::new()) };
    if manifest.has_durations_alone() {
        return Err("--every: the run was imported from durations alone, which do not say when they were".into());
    }
    let start = manifest.start.monotonic_ns;
    // Times before the run's start (because of a wrong clock, or computed from a sample) belong to the first interval.
    let number = |t: Ns| t.saturating_sub(start).max(0) / every;
    let many = number(last).saturating_sub(number(first)).saturating_add(1);
    if many > MAX {
        return Err(format!(
            "--every: the run has {many} intervals of this length; at most {MAX} are shown, so choose a longer one"
        ));
    }
    let setup = Setup { worst: 0, ..analysis.setup.clone() };
    let (time_of_day, workers) = (manifest.time_of_day(), analysis.workers());
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
        let mut summary = latpath_stats::summarise(&all, &analysis.facts(false, every));
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
