//! `latpath ladder` with a guest whose NIC is served in three ways: it identifies the variant of each queue and
//! direction, the rungs add up to the transfers, and no effect precedes its cause. At full length over 100,000
//! transfers.

use crate::{
    stage::{plain, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, bail, ensure, Context, Result};
use latpath_lab::{NicService, Switch, GUEST_DEVICE, TAP};
use latpath_testkit::{waits, Started};
use serde_json::Value;
use std::time::Duration;

pub const TEST: Test = Test { name: "ladder", smoke: false, only_whole: false, seconds: 1800, run };

/// Service of the NIC, the resulting variant, and the page's text for it.
const SERVICES: [(NicService, &str, &str); 3] = [
    (NicService::Default, "vhost_irqfd", "C: vhost carries the packets"),
    (NicService::Relayed, "vhost_relayed", "B: vhost carries the packets, QEMU relays the interrupt"),
    (NicService::Qemu, "no_vhost", "A: no vhost"),
];

const PATIENCE: Duration = Duration::from_secs(120);

fn run(scale: &Scale) -> Outcome {
    let mut transfers = 0;
    for (service, variant, words) in SERVICES {
        transfers +=
            served(scale, service, variant, words).with_context(|| format!("a NIC that is to be {variant}"))?;
    }
    eprintln!("{transfers} transfers in all");
    ensure!(transfers >= scale.frames(1000, 100_000), "{transfers} transfers in all");
    Ok(())
}

/// Returns the number of the streams' transfers.
fn served(scale: &Scale, service: NicService, variant: &str, says: &str) -> Result<u64> {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.service = service;
    stage.boot_guest()?;
    stage.lay_addresses()?;
    let times = scale.frames(100, 300);
    let page = ladder(&stage, "", 50)?;
    std::fs::write(format!("/out/ladder-{variant}.txt"), &page)?;
    ensure!(page.contains(says) && page.contains("0 causality violations, 0 events lost"), "{page}");
    let json = ladder(&stage, "--json", times)?;
    let report: Value = serde_json::from_str(json.lines().last().unwrap_or_default())?;
    std::fs::write(format!("/out/ladder-{variant}.json"), format!("{report:#}"))?;

    expect_nothing_wrong(&report)?;
    for direction in ["from_guest", "to_guest"] {
        expect_queue(&report, direction, variant, "interrupt_injected", times).with_context(|| direction.to_owned())?;
    }
    let report = streams(&mut stage, scale.frames(500, 60_000))?;
    std::fs::write(format!("/out/ladder-{variant}-streams.json"), format!("{report:#}"))?;
    expect_nothing_wrong(&report)?;
    let mut transfers = 0;
    for direction in ["from_guest", "to_guest"] {
        transfers += transfers_of(&report, direction, variant)?.iter().map(|(_, count)| count).sum::<u64>();
    }
    Ok(transfers)
}

fn expect_nothing_wrong(report: &Value) -> Outcome {
    for key in ["causality_violations", "lost_events", "ambiguous_packets"] {
        ensure!(report[key] == 0, "{key} is {}: {report:#}", report[key]);
    }
    Ok(())
}

/// Output of `latpath ladder` for two streams, one in each direction.
fn streams(stage: &mut Stage, frames: u64) -> Result<Value> {
    const RATE: u64 = 500;
    let stream = Stream::sv("IN", frames).rate(RATE);
    // QEMU only passes on groups that a process in the guest has joined.
    stage.subscribe(&stream)?;
    let mut ladder = stage.start(&stage.path().hypervisor, "ladder --vm latpath-guest0 --json")?;
    let begins = |ladder: &mut Started| ladder.said().contains("following transfers") || !ladder.runs();
    waits::until_within(PATIENCE, "latpath ladder watches", || begins(&mut ladder)).map_err(plain)?;
    ensure!(ladder.runs(), "it ended: {}", ladder.said());
    let publishing = stage.start_publishing(&stream)?;
    let limit = PATIENCE + Duration::from_secs(3 * frames / RATE);
    let words = format!("latpath publish -i {GUEST_DEVICE} --svid OUT --rate {RATE} --count {frames}");
    stage.guest()?.run(&words, limit, &|| false)?;
    publishing.finish(limit).map_err(plain)?;
    stage.wait_for_quiet()?;
    ladder.interrupt();
    let ended = ladder.finish(PATIENCE).map_err(plain)?;
    ensure!(ended.code == Some(0), "latpath ladder: exit code {:?}: {}", ended.code, ended.stderr.trim());
    stage.unsubscribe()?;
    Ok(serde_json::from_str(&ended.stdout)?)
}

/// Output of `latpath ladder` for `times` round trips.
fn ladder(stage: &Stage, flags: &str, times: u64) -> Result<String> {
    let words = format!("ladder --vm latpath-guest0 {flags} -- busybox ping -q -c {times} -i 0.02 -W 20 192.0.2.2");
    let ended = stage.start(&stage.path().publisher, &words)?.finish(Duration::from_secs(150));
    let ended = ended.map_err(|e| anyhow!("latpath ladder: {e:?}"))?;
    ensure!(ended.code == Some(0), "latpath ladder: exit code {:?}: {}", ended.code, ended.stderr.trim());
    Ok(ended.stdout)
}

/// Expects all transfers of a tap's queue to be of this variant, reach this step, and add up.
pub fn expect_queue(report: &Value, direction: &str, variant: &str, last: &str, times: u64) -> Outcome {
    let queue = queue(report, direction)?;
    ensure!(queue["packets"].as_u64() >= Some(times), "{times} were sent: {queue:#}");
    for ladder in list(queue, "ladders").filter(|ladder| ladder["variant"] == variant) {
        let steps: Vec<&str> = list(ladder, "drawn").filter_map(|step| step["step"].as_str()).collect();
        for step in ["begin", "packet", "interrupt_raised", last] {
            ensure!(steps.contains(&step), "no {step}: {ladder:#}");
        }
    }
    let transfers = transfers_of(report, direction, variant)?;
    let whole = transfers.iter().find(|(of, _)| of == variant).map_or(0, |(_, count)| *count);
    ensure!(whole >= times / 2, "{whole} of {times} have an interrupt: {queue:#}");
    Ok(())
}

/// The tap's queue of this direction; the guest's NIC has one for each.
fn queue<'a>(report: &'a Value, direction: &str) -> Result<&'a Value> {
    let is = |queue: &&Value| queue["direction"] == direction && queue["device"] == TAP;
    let queues: Vec<&Value> = list(report, "queues").filter(is).collect();
    let [queue] = queues[..] else { bail!("{} queues of {TAP} {direction}: {report:#}", queues.len()) };
    Ok(queue)
}

/// Numbers of transfers of a tap's queue by variant: this one, or without an interrupt. Expects the rungs of each to
/// add up.
fn transfers_of(report: &Value, direction: &str, variant: &str) -> Result<Vec<(String, u64)>> {
    let queue = queue(report, direction)?;
    let mut transfers = Vec::new();
    for ladder in list(queue, "ladders") {
        let sums: Option<Vec<i64>> = list(ladder, "rungs").map(|rung| rung["time"]["sum_ns"].as_i64()).collect();
        let sum: i64 = sums.context("a rung without a sum")?.iter().sum();
        ensure!(ladder["total"]["sum_ns"] == sum, "the rungs do not sum to the transfers: {ladder:#}");
        let of = ladder["variant"].as_str().unwrap_or_default();
        ensure!([variant, "no_interrupt"].contains(&of), "transfers that are {of}: {queue:#}");
        transfers.push((of.to_owned(), ladder["total"]["count"].as_u64().unwrap_or_default()));
    }
    eprintln!("{variant} {direction}: transfers {transfers:?}, {} packets, {} kicks", queue["packets"], queue["kicks"]);
    Ok(transfers)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}
