//! Open vSwitch's flow is removed again and again: exactly the frames that its datapath missed are of the path "upcall".

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_lab::Switch;
use std::{thread, time::Duration};

pub const TEST: Test = Test { name: "ovs_upcall", only_whole: false, seconds: 300, run };

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", scale.frames(3_000, 20_000)).rate(500);
    stage.subscribe(&stream)?;
    let recording = stage.record(&stream, "")?;
    let before = stage.open_vswitch()?.lookups()?;

    let mut publishing = stage.start_publishing(&stream)?;
    while publishing.runs() {
        thread::sleep(Duration::from_secs(1));
        stage.open_vswitch()?.forget_flows()?;
    }
    stage.wait_for_quiet()?;
    let report = recording.end(&stage)?;
    let after = stage.open_vswitch()?.lookups()?;

    let (hit, missed) = (after.hit - before.hit, after.missed - before.missed);
    eprintln!("Open vSwitch counted {hit} hit, {missed} missed, {}; {}", after.lost - before.lost, report.in_short());
    report.expect_all_complete(stream.frames)?;
    report.expect_segments_to_add_up()?;
    report.expect_no_sighting_lost()?;
    ensure!(missed > 1 && hit > missed, "too few flows were there, or removed");
    let took = |path| report.journeys_by(path);
    ensure!(took("upcall") == missed, "{} upcalls of {missed}", took("upcall"));
    ensure!(took("fast path") == hit, "{} by the fast path of {hit}", took("fast path"));
    ensure!(took("slow action") + took("direct") == 0, "packets took paths that there are not");
    Ok(())
}
