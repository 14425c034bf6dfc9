//! `latpath explain --json`. docs/json.md is its schema.

use super::selector::{date, name};
use super::{ExplainedPacket, Explanation, RankedCause};
use crate::json::RunHead;
use latpath_cause::{Actor, Advice, CauseShare, RunContext};
use latpath_model::{Ns, PointId};
use latpath_run::{Run, SpikeFiles, SpikesRecord};
use serde::Serialize;

#[derive(Serialize)]
struct Whole<'a> {
    version: u32,
    run: Option<RunHead<'a>>,
    spikes: Option<SpikesRecord>,
    late: u64,
    more_late: u64,
    time_ns: Ns,
    excess_ns: Ns,
    without_baseline: u64,
    unexplained_percent: f64,
    baseline: Baseline,
    causes: Vec<Row>,
    other_causes: Others,
    packets: Vec<Packet>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Baseline {
    packets: u64,
    captures: u64,
}

#[derive(Serialize)]
struct Others {
    count: u64,
    first: u64,
    excess_ns: Ns,
}

#[derive(Serialize)]
struct Row {
    cause: &'static str,
    meaning: &'static str,
    machine: String,
    actor: Option<Party>,
    by: Vec<PartyTime>,
    cpus: Vec<CpuTime>,
    segments: Vec<SegmentTime>,
    packets: u64,
    first: u64,
    excess_ns: Ns,
    median_ns: Ns,
    worst_ns: Ns,
    share_percent: f64,
    number: Option<u64>,
    idle_state: Option<String>,
    notes: Vec<String>,
    advice: Vec<Fix>,
}

#[derive(Serialize)]
struct Party {
    name: String,
    pids: Vec<u32>,
    class: Option<String>,
    latpath: bool,
}

#[derive(Serialize)]
struct PartyTime {
    #[serde(flatten)]
    party: Party,
    ns: Ns,
}

#[derive(Serialize)]
struct CpuTime {
    cpu: u32,
    ns: Ns,
}

#[derive(Serialize)]
struct SegmentTime {
    name: String,
    from: String,
    to: String,
    ns: Ns,
}

#[derive(Serialize)]
struct Fix {
    what: String,
    commands: Vec<String>,
    machine: String,
}

#[derive(Serialize)]
struct Packet {
    packet: String,
    stream: String,
    key: u32,
    number: u64,
    late: bool,
    spike: u32,
    utc: Option<String>,
    utc_ns: Option<Ns>,
    time_ns: Ns,
    baseline_ns: Ns,
    excess_ns: Ns,
    daemon_ns: Ns,
    causes: Vec<PacketCause>,
    points: Vec<Point>,
    segments: Vec<Segment>,
    advice: Vec<Fix>,
}

