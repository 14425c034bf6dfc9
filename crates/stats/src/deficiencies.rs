//! Deficiencies of the counts, routes and clocks, because of which limits cannot be judged.

use crate::text::short_stream;
use crate::units::{count, duration, number_of, share};
use crate::{SegmentFigures, Summary};
use latpath_journey::Totals;
use latpath_model::stream::is_of_reactions;
use latpath_model::Point;
use latpath_run::{Deficiency, DeficiencyKind, MachineFigures, Manifest, ToolCost};

/// Maximum number of streams named in a text.
const NAMED: usize = 3;

/// The effect of dropped sightings on the figures; `None` if none were dropped.
pub fn dropped_sightings(tool: &ToolCost) -> Option<String> {
    let of_all = share(tool.sightings_dropped, tool.sightings.saturating_add(tool.sightings_dropped));
    (tool.sightings_dropped > 0).then(|| {
        format!(
            "latpath lost {of_all} of its own sightings in full buffers: losses and incomplete journeys may be its own"
        )
    })
}

/// Number and cause of a segment's negative times; `None` if there are none.
pub fn negative_times(summary: &Summary, s: &SegmentFigures) -> Option<String> {
    let most = duration(s.times.min_ns.saturating_neg());
    let why = if machine(&s.from) == machine(&s.to) {
        // Both times are from the same clock, which never goes back. But after a step of another machine's clock, its
        // times are mapped to the host's clock again, which may reverse their order.
        let jumped = |m: &&MachineFigures| m.machine == machine(&s.from) && m.fault.is_some();
        let or = summary
            .machines
            .iter()
            .find(jumped)
            .map_or(String::new(), |m| format!("the clock of {} jumped, or ", m.machine));
        format!("by up to {most}: {or}{} was passed before {}", s.to, s.from)
    } else if !summary.is_bound_known(s) {
        format!("by up to {most}: how far its two clocks were apart is not known, or its points are in another order")
    } else if is_beyond_bound(s) {
        format!("by up to {most}: a clock is wrong by more than its bound")
    } else {
        format!("by no more than their error bound, {}", duration(s.error_bound_ns))
    };
    let (negative, all) = (count(s.times.negative), count(s.times.count));
    (s.times.negative > 0).then(|| format!("{}: {negative} of {all} times are negative, {why}", s.name))
}

/// The fault of a machine's clock, as a string.
pub fn clock_fault(machine: &MachineFigures) -> Option<String> {
    machine.fault.as_ref().map(|fault| format!("{}: clock: {fault}", machine.machine))
}

/// Whether the segment is between two machines, and some times are more negative than the clocks' error bound allows.
fn is_beyond_bound(s: &SegmentFigures) -> bool {
    s.times.negative > 0 && machine(&s.from) != machine(&s.to) && s.times.min_ns < s.error_bound_ns.saturating_neg()
}

fn machine(point: &str) -> &str {
    point.split('/').next().unwrap_or_default()
}

/// Deficiencies from counts other than those of journeys. `before`: the joiner's counts at the start of the figures.
pub(crate) fn counted(manifest: &Manifest, before: &[Totals]) -> Vec<Deficiency> {
    use DeficiencyKind::{NotJoined, SequenceRestarted, SightingsDropped};
    let of_streams = |what: fn(&Totals) -> u64| {
        let sum = |records: &[Totals]| records.iter().map(what).sum::<u64>();
        sum(&manifest.joined).saturating_sub(sum(before))
    };
    let counts = [
        (NotJoined, of_streams(|s| s.late), "sighting", "came more than --window after the first one of the packet, and joined no journey"),
        (NotJoined, of_streams(|s| s.evicted), "journey", "closed early, because too many were open"),
        (NotJoined, of_streams(|s| s.crowded), "sighting", "joined without a comparison with all packets of the same key"),
        (SequenceRestarted, of_streams(|s| s.restarts), "time", "a sequence jumped as if its sender had restarted"),
        (SightingsDropped, manifest.counters.points_overflow, "sighting", "found no room in the kernel's table of points: narrow with --points"),
        (SightingsDropped, manifest.counters.skipped, "time", "the kernel left a program out, because its CPU was running it already: as many sightings at most are missing"),
        (SightingsDropped, manifest.counters.unreadable, "frame", "lay, in part, in memory that the programs cannot read, or beyond the first page fragment: they may be missing"),
    ];
    let some = counts.into_iter().filter(|(_, n, ..)| *n > 0);
    some.map(|(kind, n, noun, what)| Deficiency::new(kind, format!("{} {what}", number_of(n, noun)))).collect()
}

/// Deficiencies visible in the figures: sightings, ends of routes, clocks.
pub(crate) fn shown(manifest: &Manifest, summary: &Summary) -> Vec<Deficiency> {
    let dropped = dropped_sightings(&summary.tool);
    let mut all: Vec<_> =
        dropped.map(|text| Deficiency::new(DeficiencyKind::SightingsDropped, text)).into_iter().collect();
    // The files of an import are at points named by the user, so their routes need not end at an application.
    if manifest.imported.is_empty() {
        all.extend(without_application(manifest, summary));
    }
    let faults = summary.machines.iter().filter_map(clock_fault);
    let wrong = summary.segments.iter().filter(|s| is_beyond_bound(s)).filter_map(|s| negative_times(summary, s));
    all.extend(faults.chain(wrong).map(|text| Deficiency::new(DeficiencyKind::Clock, text)));
    all
}

