//! This machine's clocks.

use latpath_model::Ns;
use nix::time::{clock_gettime, ClockId};

/// `CLOCK_MONOTONIC` in ns: the clock of `bpf_ktime_get_ns`, and so of every sighting.
pub fn now_monotonic() -> Ns {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Reads a clock that every Linux has; it cannot fail for the three that this room asks for.
pub(crate) fn read(clock: ClockId) -> Ns {
    let t = clock_gettime(clock).expect("the kernel has this clock");
    t.tv_sec() * 1_000_000_000 + t.tv_nsec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_never_goes_back() {
        let times: Vec<Ns> = (0..1000).map(|_| now_monotonic()).collect();
        assert!(times.is_sorted() && times[0] > 0);
    }
}
