//! Warnings about figures.

use latpath_model::Ns;
use latpath_stats::units::duration;
use latpath_stats::{clock_fault, dropped_sightings, negative_times, Summary};

/// Warnings that follow from the figures: dropped sightings, negative times, times below their error bound, clock
/// faults.
pub fn warnings(summary: &Summary) -> Vec<String> {
    let mut all: Vec<String> = dropped_sightings(&summary.tool).into_iter().collect();
    for s in &summary.segments {
        all.extend(negative_times(summary, s));
        if s.times.count > 0 && is_within(s.times.p50_ns, s.error_bound_ns) {
            let (name, bound) = (&s.name, duration(s.error_bound_ns));
            all.push(format!("{name}: half of its times are below the error bound between its two clocks, {bound}"));
        }
    }
    all.extend(summary.machines.iter().filter_map(clock_fault));
    all
}

/// Whether a time is not significant, because it is smaller than the error bound of its two clocks.
pub fn is_within(time: Ns, bound: Ns) -> bool {
    bound > 0 && time.unsigned_abs() < bound.unsigned_abs()
}
