//! Cost of the measurement on the agent's machine.

use latpath_flight::Figures;
use latpath_model::Counters;
use nix::time::{clock_gettime, ClockId};
use std::time::{Duration, Instant};

/// CPU time of an agent's process since the start of the session, as reported by the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of all threads of the process, ns.
    pub process_ns: u64,
    /// Duration of the session, ns.
    pub lasted_ns: u64,
}

impl Cost {
    /// Cost in percent of one CPU, including the kernel programs: sightings and flight recorder events, each multiplied
    /// by its unit cost. Cannot overflow, whatever values a peer sends.
    pub fn percent(&self, counters: &Counters, flight: Option<&Figures>) -> f64 {
        let times = |n: u64, each: u64| n as f64 * each as f64;
        let events = flight.map_or(0.0, |flight| times(flight.events, flight.ns_per_event.unwrap_or(0)));
        let all = self.process_ns as f64 + times(counters.sightings, counters.ns_per_sighting) + events;
        (all / self.lasted_ns.max(1) as f64 * 10_000.0).round() / 100.0
    }
}

/// Measures the CPU time that this process has used since the meter was created.
pub struct Meter {
    began: Instant,
    used: Duration,
}

/// CPU time of this process.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Meter {
    /// Starts measuring.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { began: Instant::now(), used: used() }
    }

    /// Returns the cost since the meter was created.
    pub fn read(&self) -> Cost {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Cost { process_ns: ns(used().saturating_sub(self.used)), lasted_ns: ns(self.began.elapsed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_share_is_its_process_its_sightings_and_its_recorders_events() {
        let cost = Cost { process_ns: 10_000_000, lasted_ns: 1_000_000_000 };
        let counters = Counters { sightings: 50_000, ns_per_sighting: 100, ..Counters::default() };
        let flight = Figures { events: 100_000, ns_per_event: Some(80), ..Figures::default() };
        assert_eq!(cost.percent(&Counters::default(), None), 1.0);
        assert_eq!(cost.percent(&counters, None), 1.5);
        assert_eq!(cost.percent(&counters, Some(&flight)), 2.3);
        let unmeasured = Figures { ns_per_event: None, ..flight };
        assert_eq!(cost.percent(&counters, Some(&unmeasured)), 1.5);
    }

    #[test]
    fn invalid_values_give_a_number_too() {
        let counters = Counters { sightings: u64::MAX, ns_per_sighting: u64::MAX, ..Counters::default() };
        let flight = Figures { events: u64::MAX, ns_per_event: Some(u64::MAX), ..Figures::default() };
        let cost = Cost { process_ns: u64::MAX, lasted_ns: 0 };
        assert!(cost.percent(&counters, Some(&flight)).is_finite());
    }

    #[test]
    fn cpu_time_of_the_process_is_measured() {
        let meter = Meter::new();
        while meter.read().process_ns < 1_000_000 {
            std::hint::black_box(meter.began.elapsed());
        }
        assert!(meter.read().lasted_ns > 0);
    }
}
