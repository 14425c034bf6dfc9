//! Open vSwitch's daemon is stopped and no flow exists: all frames are lost on the way to the daemon.

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_lab::Switch;
use nix::sys::signal::Signal;
use std::time::Duration;

pub const TEST: Test = Test { name: "ovs_daemon_stops", smoke: false, only_whole: true, seconds: 200, run };

/// Maximum lateness of a packet.
const WINDOW: Duration = Duration::from_secs(4);

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    // Frames of 8 ASDUs, about 1 KB, so that few fit into the daemon's socket. They are sent from one CPU, because each
    // CPU has its own queue and one must overflow.
    let large = "--profile 9-2le-50-meas --wrap 65536 --cpu 0";
    let with_flow = Stream::sv("MU01", 500).rate(200).publish(large);
    let without = Stream::sv("MU01", 7_000).rate(3000).publish(&format!("{large} --first 4000"));
    stage.subscribe(&with_flow)?;
    let recording = stage.record_spec(&with_flow.spec(), WINDOW, "")?;
    let before = stage.open_vswitch()?.lookups()?;

    stage.publish(&with_flow)?;
    stage.wait_for_quiet()?;
    stage.open_vswitch()?.forget_flows()?;
    stage.signal_daemon(Signal::SIGSTOP)?;
    let sent = stage.publish(&without);
    let sent = sent.and_then(|_| recording.has(with_flow.frames + without.frames));
    let sent = sent.and_then(|()| recording.end(&stage));
    stage.signal_daemon(Signal::SIGCONT)?;
    let report = sent?;

    let lost = stage.open_vswitch()?.lookups()?.lost - before.lost;
    eprintln!("Open vSwitch lost {lost}; {}", report.in_short());
    ensure!(lost > 0, "the daemon's queue did not overflow");
    ensure!(report.journeys_by("upcall") >= without.frames, "not all asked the daemon");
    // Includes packets that did not fit into the queue and packets that are still in it; the kernel reports neither as
    // dropped.
    let at = report.lost_at("host/ovs-upcall@nic0");
    ensure!(at == without.frames && report.lost() == at, "{at} of {} got as far as the upcall", without.frames);
    // The datapath's count, read before the daemon resumed.
    ensure!(
        report.kernel_count("host/ovs-upcall@nic0") == Some(lost),
        "the report's own reading of the counter differs"
    );
    report.expect_no_sighting_lost()
}
