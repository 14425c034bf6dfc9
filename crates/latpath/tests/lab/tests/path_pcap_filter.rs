//! A pcap filter selects tagged frames even when the frame's bytes no longer contain the tag: the kernel removes it at
//! reception, and Open vSwitch's datapath has it only in the skb's metadata.

use crate::{
    search::Search,
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_lab::Switch;

pub const TEST: Test = Test { name: "path_pcap_filter", smoke: false, only_whole: true, seconds: 240, run };

fn run(_: &Scale) -> Outcome {
    let stage = Stage::lay(Switch::OpenVswitch)?;
    // Searches at a port of the switch, where the tag has already been removed; returns the number of packets found.
    let count = |expression: &str, words: &str| -> anyhow::Result<usize> {
        let search = Search::start(&stage, &format!("--count 100 --with tracepoints {words}"), expression)?;
        for (vlan, svid) in [("--vlan 7", "MU07"), ("--vlan 8", "MU08"), ("", "MU00")] {
            stage.publish(&Stream::sv(svid, 10).rate(100).publish(vlan))?;
        }
        stage.wait_for_quiet()?;
        Ok(search.end()?.packets.len())
    };
    for (expression, want) in [
        ("ether proto 0x88ba and vlan 7", 10),
        ("vlan and ether proto 0x88ba", 20),
        ("ether proto 0x88ba", 10),
        ("vlan 9", 0),
        ("vlan 8 and ether[22:2] = 0x6010", 0),
    ] {
        for device in ["-i nic0", "-i lp-pub"] {
            let found = count(expression, device)?;
            ensure!(found == want, "{expression} {device}: {found} packets, should be {want}");
        }
    }
    Ok(())
}
