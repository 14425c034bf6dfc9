//! Gate schedules (IEEE 802.1Q, 8.6.8.4: enhancements for scheduled traffic), which Linux executes in its queueing
//! discipline `taprio`: a schedule in a file, its check against the streams that it is meant for, and its application
//! to a device, recorded in the journal. docs/gates.md lists the keys.
#![forbid(unsafe_code)]

mod apply;
mod check;
mod crossing;
mod error;
mod file;
mod show;

pub use apply::{apply, undo, Applied, Gated, Step};
pub use check::{check, ClassWindows, Finding, Report, Severity, SpeedSource, StreamFit, Surroundings};
pub use crossing::{Crossing, Tap};
pub use error::{Error, Result};
pub use file::{Class, Mode, Schedule, Stream};
pub use show::{show, Scheduler};

/// Speed that the kernel assumes for a device whose speed is unknown, Mbit/s (net/sched/sch_taprio.c).
pub const ASSUMED_MBIT: u32 = 10;
