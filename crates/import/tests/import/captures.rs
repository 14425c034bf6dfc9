//! Imports captures of every supported kind, alone and together with a log.

use crate::{Bench, PUB, SUB};
use flate2::{write::GzEncoder, Compression};
use latpath_model::Ns;
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_protocols::Tag;
use std::io::Write;

const BEGIN: Ns = 1_767_225_600_000_000_000;

/// A frame with two samples of a stream.
pub(crate) fn frame(svid: &str, smp_cnt: u16, vlan: Option<u16>) -> Vec<u8> {
    let asdu = |smp_cnt| AsduSpec { svid: svid.into(), smp_cnt, ..AsduSpec::default() };
    let link = FrameLink { tags: vlan.map(|vlan| Tag::new(vlan, 4)).into_iter().collect(), ..FrameLink::default() };
    FrameSpec { asdus: vec![asdu(smp_cnt), asdu(smp_cnt + 1)], link, ..FrameSpec::default() }.build().unwrap()
}

/// Encodes a pcap file with times in ns.
pub(crate) fn pcap(packets: &[(Ns, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    let word = |file: &mut Vec<u8>, word: u32| file.extend(word.to_le_bytes());
    [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65_535, 1].into_iter().for_each(|w| word(&mut file, w));
    for (t, bytes) in packets {
        let length = bytes.len() as u32;
        let header = [(t / 1_000_000_000) as u32, (t % 1_000_000_000) as u32, length, length];
        header.into_iter().for_each(|w| word(&mut file, w));
        file.extend(bytes);
    }
    file
}

/// Frames of two streams, and frames of no stream, captured `late` ns after they were sent.
fn capture(late: Ns, vlan: Option<u16>) -> Vec<(Ns, Vec<u8>)> {
    let mut packets = Vec::new();
    for n in 0..3000_u16 {
        let t = BEGIN + Ns::from(n) * 416_667 + late;
        packets.push((t, frame("MU01", n % 2400 * 2, vlan)));
        packets.push((t + 1, frame("MU02", n % 2400 * 2, vlan)));
        packets.push((t + 2, vec![0; 60]));
    }
    packets
}

#[test]
fn captures_with_and_without_a_tag_are_joined_and_files_are_known_by_their_sums() {
    let bench = Bench::new();
    bench.write("pub.pcap", pcap(&capture(0, Some(7))));
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(&pcap(&capture(50_123, None))).unwrap();
    bench.write("sub.pcap.gz", gz.finish().unwrap());
    let (manifest, packets) = bench.import(&bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.pcap.gz")])).unwrap();
    let streams: Vec<String> = manifest.streams.iter().map(ToString::to_string).collect();
    assert_eq!(streams, ["svid:MU01", "svid:MU02"]);
    assert_eq!(packets.len(), 6000);
    assert!(packets.iter().all(|p| p.t[1].unwrap() - p.t[0].unwrap() == 50_123));
    let files = &manifest.imported;
    assert_eq!((files[0].packets, files[0].left_out, files[0].resolution_ns), (6000, 3000, 1));
    assert_eq!((files[0].first_utc_ns, files[0].format.as_str()), (BEGIN, "pcap"));
    let sum = std::process::Command::new("sha256sum").arg(bench.path("sub.pcap.gz")).output().unwrap();
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(&files[1].sha256));
    assert_eq!(manifest.start.monotonic_ns, BEGIN);
}

#[test]
fn a_capture_and_a_log_are_joined_by_name_and_streams_are_chosen() {
    let bench = Bench::new();
    bench.write("pub.pcap", pcap(&capture(0, None)));
    let log: String =
        (0..3000_i64).map(|n| format!("0:MU01:{}:{}\n", n % 2400 * 2, (BEGIN + n * 416_667) / 1000 + 80)).collect();
    bench.write("sub.txt", format!("{log}SV drop: 3\n"));
    let mut options = bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.txt")]);
    let (manifest, _) = bench.import(&options).unwrap();
    assert!(manifest.notes.iter().any(|note| note.contains("svid:MU02 is in ") && note.ends_with("pub.pcap alone")));
    assert!(manifest.notes.iter().any(|note| note.ends_with("its logger counted by itself: SV drop: 3")));
    options.streams = vec!["svid:MU01".parse().unwrap()];
    let (manifest, packets) = bench.import(&options).unwrap();
    assert_eq!((packets.len(), manifest.streams.len()), (3000, 1));
    assert!(packets.iter().all(|p| p.t.iter().all(Option::is_some)));
    assert_eq!(manifest.imported[1].resolution_ns, 1000);
    options.streams = vec!["svid:MU09".parse().unwrap()];
    let error = bench.import(&options).unwrap_err().to_string();
    assert!(error.contains("none of its") && error.contains("svid:MU09"), "{error}");
    assert!(!bench.path("run").exists());
}

#[test]
fn a_truncated_capture_is_imported_to_its_end() {
    let bench = Bench::new();
    bench.write("pub.pcap", pcap(&capture(0, None)));
    let sub = pcap(&capture(40_000, None));
    bench.write("sub.pcap", &sub[..sub.len() - 10]);
    let (manifest, packets) = bench.import(&bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.pcap")])).unwrap();
    assert!(
        manifest.notes.iter().any(|note| note.contains("ends in the middle of packet 9000")),
        "{:?}",
        manifest.notes
    );
    assert!(packets.len() >= 5998);
}
