//! This machine's clocks.

use latpath_model::Ns;
use nix::time::{clock_gettime, ClockId};

/// `CLOCK_MONOTONIC`, ns: the clock of `bpf_ktime_get_ns`, and thus of every sighting.
pub fn monotonic() -> Ns {
    read_clock(ClockId::CLOCK_MONOTONIC)
}

/// `CLOCK_REALTIME`, ns: the clock of the kernel's packet timestamps.
pub fn realtime() -> Ns {
    read_clock(ClockId::CLOCK_REALTIME)
}

/// The kernel's record of `CLOCK_REALTIME` (`adjtimex`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Whether a daemon keeps the clock synchronised.
    pub synchronised: bool,
    /// Maximum error relative to UTC as set by the daemon, ns.
    pub max_error_ns: Ns,
    /// Frequency correction, ppb.
    pub frequency_ppb: i64,
    /// TAI − UTC, s; 0 if it was never set.
    pub tai_offset_s: i32,
}

impl KernelTime {
    /// Reads the kernel's record.
    pub fn read() -> Self {
        // SAFETY: all zero bytes are a valid value of this struct of numbers; without modes the call only fills it.
        let (state, timex) = unsafe {
            let mut timex: libc::timex = std::mem::zeroed();
            (libc::adjtimex(&mut timex), timex)
        };
        Self {
            synchronised: state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0,
            max_error_ns: timex.maxerror.saturating_mul(1000),
            // Parts per million with 16 fractional bits.
            frequency_ppb: timex.freq.saturating_mul(1000) >> 16,
            tai_offset_s: timex.tai,
        }
    }
}

/// Maximum error of `CLOCK_REALTIME` relative to UTC, ns, as set by the daemon that steers the clock (`adjtimex`,
/// `maxerror`); `None` if the clock is not synchronised.
pub fn utc_error() -> Option<Ns> {
    let time = KernelTime::read();
    time.synchronised.then_some(time.max_error_ns)
}

/// Reads one of the system's clocks, ns. Returns 0 if the kernel lacks the clock; every Linux kernel has those that
/// latpath reads.
pub fn read_clock(clock: ClockId) -> Ns {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_never_goes_back() {
        let times: Vec<Ns> = (0..1000).map(|_| monotonic()).collect();
        assert!(times.is_sorted() && times[0] > 0);
    }
}
