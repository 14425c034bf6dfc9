//! `latpath explain --json`. docs/json.md is its schema.

use crate::json::RunHead;
use latpath_analysis::explain::{
    by_cause, by_culprit, date, fixes_of, name, percent, CauseTotal, CulpritTotal, ExplainedPacket, Explanation, Fix,
    RankedCause,
};
use latpath_cause::{
    held_by, Actor, Advice, Cause, CauseInterval, CauseShare, DaemonVisit, Executor, Hop, PacketTimeline, RunContext,
    VisitParts,
};
use latpath_flight::{FlowLimits, FlowState, Removal};
use latpath_model::{Ns, PacketSighting, PointId};
use latpath_run::{Run, SpikeFiles};
use serde_json::{json, Value};

/// Explanation as one JSON object. `head`: the run and its captures; `None` for a current recording.
pub fn explanation_json(
    head: Option<(&Run, &SpikeFiles)>,
    explanation: &Explanation,
    context: &RunContext,
) -> serde_json::Value {
    let all = explanation.excess_ns;
    let notes: Vec<_> = explanation.notes.iter().chain(head.iter().flat_map(|(_, files)| &files.notes)).collect();
    json!({
        "version": 1,
        "run": head.map(|(run, _)| RunHead::of(run)),
        "spikes": head.map(|(run, _)| run.manifest().spikes.clone().unwrap_or_default()),
        "late": explanation.late,
        "more_late": explanation.more_late,
        "time_ns": explanation.time_ns,
        "excess_ns": all,
        "without_baseline": explanation.without_baseline,
        "unexplained_percent": explanation.unexplained_per_mille as f64 / 10.0,
        "baseline": { "packets": explanation.baseline_packets, "captures": explanation.baseline_captures },
        "by_cause": causes(explanation),
        "by_culprit": culprits(explanation),
        "fixes": every_fix(explanation),
        "causes": explanation.ranking.iter().map(|ranked| row(ranked, all, context)).collect::<Vec<_>>(),
        "other_causes": {
            "count": explanation.others.rows,
            "first": explanation.others.first,
            "excess_ns": explanation.others.excess_ns,
        },
        "packets": explanation.worst.iter().map(|explained| packet(explained, context)).collect::<Vec<_>>(),
        "no_flow": explanation.no_flow.iter().map(|(reason, n)| json!({ "reason": reason.id(), "packets": n })).collect::<Vec<_>>(),
        "causality": explanation.causality,
        "notes": notes,
    })
}

fn party(actor: &Actor) -> Value {
    let class = actor.class.map(|class| class.to_string());
    let process =
        actor.process.as_ref().map(|p| json!({ "pid": p.pid, "name": p.name, "unit": p.unit, "owner": p.owner }));
    json!({
        "name": actor.name,
        "pids": actor.pids,
        "class": class,
        "latpath": actor.is_tool,
        "process": process,
        "threads": actor.threads,
    })
}

fn causes(explanation: &Explanation) -> Value {
    let one = |total: CauseTotal| {
        json!({
            "cause": total.cause.id(),
            "phrase": total.cause.info().phrase,
            "first": total.first,
            "excess_ns": total.excess_ns,
            "share_percent": percent(total.excess_ns, explanation.excess_ns),
        })
    };
    by_cause(explanation).into_iter().map(one).collect()
}

fn culprits(explanation: &Explanation) -> Value {
    let one = |total: CulpritTotal| {
        json!({
            "share_percent": percent(total.excess_ns, explanation.excess_ns),
            "name": total.name,
            "machine": total.machine,
            "processes": total.processes,
            "unit": total.unit,
            "owner": total.owner,
            "threads": total.threads,
            "pids": total.pids,
            "latpath": total.is_latpath,
            "excess_ns": total.excess_ns,
        })
    };
    by_culprit(explanation).into_iter().map(one).collect()
}

