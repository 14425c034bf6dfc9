//! Selection of the packets to follow.

use crate::{equal, found, own, publish, reader, start, LIMIT};
use latpath_lab::{NIC, VETH};
use latpath_path::PathDocument;
use latpath_testkit::{bench, trial, Lack};
use latpath_testkit::{Failed, Trial};
use serde_json::Value;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let pcap = latpath_path::compile("ip").err().map(|e| e.to_string());
    let with_pcap = [needs, &[pcap]].concat();
    vec![
        trial("a_stream_is_chosen_by_its_svid_among_others", needs, by_svid),
        trial("a_vlan_filter_chooses_tagged_frames", &with_pcap, by_vlan),
        trial("a_filter_reads_into_the_payload", &with_pcap, by_payload),
        trial("stream_and_filter_must_both_fit", &with_pcap, both),
        trial("packets_are_picked_up_on_the_device_that_was_asked_for", needs, on_a_device),
        trial("no_more_than_count_packets_are_followed", needs, no_more),
    ]
}

/// Publishes streams one at a time while a search runs; returns the result.
fn follow(words: &str, expression: Option<&str>, publishing: &[String]) -> Result<PathDocument, Failed> {
    let bench = bench()?;
    let path = start(&bench, &format!("{words} --json"), expression)?;
    for words in publishing {
        publish(&bench, words)?;
    }
    found(path)
}

/// The lengths of the packets at their first step.
fn lengths(all: &PathDocument) -> Vec<u32> {
    all.packets.iter().map(|packet| packet.steps[0].length).collect()
}

fn by_svid() -> Result<(), Failed> {
    let (followed, other) = (own("this"), own("these"));
    let publishing = [
        format!("--svid {other} --count 20"),
        format!("--svid {followed} --count 20"),
        format!("--svid {other}x --count 20"),
    ];
    let all = follow(&format!("--stream svid:{followed} --count 100"), None, &publishing)?;
    equal("packets", all.packets.len(), 20)
}

fn by_vlan() -> Result<(), Failed> {
    let svid = own("tagged");
    let publishing = [
        format!("--svid {svid} --vlan 7 --first 0 --count 20"),
        format!("--svid {svid} --vlan 8 --first 100 --count 20"),
        format!("--svid {svid} --first 200 --count 20"),
    ];
    // Other processes on this machine send such frames too, so the stream is selected by its svID in addition.
    for (expression, want) in [
        ("ether proto 0x88ba and vlan 7", 20),
        ("vlan and ether proto 0x88ba", 40),
        ("ether proto 0x88ba", 20),
        ("vlan 9 and ether proto 0x88ba", 0),
    ] {
        let all = follow(&format!("--stream svid:{svid} --count 100"), Some(expression), &publishing)?;
        equal(expression, all.packets.len(), want)?;
    }
    let all = follow(&format!("--stream svid:{svid},vlan=8 --count 100"), None, &publishing)?;
    equal("as a stream's option", all.packets.len(), 20)
}

fn by_payload() -> Result<(), Failed> {
    let (short, long) = (own("s"), own("longer"));
    let publishing = [format!("--svid {short} --count 10"), format!("--svid {long} --count 10")];
    let stream = format!("--stream svid:{short} --stream svid:{long} --count 100");
    let all = follow(&stream, None, &publishing)?;
    let both = lengths(&all);
    let (least, most) = (both.iter().min().copied().unwrap_or(0), both.iter().max().copied().unwrap_or(0));
    equal("two lengths", (both.len(), most - least), (20, 5))?;
    // Selects the longer frames by the length in their own header, and by the packet's length.
    for expression in [format!("ether[16:2] > {}", least - 14), format!("len = {most}")] {
        let all = follow(&stream, Some(&expression), &publishing)?;
        equal(&expression, lengths(&all), vec![most; 10])?;
    }
    Ok(())
}

fn both() -> Result<(), Failed> {
    let svid = own("both");
    let publishing = [format!("--svid {svid} --count 10")];
    let all = follow(&format!("--stream svid:{svid}"), Some("arp"), &publishing)?;
    equal("packets", all.packets.len(), 0)
}

fn on_a_device() -> Result<(), Failed> {
    let svid = own("device");
    for (device, first) in [(NIC, "net:netif_rx_entry"), (VETH, "net:net_dev_queue")] {
        let bench = bench()?;
        let reader = reader(&bench, &svid, 5)?;
        let path = start(&bench, &format!("--stream svid:{svid} -i {device} --json"), None)?;
        publish(&bench, &format!("--svid {svid} --count 5"))?;
        // With `-i`, packets are first seen on this device, not at their publisher.
        reader.finish(LIMIT)?.json::<Value>()?;
        let all = found(path)?;
        equal("packets", all.packets.len(), 5)?;
        for packet in &all.packets {
            let step = &packet.steps[0];
            equal("device", step.device.as_deref(), Some(device))?;
            // Kernels before 5.11 have no tracepoint at the entry of netif_rx.
            let name = &step.name;
            equal(&format!("{name} on {device}"), name == first || name == "net:netif_rx", true)?;
        }
    }
    Ok(())
}

fn no_more() -> Result<(), Failed> {
    let svid = own("few");
    let words = format!("--stream svid:{svid} --count 7 --settle 60s");
    let all = follow(&words, None, &[format!("--svid {svid} --count 50")])?;
    equal("packets", all.packets.len(), 7)?;
    equal("others were counted", all.lost.packets_not_followed > 0, true)
}
