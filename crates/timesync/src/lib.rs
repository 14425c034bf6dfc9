//! Synchronisation of this machine's clocks by ptp4l, phc2sys, chronyd and the kernel: offsets, bounds and events.
//!
//! * [`management`] and [`Client`] query ptp4l with PTP management messages over its unix sockets; [`chrony`] queries
//!   chronyd over its monitoring protocol. Their answers are untrusted input.
//! * [`Survey`] repeatedly combines all of them into one [`ClockReport`]: which clock follows which, and the maximum
//!   error of the system clock. [`Monitor`] does so in a separate thread, and implements the gate of `--require-sync`.
//! * [`EventDetector`] finds steps, servo swings, changes of the grandmaster and starvation in successive reports.
//!
//! docs/clocks.md explains the bounds.
#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

pub mod chrony;
mod client;
mod daemons;
mod document;
mod events;
mod links;
pub mod management;
mod monitor;
mod sample;
mod state;
mod survey;

pub use client::{Client, Domain};
pub use document::ClocksDocument;
pub use events::{EventDetector, SyncEvent, SyncEventKind};
pub use links::PhcOffset;
pub use management::{ClockIdentity, PortState};
pub use monitor::{GateError, Monitor};
pub use sample::{SyncHistory, SyncRecord, SyncSample};
pub use state::{
    ClockReport, KernelClock, Link, LinkState, Phc2sys, PtpInstance, PtpPort, PtpTime, VirtualClock, SYSTEM_CLOCK,
};
pub use survey::{Survey, SurveyOptions};
