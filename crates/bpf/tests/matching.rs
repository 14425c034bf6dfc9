//! Checks that the programs' C code agrees with user space's parsers and tables on every frame.
//!
//! The programs are run in the kernel with BPF_PROG_RUN: no packet and no device is affected.

use latpath_bpf::trial::{Trial, TrialResult};
use latpath_bpf::Table;
use latpath_protocols::goose;
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::redundancy::{mark, CopyMark, Lan, Method};
use latpath_protocols::stream::StreamSpec;
use latpath_protocols::sv::{AsduSpec, Frame, FrameSpec};
use latpath_protocols::{Matcher, ProtocolId, Tag};
use latpath_testkit::{equal, need_root, trial, Failed};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::process::ExitCode;

fn main() -> ExitCode {
    let needs = [need_root()];
    let trial = |name: &str, test: fn() -> Result<(), Failed>| trial(name, &needs, test);
    let tests = vec![
        trial("a_name_of_any_length_is_found_where_user_space_put_it", names),
        trial("the_fast_path_finds_what_the_slow_path_finds", fast_path),
        trial("smpsynch_is_read_where_it_stands", smpsynch),
        trial("a_frame_is_malformed_where_the_parser_says_so_and_its_streams_are_the_parsers", broken_frames),
        trial("jumbo_frames_are_found_as_all_others", jumbo_frames),
        trial("a_hash_is_fnv_of_the_bytes", hashes),
        trial("ip_packets_without_a_link_header_are_found_as_others_are", without_link),
        trial("of_the_fragments_of_a_packet_the_first_is_found_and_known_as_one", fragments),
        trial("an_untagged_frame_is_in_vlan_0_as_one_with_a_priority_alone", untagged),
        trial("a_frame_that_is_nearly_in_a_stream_says_by_what_it_differs", near),
        trial("goose_is_found_by_goid_or_gocbref_and_keyed_by_both_numbers", goose_frames),
        trial("ptp_is_found_over_ethernet_and_udp_by_type_port_and_domain", ptp_frames),
        trial("one_frame_may_be_in_streams_of_several_protocols", several_protocols),
        trial("a_copy_by_redundant_networks_is_found_as_the_frame_without_its_mark_is", copies),
        trial("of_each_protocol_the_kernel_finds_the_streams_and_keys_that_its_parser_finds", each_protocol),
    ];
    latpath_testkit::main(tests)
}

fn load(texts: &[&str]) -> Result<Trial, Failed> {
    let specs =
        texts.iter().map(|t| t.parse::<StreamSpec>().map_err(|e| e.to_string())).collect::<Result<Vec<_>, _>>()?;
    load_specs(&specs)
}

fn load_specs(specs: &[StreamSpec]) -> Result<Trial, Failed> {
    let table = Table::new(specs).map_err(|e| e.to_string())?;
    Ok(Trial::load(table).map_err(|e| e.to_string())?)
}

fn check(runs: u32, test: impl Fn(&mut TestRunner) -> Result<(), String>) -> Result<(), Failed> {
    Ok(test(&mut TestRunner::new(Config { cases: runs, failure_persistence: None, ..Config::default() }))?)
}

/// Runs the programs on a frame without page fragments.
fn run(trial: &Trial, frame: &[u8]) -> Result<TrialResult, TestCaseError> {
    trial.run(frame, 0).map_err(|e| TestCaseError::fail(e.to_string()))
}

fn sv(svids: &[&[u8]], tags: Vec<Tag>, smp_cnt: u16) -> Vec<u8> {
    let asdu = |(i, svid): (usize, &&[u8])| AsduSpec {
        svid: svid.to_vec(),
        smp_cnt: smp_cnt.wrapping_add(i as u16),
        conf_rev: 1,
        data: vec![0; 64],
        ..AsduSpec::default()
    };
    let asdus = svids.iter().enumerate().map(asdu).collect();
    FrameSpec { link: FrameLink { tags, ..FrameLink::default() }, asdus, ..FrameSpec::default() }
        .build()
        .expect("a legal frame")
}

