//! Reads what `trace-cmd report`, `perf script` and the kernel's own `trace` file print: a line for each event.
//!
//! The text is taken as it comes from somebody else: lines are bounded, and what is no event is counted.

mod parse;

use crate::ladder::{Join, Ladder};
use crate::report::LadderFigures;
use latpath_model::Observation;
use latpath_tracefs::text::{lost, next_line, Line};
use parse::Parser;
use std::io::{self, BufRead};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It could not be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// No line of it is an event.
    #[error("no line of it is an event; export one with: trace-cmd report > FILE, or perf script > FILE")]
    NoEvents,
    /// The events that a ladder needs are not among them.
    #[error("no {0} event in it; record with: trace-cmd record -e kvm -e sched -e net -e skb")]
    Lacks(&'static str),
}

/// What came of a file.
#[derive(Clone, Debug)]
pub struct Imported {
    pub report: Observation<LadderFigures>,
    pub lines: u64,
    /// Those that are no event.
    pub no_events: u64,
}

/// Reads a text to its end, or until `stop`.
///
/// # Errors
/// Where it cannot be read, or holds no events that a ladder could be made of.
pub fn import(input: &mut dyn BufRead, stop: &AtomicBool) -> Result<Imported, TextError> {
    let mut parser = Parser::new(Ladder::new(Join::Wakeups));
    let (mut lines, mut no_events) = (0, 0);
    let mut bytes = Vec::new();
    while next_line(input, &mut bytes)? && !stop.load(Ordering::Relaxed) {
        lines += 1;
        let text = String::from_utf8_lossy(&bytes);
        if let Some(events) = lost(&text) {
            parser.lost(events);
        } else if let Some(line) = Line::read(&text) {
            parser.take(&line);
        } else {
            no_events += u64::from(!text.trim().is_empty());
        }
    }
    if parser.events == 0 {
        return Err(TextError::NoEvents);
    }
    if !parser.has_exits {
        return Err(TextError::Lacks("kvm_exit"));
    }
    if !parser.has_switches {
        return Err(TextError::Lacks("sched_switch"));
    }
    let notes = parser.notes();
    let mut report = parser.ladder.finish();
    report.notes.extend(notes);
    Ok(Imported { report, lines, no_events })
}
