//! Why Open vSwitch had no flow for a packet: an idle flow, an emptied table, a changed rule, a purge and a first packet
//! are each named, with the times of the packet's way through the daemon.

use crate::{
    faults::{goes_on, listen_here},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, ensure, Context, Result};
use latpath_lab::Switch;
use latpath_testkit::Started;
use serde_json::Value;
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

    // Revalidators look twice a second.
    stage.open_vswitch()?.vsctl("set Open_vSwitch . other_config:max-idle=500")?;
    let visits = visits_during(&mut stage, &slow, |_, publishing| {
        latpath_testkit::waits::fault_for(Duration::from_secs(12));
        Ok(publishing)
    })?;
    expect(&visits, "idle")?;
    for visit in with_reason(&visits, "idle") {
        ensure!(visit["limits"]["max_idle_ns"] == 500_000_000u64, "{visit}");
        let idle = visit["flow"]["idle_ns"].as_u64().context("no idle time")?;
        ensure!((480_000_000..1_500_000_000).contains(&idle), "{visit}");
        let by = visit["flow"]["by"]["name"].as_str().unwrap_or_default();
        ensure!(by.starts_with("revalidator"), "{visit}");
    }

    stage.open_vswitch()?.vsctl("set Open_vSwitch . other_config:max-idle=60000")?;
    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        stage.open_vswitch()?.appctl("dpctl/del-flows")?;
        Ok(publishing)
    })?;
    expect(&visits, "emptied")?;
    // The daemon takes the flows for installed, and installs none until it has forgotten them.
    stage.open_vswitch()?.forget_flows()?;

    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        // Flows so far match packets with any mark.
        stage.open_vswitch()?.ofctl("add-flow", "priority=1000,pkt_mark=0,dl_type=0x88ba,actions=NORMAL")?;
        Ok(publishing)
    })?;
    expect(&visits, "revalidated")?;

    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        stage.open_vswitch()?.forget_flows()?;
        Ok(publishing)
    })?;
    expect(&visits, "purged")?;

    // The stream goes on to another address.
    let visits = visits_during(&mut stage, &fast(), |stage, publishing| {
        end(publishing)?;
        stage.start_publishing(&fast().publish("--dst 01:0c:cd:04:00:77"))
    })?;
    expect(&visits, "never-there")
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
) -> Result<Vec<Value>> {
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
    let explained: Value = serde_json::from_str(&json).context("the explanation")?;
    eprintln!("late packets by reason: {}", explained["no_flow"]);
    let packets = explained["packets"].as_array().context("no packets")?;
    let visits: Vec<Value> =
        packets.iter().flat_map(|p| p["visits"].as_array().into_iter().flatten().cloned()).collect();
    for packet in packets {
        for visit in packet["visits"].as_array().into_iter().flatten() {
            let part = |key: &str| visit["parts"][key].as_u64();
            let Some((to, within, back)) =
                part("to_daemon_ns").zip(part("in_daemon_ns")).zip(part("to_kernel_ns")).map(|((a, b), c)| (a, b, c))
            else {
                continue;
            };
            ensure!(Some(to + within + back) == packet["daemon_ns"].as_u64(), "the parts are not the whole: {packet}");
            let handler = visit["parts"]["handler"]["name"].as_str().unwrap_or_default();
            ensure!(handler.starts_with("handler"), "{visit}");
        }
    }
    let with_parts = visits.iter().filter(|visit| !visit["parts"].is_null()).count();
    ensure!(with_parts * 2 > visits.len(), "{with_parts} of {} visits have their parts", visits.len());
    Ok(visits)
}

fn with_reason<'v>(visits: &'v [Value], reason: &str) -> Vec<&'v Value> {
    visits.iter().filter(|visit| visit["reason"] == reason).collect()
}

/// All visits have this reason, except for a stream's first packets, which come before its flow is installed.
fn expect(visits: &[Value], reason: &str) -> Outcome {
    let named = with_reason(visits, reason).len();
    let of_first = |visit: &&Value| visit["reason"] == "never-there" || visit["reason"] == "installed";
    let others = visits.iter().filter(|visit| visit["reason"] != reason && !of_first(visit)).count();
    ensure!(named > 0 && others == 0, "{reason}: {visits:?}");
    Ok(())
}
