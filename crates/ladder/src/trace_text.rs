//! Reads the output of `trace-cmd report`, `perf script` and the kernel's own `trace` file: a line for each event.
//!
//! The text is untrusted: line lengths are bounded, and lines without an event are counted.

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
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// No line is an event.
    #[error("no line of it is an event; export one with: trace-cmd report > FILE, or perf script > FILE")]
    NoEvents,
    /// Events that a ladder needs are missing.
    #[error("no {0} event in it; record with: trace-cmd record -e kvm -e sched -e net -e skb")]
    Lacks(&'static str),
}

/// Result of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The ladder's results.
    pub report: Observation<LadderFigures>,
    /// Number of lines read.
    pub lines: u64,
    /// Number of lines without an event, except blank lines.
    pub no_events: u64,
}

/// Reads a text to its end, or until `stop`.
///
/// # Errors
/// If the text cannot be read, or lacks the events that a ladder needs.
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
