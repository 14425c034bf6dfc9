//! Tests without a network: files as input, lists as output.

use crate::bench::{complaints, document, shared, tshark, write_pcap, Result};
use crate::{Needs, Test};
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_protocols::{goose, ptp, Tag};
use latpath_testkit::equal;
use latpath_traffic::document::{Detail, StreamsDocument};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub const TESTS: &[Test] = &[
    ("every optional field decodes in tshark as built", Needs::Tshark, optional_fields),
    ("svids of every length form decode in tshark as built", Needs::Tshark, svid_lengths),
    ("GOOSE decodes in tshark as built", Needs::Tshark, goose_fields),
    ("PTP event messages decode in tshark as built", Needs::Tshark, ptp_fields),
    ("streams lists GOOSE and PTP beside Sampled Values", Needs::Nothing, three_protocols),
    ("streams says who sends, how it is synchronised, and which counter stands still", Needs::Nothing, who_and_how),
    ("streams lists a file as pcap and as pcapng alike", Needs::Nothing, pcap_and_pcapng),
    ("streams reads the shared captures", Needs::Shared, shared_captures),
    ("streams counts malformed frames", Needs::Nothing, malformed),
    ("streams refuses what is no capture", Needs::Nothing, no_capture),
    ("streams lists what a cut file still holds, and says where it ends", Needs::Nothing, cut_capture),
    ("a reader that has gone ends it quietly, a full disk does not", Needs::Nothing, reader_gone),
    ("wrong usage exits with 2", Needs::Nothing, wrong_usage),
];

fn latpath(args: &[&str]) -> Result<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_latpath")).args(args).output()?)
}

/// The JSON printed by a command; an error if the command failed.
fn json<T: DeserializeOwned>(out: &Output) -> Result<T> {
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)).into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// The streams of a file.
fn streams(file: &Path) -> Result<StreamsDocument> {
    document("streams", &json(&latpath(&["streams", "--json", "-r", &file.to_string_lossy()])?)?)
}

fn asdu(svid: &[u8], smp_cnt: u16) -> AsduSpec {
    AsduSpec { svid: svid.to_vec(), smp_cnt, conf_rev: 1, smp_synch: 2, data: vec![0; 64], ..AsduSpec::default() }
}

fn one(asdu: AsduSpec) -> Result<Vec<u8>> {
    FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().map_err(|e| e.to_string().into())
}

fn optional_fields() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let base = || asdu(b"MU01", 77);
    let spec = FrameSpec { asdus: vec![base()], simulated: true, ..FrameSpec::default() };
    let frames = [
        one(AsduSpec { dat_set: Some(b"IED1/LLN0$PhsMeas1".to_vec()), ..base() })?,
        one(AsduSpec { refr_tm: Some([0x5f, 0xee, 0x66, 0, 0, 0, 0, 0x0a]), ..base() })?,
        one(AsduSpec { smp_rate: Some(4000), ..base() })?,
        one(AsduSpec { smp_mod: Some(1), ..base() })?,
        one(AsduSpec { gm_identity: Some([1, 2, 3, 0xff, 0xfe, 6, 7, 8]), ..base() })?,
        spec.build().map_err(|e| e.to_string())?,
        FrameSpec { simulated: false, link: tagged(&[Tag::new(100, 6), Tag::new(7, 4)]), ..spec }
            .build()
            .map_err(|e| e.to_string())?,
        // Short enough for padding, which tshark must not take for data.
        one(AsduSpec { data: vec![], ..base() })?,
    ];
    write_pcap(&file, &frames, 250_000)?;
    equal("complaints", complaints(&file)?, vec![])?;
    let fields = [
        "sv.datSet",
        "sv.refrTm",
        "sv.smpRate",
        "sv.smpMod",
        "sv.gmidentity",
        "sv.reserve1.s_bit",
        "vlan.id",
        "sv.smpCnt",
    ];
    let rows = tshark(&file, &fields)?;
    let column = |i: usize| rows.iter().map(|r| r[i].as_str()).collect::<Vec<_>>();
    equal("datSet", column(0), vec!["IED1/LLN0$PhsMeas1", "", "", "", "", "", "", ""])?;
    equal("refrTm is there", column(1)[1].contains("2021") || column(1)[1].contains("2020"), true)?;
    equal("smpRate", column(2)[2], "4000")?;
    equal("smpMod", column(3)[3], "1")?;
    equal("gmIdentity is there", column(4)[4].is_empty(), false)?;
    equal("simulated", column(5), vec!["0", "0", "0", "0", "0", "1", "0", "0"])?;
    equal("both VLANs", column(6)[6], "100,7")?;
    equal("smpCnt", column(7), vec!["77"; 8])
}

