//! Times over the course of the runs of each cell, for charts.

use crate::engine::StudyError;
use crate::folder::{Folder, Outcome};
use crate::plan::Plan;
use crate::schedule::{Cell, Trial};
use latpath_analysis::{Analysis, SummaryOptions};
use latpath_model::Ns;
use latpath_run::Run;
use latpath_stats::Slot;
use std::path::Path;

/// Maximum number of points per run.
const POINTS: usize = 240;

/// Times of a segment in one interval of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Minimum, ns.
    pub min_ns: Ns,
    /// Arithmetic mean, ns.
    pub mean_ns: f64,
    /// Maximum, ns.
    pub max_ns: Ns,
}

/// Times over the course of a run, in intervals of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSeries {
    /// Repetition, counted from 1.
    pub repetition: u32,
    /// Times by interval; `None` for an interval without packets.
    pub points: Vec<Option<Point>>,
}

/// Reads the times over the course of all runs: for each cell of the table, its runs in the order of repetitions. Runs
/// that cannot be read are omitted; the table has notes on them.
///
/// # Errors
/// If the directory contains no study, or its files cannot be read.
pub fn series(folder: &Path) -> Result<Vec<Vec<RunSeries>>, StudyError> {
    let folder = Folder::read(folder)?;
    let (plan, seed) = folder.stored()?.ok_or_else(|| StudyError::NoStudy(folder.path().into()))?;
    let done = folder.done(&plan, &Trial::all(&plan, seed))?;
    let of_cell = |cell: &Cell| {
        let complete = done.iter().filter(|(t, record)| t.cell == *cell && record.outcome == Outcome::Complete);
        let read = |(trial, record): &(Trial, crate::TrialRecord)| {
            let points = course(&plan, &folder.run(&record.trial))?;
            Some(RunSeries { repetition: trial.repetition, points })
        };
        complete.filter_map(read).collect()
    };
    Ok(Cell::all(&plan).iter().map(of_cell).collect())
}

fn course(plan: &Plan, run: &Path) -> Option<Vec<Option<Point>>> {
    let run = Run::open(run).ok()?;
    let options = SummaryOptions { threshold_ns: Some(plan.threshold_ns()), ..SummaryOptions::default() };
    let (summary, charts) = Analysis::open(&run, options).ok()?.summarise_with_charts().ok()?;
    let segment = plan.segment();
    let is_it = |figures: usize| summary.segments.get(figures).is_some_and(|figures| figures.name == segment);
    let charted = charts.segments.into_iter().find(|charted| is_it(charted.figures))?;
    Some(charted.slots.chunks(charted.slots.len().div_ceil(POINTS).max(1)).map(point).collect())
}

/// Combines the times of several slots; `None` without packets.
fn point(slots: &[Slot]) -> Option<Point> {
    let slots = slots.iter().filter(|slot| slot.count > 0);
    let (mut count, mut sum, mut min_ns, mut max_ns) = (0.0, 0.0, Ns::MAX, Ns::MIN);
    for slot in slots {
        (min_ns, max_ns) = (min_ns.min(slot.min), max_ns.max(slot.max));
        count += slot.count as f64;
        sum += slot.mean().unwrap_or(0.0) * slot.count as f64;
    }
    (count > 0.0).then(|| Point { min_ns, mean_ns: sum / count, max_ns })
}
