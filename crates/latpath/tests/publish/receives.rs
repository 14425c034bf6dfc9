//! The results of `subscribe` and `streams` for received frames.

use crate::bench::{summary, write_pcap, Pair, Result};
use crate::{Needs, Test};
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_testkit::waits::{delivered, is_in_state, until, LIMIT};
use latpath_testkit::{equal, Started};
use latpath_traffic::document::{Detail, StreamDocument, StreamsDocument};
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::Duration;

pub const TESTS: &[Test] = &[
    ("subscribe counts loss, duplicates and order (copying read)", Needs::Root, || sequence(&[])),
    ("subscribe counts loss, duplicates and order (mapped ring)", Needs::Root, || sequence(&["--ring"])),
    ("subscribe takes tagged streams by VLAN (copying read)", Needs::Root, || tagged(&[])),
    ("subscribe takes tagged streams by VLAN (mapped ring)", Needs::Root, || tagged(&["--ring"])),
    ("subscribe takes every frame of every profile, over the wrap", Needs::Root, profiles),
    ("subscribe takes GOOSE and PTP by name", Needs::Root, other_protocols),
    ("a publisher that stands still and then sends what is overdue has lost nothing", Needs::Root, stands_still),
    ("a stream that never comes is said after 3 s, with those that do", Needs::Root, never_comes),
    ("control codes in an svID do not reach the terminal", Needs::Root, control_codes),
    ("the receiving thread has the name that was given", Needs::Root, thread_name),
    ("streams sees what passes a device, sent or received", Needs::Root, discovery),
];

/// Tests that run alone: floods need the CPUs for themselves, because frames that wait too long between two devices are
/// dropped; a listener on all devices reads the packets of other tests, whose paths then have one more point.
pub const ALONE: &[Test] = &[
    ("streams sees all devices of all namespaces, and names them", Needs::Root, everywhere),
    ("what the kernel drops is counted (copying read)", Needs::Root, || overrun(&[], 60_000)),
    ("what the kernel drops is counted (mapped ring)", Needs::Root, || overrun(&["--ring"], 30_000)),
    ("subscribe survives a flood of broken frames", Needs::Root, flood),
];

pub fn listen(pair: &Pair, more: &[&str]) -> Result<Started> {
    pair.listen("lpb", &[&["subscribe", "-i", "lpb", "--json"], more].concat())
}

/// Waits until `frames` frames have reached lpb.
pub fn arrived(pair: &Pair, frames: u64) -> Result<()> {
    until(&format!("{frames} frames to arrive"), || pair.received("lpb").is_ok_and(|n| n >= frames))?;
    // A veth device counts frames when they are queued for its peer: softirqs have yet to deliver the last ones.
    delivered()
}

fn frame(svid: &str, smp_cnt: u32) -> Result<Vec<u8>> {
    let asdu = AsduSpec { svid: svid.into(), smp_cnt: smp_cnt as u16, data: vec![0; 64], ..AsduSpec::default() };
    FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().map_err(|e| e.to_string().into())
}

fn sequence(mode: &[&str]) -> Result<()> {
    let pair = Pair::new()?;
    let file = pair.dir.path().join("in.pcap");
    // smpCnt wraps first, so that its range is known. Two gaps of less than half a wrap follow, and further losses
    // around the next wrap.
    let mut counts: Vec<u32> = (3500..4500).chain(6000..6300).collect();
    counts.extend((7700..7990).filter(|n| *n != 7750 && !(7800..7807).contains(n)));
    counts.extend([7990, 7990, 7991, 7993, 7992, 7996, 8003, 8002, 8003, 8004]);
    let frames = counts.iter().map(|n| frame("MU01", n % 4000)).collect::<Result<Vec<_>>>()?;
    // At this rate half a wrap takes 4 s: during a longer silence, whole wraps could be missing.
    write_pcap(&file, &frames, 2_000_000)?;
    let running = listen(&pair, &[&["--stream", "svid:MU01"], mode].concat())?;
    pair.publish(&["--pcap", &file.to_string_lossy()])?;
    arrived(&pair, frames.len() as u64)?;
    let got = summary(running)?;
    let row = &got.streams[0];
    equal("received", row.received, counts.len() as u64)?;
    // 4500 to 5999; 6300 to 7699; 7750; seven from 7800; 7994 and 7995; 7997 to 8001.
    equal("lost", row.lost, 1500 + 1400 + 1 + 7 + 2 + 5)?;
    equal("duplicates", row.duplicates, 2)?;
    equal("out of order", row.out_of_order, 2)?;
    equal("wrap", row.wrap, Some(4000))?;
    equal("dropped", got.socket_dropped, 0)?;
    equal("every frame has the kernel's time", got.unstamped, 0)
}

