//! `publish --cycle` as a talker, and `subscribe --send-time` as its listener.

use crate::bench::{complaints, fits_its_schema, summary, tshark, write_pcap, Pair, Result};
use crate::receives::{arrived, listen};
use crate::sends::bytes_of;
use crate::{Needs, Test};
use latpath_linux::read_clock;
use latpath_protocols::sv::{AsduSpec, Frame, FrameSpec};
use latpath_testkit::equal;
use nix::time::ClockId;
use serde_json::{json, Value};

pub const TESTS: &[Test] = &[
    ("a talker's frames have their send times, as tshark wants them", Needs::Capture, send_times),
    ("a schedule's streams have their offsets, tags and priorities", Needs::Root, schedule),
    ("a listener counts every frame of a talker, and its slots add up", Needs::Root, both_ends),
    ("frames are in slot, early, or late by cycles, exactly as they were sent", Needs::Root, slots),
    ("send times of other senders are read at an offset, with and without tags", Needs::Root, other_senders),
    ("a talker with send times for etf sends all frames where there is no etf", Needs::Root, without_etf),
    ("flags that no talker or listener can have are refused", Needs::Nothing, refused),
];

const MS: i64 = 1_000_000;
const S: i64 = 1000 * MS;

/// The send time in a talker's frame.
fn send_time(frame: &[u8]) -> Result<i64> {
    let asdu = Frame::parse(frame).map_err(|e| e.to_string())?.asdus().next().ok_or("no ASDU")?;
    let time = asdu.data.and_then(|data| data.get(64..72)?.first_chunk().copied()).ok_or("no send time")?;
    Ok(i64::from_be_bytes(time))
}

fn send_times() -> Result<()> {
    let pair = Pair::new()?;
    let args = "--svid RT --streams 2 --cycle 1ms --send-offset 200us --vlan 5 --pcp 6 --count 100";
    let args: Vec<&str> = args.split(' ').collect();
    let before = read_clock(ClockId::CLOCK_TAI);
    let (file, sent) = pair.capture(100, || pair.publish(&args))?;
    let after = read_clock(ClockId::CLOCK_TAI);
    equal("frames sent", &sent["frames_sent"], &json!(100))?;
    equal("complaints", complaints(&file)?, vec![])?;
    let rows = tshark(&file, &["sv.svID", "sv.smpCnt", "vlan.id", "vlan.priority"])?;
    for (i, (row, frame)) in rows.iter().zip(bytes_of(&file)?).enumerate() {
        let (stream, number) = (format!("RT0{}", i % 2 + 1), (i / 2).to_string());
        equal("frame", row.clone(), vec![stream, number, "5".into(), "6".into()])?;
        let at = send_time(&frame)?;
        equal("within the cycle", at % MS, 200_000)?;
        equal("in the talker's time", before < at && at < after + S, true)?;
        let first = sent["streams"][i % 2]["first_send_time_ns"].as_i64().ok_or("no first send time")?;
        equal("one in each cycle", at, first + (i / 2) as i64 * MS)?;
    }
    equal("all frames were looked at", rows.len(), 100)
}

fn schedule() -> Result<()> {
    let pair = Pair::new()?;
    let file = pair.dir.path().join("schedule.toml");
    std::fs::write(
        &file,
        r#"
        cycle = "2ms"
        base_time_ns = 500000
        clock = "monotonic"
        [[stream]]
        svid = "RT1"
        vlan = 5
        pcp = 6
        priority = 6
        [[stream]]
        svid = "RT2"
        offset = "1ms"
        advance = "300us"
        priority = 3
        "#,
    )?;
    let running = listen(&pair, &["--send-time", "publish", "--clock", "monotonic", "--clock-error", "1ms"])?;
    // Two clocks of one machine: the conversion is exact to its error, which --clock-error includes.
    let sent = pair
        .latpath("lpa", &["publish", "-i", "lpa", "--json", "--schedule", &file.to_string_lossy(), "--count", "40"])?;
    let sent: Value = sent.json()?;
    fits_its_schema("publish", &sent)?;
    arrived(&pair, 40)?;
    let got = summary(running)?;
    fits_its_schema("subscribe", &got)?;
    for (i, (offset, pcp, priority)) in [(0, json!(6), 6), (MS, json!(null), 3)].into_iter().enumerate() {
        let row = &sent["streams"][i];
        equal("frames", &row["frames_sent"], &json!(20))?;
        equal("PCP, priority", json!([row["pcp"], row["priority"]]), json!([pcp, priority]))?;
        let (first, last) = (row["first_send_time_ns"].as_i64(), row["last_send_time_ns"].as_i64());
        equal("19 cycles", last.zip(first).map(|(last, first)| last - first), Some(19 * 2 * MS))?;
        equal("offset", first.map(|first| first.rem_euclid(2 * MS)), Some(500_000 + offset))?;
        let received = &got["streams"][i];
        equal("received", &received["received"], &json!(20))?;
        let expected = if i == 0 { json!([[{ "pcp": 6, "frames": 20 }], 0]) } else { json!([[], 20]) };
        equal("tags that arrived", json!([received["pcp"], received["untagged"]]), expected)?;
        equal("times", &received["latency_count"], &json!(20))?;
    }
    equal("handed over before", &sent["streams"][1]["advance_ns"], &json!(300_000))
}