fn svid_lengths() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let svids: Vec<String> = [1, 34, 126, 127, 128, 129].into_iter().map(|n| "x".repeat(n)).collect();
    let mut frames = svids.iter().map(|s| one(asdu(s.as_bytes(), 1))).collect::<Result<Vec<_>>>()?;
    // The lengths of the PDU and of its sequence of ASDUs take two bytes each.
    let many = FrameSpec { asdus: vec![asdu(b"MU", 1); 8], ..FrameSpec::default() };
    frames.push(many.build().map_err(|e| e.to_string())?);
    write_pcap(&file, &frames, 250_000)?;
    equal("complaints", complaints(&file)?, vec![])?;
    let got: Vec<String> = tshark(&file, &["sv.svID"])?.into_iter().map(|r| r[0].clone()).collect();
    let expected: Vec<String> = svids.into_iter().chain([["MU"; 8].join(",")]).collect();
    equal("svIDs", got, expected)
}

fn tagged(tags: &[Tag]) -> FrameLink {
    FrameLink { tags: tags.into(), ..FrameLink::default() }
}

fn goose_frame(frame: &goose::Frame<'_>, tags: &[Tag]) -> Result<Vec<u8>> {
    frame.build(&tagged(tags)).map_err(|e| e.to_string().into())
}

fn goose_fields() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let base = || goose::Frame { t: [0x5f, 0xee, 0x66, 0, 0, 0, 0, 0x0a], ..Default::default() };
    let long = "x".repeat(129).into_bytes();
    let values = [1, 0, 1].map(|value| [0x83, 1, value]).concat();
    let frames = [
        goose_frame(&base(), &[])?,
        goose_frame(&goose::Frame { goid: Some(b"trip"), st_num: 128, sq_num: 300, ..base() }, &[])?,
        goose_frame(&goose::Frame { gocb_ref: &long, goid: Some(&long), st_num: u32::MAX, ..base() }, &[])?,
        goose_frame(&goose::Frame { appid: 0x3fff, conf_rev: 70_000, ..base() }, &[Tag::new(7, 4)])?,
        goose_frame(&goose::Frame { simulation: true, nds_com: true, entries: 3, all_data: &values, ..base() }, &[])?,
    ];
    write_pcap(&file, &frames, 250_000)?;
    equal("complaints", complaints(&file)?, vec![])?;
    let fields = ["goose.goID", "goose.stNum", "goose.sqNum", "goose.appid", "goose.confRev", "goose.simulation"];
    let rows = tshark(&file, &[&fields[..], &["goose.numDatSetEntries", "goose.boolean", "goose.gocbRef"]].concat())?;
    let column = |i: usize| rows.iter().map(|r| r[i].as_str()).collect::<Vec<_>>();
    let long = "x".repeat(129);
    equal("goID", column(0), vec!["", "trip", &long, "", ""])?;
    equal("stNum", column(1), vec!["1", "128", "4294967295", "1", "1"])?;
    equal("sqNum", column(2), vec!["0", "300", "0", "0", "0"])?;
    equal("APPID", column(3)[3], "0x3fff")?;
    equal("confRev", column(4)[3], "70000")?;
    equal("entries", column(6)[4], "3")?;
    equal("gocbRef", column(8)[0], "IED1LD0/LLN0$GO$gcb01")
}

