//! What spoils figures, said in words.

use crate::{page::share, segments::is_within};
use latpath_stats::{
    units::{count, duration},
    Summary,
};

/// A line for each thing that a reader must know before any figure, and that the figures themselves show.
pub(crate) fn warnings(summary: &Summary) -> Vec<String> {
    let mut all = Vec::new();
    let tool = &summary.tool;
    if tool.sightings_dropped > 0 {
        all.push(format!(
            "latpath lost {} of its own sightings in full buffers: losses and incomplete journeys may be its own",
            share(tool.sightings_dropped, tool.sightings.saturating_add(tool.sightings_dropped))
        ));
    }
    for s in &summary.segments {
        let name = &s.name;
        if s.negative > 0 {
            let why = match s.min_ns < s.error_bound_ns.saturating_neg() {
                true => {
                    format!("by up to {}: a clock is wrong by more than its bound", duration(s.min_ns.saturating_neg()))
                }
                false => format!("by no more than their error bound, {}", duration(s.error_bound_ns)),
            };
            all.push(format!("{name}: {} of {} times are negative, {why}", count(s.negative), count(s.count)));
        }
        if s.count > 0 && is_within(s.p50_ns, s.error_bound_ns) {
            let bound = duration(s.error_bound_ns);
            all.push(format!("{name}: half of its times are below the error bound between its two clocks, {bound}"));
        }
    }
    for machine in &summary.machines {
        if let Some(fault) = &machine.fault {
            all.push(format!("{}: clock: {fault}", machine.machine));
        }
    }
    all
}
