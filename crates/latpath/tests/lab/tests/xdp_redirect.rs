//! An XDP program redirects frames from the NIC directly to the guest's tap, bypassing the bridge: in the driver, where
//! no skb ever exists, and in the stack.

use crate::{
    stage::{Stage, Stream},
    xdp::{self, By},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_lab::{Switch, NIC, TAP};

pub const TEST: Test = Test { name: "xdp_redirect", smoke: false, only_whole: true, seconds: 200, run };

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest()?;
    let frames = scale.frames(2_000, 5_000);
    for by in [By::Driver, By::Stack] {
        let hypervisor = stage.path().hypervisor.clone();
        xdp::redirect(&hypervisor, NIC, TAP, by)?;

        let report = stage.follow(&Stream::sv("MU01", frames))?;

        report.expect_all_complete(frames)?;
        let first = match by {
            By::Driver => "host/tx@lp-pub",
            By::Stack => "host/nic-rx@nic0",
        };
        report.expect_route(&[
            first,
            "host/xdp-redirect@nic0",
            "host/tx@vnet0",
            "host/vm-read@vnet0",
            "guest0/nic-rx@eth0",
            "guest0/app-read@relay",
        ])?;
        report.expect_segments_to_add_up()?;
        report.expect_no_sighting_lost()?;
        ensure!(report.journeys_by("xdp") == frames, "not all by XDP: {}", report.in_short());
        xdp::leave(&hypervisor, NIC, by)?;
    }
    Ok(())
}
