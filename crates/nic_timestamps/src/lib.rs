//! Packet timestamps: those that a NIC and its driver claim to make, and which of the claims are true. `latpath_wire`
//! requests and reads the timestamps.
//!
//! * [`Caps`] reports a device's claimed stamps and its current setting.
//! * [`HardwareStamps`] switches the NIC's stamps on, without narrowing another program's setting, and restores it.
//! * [`verify`] tests the claims.
//! * [`NicClock`] converts the NIC's times to this machine's clock.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits
#![deny(unsafe_code)]

mod caps;
mod clock;
mod config;
pub mod document;
mod error;
mod kernel;
mod ledger;
mod ptp;
mod switch;
mod verify;

pub use caps::{phc_of, Caps, Current, RxHardware};
pub use clock::NicClock;
pub use config::{Config, RxFilter, TxType};
pub use error::StampError;
pub use ledger::NicTimestamps;
pub use ptp::is_used_by_ptp;
pub use switch::HardwareStamps;
pub use verify::{verify, Check, ClockRead, Trial, Verified};
