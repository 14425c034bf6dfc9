//! `latpath ladder` beside a guest whose NIC is served in three ways: each queue and direction is told by which means it goes, the rungs
//! sum to the transfers, and no effect is before its cause.

use crate::{stage::Stage, Outcome, Scale, Test};
use anyhow::{anyhow, ensure, Context, Result};
use latpath_lab::{NicService, Switch, TAP};
use serde_json::Value;
use std::time::Duration;

pub const TEST: Test = Test { name: "ladder", smoke: false, only_whole: false, seconds: 500, run };

/// How the NIC is served, the variant that this is, and what the page says of it.
const SERVICES: [(NicService, &str, &str); 3] = [
    (NicService::Default, "vhost_irqfd", "C: vhost carries the packets"),
    (NicService::Relayed, "vhost_relayed", "B: vhost carries the packets, QEMU relays the interrupt"),
    (NicService::Qemu, "no_vhost", "A: no vhost"),
];

fn run(scale: &Scale) -> Outcome {
    SERVICES.into_iter().try_for_each(|(service, variant, words)| {
        served(scale, service, variant, words).with_context(|| format!("a NIC that is to be {variant}"))
    })
}

fn served(scale: &Scale, service: NicService, variant: &str, says: &str) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.service = service;
    stage.boot_guest()?;
    stage.lay_addresses()?;
    let times = scale.frames(100, 1000);
    let page = ladder(&stage, "", 50)?;
    std::fs::write(format!("/out/ladder-{variant}.txt"), &page)?;
    ensure!(page.contains(says) && page.contains("0 causality violations, 0 events lost"), "{page}");
    let json = ladder(&stage, "--json", times)?;
    let report: Value = serde_json::from_str(json.lines().last().unwrap_or_default())?;
    std::fs::write(format!("/out/ladder-{variant}.json"), format!("{report:#}"))?;

    for key in ["causality_violations", "lost_events", "ambiguous_packets"] {
        ensure!(report[key] == 0, "{key} is {}: {report:#}", report[key]);
    }
    for direction in ["from_guest", "to_guest"] {
        expect_queue(&report, direction, variant, "interrupt_injected", times).with_context(|| direction.to_owned())?;
    }
    Ok(())
}

/// What `latpath ladder` prints of so many round trips.
fn ladder(stage: &Stage, flags: &str, times: u64) -> Result<String> {
    let words = format!("ladder --vm latpath-guest0 {flags} -- busybox ping -q -c {times} -i 0.02 -W 20 192.0.2.2");
    let ended = stage.start(&stage.path().publisher, &words)?.finish(Duration::from_secs(150));
    let ended = ended.map_err(|e| anyhow!("latpath ladder: {e:?}"))?;
    ensure!(ended.code == Some(0), "latpath ladder: exit code {:?}: {}", ended.code, ended.stderr.trim());
    Ok(ended.stdout)
}

/// What is said of a tap's queue: all transfers go this way, reach this step, and add up.
pub fn expect_queue(report: &Value, direction: &str, variant: &str, last: &str, times: u64) -> Outcome {
    let is = |queue: &&Value| queue["direction"] == direction && queue["device"] == TAP;
    let queues: Vec<&Value> = report["queues"].as_array().into_iter().flatten().filter(is).collect();
    let [queue] = queues[..] else { anyhow::bail!("not one queue of {TAP}: {report:#}") };
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    ensure!(number(&queue["packets"]) >= times, "{times} were sent: {queue:#}");
    let mut transfers = 0;
    for ladder in queue["ladders"].as_array().into_iter().flatten() {
        let sums: Option<Vec<i64>> = list(ladder, "rungs").map(|rung| rung["time"]["sum_ns"].as_i64()).collect();
        let sum: i64 = sums.context("a rung without a sum")?.iter().sum();
        ensure!(ladder["total"]["sum_ns"] == sum, "the rungs do not sum to the transfers: {ladder:#}");
        let of = ladder["variant"].as_str().unwrap_or_default();
        ensure!([variant, "no_interrupt"].contains(&of), "transfers that are {of}: {queue:#}");
        if of == variant {
            transfers = number(&ladder["total"]["count"]);
            let steps: Vec<&str> = list(ladder, "drawn").filter_map(|step| step["step"].as_str()).collect();
            for step in ["begin", "packet", "interrupt_raised", last] {
                ensure!(steps.contains(&step), "no {step}: {ladder:#}");
            }
        }
    }
    eprintln!("{variant} {direction}: {transfers} transfers, {} packets, {} kicks", queue["packets"], queue["kicks"]);
    ensure!(transfers >= times / 2, "{transfers} of {times} have an interrupt: {queue:#}");
    Ok(())
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}
