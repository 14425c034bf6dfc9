//! Maps the times of all machines to one timeline, the host's `CLOCK_MONOTONIC`, with error bounds.
//!
//! * [`ClockTie`] ties `CLOCK_MONOTONIC` to `CLOCK_REALTIME` and `CLOCK_TAI`; [`RealtimeWatch`] detects steps of the
//!   time of day, and [`TimeOfDay`] provides UTC across them.
//! * [`OffsetEstimator`] estimates another machine's clock from timed exchanges, each of which gives hard bounds on the
//!   offset.
//! * [`ptp_kvm`] reads the host's time inside a KVM guest.
//! * [`HypervisorClock`] converts such a time if the guest runs on another machine.
//! * [`tsc`] converts a guest's TSC using KVM's per-VM data on the host.
//! * [`phc`] reads a NIC's clock against `CLOCK_MONOTONIC`, and follows it: drift, steps, swings of the servo.
//! * [`Timeline`] uses the best available source, checks the others against the exchanges, and maps a machine's times
//!   without changing their order.
//!
//! docs/clocks.md explains the method and its assumptions.
#![deny(unsafe_code)]

mod chain;
mod estimator;
mod exchange;
mod kernel;
pub mod phc;
pub mod ptp_kvm;
mod slope;
mod tie;
mod time_of_day;
mod timeline;
pub mod tsc;

pub use chain::{ChainedPairs, HypervisorClock};
pub use estimator::{Assumed, Estimate, OffsetEstimator};
pub use exchange::{Exchange, Fault, FaultKind};
pub use phc::{Phc, PhcWatch};
pub use ptp_kvm::PtpPair;
pub use tie::{ClockTie, RealtimeRange, RealtimeWatch, Step};
pub use time_of_day::TimeOfDay;
pub use timeline::{ClockState, Method, Timeline};
pub use tsc::{HostTsc, TscTie};
