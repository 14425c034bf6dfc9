//! A packet without a flow leaves Open vSwitch's datapath for ovs-vswitchd and returns as another skb: `latpath path`
//! recognises it, and names the points that distinguish the routes.

use crate::{
    search::{in_order, name, Search},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
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

    let packets = found.packets();
    ensure!(packets.len() == 40, "{} packets", packets.len());
    let (up, fast): (Vec<_>, Vec<_>) =
        packets.into_iter().partition(|p| p.iter().any(|s| name(s) == "openvswitch:ovs_dp_upcall"));
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
        let upcall = packet.iter().find(|s| name(s) == "openvswitch:ovs_dp_upcall").context("no upcall")?;
        let back = packet.iter().find(|s| name(s) == "openvswitch:ovs_do_execute_action").context("no return")?;
        ensure!(back["same_bytes"] == true, "only its bytes tie it to the packet: {back}");
        ensure!(back["skb"] != upcall["skb"], "it is another skb");
        let thread = back["thread"].as_str().unwrap_or("");
        ensure!(thread.starts_with("handler"), "{thread} handed it back, not ovs-vswitchd's handler");
        // The message to ovs-vswitchd also contains the packet.
        let copied = packet.iter().any(|s| s["kind"] == "copy" && name(s) == "skb_zerocopy");
        ensure!(copied, "the message to ovs-vswitchd is not followed");
    }
    for packet in fast {
        in_order(packet, &["net:netif_receive_skb", "openvswitch:ovs_do_execute_action", "net:net_dev_start_xmit"])?;
        let exec = packet.iter().find(|s| name(s) == "openvswitch:ovs_do_execute_action").context("no action")?;
        ensure!(exec["point"] == "host/ovs-exec@nic0", "{}", exec["point"]);
    }
    let points = found.points();
    for point in ["host/ovs-upcall@nic0", "host/ovs-return@nic0", "host/ovs-exec@nic0", "host/tx@lpt0"] {
        ensure!(points.contains(&point), "{point} is not among {points:?}");
    }
    let paths = found.all["paths"].as_array().map_or(0, Vec::len);
    ensure!(paths >= 2, "the routes are not distinguished");
    Ok(())
}
