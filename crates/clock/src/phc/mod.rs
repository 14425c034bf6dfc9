//! A NIC's PTP hardware clock (`/dev/ptpN`): readings against `CLOCK_MONOTONIC`, and their history.

mod map;
mod read;
mod watch;

pub use map::{MappedTime, PhcMap, Unmapped};
pub use read::{Method, Phc, PhcError, Reader, Reading};
pub use watch::{ClockFault, Disturbance, Offset, PhcWatch, SWING_PPB};
