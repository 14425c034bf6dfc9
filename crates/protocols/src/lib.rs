//! The protocols whose streams latpath follows: how a stream is named, how its packets look on the wire, how a packet's key is
//! read. Each protocol is one module here, and one header of the kernel programs.
#![forbid(unsafe_code)]

mod ber;
mod error;
mod ethernet;
pub mod sv;

pub use error::FrameError;
pub use ethernet::{Header, Tag};