/// Each fix once; its `rows` are the indexes in `causes` of the rows that it would fix.
fn every_fix(explanation: &Explanation) -> Value {
    let rows: Vec<usize> = (0..explanation.ranking.len()).collect();
    let one = |fix: Fix| {
        json!({
            "what": fix.advice.what,
            "commands": fix.advice.commands,
            "settings": settings(&fix.advice),
            "machine": fix.advice.machine,
            "rows": fix.rows,
            "excess_ns": fix.excess_ns,
            "share_percent": percent(fix.excess_ns, explanation.excess_ns),
        })
    };
    fixes_of(explanation, &rows).into_iter().map(one).collect()
}

fn parties(by: &[(Actor, Ns)]) -> Value {
    let one = |(actor, ns): &(Actor, Ns)| {
        let mut party = party(actor);
        party["ns"] = json!(ns);
        party
    };
    by.iter().map(one).collect()
}

fn cpus(cpus: &[(u32, Ns)]) -> Value {
    cpus.iter().map(|(cpu, ns)| json!({ "cpu": cpu, "ns": ns })).collect()
}

fn segments(hops: &[((PointId, PointId), Ns)], context: &RunContext) -> Value {
    let one = |(hop, ns): &((PointId, PointId), Ns)| json!({ "name": context.segment(*hop), "from": context.point(hop.0), "to": context.point(hop.1), "ns": ns });
    hops.iter().map(one).collect()
}

fn fixes(advice: &[Advice]) -> Value {
    let one = |advice: &Advice| {
        json!({
            "what": advice.what,
            "commands": advice.commands,
            "settings": settings(advice),
            "machine": advice.machine,
        })
    };
    advice.iter().map(one).collect()
}

/// Names of the settings that an advice changes.
fn settings(advice: &Advice) -> Vec<&'static str> {
    advice.settings.iter().map(|setting| setting.id()).collect()
}

fn row(RankedCause { row, advice }: &RankedCause, all: Ns, context: &RunContext) -> Value {
    let mut value = share(row, all, context);
    value["meaning"] = json!(row.cause.info().meaning);
    value["packets"] = json!(row.packets);
    value["first"] = json!(row.first);
    value["median_ns"] = json!(row.median_ns());
    value["worst_ns"] = json!(row.worst_ns);
    value["advice"] = fixes(advice);
    value
}

fn cause(of_packet: &CauseShare, all: Ns, context: &RunContext) -> Value {
    let mut value = share(of_packet, all, context);
    value["time_ns"] = json!(of_packet.time_ns);
    value
}

/// Keys common to a cause's share in one packet and in all packets.
fn share(share: &CauseShare, all: Ns, context: &RunContext) -> Value {
    json!({
        "cause": share.cause.id(),
        "machine": share.machine,
        "actor": share.actor.as_ref().map(party),
        "waiter": share.waiter.as_ref().map(party),
        "by": parties(&share.by),
        "cpus": cpus(&share.cpus),
        "segments": segments(&share.hops, context),
        "excess_ns": share.excess_ns,
        "share_percent": percent(share.excess_ns, all),
        "number": share.number,
        "idle_state": share.state,
        "qdiscs": if share.cause == Cause::QdiscHeld { held_by(share, context) } else { &[] },
        "notes": share.notes.iter().map(|(note, _)| note.to_string()).collect::<Vec<_>>(),
    })
}

