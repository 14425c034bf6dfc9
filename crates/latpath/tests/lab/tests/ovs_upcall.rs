//! Open vSwitch's flow is removed repeatedly: exactly the frames that its datapath missed have the path "upcall".

use crate::{
    expect::Report,
    stage::{plain, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, ensure, Context};
use latpath_lab::Switch;
use latpath_testkit::waits::until;
use std::time::Duration;

pub const TEST: Test = Test { name: "ovs_upcall", smoke: false, only_whole: false, seconds: 300, run };

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", scale.frames(3_000, 20_000)).rate(500);
    stage.subscribe(&stream)?;
    let recording = stage.record(&stream, "")?;
    // `live`, with its own programs in the kernel, counts independently at the same time.
    let words = format!("live --stream {} --window 4s --json", stream.spec());
    let mut live = stage.start(&stage.path().hypervisor, &words)?;
    until("live is attached", || !live.printed().is_empty() || !live.runs()).map_err(plain)?;
    let before = stage.open_vswitch()?.lookups()?;

    let mut publishing = stage.start_publishing(&stream)?;
    while publishing.runs() {
        latpath_testkit::waits::fault_for(Duration::from_secs(1));
        stage.open_vswitch()?.forget_flows()?;
    }
    stage.wait_for_quiet()?;
    live.interrupt();
    let live = live.finish(Duration::from_secs(60)).map_err(|e| anyhow!("live: {e:?}"))?;
    let report = recording.end(&stage)?;
    let after = stage.open_vswitch()?.lookups()?;

    let (hit, missed) = (after.hit - before.hit, after.missed - before.missed);
    eprintln!("Open vSwitch counted {hit} hit, {missed} missed, {}; {}", after.lost - before.lost, report.in_short());
    // A busy emulated guest may lose packets, which another test covers.
    ensure!(report.figures().journeys == stream.frames, "{}", report.in_short());
    report.expect_no_sighting_lost()?;
    ensure!(missed > 1 && hit > 1, "too few flows were there, or removed");
    let took = |path| report.journeys_by(path);
    ensure!(took("upcall") == missed, "{} upcalls of {missed}", took("upcall"));
    ensure!(took("fast path") == hit, "{} by the fast path of {hit}", took("fast path"));
    ensure!(took("slow action") + took("direct") == 0, "packets took paths that there are not");

    let last = live.stdout.lines().last().context("live said nothing")?;
    let live = Report::parse(last)?;
    eprintln!("live: {}", live.in_short());
    // `live` counts only from the time at which the route is known.
    let (fast, upcall) = (live.journeys_by("fast path"), live.journeys_by("upcall"));
    ensure!(upcall > 0 && upcall <= missed && fast > 0 && fast <= hit, "live: {fast} and {upcall}");
    // A packet that took longer than live's window lacks the points that identify its path.
    let late = live.journeys_by("direct");
    ensure!(fast + upcall + late == live.figures().journeys, "live: {fast} + {upcall} + {late} are not all");
    ensure!(late <= live.figures().incomplete, "live: {late} complete packets took neither path");
    for (path, journeys) in [("fast path", fast), ("upcall", upcall)] {
        let timed = live.timed_by(path, "total");
        ensure!(timed == journeys, "live: {timed} times of {journeys} packets by {path}");
    }
    Ok(())
}
