//! Puts every machine's times on one timeline, the host's `CLOCK_MONOTONIC`, and says how wrong that can be.
//!
//! * [`ClockTie`] ties `CLOCK_MONOTONIC` to `CLOCK_REALTIME` and `CLOCK_TAI`; [`RealtimeWatch`] notices when somebody
//!   sets the time, and [`TimeOfDay`] is UTC through all of it.
//! * [`OffsetEstimator`] knows another machine's clock from timed exchanges, each of which limits the offset for
//!   certain.
//! * [`ptp_kvm`] reads the host's time inside a KVM guest.
//! * [`tsc`] takes a guest's time from its TSC and what KVM on the host says of it.
//! * [`phc`] reads a NIC's clock against `CLOCK_MONOTONIC`, and follows it: drift, steps, swings of the servo.
//! * [`Timeline`] uses the best at hand, checks the others against the exchanges, and maps a machine's times without
//!   ever changing their order.
//!
//! docs/clocks.md explains the method and what it assumes.
#![deny(unsafe_code)]

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

pub use estimator::{Assumed, Estimate, OffsetEstimator};
pub use exchange::{Exchange, Fault, FaultKind};
pub use phc::{Phc, PhcWatch};
pub use ptp_kvm::PtpPair;
pub use tie::{ClockTie, RealtimeWatch, Step};
pub use time_of_day::TimeOfDay;
pub use timeline::{ClockState, Method, Timeline};
pub use tsc::{HostTsc, TscTie};
