//! An application reads its frames through an AF_XDP socket: the route ends where the kernel puts them into its ring.

use crate::{
    stage::{Stage, Stream},
    xdp::{By, XdpSocket},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::{Switch, NIC};

pub const TEST: Test = Test { name: "xsk", smoke: false, only_whole: true, seconds: 100, run };

fn run(scale: &Scale) -> Outcome {
    let stream = Stream::sv("MU01", scale.frames(2_000, 5_000));
    for by in [By::Driver, By::Stack] {
        let mut stage = Stage::lay(Switch::LinuxBridge)?;
        let application = XdpSocket::open(&stage.path().hypervisor, NIC, by)?;
        let recording = stage.record(&stream, "")?;

        stage.publish(&stream)?;
        stage.wait_for_quiet()?;
        let report = recording.end(&stage)?;
        let received = application.close();

        eprintln!("{by:?}: received {received}, {}", report.in_short());
        ensure!(received == stream.frames, "the application got {received} frames");
        report.expect_all_complete(stream.frames)?;
        report.expect_route(&["host/tx@lp-pub", "host/xdp-redirect@nic0", "host/xsk-rx@nic0"])?;
        ensure!(
            report.points().last().is_some_and(|last| last == "host/xsk-rx@nic0"),
            "the route goes on: {:?}",
            report.points()
        );
        report.expect_segments_to_add_up()?;
        report.expect_no_sighting_lost()?;
        ensure!(report.journeys_by("xdp") == stream.frames, "not all by XDP: {}", report.in_short());
        let tsub = report.figures().segments.iter().find(|s| s.name == "Tsub").context("no Tsub")?;
        ensure!(tsub.to == "host/xsk-rx@nic0" && tsub.times.count == stream.frames, "{tsub:?}");
    }
    Ok(())
}