fn names() -> Result<(), Failed> {
    let names: Vec<String> = (1..=129).map(|len| format!("{len:03}").chars().cycle().take(len).collect()).collect();
    let mut specs: Vec<StreamSpec> = names.iter().map(|name| StreamSpec::svid(name)).collect();
    specs.extend(names.iter().take(100).map(|n| format!("goose:{n}").parse::<StreamSpec>().expect("a stream")));
    let trial = load_specs(&specs)?;
    for (i, name) in names.iter().enumerate() {
        let found = trial.run(&sv(&[name.as_bytes()], vec![], 7), 0)?;
        equal(name, found.streams, vec![(i as u16, 7)])?;
        let other = format!("{}x", &name[1..]);
        equal("another name", trial.run(&sv(&[other.as_bytes()], vec![], 7), 0)?.streams, vec![])?;
    }
    Ok(())
}

fn tags() -> impl Strategy<Value = Vec<Tag>> {
    prop::collection::vec((0..4095u16, 0..8u8).prop_map(|(vlan, priority)| Tag::new(vlan, priority)), 0..3)
}

fn svid() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"A".to_vec()),
        Just(b"MU01".to_vec()),
        Just(b"B".repeat(32)),
        Just(b"B".repeat(33)),
        "[A-C]{1,34}".prop_map(Into::into)
    ]
}

/// Frames of Sampled Values: whole, or with bytes changed or missing.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (prop::collection::vec(svid(), 1..4), tags(), any::<u16>(), changes, 0..40usize).prop_map(
        |(svids, tags, count, changes, cut)| {
            let svids: Vec<&[u8]> = svids.iter().map(Vec::as_slice).collect();
            let mut frame = sv(&svids, tags, count);
            for (at, byte) in changes {
                let at = 12 + at.index(frame.len().min(140) - 12);
                frame[at] = byte;
            }
            frame.truncate(frame.len() - cut.saturating_sub(20));
            frame
        },
    )
}

fn streams_of_sv() -> Vec<String> {
    vec!["svid:A".into(), "svid:MU01".into(), format!("svid:{}", "B".repeat(32)), format!("svid:{}", "B".repeat(33))]
}

/// smpSynch in frames with and without refrTm, with one or several ASDUs. A fast path must read it unless it leaves the
/// frame to the slow path.
fn smpsynch() -> Result<(), Failed> {
    let trial = load(&["svid:MU01"])?;
    check(500, |runner| {
        let frames = (1..4_usize, any::<bool>(), 0..255_u8, tags());
        let whole = runner.run(&frames, |(asdus, has_refr_tm, smp_synch, tags)| {
            let refr_tm = has_refr_tm.then_some([0x85; 8]);
            let asdu =
                AsduSpec { svid: b"MU01".to_vec(), smp_synch, refr_tm, data: vec![0; 64], ..AsduSpec::default() };
            let link = FrameLink { tags, ..FrameLink::default() };
            let frame =
                FrameSpec { link, asdus: vec![asdu; asdus], ..FrameSpec::default() }.build().expect("a legal frame");
            // In the second run, the frame's layout is known.
            run(&trial, &frame)?;
            let found = run(&trial, &frame)?;
            prop_assert_eq!(found.synch[3], Some(smp_synch));
            for (read, taken) in found.synch.iter().zip(found.fast) {
                prop_assert_eq!(*read, taken.map(|_| smp_synch), "{:?}", found);
            }
            Ok(())
        });
        whole.map_err(|e| e.to_string())
    })
}

