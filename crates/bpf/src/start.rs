//! Errors when starting programs, and the window in which attached programs count.

use crate::{release, with_last_words, Missing, Programs, Unable};
use latpath_linux::monotonic;
use latpath_model::{cost_per_event, Ns, Observation};
use std::fmt::Display;
use std::io;
use std::thread::sleep;
use std::time::Duration;

/// Why programs could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This kernel does not support the programs, or this user may not load them.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// There is nothing to observe; the text includes the next step.
    #[error("{0}")]
    NothingHere(String),
    /// The kernel refused the programs.
    #[error(
        "kernel {release} refused the programs that {purpose} ({step}): {why}; RUST_LOG=debug shows all that it said"
    )]
    Refused {
        /// `uname -r`.
        release: String,
        /// Purpose of the programs, e.g. `watch VM exits`.
        purpose: &'static str,
        /// The failed step.
        step: &'static str,
        /// The kernel's error, with the last lines of the verifier's log.
        why: String,
    },
    /// Memory, a descriptor or a thread was not available.
    #[error("the system has no room for the programs and their tables: {0}")]
    System(#[from] io::Error),
}

/// Purpose of a set of programs, as it appears in error messages, e.g. `watch VM exits`.
#[derive(Clone, Copy)]
pub struct Purpose(pub &'static str);

impl Purpose {
    /// Converts an error in this step, with the kernel's last messages.
    pub fn refused<E: Display>(self, step: &'static str) -> impl FnOnce(E) -> StartError {
        move |e| self.refusal(step, with_last_words(e))
    }

    /// The error for programs that the kernel has rejected in this step.
    pub fn refusal(self, step: &'static str, why: String) -> StartError {
        StartError::Refused { release: release(), purpose: self.0, step, why }
    }
}

/// A finished window, with the state of the programs that observed it.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Start, `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// End, `CLOCK_MONOTONIC`.
    pub until: Ns,
    /// Number of events missed because the same program was already running on the CPU.
    pub missed: u64,
    /// Attach points that this kernel lacks.
    pub missing: Vec<Missing>,
    /// Number of program runs, and their total time, ns; `None` if the kernel did not measure them.
    pub cost: Option<(u64, u64)>,
}

impl Window {
    /// Length of the window, ns.
    pub fn length(&self) -> Ns {
        self.until - self.from
    }

    /// An observation of the window with these figures.
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
    /// The window that these programs have observed.
    pub fn window(&self, from: Ns, until: Ns) -> Window {
        Window { from, until, missed: self.missed(), missing: self.missing.clone(), cost: self.cost() }
    }
}

/// Lead time between setting a window's bound and its effect, ns, so that all programs and user space have read the
/// bound by then.
const SOON: Ns = 2_000_000;

fn wait_for(t: Ns) {
    sleep(Duration::from_nanos((t - monotonic()).max(0) as u64));
}

/// Starts the window in which programs count, by setting its bounds with `set_from` and `set_until`. Before that,
/// `until` is 0, so programs count nothing. Returns the start (`CLOCK_MONOTONIC`) once it is reached.
pub fn begin_window(set_from: impl FnOnce(u64), set_until: impl FnOnce(u64)) -> Ns {
    let from = monotonic() + SOON;
    set_from(from as u64);
    set_until(u64::MAX);
    wait_for(from);
    from
}

/// Ends the window, and calls `at_end` right at its end. Returns the end once all program runs that began before it
/// have finished.
pub fn end_window<T>(set_until: impl FnOnce(u64), at_end: impl FnOnce() -> T) -> (Ns, T) {
    let until = monotonic() + SOON;
    set_until(until as u64);
    wait_for(until);
    let result = at_end();
    sleep(Duration::from_nanos(SOON as u64));
    (until, result)
}
