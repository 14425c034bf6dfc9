//! Summarises counted journeys. Live views, replays and reports all use this module, so that the same packets yield the
//! same figures.

use crate::deficiencies::{counted, shown};
use crate::figures::error_bound;
use crate::lost::{explain, of_devices};
use crate::units::{count, duration, number_of};
use crate::{Aggregate, Context, Summary, ToolCost};
use latpath_clock::Step;
use latpath_counters::Difference;
use latpath_journey::Route;
use latpath_journey::Totals;
use latpath_model::{Ns, PointId, PointInfo, HOST};
use latpath_run::Manifest;
use latpath_vms::{Role, VmsByMachine};

/// Maximum number of steps of the time of day listed in a note.
const STEPS: usize = 3;

/// Input of a summary in addition to the counted journeys.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Streams, counters, clocks and drop notes of a recording, possibly in progress.
    pub manifest: &'a Manifest,
    /// The points.
    pub points: &'a [PointInfo],
    /// The route.
    pub route: &'a Route,
    /// The joiner's counts per stream at the start of the figures; empty for zero.
    pub before: &'a [Totals],
    /// Whether all journeys since `before` are counted. If not, the joiner's own counts do not apply to these figures.
    pub whole: bool,
    /// The virtual machines of all machines; they determine the roles of threads.
    pub vms: &'a VmsByMachine,
    /// Duration, ns.
    pub elapsed: Ns,
}

/// Combines the figures from journeys, the joiner's counts and the machines' counters.
pub fn summarise(aggregate: &Aggregate, facts: &Facts) -> Summary {
    let Facts { manifest, points, route, .. } = *facts;
    let name = |p: &PointId| points[usize::from(*p)].point.clone();
    let mut summary = Summary {
        points: route.points.iter().map(name).collect(),
        off_route: route.off_route.iter().map(name).collect(),
        malformed: manifest.counters.malformed,
        machines: manifest.machines.iter().map(|m| m.clock.clone()).collect(),
        tool: ToolCost {
            sightings: manifest.counters.sightings,
            sightings_dropped: manifest.counters.dropped,
            ns_per_sighting: manifest.counters.ns_per_sighting,
            ..manifest.tool
        },
        ..Summary::default()
    };
    let context = Context {
        streams: &manifest.streams.iter().map(ToString::to_string).collect::<Vec<_>>(),
        drop_notes: &manifest.drop_notes,
        elapsed: facts.elapsed,
        time_of_day: &manifest.time_of_day(),
    };
    let clock = |p: PointId| {
        let info = points.get(usize::from(p))?;
        Some((info, bound(manifest, &info.point.machine).unwrap_or(0)))
    };
    let between = |from, to| clock(from).zip(clock(to)).map_or(0, |(from, to)| error_bound(from, to));
    aggregate.fill(&mut summary, context, between);
    explain(&mut summary, points, manifest.kernel.as_ref());
    name_threads(&mut summary, facts.vms);
    for (id, (stream, joined)) in summary.streams.iter_mut().zip(&manifest.joined).enumerate() {
        let before = facts.before.get(id).copied().unwrap_or_default();
        stream.never_seen = joined.never_seen.saturating_sub(before.never_seen);
        if facts.whole {
            // After a crash, the joiner's count may be up to a second older than the journeys.
            stream.duplicates = stream.duplicates.max(joined.duplicates.saturating_sub(before.duplicates));
        }
    }
    summary.durations_alone = manifest.has_durations_alone();
    if summary.durations_alone {
        summary.streams.iter_mut().for_each(|stream| stream.consecutive = None);
    }
    summary.duplicates = summary.streams.iter().map(|s| s.duplicates).sum();
    summary.footnotes.clone_from(&manifest.footnotes);
    summary.deficiencies = manifest.deficiencies.clone();
    summary.deficiencies.extend(counted(manifest, facts.before));
    summary.deficiencies.extend(shown(manifest, &summary));
    summary.notes = notes_of_counts(manifest, facts.before);
    summary.notes.extend(summary.reader_gaps.iter().map(|gap| gap.text.clone()));
    summary.notes.extend(behind_schedule(manifest, facts.before));
    summary.notes.extend(utc_steps(manifest));
    summary.notes.extend(manifest.kernel.as_ref().and_then(stolen));
    summary.notes.extend(manifest.kernel.iter().flat_map(|counted| links(counted, points)));
    summary.notes.extend(manifest.kernel.iter().flat_map(|counted| of_devices(&summary.lost, points, counted)));
    for info in points.iter().filter(|info| bound(manifest, &info.point.machine).is_none()) {
        let machine = &info.point.machine;
        let note = format!("{machine}: its clock is not known; times between it and other machines have no bound");
        if !summary.notes.contains(&note) {
            summary.notes.push(note);
        }
    }
    summary
}

