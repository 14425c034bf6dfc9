//! Sampled Values through the kernel's bridge, the tap and vhost to the guest's application: each frame has a complete
//! journey.

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use latpath_lab::Switch;

pub const TEST: Test = Test { name: "linux_bridge", smoke: false, only_whole: false, seconds: 200, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest()?;

    let report = stage.follow(&Stream::sv("MU01", 4_000))?;

    report.expect_all_complete(4_000)?;
    report.expect_route(&[
        "host/tx@lp-pub",
        "host/nic-rx@nic0",
        "host/tx@vnet0",
        "host/vm-read@vnet0",
        "guest0/nic-rx@eth0",
        "guest0/app-read@relay",
    ])?;
    report.expect_segments_to_add_up()?;
    report.expect_no_sighting_lost()
}