/// The frames in each class, all classes together.
fn classes(slots: &Value) -> u64 {
    ["in_slot", "early", "late"].iter().filter_map(|class| slots[class].as_u64()).sum()
}

fn both_ends() -> Result<()> {
    for mode in [&[][..], &["--ring"]] {
        let pair = Pair::new()?;
        let at = [
            "--send-time",
            "publish",
            "--clock-error",
            "0s",
            "--cycle",
            "1ms",
            "--slot",
            "0s..300us",
            "--deadline",
            "500us",
        ];
        let running = listen(&pair, &[&at, mode].concat())?;
        let sent = pair.publish(&["--cycle", "1ms", "--count", "500"])?;
        arrived(&pair, 500)?;
        let got = summary(running)?;
        let (row, talker) = (&got["streams"][0], &sent["streams"][0]);
        equal("received, lost", json!([row["received"], row["lost"]]), json!([500, 0]))?;
        equal("times", json!([row["latency_count"], row["untimed"]]), json!([500, 0]))?;
        equal("classes add up", classes(&row["slots"]), 500)?;
        let by: u64 =
            row["slots"]["late_by_cycles"].as_array().into_iter().flatten().filter_map(|l| l["frames"].as_u64()).sum();
        equal("late frames by cycles", &json!(by), &row["slots"]["late"])?;
        equal(
            "no frame is early on one machine",
            json!([row["slots"]["early"], row["latency_negative"]]),
            json!([0, 0]),
        )?;
        equal("one clock leaves no doubt", &row["slots"]["uncertain"], &json!(0))?;
        equal("deadlines are judged", row["deadline_missed"].is_u64(), true)?;
        equal("every hand-over was timed", &sent["pacing_count"], &json!(500))?;
        let stack = [&talker["to_qdisc_count"], &talker["to_driver_count"]].map(|n| n.as_u64().unwrap_or(0));
        equal("stack times were sampled", stack[0] > 0 && stack[1] > 0, true)?;
        equal("no stamp is missing", &talker["unstamped"], &json!(0))?;
        let worst = &row["latest"][0];
        equal("the latest frame has the longest latency", &worst["latency_ns"], &row["latency_max_ns"])?;
    }
    Ok(())
}

/// A frame with the samples of PhsMeas1 and this send time, relative to now (TAI).
fn frame(smp_cnt: u16, from_now: i64) -> Result<Vec<u8>> {
    let at = read_clock(ClockId::CLOCK_TAI) + from_now;
    let data = [&[0; 64][..], &at.to_be_bytes()].concat();
    let asdu = AsduSpec { svid: b"RT".to_vec(), smp_cnt, data, ..AsduSpec::default() };
    FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().map_err(|e| e.to_string().into())
}

/// Cycles of 100 s with slots of 50 s: no delay of a busy machine moves a frame into another class.
const LONG: [&str; 6] = ["--cycle", "100s", "--slot", "0s..50s", "--clock-error", "0s"];

fn slots() -> Result<()> {
    let pair = Pair::new()?;
    let file = pair.dir.path().join("in.pcap");
    // Send times from now, in s: three in their slot, two early, one late in its cycle, two by 1, one by 12 cycles.
    let times = [-10, -15, -20, 60, 5000, -60, -110, -160, -1210];
    let frames = (0..).zip(times).map(|(n, s)| frame(n, s * S)).collect::<Result<Vec<_>>>()?;
    write_pcap(&file, &frames, 1_000_000)?;
    let limits = [&["--send-time", "publish", "--limit", "lost<=0"][..], &LONG].concat();
    let broken = [&limits[..], &["--limit", "slot_error:max<=1s"]].concat();
    for (args, code) in [(&limits, 0), (&broken, 3)] {
        let running = listen(&pair, args)?;
        let before = pair.received("lpb")?;
        pair.publish(&["--pcap", &file.to_string_lossy()])?;
        arrived(&pair, before + 9)?;
        running.interrupt();
        let ended = running.finish(latpath_testkit::waits::LIMIT)?;
        equal(&ended.stderr, ended.code, Some(code))?;
        equal("the limit is named", ended.stderr.contains("slot_error:max<=1s broken"), code == 3)?;
        let mut got: Value = serde_json::from_str(&ended.stdout)?;
        fits_its_schema("subscribe", &got)?;
        let slots = &got["streams"][0]["slots"];
        let of = json!([slots["in_slot"], slots["early"], slots["late"], slots["late_by_cycles"], slots["uncertain"]]);
        let by = json!([{ "cycles": 0, "frames": 1 }, { "cycles": 1, "frames": 2 }, { "cycles": 12, "frames": 1 }]);
        equal("slots", of, json!([3, 2, 4, by, 0]))?;
        equal("sum", classes(slots), 9)?;
        got["streams"][0]["slots"]["late"] = json!("many");
        equal("a wrong type fits", fits_its_schema("subscribe", &got).is_ok(), false)?;
    }
    Ok(())
}

