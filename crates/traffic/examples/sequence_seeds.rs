//! Writes sequences of frames and small captures: the seeds of the fuzzers of this crate.
//!
//!     cargo run --release -p latpath-traffic --example sequence_seeds -- fuzz/seeds

use latpath_protocols::{
    protocol::FrameLink,
    sv::{AsduSpec, FrameSpec},
    Tag,
};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::DataLink;
use std::time::Duration;
use std::{error::Error, fs, path::PathBuf};

fn frame(svid: &str, smp_cnt: u16) -> Vec<u8> {
    let asdu = AsduSpec { svid: svid.into(), smp_cnt, data: vec![0; 8], ..AsduSpec::default() };
    let link = FrameLink { tags: vec![Tag::new(7, 4)], ..FrameLink::default() };
    let spec = FrameSpec { asdus: vec![asdu], link, ..FrameSpec::default() };
    spec.build().expect("a small frame can be built")
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("usage: sequence_seeds DIRECTORY")?);
    let (received, capture) = (dir.join("received"), dir.join("capture"));
    fs::create_dir_all(&received)?;
    fs::create_dir_all(&capture)?;

    let sequences: [(&str, &[u16]); 5] = [
        ("in-order", &[0, 1, 2, 3, 4, 5]),
        ("wrap-at-4000", &[3998, 3999, 0, 1, 2]),
        ("wrap-at-65536", &[65534, 65535, 0, 1]),
        ("loss-late-twice", &[10, 11, 14, 13, 13, 16, 12]),
        ("restart", &[2000, 2001, 0, 1, 2]),
    ];
    for (name, counts) in sequences {
        let mut bytes = Vec::new();
        for (i, count) in counts.iter().enumerate() {
            let frame = frame(["A", "B"][i / 5], *count);
            bytes.extend(250u16.to_be_bytes());
            bytes.extend((frame.len() as u16).to_be_bytes());
            bytes.extend(frame);
        }
        fs::write(received.join(name), bytes)?;
    }

    let frames: Vec<Vec<u8>> = (0..4).map(|n| frame("A", n)).collect();
    let time = |i: usize| Duration::from_micros(1_000_000 + 250 * i as u64);
    let mut pcap = PcapWriter::new(Vec::new())?;
    let interface = InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        options: vec![InterfaceDescriptionOption::IfTsResol(9)],
    };
    let mut ng = PcapNgWriter::new(Vec::new())?;
    ng.write_block(&interface.into_block())?;
    for (i, frame) in frames.iter().enumerate() {
        pcap.write_packet(&PcapPacket::new(time(i), frame.len() as u32, frame))?;
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: time(i),
            original_len: frame.len() as u32,
            data: frame.into(),
            options: vec![],
        };
        ng.write_block(&packet.into_block())?;
    }
    fs::write(capture.join("pcap"), pcap.into_writer())?;
    fs::write(capture.join("pcapng"), ng.into_inner())?;
    Ok(())
}