/// Streams whose route ends neither at an application nor at a point named by the user: one deficiency per end.
fn without_application(manifest: &Manifest, summary: &Summary) -> Vec<Deficiency> {
    let mut ends: Vec<(Option<&Point>, Vec<String>)> = Vec::new();
    for stream in summary.streams.iter().filter(|stream| stream.journeys > 0) {
        let end = stream.points.last();
        // A reaction's route is expected to end where the packets leave the host.
        let is_meant = |end: &Point| {
            end.kind.is_application() || manifest.named_points.contains(end) || is_of_reactions(&stream.stream)
        };
        if end.is_some_and(is_meant) {
            continue;
        }
        let name = short_stream(&stream.stream);
        match ends.iter_mut().find(|(other, _)| *other == end) {
            Some((_, names)) => names.push(name),
            None => ends.push((end, vec![name])),
        }
    }
    let text = |(end, names): (Option<&Point>, Vec<String>)| {
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = format!("{}{more}", names[..names.len().min(NAMED)].join(", "));
        match end {
            Some(end) => format!(
                "no application was seen to read {names}: the route ends at {end}, and what happened behind it is not known; \
                 an application that reads through a mapped ring (PACKET_RX_RING) cannot be seen"
            ),
            None => format!("{names}: no route is known, so neither is which packets arrived"),
        }
    };
    ends.into_iter().map(|end| Deficiency::new(DeficiencyKind::NoApplication, text(end))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StreamFigures, TimeFigures};
    use latpath_model::Ns;

    fn stream(name: &str, last: &str) -> StreamFigures {
        let points = ["host/nic-rx@eth0", last].map(|p| p.parse().unwrap()).into();
        StreamFigures { stream: format!("svid:{name}"), points, journeys: 9, ..StreamFigures::default() }
    }

    fn kinds(manifest: &Manifest, summary: &Summary) -> Vec<DeficiencyKind> {
        shown(manifest, summary).iter().map(|one| one.kind).collect()
    }

    #[test]
    fn a_route_that_ends_at_no_application_is_a_deficiency_unless_the_user_named_its_end() {
        let streams = vec![stream("MU01", "host/tx@vnet0"), stream("MU02", "host/app-read@relay")];
        let summary = Summary { streams, ..Summary::default() };
        let all = shown(&Manifest::default(), &summary);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].text.starts_with("no application was seen to read MU01: the route ends at host/tx@vnet0"));
        let named_points = vec!["host/tx@vnet0".parse().unwrap()];
        assert!(shown(&Manifest { named_points, ..Manifest::default() }, &summary).is_empty());
        let streams = vec![stream("MU01[Ia] > 5A -> goose:TRIP", "host/tx@vnet0")];
        assert!(shown(&Manifest::default(), &Summary { streams, ..Summary::default() }).is_empty(), "a reaction");
        let imported = vec![Default::default()];
        assert!(shown(&Manifest { imported, ..Manifest::default() }, &summary).is_empty());
    }

    #[test]
    fn streams_that_end_at_one_point_share_a_text() {
        let streams = (1..=5).map(|n| stream(&format!("MU{n:02}"), "host/nic-rx@eth1")).collect();
        let all = shown(&Manifest::default(), &Summary { streams, ..Summary::default() });
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].text.contains("MU01, MU02, MU03 and 2 more"), "{}", all[0].text);
    }

    #[test]
    fn times_that_are_negative_by_more_than_their_bound_prove_that_a_clock_is_wrong() {
        let between = |min_ns: Ns| SegmentFigures {
            name: "Thyp".into(),
            from: "host/nic-rx@eth0".into(),
            to: "guest0/nic-rx@eth1".into(),
            times: TimeFigures { count: 9, negative: 1, min_ns, ..TimeFigures::default() },
            error_bound_ns: 900,
            ..SegmentFigures::default()
        };
        let of = |min_ns| Summary { segments: vec![between(min_ns)], ..Summary::default() };
        assert_eq!(kinds(&Manifest::default(), &of(-900)), []);
        assert_eq!(kinds(&Manifest::default(), &of(-901)), [DeficiencyKind::Clock]);
    }

    #[test]
    fn a_clock_with_an_unknown_bound_does_not_exceed_it() {
        let row = SegmentFigures {
            name: "Tnet".into(),
            from: "a/tx@eth0".into(),
            to: "b/nic-rx@eth0".into(),
            times: TimeFigures { count: 9, negative: 9, min_ns: -4_000, ..TimeFigures::default() },
            ..SegmentFigures::default()
        };
        let machines = vec![MachineFigures { machine: "a".into(), ..MachineFigures::default() }];
        let all = shown(&Manifest::default(), &Summary { segments: vec![row], machines, ..Summary::default() });
        let text = "Tnet: 9 of 9 times are negative, by up to 4.000 µs: how far its two clocks were apart is not known, or its points \
                    are in another order";
        assert_eq!(all, [Deficiency::new(DeficiencyKind::Clock, text)]);
    }

    #[test]
    fn counts_of_the_joiner_and_the_programs_are_deficiencies() {
        let joined = vec![Totals { late: 1, evicted: 2, restarts: 3, ..Totals::default() }];
        let mut manifest = Manifest { joined, ..Manifest::default() };
        manifest.counters.skipped = 4;
        let kinds: Vec<_> =
            counted(&manifest, &[Totals { evicted: 2, ..Totals::default() }]).iter().map(|d| d.kind).collect();
        use DeficiencyKind::{NotJoined, SequenceRestarted, SightingsDropped};
        assert_eq!(kinds, [NotJoined, SequenceRestarted, SightingsDropped]);
    }
}