fn ptp_fields() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let source = ptp::PortIdentity { clock: [0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55], port: 9 };
    let built = |message| {
        ptp::Message { message, domain: 3, source, sequence_id: 65_535, log_interval: 0 }.build(&FrameLink::default())
    };
    let frames: Vec<_> = (0..4).map(built).collect();
    write_pcap(&file, &frames, 250_000)?;
    equal("complaints", complaints(&file)?, vec![])?;
    let fields = ["ptp.v2.messagetype", "ptp.v2.sequenceid", "ptp.v2.domainnumber", "ptp.v2.sourceportid"];
    for (message, row) in tshark(&file, &fields)?.into_iter().enumerate() {
        let expected = [format!("0x{message:x}"), "65535".into(), "3".into(), "9".into()];
        let got = [row[0].replace("0x0", "0x"), row[1].clone(), row[2].clone(), row[3].clone()];
        equal("message", got.map(|s| if s == "0x" { "0x0".into() } else { s }), expected)?;
    }
    Ok(())
}

fn three_protocols() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let source = ptp::PortIdentity { clock: [0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55], port: 1 };
    let mut frames = Vec::new();
    for n in 0..40_u16 {
        frames.push(one(asdu(b"MU01", n))?);
        // A new event after twenty messages; the third message of that event is missing.
        let event = u32::from(n / 20);
        let sq_num = u32::from(n) - 20 * event;
        if (event, sq_num) != (1, 2) {
            let goid = Some(&b"trip,1"[..]);
            frames.push(goose_frame(&goose::Frame { goid, st_num: 7 + event, sq_num, ..Default::default() }, &[])?);
        }
        let sequence_id = n.wrapping_add(65_530);
        let sync = ptp::Message { message: 0, domain: 0, source, sequence_id, log_interval: 0 };
        frames.push(sync.build(&FrameLink::default()));
    }
    write_pcap(&file, &frames, 250_000)?;
    let found = streams(&file)?;
    let rows = &found.streams;
    let ptp = "ptp:sync,source=001122.fffe.334455-1,domain=0";
    let expected = [("svid:MU01,appid=0x4000", 40, 0), ("goose:trip\\,1,appid=0x0000", 39, 1), (ptp, 40, 0)];
    equal("streams", rows.iter().map(|r| (r.stream.as_str(), r.frames, r.lost)).collect(), expected.to_vec())?;
    let goose = ["goid", "gocb_ref", "st_num", "sq_num"].map(|k| &rows[1].details[k]);
    equal("GOOSE", json!(goose), json!(["trip,1", "IED1LD0/LLN0$GO$gcb01", 8, 19]))?;
    let ptp = ["message", "source", "domain", "sequence_id"].map(|k| &rows[2].details[k]);
    equal("PTP", json!(ptp), json!(["sync", "001122.fffe.334455-1", 0, 33]))?;
    equal("PTP's wrap", rows[2].wrap, Some(65_536))?;
    let text = String::from_utf8(latpath(&["streams", "-r", &file.to_string_lossy()])?.stdout)?;
    let heads: Vec<&str> =
        text.lines().filter(|l| l.contains("VLAN")).filter_map(|l| l.split_whitespace().next()).collect();
    equal("a table of each", heads, vec!["svID", "goID", "message"])
}

fn who_and_how() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let link = FrameLink { src: [2, 0, 0, 0, 0, 9], ..FrameLink::default() };
    let frame = |asdu| FrameSpec { asdus: vec![asdu], link: link.clone(), ..FrameSpec::default() }.build();
    let mut frames = Vec::new();
    for n in 0..30 {
        // The publisher's clock loses synchronisation during the file.
        let smp_synch = if n < 20 { 2 } else { 0 };
        frames.push(frame(AsduSpec { smp_synch, conf_rev: 7, ..asdu(b"MU01", n) }).map_err(|e| e.to_string())?);
        frames.push(frame(asdu(b"STILL", 7)).map_err(|e| e.to_string())?);
    }
    write_pcap(&file, &frames, 125_000)?;
    let from_stdin = |more: &[&str]| -> Result<Output> {
        let stdin = std::fs::File::open(&file)?;
        Ok(Command::new(env!("CARGO_BIN_EXE_latpath")).args(["streams", "-r", "-"]).args(more).stdin(stdin).output()?)
    };
    let found: StreamsDocument = json(&from_stdin(&["--json"])?)?;
    let row = |i: usize| {
        let s = &found.streams[i];
        json!([s.details["svid"], s.src, s.details["smp_synch"], s.details["conf_rev"], s.duplicates, s.lost])
    };
    let src = "02:00:00:00:00:09";
    equal("a stream", row(0), json!(["MU01", src, 0, 7, 0, 0]))?;
    equal("one that stands still", row(1), json!(["STILL", src, 2, 1, 29, 0]))?;
    let text = String::from_utf8(from_stdin(&[])?.stdout)?;
    let rows: Vec<Vec<&str>> = text
        .lines()
        .take(3)
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let cells = |row: usize| {
        let heads = ["svID", "src", "smpSynch", "confRev", "repeated"];
        heads.map(|head| Some(rows[row][rows[0].iter().position(|cell| *cell == head)?]))
    };
    equal(&text, cells(1), ["MU01", src, "0", "7", "0"].map(Some))?;
    equal(&text, cells(2), ["STILL", src, "2", "1", "29"].map(Some))?;
    let repeat: Vec<_> = text.lines().filter(|line| line.contains("frames repeat")).collect();
    equal("what is said below", repeat, vec!["svid:STILL,appid=0x4000: 29 of 30 frames repeat a smpCnt"])
}

