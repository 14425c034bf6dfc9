//! Options and results of an apply.

use crate::plan::{Later, Plan, PlanError, Planned};
use crate::profile::ProfileError;
use crate::watch::Effect;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a plan is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Whether to continue after a step that fails or disturbs traffic.
    pub force: bool,
    /// Whether to leave the change unconfirmed: it is undone when this process ends, unless another process joins it
    /// ([`crate::Tuning::guard`]) or it is confirmed.
    pub unconfirmed: bool,
}

/// Progress of an apply.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The traffic is being measured before the first step.
    Baseline,
    /// A step was performed.
    Step(&'a AppliedStep),
    /// Steps have reset this many values, which another round sets again.
    Again(usize),
    /// The change is being reverted.
    Reverting(&'a Stopped),
}

/// A step that was performed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedStep {
    /// The step.
    pub step: Planned,
    /// Its effect on the traffic; null if traffic was not watched.
    pub effect: Option<Effect>,
    /// Why the value was not set at some or all of the step's places; null if it was set at every place.
    pub failed: Option<String>,
}

/// Why an apply ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// A step disturbed the traffic.
    Traffic,
    /// A step failed, or its effect could not be measured.
    Failure,
    /// The user stopped the apply.
    User,
}

/// Where and why an apply ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stopped {
    /// The cause.
    pub cause: StopCause,
    /// The step, as `SETTING of PLACES`.
    pub step: String,
    /// The reason.
    pub why: String,
}

/// Result of an apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The profile's name.
    pub profile: String,
    /// Subject of the journal entry.
    pub subject: String,
    /// The steps that were performed, in order.
    pub steps: Vec<AppliedStep>,
    /// Where and why the apply ended early; null if all steps were performed.
    pub stopped: Option<Stopped>,
    /// Changes that were reverted because the apply ended early.
    pub reverted: Vec<String>,
    /// Changes that could not be reverted.
    pub not_reverted: Vec<String>,
    /// Whether the change is undone unless it is confirmed.
    pub unconfirmed: bool,
}

/// An applied profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tuned {
    /// The profile's name.
    pub profile: String,
    /// Subject of the journal entry.
    pub subject: String,
    /// Number of changes in the journal.
    pub changes: usize,
    /// Whether the change is undone unless it is confirmed.
    pub unconfirmed: bool,
}

/// Differences between an applied profile and the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// The profile's name.
    pub profile: String,
    /// Subject of the journal entry; null if the profile is not applied.
    pub subject: Option<String>,
    /// Settings whose value differs from the profile's.
    pub drifted: Vec<Planned>,
    /// Settings that need a restart of the machine or of a virtual machine.
    pub later: Vec<Later>,
    /// Number of settings that have the profile's value.
    pub met: usize,
}

/// Why a tuning failed.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The profile cannot be planned on this machine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The profile cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] latpath_undo::Error),
    /// The plan was read from JSON, which does not contain the profile.
    #[error("{profile}: a plan that was read from JSON cannot be applied; make the plan on this machine")]
    Read {
        /// The profile's name.
        profile: String,
    },
    /// Another process is applying the profile, or its change is unconfirmed.
    #[error(
        "{subject}: another latpath applies it, or it waits to be confirmed (latpath tune confirm, latpath tune undo)"
    )]
    Busy {
        /// The subject.
        subject: String,
    },
    /// The profile is not applied.
    #[error("{subject}: not applied{}", others(applied))]
    NotApplied {
        /// The subject.
        subject: String,
        /// Subjects of the applied profiles.
        applied: Vec<String>,
    },
    /// No change waits to be confirmed.
    #[error("{subject}: no change waits to be confirmed: it was confirmed, undone, or its time is over")]
    NotPending {
        /// The subject.
        subject: String,
    },
    /// The traffic cannot be watched.
    #[error("{0}; nothing was changed (--no-watch changes settings without watching)")]
    Watch(String),
    /// A change could not be undone.
    #[error("{subject}: not undone: {}", problems.join("; "))]
    NotUndone {
        /// The subject.
        subject: String,
        /// The reasons.
        problems: Vec<String>,
    },
}

fn others(applied: &[String]) -> String {
    match applied.is_empty() {
        true => "; no profile is".into(),
        false => format!("; applied: {}", applied.join(", ")),
    }
}

impl Drift {
    /// Derives the differences between a profile and a machine from a plan.
    pub fn of(plan: Plan) -> Self {
        let Plan { profile, steps, later, met, .. } = plan;
        Self { profile, subject: None, drifted: steps, later, met: met.len() }
    }

    /// Whether all settings that latpath writes match the profile.
    pub fn is_none(&self) -> bool {
        self.drifted.is_empty()
    }
}
