//! From a run to its figures.

use crate::layout::{layout_of, BadSegment, Layout};
use crate::warnings::warnings;
use latpath_model::{Ns, PointId, HOST};
use latpath_run::{Manifest, Run, Select};
use latpath_stats::lost::explain;
use latpath_stats::{figures::error_bound, units::count, Aggregate, Context, MachineFigures, Setup, Summary, ToolCost};
use latpath_vms::{Role, Vm};
use std::collections::HashMap;

/// Histograms that all workers together may hold: each takes some 20 KiB.
const HISTOGRAMS: usize = 8192;

/// What to find out about a run.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Which journeys count.
    pub select: Select,
    /// Times over this are counted; what the recorder was told where there is none.
    pub threshold_ns: Option<Ns>,
    /// So many of the worst packets are shown.
    pub worst: usize,
    /// Further segments; see [`layout_of`].
    pub segments: Vec<String>,
    /// Threads that read; 0 is one.
    pub workers: usize,
}

/// Computes all figures of a run.
///
/// What is damaged is passed over, and in the summary's notes.
///
/// # Errors
/// Where one of the user's segments cannot be.
pub fn summarise(run: &Run, question: &Question) -> Result<Summary, BadSegment> {
    let Layout { route, segments, notes } = layout_of(run, &question.segments)?;
    let (manifest, points) = (run.manifest(), run.points());
    let setup = Setup {
        streams: manifest.streams.len(),
        points: points.to_vec(),
        lines: route.lines_of(manifest.streams.len()),
        segments,
        threshold: question.threshold_ns.unwrap_or(manifest.threshold_ns),
        worst: question.worst,
    };
    let histograms = (setup.streams * setup.segments.len()).max(1);
    let workers = question.workers.clamp(1, (HISTOGRAMS / histograms).max(1));
    let select = Select { cpus_and_threads: false, ..question.select.clone() };
    let mut scan = run.scan_rows(&select, workers, || Aggregate::new(setup.clone()), Aggregate::add_rows);
    let mut all = scan.gathered.pop().unwrap_or_else(|| Aggregate::new(setup.clone()));
    scan.gathered.iter().for_each(|one| all.merge(one));
    add_details(run, &select, workers, &mut all);

    let name = |p: &PointId| points[usize::from(*p)].point.clone();
    let mut summary = Summary {
        points: route.line.iter().map(name).collect(),
        aside: route.aside.iter().map(name).collect(),
        malformed: manifest.counters.malformed,
        machines: machines(manifest),
        tool: ToolCost {
            sightings: manifest.counters.sightings,
            sightings_dropped: manifest.counters.dropped,
            ns_per_sighting: manifest.counters.ns_per_sighting,
            cpu_percent: manifest.tool.cpu_percent,
            max_rss_bytes: manifest.tool.max_rss_bytes,
        },
        notes: run.notes().to_vec(),
        ..Summary::default()
    };
    let context = Context {
        streams: &manifest.streams.iter().map(ToString::to_string).collect::<Vec<_>>(),
        drop_notes: &manifest.drop_notes,
        elapsed: elapsed(run, &select),
        utc_offset: manifest.utc_offset_ns(),
    };
    let (bounds, unbounded) = bounds(run);
    all.fill(&mut summary, context, |from, to| between(&bounds, from, to));
    explain(&mut summary, points, manifest.kernel.as_ref());
    name_threads(&mut summary, &run.vms());
    for (stream, joined) in summary.streams.iter_mut().zip(&manifest.joined) {
        stream.never_seen = joined.never_seen;
    }
    if let Some(wanted) = &select.streams {
        let mut id = 0..;
        summary.streams.retain(|_| id.next().is_some_and(|id| wanted.contains(&id)));
    }
    let spoilt = warnings(&summary);
    summary.notes.extend(spoilt);
    summary.notes.extend(notes);
    let damaged = scan.damaged.iter().map(ToString::to_string).filter(|damage| !run.notes().contains(damage));
    summary.notes.extend(damaged);
    summary.notes.extend(unbounded);
    summary.notes.extend(counted(manifest));
    if all.strays() > 0 {
        let strays = count(all.strays());
        summary.notes.push(format!("{strays} journeys of streams that the manifest does not name are left out"));
    }
    if select.streams.is_some() || select.from_ns != Ns::MIN || select.to_ns != Ns::MAX {
        let text =
            "only some journeys were chosen; never seen, malformed, sightings and cost are those of the whole run";
        summary.notes.push(text.into());
    }
    Ok(summary)
}

/// Says what the worst packets' threads do for the host's virtual machines.
fn name_threads(summary: &mut Summary, vms: &[Vm]) {
    let role = |tid: u32| {
        let (vm, thread) = vms.iter().find_map(|vm| Some((vm, vm.threads.iter().find(|t| t.tid == tid)?)))?;
        let what = match thread.role {
            Role::MainLoop => "main loop",
            Role::Vcpu => "vCPU",
            Role::Vhost => "vhost",
            Role::Io => "I/O thread",
            _ => "thread",
        };
        let number = thread.vcpu.map_or(String::new(), |n| format!(" {n}"));
        Some(format!("{what}{number} of {}", vm.name))
    };
    for step in summary.worst.iter_mut().flat_map(|worst| &mut worst.steps) {
        let on_host = step.point.split_once('/').is_some_and(|(machine, _)| machine == HOST);
        step.role = if on_host { role(step.tid) } else { None };
    }
}