fn fast_path() -> Result<(), Failed> {
    let streams = streams_of_sv();
    let trial = load(&streams.iter().map(String::as_str).collect::<Vec<_>>())?;
    let taken: [std::cell::Cell<u32>; 3] = Default::default();
    let run = |frame: Vec<u8>| {
        run(&trial, &frame)?; // so that its layout is known
        let found = run(&trial, &frame)?;
        for (fast, taken) in found.fast.iter().zip(&taken).filter_map(|(fast, taken)| Some((fast.as_ref()?, taken))) {
            prop_assert_eq!(fast.iter().copied().collect::<Vec<_>>(), found.streams.clone(), "{:02x?}", frame);
            taken.set(taken.get() + 1);
        }
        Ok(())
    };
    // Frames that random changes rarely produce: svID or smpCnt twice in an ASDU, more ASDUs than noASDU.
    let elements = |svids: &[&[u8]], from: &[u8], to: &[u8]| {
        let mut frame = sv(svids, vec![], 1);
        let at = frame.windows(from.len()).position(|w| w == from).expect("the element");
        frame[at..at + to.len()].copy_from_slice(to);
        frame
    };
    let rare = [
        elements(&[b"A"], &[0x83, 4], &[0x80, 4]),
        elements(&[b"A"], &[0x83, 4], &[0x82, 4]),
        elements(&[b"A", b"MU01"], &[0x80, 1, 2], &[0x80, 1, 1]),
    ];
    rare.into_iter().try_for_each(run).map_err(|e| e.to_string())?;
    check(4000, |runner| runner.run(&frame(), run).map_err(|e| e.to_string()))?;
    let taken = taken.map(|t| t.get());
    // Before Linux 6.2, programs have no direct loads, so only the first fast path can be taken.
    if taken[0] < 100 || (taken[1] > 0 && taken[2] < 20) {
        return Err(format!("the fast path took {taken:?} frames only").into());
    }
    Ok(())
}

fn broken_frames() -> Result<(), Failed> {
    let streams = streams_of_sv();
    let trial = load(&streams.iter().map(String::as_str).collect::<Vec<_>>())?;
    let name = |i: usize| &streams[i].as_bytes()["svid:".len()..];
    check(4000, |runner| {
        let run = |(bytes, linear): (Vec<u8>, usize)| {
            let found = run(&trial, &bytes)?;
            // Drivers that use page fragments leave only the headers in the linear part.
            let paged = trial.run(&bytes, bytes.len().saturating_sub(linear)).expect("it runs");
            prop_assert_eq!((&paged.streams, paged.malformed), (&found.streams, found.malformed));
            match Frame::parse(&bytes) {
                Ok(frame) => {
                    prop_assert!(!found.malformed, "{:02x?}", bytes);
                    let mut expected = Vec::new();
                    for asdu in frame.asdus() {
                        for i in (0..streams.len()).filter(|i| name(*i) == asdu.svid) {
                            if expected.iter().all(|(known, _)| *known != i as u16) {
                                expected.push((i as u16, u32::from(asdu.smp_cnt)));
                            }
                        }
                    }
                    prop_assert_eq!(found.streams, expected);
                }
                // The programs read only up to the last svID and smpCnt, the parser reads the whole frame.
                Err(e) => prop_assert!(e.is_malformed() || found.streams.is_empty()),
            }
            Ok(())
        };
        // The linear part may end anywhere, even within a name.
        runner.run(&(frame(), 18..180usize), run).map_err(|e| e.to_string())
    })
}

fn jumbo_frames() -> Result<(), Failed> {
    let trial = load(&["svid:MU01", "svid:MU02"])?;
    let frame = |asdus: usize, data: usize| {
        let asdu = |i: usize| AsduSpec {
            svid: if i + 1 == asdus { b"MU02".to_vec() } else { b"MU01".to_vec() },
            smp_cnt: 100 + i as u16,
            data: vec![0; data],
            ..AsduSpec::default()
        };
        let spec = FrameSpec { asdus: (0..asdus).map(asdu).collect(), ..FrameSpec::default() };
        spec.build().expect("a legal frame")
    };
    for (asdus, data) in [(2, 4030), (2, 4110), (8, 1080), (2, 4400), (16, 900), (2, 8000)] {
        let frame = frame(asdus, data);
        // In a packet socket's jumbo frame, the linear part contains only the Ethernet header.
        for paged in [0, frame.len() - 14, frame.len() - 20, frame.len() - 300] {
            let found = trial.run(&frame, paged)?;
            equal("streams", found.streams, vec![(0, 100), (1, 99 + asdus as u32)])?;
            equal("malformed", found.malformed, false)?;
        }
    }
    Ok(())
}

