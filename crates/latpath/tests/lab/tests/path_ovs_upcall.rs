//! A packet without a flow leaves Open vSwitch's datapath for ovs-vswitchd and returns as another skb: `latpath path`
//! recognises it, and names the points that distinguish the routes.

use crate::{
    search::{in_order, Search},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
use latpath_path::document::StepName;
use std::time::Duration;

pub const TEST: Test = Test { name: "path_ovs_upcall", smoke: false, only_whole: true, seconds: 240, run };

fn run(_: &Scale) -> Outcome {
    let stage = Stage::lay(Switch::OpenVswitch)?;
    let hypervisor = &stage.path().hypervisor;
    for words in ["link add lpt0 type veth peer name lpt1", "link set lpt0 up", "link set lpt1 up"] {
        hypervisor.ip(words)?;
    }
    stage.open_vswitch()?.add_port("lpt0")?;
    stage.open_vswitch()?.forget_flows()?;
    let before = stage.open_vswitch()?.lookups()?;

    let stream = Stream::sv("MU01", 40).rate(8);
    let search = Search::start(&stage, &format!("--stream {} --count 40 --same 3s -i nic0", stream.spec()), "")?;
    let mut publishing = stage.start_publishing(&stream)?;
    while publishing.runs() {
        stage.open_vswitch()?.forget_flows()?;
        latpath_testkit::waits::fault_for(Duration::from_secs(1));
    }
    stage.wait_for_quiet()?;
    let found = search.end()?;
    let lookups = stage.open_vswitch()?.lookups()?;

    ensure!(found.packets.len() == 40, "{} packets", found.packets.len());
    let (up, fast): (Vec<_>, Vec<_>) =
        found.packets.iter().map(|p| &p.steps).partition(|p| p.iter().any(|s| s.name == "openvswitch:ovs_dp_upcall"));
    let missed = lookups.missed - before.missed;
    eprintln!(
        "{} packets took the upcall, {} the fast path; Open vSwitch counted {missed} missed",
        up.len(),
        fast.len()
    );
    ensure!(up.len() as u64 == missed, "{} upcalls, Open vSwitch counted {missed}", up.len());
    ensure!(!up.is_empty() && !fast.is_empty(), "both routes should be there");

    for packet in up {
        in_order(
            packet,
            &[
                "net:netif_receive_skb",
                "openvswitch:ovs_dp_upcall",
                "openvswitch:ovs_do_execute_action",
                "net:net_dev_start_xmit",
            ],
        )?;
        let upcall = packet.iter().find(|s| s.name == "openvswitch:ovs_dp_upcall").context("no upcall")?;
        let back = packet.iter().find(|s| s.name == "openvswitch:ovs_do_execute_action").context("no return")?;
        ensure!(back.same_bytes, "only its bytes tie it to the packet: {back:?}");
        ensure!(back.skb != upcall.skb, "it is another skb");
        let thread = &back.thread;
        ensure!(thread.starts_with("handler"), "{thread} handed it back, not ovs-vswitchd's handler");
        // The message to ovs-vswitchd contains a copy of the packet.
        let copied = packet.iter().any(|s| s.kind == StepName::Copy && s.name == "skb_zerocopy");
        ensure!(copied, "the message to ovs-vswitchd is not followed");
    }
    for packet in fast {
        in_order(packet, &["net:netif_receive_skb", "openvswitch:ovs_do_execute_action", "net:net_dev_start_xmit"])?;
        let exec = packet.iter().find(|s| s.name == "openvswitch:ovs_do_execute_action").context("no action")?;
        ensure!(exec.point.as_deref() == Some("host/ovs-exec@nic0"), "{:?}", exec.point);
    }
    for point in ["host/ovs-upcall@nic0", "host/ovs-return@nic0", "host/ovs-exec@nic0", "host/tx@lpt0"] {
        ensure!(found.points.iter().any(|p| p == point), "{point} is not among {:?}", found.points);
    }
    ensure!(found.paths.len() >= 2, "the routes are not distinguished");
    Ok(())
}
