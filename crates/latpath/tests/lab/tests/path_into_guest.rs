//! `latpath path` follows a packet to the vhost worker, which reads it from the tap for the guest, and follows packets
//! sent by the guest from the tap onwards.

use crate::{
    search::{in_order, Search},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::{Switch, GUEST_DEVICE, NIC, TAP};

pub const TEST: Test = Test { name: "path_into_guest", smoke: false, only_whole: true, seconds: 300, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", 40).rate(20);
    stage.subscribe(&stream)?;
    // Earlier packets install the switch's flow.
    stage.publish(&stream)?;

    let search = Search::start(&stage, &format!("--stream {} --count 10 -i {NIC}", stream.spec()), "")?;
    stage.publish(&stream)?;
    stage.wait_for_quiet()?;
    let found = search.end()?;
    ensure!(found.packets.len() == 10, "{} packets", found.packets.len());
    for packet in &found.packets {
        in_order(&packet.steps, &["net:netif_receive_skb", "net:net_dev_start_xmit", "skb:skb_copy_datagram_iovec"])?;
        let read = packet.steps.iter().find(|s| s.name == "skb:skb_copy_datagram_iovec").context("nobody read it")?;
        ensure!(read.point == Some(format!("host/vm-read@{TAP}")), "it was read at {:?}", read.point);
        let thread = &read.thread;
        ensure!(thread.starts_with("vhost-"), "{thread} took it off the tap, not a vhost worker");
    }
    ensure!(found.points.contains(&format!("host/tx@{TAP}")), "the points are {:?}", found.points);

    let search = Search::start(&stage, &format!("--stream svid:GUEST --count 10 -i {TAP}"), "")?;
    let words = format!("latpath publish -i {GUEST_DEVICE} --svid GUEST --count 10 --rate 20");
    stage.guest()?.expect(&words, &|| false)?;
    stage.wait_for_quiet()?;
    let found = search.end()?;
    ensure!(found.packets.len() == 10, "{} packets from the guest", found.packets.len());
    for packet in &found.packets {
        let first = packet.steps.first().context("no steps")?;
        ensure!(first.device.as_deref() == Some(TAP), "first seen on {:?}", first.device);
        in_order(&packet.steps, &["net:netif_receive_skb", "net:net_dev_start_xmit"])?;
    }
    for point in [format!("host/vm-write@{TAP}"), format!("host/tx@{NIC}")] {
        ensure!(found.points.contains(&point), "{point} is not among {:?}", found.points);
    }
    Ok(())
}
