//! Ties `CLOCK_MONOTONIC` to the time of day.

use latpath_linux::{monotonic, read_clock as read};
use latpath_model::Ns;
use nix::time::ClockId;
use serde::{Deserialize, Serialize};

/// Number of readings per tie; the tightest is kept.
const READINGS: usize = 16;
/// Maximum difference between two ties without a step, ns: each clock's reading is truncated to whole ns.
const ROUNDING_NS: Ns = 2;

/// A simultaneous reading of three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockTie {
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// `CLOCK_REALTIME` (UTC since 1970), ns.
    pub realtime_ns: Ns,
    /// `CLOCK_TAI`, ns. Equals `realtime_ns` (within the uncertainty) if the kernel has no TAI offset.
    pub tai_ns: Ns,
    /// Maximum error of `monotonic_ns`, ns.
    pub uncertainty_ns: Ns,
}

impl ClockTie {
    /// Reads the clocks now. Each reading is enclosed by two readings of `CLOCK_MONOTONIC`; the tightest of several is
    /// kept.
    pub fn read() -> Self {
        let one = || {
            let before = monotonic();
            let (realtime_ns, tai_ns) = (read(ClockId::CLOCK_REALTIME), read(ClockId::CLOCK_TAI));
            let width = monotonic() - before;
            Self { monotonic_ns: before + width / 2, realtime_ns, tai_ns, uncertainty_ns: (width + 1) / 2 }
        };
        (0..READINGS).map(|_| one()).min_by_key(|tie| tie.uncertainty_ns).expect("there are several readings")
    }

    fn difference(&self) -> (Ns, Ns) {
        let d = self.realtime_ns - self.monotonic_ns;
        (d - self.uncertainty_ns, d + self.uncertainty_ns)
    }
}

/// A step of the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Time of detection, `CLOCK_MONOTONIC`, ns. The step happened since the previous tie.
    pub noticed_at_ns: Ns,
    /// Size of the step of `CLOCK_REALTIME`, ns.
    pub by_ns: Ns,
}

/// Follows `CLOCK_REALTIME` − `CLOCK_MONOTONIC`.
///
/// The kernel steers both clocks alike, so the difference is constant except for steps (`settimeofday`, a step by NTP
/// or PTP, a leap second). Each tie narrows it further; a tie that contradicts the earlier ones proves a step.
#[derive(Clone, Debug)]
pub struct RealtimeWatch {
    range: RealtimeRange,
    steps: u64,
}

/// The range of `CLOCK_REALTIME` − `CLOCK_MONOTONIC` since its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealtimeRange {
    /// Minimum of the difference, ns.
    pub low: Ns,
    /// Maximum of the difference, ns.
    pub high: Ns,
    /// `CLOCK_MONOTONIC` time from which the range is valid, ns.
    pub since: Ns,
    /// Time of the latest tie, up to which the range is valid, ns. It precedes `since` if there is only one tie.
    pub until: Ns,
}

impl RealtimeRange {
    fn of(tie: &ClockTie) -> Self {
        let (low, high) = tie.difference();
        let (since, until) = (tie.monotonic_ns + tie.uncertainty_ns, tie.monotonic_ns - tie.uncertainty_ns);
        Self { low, high, since, until }
    }

    /// Converts a `CLOCK_REALTIME` time to `CLOCK_MONOTONIC`. Returns it with its maximum error, ns.
    pub fn to_monotonic(&self, realtime: Ns) -> (Ns, Ns) {
        let middle = self.low.saturating_add(self.high.saturating_sub(self.low) / 2);
        let uncertainty = self.high.saturating_sub(middle).saturating_add(ROUNDING_NS);
        (realtime.saturating_sub(middle), uncertainty)
    }
}

impl RealtimeWatch {
    /// Starts with one tie.
    pub fn new(tie: &ClockTie) -> Self {
        Self { range: RealtimeRange::of(tie), steps: 0 }
    }

    /// Adds a later tie. Returns the step since the previous one, if any.
    pub fn observe(&mut self, tie: &ClockTie) -> Option<Step> {
        let (known, new) = (&mut self.range, RealtimeRange::of(tie));
        let RealtimeRange { low, high, .. } = new;
        if low > known.high + ROUNDING_NS || high < known.low - ROUNDING_NS {
            let by_ns = (low + high - known.low - known.high) / 2;
            *known = new;
            self.steps += 1;
            return Some(Step { noticed_at_ns: tie.monotonic_ns, by_ns });
        }
        known.low = known.low.max(low.min(known.high));
        known.high = known.high.min(high.max(known.low));
        known.until = new.until.max(known.until);
        None
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Converts a `CLOCK_REALTIME` time since the last step to `CLOCK_MONOTONIC`. Returns it with its maximum error,
    /// ns.
    pub fn to_monotonic(&self, realtime: Ns) -> (Ns, Ns) {
        self.range.to_monotonic(realtime)
    }

    /// The range since the last step.
    pub fn range(&self) -> RealtimeRange {
        self.range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tie(monotonic_ns: Ns, realtime_ns: Ns, uncertainty_ns: Ns) -> ClockTie {
        ClockTie { monotonic_ns, realtime_ns, tai_ns: realtime_ns + 37_000_000_000, uncertainty_ns }
    }

    #[test]
    fn this_machine_ties_its_clocks_to_within_a_millisecond() {
        let tie = ClockTie::read();
        assert!(tie.uncertainty_ns < 1_000_000, "{tie:?}");
        assert!(tie.realtime_ns > tie.monotonic_ns);
    }

    #[test]
    fn each_tie_narrows_the_difference_and_none_widens_it() {
        let mut watch = RealtimeWatch::new(&tie(1000, 5000, 400));
        assert_eq!(watch.observe(&tie(2000, 6300, 400)), None);
        assert_eq!(watch.to_monotonic(5150), (1000, 252));
        assert_eq!(watch.observe(&tie(3000, 7000, 100_000)), None);
        assert_eq!(watch.to_monotonic(5150), (1000, 252));
    }

    #[test]
    fn a_step_of_the_time_of_day_is_noticed_with_its_size() {
        let mut watch = RealtimeWatch::new(&tie(1000, 5000, 20));
        assert_eq!(watch.observe(&tie(2000, 6010, 20)), None);
        let step = watch.observe(&tie(3000, 1_007_005, 20)).unwrap();
        assert_eq!(step.noticed_at_ns, 3000);
        assert!((step.by_ns - 1_000_000).abs() <= 40, "{step:?}");
        assert_eq!(watch.steps(), 1);
        assert_eq!(watch.observe(&tie(4000, 1_008_005, 20)), None);
        assert_eq!(watch.to_monotonic(1_008_005).0, 4000);
        let range = watch.range();
        assert_eq!((range.since, range.until), (3020, 3980), "what is known holds between its own ties");
    }
}
