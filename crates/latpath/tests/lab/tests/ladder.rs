//! `latpath ladder` with a guest whose NIC is served in three ways: it identifies the variant of each queue and
//! direction, the times between steps add up to those of the transfers, and no effect precedes its cause. At full
//! length, the test covers 100,000 transfers.

use crate::{
    stage::{plain, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, bail, ensure, Context, Result};
use latpath_lab::{NicService, Switch, GUEST_DEVICE, TAP};
use latpath_ladder::{Direction, LadderFigures, QueueReport, Step, Variant};
use latpath_model::Observation;
use latpath_testkit::{waits, Started};
use std::time::Duration;

pub const TEST: Test = Test { name: "ladder", smoke: false, only_whole: false, seconds: 1800, run };

/// How the NIC is served, the resulting variant, and the text shown for the variant.
const SERVICES: [(NicService, Variant, &str); 3] = [
    (NicService::Default, Variant::Irqfd, "C: vhost carries the packets"),
    (NicService::Relayed, Variant::Relayed, "B: vhost carries the packets, QEMU relays the interrupt"),
    (NicService::Qemu, Variant::NoVhost, "A: no vhost"),
];

const PATIENCE: Duration = Duration::from_secs(120);

fn run(scale: &Scale) -> Outcome {
    let mut transfers = 0;
    for (service, variant, words) in SERVICES {
        transfers +=
            served(scale, service, variant, words).with_context(|| format!("a NIC that is to be {variant:?}"))?;
    }
    eprintln!("{transfers} transfers in all");
    ensure!(transfers >= scale.frames(1000, 100_000), "{transfers} transfers in all");
    Ok(())
}

/// Checks the transfers of a guest with this NIC service; returns the number of transfers of the streams.
fn served(scale: &Scale, service: NicService, variant: Variant, says: &str) -> Result<u64> {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.service = service;
    stage.boot_guest()?;
    stage.lay_addresses()?;
    let times = scale.frames(100, 300);
    let page = ladder(&stage, "", 50)?;
    std::fs::write(format!("/out/ladder-{variant:?}.txt"), &page)?;
    ensure!(page.contains(says) && page.contains("0 causality violations, 0 events lost"), "{page}");
    let json = ladder(&stage, "--json", times)?;
    std::fs::write(format!("/out/ladder-{variant:?}.json"), &json)?;
    let report: Observation<LadderFigures> = serde_json::from_str(json.lines().last().unwrap_or_default())?;

    expect_nothing_wrong(&report)?;
    for direction in Direction::ALL {
        expect_queue(&report.figures, direction, variant, Step::Injected, times)
            .with_context(|| format!("{direction:?}"))?;
    }
    let json = streams(&mut stage, scale.frames(500, 60_000))?;
    std::fs::write(format!("/out/ladder-{variant:?}-streams.json"), &json)?;
    let report: Observation<LadderFigures> = serde_json::from_str(&json)?;
    expect_nothing_wrong(&report)?;
    let mut transfers = 0;
    for direction in Direction::ALL {
        transfers += transfers_of(&report.figures, direction, variant)?.iter().map(|(_, count)| count).sum::<u64>();
    }
    Ok(transfers)
}

pub fn expect_nothing_wrong(report: &Observation<LadderFigures>) -> Outcome {
    let figures = &report.figures;
    let wrong = (figures.causality_violations, report.lost_events, figures.ambiguous_packets);
    ensure!(wrong == (0, 0, 0), "violations of causality, lost events, ambiguous packets: {wrong:?}: {report:#?}");
    Ok(())
}

/// Runs `latpath ladder` during two streams, one in each direction; returns its output.
fn streams(stage: &mut Stage, frames: u64) -> Result<String> {
    const RATE: u64 = 500;
    let stream = Stream::sv("IN", frames).rate(RATE);
    // QEMU forwards multicast only for groups that a process in the guest has joined.
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
    Ok(ended.stdout)
}

/// Runs `latpath ladder` during `times` round trips; returns its output.
fn ladder(stage: &Stage, flags: &str, times: u64) -> Result<String> {
    let words = format!("ladder --vm latpath-guest0 {flags} -- busybox ping -q -c {times} -i 0.02 -W 20 192.0.2.2");
    let ended = stage.start(&stage.path().publisher, &words)?.finish(Duration::from_secs(150));
    let ended = ended.map_err(|e| anyhow!("latpath ladder: {e:?}"))?;
    ensure!(ended.code == Some(0), "latpath ladder: exit code {:?}: {}", ended.code, ended.stderr.trim());
    Ok(ended.stdout)
}

/// Checks a tap's queue: at least half of `times` transfers are of this variant, they reach the step `last`, and the
/// times between steps add up.
pub fn expect_queue(
    figures: &LadderFigures,
    direction: Direction,
    variant: Variant,
    last: Step,
    times: u64,
) -> Outcome {
    let queue = queue(figures, direction)?;
    ensure!(queue.packets >= times, "{times} were sent: {queue:#?}");
    for ladder in queue.ladders.iter().filter(|ladder| ladder.variant == variant) {
        for step in [Step::Begin, Step::Packet, Step::Raised, last] {
            ensure!(ladder.drawn.iter().any(|drawn| drawn.step == step), "no {step:?}: {ladder:#?}");
        }
    }
    let transfers = transfers_of(figures, direction, variant)?;
    let whole = transfers.iter().find(|(of, _)| *of == variant).map_or(0, |(_, count)| *count);
    ensure!(whole >= times / 2, "{whole} of {times} have an interrupt: {queue:#?}");
    Ok(())
}

/// The tap's queue in this direction; the guest's NIC has one queue for each direction.
fn queue(figures: &LadderFigures, direction: Direction) -> Result<&QueueReport> {
    let is = |queue: &&QueueReport| queue.direction == direction && queue.device.as_deref() == Some(TAP);
    let queues: Vec<&QueueReport> = figures.queues.iter().filter(is).collect();
    let [queue] = queues[..] else { bail!("{} queues of {TAP} {direction:?}: {figures:#?}", queues.len()) };
    Ok(queue)
}

/// Number of transfers of the tap's queue for `variant` and for `NoInterrupt`. Fails if the times between a variant's
/// steps do not add up to its total, or if there is any other variant.
fn transfers_of(figures: &LadderFigures, direction: Direction, variant: Variant) -> Result<Vec<(Variant, u64)>> {
    let queue = queue(figures, direction)?;
    let mut transfers = Vec::new();
    for ladder in &queue.ladders {
        let (of, sum) = (ladder.variant, ladder.rungs.iter().map(|rung| rung.time.sum_ns).sum::<i64>());
        ensure!(ladder.total.sum_ns == sum, "the rungs do not sum to the transfers: {ladder:#?}");
        ensure!([variant, Variant::NoInterrupt].contains(&of), "transfers that are {of:?}: {queue:#?}");
        transfers.push((of, ladder.total.count));
    }
    let (packets, kicks) = (queue.packets, queue.kicks);
    eprintln!("{variant:?} {direction:?}: transfers {transfers:?}, {packets} packets, {kicks} kicks");
    Ok(transfers)
}
