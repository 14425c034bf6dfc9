//! Imports files with several interfaces, files with truncated frames, and streams whose senders count from 1.

use crate::captures::{frame, pcap};
use crate::{Bench, PUB, SUB};
use latpath_model::Ns;
use latpath_protocols::sv::{AsduSpec, FrameSpec};

const BEGIN: Ns = 1_767_225_600_000_000_000;
const CSIN: &str = "host/nic-rx@csin";
const VNET0: &str = "host/tx@vnet0";

fn block(file: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let padded = body.len().next_multiple_of(4);
    let len = (padded as u32 + 12).to_le_bytes();
    file.extend(kind.to_le_bytes());
    file.extend(len);
    file.extend(body);
    file.resize(file.len() + padded - body.len(), 0);
    file.extend(len);
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Encodes a pcapng file with times in ns and interfaces with these names; packets refer to interfaces by index.
fn pcapng(names: &[&str], packets: &[(u32, Ns, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    block(&mut file, 0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    for name in names {
        let mut body = words(&[1, 0]);
        body.extend([2, 0, name.len() as u8, 0]);
        body.extend(name.bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([9, 0, 1, 0, 9, 0, 0, 0]);
        block(&mut file, 1, &body);
    }
    for (interface, t, bytes) in packets {
        let len = bytes.len() as u32;
        let body = [words(&[*interface, (*t >> 32) as u32, *t as u32, len, len]), bytes.clone()].concat();
        block(&mut file, 6, &body);
    }
    file
}

/// Packets that pass both interfaces, 50 µs apart.
fn both() -> Vec<(u32, Ns, Vec<u8>)> {
    let packets = (0..400_u16).flat_map(|n| {
        let (t, bytes) = (BEGIN + Ns::from(n) * 250_000, frame("MU01", n * 2, None));
        [(0, t, bytes.clone()), (1, t + 50_000, bytes)]
    });
    packets.collect()
}

#[test]
fn interfaces_of_one_file_are_separate_points() {
    let bench = Bench::new();
    bench.write("named.pcapng", pcapng(&["csin", "vnet0"], &both()));
    bench.write("as-exported.pcapng", pcapng(&[CSIN, VNET0], &both()));
    bench.write("others.pcapng", pcapng(&["a", "b"], &both()));
    for (first, second) in [
        ("named.pcapng", "named.pcapng"),
        ("as-exported.pcapng", "as-exported.pcapng"),
        ("others.pcapng,interface=a", "others.pcapng,interface=b"),
        ("others.pcapng,interface=0", "others.pcapng,interface=1"),
    ] {
        let (manifest, packets) = bench.import(&bench.options(&[(CSIN, first), (VNET0, second)])).unwrap();
        assert_eq!((packets.len(), manifest.notes), (400, Vec::new()), "{first}");
        assert!(packets.iter().all(|p| p.duplicates == 0 && p.t == [p.t[0], p.t[0].map(|t| t + 50_000)]), "{first}");
        assert_eq!((manifest.imported[0].packets, manifest.imported[0].left_out), (400, 400));
    }
}

#[test]
fn an_ambiguous_interface_is_an_error_with_advice() {
    let bench = Bench::new();
    bench.write("others.pcapng", pcapng(&["a", "b"], &both()));
    let error = |first: &str| bench.import(&bench.options(&[(CSIN, first), (VNET0, first)])).unwrap_err().to_string();
    let several = error("others.pcapng");
    assert!(several.contains("interfaces (a, b)") && several.contains(",interface=NAME"), "{several}");
    let none = error("others.pcapng,interface=eth7");
    assert!(none.contains("no packet is of interface eth7") && none.contains("a, b"), "{none}");
    assert!(!bench.path("run").exists());
    // If only one interface has packets, it is selected, whatever its name.
    let one: Vec<_> = both().into_iter().filter(|(interface, ..)| *interface == 1).collect();
    bench.write("one.pcapng", pcapng(&["a", "b"], &one));
    let (manifest, packets) = bench.import(&bench.options(&[(CSIN, "one.pcapng"), (VNET0, "one.pcapng")])).unwrap();
    assert_eq!(packets.len(), 400);
    assert!(manifest.notes.iter().any(|note| note.contains("have the same packets")), "{:?}", manifest.notes);
}

#[test]
fn files_in_another_order_than_the_route_are_noticed() {
    let bench = Bench::new();
    bench.write("named.pcapng", pcapng(&["csin", "vnet0"], &both()));
    let notes = |points: [&str; 2]| {
        let options = bench.options(&[(points[0], "named.pcapng"), (points[1], "named.pcapng")]);
        bench.import(&options).unwrap().0.notes
    };
    assert_eq!(notes([CSIN, VNET0]), [""; 0]);
    let wrong = notes([VNET0, CSIN]);
    let expected = format!("packets came to {CSIN} before {VNET0}: are the files in the order of the route?");
    assert!(wrong.iter().any(|note| note.starts_with("all ") && note.ends_with(&expected)), "{wrong:?}");
}

#[test]
fn a_segment_may_name_points_by_the_order_of_the_files() {
    let bench = Bench::new();
    bench.write("named.pcapng", pcapng(&["csin", "vnet0"], &both()));
    let mut options = bench.options(&[(CSIN, "named.pcapng"), (VNET0, "named.pcapng")]);
    options.segments = vec!["bay=1..2".into()];
    let (manifest, _) = bench.import(&options).unwrap();
    let bay =
        manifest.segments.iter().find(|segment| segment.name == "bay").map(|s| (s.from.to_string(), s.to.to_string()));
    assert_eq!((bay, manifest.notes), (Some((CSIN.into(), VNET0.into())), Vec::new()));
    options.segments = vec!["bay=1..3".into()];
    let error = bench.import(&options).unwrap_err().to_string();
    assert!(error.contains("1 to 2") && !bench.path("run").exists(), "{error}");
}

#[test]
fn what_a_file_has_beyond_the_streams_of_a_run_is_counted_in_full() {
    let bench = Bench::new();
    let packets: Vec<_> = (0..6000)
        .map(|n| {
            (
                BEGIN + n,
                FrameSpec {
                    asdus: vec![AsduSpec { svid: format!("S{n}").into(), ..AsduSpec::default() }],
                    ..FrameSpec::default()
                }
                .build()
                .unwrap(),
            )
        })
        .collect();
    bench.write("a.pcap", pcap(&packets));
    let (manifest, _) = bench.import(&bench.options(&[(PUB, "a.pcap"), (SUB, "a.pcap")])).unwrap();
    let expected = "left out: 11\u{202f}488 packets of all files together, of streams beyond the 256";
    assert_eq!(2 * (6000 - 256), 11_488);
    assert!(manifest.notes.iter().any(|note| note.starts_with(expected)), "{:?}", manifest.notes);
}

#[test]
fn unreadable_packets_are_counted_with_the_reason() {
    let bench = Bench::new();
    let mut packets: Vec<_> = (0..40_u16).map(|n| (BEGIN + Ns::from(n), frame("MU01", n * 2, None))).collect();
    for (_, bytes) in packets.iter_mut().skip(30) {
        bytes[22] = 0x61;
    }
    bench.write("a.pcap", pcap(&packets));
    let (manifest, _) = bench.import(&bench.options(&[(PUB, "a.pcap"), (SUB, "a.pcap")])).unwrap();
    let expected = "10 frames cannot be read: tag 0x61 at byte 22; expected savPdu";
    assert!(manifest.notes.iter().any(|note| note.ends_with(expected)), "{:?}", manifest.notes);
    bench.write("b.pcap", pcap(&packets[30..]));
    let error = bench.import(&bench.options(&[(PUB, "b.pcap"), (SUB, "b.pcap")])).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn the_samples_of_a_sender_that_counts_from_1_have_their_times_and_its_losses_are_counted() {
    let bench = Bench::new();
    let file = |late: Ns| {
        let packets = (0..20_000).filter(|n| !(3998..4001).contains(n)).map(|n: Ns| {
            let asdu = AsduSpec {
                svid: b"MU01".to_vec(),
                smp_cnt: (n % 4000 + 1) as u16,
                smp_synch: 2,
                ..AsduSpec::default()
            };
            (BEGIN + n * 250_000 + late, FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap())
        });
        pcap(&packets.collect::<Vec<_>>())
    };
    bench.write("pub.pcap", file(30_000));
    bench.write("sub.pcap", file(80_000));
    let (manifest, packets) = bench.import(&bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.pcap")])).unwrap();
    assert_eq!((packets.len(), manifest.joined[0].never_seen, manifest.joined[0].restarts), (19_997, 3, 0));
    let sampled = packets.iter().filter_map(|p| Some(p.t[0]? - p.t.get(2).copied().flatten()?));
    let sampled: Vec<Ns> = sampled.collect();
    assert!(sampled.len() > 8000 && sampled.iter().all(|t| *t == 30_000), "{} {:?}", sampled.len(), sampled.first());
}
