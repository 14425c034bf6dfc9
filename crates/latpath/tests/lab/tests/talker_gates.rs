//! A talker with gates (taprio in txtime-assist mode, and etf) on the stamping NICs: the listener assigns each frame to
//! the slot that corresponds to the NIC's arrival time, and the talker's count of frames discarded by etf equals the
//! kernel's.
//!
//! ```text
//!  namespace pub: publish, gates        namespace app: record, subscribe
//!  lpn0 (taprio, etf) ───────────────── lpn1
//! ```

use crate::{linked::plain, stamping::StampingNics, Outcome, Scale, Test};
use anyhow::{ensure, Context, Result};
use latpath_model::SegmentKind;
use latpath_report::Report;
use latpath_testkit::waits::{listens, until};
use latpath_traffic::document::{PublishDocument, SubscribeDocument};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, time::Duration};

pub const TEST: Test = Test { name: "talker_gates", smoke: false, only_whole: false, seconds: 400, run };

const PATIENCE: Duration = Duration::from_secs(180);
const MS: i64 = 1_000_000;
/// Length of the schedule's cycle.
const CYCLE_MS: u64 = 200;
/// Cycle in which the listener counts late frames, ns. It is shorter than the schedule's, so that a frame that waits
/// for its gate is late by whole cycles.
const LISTENERS_CYCLE: i64 = 50 * MS;
/// Length of the slot, which starts at the send time, ns.
const SLOT: i64 = 20 * MS;
/// Maximum difference between the NIC's and the kernel's arrival times, ns, unless the CPU is delayed for long.
const NEAR: i64 = 3 * MS;
/// Each gate is open for 50 ms, so that the timing errors of an emulated machine matter little.
const GATES: &str = r#"
device = "lpn0"
mode = "txtime-assist"
txtime_delay = "18ms"
etf_delta = "10ms"
ptp = "rest"
[[class]]
name = "stream"
priorities = [3]
[[class]]
name = "later"
priorities = [5]
[[class]]
name = "rest"
[[gate]]
open = ["stream"]
interval = "50ms"
[[gate]]
open = ["rest"]
interval = "50ms"
[[gate]]
open = ["later"]
interval = "50ms"
[[gate]]
open = ["rest"]
interval = "50ms"
"#;
/// etf sends EARLY up to `etf_delta` before its send time, and IN and the LATE streams while their gates are open. DROP
/// is handed over only at its send time, which is too late, so etf drops it.
const STREAMS: &str = r#"
cycle = "200ms"
[[stream]]
svid = "IN"
offset = "5ms"
priority = 3
vlan = 5
pcp = 3
[[stream]]
svid = "EARLY"
offset = "40ms"
advance = "50ms"
txtime = "strict"
priority = 3
[[stream]]
svid = "LATE0"
offset = "60ms"
priority = 5
[[stream]]
svid = "LATE1"
offset = "10ms"
priority = 5
[[stream]]
svid = "DROP"
offset = "20ms"
advance = "0s"
txtime = "strict"
priority = 3
"#;
const FOLDER: &str = "/tmp/latpath-lab-talker-gates";

fn run(scale: &Scale) -> Outcome {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if release.starts_with("6.1.") {
        eprintln!("not on {}: removing taprio may crash Linux 6.1", release.trim());
        return Ok(());
    }
    let nics = StampingNics::load("wire_ns=20000 queues=4")?;
    let _ = fs::remove_dir_all(FOLDER);
    fs::create_dir_all(FOLDER)?;
    let [gates, streams] = [("gates.toml", GATES), ("streams.toml", STREAMS)].map(|(name, text)| {
        let path = format!("{FOLDER}/{name}");
        fs::write(&path, text).map(|()| path)
    });
    let (gates, streams) = (gates?, streams?);
    let before = nics.run(0, "tc qdisc show dev lpn0")?;
    let applied = nics.latpath(0, &format!("gates apply {gates}"), PATIENCE)?;
    ensure!(applied.code == Some(0), "gates apply: {}", applied.stderr);
    let talked = talk(&nics, &streams, scale.frames(80, 600));
    let after = dropped_by_etf(&nics);
    let undone = nics.latpath(0, "gates undo lpn0", PATIENCE)?;
    ensure!(undone.code == Some(0), "gates undo: {}", undone.stderr);
    let restored = nics.run(0, "tc qdisc show dev lpn0")?;
    ensure!(restored == before, "before: {before}\nafter gates undo: {restored}");
    judge(&talked?, after?)
}

