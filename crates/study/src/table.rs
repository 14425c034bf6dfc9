//! The result of a study: a table of all cells, with the causes of late packets in each, and the differences between
//! cells.

use crate::engine::StudyError;
use crate::folder::{Folder, Outcome, TrialRecord};
use crate::plan::Plan;
use crate::schedule::{Cell, Trial};
use latpath_analysis::compare::{recording, RecordingOptions};
use latpath_analysis::explain::{by_cause, by_culprit, described};
use latpath_analysis::{Analysis, Explanation, Limit, LimitVerdict, SummaryOptions};
use latpath_compare::comparison::Row;
use latpath_compare::{compare_all, Comparison, Figure, NamedGroup, Recording, StudyRow};
use latpath_model::Ns;
use latpath_run::Run;
use latpath_settings::SettingDifference;
use latpath_stats::{Band, DelayShare};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of causes, and of culprits, listed per cell.
const MAX_CAUSES: usize = 5;

/// Table of a study.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StudyTable {
    /// The study's name.
    pub name: String,
    /// Seed for the order of trials.
    pub seed: u64,
    /// Number of trials per cell in the plan.
    pub repetitions: u32,
    /// Length of a recording, ns.
    pub duration_ns: Ns,
    /// Time for which stream and load run before a recording, ns.
    pub warm_up_ns: Ns,
    /// The segment whose times are shown.
    pub segment: String,
    /// Threshold above which packets are late, ns.
    pub threshold_ns: Ns,
    /// Time band to which `in_band` refers; null if the plan sets none.
    pub band: Option<Band>,
    /// Number of trials in the plan.
    pub trials: usize,
    /// Number of trials with a complete recording.
    pub complete: usize,
    /// Trials that failed in all attempts.
    pub failed: Vec<FailedTrial>,
    /// The cells: all combinations of direction, topology, settings and load.
    pub cells: Vec<CellRow>,
    /// Comparison of each cell with its reference.
    pub differences: Vec<Against>,
    /// Number of figures tested; all p-values are corrected for it.
    pub tested: usize,
    /// Verdicts on the plan's limits: one for each limit and recording.
    pub limits: Vec<LimitVerdict>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Limits of what the recordings could observe, without evidence that packets were affected.
    pub footnotes: Vec<String>,
}

/// A trial that failed in all attempts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FailedTrial {
    /// Its name.
    pub trial: String,
    /// The reason of the last failure.
    pub reason: String,
}

/// The row of a cell in a study's table.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CellRow {
    /// The direction.
    pub direction: String,
    /// The topology.
    pub topology: String,
    /// The settings.
    pub settings: String,
    /// The load.
    pub load: String,
    /// Number of trials that failed.
    pub failed: usize,
    /// Figures of all recordings together; null if there is none.
    pub figures: Option<StudyRow>,
    /// Standard deviation of the recordings' means, ns; null with fewer than two recordings.
    pub between_runs_ns: Option<Ns>,
    /// Mean of the rates that the load reported, bits per second; null if it reported none.
    pub load_bits_per_second: Option<f64>,
    /// Number of late packets whose causes were found.
    pub explained: u64,
    /// Shares of the late packets' delay by cause.
    pub causes: Vec<DelayShare>,
    /// Shares of the late packets' delay by culprit: processes, systemd units, interrupts.
    pub culprits: Vec<DelayShare>,
}

impl CellRow {
    /// The joined names: `in-bridge-nominal-idle`.
    pub fn label(&self) -> String {
        format!("{} {} {} {}", self.direction, self.topology, self.settings, self.load)
    }
}

/// Comparison of a cell with its reference.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Against {
    /// The cell: index into `cells`.
    pub cell: usize,
    /// Its reference: index into `cells`.
    pub reference: usize,
    /// The tested figures.
    pub figures: Vec<FigureDifference>,
    /// Settings of the machines that differ.
    pub settings: Vec<SettingDifference>,
    /// Why nothing can be compared; empty if the cells are comparable.
    pub not_comparable: Vec<String>,
}

/// A figure tested between a cell and its reference.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FigureDifference {
    /// The figure, its difference and the verdict.
    #[serde(flatten)]
    pub row: Row,
    /// The difference as a multiple of the standard deviation between recordings of one cell. Null for losses, if
    /// nothing varies, or if a cell has fewer than two recordings.
    pub difference_per_noise: Option<f64>,
}

