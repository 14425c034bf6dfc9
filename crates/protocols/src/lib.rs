//! The protocols whose streams latpath follows: how users name a stream, how its packets look on the wire, and how
//! their keys are read. Each protocol is one module here and one header of the kernel programs.
#![forbid(unsafe_code)]

mod ber;
pub mod condition;
mod error;
mod escape;
mod ethernet;
mod named;
pub mod options;
pub mod pattern;
pub mod protocol;
pub mod reaction;
pub mod redundancy;
pub mod sequence;
pub mod stream;
mod value_path;
mod watch;

/// Nanoseconds: a time of a named clock, or a difference of two.
pub type Ns = i64;

// The order defines the protocols' numbers in the kernel programs. Only frames of the first protocol may take the fast
// path.
protocol::protocols! {
    sv::Sv,
    goose::Goose,
    ptp::Ptp,
    udp::Udp,
    ether::Ether,
}

pub use condition::Condition;
pub use error::{BuildError, FrameError, UnreadFrames};
pub use ethernet::{Header, Iec61850, Tag};
pub use options::BadStream;
pub use reaction::ReactionRule;
pub use stream::{KeyRule, LinkFilter, StreamSpec};
pub use value_path::ValuePath;
pub use watch::{Watch, REARM};