/// Reads CPUs and threads of the worst packets alone: to read those of all would take as long again.
fn add_details(run: &Run, select: &Select, workers: usize, all: &mut Aggregate) {
    let slowest = all.slowest();
    if slowest.is_empty() {
        return;
    }
    let times = slowest.iter().map(|(_, _, first)| *first).collect();
    let select = select.clone().first_seen_at(times).with_cpus_and_threads();
    let details = run.scan(
        &select,
        workers,
        || latpath_run::Rows::new(run.points().len()),
        |rows, journey| {
            let is_it = |(stream, number, _): &_| (*stream, *number) == (journey.stream, journey.number);
            // Each is there once, unless somebody forged the run.
            if rows.len() < slowest.len() && slowest.iter().any(is_it) {
                rows.push(journey);
            }
        },
    );
    details.gathered.iter().for_each(|rows| rows.for_each(|journey| all.detail(journey)));
}

/// The time from the first journey to the last, as far as it was chosen; rates are over it.
fn elapsed(run: &Run, select: &Select) -> Ns {
    let Some((first, last)) = run.times() else { return 0 };
    select.to_ns.min(last).saturating_sub(select.from_ns.max(first)).max(0)
}

fn machines(manifest: &Manifest) -> Vec<MachineFigures> {
    let figures = manifest.machines.iter().map(|m| MachineFigures {
        machine: m.machine.clone(),
        method: m.method.clone(),
        offset_ns: m.offset_ns,
        drift_ppb: m.drift_ppb,
        error_bound_ns: m.error_bound_ns,
        exchanges: m.exchanges,
        fault: m.fault.clone(),
        cpu_percent: m.cpu_percent,
    });
    figures.collect()
}

/// For each point its machine, and how wrong that one's clock was against the host's at worst; and what is not known.
fn bounds(run: &Run) -> (Vec<(String, Ns)>, Vec<String>) {
    let mut notes = Vec::new();
    let mut known: HashMap<String, Ns> = HashMap::from([(HOST.into(), 0)]);
    let mut learn = |machine: &str, bound: Ns| {
        let most = known.entry(machine.into()).or_default();
        *most = (*most).max(bound);
    };
    run.manifest().machines.iter().for_each(|m| learn(&m.machine, m.error_bound_ns));
    match run.clock_samples() {
        Ok(samples) => samples.iter().for_each(|s| learn(&s.clock, s.error_bound_ns)),
        Err(error) => notes.push(error.to_string()),
    }
    let of_point = |info: &latpath_model::PointInfo| {
        let machine = info.point.machine.clone();
        let bound = known.get(&machine).copied();
        if bound.is_none() {
            let note =
                format!("{machine}: its clock is not in the run; times between it and other machines have no bound");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        (machine, bound.unwrap_or(0))
    };
    (run.points().iter().map(of_point).collect(), notes)
}

/// How wrong a time between two points can be: not at all on one machine, else by both clocks' bounds.
fn between(bounds: &[(String, Ns)], from: PointId, to: PointId) -> Ns {
    match (bounds.get(usize::from(from)), bounds.get(usize::from(to))) {
        (Some((a, bound_a)), Some((b, bound_b))) => error_bound((a, *bound_a), (b, *bound_b)),
        _ => 0,
    }
}

/// What the recorder counted that spoils figures and is in no journey.
fn counted(manifest: &Manifest) -> Vec<String> {
    let of_streams = |what: fn(&latpath_run::StreamRecord) -> u64| manifest.joined.iter().map(what).sum::<u64>();
    let counts = [
        (of_streams(|s| s.late), "sightings came later than the window after their packet's first"),
        (of_streams(|s| s.evicted), "journeys were closed early, because too many were open"),
        (of_streams(|s| s.crowded), "sightings were joined without looking at all packets with the same key"),
        (of_streams(|s| s.restarts), "times a sequence jumped as if its sender had restarted"),
        (
            manifest.counters.points_overflow,
            "sightings found no room in the kernel's table of points: narrow with --points",
        ),
        (manifest.counters.unreadable, "frames lay in memory that this kernel does not let us read"),
    ];
    counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(*n))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_between_two_machines_can_be_wrong_by_both_clocks_errors() {
        let of = |machine: &str, bound| (machine.to_owned(), bound);
        let bounds = [of("host", 0), of("guest0", 300), of("guest1", 50), of("guest0", 300)];
        assert_eq!(between(&bounds, 0, 1), 300);
        assert_eq!(between(&bounds, 2, 0), 50);
        assert_eq!(between(&bounds, 1, 2), 350);
        assert_eq!(between(&bounds, 1, 3), 0, "one machine's clock is always right about itself");
    }
}
