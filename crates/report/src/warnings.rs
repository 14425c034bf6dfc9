//! What spoils figures, said in words.

use crate::page::is_within;
use latpath_stats::units::share;
use latpath_stats::{
    units::{count, duration},
    MachineFigures, Summary,
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
        if s.times.negative > 0 {
            let most = duration(s.times.min_ns.saturating_neg());
            let why = if machine(&s.from) == machine(&s.to) {
                // One clock took both times, and it never goes back; but where another machine's clock jumps, its times are
                // mapped to the host's again.
                let jumped = |m: &&MachineFigures| m.machine == machine(&s.from) && m.fault.is_some();
                let or = summary
                    .machines
                    .iter()
                    .find(jumped)
                    .map_or(String::new(), |m| format!("the clock of {} jumped, or ", m.machine));
                format!("by up to {most}: {or}{} was passed before {}", s.to, s.from)
            } else if s.times.min_ns < s.error_bound_ns.saturating_neg() {
                format!("by up to {most}: a clock is wrong by more than its bound")
            } else {
                format!("by no more than their error bound, {}", duration(s.error_bound_ns))
            };
            all.push(format!(
                "{name}: {} of {} times are negative, {why}",
                count(s.times.negative),
                count(s.times.count)
            ));
        }
        if s.times.count > 0 && is_within(s.times.p50_ns, s.error_bound_ns) {
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

fn machine(point: &str) -> &str {
    point.split('/').next().unwrap_or_default()
}
