//! Converts arrivals to the clock of the send times.

use latpath_clock::ClockTie;
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_wire::SendClock;

/// Minimum time between two readings of the clocks, ns.
const EVERY: Ns = 1_000_000_000;
const SECOND: Ns = 1_000_000_000;

/// Converts arrivals from `CLOCK_REALTIME` to the clock of the send times.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalClock {
    clock: SendClock,
    /// Send clock minus `CLOCK_REALTIME`, ns.
    offset: Ns,
    /// Largest error of `offset` so far, ns.
    error: Ns,
    /// Time of the next reading, `CLOCK_MONOTONIC`, ns.
    next: Ns,
}

impl ArrivalClock {
    /// Creates a converter, and reads the clocks.
    pub fn new(clock: SendClock) -> Self {
        let mut new = Self { clock, offset: 0, error: 0, next: 0 };
        new.read();
        new
    }

    /// Reads the clocks again if the last reading is at least a second old: a daemon may set the time of day or the
    /// kernel's TAI offset.
    pub fn follow(&mut self) {
        if monotonic() >= self.next {
            self.read();
        }
    }

    fn read(&mut self) {
        let tie = ClockTie::read();
        let error;
        (self.offset, error) = offset(self.clock, &tie);
        self.error = self.error.max(error);
        self.next = tie.monotonic_ns + EVERY;
    }

    /// Converts an arrival to the clock of the send times.
    pub fn of(&self, arrival: Ns) -> Ns {
        arrival.saturating_add(self.offset)
    }

    /// Maximum error of the conversion, ns.
    pub fn error(&self) -> Ns {
        self.error
    }
}

/// The offset of a clock from `CLOCK_REALTIME`, and its maximum error, both ns.
fn offset(clock: SendClock, tie: &ClockTie) -> (Ns, Ns) {
    match clock {
        SendClock::Realtime => (0, 0),
        SendClock::Monotonic => (tie.monotonic_ns - tie.realtime_ns, tie.uncertainty_ns),
        // The kernel's offset is a whole number of seconds. Rounding removes the time between the readings, which is
        // under half a second.
        SendClock::Tai => ((tie.tai_ns - tie.realtime_ns + SECOND / 2).div_euclid(SECOND) * SECOND, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tai_is_whole_seconds_from_the_time_of_day_and_monotonic_is_known_within_its_error() {
        let tie = |tai_ns| ClockTie { monotonic_ns: 5_000, realtime_ns: 1_000_000, tai_ns, uncertainty_ns: 30 };
        for (tai, expected) in [(1_000_040, 0), (37_001_000_040, 37 * SECOND), (1_000_000 - 12, 0)] {
            assert_eq!(offset(SendClock::Tai, &tie(tai)), (expected, 0));
        }
        assert_eq!(offset(SendClock::Monotonic, &tie(1_000_000)), (-995_000, 30));
        assert_eq!(offset(SendClock::Realtime, &tie(1_000_000)), (0, 0));
    }

    #[test]
    fn this_machines_clocks_agree_with_the_conversion() {
        for clock in SendClock::ALL {
            let arrivals = ArrivalClock::new(clock);
            let (before, converted, after) = (clock.now(), arrivals.of(latpath_linux::realtime()), clock.now());
            let error = arrivals.error();
            assert!(before - error <= converted && converted <= after + error, "{clock}: {before} {converted} {after}");
        }
    }
}
