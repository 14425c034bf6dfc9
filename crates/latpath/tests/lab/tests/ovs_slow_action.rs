//! A flow whose action sends every frame to ovs-vswitchd (by sampling all of them): each frame is seen at
//! `host/ovs-slow@nic0` and therefore has the path "slow action".

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_lab::Switch;

pub const TEST: Test = Test { name: "ovs_slow_action", smoke: false, only_whole: true, seconds: 200, run };

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", scale.frames(500, 2_000)).rate(200);
    // The daemon handles each packet of this rule itself: its flow in the datapath has a userspace action.
    stage.open_vswitch()?.ofctl("add-flow", "dl_type=0x88ba,actions=controller(max_len=0),normal")?;

    let report = stage.follow(&stream)?;

    report.expect_all_complete(stream.frames)?;
    report.expect_segments_to_add_up()?;
    let slow = report.journeys_by("slow action") + report.journeys_by("upcall");
    ensure!(slow == stream.frames, "{slow} of {} went through the daemon: {}", stream.frames, report.in_short());
    ensure!(report.journeys_by("slow action") * 2 > stream.frames, "most were upcalls: {}", report.in_short());
    Ok(())
}