fn hashes() -> Result<(), Failed> {
    let trial = load(&["ether:0x9000,hash=3:100"])?;
    check(500, |runner| {
        let run = |(mut bytes, linear): (Vec<u8>, usize)| {
            bytes[12..14].copy_from_slice(&[0x90, 0]);
            let fnv = |bytes: &[u8]| {
                let h = bytes.iter().fold(2_166_136_261u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(16_777_619));
                h ^ h >> 15
            };
            let found = run(&trial, &bytes)?;
            prop_assert_eq!(found.hash, fnv(&bytes[..128]));
            prop_assert_eq!(&found.streams, &vec![(0, fnv(&bytes[17..117]))]);
            // A fragment may begin in the middle of the hashed bytes.
            let paged = trial.run(&bytes, bytes.len() - linear).expect("it runs");
            prop_assert_eq!((paged.hash, paged.streams), (found.hash, found.streams));
            Ok(())
        };
        runner.run(&(prop::collection::vec(any::<u8>(), 130..300), 14usize..130), run).map_err(|e| e.to_string())
    })
}

fn element(tag: u8, value: &[u8]) -> Vec<u8> {
    [&[tag, value.len() as u8][..], value].concat()
}

/// A frame with a goosePdu: the fields up to sqNum, with the given goID if any, and one of the fields after sqNum.
fn goose_frame(goid: Option<&str>, st_num: &[u8], sq_num: &[u8]) -> Vec<u8> {
    let mut inside = element(0x80, b"IED1LD0/LLN0$GO$gcb01");
    inside.extend(element(0x81, &[0x07, 0xd0]));
    inside.extend(element(0x82, b"IED1LD0/LLN0$ds"));
    inside.extend(goid.map_or(vec![], |goid| element(0x83, goid.as_bytes())));
    inside.extend(element(0x84, &[0; 8]));
    inside.extend(element(0x85, st_num));
    inside.extend(element(0x86, sq_num));
    inside.extend(element(0x88, &[1]));
    let pdu = element(0x61, &inside);
    let mut frame = vec![0x01, 0x0c, 0xcd, 0x01, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0xb8, 0x00, 0x01];
    frame.extend((8 + pdu.len() as u16).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(pdu);
    frame
}

fn goose_frames() -> Result<(), Failed> {
    let trial = load(&["goose:trip", "goose:IED1LD0/LLN0$GO$gcb01", "goose:trip,appid=2", "svid:trip"])?;
    let found = |frame: &[u8]| trial.run(frame, 0).map(|found| (found.streams, found.malformed));
    equal("by goID", found(&goose_frame(Some("trip"), &[1], &[2]))?, (vec![(0, goose::key(1, 2))], false))?;
    let key = goose::key(0x1_0005, 0xffff);
    equal("by gocbRef", found(&goose_frame(None, &[1, 0, 5], &[0, 0xff, 0xff]))?, (vec![(1, key)], false))?;
    equal("an empty goID", found(&goose_frame(Some(""), &[1], &[2]))?.0, vec![(1, goose::key(1, 2))])?;
    equal("another", found(&goose_frame(Some("close"), &[1], &[2]))?, (vec![], false))?;
    equal("no number", found(&goose_frame(Some("trip"), &[], &[2]))?, (vec![], true))?;
    let whole = goose_frame(Some("trip"), &[1], &[2]);
    for len in 18..whole.len() {
        equal("cut", found(&whole[..len])?, (vec![], true))?;
    }
    Ok(())
}

fn ptp_message(kind: u8, domain: u8, sequence: u16) -> Vec<u8> {
    let mut message = vec![0; 44];
    (message[0], message[1], message[3], message[4]) = (kind, 0x12, 44, domain);
    message[20..30].copy_from_slice(&[0x00, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55, 0, 1]);
    message[30..32].copy_from_slice(&sequence.to_be_bytes());
    message
}

fn over(header: &[u8], message: &[u8]) -> Vec<u8> {
    [&[1, 0x1b, 0x19, 0, 0, 0, 2, 0, 0, 0, 0, 1], header, message].concat()
}

/// Ethertype, IPv4 header, and UDP header with this destination port.
fn udp4(port: u16) -> Vec<u8> {
    let mut header = vec![0x08, 0, 0x45, 0, 0, 72, 0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 0, 1, 224, 0, 1, 129, 1, 63];
    header.extend(port.to_be_bytes());
    header.extend([0, 52, 0, 0]);
    header
}

/// Like [`udp4`] over IPv6, optionally with a fragment header made of these bytes before UDP.
fn udp6(port: u16, fragment: &[u8]) -> Vec<u8> {
    let mut header = vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 52, if fragment.is_empty() { 17 } else { 44 }, 1];
    header.extend([0xfd; 16]);
    header.extend([0xfe; 16]);
    header.extend(fragment);
    header.extend([1, 63]);
    header.extend(port.to_be_bytes());
    header.extend([0, 52, 0, 0]);
    header
}

