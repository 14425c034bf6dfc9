//! What any window has in common, around the figures of the instrument that watched it.

use crate::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An instrument's figures of one window, with what belongs to any window. Its keys are the same in the JSON of all instruments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observation<F> {
    /// Begin of the window, `CLOCK_MONOTONIC`; of an imported trace, the time of its first event.
    pub from_ns: Ns,
    /// Length of the window.
    pub window_ns: Ns,
    /// Events (or samples) that occurred in the window and are in no figure.
    pub lost_events: u64,
    /// What an event cost, where that was measured (`--cost`).
    pub cost_per_event_ns: Option<Ns>,
    /// What this kernel does not show.
    pub not_shown: Vec<String>,
    /// What else must be known of the figures.
    pub notes: Vec<String>,
    /// The instrument's own figures.
    #[serde(flatten)]
    pub figures: F,
}

impl<F> Observation<F> {
    /// What the kernel does not show, then the notes.
    pub fn remarks(&self) -> impl Iterator<Item = &String> {
        self.not_shown.iter().chain(&self.notes)
    }

    /// The same window, with other figures.
    pub fn map<T>(self, change: impl FnOnce(F) -> T) -> Observation<T> {
        let Self { from_ns, window_ns, lost_events, cost_per_event_ns, not_shown, notes, figures } = self;
        let figures = change(figures);
        Observation { from_ns, window_ns, lost_events, cost_per_event_ns, not_shown, notes, figures }
    }
}

/// Mean cost of a program's run, from the number of runs and their time in ns; `None` where the kernel did not measure it, or
/// nothing ran.
pub fn cost_per_event(cost: Option<(u64, u64)>) -> Option<Ns> {
    let (runs, ns) = cost?;
    Some(ns.checked_div(runs)? as Ns)
}
