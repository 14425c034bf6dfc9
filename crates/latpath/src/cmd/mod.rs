//! The commands: each module parses its own flags, calls the crates and prints their results.

pub mod agent;
mod choose;
pub mod clocks;
pub mod compare;
pub mod demo;
pub mod doctor;
pub mod exits;
pub mod explain;
pub mod export;
mod flags;
mod following;
pub mod gates;
pub mod import;
mod interrupt;
pub mod ladder;
mod limits;
mod listening;
pub mod live;
pub mod manual;
pub mod mark;
pub mod net;
mod on_spike;
pub mod path;
pub mod ping;
pub mod profile;
mod progress;
pub mod publish;
pub mod queues;
pub mod record;
pub mod report;
pub mod segments;
pub mod streams;
pub mod study;
pub mod subscribe;
mod sync;
mod thread;
mod times;
pub mod tune;
pub mod values;
pub mod vms;
mod window;
mod wire;

use latpath_report::Style;
use latpath_stats::units::CharacterSet;

/// A flag's time in ns.
fn ns(time: std::time::Duration) -> latpath_model::Ns {
    time.as_nanos().try_into().unwrap_or(latpath_model::Ns::MAX)
}

/// A path as one word of a command, quoted for pasting.
fn quoted(path: &std::path::Path) -> String {
    let text = path.to_string_lossy();
    // Without the prefix, a command would take it for a flag.
    latpath_model::text::quoted(&if text.starts_with('-') { format!("./{text}") } else { text.into_owned() })
}

/// The style that standard output supports.
fn style() -> Style {
    let letters = CharacterSet::from_env();
    match latpath_screen::width() {
        Some(columns) => Style::of_terminal(letters, columns, latpath_screen::has_colours()),
        None => letters.into(),
    }
}

/// Result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Measured, but a limit set by the user was broken.
    LimitBroken,
}

impl Outcome {
    /// The worse of two outcomes.
    pub fn or(self, other: Self) -> Self {
        if self == Self::Done {
            other
        } else {
            self
        }
    }
}

/// An invalid request by the user: exit code 2, as for an unknown flag.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
