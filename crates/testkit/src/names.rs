//! Names that are unique on this machine.

use nix::time::{clock_gettime, ClockId};
use std::sync::OnceLock;

/// An svID that is unique to this test program. It contains more than the process ID, because probes see all
/// namespaces, including those of containers with the same process IDs.
pub fn own(name: &str) -> String {
    static SINCE: OnceLock<i64> = OnceLock::new();
    let now = || clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1000);
    format!("{name}.{}-{:06x}", std::process::id(), SINCE.get_or_init(now) & 0xff_ffff)
}
