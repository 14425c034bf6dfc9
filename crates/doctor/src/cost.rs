//! Cost of faults in recorded runs: the causes found by explain, and the settings that fix them.

use crate::finding::{Finding, RunShare};
use latpath_analysis::explain::{run_context, RankedCause};
use latpath_analysis::{Explainer, Explanation, RunCaptures};
use latpath_capture::CaptureKind;
use latpath_linux::Cpus;
use latpath_model::{Ns, HOST};
use latpath_run::{Run, RunError};
use latpath_settings::{Scope, Setting};
use std::path::Path;

/// A cause of late packets in a run: a row of explain's ranking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostRow {
    /// Name of the cause.
    pub cause: String,
    /// CPUs on which the packets were delayed; empty if unknown.
    pub cpus: Cpus,
    /// Names of the threads and interrupts involved: the one that waited, and those that occupied its CPU.
    pub names: Vec<String>,
    /// Names of the settings that explain's advice changes.
    pub settings: Vec<String>,
    /// Delay beyond the baseline, ns.
    pub excess_ns: Ns,
}

/// The causes of a run's late packets on one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunCost {
    /// The run's name.
    pub run: String,
    /// The run's causes.
    pub rows: Vec<CostRow>,
}

impl RunCost {
    /// Extracts the host's causes from an explanation.
    pub fn of(run: &str, explanation: &Explanation) -> Self {
        let here = explanation.ranking.iter().filter(|ranked| ranked.row.machine == HOST);
        let row = |ranked: &RankedCause| {
            let row = &ranked.row;
            let by = row.by.iter().map(|(actor, _)| actor);
            CostRow {
                cause: row.cause.id().into(),
                cpus: row.cpus.iter().map(|(cpu, _)| *cpu).collect(),
                names: row.actor.iter().chain(by).map(|actor| actor.name.clone()).collect(),
                settings: ranked.advice.iter().flat_map(|a| &a.settings).map(|s| s.id().to_owned()).collect(),
                excess_ns: row.excess_ns,
            }
        };
        Self { run: run.into(), rows: here.map(row).collect() }
    }

    /// Explains a run. `Ok(None)` if it has no record of the machine's activity.
    ///
    /// # Errors
    /// If the run cannot be opened.
    pub fn read(path: &Path) -> Result<Option<Self>, RunError> {
        let run = Run::open(path)?;
        let mut captures = RunCaptures::new(&run);
        if captures.files.files.is_empty() {
            return Ok(None);
        }
        let mut explainer = Explainer::new(run_context(&run), 0);
        captures.learn(&mut explainer);
        captures.each(CaptureKind::Spike, |capture| explainer.add(capture));
        Ok(Some(Self::of(&path.display().to_string(), &explainer.explanation())))
    }

    /// Cost of each finding in this run, ns. A cause counts towards the findings that fit it best.
    fn of_each(&self, findings: &[Finding]) -> Vec<Ns> {
        let mut costs = vec![0; findings.len()];
        for row in &self.rows {
            let fits: Vec<Fit> = findings.iter().map(|finding| row.fit(finding)).collect();
            let Some(best) = fits.iter().copied().max().filter(|best| *best > Fit::Not) else { continue };
            for (cost, _) in costs.iter_mut().zip(&fits).filter(|(_, fit)| **fit == best) {
                *cost = row.excess_ns.saturating_add(*cost);
            }
        }
        costs
    }
}

/// How well a finding fits a cause, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// Not at all.
    Not,
    /// The fault has causes of this kind, on these CPUs.
    Cause,
    /// The fault has causes of this kind, and the finding names a thread or interrupt involved.
    Named,
    /// Explain's advice changes one of the finding's settings.
    Advice,
}

impl CostRow {
    /// Rates how well a finding fits this cause. If the CPUs of both are known, they must overlap. For a setting of
    /// individual threads, interrupts or control groups, names or CPUs must match.
    fn fit(&self, finding: &Finding) -> Fit {
        let is_known = !finding.cpus.is_empty() && !self.cpus.is_empty();
        let meets = finding.cpus.overlaps(&self.cpus);
        if is_known && !meets {
            return Fit::Not;
        }
        let (target, names) = (&finding.target, self.names.iter().filter(|name| !name.is_empty()));
        let is_named = !target.is_empty() && names.clone().any(|name| target.contains(name) || name.contains(target));
        let mends = |id: &String| {
            let of_many = Setting::of_id(id)
                .is_some_and(|s| matches!(s.info().scope, Scope::Thread | Scope::Interrupt | Scope::ControlGroup));
            finding.settings.contains(id) && (!of_many || meets || is_named)
        };
        let is_brought_about = finding.causes.contains(&self.cause);
        match () {
            () if self.settings.iter().any(mends) => Fit::Advice,
            () if is_brought_about && is_named => Fit::Named,
            () if is_brought_about && (meets || !is_known) => Fit::Cause,
            () => Fit::Not,
        }
    }
}

/// Adds to each finding its cost in the runs, and sorts the findings by descending cost, then by severity, worst first.
pub fn rank(findings: &mut [Finding], runs: &[RunCost]) {
    for run in runs {
        let costs = run.of_each(findings);
        for (finding, excess_ns) in findings.iter_mut().zip(costs).filter(|(_, ns)| *ns > 0) {
            finding.cost.push(RunShare { run: run.run.clone(), excess_ns });
        }
    }
    findings.iter_mut().for_each(|finding| finding.cost.sort_by_key(|share| std::cmp::Reverse(share.excess_ns)));
    // The sort is stable: equal findings keep the order of the rules and of the profile.
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.excess_ns()), finding.severity));
}
