//! Why programs do not stand, and the window in which those that stand count.

use crate::{release, with_last_words, Unable};
use latpath_linux::monotonic;
use latpath_model::Ns;
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

/// So soon a window begins and ends: all programs and user space must have read its borders by then.
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
