//! The frames sent by `publish`, as captured by tcpdump and read by tshark.

use crate::bench::{complaints, shared, tshark, write_pcap, Pair, Result};
use crate::{Needs, Test};
use latpath_protocols::sv::{AsduSpec, FrameSpec, Profile, Waveform};
use latpath_testkit::equal;
use std::path::Path;

pub const TESTS: &[Test] = &[
    ("9-2le-50 is on the wire as tshark wants it", Needs::Capture, || profile("9-2le-50")),
    ("9-2le-60 is on the wire as tshark wants it", Needs::Capture, || profile("9-2le-60")),
    ("9-2le-50-meas is on the wire as tshark wants it", Needs::Capture, || profile("9-2le-50-meas")),
    ("9-2le-60-meas is on the wire as tshark wants it", Needs::Capture, || profile("9-2le-60-meas")),
    ("f4800s2 is on the wire as tshark wants it", Needs::Capture, || profile("f4800s2")),
    ("f14400s6 is on the wire as tshark wants it", Needs::Capture, || profile("f14400s6")),
    ("eight streams share the tag and count up their addresses", Needs::Capture, streams_and_tag),
    ("smpCnt wraps at 65536 where asked", Needs::Capture, wrap_at_65536),
    ("a GOOSE event is repeated after growing times, and PTP messages count", Needs::Capture, other_protocols),
    ("a replay sends the file's frames unchanged", Needs::Capture, replay_once),
    ("a looped replay goes on counting, with or without a wrap in the file", Needs::Capture, replay_loop),
    ("the shared captures are replayed and looped", Needs::CaptureShared, replay_shared),
    ("a replay takes a given rate, and waits for no pause of hours unasked", Needs::Root, replay_rate),
    ("a corrupted stream is the same for the same seed", Needs::Capture, corrupt),
];

/// Splits a field with one value per ASDU.
fn numbers(field: &str) -> Vec<u32> {
    field.split(',').filter_map(|n| n.parse().ok()).collect()
}

fn profile(name: &str) -> Result<()> {
    let profile: Profile = name.parse()?;
    let (wrap, asdus) = (profile.samples_per_s, u32::from(profile.asdus));
    let frames = 60;
    let first = wrap - 20 * asdus;
    let pair = Pair::new()?;
    let (file, sent) = pair.capture(frames, || {
        pair.publish(&[
            "--profile",
            name,
            "--svid",
            "IED_MU_1",
            "--first",
            &first.to_string(),
            "--count",
            &frames.to_string(),
        ])
    })?;
    equal("frames sent", sent.frames_sent, frames as u64)?;
    equal("complaints", complaints(&file)?, vec![])?;

    let fields = [
        "sv.svID",
        "sv.smpCnt",
        "sv.noASDU",
        "sv.appid",
        "sv.smpSynch",
        "sv.confRev",
        "sv.meas_value",
        "eth.dst",
        "vlan.id",
    ];
    let rows = tshark(&file, &fields)?;
    equal("frames", rows.len(), frames)?;
    let wave = Waveform::new(profile.samples_per_s, profile.hz);
    for (i, row) in (0..).zip(&rows) {
        let samples = (0..asdus).map(|k| first + i * asdus + k);
        equal("svIDs", row[0].clone(), vec!["IED_MU_1"; asdus as usize].join(","))?;
        equal("smpCnt", numbers(&row[1]), samples.clone().map(|n| n % wrap).collect())?;
        equal("noASDU", numbers(&row[2]), vec![asdus])?;
        equal("APPID", row[3].as_str(), "0x4000")?;
        equal("smpSynch", numbers(&row[4]), vec![1; asdus as usize])?;
        equal("confRev", numbers(&row[5]), vec![1; asdus as usize])?;
        let values = samples.flat_map(|n| {
            wave.sample(u64::from(n))
                .chunks(8)
                .map(|v| i32::from_be_bytes([v[0], v[1], v[2], v[3]]).to_string())
                .collect::<Vec<_>>()
        });
        equal("currents and voltages", row[6].clone(), values.collect::<Vec<_>>().join(","))?;
        equal("destination", row[7].as_str(), "01:0c:cd:04:00:01")?;
        equal("no tag", row[8].as_str(), "")?;
    }
    Ok(())
}

