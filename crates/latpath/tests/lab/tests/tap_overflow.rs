//! A burst overflows the tap's short queue: all losses are at the tap, and their number equals the tap's drop counter.

use crate::{
    faults::{pin, vm},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::{Switch, TAP};
use latpath_vms::Role;

pub const TEST: Test = Test { name: "tap_overflow", smoke: false, only_whole: false, seconds: 200, run };

const CPU: usize = 0;

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest()?;
    stage.path().hypervisor.ip(&format!("link set {TAP} txqueuelen 10"))?;
    // vhost takes nothing off the queue during a burst: the publisher occupies its CPU.
    pin(&vm()?, Role::Vhost, CPU)?;
    let stream = Stream::sv("MU01", 2_000).publish(&format!("--burst 200 --fifo 50 --cpu {CPU}"));
    stage.subscribe(&stream)?;
    let recording = stage.record(&stream, "")?;
    let before = stage.counters(TAP)?;

    stage.publish(&stream)?;
    stage.wait_for_quiet()?;
    recording.has(stream.frames)?;
    let report = recording.end(&stage)?;

    let dropped = stage.counters(TAP)?.since(&before).tx_dropped;
    eprintln!("the tap dropped {dropped}; {}", report.in_short());
    ensure!(dropped > 0, "the tap's queue did not overflow");
    ensure!(report.figures().journeys == stream.frames);
    let place = format!("host/tx@{TAP}");
    ensure!(report.lost_at(&place) == dropped && report.lost() == dropped, "{} lost there", report.lost_at(&place));
    let why = report.reason_of_loss(&place).context("no reason")?;
    ensure!(why.contains("tun_net_xmit"), "{why}");
    ensure!(report.kernel_count(&place) == Some(dropped), "the report's own reading of the counter differs");
    Ok(())
}
