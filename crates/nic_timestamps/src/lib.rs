//! Timestamps of packets: what a NIC and its driver can make, what of it is true, and how a program gets them.
//!
//! * [`Caps`] says what a device claims to stamp, and what it is set to.
//! * [`HardwareStamps`] switches the NIC's stamps on, without narrowing what another program has set, and puts everything back.
//! * [`verify`] finds out what of it is true.
//! * [`ask_for`] and [`BusyPoll`] set a socket's options; [`receive`] reads a packet with what comes beside it.
//! * [`rx_stamps`] and [`from_error_queue`] find the stamps in there. They are pure functions over bytes.
//!
//! Stamps of the kernel are `CLOCK_REALTIME`; those of the NIC are of its own clock (`latpath_clock::phc`), raw.
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
