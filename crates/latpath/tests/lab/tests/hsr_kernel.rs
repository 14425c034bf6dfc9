//! The kernel's own driver for redundant networks (PRP, HSR) sends, receives and discards the copies. Each packet is
//! one journey, a discarded copy does not count as lost, and latpath's losses on each LAN equal those reported by the
//! kernel and tcpdump.
//!
//! ```text
//!  namespace pub                 namespace sub
//!         ┌─ pa ─────LAN A───── ra ─┐
//!   hsr0 ─┤                         ├─ hsr1 ── application
//!         └─ pb ─────LAN B───── rb ─┘
//! ```

use crate::{
    linked::{has_link, plain, run as command},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_model::SegmentKind;
use latpath_report::Report;
use latpath_stats::figures::packets;
use latpath_testkit::waits::{delivered, listens, says, until};
use latpath_testkit::{latpath, Space, Started};
use latpath_traffic::document::{PublishDocument, SubscribeDocument};
use std::{path::PathBuf, process::Command, time::Duration};

pub const TEST: Test = Test { name: "hsr_kernel", smoke: false, only_whole: false, seconds: 240, run };

/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of packets that the sender's driver drops while a port goes down or comes up, and of copies that
/// tcpdump misses.
const MAX_DROPPED: u64 = 4;
/// MAC addresses of the two nodes; a node uses the same address on both ports.
const NODES: [&str; 2] = ["02:00:00:00:0a:01", "02:00:00:00:0a:02"];

fn run(scale: &Scale) -> Outcome {
    let frames = scale.frames(400, 2_000);
    for protocol in [PRP, HSR] {
        of_kernel(&protocol, frames).context(protocol.name)?;
    }
    Ok(())
}

struct Protocol {
    name: &'static str,
    /// Parameters of the HSR device for `ip link`.
    device: &'static str,
    /// tcpdump's filter for the stream's frames.
    filter: &'static str,
}

const PRP: Protocol = Protocol { name: "PRP", device: "proto 1", filter: "ether proto 0x88ba" };
const HSR: Protocol =
    Protocol { name: "HSR", device: "version 1", filter: "ether[12:2] = 0x892f and ether[18:2] = 0x88ba" };

/// Two nodes, each with an HSR device over two ports.
struct Nodes([Space; 2]);

/// Names of a node's device and ports.
const DEVICES: [[&str; 3]; 2] = [["hsr0", "pa", "pb"], ["hsr1", "ra", "rb"]];

impl Nodes {
    fn new(protocol: &Protocol) -> Result<Self> {
        let space = |role| Space::new(role).map_err(plain);
        let nodes = Self([space("pub")?, space("sub")?]);
        let Self([first, second]) = &nodes;
        for lan in [1, 2] {
            let [here, there] = [DEVICES[0][lan], DEVICES[1][lan]];
            first.ip(&format!("link add {here} type veth peer name {there} netns {}", second.name()))?;
        }
        for (node, [device, a, b]) in nodes.0.iter().zip(DEVICES) {
            let address = if device == "hsr0" { NODES[0] } else { NODES[1] };
            for port in [a, b] {
                node.ip(&format!("link set {port} address {address}"))?;
                node.ip(&format!("link set {port} up"))?;
            }
            let made = format!("link add {device} type hsr slave1 {a} slave2 {b} supervision 45 {}", protocol.device);
            node.ip(&made)?;
            node.ip(&format!("link set {device} up"))?;
        }
        for (node, [device, ..]) in nodes.0.iter().zip(DEVICES) {
            has_link(node, device)?;
        }
        Ok(nodes)
    }

    fn publish(&self, first: u64, count: u64) -> Outcome {
        let words =
            format!("publish -i hsr0 --svid MU01 --first {first} --count {count} --wrap 65536 --rate 500 --json");
        let sent: PublishDocument = self.0[0].run(latpath(&words)).and_then(|ended| ended.json()).map_err(plain)?;
        ensure!(sent.frames_sent == count && sent.refused == 0, "not all frames were sent: {sent:?}");
        delivered().map_err(plain)
    }

    /// Sets the sender's port of a LAN up or down.
    fn set(&self, port: &str, state: &str) -> Outcome {
        self.0[0].ip(&format!("link set {port} {state}"))?;
        match state {
            "up" => has_link(&self.0[0], port),
            _ => Ok(()),
        }
    }

    /// Captures the incoming frames on a port of the receiver.
    fn capture(&self, port: &str) -> Result<(Started, PathBuf)> {
        let file = self.0[1].folder().join(format!("{port}.pcap"));
        let mut tcpdump = Command::new("tcpdump");
        tcpdump.args(["-i", port, "-Q", "in", "--immediate-mode", "-U", "-Z", "root", "-w"]).arg(&file);
        let mut tcpdump = self.0[1].start(tcpdump).map_err(plain)?;
        says(&mut tcpdump, "listening on").map_err(plain)?;
        Ok((tcpdump, file))
    }
}

fn of_kernel(protocol: &Protocol, frames: u64) -> Outcome {
    let nodes = Nodes::new(protocol)?;
    let receiver = &nodes.0[1];
    let path = receiver.folder().join("run");
    let words = format!("record -s svid:MU01 --no-flight --window 4s -o {}", path.display());
    let recording = receiver.start(latpath(&words)).map_err(plain)?;
    until("the recording has begun", || path.join("manifest.json").exists()).map_err(plain)?;
    let mut reader = receiver.start(latpath("subscribe -i hsr1 -s svid:MU01 --json")).map_err(plain)?;
    listens(&mut reader).map_err(plain)?;
    let captures = [nodes.capture("ra")?, nodes.capture("rb")?];
    let delivered_before = receiver.counters_of("hsr1")?.rx_packets;

    // Both LANs, B alone, A alone, and both again.
    let phases = [&[][..], &["pa"], &["pb"], &[]];
    for (phase, lost) in (0..).zip(phases) {
        lost.iter().try_for_each(|port| nodes.set(port, "down"))?;
        nodes.publish(phase * frames, frames)?;
        lost.iter().try_for_each(|port| nodes.set(port, "up"))?;
    }
    let sent = phases.len() as u64 * frames;
    let by_kernel = receiver.counters_of("hsr1")?.rx_packets - delivered_before;
    ensure!((sent - MAX_DROPPED..=sent).contains(&by_kernel), "the kernel delivered {by_kernel} of {sent} packets");
    let [ended, read] = [recording, reader].map(|process| {
        process.interrupt();
        process.finish(PATIENCE).map_err(plain)
    });
    let (ended, read) = (ended?, read?.json::<SubscribeDocument>().map_err(plain)?);
    ensure!(ended.code == Some(0), "{}", ended.stderr);
    ensure!(read.received == by_kernel && read.duplicates == 0, "the application's counts: {read:?}");
    let mut captured = [0, 0];
    for (count, (tcpdump, file)) in captured.iter_mut().zip(captures) {
        tcpdump.interrupt();
        tcpdump.finish(PATIENCE).map_err(plain)?;
        let lines = command(Command::new("tcpdump").args(["-n", "-r"]).arg(file).arg(protocol.filter))?;
        // Count one line per packet: continuation lines with a packet's bytes begin with a tab.
        *count = lines.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count() as u64;
    }
    let by_both = 3 * frames - MAX_DROPPED..=3 * frames;
    ensure!(captured.iter().all(|copies| by_both.contains(copies)), "tcpdump saw {captured:?} copies");

    let shown = command(&mut latpath(&format!("report {} --json", path.display())))?;
    let figures = serde_json::from_str::<Report<'static>>(&shown).context("the report")?.summary;
    let route: Vec<String> = figures.points.iter().map(ToString::to_string).collect();
    eprintln!("{}: {route:?}, lost {:?}, LANs {:?}", protocol.name, figures.lost, figures.lans);
    let whole = (figures.journeys, figures.complete);
    ensure!(whole == (sent, by_kernel), "{whole:?} of {sent} journeys, {by_kernel} complete");
    // A frame that the sender's driver dropped is lost; a copy that the receiver's driver discarded is not.
    ensure!(
        packets(&figures.lost) == sent - by_kernel && figures.duplicates == 0,
        "a discarded copy counts: {:?}",
        figures.lost
    );
    for point in ["host/nic-rx@copy:first", "host/nic-rx@hsr1"] {
        ensure!(route.iter().any(|on| on == point), "{point} is not on the route {route:?}");
    }
    ensure!(route.last().is_some_and(|last| last.starts_with("host/app-read@")), "the route ends elsewhere: {route:?}");
    for (lan, port, copies) in [("A", "ra", captured[0]), ("B", "rb", captured[1])] {
        let point = format!("host/nic-rx@{port}:{lan}");
        let row = figures.lans.iter().find(|row| row.lan == lan && row.points.contains(&point));
        let row = row.with_context(|| format!("no {point} in {:?}", figures.lans))?;
        ensure!(
            row.packets + row.lost == sent && row.packets.abs_diff(copies) <= MAX_DROPPED,
            "LAN {lan}: {row:?}, tcpdump saw {copies}"
        );
    }
    let skews = figures.segments.iter().filter(|segment| segment.kind == SegmentKind::Tskew);
    let at_ports = skews.clone().find(|segment| segment.from == "host/nic-rx@copy:first").context("no Tskew")?;
    let came_by_both = captured[0] + captured[1] - by_kernel;
    ensure!(
        at_ports.times.count.abs_diff(came_by_both) <= 2 * MAX_DROPPED,
        "{} packets came by both LANs",
        at_ports.times.count
    );
    ensure!(skews.clone().all(|segment| segment.times.negative == 0), "a second copy before the first");
    Ok(())
}
