//! Makes and takes Sampled Values on packet sockets.
//!
//! - [`publish()`] sends [`Frames`] by absolute deadlines: those of a profile ([`Synthetic`]) or of a capture ([`Replay`]).
//! - [`Subscription`] checks what a [`Receiver`] brings; [`Discovery`] lists the streams in it.
//! - [`Tracker`] follows one stream's smpCnt: gaps, duplicates, order, wrap.
#![deny(unsafe_code)]

mod capture;
mod corrupt;
mod discover;
mod pace;
mod publish;
mod receive;
mod replay;
mod spread;
mod subscribe;
mod synthetic;
mod track;

pub mod kernel;

pub use capture::{Capture, CaptureError, Packet};
pub use corrupt::Corrupted;
pub use discover::{Discovery, FoundStream};
pub use kernel::{DeviceError, Groups, Listen, PacketSocket, Received, ThreadError};
pub use pace::{BadRate, Pace};
pub use publish::{publish, Frames, Pacing, PublishOptions, Punctuality};
pub use receive::Receiver;
pub use replay::{Replay, ReplayError};
pub use spread::Spread;
pub use subscribe::{StreamReceived, Subscription};
pub use synthetic::{Synthetic, SyntheticOptions};
pub use track::{Totals, Tracker, Verdict};