/// A visit to ovs-vswitchd: the deduced reason, the evidence, and the parts of the time.
fn daemon_visit(visit: &DaemonVisit, explained: &PacketTimeline, context: &RunContext) -> Value {
    let machine = explained.machines.get(visit.machine).map_or("", String::as_str);
    let upcall = &visit.upcall;
    let before = |t: Ns| upcall.t.saturating_sub(t);
    let flow = match &upcall.flow {
        FlowState::Unknown => json!({ "state": "unknown" }),
        FlowState::NeverThere { since } => json!({ "state": "never-there", "known_for_ns": before(*since) }),
        FlowState::Installed { at } => json!({ "state": "installed", "before_ns": before(*at) }),
        FlowState::Removed(Removal { at, pid, by, flows, all, installed, packets, idle_ns }) => json!({
            "state": "removed",
            "before_ns": before(*at),
            "by": { "pid": pid, "name": by.name, "process": by.tgid },
            "flows": flows,
            "all": all,
            "installed_before_ns": installed.map(before),
            "packets": packets,
            "idle_ns": idle_ns,
        }),
    };
    let parts = |parts: &VisitParts| {
        json!({
            "handler": party(&context.actor(machine, &parts.handler)),
            "to_daemon_ns": parts.to_daemon_ns,
            "asleep_ns": parts.asleep_ns,
            "ready_ns": parts.ready_ns,
            "running_ns": parts.running_ns,
            "in_daemon_ns": parts.in_daemon_ns,
            "to_kernel_ns": parts.to_kernel_ns,
        })
    };
    let limits = |limits: FlowLimits| json!({ "max_idle_ns": limits.max_idle_ns, "flow_limit": limits.flow_limit });
    json!({
        "machine": machine,
        "reason": visit.reason.id(),
        "flow": flow,
        "flows": upcall.flows,
        "missed_before": upcall.missed_before,
        "limits": visit.limits.map(limits),
        "parts": visit.parts.as_ref().map(parts),
    })
}

fn packet(packet: &ExplainedPacket, context: &RunContext) -> Value {
    let (explained, attribution) = (&packet.explained, &packet.attribution);
    let begin = explained.begin();
    let since = |t: Ns| t.saturating_sub(begin.unwrap_or(0));
    let interval = |i: &CauseInterval| {
        let machine = explained.machine(i);
        let actor = |executor: &Option<Executor>| executor.as_ref().map(|e| party(&context.actor(machine, e)));
        json!({
            "since_first_ns": since(i.from),
            "time_ns": i.to.saturating_sub(i.from),
            "cause": i.cause.id(),
            "machine": machine,
            "cpu": i.cpu,
            "actor": actor(&i.actor),
            "waiter": actor(&i.waiter),
            "by": actor(&i.by),
            "number": i.number,
            "idle_state": i.state,
            "note": i.note(),
        })
    };
    let hop = |hop: &Hop| {
        json!({
            "name": context.segment((hop.from, hop.to)),
            "from": context.point(hop.from),
            "to": context.point(hop.to),
            "since_first_ns": since(hop.begin),
            "time_ns": hop.end.saturating_sub(hop.begin),
            "intervals": hop.intervals.iter().map(interval).collect::<Vec<_>>(),
        })
    };
    let point = |s: &PacketSighting| json!({ "point": context.point(s.point), "since_first_ns": since(s.t), "cpu": s.cpu, "tid": s.tid });
    let causes = attribution.shares.iter().map(|share| cause(share, attribution.excess_ns, context));
    json!({
        "packet": name(explained.stream, explained.key, begin.unwrap_or(0), context),
        "stream": context.streams.get(usize::from(explained.stream)).map_or(String::new(), ToString::to_string),
        "key": explained.key,
        "number": explained.number,
        "late": explained.late,
        "spike": explained.capture,
        "utc": begin.map(|t| date(context.utc(t))),
        "utc_ns": begin.map(|t| context.utc(t)),
        "time_ns": attribution.time_ns,
        "baseline_ns": attribution.baseline_ns,
        "excess_ns": attribution.excess_ns,
        "daemon_ns": explained.with_daemon(&context.points),
        "visits": explained.visits.iter().map(|visit| daemon_visit(visit, explained, context)).collect::<Vec<_>>(),
        "causes": causes.collect::<Vec<_>>(),
        "points": explained.seen.iter().map(point).collect::<Vec<_>>(),
        "segments": explained.hops.iter().map(hop).collect::<Vec<_>>(),
        "advice": fixes(&packet.advice),
    })
}
