//! Reaches the agent in the guest over a vsock served by the hypervisor's kernel. The agent also runs commands for a
//! user on the hypervisor who observes its VM.

use crate::{
    stage::{plain, Reach, Stage, Stream, CID, GUEST, PORT},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
use std::time::Duration;

pub const TEST: Test = Test { name: "agent_by_vsock", smoke: false, only_whole: true, seconds: 500, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest_reached_by(Reach::Vsock)?;

    let report = stage.follow(&Stream::sv("MU01", 2_000))?;

    report.expect_all_complete(2_000)?;
    report.expect_route(&["host/tx@lp-pub", "host/vm-read@vnet0", "guest0/nic-rx@eth0", "guest0/app-read@relay"])?;
    report.expect_no_sighting_lost()?;
    // The guest has both ptp_kvm and KVM's record of its TSC; they agree with each other and with the message
    // exchanges.
    let guest = report.figures().machines.get(1).context("no guest")?;
    eprintln!("the guest's clock: {guest:?}");
    ensure!(["ptp_kvm", "tsc-offset"].contains(&guest.method.as_str()), "the clock is known by {guest:?}");
    ensure!(guest.fault.is_none(), "the clock has a fault: {guest:?}");

    // latpath runs as root here, so the commands connect from a reserved port.
    for command in ["exits", "queues", "ladder", "profile"] {
        runs_inside(&stage, command).with_context(|| command.to_owned())?;
    }
    Ok(())
}

/// Expects the command given to latpath to run in the guest, and its output to precede latpath's.
fn runs_inside(stage: &Stage, command: &str) -> Outcome {
    let words = format!("{command} --in {GUEST}=vsock:{CID}:{PORT} -- cat /proc/cmdline");
    let ended = stage.start(&stage.path().hypervisor, &words)?.finish(Duration::from_secs(120)).map_err(plain)?;
    ensure!(ended.code == Some(0), "{words}: exit code {:?}: {}", ended.code, ended.stderr.trim());
    let (there, here) = (ended.stdout.lines().next().unwrap_or_default(), std::fs::read_to_string("/proc/cmdline")?);
    ensure!(there.contains("console=") && there != here.trim(), "it ran elsewhere: {}", ended.stdout);
    ensure!(ended.stdout.lines().count() > 1, "it shows nothing of the window: {}", ended.stdout);
    Ok(())
}
