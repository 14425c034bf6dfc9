//! Why programs do not stand, and the window in which those that stand count.

use crate::{release, with_last_words, Missing, Programs, Unable};
use latpath_linux::monotonic;
use latpath_model::{cost_per_event, Ns, Observation};
use std::fmt::Display;
use std::io;
use std::thread::sleep;
use std::time::Duration;

/// Why programs do not stand.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This kernel or user cannot.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// Nothing of what they are to watch is here: what to do about it.
    #[error("{0}")]
    NothingHere(String),
    #[error(
        "kernel {release} refused the programs that {purpose} ({step}): {why}; RUST_LOG=debug shows all that it said"
    )]
    Refused {
        /// `uname -r`.
        release: String,
        /// What the programs do: `watch VM exits`.
        purpose: &'static str,
        /// What was being done.
        step: &'static str,
        why: String,
    },
    /// Memory, a descriptor or a thread.
    #[error("the system has no room for the programs and their tables: {0}")]
    System(#[from] io::Error),
}

/// What programs do, as their errors say it.
#[derive(Clone, Copy)]
pub struct Purpose(pub &'static str);

impl Purpose {
    /// What an error in this step means, with the kernel's last words.
    pub fn refused<E: Display>(self, step: &'static str) -> impl FnOnce(E) -> StartError {
        move |e| self.refusal(step, with_last_words(e))
    }

    /// The kernel refused them in this step, and this is why.
    pub fn refusal(self, step: &'static str, why: String) -> StartError {
        StartError::Refused { release: release(), purpose: self.0, step, why }
    }
}

/// A window that is over, and what is known of the programs that watched it.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Its begin, `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// Its end.
    pub until: Ns,
    /// Events that were missed because the same program was already running on that CPU.
    pub missed: u64,
    /// What this kernel does not show.
    pub missing: Vec<Missing>,
    /// Runs of the programs and their time in ns, where the kernel measured them.
    pub cost: Option<(u64, u64)>,
}

impl Window {
    /// Length of the window.
    pub fn length(&self) -> Ns {
        self.until - self.from
    }

    /// These figures of the window.
    pub fn observation<F>(&self, figures: F, notes: Vec<String>) -> Observation<F> {
        Observation {
            from_ns: self.from,
            window_ns: self.length(),
            lost_events: self.missed,
            cost_per_event_ns: cost_per_event(self.cost),
            not_shown: self.missing.iter().map(ToString::to_string).collect(),
            notes,
            figures,
        }
    }
}

impl Programs {
    /// The window that these programs have watched.
    pub fn window(&self, from: Ns, until: Ns) -> Window {
        Window { from, until, missed: self.missed(), missing: self.missing.clone(), cost: self.cost() }
    }
}

/// Lead time before a window's bounds take effect: all programs and user space must have read them by then.
const SOON: Ns = 2_000_000;

fn wait_for(t: Ns) {
    sleep(Duration::from_nanos((t - monotonic()).max(0) as u64));
}

/// Begins the window in which programs count, which until here had no end, so that they counted nothing: `set_from` and `set_until` tell them
/// its borders. Returns its begin (`CLOCK_MONOTONIC`) when that has come.
pub fn begin_window(set_from: impl FnOnce(u64), set_until: impl FnOnce(u64)) -> Ns {
    let from = monotonic() + SOON;
    set_from(from as u64);
    set_until(u64::MAX);
    wait_for(from);
    from
}

/// Ends it, and calls `at_end` when it has just ended. Returns its end, when programs that began before that have long ended too.
pub fn end_window<T>(set_until: impl FnOnce(u64), at_end: impl FnOnce() -> T) -> (Ns, T) {
    let until = monotonic() + SOON;
    set_until(until as u64);
    wait_for(until);
    let result = at_end();
    sleep(Duration::from_nanos(SOON as u64));
    (until, result)
}
