//! Builds the document of `latpath explain --json`.

use super::explanation::*;
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

/// Creates the document of an explanation. `head`: the run and its captures; `None` for a current recording.
pub fn explanation_document<'a>(
    head: Option<(&'a Run, &SpikeFiles)>,
    explanation: &Explanation,
    context: &RunContext,
) -> ExplanationDocument<'a> {
    let all = explanation.excess_ns;
    let rows: Vec<usize> = (0..explanation.ranking.len()).collect();
    let others = &explanation.others;
    let notes = explanation.notes.iter().chain(head.iter().flat_map(|(_, files)| &files.notes));
    ExplanationDocument {
        version: 1,
        run: head.map(|(run, _)| RunHead::of(run)),
        spikes: head.map(|(run, _)| run.manifest().spikes.clone().unwrap_or_default()),
        late: explanation.late,
        more_late: explanation.more_late,
        time_ns: explanation.time_ns,
        excess_ns: all,
        without_baseline: explanation.without_baseline,
        unexplained_percent: explanation.unexplained_per_mille as f64 / 10.0,
        baseline: BaselineCounts { packets: explanation.baseline_packets, captures: explanation.baseline_captures },
        by_cause: by_cause(explanation).into_iter().map(|total| cause_sum(total, all)).collect(),
        by_culprit: by_culprit(explanation).into_iter().map(|total| culprit_sum(total, all)).collect(),
        fixes: fixes_of(explanation, &rows).into_iter().map(|fix| fix_of_rows(fix, all)).collect(),
        causes: explanation.ranking.iter().map(|ranked| cause_of_all(ranked, all, context)).collect(),
        other_causes: OtherCauses { count: others.rows, first: others.first, excess_ns: others.excess_ns },
        packets: explanation.worst.iter().map(|explained| packet(explained, context)).collect(),
        no_flow: explanation.no_flow.iter().map(|(&reason, &packets)| NoFlowCount { reason, packets }).collect(),
        causality: explanation.causality.clone(),
        notes: notes.cloned().collect(),
    }
}

fn cause_sum(total: CauseTotal, all: Ns) -> CauseSum {
    CauseSum {
        cause: total.cause,
        phrase: total.cause.info().phrase.into(),
        first: total.first,
        excess_ns: total.excess_ns,
        share_percent: percent(total.excess_ns, all),
    }
}

fn culprit_sum(total: CulpritTotal, all: Ns) -> CulpritSum {
    CulpritSum {
        name: total.name,
        machine: total.machine,
        processes: total.processes,
        unit: total.unit,
        owner: total.owner,
        threads: total.threads,
        pids: total.pids,
        latpath: total.is_latpath,
        excess_ns: total.excess_ns,
        share_percent: percent(total.excess_ns, all),
    }
}

fn fix_of_rows(fix: Fix, all: Ns) -> FixOfRows {
    let share_percent = percent(fix.excess_ns, all);
    FixOfRows { fix: fix_document(&fix.advice), rows: fix.rows, excess_ns: fix.excess_ns, share_percent }
}

fn fix_document(advice: &Advice) -> FixDocument {
    FixDocument {
        what: advice.what.clone(),
        commands: advice.commands.clone(),
        settings: advice.settings.iter().map(|setting| setting.id().into()).collect(),
        machine: advice.machine.clone(),
    }
}

fn actor(actor: &Actor) -> ActorDocument {
    ActorDocument {
        name: actor.name.clone(),
        pids: actor.pids.clone(),
        class: actor.class.map(|class| class.to_string()),
        latpath: actor.is_tool,
        process: actor.process.clone(),
        threads: actor.threads.clone(),
    }
}

fn cause_of_all(RankedCause { row, advice }: &RankedCause, all: Ns, context: &RunContext) -> CauseOfAll {
    CauseOfAll {
        share: share(row, all, context),
        meaning: row.cause.info().meaning.into(),
        packets: row.packets,
        first: row.first,
        median_ns: row.median_ns(),
        worst_ns: row.worst_ns,
        advice: advice.iter().map(fix_document).collect(),
    }
}