/// Number of packets that the kernel's etf has dropped, according to `gates show`, which must agree with tc.
fn dropped_by_etf(nics: &StampingNics) -> Result<u64> {
    let shown: Value = nics.latpath(0, "gates show lpn0 --json", PATIENCE)?.json().map_err(plain)?;
    let listed: Value = serde_json::from_str(&nics.run(0, "tc -s -j qdisc show dev lpn0")?)?;
    let [shown, listed] = [(shown, "dropped"), (listed, "drops")].map(|(all, key)| {
        let etf = all.as_array().into_iter().flatten().filter(|one| one["kind"] == "etf").map(|one| one[key].as_u64());
        etf.collect::<Option<Vec<_>>>().map(|drops| (drops.len(), drops.iter().sum::<u64>()))
    });
    ensure!(shown == listed && shown.is_some_and(|(queues, _)| queues == 3), "gates show: {shown:?}, tc: {listed:?}");
    Ok(shown.context("no etf")?.1)
}

/// The results of all three commands.
struct Talked {
    sent: PublishDocument,
    received: SubscribeDocument,
    report: Report<'static>,
    csv: String,
}

fn talk(nics: &StampingNics, streams: &str, cycles: u64) -> Result<Talked> {
    let run = format!("{FOLDER}/run");
    let names = ["IN", "EARLY", "LATE0", "LATE1", "DROP"].map(|name| format!("-s svid:{name}")).join(" ");
    let points = "--points host/tx@*,host/nic-*,host/app-read@*";
    let words = format!("record {names} --stamps nic --clock-error 0s {points} --no-flight -o {run}");
    let recording = nics.start(1, &words)?;
    until("the recording has begun", || Path::new(&run).join("manifest.json").exists()).map_err(plain)?;
    let cycle = LISTENERS_CYCLE / MS;
    let mut reader = nics.start(
        1,
        &format!(
            "subscribe -i lpn1 --send-time publish --clock-error 0s --cycle {cycle}ms --slot 0s..{}ms --json",
            SLOT / MS
        ),
    )?;
    listens(&mut reader).map_err(plain)?;
    let duration = cycles * CYCLE_MS;
    let words = format!("publish -i lpn0 --schedule {streams} --duration {duration}ms --fifo 80 --json");
    let sent = nics.latpath(0, &words, PATIENCE)?.json().map_err(plain)?;
    // The last frames wait for the gates of the next cycle.
    latpath_testkit::waits::fault_for(Duration::from_millis(2 * CYCLE_MS));
    let [received, recorded] = [reader, recording].map(|process| {
        process.interrupt();
        process.finish(PATIENCE).map_err(plain)
    });
    let received = received?.json().map_err(plain)?;
    ensure!(recorded?.code == Some(0), "the recording failed");
    let report = nics.latpath(1, &format!("report {run} --json"), PATIENCE)?.json().map_err(plain)?;
    let csv = nics.latpath(1, &format!("export csv {run} -o -"), PATIENCE)?.stdout;
    Ok(Talked { sent, received, report, csv })
}

/// A frame's class: -2 early, -1 in its slot, n late by n cycles.
fn class(latency: i64) -> i64 {
    match latency {
        ..0 => -2,
        0..SLOT => -1,
        late => late / LISTENERS_CYCLE,
    }
}

/// Number of frames of a stream in each class, and of those so close to another class that the kernel's arrival time
/// may be in it.
#[derive(Default)]
struct Truth {
    classes: BTreeMap<i64, u64>,
    near: u64,
}