fn pcap_and_pcapng() -> Result<()> {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
    use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
    let dir = tempfile::tempdir()?;
    let (plain, ng) = (dir.path().join("a.pcap"), dir.path().join("a.pcapng"));
    let frames = (0..4101).map(|n| one(asdu(b"MU01", n % 4000))).collect::<Result<Vec<_>>>()?;
    write_pcap(&plain, &frames, 250_000)?;
    let mut writer = PcapNgWriter::new(std::fs::File::create(&ng)?).map_err(|e| e.to_string())?;
    let interface = InterfaceDescriptionBlock {
        linktype: pcap_file::DataLink::ETHERNET,
        snaplen: 0,
        options: vec![InterfaceDescriptionOption::IfTsResol(9)],
    };
    writer.write_block(&interface.into_block()).map_err(|e| e.to_string())?;
    for (i, frame) in frames.iter().enumerate() {
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: std::time::Duration::from_nanos(1_000_000_000 + i as u64 * 250_000),
            original_len: frame.len() as u32,
            data: frame.into(),
            options: vec![],
        };
        writer.write_block(&block.into_block()).map_err(|e| e.to_string())?;
    }
    drop(writer);
    let found = streams(&plain)?;
    equal("both forms", &streams(&ng)?, &found)?;
    let row = &found.streams[0];
    equal("frames", row.frames, 4101)?;
    equal("rate", row.rate_hz, Some(4000.0))?;
    equal("wrap", row.wrap, Some(4000))?;
    equal("lost", row.lost, 0)
}

fn shared_captures() -> Result<()> {
    let found = streams(&shared("sv-50hz-1stream.pcap"))?;
    let row = &found.streams[0];
    equal("svid", &row.details["svid"], &Detail::Text("svID0000".into()))?;
    equal("vlan, frames", (row.vlan, row.frames), (None, 4000))?;
    equal("malformed", found.malformed, 0)?;

    let found = streams(&shared("sv-60hz-8streams-vlan.pcap"))?;
    let names: Vec<&Detail> = found.streams.iter().map(|r| &r.details["svid"]).collect();
    let expected: Vec<Detail> = (0..8).map(|n| Detail::Text(format!("MU00{n}"))).collect();
    equal("svids", names, expected.iter().collect())?;
    for row in found.streams {
        // 600 samples are too few to show the wrap.
        equal("vlan, pcp, wrap", (row.vlan, row.pcp, row.wrap), (Some(7), Some(4), None))?;
        let is_right = matches!(row.details["samples_per_s"], Detail::Rate(rate) if rate.round() == 4800.0);
        equal(&format!("samples/s of {row:?}"), is_right, true)?;
    }
    Ok(())
}

fn malformed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    let good = one(asdu(b"MU01", 0))?;
    let mut management = good.clone();
    management[13] = 0xb9;
    write_pcap(&file, &[good.clone(), good[..50].to_vec(), management, good[..13].to_vec()], 250_000)?;
    let found = streams(&file)?;
    equal("frames", found.frames, 4)?;
    // A frame truncated before its ethertype counts as malformed, although it may not belong to any stream.
    equal("malformed", found.malformed, 2)?;
    equal("others", found.other_frames, 1)?;
    equal("good ones", found.streams[0].frames, 1)
}

