//! Why Open vSwitch had no flow for a packet: each reason (an idle flow, an emptied table, a changed rule, a purge, a
//! first packet) is named, with the times of the packet's visit to the daemon.

use crate::{
    faults::{goes_on, listen_here},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, bail, ensure, Context, Result};
use latpath_cause::NoFlow;
use latpath_lab::Switch;
use latpath_report::explanation::{FlowDocument, VisitDocument};
use latpath_report::ExplanationDocument;
use latpath_testkit::Started;
use std::time::Duration;

pub const TEST: Test = Test { name: "ovs_no_flow", smoke: false, only_whole: true, seconds: 400, run };

/// Threshold that upcalls exceed here and the fast path does not.
const THRESHOLD: &str = "--threshold 1ms";
const LIMIT: Duration = Duration::from_secs(60);

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay_without_guest(Switch::OpenVswitch)?;
    let _reader = listen_here(&stage, 0)?;
    let fast = || Stream::sv("MU01", 400_000).rate(500).publish("--cpu 0");
    let slow = Stream::sv("MU02", 400).rate(1).publish("--cpu 0");

    // Revalidators check flows twice a second, so a flow used once a second is removed as idle.
    stage.open_vswitch()?.vsctl("set Open_vSwitch . other_config:max-idle=500")?;
    let visits = visits_during(&mut stage, &slow, |_, publishing| {
        latpath_testkit::waits::fault_for(Duration::from_secs(12));
        Ok(publishing)
    })?;
    expect(&visits, NoFlow::Idle)?;
    for visit in visits.iter().filter(|visit| visit.reason == NoFlow::Idle) {
        ensure!(visit.limits.as_ref().is_some_and(|limits| limits.max_idle_ns == 500_000_000), "{visit:?}");
        let FlowDocument::Removed(removal) = &visit.flow else { bail!("no removal: {visit:?}") };
        let idle = removal.idle_ns.context("no idle time")?;
        ensure!((480_000_000..1_500_000_000).contains(&idle), "{visit:?}");
        ensure!(removal.by.name.starts_with("revalidator"), "{visit:?}");
    }

    stage.open_vswitch()?.vsctl("set Open_vSwitch . other_config:max-idle=60000")?;
    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        stage.open_vswitch()?.appctl("dpctl/del-flows")?;
        Ok(publishing)
    })?;
    expect(&visits, NoFlow::Emptied)?;
    // The daemon does not notice that the flows are gone, and installs none until its own record of them is purged.
    stage.open_vswitch()?.forget_flows()?;

    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        // The existing flows match packets with any mark; the new rule makes them invalid.
        stage.open_vswitch()?.ofctl("add-flow", "priority=1000,pkt_mark=0,dl_type=0x88ba,actions=NORMAL")?;
        Ok(publishing)
    })?;
    expect(&visits, NoFlow::Revalidated)?;

    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        stage.open_vswitch()?.forget_flows()?;
        Ok(publishing)
    })?;
    expect(&visits, NoFlow::Purged)?;

    // The stream is restarted with another destination address, for which no flow ever existed.
    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        end(publishing)?;
        stage.start_publishing(&fast().publish("--dst 01:0c:cd:04:00:77"))
    })?;
    expect(&visits, NoFlow::NeverThere)
}

fn end(publishing: Started) -> Outcome {
    publishing.interrupt();
    publishing.finish(LIMIT).map_err(|e| anyhow!("{e:?}"))?;
    Ok(())
}

/// Records a stream while `fault` runs; returns the visits of its late packets to the daemon.
fn visits_during(
    stage: &mut Stage,
    stream: &Stream,
    fault: impl FnOnce(&Stage, Started) -> Result<Started>,
) -> Result<Vec<VisitDocument>> {
    stage.in_memory = true;
    let recording = stage.record(stream, THRESHOLD)?;
    let publishing = stage.start_publishing(stream)?;
    recording.has(2 * stream.rate)?;
    let publishing = fault(stage, publishing)?;
    goes_on(stage, stream.rate)?;
    end(publishing)?;
    stage.wait_for_quiet()?;
    let run = recording.run().clone();
    eprintln!("{}", recording.end(stage)?.in_short());
    let json = stage.latpath(&format!("explain {} --json --worst 200", run.display()))?;
    let explained: ExplanationDocument = serde_json::from_str(&json).context("the explanation")?;
    eprintln!("late packets by reason: {:?}", explained.no_flow);
    let mut visits = Vec::new();
    for packet in explained.packets {
        for visit in &packet.visits {
            let Some(parts) = &visit.parts else { continue };
            let whole = parts.to_daemon_ns + parts.in_daemon_ns + parts.to_kernel_ns;
            ensure!(whole == packet.daemon_ns, "the parts are not the whole: {packet:?}");
            ensure!(parts.handler.name.starts_with("handler"), "{visit:?}");
        }
        visits.extend(packet.visits);
    }
    let with_parts = visits.iter().filter(|visit| visit.parts.is_some()).count();
    ensure!(with_parts * 2 > visits.len(), "{with_parts} of {} visits have their parts", visits.len());
    Ok(visits)
}

/// Expects all visits to have this reason, except those of a stream's first packets, which arrive before its flow is
/// installed.
fn expect(visits: &[VisitDocument], reason: NoFlow) -> Outcome {
    let named = visits.iter().filter(|visit| visit.reason == reason).count();
    let is_other = |visit: &&VisitDocument| ![reason, NoFlow::NeverThere, NoFlow::Installed].contains(&visit.reason);
    let others = visits.iter().filter(is_other).count();
    ensure!(named > 0 && others == 0, "{reason}: {visits:?}");
    Ok(())
}