/// Classifies the frames of each stream by the NIC's arrival times and the send times in the packets.
fn truths(csv: &str) -> Result<BTreeMap<String, Truth>> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().context("no header")?.split(',').collect();
    let column = |name: &str| {
        let at = names.iter().position(|known| *known == name);
        at.with_context(|| format!("no column {name}: {names:?}"))
    };
    let [stream, arrived, planned] =
        [column("stream")?, column("host/nic-hw-rx@lpn1")?, column("talker/planned@send-time")?];
    let mut all = BTreeMap::<String, Truth>::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let (Ok(arrived), planned) = (cells[arrived].parse::<i64>(), cells[planned]) else { continue };
        let planned: i64 = planned.parse().with_context(|| format!("no send time: {line}"))?;
        let (truth, latency) = (all.entry(cells[stream].to_owned()).or_default(), arrived - planned);
        *truth.classes.entry(class(latency)).or_default() += 1;
        truth.near += u64::from(class(latency - NEAR) != class(latency) || class(latency + NEAR) != class(latency));
    }
    Ok(all)
}

fn judge(talked: &Talked, dropped: u64) -> Outcome {
    let Talked { sent, received, report, csv } = talked;
    let truths = truths(csv)?;
    let rows = &received.streams;
    let talkers = sent.streams.as_ref().context("no streams")?;
    let (mut lost, mut early, mut late, mut in_slot) = (0, 0, 0, 0);
    for talker in talkers {
        let (name, sent, reported) = (talker.svid.as_str(), talker.frames_sent, talker.dropped_by_etf);
        ensure!(talker.refused == 0, "{talker:?}");
        let row = rows.iter().find(|row| row.svid == name);
        let received = row.map_or(0, |row| row.received);
        let slots = row.and_then(|row| row.arrivals.as_ref()?.slots.as_ref());
        eprintln!("{name}: {sent} sent, {received} received, {reported} discarded: {slots:?}");
        lost += sent - received;
        if talker.txtime.is_some() {
            ensure!(sent - received == reported, "{name}: {} did not arrive, {reported} reported", sent - received);
        }
        if received == 0 {
            continue;
        }
        let slots = slots.context("no slots")?;
        let mut counts = BTreeMap::from([(-2, slots.early), (-1, slots.in_slot)]);
        for by in &slots.late_by_cycles {
            counts.insert(i64::try_from(by.cycles)?, by.frames);
        }
        counts.retain(|_, frames| *frames > 0);
        (early, in_slot, late) = (early + slots.early, in_slot + slots.in_slot, late + slots.late);
        let truth = truths.iter().find(|(stream, _)| stream.starts_with(&format!("svid:{name}")) || *stream == name);
        let (_, truth) = truth.with_context(|| format!("{name} is not in the recording: {:?}", truths.keys()))?;
        let of_nic: u64 = truth.classes.values().sum();
        ensure!(of_nic == received, "{name}: {received} received, and the NIC's times are of {of_nic}");
        for class in counts.keys().chain(truth.classes.keys()) {
            let [by_kernel, by_nic] = [&counts, &truth.classes].map(|all| all.get(class).copied().unwrap_or(0));
            ensure!(
                by_kernel.abs_diff(by_nic) <= truth.near,
                "{name}, class {class}: {by_kernel} by the listener, {by_nic} by the NIC, {} near another class",
                truth.near
            );
        }
        ensure!(truth.near * 2 <= received, "{name}: {} of {received} are near another class", truth.near);
    }
    ensure!(lost == dropped, "{lost} did not arrive, and the kernel's etf dropped {dropped}");
    let drop = talkers.iter().find(|talker| talker.svid == "DROP").context("no DROP")?;
    ensure!(drop.dropped_by_etf == drop.frames_sent, "{drop:?}");
    ensure!(early > 0 && in_slot > 0 && late > 0, "{early} early, {in_slot} in slot, {late} late");
    // The send time in the packets begins a segment, as in any recording.
    let sending = report.summary.segments.iter().find(|one| one.kind == SegmentKind::Tsend).context("no Tsend")?;
    ensure!(sending.from == "talker/planned@send-time" && sending.to == "host/tx@lpn0", "{sending:?}");
    Ok(())
}