#[derive(Serialize)]
struct PacketCause {
    cause: &'static str,
    machine: String,
    actor: Option<Party>,
    by: Vec<PartyTime>,
    cpus: Vec<CpuTime>,
    segments: Vec<SegmentTime>,
    time_ns: Ns,
    excess_ns: Ns,
    share_percent: f64,
    number: Option<u64>,
    idle_state: Option<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Point {
    point: String,
    since_first_ns: Ns,
    cpu: u16,
    tid: u32,
}

#[derive(Serialize)]
struct Segment {
    name: String,
    from: String,
    to: String,
    since_first_ns: Ns,
    time_ns: Ns,
    intervals: Vec<CauseInterval>,
}

#[derive(Serialize)]
struct CauseInterval {
    since_first_ns: Ns,
    time_ns: Ns,
    cause: &'static str,
    machine: String,
    cpu: Option<u32>,
    actor: Option<Party>,
    by: Option<Party>,
    number: Option<u64>,
    idle_state: Option<String>,
    note: Option<String>,
}

/// One JSON object, on one line. `head` is the run that it is about, and its captures; a recording that goes on has none.
///
/// # Errors
/// None that can be met: all of it is plain.
pub fn explanation_json(
    head: Option<(&Run, &SpikeFiles)>,
    explanation: &Explanation,
    context: &RunContext,
) -> serde_json::Result<String> {
    let all = explanation.excess_ns;
    let notes = explanation.notes.iter().chain(head.iter().flat_map(|(_, files)| &files.notes)).cloned().collect();
    serde_json::to_string(&Whole {
        version: 1,
        run: head.map(|(run, _)| RunHead::of(run)),
        spikes: head.map(|(run, _)| run.manifest().spikes.clone().unwrap_or_default()),
        late: explanation.late,
        more_late: explanation.more_late,
        time_ns: explanation.time_ns,
        excess_ns: all,
        without_baseline: explanation.without_baseline,
        unexplained_percent: explanation.unexplained_per_mille as f64 / 10.0,
        baseline: Baseline { packets: explanation.baseline_packets, captures: explanation.baseline_captures },
        causes: explanation.ranking.iter().map(|ranked| row(ranked, all, context)).collect(),
        other_causes: Others {
            count: explanation.others.rows,
            first: explanation.others.first,
            excess_ns: explanation.others.excess_ns,
        },
        packets: explanation.worst.iter().map(|explained_packet| packet(explained_packet, context)).collect(),
        notes,
    })
}

fn percent(hop: Ns, all: Ns) -> f64 {
    if all > 0 {
        (hop as f64 / all as f64 * 100_000.0).round() / 1000.0
    } else {
        0.0
    }
}

fn party(actor: &Actor) -> Party {
    Party {
        name: actor.name.clone(),
        pids: actor.pids.clone(),
        class: actor.class.map(|class| class.to_string()),
        latpath: actor.is_tool,
    }
}

fn parties(by: &[(Actor, Ns)]) -> Vec<PartyTime> {
    by.iter().map(|(actor, ns)| PartyTime { party: party(actor), ns: *ns }).collect()
}

fn cpus(cpus: &[(u32, Ns)]) -> Vec<CpuTime> {
    cpus.iter().map(|(cpu, ns)| CpuTime { cpu: *cpu, ns: *ns }).collect()
}

fn segments(hops: &[((PointId, PointId), Ns)], context: &RunContext) -> Vec<SegmentTime> {
    let one = |((from, to), ns): &((PointId, PointId), Ns)| SegmentTime {
        name: context.segment((*from, *to)),
        from: context.point(*from),
        to: context.point(*to),
        ns: *ns,
    };
    hops.iter().map(one).collect()
}

fn fixes(advice: &[Advice]) -> Vec<Fix> {
    let one = |a: &Advice| Fix { what: a.what.clone(), commands: a.commands.clone(), machine: a.machine.clone() };
    advice.iter().map(one).collect()
}

fn notes(notes: &[(String, Ns)]) -> Vec<String> {
    notes.iter().map(|(note, _)| note.clone()).collect()
}

fn row(ranked: &RankedCause, all: Ns, context: &RunContext) -> Row {
    let row = &ranked.row;
    Row {
        cause: row.cause.id(),
        meaning: row.cause.info().meaning,
        machine: row.machine.clone(),
        actor: row.actor.as_ref().map(party),
        by: parties(&row.by),
        cpus: cpus(&row.cpus),
        segments: segments(&row.hops, context),
        packets: row.packets,
        first: row.first,
        excess_ns: row.excess_ns,
        median_ns: row.median_ns(),
        worst_ns: row.worst_ns,
        share_percent: percent(row.excess_ns, all),
        number: row.number,
        idle_state: row.state.clone(),
        notes: notes(&row.notes),
        advice: fixes(&ranked.advice),
    }
}

fn cause(held: &CauseShare, all: Ns, context: &RunContext) -> PacketCause {
    PacketCause {
        cause: held.cause.id(),
        machine: held.machine.clone(),
        actor: held.actor.as_ref().map(party),
        by: parties(&held.by),
        cpus: cpus(&held.cpus),
        segments: segments(&held.hops, context),
        time_ns: held.time_ns,
        excess_ns: held.excess_ns,
        share_percent: percent(held.excess_ns, all),
        number: held.number,
        idle_state: held.state.clone(),
        notes: notes(&held.notes),
    }
}

fn packet(explained_packet: &ExplainedPacket, context: &RunContext) -> Packet {
    let (explained, attribution) = (&explained_packet.explained, &explained_packet.attribution);
    let begin = explained.begin();
    let since = |t: Ns| t.saturating_sub(begin.unwrap_or(0));
    let who =
        |machine: &str, who: &Option<latpath_cause::Executor>| who.as_ref().map(|w| party(&context.actor(machine, w)));
    let interval = |p: &latpath_cause::CauseInterval| {
        let machine = explained.machine(p);
        CauseInterval {
            since_first_ns: since(p.from),
            time_ns: p.to.saturating_sub(p.from),
            cause: p.cause.id(),
            machine: machine.to_owned(),
            cpu: p.cpu,
            actor: who(machine, &p.actor),
            by: who(machine, &p.by),
            number: p.number,
            idle_state: p.state.clone(),
            note: p.note.clone(),
        }
    };
    let hop = |p: &latpath_cause::Hop| Segment {
        name: context.segment((p.from, p.to)),
        from: context.point(p.from),
        to: context.point(p.to),
        since_first_ns: since(p.begin),
        time_ns: p.end.saturating_sub(p.begin),
        intervals: p.intervals.iter().map(interval).collect(),
    };
    let point = |s: &latpath_capture::PacketSighting| Point {
        point: context.point(s.point),
        since_first_ns: since(s.t),
        cpu: s.cpu,
        tid: s.tid,
    };
    Packet {
        packet: name(explained.stream, explained.key, begin.unwrap_or(0), context),
        stream: context.streams.get(usize::from(explained.stream)).map_or(String::new(), ToString::to_string),
        key: explained.key,
        number: explained.number,
        late: explained.late,
        spike: explained.capture,
        utc: begin.map(|t| date(context.utc(t))),
        utc_ns: begin.map(|t| context.utc(t)),
        time_ns: attribution.time_ns,
        baseline_ns: attribution.baseline_ns,
        excess_ns: attribution.excess_ns,
        daemon_ns: explained.with_daemon(&context.points),
        causes: attribution.shares.iter().map(|held| cause(held, attribution.excess_ns, context)).collect(),
        points: explained.seen.iter().map(point).collect(),
        segments: explained.hops.iter().map(hop).collect(),
        advice: fixes(&explained_packet.advice),
    }
}