impl StudyTable {
    /// Reads the trials in a directory.
    ///
    /// # Errors
    /// If the directory contains no study, or its files cannot be read.
    pub fn of(folder: &Path) -> Result<Self, StudyError> {
        let folder = Folder::read(folder)?;
        let (plan, seed) = folder.stored()?.ok_or_else(|| StudyError::NoStudy(folder.path().into()))?;
        let trials = Trial::all(&plan, seed);
        let done = folder.done(&plan, &trials)?;
        Ok(Reader::new(&plan).table(&folder, seed, trials.len(), &done))
    }
}

/// Reads recordings, and accumulates the data for the table.
struct Reader<'p> {
    plan: &'p Plan,
    segment: String,
    limits: Vec<Limit>,
    verdicts: Vec<LimitVerdict>,
    notes: Vec<String>,
    footnotes: Vec<String>,
}

/// Data read for a cell.
#[derive(Default)]
struct CellData {
    recordings: Vec<Recording>,
    causes: BTreeMap<String, Ns>,
    culprits: BTreeMap<String, Ns>,
    explained: u64,
    excess: Ns,
}

impl<'p> Reader<'p> {
    fn new(plan: &'p Plan) -> Self {
        Self {
            plan,
            segment: plan.segment().to_owned(),
            // The limits were already checked when the plan was read, so this cannot fail.
            limits: plan.limits().unwrap_or_default(),
            verdicts: Vec::new(),
            notes: Vec::new(),
            footnotes: Vec::new(),
        }
    }

    fn table(mut self, folder: &Folder, seed: u64, trials: usize, done: &[(Trial, TrialRecord)]) -> StudyTable {
        let plan = self.plan;
        let cells = Cell::all(plan);
        let mut failed = Vec::new();
        let (mut rows, mut data) = (Vec::new(), Vec::new());
        for cell in &cells {
            let of_cell: Vec<&TrialRecord> = done.iter().filter(|(t, _)| t.cell == *cell).map(|(_, r)| r).collect();
            let mut read = CellData::default();
            for record in &of_cell {
                match &record.outcome {
                    Outcome::Complete => self.read(folder, record, &mut read),
                    Outcome::Failed { reason } => {
                        failed.push(FailedTrial { trial: record.trial.clone(), reason: reason.clone() });
                    }
                }
            }
            rows.push(self.row(*cell, &of_cell, &read));
            data.push(read);
        }
        self.fill_figures(&mut rows, &data);
        let (differences, tested) = self.differences(&cells, &rows, &data);
        let ns = |time: std::time::Duration| Ns::try_from(time.as_nanos()).unwrap_or(Ns::MAX);
        StudyTable {
            name: plan.name.clone(),
            seed,
            repetitions: plan.repetitions,
            duration_ns: ns(plan.duration),
            warm_up_ns: ns(plan.warm_up),
            segment: self.segment,
            threshold_ns: plan.threshold_ns(),
            band: plan.band().unwrap_or_default(),
            trials,
            complete: done.len() - failed.len(),
            failed,
            cells: rows,
            differences,
            tested,
            limits: self.verdicts,
            notes: self.notes,
            footnotes: self.footnotes,
        }
    }

    /// Reads the run of a trial.
    fn read(&mut self, folder: &Folder, record: &TrialRecord, data: &mut CellData) {
        self.notes.extend(record.notes.iter().map(|note| format!("{}: {note}", record.trial)));
        let path = folder.run(&record.trial);
        let read = Run::open(&path).map_err(|e| e.to_string()).and_then(|run| self.read_run(&run, record, data));
        if let Err(why) = read {
            self.notes.push(format!("{}: not in the table: {why}", record.trial));
        }
    }