fn without_link() -> Result<(), Failed> {
    let trial = load(&[
        "ptp:sync",
        "udp:10.0.0.1>224.0.1.129:319,seq=30:2",
        "udp:[fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe]:319,hash=0:32",
        "ptp:sync,vlan=0",
        "ptp:sync,mac=01:1b:19:00:00:00",
        "svid:MU01",
    ])?;
    for (header, ethertype) in
        [(udp4(319), 0x0800), (udp6(319, &[]), 0x86dd), (udp6(319, &[17, 0, 0, 0, 0, 0, 0, 9]), 0x86dd)]
    {
        let frame = over(&header, &ptp_message(0, 0, 777));
        let with = trial.run(&frame, 0)?;
        // A packet without an Ethernet header passes no Ethernet filter.
        let filtered = |(stream, _): &(u16, u32)| ![3, 4].contains(stream);
        let expected: Vec<_> = with.streams.iter().copied().filter(filtered).collect();
        equal("streams with a link header", with.streams.len(), 4)?;
        let packet = &frame[14..];
        for paged in [0, packet.len() - 20, packet.len() - 30] {
            let without = trial.run_without_link(packet, paged, ethertype)?;
            equal("streams", without.streams, expected.clone())?;
            equal("malformed and fast", (without.malformed, without.fast), (false, [None; 3]))?;
        }
        for len in 0..packet.len().min(30) {
            let cut = trial.run_without_link(&packet[..len], 0, ethertype)?;
            equal("a cut packet", cut.streams, vec![])?;
        }
    }
    Ok(())
}

fn fragments() -> Result<(), Failed> {
    let trial = load(&["ptp:sync"])?;
    let sync = ptp_message(0, 0, 777);
    let found = |header: &[u8]| trial.run(&over(header, &sync), 0).map(|found| (found.streams.len(), found.fragment));
    let v4 = |place: u16| {
        let mut header = udp4(319);
        header[8..10].copy_from_slice(&place.to_be_bytes());
        header
    };
    let v6 = |place: u16| udp6(319, &[17, 0, (place >> 8) as u8, place as u8, 0, 0, 0, 9]);
    equal("whole", found(&v4(0))?, (1, false))?;
    equal("not to be fragmented", found(&v4(0x4000))?, (1, false))?;
    equal("the first one", found(&v4(0x2000))?, (1, true))?;
    equal("a later one", found(&v4(0x2010))?, (0, false))?;
    equal("the last one", found(&v4(0x0010))?, (0, false))?;
    equal("IPv6, whole", found(&udp6(319, &[]))?, (1, false))?;
    equal("IPv6, the only one", found(&v6(0))?, (1, false))?;
    equal("IPv6, the first one", found(&v6(1))?, (1, true))?;
    equal("IPv6, a later one", found(&v6(0x0101))?, (0, false))?;
    equal("IPv6, the last one", found(&v6(0x0100))?, (0, false))
}