/// Maximum error of a machine's clock against the host's, ns.
fn bound(manifest: &Manifest, machine: &str) -> Option<Ns> {
    let known = manifest.machines.iter().find(|m| m.clock.machine == machine);
    known.map(|m| m.clock.error_bound_ns).or((machine == HOST && manifest.imported.is_empty()).then_some(0))
}

/// Sets the roles (for virtual machines) of the threads in the worst packets' sightings.
fn name_threads(summary: &mut Summary, vms: &VmsByMachine) {
    let role = |machine: &str, tid: u32| {
        let (vm, thread) = vms.of_thread(machine, tid)?;
        let what = match thread.role {
            Role::Io => "I/O thread",
            Role::Kvm | Role::Other => "thread",
            role => role.name(),
        };
        let number = thread.vcpu.map_or(String::new(), |n| format!(" {n}"));
        Some(format!("{what}{number} of {}", vm.name))
    };
    for step in summary.worst.iter_mut().flat_map(|worst| &mut worst.steps) {
        let machine = step.point.split_once('/').map(|(machine, _)| machine);
        step.role = machine.zip(step.tid).and_then(|(machine, tid)| role(machine, tid));
    }
}

/// Notes on streams with a schedule whose packets were late even at the first point, which no segment shows.
fn behind_schedule<'a>(manifest: &'a Manifest, before: &'a [Totals]) -> impl Iterator<Item = String> + 'a {
    let of = |(id, joined): (usize, &Totals)| {
        let before = before.get(id).copied().unwrap_or_default();
        let late = joined.behind_schedule.saturating_sub(before.behind_schedule);
        // A stream with many late packets does not follow a schedule.
        (late > 0 && joined.behind_schedule <= joined.journeys / 10).then(|| {
            format!(
                "{}: the publisher sent {} late, by up to {}: they reached the first point that far behind the schedule of their numbers",
                manifest.streams.get(id).map_or_else(|| format!("stream {id}"), |stream| stream.short()),
                number_of(late, "packet"),
                duration(joined.behind_schedule_max_ns)
            )
        })
    };
    manifest.joined.iter().enumerate().filter_map(of)
}

/// A note on CPU time stolen by the hypervisor below this machine.
fn stolen(counted: &Difference) -> Option<String> {
    let of = |(cpu, took): (&u32, &Ns)| format!("CPU {cpu} for {}", duration(*took));
    let all: Vec<_> = counted.stolen.iter().map(of).collect();
    (!all.is_empty()).then(|| {
        format!(
            "the hypervisor below this machine did not run {}: threads that ran there were delayed by as much (steal)",
            all.join(", ")
        )
    })
}

