//! A NIC's own clock (PTP hardware clock, `/dev/ptpN`): read against `CLOCK_MONOTONIC`, and followed.

mod read;
mod watch;

pub use read::{Method, Phc, PhcError, Reader, Reading};
pub use watch::{Disturbance, Offset, PhcWatch, Trouble, SWING_PPB};
