//! Sampled Values through Open vSwitch's kernel datapath, with a flow for them: each frame has a complete journey.

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_lab::Switch;

pub const TEST: Test = Test { name: "ovs_fast_path", smoke: false, only_whole: true, seconds: 400, run };

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", scale.frames(3_000, 60_000));
    // Frames sent before their flow exists go to ovs-vswitchd. In this test all frames must find the flow, so it is
    // installed first and kept.
    stage.open_vswitch()?.vsctl("set Open_vSwitch . other_config:max-idle=600000")?;
    stage.publish(&Stream::sv("MU01", 10).rate(10))?;
    let before = stage.open_vswitch()?.lookups()?;

    let report = stage.follow(&stream)?;

    report.expect_all_complete(stream.frames)?;
    report.expect_route(&[
        "host/tx@lp-pub",
        "host/nic-rx@nic0",
        "host/tx@vnet0",
        "host/vm-read@vnet0",
        "guest0/nic-rx@eth0",
        "guest0/app-read@relay",
    ])?;
    report.expect_segments_to_add_up()?;
    report.expect_no_sighting_lost()?;

    let after = stage.open_vswitch()?.lookups()?;
    let (hit, missed) = (after.hit - before.hit, after.missed - before.missed);
    eprintln!("Open vSwitch counted {hit} hit, {missed} missed");
    ensure!(hit + missed == stream.frames, "Open vSwitch counted {hit} + {missed} frames of {}", stream.frames);
    // The daemon may remove the flow when it revalidates its flows.
    ensure!(missed * 100 <= stream.frames, "{missed} frames took the upcall");
    Ok(())
}
