//! Parses arbitrary bytes as a frame with the kernel programs' C code and with the parsers in user space. Both accept
//! the same frames and find the same streams and keys, whether a frame is linear or in a page fragment. The C code does
//! not read beyond the frame and the bytes that may follow it.

use latpath_bpf::{bytes_of, Table};
use latpath_protocols::goose::Frame as Goose;
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::ptp::Message;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_protocols::{FrameError, Header, LinkFilter, Matcher, ProtocolId, StreamSpec, Tag};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Streams in addition to an example of each protocol.
const STREAMS: [&str; 10] = [
    "svid:A",
    "svid:MU01",
    "svid:MU01,vlan=7",
    "svid:MU01,vlan=0",
    "svid:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
    "svid:CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC",
    "goose:trip",
    "goose:IED1LD0/LLN0$GO$gcb01",
    "ptp:sync",
    "ptp:delay_req,domain=24",
];
/// All streams: [`STREAMS`], and an example of each listed protocol.
fn streams() -> Vec<StreamSpec> {
    let examples = ProtocolId::listed().into_iter().map(|protocol| protocol.info().example);
    let others = examples.filter(|example| !STREAMS.contains(example));
    STREAMS.into_iter().chain(others).map(|text| text.parse().expect("a stream")).collect()
}

/// Maximum length of a frame, bytes.
const MAX: usize = 9216;
/// Number of readable bytes after a frame, as in kernel_parser.c.
const BEHIND: usize = 4096;

/// `struct result` of kernel_parser.c.
#[repr(C)]
#[derive(Default)]
struct ParserResult {
    bad: u32,
    fast: [i32; 2],
    fast_key: [u32; 2],
    n: u32,
    at: [[u32; 2]; 8],
    fragment: u32,
}

extern "C" {
    fn kernel_parser_select(selection: *const u8);
    fn kernel_parser_stream(at: u32, conf: *const u8);
    fn kernel_parser_short(place: u32, name: *const u8);
    fn kernel_parser_long(place: u32, name: *const u8, first: u32);
    fn kernel_parser_run(bytes: *const u8, len: u32, paged: u32, no_link: u32, out: *mut ParserResult);
}

/// Access to the C code, which has only one set of tables.
struct Parser {
    specs: Vec<StreamSpec>,
    table: Table,
}

fn parser() -> MutexGuard<'static, Parser> {
    static PARSER: OnceLock<Mutex<Parser>> = OnceLock::new();
    let make = || {
        let specs = streams();
        let table = Table::new(&specs).expect("streams that can be followed");
        // SAFETY: each value has the type whose bytes the C code copies; no other thread is running the C code yet.
        unsafe {
            kernel_parser_select(bytes_of(&table.selection).as_ptr());
            for (at, conf) in table.streams.iter().enumerate() {
                kernel_parser_stream(at as u32, bytes_of(conf).as_ptr());
            }
            for (place, name) in &table.short {
                kernel_parser_short(*place as u32, bytes_of(name).as_ptr());
            }
            for (place, (name, first)) in table.long.iter().enumerate() {
                kernel_parser_long(place as u32, name.as_ptr(), *first);
            }
        }
        Mutex::new(Parser { specs, table })
    };
    PARSER.get_or_init(make).lock().unwrap_or_else(|e| e.into_inner())
}

/// The C code's result, with streams by their index in [`streams`]. `no_link`: the ethertype of a packet without an
/// Ethernet header, otherwise 0.
fn find(parser: &Parser, frame: &[u8], paged: usize, no_link: u16) -> (ParserResult, BTreeMap<u16, u32>) {
    let mut bytes = frame.to_vec();
    bytes.resize(frame.len() + BEHIND, 0xa5);
    let mut found = ParserResult::default();
    // SAFETY: `bytes` has `frame.len()` bytes and BEHIND more.
    unsafe { kernel_parser_run(bytes.as_ptr(), frame.len() as u32, paged as u32, no_link.into(), &mut found) };
    let streams = found.at[..found.n as usize].iter().map(|[stream, key]| (parser.table.user[*stream as usize], *key));
    let streams = streams.collect();
    (found, streams)
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let frame = &bytes[..bytes.len().min(MAX)];
    let parser = parser();
    let (found, streams) = find(&parser, frame, 0, 0);
    let (header, listed) = match Matcher::read(frame) {
        Ok(read) => read,
        // Only user space refuses names that are too long: the programs look them up and find no stream.
        Err(FrameError::BadLength { what: "svID" | "gocbRef" | "goID", .. }) => return,
        Err(error) => {
            // The programs silently ignore a frame that is too short for a header.
            assert!(found.bad != 0 || streams.is_empty(), "user space cannot read it: {error}");
            return;
        }
    };
    assert_eq!(found.bad, 0, "user space can read it");
    let vlan = header.tags().last().map(|tag| tag.vlan());
    let mut expected = BTreeMap::new();
    for one in listed {
        let exact = StreamSpec::exact(one.stream, header.dst, vlan);
        for (stream, _) in parser.specs.iter().enumerate().filter(|(_, spec)| spec.includes(&exact)) {
            expected.entry(stream as u16).or_insert(one.key);
        }
    }
    assert_eq!(streams, expected);
    // As with drivers that use page fragments, the header is linear and the rest is in the fragment.
    assert_eq!(find(&parser, frame, frame.len() - header.payload_at, 0).1, expected, "in a page fragment");
    if [0x0800, 0x86dd].contains(&header.ethertype) {
        let is_filtered = |stream: &u16| parser.specs[usize::from(*stream)].link != LinkFilter::default();
        let unfiltered: BTreeMap<_, _> =
            expected.iter().filter(|(stream, _)| !is_filtered(stream)).map(|(stream, key)| (*stream, *key)).collect();
        let packet = &frame[header.payload_at..];
        for paged in [0, packet.len().saturating_sub(20)] {
            let (found, streams) = find(&parser, packet, paged, header.ethertype);
            assert_eq!((streams, found.fast), (unfiltered.clone(), [-2; 2]), "without a link header");
        }
    }
    for (fast, key) in found.fast.into_iter().zip(found.fast_key).filter(|(fast, _)| *fast >= -1) {
        let stream = usize::try_from(fast).ok().map(|stream| (parser.table.user[stream], key));
        assert_eq!(stream.into_iter().collect::<BTreeMap<_, _>>(), expected, "by the fast path");
    }
}

