//! Sends and receives packets of the protocols that latpath follows, on the sockets of `latpath_wire`.
//!
//! - [`publish()`] sends [`Frames`] at absolute deadlines: synthetic ones with a profile ([`Synthetic`]), a stream's
//!   messages ([`Repeated`]) or those of a file ([`Replay`]).
//! - [`Talker`] sends frames at the times of a schedule, and writes these times into the frames; [`Arrivals`] evaluates
//!   when such frames arrive.
//! - [`send_udp_stream`] sends a load in addition to such a stream, and [`receive_udp_stream`] receives it.
//! - [`Subscription`] checks received frames; [`Responder`] answers events in them; [`Discovery`] lists their streams.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits
#![forbid(unsafe_code)]

mod arrivals;
mod capture;
mod corrupt;
mod discover;
pub mod document;
mod output;
mod publish;
mod repeat;
mod replay;
mod responder;
mod subscribe;
mod synthetic;
mod talker;
mod times;
mod udp_stream;
mod wire_times;

pub use arrivals::{
    ArrivalClock, ArrivalOptions, Arrivals, BadSendTime, LateFrame, SendTime, SlotClass, SlotCounts, SlotRule,
    MAX_CYCLES,
};
pub use capture::{
    is_capture, CaptureError, CaptureFile, Interface, InterfaceChoice, Packet, Record, Selection, SeveralInterfaces,
};
pub use corrupt::Corrupted;
pub use discover::{Discovery, FoundStream};
pub use output::Output;
pub use publish::{publish, Frames, PublishOptions, Punctuality};
pub use repeat::{Pattern, Repeated, RepeatedOptions};
pub use replay::{Replay, ReplayError};
pub use responder::{Responder, Response, Responses};
pub use subscribe::{StreamReceived, Subscription};
pub use synthetic::{Faults, Synthetic, SyntheticOptions};
pub use talker::{Schedule, TalkOptions, Talked, Talker, TalkerError, TalkerStream, SEND_TIME_LEN};
pub use times::{NamedTimes, Times};
pub use udp_stream::{receive_udp_stream, send_udp_stream, UdpStreamOptions, UdpStreamed};
pub use wire_times::{WireCounts, WireTimes};
