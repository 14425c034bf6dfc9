//! The reported route of a packet.

use crate::{equal, found, own, publish, reader, start, until, LIMIT};
use latpath_lab::{APPLICATION, BRIDGE, NIC, PUBLISHER, VETH};
use latpath_path::{document::StepDocument, PathDocument};
use latpath_run::{Manifest, Run};
use latpath_testkit::{bench, latpath, trial, Bench, Lack};
use latpath_testkit::{Failed, Trial};
use serde_json::Value;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("each_packet_is_shown_step_by_step_from_device_to_device", needs, steps),
        trial("a_bridges_copy_is_the_same_packet", needs, copies),
        trial("packets_on_one_route_are_one_path_and_shares_add_up", needs, one_path),
        trial(
            "the_points_that_it_names_are_those_of_record_which_finds_the_port_that_leads_to_the_reader",
            needs,
            points,
        ),
        trial("a_drop_has_its_reason_and_its_function", needs, drops),
        trial("frames_with_the_same_bytes_one_after_another_are_several_packets", needs, same_bytes),
    ]
}

/// Follows 20 of 50 packets that an application reads.
fn follow(name: &str) -> Result<PathDocument, Failed> {
    follow_on(&bench()?, name)
}

fn follow_on(bench: &Bench, name: &str) -> Result<PathDocument, Failed> {
    let svid = own(name);
    let reader = reader(bench, &svid, 50)?;
    let path = start(bench, &format!("--stream svid:{svid} --count 20 --settle 60s --json"), None)?;
    publish(bench, &format!("--svid {svid} --count 50 --rate 100"))?;
    reader.finish(LIMIT)?.json::<Value>()?;
    found(path)
}

/// Name of a step's device, without its namespace.
fn device(step: &StepDocument) -> &str {
    step.device.as_deref().and_then(|device| device.split('%').next()).unwrap_or("-")
}

/// Expects these tracepoints on these devices in this order.
fn in_order(steps: &[StepDocument], want: &[(&str, &str)]) -> Result<(), Failed> {
    let mut left = steps.iter();
    for (name, on) in want {
        if !left.any(|s| s.name == *name && device(s) == *on) {
            let have: Vec<_> = steps.iter().map(|s| (&s.name, device(s))).collect();
            return Err(format!("{name} on {on} is not where it should be in {have:?}").into());
        }
    }
    Ok(())
}

fn steps() -> Result<(), Failed> {
    let all = follow("steps")?;
    equal("packets", all.packets.len(), 20)?;
    for (i, packet) in all.packets.iter().enumerate() {
        equal("number", packet.packet as usize, i + 1)?;
        let steps = &packet.steps;
        in_order(
            steps,
            &[
                ("net:net_dev_queue", PUBLISHER),
                ("net:net_dev_start_xmit", PUBLISHER),
                ("net:netif_receive_skb", NIC),
                ("net:net_dev_start_xmit", VETH),
                ("net:netif_receive_skb", APPLICATION),
            ],
        )?;
        // The bridge's own copy continues in parallel.
        in_order(steps, &[("net:netif_receive_skb", NIC), ("net:netif_receive_skb", BRIDGE)])?;
        let read = steps.iter().find(|s| s.name == "skb:skb_copy_datagram_iovec").ok_or("nobody read it")?;
        equal("reader", read.thread.as_str(), "subscribe")?;
        let times: Vec<i64> = steps.iter().map(|s| s.since_first_ns).collect();
        equal("times go up", times.is_sorted() && times[0] == 0, true)?;
        let gaps: i64 = steps.iter().map(|s| s.since_last_ns).sum();
        equal("the times between steps add up", Some(gaps), times.last().copied())?;
    }
    equal("events lost", all.lost.events, 0)
}

fn copies() -> Result<(), Failed> {
    let all = follow("copies")?;
    for packet in &all.packets {
        let steps = &packet.steps;
        let at = |name: &str, on: &str| steps.iter().find(|s| s.name == name && device(s) == on);
        let first = at("net:netif_receive_skb", NIC).ok_or("not received")?;
        let copy = at("net:net_dev_queue", VETH).ok_or("not passed on")?;
        equal("the first skb", first.skb, 0)?;
        // The packet that leaves the bridge is another skb: one of the two is a clone that is related to the packet
        // only by its bytes.
        let own_copy = at("net:netif_receive_skb", BRIDGE).ok_or("the bridge has no copy")?;
        equal("two skbs", copy.skb != own_copy.skb, true)?;
        equal("distinguished", steps.iter().any(|s| s.same_bytes), true)?;
    }
    Ok(())
}