fn streams_and_tag() -> Result<()> {
    let pair = Pair::new()?;
    let args = [
        "--svid",
        "MU",
        "--streams",
        "8",
        "--vlan",
        "7",
        "--pcp",
        "5",
        "--appid",
        "0x4123",
        "--src",
        "02:00:00:00:00:09",
        "--dst",
        "01:0c:cd:04:00:fd",
        "--count",
        "80",
    ];
    let (file, sent) = pair.capture(80, || pair.publish(&args))?;
    equal("svids", sent.svids, (1..=8).map(|n| format!("MU0{n}")).collect())?;
    equal("complaints", complaints(&file)?, vec![])?;
    let rows = tshark(&file, &["sv.svID", "sv.smpCnt", "vlan.id", "vlan.priority", "sv.appid", "eth.src", "eth.dst"])?;
    for (i, row) in rows.iter().enumerate() {
        let (stream, sample) = (i % 8, i / 8);
        let dst = format!("01:0c:cd:04:{:02x}:{:02x}", (0xfd + stream) / 256, (0xfd + stream) % 256);
        let expected =
            [&format!("MU{:02}", stream + 1), &sample.to_string(), "7", "5", "0x4123", "02:00:00:00:00:09", &dst];
        equal("fields", row.clone(), expected.map(String::from).to_vec())?;
    }
    equal("frames", rows.len(), 80)
}

fn other_protocols() -> Result<()> {
    let pair = Pair::new()?;
    let args = ["--stream", "goose:trip,appid=7,vlan=9", "--event-every", "100ms", "--count", "9"];
    let (file, sent) = pair.capture(9, || pair.publish(&args))?;
    equal("sent", (sent.frames_sent, sent.stream.as_deref()), (9, Some("goose:trip,appid=0x0007,vlan=9")))?;
    equal("complaints", complaints(&file)?, vec![])?;
    let rows = tshark(&file, &["goose.goID", "goose.stNum", "goose.sqNum", "goose.timeAllowedtoLive", "vlan.id"])?;
    // Intervals of 2 ms, doubled each time: the seventh message would be sent at 126 ms.
    let expected = (0..6).map(|n| (1, n)).chain((0..3).map(|n| (2, n)));
    let expected =
        expected.map(|(st, sq)| ["trip".into(), st.to_string(), sq.to_string(), (4 << sq).to_string(), "9".into()]);
    equal("messages", rows, expected.map(|row| row.to_vec()).collect())?;

    let args = ["--stream", "ptp:sync,domain=5", "--rate", "128", "--count", "20", "--src", "00:11:22:33:44:55"];
    let (file, _) = pair.capture(20, || pair.publish(&args))?;
    equal("complaints", complaints(&file)?, vec![])?;
    let rows = tshark(
        &file,
        &["ptp.v2.sequenceid", "ptp.v2.domainnumber", "ptp.v2.clockidentity", "ptp.v2.logmessageperiod"],
    )?;
    let row = |n: usize| [n.to_string(), "5".into(), "0x001122fffe334455".into(), "-7".into()].to_vec();
    equal("messages", rows, (0..20).map(row).collect())
}

fn wrap_at_65536() -> Result<()> {
    let pair = Pair::new()?;
    let args = ["--profile", "f14400s6", "--wrap", "65536", "--first", "65530", "--count", "3"];
    let (file, _) = pair.capture(3, || pair.publish(&args))?;
    let counts: Vec<u32> = tshark(&file, &["sv.smpCnt"])?.iter().flat_map(|r| numbers(&r[0])).collect();
    equal("smpCnt", counts, (65530..65536).chain(0..12).collect())
}

pub fn bytes_of(file: &Path) -> Result<Vec<Vec<u8>>> {
    let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(file)?).map_err(|e| e.to_string())?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.map_err(|e| e.to_string())?.data.into_owned());
    }
    Ok(frames)
}

fn frame(svid: &str, smp_cnt: u16, asdus: u16) -> Result<Vec<u8>> {
    let asdu = |k| AsduSpec { svid: svid.into(), smp_cnt: smp_cnt + k, data: vec![0x55; 64], ..AsduSpec::default() };
    FrameSpec { asdus: (0..asdus).map(asdu).collect(), ..FrameSpec::default() }
        .build()
        .map_err(|e| e.to_string().into())
}

fn replay_once() -> Result<()> {
    let pair = Pair::new()?;
    let file = pair.dir.path().join("in.pcap");
    let mut frames = (0..50).map(|n| frame("A", n * 2, 2)).collect::<Result<Vec<_>>>()?;
    frames[7][90] ^= 0xff;
    let mut goose = frames[0].clone();
    goose[13] = 0xb8;
    let with_goose: Vec<Vec<u8>> = frames.iter().cloned().chain([goose]).collect();
    write_pcap(&file, &with_goose, 416_667)?;
    let (got, sent) = pair.capture(50, || pair.publish(&["--pcap", &file.to_string_lossy()]))?;
    equal("frames", bytes_of(&got)?, frames)?;
    equal("other protocols are skipped", sent.skipped, 1)
}

