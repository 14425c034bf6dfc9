//! The vocabulary of all crates of latpath, one meaning per term: stream, matcher, key, point, sighting.
//!
//! Times are `i64` nanoseconds of a named clock, by default the machine's `CLOCK_MONOTONIC` (`bpf_ktime_get_ns` in the
//! kernel).

mod causality;
mod observation;
pub mod point;
pub mod round_trip;
pub mod segment;
pub mod sighting;
mod source_note;
mod synch;
pub mod text;

pub use causality::Causality;
pub use latpath_protocols::{pattern, stream, KeyRule, Matcher, Ns, StreamSpec};
pub use observation::{cost_per_event, Observation};
pub use point::{Link, Passage, PathMark, Point, PointId, PointInfo, PointKind};
pub use segment::SegmentKind;
pub use sighting::{Counters, DropNote, PacketSighting, PlannedSend, Sighting, Source, MAX_COUNT};
pub use source_note::{Sender, SenderAt, SourceNote, SourceNoteKind};
pub use stream::StreamId;
pub use synch::{SynchChange, SynchWatch};

/// Name of the machine on which latpath runs.
pub const HOST: &str = "host";
/// Machine of [`PointKind::Sampled`]: the device that takes the samples of a Sampled Values stream.
pub const MERGING_UNIT: &str = "MU";
/// Machine of [`PointKind::Planned`]: the sender of a stream whose packets contain their send times.
pub const TALKER: &str = "talker";