/// Frames of all protocols, with and without tags.
pub fn seeds() -> Vec<Vec<u8>> {
    let link = |vlan: Option<u16>| FrameLink {
        tags: vlan.map(|vlan| Tag::new(vlan, 4)).into_iter().collect(),
        ..FrameLink::default()
    };
    let sv = |svids: &[&str], vlan| {
        let asdu = |svid: &&str| AsduSpec {
            svid: svid.as_bytes().to_vec(),
            conf_rev: 1,
            data: vec![0; 64],
            ..AsduSpec::default()
        };
        let asdus = svids.iter().map(asdu).collect();
        FrameSpec { link: link(vlan), asdus, ..FrameSpec::default() }.build().expect("a legal frame")
    };
    let goose = |goid, vlan| Goose { goid, ..Goose::default() }.build(&link(vlan)).expect("a legal frame");
    let ptp = |message, domain| {
        let frame =
            [&[1, 0x1b, 0x19, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0x88, 0xf7, message, 2, 0, 44, domain][..], &[0; 39]].concat();
        let header = Header::parse(&frame).expect("a header");
        Message::parse(&frame, &header).expect("a message").build(&link(None))
    };
    let over_udp = |header: &[u8]| {
        let mut frame = ptp(0, 0);
        let ports = [1, 63, 1, 63, 0, 52, 0, 0];
        frame.splice(12..14, [header, &ports].concat());
        frame
    };
    let v4 = [8, 0, 0x45, 0, 0, 72, 0, 0, 0x20, 0, 1, 17, 0, 0, 10, 0, 0, 1, 224, 0, 1, 129];
    let v6 = |next: &[u8]| [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 52, next[0], 1][..], &[0xfd; 32], &next[1..]].concat();
    let jumbo = {
        let asdu = |svid: &[u8]| AsduSpec { svid: svid.to_vec(), data: vec![0; 4200], ..AsduSpec::default() };
        let asdus = vec![asdu(b"MU01"), asdu(b"A")];
        FrameSpec { asdus, ..FrameSpec::default() }.build().expect("a legal frame")
    };
    // Replaces a field that senders may omit or encode differently with an unknown one.
    let other = |mut frame: Vec<u8>, field: [u8; 2]| {
        let at = frame.windows(2).rposition(|element| element == field).expect("the field");
        frame[at] = 0x8f;
        frame
    };
    let examples = streams().into_iter().flat_map(|stream| {
        [None, Some(7)]
            .map(|vlan| stream.matcher.rebuild(&link(vlan), 0x1_0002).expect("a protocol whose streams are listed"))
    });
    let mut seeds: Vec<Vec<u8>> = examples.map(|frame| frame.expect("a legal frame")).collect();
    seeds.extend([
        jumbo,
        over_udp(&v4),
        over_udp(&v6(&[17])),
        over_udp(&v6(&[44, 17, 0, 0, 1, 0, 0, 0, 9])),
        other(sv(&["A"], None), [0x85, 1]),
        other(sv(&["A", "MU01"], None), [0x83, 4]),
        sv(&["A"], None),
        sv(&["MU01"], Some(7)),
        sv(&["MU01", "A", "MU01"], None),
        sv(&["BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"], Some(1)),
        sv(&["CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC"], None),
        goose(Some(b"trip"), None),
        goose(None, Some(7)),
        ptp(0, 0),
        ptp(1, 24),
    ]);
    seeds
}
