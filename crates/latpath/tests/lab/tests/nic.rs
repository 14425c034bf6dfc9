//! Two linked NICs with a real driver: the sender reports when its driver has finished with a packet.

use crate::{
    linked::{emulated, has_link, run as command},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use latpath_lab::Switch;
use latpath_traffic::document::PublishDocument;
use std::{process::Command, time::Duration};

pub const TEST: Test = Test { name: "nic", smoke: false, only_whole: true, seconds: 100, run };

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    let hypervisor = stage.path().hypervisor.clone();
    let [left, right] = &emulated("e1000e")?;
    for (nic, space) in [(left, &stage.path().publisher), (right, &hypervisor)] {
        command(Command::new("ip").args(["link", "set", nic, "netns", space.name()]))?;
        // Otherwise the NIC would filter the stream's multicast frames.
        space.ip(&format!("link set {nic} promisc on up"))?;
    }
    has_link(&hypervisor, right)?;
    let frames = scale.frames(2_000, 5_000);
    let stream = Stream::sv("MU01", frames);
    let recording = stage.record(&stream, "")?;
    let words = format!("publish -i {left} --svid MU01 --rate 1000 --count {frames} --json");
    let sent = stage.start(&stage.path().publisher, &words)?.finish(Duration::from_secs(60));
    sent.and_then(|sent| sent.json::<PublishDocument>()).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    stage.wait_for_quiet()?;
    let report = recording.end(&stage)?;
    eprintln!("{}", report.in_short());
    let done = format!("host/tx-done@{left}");
    report.expect_route(&[&format!("host/tx@{left}"), &done])?;
    report.expect_all_complete(frames)?;
    report.expect_no_sighting_lost()
}
