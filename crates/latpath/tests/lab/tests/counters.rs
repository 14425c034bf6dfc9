//! Open vSwitch's datapath, queried over generic netlink, reports the same figures as Open vSwitch's own tools,
//! including upcalls dropped at a full queue while ovs-vswitchd was stopped.

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_counters::{Datapath, Snapshot};
use latpath_lab::{Switch, NIC};
use latpath_stats::DropPlace;
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

pub const TEST: Test = Test { name: "counters", smoke: false, only_whole: true, seconds: 120, run };

/// More frames than fit into the upcall queues of two CPUs, about 12,000 each.
const FRAMES: u64 = 30_000;

fn run(_: &Scale) -> Outcome {
    let stage = Stage::lay(Switch::OpenVswitch)?;
    let netns = fs::metadata(format!("/run/netns/{}", stage.path().hypervisor.name()))?.ino() as u32;
    // Compares latpath's snapshot with the output of the tools.
    let both = || -> Result<(Snapshot, Datapath)> {
        let lookups = stage.open_vswitch()?.lookups()?;
        let snapshot = Snapshot::everywhere();
        let [datapath] = &snapshot.namespaces.get(&netns).context("not read")?.datapaths[..] else {
            anyhow::bail!("not one datapath: {snapshot:?}")
        };
        let (ours, tools) =
            ((datapath.hit, datapath.missed, datapath.lost), (lookups.hit, lookups.missed, lookups.lost));
        ensure!(ours == tools, "latpath reads {ours:?} hit, missed and lost, Open vSwitch's tools {tools:?}");
        let datapath = datapath.clone();
        Ok((snapshot, datapath))
    };

    let (begin, before) = both()?;
    stage.publish(&Stream::sv("MU01", 500))?;
    stage.wait_for_quiet()?;
    let (end, after) = both()?;
    ensure!(before.name == "ovs-system", "it is called {:?}", before.name);
    let passed = (after.hit + after.missed) - (before.hit + before.missed);
    ensure!(passed == 500, "{passed} of 500 frames were looked up");
    let difference = end.since(&begin);
    let received = difference.namespaces[&netns]
        .devices
        .values()
        .filter(|d| d.name == NIC)
        .map(|d| d.statistics.rx_packets)
        .sum::<u64>();
    ensure!(received == 500, "{NIC} received {received} of 500 frames");

    // Each frame without a flow causes an upcall; when the queue is full, upcalls are lost.
    stage.open_vswitch()?.forget_flows()?;
    let (begin, before) = both()?;
    let daemon = daemon()?;
    let drops = DropEvents::start()?;
    kill(daemon, Signal::SIGSTOP)?;
    let published = stage.publish(&Stream::sv("MU02", FRAMES).rate(6_000));
    // As docs/drops.md explains, the kernel frees a packet that does not fit into the queue as consumed, not as
    // dropped.
    let seen = drops.end();
    kill(daemon, Signal::SIGCONT)?;
    published?;
    let seen = seen?;
    ensure!(seen == 0, "{seen} drops were seen while ovs-vswitchd stood still");
    stage.wait_for_quiet()?;
    let (end, after) = both()?;
    let (missed, lost) = (after.missed - before.missed, after.lost - before.lost);
    eprintln!("{missed} upcalls, {lost} of them lost");
    ensure!(missed == FRAMES, "{missed} of {FRAMES} frames were upcalls");
    ensure!(lost > 0, "the queue of upcalls held all {FRAMES}: nothing is shown");
    let counted = DropPlace::OvsUpcallQueueFull.counted(&end.since(&begin), netns, 0);
    ensure!(counted == Some(lost), "the place counts {counted:?}, the datapath {lost}");
    Ok(())
}

/// The kernel's drop events for Sampled Values frames, in a tracefs instance of this test.
struct DropEvents(PathBuf);

impl DropEvents {
    fn start() -> Result<Self> {
        let folder = PathBuf::from(format!("/sys/kernel/tracing/instances/latpath-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let events = Self(folder);
        let event = events.0.join("events/skb/kfree_skb");
        fs::write(event.join("filter"), format!("protocol=={}", 0x88ba))?;
        fs::write(event.join("enable"), "1")?;
        Ok(events)
    }

    /// Number of events.
    fn end(self) -> Result<usize> {
        Ok(fs::read_to_string(self.0.join("trace"))?.lines().filter(|line| line.contains("kfree_skb:")).count())
    }
}

impl Drop for DropEvents {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("events/skb/kfree_skb/enable"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// ovs-vswitchd; this machine runs only the lab's.
fn daemon() -> Result<Pid> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == "ovs-vswitchd") {
            return Ok(Pid::from_raw(pid));
        }
    }
    anyhow::bail!("ovs-vswitchd does not run")
}
