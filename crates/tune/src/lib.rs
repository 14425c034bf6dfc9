//! Gives a machine the settings of a profile, as a single change: planned, watched, verified and undone.
//!
//! A [`Profile`] is a TOML file; each line gives a setting's value, places, reason and source. [`plan`] compares it
//! with a [`Machine`] and returns a [`Plan`]: the steps to take, least disturbing first; the lines that are already met
//! or do not apply; boot parameters and virtual machine definitions, which need more than a write; and warnings.
//! [`Tuning`] applies the steps: it records each old value in the journal before changing it, and a [`Watch`] observes
//! the traffic after each step; if a step disturbs the traffic, the whole change is reverted. [`Tuning::undo`] undoes
//! the change, and [`Tuning::verify`] finds settings that have changed since.

mod accept;
mod condition;
mod document;
mod export;
mod machine;
mod placement;
mod plan;
mod profile;
mod selector;
mod tuning;
mod undo;
mod variables;
mod watch;

pub use accept::Accept;
pub use condition::Condition;
pub use document::{ProfileHead, ProfilesDocument, TuneDocument};
pub use export::{export, Format};
pub use machine::Machine;
pub use plan::{plan, Later, Met, Plan, PlanError, Planned, PlannedPlace, Skipped};
pub use profile::{Line, Profile, ProfileError};
pub use selector::Selector;
pub use tuning::{Applied, AppliedStep, ApplyOptions, Drift, Progress, StopCause, Stopped, TuneError, Tuned, Tuning};
pub use undo::{Change, Tunings};
pub use variables::{Variables, BUILT_IN};
pub use watch::{Baseline, Effect, Exact, Figures, NoWatch, Observed, Watch};
