//! What latpath itself costs: its process's CPU time and memory, and the time its kernel programs take.

use latpath_flight::Figures;
use latpath_model::Counters;
use latpath_stats::ToolCost;
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;
use std::time::Instant;

/// Measures from its making on.
pub struct CostMeter {
    began: Instant,
    cpu_ns: i64,
}

/// CPU time of this process so far.
fn cpu_ns() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    usage.map_or(0, |u| u.user_time().num_nanoseconds() + u.system_time().num_nanoseconds())
}

/// Largest resident memory of this process so far.
fn max_rss_bytes() -> u64 {
    // ru_maxrss is inherited across exec; VmHWM is this program's own.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    latpath_linux::proc::number(&status, "VmHWM").unwrap_or(0) * 1024
}

impl CostMeter {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { began: Instant::now(), cpu_ns: cpu_ns() }
    }

    /// The cost so far. `counters` are those of all machines, `host` this machine's, as is `flight`, its flight recorder.
    pub fn read(&self, counters: &Counters, host: &Counters, flight: Option<&Figures>) -> ToolCost {
        let elapsed = self.began.elapsed().as_nanos().max(1) as f64;
        let events = flight.map_or(0, |flight| flight.events.saturating_mul(flight.ns_per_event.unwrap_or(0)));
        let kernel = (host.sightings * host.ns_per_sighting) as f64 + events as f64;
        let own = (cpu_ns() - self.cpu_ns) as f64;
        ToolCost {
            sightings: counters.sightings,
            sightings_dropped: counters.dropped,
            ns_per_sighting: host.ns_per_sighting,
            cpu_percent: ((own + kernel) / elapsed * 10_000.0).round() / 100.0,
            max_rss_bytes: max_rss_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_costs_something() {
        let meter = CostMeter::new();
        let counters = Counters { sightings: 7, dropped: 1, ns_per_sighting: 90, ..Default::default() };
        let until = Instant::now() + std::time::Duration::from_secs(60);
        // However much of the time it gets.
        let mut cost = meter.read(&counters, &counters, None);
        while cost.cpu_percent <= 0.0 && Instant::now() < until {
            cost = meter.read(&counters, &counters, None);
        }
        assert!(cost.cpu_percent > 0.0 && cost.max_rss_bytes > 1 << 20);
        assert_eq!((cost.sightings, cost.sightings_dropped, cost.ns_per_sighting), (7, 1, 90));
        let flight = Figures { events: 1 << 50, ns_per_event: Some(100), ..Figures::default() };
        let with_flight = meter.read(&counters, &counters, Some(&flight));
        assert!(with_flight.cpu_percent > 1e6, "the flight recorder's events are paid for too");
    }
}