fn tagged(mode: &[&str]) -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &[&["--stream", "svid:MU01,vlan=7", "--stream", "svid:MU02,vlan=8"], mode].concat())?;
    pair.publish(&["--svid", "MU", "--streams", "2", "--vlan", "7", "--count", "200"])?;
    arrived(&pair, 200)?;
    let got = summary(running)?;
    equal("MU01 is in VLAN 7", got.streams[0].received, 100)?;
    equal("MU02 is not in VLAN 8", got.streams[1].received, 0)?;
    equal("others", (got.other_frames, got.other_svids), (100, vec!["MU02".into()]))
}

fn other_protocols() -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &["--stream", "goose:trip", "--stream", "ptp:delay_req"])?;
    pair.publish(&["--stream", "goose:trip", "--rate", "500", "--event-every", "50ms", "--count", "100"])?;
    pair.publish(&["--stream", "goose:other", "--rate", "500", "--count", "10"])?;
    pair.publish(&["--stream", "ptp:delay_req", "--rate", "500", "--count", "50"])?;
    pair.publish(&["--stream", "ptp:sync", "--rate", "500", "--count", "10"])?;
    arrived(&pair, 170)?;
    let got = summary(running)?;
    let rows: Vec<_> = got.streams.iter().map(|s| (s.stream.as_str(), s.received, s.lost, s.duplicates)).collect();
    equal("GOOSE, PTP", rows, vec![("goose:trip", 100, 0, 0), ("ptp:delay_req", 50, 0, 0)])?;
    equal("others", (got.other_frames, got.malformed), (20, 0))
}

fn profiles() -> Result<()> {
    for profile in latpath_protocols::sv::Profile::ALL {
        let pair = Pair::new()?;
        let running = listen(&pair, &[])?;
        // Half of the frames come before the wrap. The rate is so low that half a wrap takes 4 s, longer than this
        // machine should stall.
        let (frames, asdus) = (600, u32::from(profile.asdus));
        let first = profile.samples_per_s - frames / 2 * asdus;
        let rate = profile.samples_per_s / (8 * asdus);
        let [count, first, rate] = [frames, first, rate].map(|n| n.to_string());
        pair.publish(&["--profile", profile.name, "--count", &count, "--first", &first, "--rate", &rate])?;
        arrived(&pair, frames.into())?;
        let got = summary(running)?;
        let row = &got.streams[0];
        let counts = (row.received, row.lost, row.duplicates, row.out_of_order);
        equal(profile.name, counts, (frames.into(), 0, 0, 0))?;
        equal("wrap, ASDUs", (row.wrap, row.asdus), (Some(profile.samples_per_s.into()), profile.asdus))?;
    }
    Ok(())
}