/// Notes on devices of points that disappeared or lost their link.
fn links(counted: &Difference, points: &[PointInfo]) -> Vec<String> {
    let here = || points.iter().filter(|info| info.point.machine == HOST);
    let mut notes = Vec::new();
    for (netns, device) in &counted.gone {
        let is_it = |info: &&PointInfo| info.netns == *netns && info.point.device_name() == device.name;
        let name = here().find(is_it).map_or(&device.name, |info| &info.point.device);
        notes.push(format!(
            "{name} is gone: packets that were to pass it were lost since, whatever the kernel's reason is"
        ));
    }
    for info in here() {
        let downs = counted.device(info.netns, info.ifindex).map_or(0, |device| device.link_downs);
        let name = &info.point.device;
        let note = format!(
            "the link of {name} went down {}: packets that were to pass it in these times were lost",
            times(downs)
        );
        if downs > 0 && !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

fn times(n: u32) -> String {
    match n {
        1 => "once".into(),
        n => format!("{} times", count(n.into())),
    }
}

/// Steps of the time of day during a recording, in words.
pub fn utc_steps(manifest: &Manifest) -> Option<String> {
    let step = |step: &Step| {
        let since = step.noticed_at_ns.saturating_sub(manifest.start.monotonic_ns);
        let forward = if step.by_ns > 0 { "+" } else { "" };
        format!("{} after the start by {forward}{}", duration(since), duration(step.by_ns))
    };
    let steps: Vec<String> = manifest.utc_steps.iter().take(STEPS).map(step).collect();
    let more = match manifest.utc_steps.len().saturating_sub(STEPS) {
        0 => String::new(),
        n => format!(", and {} times more", count(n as u64)),
    };
    let all = steps.join(", ");
    (!all.is_empty()).then(|| {
        format!("the host's time of day was set: {all}{more}; times of day follow it, and no duration is touched")
    })
}

/// Notes on counted events that distort the figures but are not part of any journey.
fn notes_of_counts(manifest: &Manifest, before: &[Totals]) -> Vec<String> {
    let of_streams = |what: fn(&Totals) -> u64| {
        let sum = |records: &[Totals]| records.iter().map(what).sum::<u64>();
        sum(&manifest.joined).saturating_sub(sum(before))
    };
    let mut notes: Vec<String> = counted(manifest, before).into_iter().map(|one| one.text).collect();
    let (sightings, repeated) = (of_streams(|s| s.sightings), of_streams(|s| s.repeated.max(s.duplicates)));
    if repeated > sightings / 2 {
        notes.push(format!(
            "{} of {} sightings repeat a key that their point had just seen: the counter stands still, or the key does not \
             change from packet to packet (--match chooses another)",
            count(repeated),
            count(sightings)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Worst, WorstStep};
    use latpath_counters::{DeviceCounters, Namespace};
    use latpath_model::Link;
    use latpath_vms::{Thread, Vm};
    use std::collections::BTreeMap;

    #[test]
    fn removed_devices_and_links_that_went_down_are_reported_once() {
        let point = |name: &str, ifindex| PointInfo {
            point: name.parse().unwrap(),
            link: Link::Veth,
            netns: 7,
            ifindex,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: String::new(),
        };
        let device =
            |name: &str, link_downs| DeviceCounters { name: name.into(), link_downs, ..DeviceCounters::default() };
        let devices = BTreeMap::from([(3, device("hin", 2)), (5, device("mid", 0))]);
        let counted = Difference {
            namespaces: BTreeMap::from([(7, Namespace { devices, ..Namespace::default() })]),
            gone: vec![(7, device("hout", 1))],
            ..Difference::default()
        };
        let points = ["host/tx@hout%lab", "host/nic-rx@hin%lab", "host/tx@hin%lab", "host/tx@mid%lab", "guest0/tx@hin"];
        let points: Vec<_> = points.iter().zip([4, 3, 3, 5, 3]).map(|(name, ifindex)| point(name, ifindex)).collect();
        assert_eq!(
            links(&counted, &points),
            [
                "hout%lab is gone: packets that were to pass it were lost since, whatever the kernel's reason is",
                "the link of hin%lab went down 2 times: packets that were to pass it in these times were lost",
            ]
        );
    }

    #[test]
    fn a_stopped_counter_is_reported_if_most_sightings_repeat_a_key() {
        let notes = |duplicates| {
            let joined = vec![Totals { sightings: 6000, duplicates, ..Totals::default() }];
            notes_of_counts(
                &Manifest { joined, ..Manifest::begin() },
                &[Totals { sightings: 1000, ..Totals::default() }],
            )
        };
        assert_eq!(notes(2500), Vec::<String>::new(), "a mirror port repeats each");
        let note = notes(4999).join(" ");
        assert!(
            note.starts_with("4999 of 5000 sightings repeat a key") && note.contains("the counter stands still"),
            "{note}"
        );
    }

    #[test]
    fn steal_time_is_reported() {
        assert_eq!(stolen(&Difference::default()), None);
        let stolen_of = BTreeMap::from([(0, 20_000_000), (3, 1_510_000_000)]);
        assert_eq!(
            stolen(&Difference { stolen: stolen_of, ..Difference::default() }).unwrap(),
            "the hypervisor below this machine did not run CPU 0 for 20.00 ms, CPU 3 for 1.510 s: threads that ran there were delayed by as much (steal)"
        );
    }

    #[test]
    fn lateness_before_the_first_point_is_reported_for_scheduled_streams() {
        let joined = |behind_schedule| Totals {
            journeys: 1000,
            behind_schedule,
            behind_schedule_max_ns: 15_020_000,
            ..Totals::default()
        };
        let streams = ["svid:MU01", "svid:MU02", "svid:MU03"].map(|s| s.parse().unwrap()).into();
        let manifest = Manifest { streams, joined: vec![joined(12), joined(0), joined(700)], ..Manifest::begin() };
        assert_eq!(
            behind_schedule(&manifest, &[joined(2)]).collect::<Vec<_>>(),
            ["MU01: the publisher sent 10 packets late, by up to 15.02 ms: they reached the first point that far behind the schedule of their numbers"]
        );
    }

    #[test]
    fn threads_have_the_roles_that_they_have_on_their_own_machine() {
        let vm = |name: &str| Vm {
            name: name.into(),
            threads: vec![Thread { tid: 7, role: Role::Vhost, ..Thread::default() }],
            ..Vm::default()
        };
        let mut vms = VmsByMachine::from(vec![vm("relay1")]);
        vms.set("b", vec![vm("relay2")]);
        let points = ["host/vm-read@vnet0", "b/vm-read@vnet0", "guest0/app-read@relay"];
        let step = |point: &str| WorstStep { point: point.into(), tid: Some(7), ..WorstStep::default() };
        let worst = Worst { steps: points.map(step).into(), ..Worst::default() };
        let mut summary = Summary { worst: vec![worst], ..Summary::default() };
        name_threads(&mut summary, &vms);
        let roles: Vec<_> = summary.worst[0].steps.iter().map(|step| step.role.as_deref()).collect();
        assert_eq!(roles, [Some("vhost of relay1"), Some("vhost of relay2"), None]);
    }
}
