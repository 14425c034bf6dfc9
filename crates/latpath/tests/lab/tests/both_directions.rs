//! Traffic like that of a ping: requests into the guest and replies out of it, each direction with its own journeys.

use crate::{stage::Stage, Outcome, Scale, Test};
use anyhow::ensure;
use latpath_lab::{Switch, GUEST_DEVICE, NIC, PUBLISHER, TAP};
use std::{process::Command, time::Duration};

pub const TEST: Test = Test { name: "both_directions", smoke: false, only_whole: true, seconds: 200, run };

/// The ICMP sequence number, after an IPv4 header without options (RFC 792).
const SEQUENCE: &str = "seq:26:2";

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let times = scale.frames(50, 500);
    let [asks, answers] = stage.lay_addresses()?;
    let streams = [answers, asks].map(|mac| format!("ether:0x0800,mac={mac}"));
    let words = format!("--stream {} --match {SEQUENCE}", streams[1]);
    let recording = stage.record_spec(&streams[0], Duration::from_secs(3), &words)?;

    let mut ping = Command::new("busybox");
    ping.args(["ping", "-c", &times.to_string(), "-i", "0.05", "-W", "20", "192.0.2.2"]);
    let said = stage.start_command(&stage.path().publisher, ping)?;
    let said = said.finish(Duration::from_secs(150)).map_err(|e| anyhow::anyhow!("ping: {e:?}"))?;
    stage.wait_for_quiet()?;
    let report = recording.end(&stage)?;

    eprintln!("{}; {}", said.stdout.lines().rev().nth(1).unwrap_or_default(), report.in_short());
    let (there, back) = (report.of_stream(&streams[0])?, report.of_stream(&streams[1])?);
    for one in [&there, &back] {
        ensure!((one.figures().journeys, one.figures().complete) == (times, times), "{}", one.in_short());
        one.expect_segments_to_add_up()?;
    }
    let (nic, tap) = (format!("host/nic-rx@{NIC}"), format!("host/tx@{TAP}"));
    let (read, guest) = (format!("host/vm-read@{TAP}"), format!("guest0/nic-rx@{GUEST_DEVICE}"));
    there.expect_route(&[&format!("host/tx@{PUBLISHER}"), &nic, &tap, &read, &guest])?;
    let (sends, writes) = (format!("guest0/tx@{GUEST_DEVICE}"), format!("host/vm-write@{TAP}"));
    let (out, home) = (format!("host/tx@{NIC}"), format!("host/nic-rx@{PUBLISHER}"));
    back.expect_route(&[&sends, &writes, &out, &home, "host/app-read@busybox"])?;
    let off_route = &report.figures().off_route;
    let done = format!("guest0/tx-done@{GUEST_DEVICE}");
    ensure!(
        off_route.iter().any(|point| point.to_string() == done),
        "the guest's NIC was not seen to be done: {off_route:?}"
    );
    report.expect_no_sighting_lost()
}
