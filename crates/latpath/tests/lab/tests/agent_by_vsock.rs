//! The agent in the guest is reached by a vsock that the hypervisor's kernel serves.

use crate::{
    stage::{Reach, Stage, Stream},
    Outcome, Scale, Test,
};
use latpath_lab::Switch;

pub const TEST: Test = Test { name: "agent_by_vsock", smoke: false, only_whole: true, seconds: 200, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest_reached_by(Reach::Vsock)?;

    let report = stage.follow(&Stream::sv("MU01", 2_000))?;

    report.expect_all_complete(2_000)?;
    report.expect_route(&["host/tx@lp-pub", "host/vm-read@vnet0", "guest0/nic-rx@eth0", "guest0/app-read@relay"])?;
    report.expect_no_sighting_lost()
}
