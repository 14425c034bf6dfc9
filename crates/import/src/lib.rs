//! Imports other tools' files into a run: captures of the same traffic at several points, and logs of
//! `sv_timestamp_logger`.
//!
//! Each file is read, hashed and parsed on its own thread ([`file`]). The packets are merged by time ([`merge`]),
//! joined, and stored like those of a recording ([`import()`]). Memory use does not grow with the size of the files.
#![forbid(unsafe_code)]

mod chosen;
mod clock;
mod durations;
mod error;
mod estimate;
mod file;
mod import;
mod joined;
mod merge;
mod options;
mod packets;
mod round_trips;
mod source;
mod sv_log;
mod trace;
mod whole_seconds;

pub use clock::{Offset, OffsetMethod};
pub use durations::{import_durations, Durations};
pub use error::ImportError;
pub use import::{import, Progress};
pub use options::{Estimate, Options};
pub use round_trips::{import_rant, is_round_trips, open_recording, open_round_trips};
pub use source::{Format, Source};
pub use trace::Trace;