fn no_capture() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("text");
    for (bytes, says) in [
        (&b"this is a text and no capture"[..], "text: no pcap or pcapng file"),
        (b"", "text: ends in the middle, after 0 whole packets"),
        (b"\x0a\x0d\x0d\x0a\xff\xff\xff\xff\x4d\x3c\x2b\x1a", "text: "),
    ] {
        std::fs::write(&file, bytes)?;
        let out = latpath(&["streams", "-r", &file.to_string_lossy()])?;
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        equal("exit code", out.status.code(), Some(1))?;
        equal(&error, error.contains(says), true)?;
        equal("no empty table", out.stdout.is_empty(), true)?;
    }
    let out = latpath(&["streams", "-r", "/does/not/exist"])?;
    equal("names the file", String::from_utf8_lossy(&out.stderr).contains("/does/not/exist: No such file"), true)
}

fn cut_capture() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("cut");
    write_pcap(&file, &[one(asdu(b"A", 0))?, one(asdu(b"A", 1))?, one(asdu(b"A", 2))?], 250_000)?;
    let bytes = std::fs::read(&file)?;
    std::fs::write(&file, &bytes[..bytes.len() - 10])?;
    let out = latpath(&["streams", "-r", &file.to_string_lossy(), "--json"])?;
    equal("exit code", out.status.code(), Some(1))?;
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    equal("error", error, format!("latpath: {}: ends in the middle, after 2 whole packets\n", file.display()))?;
    let found: StreamsDocument = serde_json::from_slice(&out.stdout)?;
    equal("what could be read", found.streams[0].frames, 2)
}

fn reader_gone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("frames.pcap");
    write_pcap(&file, &[one(asdu(b"A", 0))?], 250_000)?;
    let to = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latpath"));
        command.args(["streams", "-r", &file.to_string_lossy()]).stdout(stdout).stderr(Stdio::piped()).output()
    };
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let out = to(writer.into())?;
    equal("a reader that has gone is no error", (out.status.code(), out.stderr.is_empty()), (Some(0), true))?;
    let out = to(std::fs::File::options().write(true).open("/dev/full")?.into())?;
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    equal("exit code", out.status.code(), Some(1))?;
    equal(&error, error.starts_with("latpath: writing to stdout: No space left on device"), true)
}

fn wrong_usage() -> Result<()> {
    let long = "x".repeat(130);
    for args in [
        &["streams", "-i", "lo", "-r", "x"][..],
        &["publish"],
        &["publish", "-i", "lo"],
        &["publish", "-i", "lo", "--svid", "A", "--profile", "9-2le-70"],
        &["publish", "-i", "lo", "--svid", "A", "--rate", "fast"],
        &["publish", "-i", "lo", "--svid", "A", "--vlan", "4095"],
        &["publish", "-i", "lo", "--pcap", "x", "--svid", "A"],
        &["publish", "-i", "lo", "--svid", &long],
        &["publish", "-i", "lo", "--svid", "A", "--rate", "0"],
        &["publish", "-i", "lo", "--svid", "A", "--streams", "10000"],
        &["publish", "-i", "lo", "--stream", "ether:0x88b5"],
        &["publish", "-i", "lo", "--stream", "goose:A", "--svid", "A"],
        &["publish", "-i", "lo", "--stream", "ptp:sync", "--event-every", "1s"],
        &["publish", "-i", "lo", "--stream", "goose:A", "--event-every", "0s"],
        &["subscribe", "-i", "lo", "--stream", "MU01"],
        &["subscribe", "-i", "lo", "--group", "02:00:00:00:00:01"],
        &["subscribe", "-i", "lo", "--stream", "udp::5000"],
        &["study", "vhost"],
        &["study", "vhost", "--measure", "relay1", "--", "true"],
        &["study", "vhost", "--measure", "../x=relay1", "--", "true"],
        &["study", "vhost", "--measure", "vhost=relay1"],
        &["study", "vhost", "--measure", "vhost=no-such-vm", "--", "true"],
    ] {
        let out = latpath(args)?;
        equal(&args.join(" "), out.status.code(), Some(2))?;
    }
    Ok(())
}