fn other_senders() -> Result<()> {
    let pair = Pair::new()?;
    let frame = frame(0, -10 * S)?;
    let at = format!("{}:ns-be64", frame.len() - 8);
    let tagged = [&frame[..12], &[0x81, 0, 0xa0, 5], &frame[12..]].concat();
    let file = pair.dir.path().join("in.pcap");
    write_pcap(&file, &[frame, tagged], 1_000_000)?;
    let running = listen(&pair, &[&["--send-time", &at][..], &LONG].concat())?;
    pair.publish(&["--pcap", &file.to_string_lossy()])?;
    arrived(&pair, 2)?;
    let got = summary(running)?;
    let rows = got["streams"].as_array().ok_or("no streams")?;
    let in_slot: u64 = rows.iter().filter_map(|row| row["slots"]["in_slot"].as_u64()).sum();
    equal("frames in their slot", in_slot, 2)?;
    equal("the place is named", &got["send_times"]["send_time"], &json!(at))
}

fn without_etf() -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &["--send-time", "publish"])?;
    for mode in ["strict", "deadline"] {
        let sent = pair.publish(&["--cycle", "1ms", "--txtime", mode, "--advance", "400us", "--count", "50"])?;
        let row = &sent["streams"][0];
        equal("mode", json!([row["txtime"], row["advance_ns"]]), json!([mode, 400_000]))?;
        equal(
            "sent, dropped",
            json!([row["frames_sent"], row["dropped_by_etf"], row["dropped_frames"]]),
            json!([50, 0, []]),
        )?;
    }
    arrived(&pair, 100)?;
    let got = summary(running)?;
    let row = &got["streams"][0];
    equal("received", &row["received"], &json!(100))?;
    equal("the clocks' error is not known", &got["send_times"]["clock_error_ns"], &json!(null))
}

fn refused() -> Result<()> {
    let publish = ["publish", "-i", "lo", "--svid", "A"];
    let subscribe = ["subscribe", "-i", "lo"];
    for (args, part) in [
        ([&publish[..], &["--cycle", "1ms", "--rate", "10"]].concat(), "cannot be used with"),
        ([&publish[..], &["--cycle", "1us"]].concat(), "10 us to 60 s"),
        ([&publish[..], &["--cycle", "1ms", "--send-offset", "1ms"]].concat(), "not within the cycle"),
        ([&publish[..], &["--cycle", "1ms", "--advance", "2s"]].concat(), "at most 1 s before"),
        ([&publish[..], &["--cycle", "1ms", "--txtime", "strict", "--bypass-qdisc"]].concat(), "cannot be used with"),
        ([&publish[..], &["--cycle", "1ms", "--base-time", "-5"]].concat(), "below 0"),
        ([&publish[..], &["--schedule", "/nowhere.toml"]].concat(), "cannot be used with"),
        ([&publish[..], &["--txtime", "strict"]].concat(), "--cycle"),
        ([&subscribe[..], &["--cycle", "1ms"]].concat(), "--send-time"),
        ([&subscribe[..], &["--send-time", "42"]].concat(), "OFFSET:FORMAT"),
        (
            [&subscribe[..], &["--send-time", "publish", "--cycle", "1ms", "--slot", "0s..2ms"]].concat(),
            "longer than the cycle",
        ),
        ([&subscribe[..], &["--limit", "latency:max<=1ms"]].concat(), "no such segment"),
        ([&subscribe[..], &["--send-time", "publish", "--limit", "never_seen<=0"]].concat(), "not measured here"),
    ] {
        let out = latpath_testkit::latpath("").args(&args).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        equal(&format!("{args:?}: {text}"), out.status.code(), Some(2))?;
        equal(&format!("{args:?}: {text}"), text.contains(part), true)?;
    }
    Ok(())
}
