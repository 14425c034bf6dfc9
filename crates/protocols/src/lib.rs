//! The protocols whose streams latpath follows: how a stream is named, how its packets look on the wire, how a packet's key is
//! read. Each protocol is one module here, and one header of the kernel programs.
#![forbid(unsafe_code)]

mod ber;
mod error;
mod escape;
mod ethernet;
mod named;
pub mod options;
pub mod pattern;
pub mod protocol;
pub mod sequence;
pub mod stream;

/// Nanoseconds: a time in a named clock, or a difference of two.
pub type Ns = i64;

// The order is that of the numbers in the kernel programs. The first one's frames may take the fast path.
protocol::protocols! {
    sv::Sv,
    goose::Goose,
    ptp::Ptp,
    udp::Udp,
    ether::Ether,
}

pub use error::{BuildError, FrameError, UnreadFrames};
pub use ethernet::{Header, Iec61850, Tag};
pub use options::BadStream;
pub use stream::{KeyRule, LinkFilter, StreamSpec};