fn replay_loop() -> Result<()> {
    // Contents of the file, and the expected wrap.
    let cases: [(u32, u32, u16, u32); 4] = [
        // 30 samples of a 4000/s stream without a wrap: its rate determines it.
        (100, 30, 1, 4000),
        // The wrap is in the file.
        (4790, 30, 1, 4800),
        // Six samples per frame.
        (14_388, 36, 6, 14_400),
        // Above any rate of samples per second.
        (65_500, 30, 1, 65_536),
    ];
    for (first, samples, asdus, wrap) in cases {
        let pair = Pair::new()?;
        let file = pair.dir.path().join("in.pcap");
        let step = u32::from(asdus);
        let frames = (0..samples / step).map(|i| frame("A", ((first + i * step) % wrap) as u16, asdus));
        let rate = u64::from(if wrap == 65_536 { 4000 } else { wrap }) / u64::from(asdus);
        write_pcap(&file, &frames.collect::<Result<Vec<_>>>()?, 1_000_000_000 / rate)?;
        let count = (samples / step * 5) as usize;
        let args = ["--pcap", &file.to_string_lossy(), "--loop", "--count", &count.to_string()];
        let (got, _) = pair.capture(count, || pair.publish(&args))?;
        let counts: Vec<u32> = tshark(&got, &["sv.smpCnt"])?.iter().flat_map(|r| numbers(&r[0])).collect();
        let expected: Vec<u32> = (first..first + samples * 5).map(|n| n % wrap).collect();
        equal(&format!("smpCnt over five rounds, wrap at {wrap}"), counts, expected)?;
        equal("complaints", complaints(&got)?, vec![])?;
    }
    Ok(())
}

fn replay_shared() -> Result<()> {
    for (name, streams, per_stream, wrap) in
        [("sv-50hz-1stream.pcap", 1, 4000, 4000), ("sv-60hz-8streams-vlan.pcap", 8, 600, 4800)]
    {
        let path = shared(name);
        let pair = Pair::new()?;
        let once = streams * per_stream;
        let (got, _) = pair.capture(once, || pair.publish(&["--pcap", &path.to_string_lossy()]))?;
        equal(name, bytes_of(&got)? == bytes_of(&path)?, true)?;
        let args = ["--pcap", &path.to_string_lossy(), "--loop", "--rate", "20000", "--count", &(3 * once).to_string()];
        let (got, _) = pair.capture(3 * once, || pair.publish(&args))?;
        equal("complaints", complaints(&got)?, vec![])?;
        let rows = tshark(&got, &["sv.svID", "sv.smpCnt"])?;
        let svids: std::collections::BTreeSet<&String> = rows.iter().map(|r| &r[0]).collect();
        equal("streams", svids.len(), streams)?;
        for svid in svids {
            let counts: Vec<u32> = rows.iter().filter(|r| &r[0] == svid).flat_map(|r| numbers(&r[1])).collect();
            equal(svid, counts, (0..3 * per_stream as u32).map(|n| n % wrap).collect())?;
        }
    }
    Ok(())
}

fn replay_rate() -> Result<()> {
    let pair = Pair::new()?;
    let file = pair.dir.path().join("in.pcap");
    let frames = (0..10).map(|n| frame("A", n, 1)).collect::<Result<Vec<_>>>()?;
    // At its original rate the file would take nine hours.
    write_pcap(&file, &frames, 3_600_000_000_000)?;
    let file = file.to_string_lossy();
    let sent = pair.publish(&["--pcap", &file, "--rate", "2000", "--loop", "--count", "100"])?;
    equal("frames", sent.frames_sent, 100)?;
    equal("rate", sent.target_rate_hz, Some(2000.0))?;
    let own_pace = ["publish", "-i", "lpa", "--pcap", &file];
    let refused = pair.latpath("lpa", &own_pace)?;
    equal(&refused.stderr, refused.code, Some(2))?;
    let says = ["pauses 1:00:00 before frame 10", "--rate", "--duration"].map(|word| refused.stderr.contains(word));
    equal(&refused.stderr, says, [true; 3])?;
    let waits = pair.latpath("lpa", &[&own_pace[..], &["--duration", "100ms"]].concat())?;
    equal(&waits.stderr, (waits.code, waits.stderr.contains("pauses 1:00:00")), (Some(0), true))?;
    equal(
        &waits.stdout,
        waits.stdout.contains("sent     1 frame in ") && waits.stdout.contains("(asked: 2.8e-4/s)"),
        true,
    )
}

fn corrupt() -> Result<()> {
    let pair = Pair::new()?;
    let sent = |seed: &str| {
        let args = ["--vlan", "7", "--corrupt", "--seed", seed, "--count", "500", "--rate", "20000"];
        pair.capture(500, || pair.publish(&args)).and_then(|(file, _)| bytes_of(&file))
    };
    let (first, again, other) = (sent("1")?, sent("1")?, sent("2")?);
    equal("same seed", first == again, true)?;
    equal("another seed", first == other, false)?;
    let bad = first.iter().filter(|f| latpath_protocols::sv::Frame::parse(f).is_err()).count();
    equal("most cannot be read", bad > 250, true)?;
    equal(
        "all reach who listens for Sampled Values",
        first.iter().all(|f| f[12..18] == [0x81, 0, 0x80, 7, 0x88, 0xba]),
        true,
    )
}