fn untagged() -> Result<(), Failed> {
    let trial = load(&["svid:A,vlan=0", "svid:A,vlan=7"])?;
    let streams = |tags| trial.run(&sv(&[b"A"], tags, 5), 0).map(|found| found.streams);
    equal("untagged", streams(vec![])?, vec![(0, 5)])?;
    equal("a priority alone", streams(vec![Tag::new(0, 4)])?, vec![(0, 5)])?;
    equal("another VLAN", streams(vec![Tag::new(7, 4)])?, vec![(1, 5)])
}

fn near() -> Result<(), Failed> {
    use latpath_bpf::{DIFFERENCE_DESTINATION, DIFFERENCE_MAC, DIFFERENCE_SOURCE, DIFFERENCE_VLAN};
    let trial = load(&[
        "svid:A,vlan=7",
        "svid:B,mac=01:0c:cd:04:00:09",
        "udp:10.0.0.1:319>224.0.1.129:319,seq=30:2",
        "udp:10.0.0.9:319,seq=30:2",
        "svid:C,appid=0x4001",
    ])?;
    let near = |frame: &[u8]| trial.run(frame, 0).map(|found| (found.streams.len(), found.near));
    equal("in it", near(&sv(&[b"A"], vec![Tag::new(7, 4)], 5))?, (1, None))?;
    equal("untagged", near(&sv(&[b"A"], vec![], 5))?, (0, Some((0, 5, DIFFERENCE_VLAN))))?;
    equal("another MAC", near(&sv(&[b"B"], vec![], 6))?, (0, Some((1, 6, DIFFERENCE_MAC))))?;
    equal("another APPID", near(&sv(&[b"C"], vec![], 6))?, (0, None))?;
    let sync = ptp_message(0, 0, 777);
    let udp = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut header = udp4(319);
        change(&mut header);
        near(&over(&header, &sync))
    };
    equal("the flow", udp(&|_| {})?, (1, None))?;
    equal("from elsewhere", udp(&|h| h[17] = 7)?, (0, Some((2, 777, DIFFERENCE_SOURCE))))?;
    equal("to elsewhere", udp(&|h| h[21] = 7)?, (0, Some((2, 777, DIFFERENCE_DESTINATION))))?;
    equal("to another port", udp(&|h| h[25] = 7)?, (0, Some((2, 777, DIFFERENCE_DESTINATION))))?;
    equal("another flow", udp(&|h| (h[17], h[21]) = (7, 7))?, (0, None))
}

fn ptp_frames() -> Result<(), Failed> {
    let trial = load(&[
        "ptp:sync",
        "ptp:delay_req",
        "ptp:sync,source=001122.fffe.334455-1",
        "ptp:sync,source=001122.fffe.334455-2",
        "ptp:sync,domain=24",
        "udp::319,seq=30:2",
    ])?;
    let found = |frame: &[u8]| trial.run(frame, 0).map(|found| found.streams);
    let sync = ptp_message(0, 0, 777);
    equal("Sync over Ethernet", found(&over(&[0x88, 0xf7], &sync))?, vec![(0, 777), (2, 777)])?;
    equal("Sync over UDP", found(&over(&udp4(319), &sync))?, vec![(0, 777), (2, 777), (5, 777)])?;
    equal("a general message", found(&over(&udp4(320), &sync))?, vec![])?;
    equal("Delay_Req", found(&over(&[0x88, 0xf7], &ptp_message(1, 0, 3)))?, vec![(1, 3)])?;
    equal("Announce", found(&over(&[0x88, 0xf7], &ptp_message(11, 0, 3)))?, vec![])?;
    equal("a domain", found(&over(&[0x88, 0xf7], &ptp_message(0, 24, 3)))?, vec![(0, 3), (2, 3), (4, 3)])?;
    let short = trial.run(&over(&[0x88, 0xf7], &sync[..20]), 0)?;
    equal("a short message", (short.streams, short.malformed), (vec![], true))
}

