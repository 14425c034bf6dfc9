//! The words all crates of latpath use, one meaning each: stream, matcher, key, point, sighting.
//!
//! Times are `i64` nanoseconds in a named clock; unless a doc says otherwise, the clock is the machine's
//! `CLOCK_MONOTONIC` (`bpf_ktime_get_ns` in the kernel).

mod causality;
pub mod point;
pub mod segment;
pub mod sighting;
mod source_note;
mod synch;
pub mod text;

pub use causality::Causality;
pub use latpath_protocols::{pattern, stream, KeyRule, Matcher, Ns, StreamSpec};
pub use point::{Link, Point, PointId, PointInfo, PointKind};
pub use segment::SegmentKind;
pub use sighting::{Counters, DropNote, Sighting, Source, MAX_COUNT};
pub use source_note::{Sender, SenderAt, SourceNote, SourceNoteKind};
pub use stream::StreamId;
pub use synch::{SynchChange, SynchWatch};

/// The name of the machine that latpath itself runs on.
pub const HOST: &str = "host";
/// The machine of [`PointKind::Sampled`]: whatever samples what a stream of Sampled Values carries.
pub const MERGING_UNIT: &str = "MU";