/// `flood`: number of frames sent while the subscriber is stopped; more than fit into the socket's buffer, by less than
/// half a wrap.
fn overrun(mode: &[&str], flood: u64) -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &[&["--stream", "svid:MU01"], mode].concat())?;
    // The subscriber is stopped during the flood; the frames before and after it show how many are missing in between.
    pair.publish(&["--count", "100", "--wrap", "65536"])?;
    arrived(&pair, 100)?;
    running.signal(Signal::SIGSTOP);
    is_in_state(running.pid(), 'T')?;
    pair.publish(&["--rate", "max", "--count", &flood.to_string(), "--wrap", "65536", "--first", "100"])?;
    arrived(&pair, 100 + flood)?;
    running.signal(Signal::SIGCONT);
    // The subscriber sleeps when its queue is empty.
    is_in_state(running.pid(), 'S')?;
    pair.publish(&["--count", "100", "--wrap", "65536", "--first", &(100 + flood).to_string()])?;
    arrived(&pair, 200 + flood)?;
    let got = summary(running)?;
    equal("something was dropped", got.socket_dropped > 0, true)?;
    equal("received and dropped", got.received + got.socket_dropped, 200 + flood)?;
    equal("lost", got.lost, got.socket_dropped)
}

fn stands_still() -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &["--stream", "svid:MU01"])?;
    let publisher = pair.start("lpa", &["publish", "-i", "lpa", "--svid", "MU01", "--count", "15000"])?;
    // By then the wrap is known; 2 s are two wraps.
    arrived(&pair, 5000)?;
    publisher.signal(Signal::SIGSTOP);
    // The publisher pauses for this long.
    latpath_testkit::waits::fault_for(Duration::from_secs(2));
    publisher.signal(Signal::SIGCONT);
    publisher.finish(LIMIT)?;
    arrived(&pair, 15_000)?;
    let got = summary(running)?;
    equal("wrap", got.streams[0].wrap, Some(4000))?;
    equal("received, lost", (got.received, got.lost), (15_000, 0))
}

fn flood() -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &["--stream", "svid:MU01"])?;
    pair.publish(&["--corrupt", "--rate", "max", "--count", "200000"])?;
    pair.publish(&["--count", "400", "--svid", "MU02"])?;
    arrived(&pair, 200_400)?;
    let got = summary(running)?;
    let sum = got.received + got.malformed + got.other_frames + got.socket_dropped;
    equal("each frame is counted once", sum, 200_400)?;
    equal("most are malformed", got.malformed > got.received, true)
}

fn never_comes() -> Result<()> {
    let pair = Pair::new()?;
    // Another stream is received all the time.
    let _publisher = pair.start("lpa", &["publish", "-i", "lpa", "--svid", "MU01"])?;
    arrived(&pair, 1)?;
    let mut running = listen(&pair, &["--stream", "svid:MU99"])?;
    let is_missed = |said: &str| said.contains("svid:MU99") && said.contains("MU01") && said.contains("3 s");
    until("it says what does not come", || is_missed(&running.said()))?;
    equal("it keeps waiting", running.runs(), true)?;
    equal("received", summary(running)?.received, 0)
}

fn thread_name() -> Result<()> {
    let pair = Pair::new()?;
    let names = |args: &[&str]| -> Result<String> {
        let running = listen(&pair, args)?;
        let comm = || std::fs::read_to_string(format!("/proc/{}/comm", running.pid())).unwrap_or_default();
        until("its name", || comm() != "latpath\n")?;
        Ok(comm().trim().into())
    };
    equal("by default", names(&[])?.as_str(), "subscribe")?;
    equal("as given", names(&["--name", "relay"])?.as_str(), "relay")?;
    equal("cut to 15 bytes", names(&["--name", "a-very-long-name-of-a-relay"])?.as_str(), "a-very-long-nam")
}

fn control_codes() -> Result<()> {
    let pair = Pair::new()?;
    let all = pair.listen("lpb", &["subscribe", "-i", "lpb", "--count", "5"])?;
    let other = pair.listen("lpb", &["subscribe", "-i", "lpb", "--stream", "svid:MU01", "--count", "1"])?;
    let streams = pair.listen("lpb", &["streams", "-i", "lpb", "--duration", "60s"])?;
    pair.publish(&["--svid", "A\u{1b}[31m\rB\u{9b}1m", "--count", "5"])?;
    arrived(&pair, 5)?;
    pair.publish(&["--count", "1"])?;
    arrived(&pair, 6)?;
    streams.interrupt();
    for ended in [all, other, streams] {
        let text = ended.finish(LIMIT)?.stdout;
        equal("the svID is shown", text.contains("A\\x1b[31m\\x0dB\\xc2\\x9b1m"), true)?;
        let is_foreign = |c: char| c.is_control() && c != '\n' || c == char::REPLACEMENT_CHARACTER;
        equal(&text, text.chars().any(is_foreign), false)?;
    }
    Ok(())
}

