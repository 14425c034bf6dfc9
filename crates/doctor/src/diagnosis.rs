//! The result of an examination.

use crate::cost::{rank, RunCost};
use crate::finding::Finding;
use crate::machine::Machine;
use crate::profile;
use crate::rules::Rule;
use latpath_model::Ns;
use latpath_placement::CpuMap;
use latpath_settings::Setting;
use latpath_tune::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The faults of a machine, and how its CPUs are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Kernel release.
    pub kernel: String,
    /// Preemption model of the kernel, e.g. `PREEMPT_RT`, `PREEMPT_DYNAMIC full`.
    pub preemption: String,
    /// Whether the machine is a virtual machine itself.
    pub is_guest: bool,
    /// Number of virtual machines that the machine runs.
    pub vms: u64,
    /// The profile against which the machine was checked; null if only its structure was checked.
    pub profile: Option<String>,
    /// Number of the profile's lines that are met.
    pub lines_met: u64,
    /// Lines of the profile that do not apply to this machine, or could not be judged, with the reasons.
    pub lines_left_out: Vec<String>,
    /// Runs from which the costs are taken.
    pub runs: Vec<String>,
    /// Faults, sorted by descending cost, then by severity, worst first.
    pub findings: Vec<Finding>,
    /// The CPUs.
    pub map: CpuMap,
    /// Number of values that were read.
    pub values: u64,
    /// Time that reading the machine took, ns.
    pub took_ns: Ns,
    /// Settings and objects that could not be read, with the reasons.
    pub unseen: Vec<String>,
}

impl Diagnosis {
    /// Checks a machine's structure, and its settings against a profile, and ranks the faults by their cost in runs.
    pub fn of(machine: &Machine, profile: Option<&Profile>, runs: &[RunCost]) -> Self {
        let placement = &machine.placement;
        let value = |setting| placement.value(setting).unwrap_or_default().to_owned();
        let mode = value(Setting::PreemptMode);
        let preemption = format!("{} {mode}", value(Setting::KernelPreemption)).trim().to_owned();
        let mut findings: Vec<Finding> = Rule::ALL.iter().flat_map(|rule| rule.find(machine)).collect();
        let judged = profile.map(|profile| profile::judge(machine, profile)).unwrap_or_default();
        findings.extend(profile::without_known(judged.findings, &findings));
        rank(&mut findings, runs);
        Self {
            kernel: value(Setting::KernelRelease),
            preemption,
            is_guest: machine.is_guest,
            vms: machine.vms.len() as u64,
            profile: profile.map(|profile| profile.name.clone()),
            lines_met: judged.met,
            lines_left_out: judged.left_out,
            runs: runs.iter().map(|run| run.run.clone()).collect(),
            findings,
            map: CpuMap::of(placement),
            values: machine.reading.values.len() as u64,
            took_ns: machine.reading.took_ns,
            unseen: machine.unseen.clone(),
        }
    }
}