/// The streams that user space finds in a frame, each with its key; `None` if user space cannot read the frame.
fn read(specs: &[StreamSpec], frame: &[u8]) -> Option<Vec<(u16, u32)>> {
    let (header, listed) = Matcher::read(frame).ok()?;
    let vlan = header.tags().last().map(|tag| tag.vlan());
    let mut all: Vec<(u16, u32)> = Vec::new();
    for one in listed {
        let exact = StreamSpec::exact(one.stream, header.dst, vlan);
        for (stream, _) in specs.iter().enumerate().filter(|(_, spec)| spec.includes(&exact)) {
            if all.iter().all(|(known, _)| usize::from(*known) != stream) {
                all.push((stream as u16, one.key));
            }
        }
    }
    all.sort_unstable();
    Some(all)
}

/// Frames of each protocol whose frames contain the stream's identity: tagged, changed, truncated, and in page
/// fragments. The protocols come from the table of protocols.
fn each_protocol() -> Result<(), Failed> {
    for protocol in ProtocolId::listed() {
        let example = protocol.info().example;
        let streams = [example.to_owned(), format!("{example},vlan=7"), format!("{example},mac=01:0c:cd:04:00:09")];
        let specs = streams.map(|text| text.parse::<StreamSpec>().expect("a stream")).to_vec();
        let trial = load_specs(&specs)?;
        let found_in = std::cell::Cell::new(0);
        let one =
            |(key, tags, dst, changes, cut, linear): (u32, Vec<Tag>, bool, Vec<(usize, u8)>, Option<usize>, usize)| {
                let dst = dst.then_some([0x01, 0x0c, 0xcd, 0x04, 0x00, 0x09]);
                let frame = specs[0].matcher.rebuild(&FrameLink { dst, tags, ..FrameLink::default() }, key);
                let frame =
                    frame.ok_or_else(|| TestCaseError::fail(format!("{example}: no frame of it can be rebuilt")))?;
                let mut bytes = frame.map_err(TestCaseError::fail)?;
                for (at, byte) in changes {
                    let at = 12 + at % (bytes.len() - 12);
                    bytes[at] = byte;
                }
                bytes.truncate(cut.map_or(bytes.len(), |cut| 18 + cut % (bytes.len() - 18)));
                let sorted = |found: TrialResult| {
                    let mut streams = found.streams;
                    streams.sort_unstable();
                    (streams, found.malformed)
                };
                let whole = sorted(run(&trial, &bytes)?);
                // The linear part may end anywhere after the first header.
                let paged = trial.run(&bytes, bytes.len() - (18 + linear % (bytes.len() - 17)).min(bytes.len()));
                let paged = paged.map_err(|e| TestCaseError::fail(e.to_string()))?;
                prop_assert_eq!(&sorted(paged), &whole, "in pages: {:02x?}", bytes);
                match read(&specs, &bytes) {
                    Some(expected) => {
                        found_in.set(found_in.get() + usize::from(!expected.is_empty()));
                        prop_assert_eq!(whole, (expected, false), "{:02x?}", bytes);
                    }
                    None => prop_assert!(whole.1 || whole.0.is_empty(), "user space cannot read it: {:02x?}", bytes),
                }
                Ok(())
            };
        let changes = prop::collection::vec((any::<usize>(), any::<u8>()), 0..3);
        let changes = prop_oneof![Just(Vec::new()), changes];
        let vlans = prop_oneof![tags(), Just(vec![Tag::new(7, 4)])];
        let cut = prop::option::of(any::<usize>());
        let frames = (any::<u32>(), vlans, any::<bool>(), changes, cut, any::<usize>());
        check(2000, |runner| runner.run(&frames, one).map_err(|e| format!("{example}: {e}")))?;
        equal(&format!("{example}: enough frames of it were found"), found_in.get() > 200, true)?;
    }
    Ok(())
}