fn one_path() -> Result<(), Failed> {
    let all = follow("paths")?;
    let paths = &all.paths;
    let counts: Vec<usize> = paths.iter().map(|path| path.packets.len()).collect();
    equal("packets on all paths", counts.iter().sum(), 20)?;
    equal("the most travelled is first", counts.is_sorted_by(|a, b| a >= b), true)?;
    let share: f64 = paths.iter().map(|path| path.share).sum();
    equal("shares add up", (share - 1.0).abs() < 1e-9, true)?;
    let mut numbers: Vec<u32> = paths.iter().flat_map(|path| path.packets.iter().copied()).collect();
    numbers.sort_unstable();
    equal("each packet is on one", numbers, (1..=20).collect())?;
    for path in paths {
        let in_stages: usize = path.stages.iter().map(|stage| stage.hops).sum();
        equal("stages hold all hops", in_stages, path.hops.len())?;
    }
    Ok(())
}

fn points() -> Result<(), Failed> {
    let bench = bench()?;
    // The bridge floods to its newest port first, so the copy to the reader is not the first one.
    let beyond = bench.lab.namespace("beyond")?;
    let hypervisor = &bench.path.hypervisor;
    hypervisor.ip(&format!("link add lp-more type veth peer name lp-far netns {}", beyond.name()))?;
    hypervisor.ip(&format!("link set lp-more master {BRIDGE} up"))?;
    beyond.ip("link set lp-far up")?;
    let all = follow_on(&bench, "points")?;
    let names: Vec<&str> = all.points.iter().map(String::as_str).collect();
    let svid = own("record");
    let reader = reader(&bench, &svid, 300)?;
    let run = bench.lab.folder().join("run");
    let words = format!("record --stream svid:{svid} --points {} -o {} --json", names.join(","), run.display());
    let mut record = bench.start(&bench.path.hypervisor, latpath(&words))?;
    until("the recording begins", || Run::open(&run).is_ok() || !record.runs())?;
    publish(&bench, &format!("--svid {svid} --count 300 --rate 200"))?;
    reader.finish(LIMIT)?.json::<Value>()?;
    until("the recording has all", || Run::open(&run).is_ok_and(|r| r.journeys() >= 300) || !record.runs())?;
    record.interrupt();
    let Manifest { points, route, .. } = record.finish(LIMIT)?.json()?;
    let mut seen: Vec<String> = points.iter().map(|info| info.point.to_string()).collect();
    // Drops are reported wherever they happen.
    seen.retain(|p| !p.contains("/drop@"));
    let mut named = all.points.clone();
    seen.sort_unstable();
    named.sort_unstable();
    equal("points", named, seen)?;
    let by_the_port = |device: &str| names.iter().any(|p| *p == format!("host/tx@{device}"));
    equal(&format!("both ports in {names:?}"), ["lp-more", VETH].map(by_the_port), [true; 2])?;
    let expected = [
        format!("host/tx@{PUBLISHER}"),
        format!("host/nic-rx@{NIC}"),
        format!("host/tx@{VETH}"),
        format!("host/nic-rx@{APPLICATION}"),
        "host/app-read@subscribe".into(),
    ];
    let route: Vec<String> = route.iter().map(ToString::to_string).collect();
    equal("the route goes by the port that leads to the reader", route, expected.into())
}

fn drops() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("drops");
    // The search ends when the three packets have no more events.
    let path = start(&bench, &format!("--stream svid:{svid} --count 3 --settle 5s --json"), None)?;
    publish(&bench, &format!("--svid {svid} --count 3 --rate 100"))?;
    let all: PathDocument = path.finish(LIMIT)?.json()?;
    for packet in &all.packets {
        // No socket receives the packet, so the stack drops it on the receiving device.
        let steps = &packet.steps;
        let dropped = steps.iter().find(|s| s.name == "skb:kfree_skb" && device(s) == APPLICATION);
        let dropped = dropped.ok_or_else(|| format!("no drop on {APPLICATION} in {steps:?}"))?;
        let place = dropped.dropped_in.as_deref().unwrap_or("");
        equal(&format!("dropped in {place}"), place.starts_with("__netif_receive_skb_core"), true)?;
        let reason = dropped.reason.as_deref().unwrap_or("");
        equal(&format!("reason {reason:?}"), ["UNHANDLED_PROTO", "NOT_SPECIFIED", "unknown"].contains(&reason), true)?;
    }
    Ok(())
}

fn same_bytes() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("twins");
    let path = start(&bench, &format!("--stream svid:{svid} --count 20 --json"), None)?;
    // The same sample repeatedly.
    for _ in 0..5 {
        publish(&bench, &format!("--svid {svid} --first 7 --count 1"))?;
    }
    let all = found(path)?;
    equal("packets", all.packets.len(), 5)
}
