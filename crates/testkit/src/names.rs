//! Names that nobody else on this machine uses at the same time.

use nix::time::{clock_gettime, ClockId};
use std::sync::OnceLock;

/// An svID of this test program alone: probes see all namespaces, also those of containers that number their processes alike.
pub fn own(name: &str) -> String {
    static SINCE: OnceLock<i64> = OnceLock::new();
    let now = || clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1000);
    format!("{name}.{}-{:06x}", std::process::id(), SINCE.get_or_init(now) & 0xff_ffff)
}
