//! Makes a run of files that others wrote: captures of the same traffic at several points, and logs of `sv_timestamp_logger`.
//!
//! Each file is read, hashed and parsed on a thread of its own ([`file`]); their packets are merged by time ([`merge`]), joined by
//! the one joiner of latpath and written by its writer ([`import()`]). Memory does not grow with the files.
#![forbid(unsafe_code)]

mod apart;
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
mod source;
mod sv_log;
mod trace;

pub use clock::{Offset, OffsetMethod};
pub use durations::{import_durations, Durations};
pub use error::ImportError;
pub use import::{import, Progress};
pub use options::{Estimate, Options};
pub use source::{Format, Source};
pub use trace::Trace;