fn everywhere() -> Result<()> {
    let pair = Pair::new()?;
    let svid = latpath_testkit::names::own("EV");
    let publisher = pair.start("lpa", &["publish", "-i", "lpa", "--svid", &svid])?;
    until("frames arrive", || pair.received("lpb").is_ok_and(|n| n > 0))?;
    let there = format!("lpb%{}", pair.name("lpb"));
    let rows = |args: &[&str]| -> Result<Vec<String>> {
        let found: StreamsDocument = pair.latpath("lpa", &[&["streams", "--json"], args].concat())?.json()?;
        let is_own = |row: &StreamDocument| row.details.get("svid") == Some(&Detail::Text(svid.clone()));
        Ok(found.streams.into_iter().filter(is_own).filter_map(|row| row.interface).collect())
    };
    equal("all devices", rows(&[])?, vec!["lpa".to_owned(), there.clone()])?;
    equal("one of another namespace", rows(&["-i", &there])?, vec![there.clone()])?;
    let text = pair.latpath("lpa", &["streams"])?.stdout;
    equal(&text, text.contains("interface") && text.contains(&there), true)?;
    let name = pair.name("lpb");
    let out = pair.latpath("lpa", &["subscribe", "-i", "lpb"])?;
    // Tests that run at the same time have devices with this name too.
    let here =
        out.stderr.starts_with("latpath: lpb: no such device (devices here: lo, lpa; lpb is in network namespace ");
    let there = out.stderr.contains(&format!("in network namespace {name}: ip netns exec {name} latpath …"));
    equal(&format!("where it is: {}", out.stderr), (out.code, here, there), (Some(1), true, true))?;
    let chosen = pair.latpath("lpa", &["live", "--plain", "--stream", &format!("svid:{svid}*"), "--count", "1"])?;
    equal(&chosen.stderr, chosen.stderr.contains(&format!("svid:{svid}")), true)?;
    publisher.interrupt();
    publisher.finish(LIMIT).map(drop)
}

fn discovery() -> Result<()> {
    let pair = Pair::new()?;
    let listeners = [
        ("lpa", pair.listen("lpa", &["streams", "-i", "lpa", "--json", "--duration", "60s"])?),
        ("lpb", pair.listen("lpb", &["streams", "-i", "lpb", "--json", "--duration", "60s"])?),
    ];
    pair.publish(&[
        "--profile",
        "f14400s6",
        "--svid",
        "MU",
        "--streams",
        "2",
        "--vlan",
        "7",
        "--pcp",
        "4",
        "--first",
        "13800",
        "--count",
        "600",
        // Half a wrap takes 4 s.
        "--rate",
        "300",
    ])?;
    arrived(&pair, 600)?;
    for (device, listener) in listeners {
        listener.interrupt();
        let rows = listener.finish(LIMIT)?.json::<StreamsDocument>()?.streams;
        equal(device, rows.len(), 2)?;
        for (row, (svid, dst)) in rows.iter().zip([("MU01", "01:0c:cd:04:00:01"), ("MU02", "01:0c:cd:04:00:02")]) {
            let details = ["svid", "appid", "asdus"].map(|key| &row.details[key]);
            equal(device, json!(details), json!([svid, 0x4000, 6]))?;
            equal(device, (row.vlan, row.pcp, row.dst.as_deref()), (Some(7), Some(4), Some(dst)))?;
            equal(device, (row.frames, row.wrap, row.lost), (300, Some(14400), 0))?;
        }
    }
    Ok(())
}