fn share(share: &CauseShare, all: Ns, context: &RunContext) -> CauseDocument {
    let segment = |(hop, ns): &((PointId, PointId), Ns)| SegmentTime {
        name: context.segment(*hop),
        from: context.point(hop.0),
        to: context.point(hop.1),
        ns: *ns,
    };
    CauseDocument {
        cause: share.cause,
        machine: share.machine.clone(),
        actor: share.actor.as_ref().map(actor),
        waiter: share.waiter.as_ref().map(actor),
        by: share.by.iter().map(|(by, ns)| CulpritTime { actor: actor(by), ns: *ns }).collect(),
        cpus: share.cpus.iter().map(|&(cpu, ns)| CpuTime { cpu, ns }).collect(),
        segments: share.hops.iter().map(segment).collect(),
        excess_ns: share.excess_ns,
        share_percent: percent(share.excess_ns, all),
        number: share.number,
        idle_state: share.state.clone(),
        qdiscs: if share.cause == Cause::QdiscHeld { held_by(share, context).into() } else { Vec::new() },
        notes: share.notes.iter().map(|(note, _)| note.to_string()).collect(),
    }
}

fn visit(visit: &DaemonVisit, explained: &PacketTimeline, context: &RunContext) -> VisitDocument {
    let machine = explained.machines.get(visit.machine).map_or("", String::as_str);
    let upcall = &visit.upcall;
    let before = |t: Ns| upcall.t.saturating_sub(t);
    let removal = |removal: &Removal| RemovalDocument {
        before_ns: before(removal.at),
        by: RemoverDocument { pid: removal.pid, name: removal.by.name.clone(), process: removal.by.tgid },
        flows: removal.flows,
        all: removal.all,
        installed_before_ns: removal.installed.map(before),
        packets: removal.packets,
        idle_ns: removal.idle_ns,
    };
    let parts = |parts: &VisitParts| VisitPartsDocument {
        handler: actor(&context.actor(machine, &parts.handler)),
        to_daemon_ns: parts.to_daemon_ns,
        asleep_ns: parts.asleep_ns,
        ready_ns: parts.ready_ns,
        running_ns: parts.running_ns,
        in_daemon_ns: parts.in_daemon_ns,
        to_kernel_ns: parts.to_kernel_ns,
    };
    VisitDocument {
        machine: machine.into(),
        reason: visit.reason,
        flow: match &upcall.flow {
            FlowState::Unknown => FlowDocument::Unknown,
            FlowState::NeverThere { since } => FlowDocument::NeverThere { known_for_ns: before(*since) },
            FlowState::Installed { at } => FlowDocument::Installed { before_ns: before(*at) },
            FlowState::Removed(removed) => FlowDocument::Removed(removal(removed)),
        },
        flows: upcall.flows,
        missed_before: upcall.missed_before,
        limits: visit
            .limits
            .map(|FlowLimits { max_idle_ns, flow_limit }| FlowLimitsDocument { max_idle_ns, flow_limit }),
        parts: visit.parts.as_ref().map(parts),
    }
}

fn packet(packet: &ExplainedPacket, context: &RunContext) -> PacketDocument {
    let (explained, attribution) = (&packet.explained, &packet.attribution);
    let begin = explained.begin();
    let since = |t: Ns| t.saturating_sub(begin.unwrap_or(0));
    let interval = |i: &CauseInterval| {
        let machine = explained.machine(i);
        let actor = |executor: &Option<Executor>| executor.as_ref().map(|e| actor(&context.actor(machine, e)));
        IntervalDocument {
            since_first_ns: since(i.from),
            time_ns: i.to.saturating_sub(i.from),
            cause: i.cause,
            machine: machine.into(),
            cpu: i.cpu,
            actor: actor(&i.actor),
            waiter: actor(&i.waiter),
            by: actor(&i.by),
            number: i.number,
            idle_state: i.state.clone(),
            note: i.note(),
        }
    };
    let segment = |hop: &Hop| SegmentDocument {
        name: context.segment((hop.from, hop.to)),
        from: context.point(hop.from),
        to: context.point(hop.to),
        since_first_ns: since(hop.begin),
        time_ns: hop.end.saturating_sub(hop.begin),
        intervals: hop.intervals.iter().map(interval).collect(),
    };
    let sighting = |s: &PacketSighting| SightingDocument {
        point: context.point(s.point),
        since_first_ns: since(s.t),
        cpu: s.cpu,
        tid: s.tid,
    };
    let cause = |of_packet: &CauseShare| CauseOfPacket {
        share: share(of_packet, attribution.excess_ns, context),
        time_ns: of_packet.time_ns,
    };
    PacketDocument {
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
        visits: explained.visits.iter().map(|one| visit(one, explained, context)).collect(),
        causes: attribution.shares.iter().map(cause).collect(),
        points: explained.seen.iter().map(sighting).collect(),
        segments: explained.hops.iter().map(segment).collect(),
        advice: packet.advice.iter().map(fix_document).collect(),
    }
}
