//! The context of a recorded run, and its use in explanations.

use super::ExplainedPacket;
use crate::{layout::recorded_layout, Analysis};
use latpath_capture::{Capture, Packet};
use latpath_cause::{advise, Advice, Analyst, Attribution, Baseline, PacketTimeline, RunContext};
use latpath_journey::Layout;
use latpath_linux::Cpus;
use latpath_model::HOST;
use latpath_run::Run;
use latpath_vms::VmsByMachine;

/// The context of a run without an [`Analysis`]; see [`Analysis::context`].
pub fn run_context(run: &Run) -> RunContext {
    context(run, recorded_layout(run), run.vms())
}

impl Analysis<'_> {
    /// The context for explanations, without the user's segments.
    pub fn context(&self) -> RunContext {
        let segments = self.recorded_segments().to_vec();
        context(self.run, Layout { segments, ..self.layout.clone() }, self.vms.clone())
    }
}

fn context(run: &Run, layout: Layout, vms: VmsByMachine) -> RunContext {
    let manifest = run.manifest();
    let host = &manifest.host;
    let cpus = host.cpus_online.parse().ok().filter(|cpus: &Cpus| !cpus.is_empty());
    let named = manifest.machines.iter().filter_map(|m| Some((m.clock.machine.clone(), m.clock.hypervisor.clone()?)));
    RunContext {
        points: run.points().to_vec(),
        routes: layout.route.by_streams(manifest.streams.len()),
        segments: layout.segments,
        streams: manifest.streams.clone(),
        vms,
        named_hypervisors: named.collect(),
        hypervisors: Default::default(),
        processes: Default::default(),
        cpus: cpus.map(|cpus| (HOST.to_owned(), cpus)).into_iter().collect(),
        governors: host.governors.clone(),
        is_virtual: host.is_virtual,
        qdiscs: manifest.kernel.iter().flat_map(|counted| counted.qdiscs()).collect(),
        kernels: manifest.machines.iter().map(|m| (m.clock.machine.clone(), m.kernel.clone())).collect(),
        start_ns: manifest.start.monotonic_ns,
        time_of_day: manifest.time_of_day(),
    }
}

/// Explains a packet and compares it with the baseline; adds no fixes.
pub(crate) fn judge(
    context: &RunContext,
    analyst: &Analyst,
    capture: &Capture,
    packet: &Packet,
    baseline: &Baseline,
) -> ExplainedPacket {
    let route = context.route(packet.stream);
    let explained = PacketTimeline::of(analyst, capture, packet, route, &context.points);
    let attribution = Attribution::of(&explained, route, baseline, context);
    ExplainedPacket { explained, attribution, advice: Vec::new() }
}

/// Fixes for a packet's first cause.
pub(crate) fn advice(context: &RunContext, packet: &ExplainedPacket) -> Vec<Advice> {
    let first = packet.attribution.first();
    first.map_or(Vec::new(), |first| advise(first, Some(packet.explained.stream), context))
}
