//! A finding: a fault, its place, its cost, and the commands that fix it and undo the fix.

use latpath_linux::Cpus;
use latpath_model::Ns;
use latpath_settings::Owner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Severity of a fault, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Threads wait for each other: packets stop.
    Deadlock,
    /// Packets are late by milliseconds, or lost.
    High,
    /// Packets are late by tens or hundreds of microseconds.
    Medium,
    /// Packets are rarely late, or the fault takes effect later.
    Low,
}

impl Severity {
    /// Name shown to the user.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A fault of the machine's structure, which no single setting shows.
    Structure,
    /// A line of the profile that is not met.
    Profile,
}

/// Cost of a fault in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunShare {
    /// The run.
    pub run: String,
    /// Delay beyond the baseline by causes that the fault produces, ns, summed over the run's late packets.
    pub excess_ns: Ns,
}

/// A fault of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Name of the rule, or of the profile's setting; it never changes.
    pub id: String,
    /// Kind of the finding.
    pub kind: FindingKind,
    /// The fault's severity.
    pub severity: Severity,
    /// The thread, interrupt, device, CPUs or virtual machine that the fault concerns; empty for the whole machine.
    pub target: String,
    /// The CPUs that the fault concerns; empty for all or none.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// The fault, in one sentence.
    pub what: String,
    /// The current value.
    pub now: String,
    /// The value that it should have.
    pub should: String,
    /// Why it matters.
    pub why: String,
    /// Where this is documented.
    pub source: String,
    /// Names of the settings that fix the fault.
    pub settings: Vec<String>,
    /// Names of the causes of late packets that the fault produces, in addition to those that its settings fix.
    pub causes: Vec<String>,
    /// Cost in each run that shows the fault, the highest first; empty if no run shows it.
    pub cost: Vec<RunShare>,
    /// Commands that fix the fault, to be entered on this machine.
    pub commands: Vec<String>,
    /// Commands that undo the fix.
    pub undo: Vec<String>,
    /// Disturbance that the commands cause: `nothing`, `CPU stall`, `link flap`, `VM restart`, `reboot`.
    pub disturbs: String,
    /// Programs that manage the same settings and may overwrite the fix.
    pub owners: Vec<Owner>,
}

impl Finding {
    /// The fault's cost over all runs, ns.
    pub fn excess_ns(&self) -> Ns {
        self.cost.iter().fold(0, |sum, share| sum.saturating_add(share.excess_ns))
    }
}
