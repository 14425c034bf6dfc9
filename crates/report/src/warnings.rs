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
        if s.negative > 0 {
            all.push(format!(
                "{}: {} of {} times are negative: a clock is wrong by more than its bound",
                s.name,
                count(s.negative),
                count(s.count)
            ));
        } else if s.count > 0 && is_within(s.p50_ns, s.error_bound_ns) {
            all.push(format!(
                "{}: half of its times are shorter than the error bound between its two clocks, {}",
                s.name,
                duration(s.error_bound_ns)
            ));
        }
    }
    for machine in &summary.machines {
        if let Some(fault) = &machine.fault {
            all.push(format!("{}: clock: {fault}", machine.machine));
        }
    }
    all
}
