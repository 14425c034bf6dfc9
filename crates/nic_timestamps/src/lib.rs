//! Timestamps of packets: the stamps that a NIC and its driver claim, which of them are real, and how a program gets
//! them.
//!
//! * [`Caps`] reports a device's claimed stamps and its current setting.
//! * [`HardwareStamps`] switches the NIC's stamps on, without narrowing another program's setting, and restores it.
//! * [`verify`] tests the claims.
//! * [`ask_for`] and [`BusyPoll`] set a socket's options; [`receive`] reads a packet with its control messages.
//! * [`rx_stamps`] and [`from_error_queue`] find the stamps in control messages. They are pure functions over bytes.
//!
//! Stamps of the kernel are `CLOCK_REALTIME`; those of the NIC are raw readings of its own clock
//! (`latpath_clock::phc`).
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits
#![deny(unsafe_code)]

mod caps;
mod config;
mod control;
mod error;
mod kernel;
mod ledger;
mod socket;
mod switch;
mod verify;

pub use caps::{Caps, Current, RxHardware};
pub use config::{Config, RxFilter, TxType};
pub use control::{from_error_queue, local_address, rx_stamps, RxStamps, TxKind, TxStamp};
pub use error::StampError;
pub use kernel::{receive, receive_from, Control, Received};
pub use ledger::NicTimestamps;
pub use socket::{ask_for, BusyPoll, SocketError, Stamps};
pub use switch::HardwareStamps;
pub use verify::{verify, Check, ClockRead, Trial, Verified};
