//! The NIC's timestamps of received frames, which `latpath subscribe` and `latpath streams` take with `--stamps nic`.

use anyhow::{Context, Result};
use latpath_model::text::printable;
use latpath_stats::units::{count, duration, number_of};
use latpath_traffic::{WireCounts, WireTimes};

/// The NIC's timestamps of received frames.
pub const WIRE: latpath_wire::Stamps =
    latpath_wire::Stamps { tx_sched: false, tx_driver: false, tx_nic: false, rx_kernel: false, rx_nic: true };

/// Switches on the NIC's timestamps of received frames.
///
/// # Errors
/// If the NIC has none, or they cannot be switched on.
pub fn wire_times<K>(device: &str) -> Result<WireTimes<K>> {
    let times = WireTimes::begin(device).map_err(anyhow::Error::msg)?;
    times.with_context(|| {
        let device = printable(device);
        format!(
            "--stamps nic: {device}: its driver has no times of received frames (latpath ping caps -i {device} says what \
             it has)"
        )
    })
}

/// The use of the NICs' times, as text.
pub fn wire_text(counts: WireCounts) -> String {
    let WireCounts { measured, unstamped, skipped, bound_ns } = counts;
    let (measured, bound) = (number_of(measured, "frame"), duration(bound_ns));
    format!("{measured} stamped, ± {bound}; {} without the NIC's time, {} skipped", count(unstamped), count(skipped))
}
