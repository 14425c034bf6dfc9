//! The result of any instrument for one window.

use crate::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An instrument's figures for one window, with the properties common to all windows. The keys are the same in the JSON
/// of all instruments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observation<F> {
    /// Begin of the window, `CLOCK_MONOTONIC`; for an imported trace, the time of its first event.
    pub from_ns: Ns,
    /// Length of the window.
    pub window_ns: Ns,
    /// Number of events (or samples) that occurred in the window and are in no figure.
    pub lost_events: u64,
    /// Mean cost of an event, if measured (`--cost`).
    pub cost_per_event_ns: Option<Ns>,
    /// Observations that this kernel does not support.
    pub not_shown: Vec<String>,
    /// Other remarks on the figures.
    pub notes: Vec<String>,
    /// The instrument's own figures.
    #[serde(flatten)]
    pub figures: F,
}

impl<F> Observation<F> {
    /// Unsupported observations, then the notes.
    pub fn remarks(&self) -> impl Iterator<Item = &String> {
        self.not_shown.iter().chain(&self.notes)
    }

    /// An observation of the same window, with other figures.
    pub fn map<T>(self, change: impl FnOnce(F) -> T) -> Observation<T> {
        let Self { from_ns, window_ns, lost_events, cost_per_event_ns, not_shown, notes, figures } = self;
        let figures = change(figures);
        Observation { from_ns, window_ns, lost_events, cost_per_event_ns, not_shown, notes, figures }
    }
}

/// Mean run time of a program from the number of runs and their total time in ns; `None` if the kernel did not measure
/// the time, or the program did not run.
pub fn cost_per_event(cost: Option<(u64, u64)>) -> Option<Ns> {
    let (runs, ns) = cost?;
    Some(ns.checked_div(runs)? as Ns)
}