/// Frames with a PRP trailer or an HSR tag: whole, changed, and in page fragments.
fn copies() -> Result<(), Failed> {
    for protocol in ProtocolId::listed() {
        let example: StreamSpec = protocol.info().example.parse().expect("a stream");
        // The key hashes the payload up to its end, where the trailer must not be included.
        let end = 64;
        let by_end = format!("ether:{:#06x},hash=0:{end}", example.matcher.ethertypes()[0]);
        let trial = load_specs(std::slice::from_ref(&example))?;
        let hashes = load(&[&by_end])?;
        let methods = prop_oneof![Just(Method::Prp), Just(Method::Hsr)];
        let lans = prop_oneof![Just(Lan::A), Just(Lan::B)];
        let found_in = std::cell::Cell::new([0; 2]);
        let one = |(key, tags, method, lan, sequence, paged): (u32, Vec<Tag>, Method, Lan, u16, usize)| {
            let link = FrameLink { tags, ..FrameLink::default() };
            let plain = example.matcher.rebuild(&link, key).and_then(Result::ok);
            let plain = plain.ok_or_else(|| TestCaseError::fail("no frame of it can be rebuilt"))?;
            let mut frame = plain.clone();
            mark(&mut frame, CopyMark { method, lan, sequence }).map_err(|e| TestCaseError::fail(e.to_string()))?;
            let number = lan as usize + 1;
            let (found, expected) = (run(&trial, &frame)?, run(&trial, &plain)?);
            prop_assert_eq!((&found.streams, found.malformed), (&expected.streams, false), "{:02x?}", frame);
            prop_assert!(!found.streams.is_empty());
            prop_assert_eq!((found.lan[1], expected.lan), (number, [0, 0]));
            // Without the slow path, the LAN is read only from a PRP trailer at the frame's end.
            prop_assert!(found.lan[0] == 0 || found.lan[0] == number);
            let mut numbers = found_in.get();
            numbers[usize::from(found.lan[0] == number)] += 1;
            found_in.set(numbers);
            prop_assert!(method == Method::Prp || found.lan[0] == 0, "{:?}", found);
            let paged = 6 + paged % (frame.len() - 24);
            let in_pages = trial.run(&frame, paged).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(
                (in_pages.streams, in_pages.lan[1]),
                (found.streams, number),
                "{} paged: {:02x?}",
                paged,
                frame
            );
            prop_assert_eq!(run(&hashes, &frame)?.streams, run(&hashes, &plain)?.streams, "the key is the payload's");
            Ok(())
        };
        let frames = (any::<u32>(), tags(), methods, lans, any::<u16>(), any::<usize>());
        check(500, |runner| runner.run(&frames, one).map_err(|e| format!("{}: {e}", protocol.info().prefix)))?;
        equal("with and without direct loads", found_in.get().iter().all(|n| *n > 50), true)?;
    }
    Ok(())
}

fn several_protocols() -> Result<(), Failed> {
    let frame = sv(&[b"A"], vec![], 5);
    let beside = load(&["svid:A", "ether:0x8892"])?.run(&frame, 0)?;
    equal("beside another ethertype", (beside.fast[0], beside.streams), (Some(Some((0, 5))), vec![(0, 5)]))?;
    let both = load(&["ether:0x88ba,seq=0:2", "svid:A", "svid:A,vlan=7"])?.run(&frame, 0)?;
    equal("in both", both.streams, vec![(1, 5), (0, 0x4000)])?;
    equal("the fast path leaves it to the slow one", both.fast[0], None)
}
