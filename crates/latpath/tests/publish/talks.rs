//! `publish --cycle` as a talker, and `subscribe --send-time` as its listener.

use crate::bench::{complaints, document, fits_its_schema, summary, tshark, write_pcap, Pair, Result};
use crate::receives::{arrived, listen};
use crate::sends::bytes_of;
use crate::{Needs, Test};
use latpath_linux::read_clock;
use latpath_protocols::sv::{AsduSpec, Frame, FrameSpec};
use latpath_testkit::equal;
use latpath_traffic::document::{
    FramesByPcp, FramesBySlot, LateByCycles, PublishDocument, PublishedStream, ReceivedStream, StreamArrivals,
    SubscribeDocument,
};
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

fn talkers(sent: &PublishDocument) -> Result<&[PublishedStream]> {
    Ok(sent.streams.as_ref().ok_or("no schedule")?)
}

fn arrivals(row: &ReceivedStream) -> Result<&StreamArrivals> {
    Ok(row.arrivals.as_ref().ok_or("no send times")?)
}

fn slots_of(row: &ReceivedStream) -> Result<&FramesBySlot> {
    Ok(arrivals(row)?.slots.as_ref().ok_or("no slots")?)
}

fn send_times() -> Result<()> {
    let pair = Pair::new()?;
    let args = "--svid RT --streams 2 --cycle 1ms --send-offset 200us --vlan 5 --pcp 6 --count 100";
    let args: Vec<&str> = args.split(' ').collect();
    let before = read_clock(ClockId::CLOCK_TAI);
    let (file, sent) = pair.capture(100, || pair.publish(&args))?;
    let after = read_clock(ClockId::CLOCK_TAI);
    equal("frames sent", sent.frames_sent, 100)?;
    equal("complaints", complaints(&file)?, vec![])?;
    let rows = tshark(&file, &["sv.svID", "sv.smpCnt", "vlan.id", "vlan.priority"])?;
    for (i, (row, frame)) in rows.iter().zip(bytes_of(&file)?).enumerate() {
        let (stream, number) = (format!("RT0{}", i % 2 + 1), (i / 2).to_string());
        equal("frame", row.clone(), vec![stream, number, "5".into(), "6".into()])?;
        let at = send_time(&frame)?;
        equal("within the cycle", at % MS, 200_000)?;
        equal("in the talker's time", before < at && at < after + S, true)?;
        let first = talkers(&sent)?[i % 2].first_send_time_ns;
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
    // Publisher and subscriber use two clocks of one machine; --clock-error includes the error of the conversion.
    let sent = pair
        .latpath("lpa", &["publish", "-i", "lpa", "--json", "--schedule", &file.to_string_lossy(), "--count", "40"])?;
    let sent: PublishDocument = document("publish", &sent.json()?)?;
    arrived(&pair, 40)?;
    let got = summary(running)?;
    for (i, (offset, pcp, priority)) in [(0, Some(6), 6), (MS, None, 3)].into_iter().enumerate() {
        let row = &talkers(&sent)?[i];
        equal("frames", row.frames_sent, 20)?;
        equal("PCP, priority", (row.pcp, row.priority), (pcp, Some(priority)))?;
        let (first, last) = (row.first_send_time_ns, row.last_send_time_ns);
        equal("19 cycles", last - first, 19 * 2 * MS)?;
        equal("offset", first.rem_euclid(2 * MS), 500_000 + offset)?;
        equal("received", got.streams[i].received, 20)?;
        let received = arrivals(&got.streams[i])?;
        let expected = if i == 0 { (vec![FramesByPcp { pcp: 6, frames: 20 }], 0) } else { (vec![], 20) };
        equal("tags that arrived", (received.pcp.clone(), received.untagged), expected)?;
        equal("times", received.latency.count, 20)?;
    }
    equal("handed over before", talkers(&sent)?[1].advance_ns, 300_000)
}

/// Number of frames in all classes together.
fn classes(slots: &FramesBySlot) -> u64 {
    slots.in_slot + slots.early + slots.late
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
        let (row, talker) = (&got.streams[0], &talkers(&sent)?[0]);
        let (times, slots) = (arrivals(row)?, slots_of(row)?);
        equal("received, lost", (row.received, row.lost), (500, 0))?;
        equal("times", (times.latency.count, times.untimed), (500, 0))?;
        equal("classes add up", classes(slots), 500)?;
        equal("late frames by cycles", slots.late_by_cycles.iter().map(|by| by.frames).sum(), slots.late)?;
        equal("no frame is early on one machine", (slots.early, times.latency_negative), (0, 0))?;
        equal("one clock leaves no doubt", slots.uncertain, Some(0))?;
        equal("deadlines are judged", times.deadline_missed.is_some(), true)?;
        equal("every hand-over was timed", sent.pacing.count, 500)?;
        equal("stack times were sampled", talker.to_qdisc.count > 0 && talker.to_driver.count > 0, true)?;
        equal("no stamp is missing", talker.unstamped, 0)?;
        let worst = times.latest.first().map(|frame| frame.latency);
        equal("the latest frame has the longest latency", worst, times.latency.max_ns())?;
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

/// Cycles of 100 s with slots of 50 s: a busy machine cannot delay a frame into another class.
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
        let mut printed: Value = serde_json::from_str(&ended.stdout)?;
        let got: SubscribeDocument = document("subscribe", &printed)?;
        let slots = slots_of(&got.streams[0])?;
        let of = (slots.in_slot, slots.early, slots.late, slots.late_by_cycles.as_slice(), slots.uncertain);
        let by = [(0, 1), (1, 2), (12, 1)].map(|(cycles, frames)| LateByCycles { cycles, frames });
        equal("slots", of, (3, 2, 4, &by[..], Some(0)))?;
        equal("sum", classes(slots), 9)?;
        printed["streams"][0]["slots"]["late"] = json!("many");
        equal("a wrong type fits", fits_its_schema("subscribe", &printed).is_ok(), false)?;
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
    let in_slot = got.streams.iter().map(|row| Ok(slots_of(row)?.in_slot)).sum::<Result<u64>>()?;
    equal("frames in their slot", in_slot, 2)?;
    equal("the place is named", got.send_times.map(|times| times.send_time), Some(at))
}

fn without_etf() -> Result<()> {
    let pair = Pair::new()?;
    let running = listen(&pair, &["--send-time", "publish"])?;
    for mode in ["strict", "deadline"] {
        let sent = pair.publish(&["--cycle", "1ms", "--txtime", mode, "--advance", "400us", "--count", "50"])?;
        let row = &talkers(&sent)?[0];
        equal("mode", (row.txtime.as_deref(), row.advance_ns), (Some(mode), 400_000))?;
        equal("sent, dropped", (row.frames_sent, row.dropped_by_etf, row.dropped_frames.len()), (50, 0, 0))?;
    }
    arrived(&pair, 100)?;
    let got = summary(running)?;
    equal("received", got.streams[0].received, 100)?;
    equal("the clocks' error is not known", got.send_times.map(|times| times.clock_error_ns), Some(None))
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
