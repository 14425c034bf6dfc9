//! Sockets that send and receive packets, with timestamps.
//!
//! - [`PacketSocket`] sends batches of frames; a [`Receiver`] copies them, or reads them from a mapped ring. [`filter`]
//!   builds socket filters.
//! - [`Stamps`] and [`BusyPoll`] are socket options; [`receive`] reads a packet with its control messages.
//! - [`rx_stamps`] and [`from_error_queue`] find timestamps in control messages. They are pure functions over bytes.
//! - [`PacketSocket::send_at`] sends a frame with a send time, for the queueing disciplines etf and taprio.
//! - [`thread`] makes a thread punctual and waits precisely; [`Pace`] gives the due times of frames.
//!
//! Timestamps from the kernel use `CLOCK_REALTIME`; those from a NIC are raw readings of its own clock
//! (`latpath_clock::phc`).
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits
#![deny(unsafe_code)]

mod control;
mod device;
pub mod filter;
mod message;
mod options;
mod pace;
mod packet;
mod receiver;
mod ring;
mod send_time;
pub mod thread;
mod tx_stamps;

pub use control::{
    discarded, from_error_queue, local_address, removed_tag, rx_stamps, Discarded, RxStamps, SendTimeFault, TxKind,
    TxStamp,
};
pub use device::{Device, DeviceError};
pub use message::{drops, error_queue, receive, receive_from, sent_stamps, wait_for, Control, Message, Queued};
pub use options::{ask_for, BusyPoll, SocketError, Stamps};
pub use pace::{BadRate, Deadlines, Pace};
pub use packet::{Groups, Listen, PacketSocket, Received, Sent};
pub use receiver::Receiver;
pub use ring::RingReceiver;
pub use send_time::{SendClock, TxTimeMode};
pub use tx_stamps::{TxStampCounts, TxStamps};