    fn read_run(&mut self, run: &Run, record: &TrialRecord, data: &mut CellData) -> Result<(), String> {
        let mut row_limits: Vec<Ns> = self.limits.iter().filter_map(Limit::row_limit).collect();
        row_limits.sort_unstable();
        row_limits.dedup();
        let options = RecordingOptions {
            threshold_ns: Some(self.plan.threshold_ns()),
            band: self.plan.band()?,
            only: vec![self.segment.clone()],
            row_limits: row_limits.clone(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            ..RecordingOptions::default()
        };
        let (mut recording, _) = recording(run, &options)?;
        recording.path.clone_from(&record.trial);
        // Limits may refer to segments other than the table's, so summarise the whole run.
        if !self.limits.is_empty() {
            let options =
                SummaryOptions { row_limits, threshold_ns: options.threshold_ns, ..SummaryOptions::default() };
            let whole = latpath_analysis::summarise(run, &options)?;
            let judged = self.limits.iter().map(|limit| limit.check(&whole));
            self.verdicts.extend(judged.map(|v| LimitVerdict { limit: format!("{}: {}", record.trial, v.limit), ..v }));
        }
        data.recordings.push(recording);
        let analysis = Analysis::open(run, SummaryOptions::default())?;
        if let Some(explained) = analysis.explain(0) {
            data.add(&explained.explainer.explanation());
        }
        Ok(())
    }

    fn row(&self, cell: Cell, records: &[&TrialRecord], data: &CellData) -> CellRow {
        let [direction, topology, settings, load] = cell.names(self.plan).map(str::to_owned);
        let rates: Vec<f64> = records.iter().filter_map(|record| record.load_bits_per_second).collect();
        let means: Vec<f64> = self.values(&data.recordings, Figure::Mean);
        CellRow {
            direction,
            topology,
            settings,
            load,
            failed: records.iter().filter(|record| record.outcome != Outcome::Complete).count(),
            figures: None,
            between_runs_ns: deviation(&means).map(|ns| ns.round() as Ns),
            load_bits_per_second: (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64),
            explained: data.explained,
            causes: shares(&data.causes, data.excess),
            culprits: shares(&data.culprits, data.excess),
        }
    }

    /// Fills in the figures of the cells that have recordings.
    fn fill_figures(&mut self, rows: &mut [CellRow], data: &[CellData]) {
        let has_any: Vec<usize> = (0..rows.len()).filter(|at| !data[*at].recordings.is_empty()).collect();
        let group = |at: &usize| (format!("{}/{}", rows[*at].topology, rows[*at].load), data[*at].recordings.clone());
        let groups: Vec<(String, Vec<Recording>)> = has_any.iter().map(group).collect();
        match latpath_compare::study(&groups, Some(&self.segment)) {
            Ok(study) => {
                has_any.into_iter().zip(study.rows).for_each(|(at, figures)| rows[at].figures = Some(figures));
                self.notes.extend(study.notes);
                self.footnotes.extend(study.footnotes);
            }
            Err(why) => self.notes.push(why),
        }
    }

    /// The value of a figure for the table's segment in each recording with enough data for it.
    fn values(&self, recordings: &[Recording], figure: Figure) -> Vec<f64> {
        let value = |one: &Recording| one.segments.iter().find(|s| s.name == self.segment)?.estimate(figure);
        recordings.iter().filter_map(value).map(|estimate| estimate.value).collect()
    }

    /// Compares each cell with its reference. Also returns the number of tested figures.
    fn differences(&mut self, cells: &[Cell], rows: &[CellRow], data: &[CellData]) -> (Vec<Against>, usize) {
        let names: Vec<String> = rows.iter().map(CellRow::label).collect();
        let named = |at: usize| -> NamedGroup { (names[at].as_str(), &data[at].recordings[..]) };
        let both = (0..cells.len()).filter_map(|at| Some((at, reference(cells, at)?)));
        let compared: Vec<(usize, usize)> =
            both.filter(|(a, b)| !data[*a].recordings.is_empty() && !data[*b].recordings.is_empty()).collect();
        let pairs: Vec<(NamedGroup, NamedGroup)> = compared.iter().map(|(a, b)| (named(*a), named(*b))).collect();
        let pages = compare_all(&pairs);
        let tested = pages.first().map_or(0, |page| page.tested);
        let against = |((cell, reference), page): (&(usize, usize), Comparison)| {
            let noise = |figure: Figure| {
                let of = |at: usize| self.values(&data[at].recordings, figure);
                per_noise(&of(*cell), &of(*reference))
            };
            Against {
                cell: *cell,
                reference: *reference,
                figures: tested_rows(page.segments, page.losses, noise),
                settings: page.settings.differences,
                not_comparable: page.not_comparable,
            }
        };
        (compared.iter().zip(pages).map(against).collect(), tested)
    }
}

/// The rows of the tested figures.
fn tested_rows(
    segments: Vec<latpath_compare::comparison::Segment>,
    losses: Vec<latpath_compare::comparison::LossRow>,
    noise: impl Fn(Figure) -> Option<f64>,
) -> Vec<FigureDifference> {
    let figure = |row: &Row| Figure::ALL.into_iter().find(|figure| figure.name() == row.figure);
    let of_segments = segments.into_iter().flat_map(|segment| segment.rows).filter_map(|row| {
        let figure = figure(&row).filter(|figure| figure.is_tested())?;
        Some(FigureDifference { row, difference_per_noise: noise(figure) })
    });
    let of_losses = losses.into_iter().filter(|loss| loss.a_lost + loss.b_lost > 0);
    of_segments.chain(of_losses.map(|loss| FigureDifference { row: loss.share, difference_per_noise: None })).collect()
}

/// The cell with which a cell is compared: the one with the first topology and settings, under the same load and in the
/// same direction. A cell that has these itself is compared with the one under the first load. The first cell of a
/// direction has no reference.
fn reference(cells: &[Cell], at: usize) -> Option<usize> {
    let cell = cells[at];
    let first = match cell {
        Cell { topology: 0, settings: 0, load: 0, .. } => return None,
        Cell { topology: 0, settings: 0, .. } => Cell { load: 0, ..cell },
        _ => Cell { topology: 0, settings: 0, ..cell },
    };
    cells.iter().position(|other| *other == first)
}

impl CellData {
    fn add(&mut self, explanation: &Explanation) {
        self.explained += explanation.late;
        self.excess = self.excess.saturating_add(explanation.excess_ns);
        for total in by_cause(explanation) {
            let sum = self.causes.entry(total.cause.info().phrase.into()).or_default();
            *sum = sum.saturating_add(total.excess_ns);
        }
        for total in by_culprit(explanation) {
            let sum = self.culprits.entry(described(&total)).or_default();
            *sum = sum.saturating_add(total.excess_ns);
        }
    }
}

/// The largest sums, each with its share of `all`.
fn shares(sums: &BTreeMap<String, Ns>, all: Ns) -> Vec<DelayShare> {
    let mut sorted: Vec<(&String, Ns)> = sums.iter().map(|(name, ns)| (name, *ns)).filter(|(_, ns)| *ns > 0).collect();
    sorted.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let share = |(name, excess_ns): (&String, Ns)| DelayShare {
        name: name.clone(),
        excess_ns,
        share_percent: latpath_analysis::explain::percent(excess_ns, all),
    };
    sorted.into_iter().take(MAX_CAUSES).map(share).collect()
}

/// Standard deviation of a sample; `None` for fewer than two values.
fn deviation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    (values.len() > 1).then(|| {
        let mean = values.iter().sum::<f64>() / n;
        (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
    })
}

/// The difference between two means as a multiple of the pooled standard deviation; `None` if either side has fewer
/// than two values, or nothing varies.
fn per_noise(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let variance = (deviation(a)?.powi(2) + deviation(b)?.powi(2)) / 2.0;
    let ratio = (mean(a) - mean(b)) / variance.sqrt();
    ratio.is_finite().then_some((ratio * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_compared_under_one_load_and_loads_on_the_first_way() {
        let text = "name = 'x'\n[[direction]]\nname = 'in'\nstream = 'svid:A'\n[[direction]]\nname = 'out'\nstream = 'svid:B'\n\
                    [[topology]]\nname = 'bridge'\n[[topology]]\nname = 'ovs'\n[[load]]\nname = 'idle'\n[[load]]\nname = 'udp'\n";
        let plan = Plan::parse(text, "plan").unwrap();
        let cells = Cell::all(&plan);
        let label = |at: usize| cells[at].label(&plan);
        let references: Vec<_> = (0..cells.len()).map(|at| (label(at), reference(&cells, at).map(label))).collect();
        let of = |name: &str| references.iter().find(|(cell, _)| cell == name).unwrap().1.clone();
        assert_eq!(of("in-bridge-nominal-idle"), None);
        assert_eq!(of("in-bridge-nominal-udp").as_deref(), Some("in-bridge-nominal-idle"));
        assert_eq!(of("in-ovs-nominal-udp").as_deref(), Some("in-bridge-nominal-udp"));
        assert_eq!(of("out-ovs-nominal-idle").as_deref(), Some("out-bridge-nominal-idle"));
        assert_eq!(of("out-bridge-nominal-idle"), None);
    }

    #[test]
    fn noise_is_the_deviation_between_recordings() {
        assert_eq!(deviation(&[1.0]), None);
        assert_eq!(deviation(&[1.0, 3.0]), Some(2.0_f64.sqrt()));
        assert_eq!(per_noise(&[9.0, 11.0], &[4.0, 6.0]), Some(3.54), "5 over the square root of 2");
        assert_eq!(per_noise(&[5.0, 5.0], &[4.0, 4.0]), None, "nothing varies");
        assert_eq!(per_noise(&[5.0], &[4.0, 4.1]), None);
    }
}
