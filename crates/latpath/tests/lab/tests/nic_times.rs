//! A recording with the NICs' own times: every journey has them, the time on the wire is exact, and the error of the
//! mapped times is within the stated bound; NICs that lose or invent times are noticed.

use crate::{
    linked::{plain, Linked},
    stamping::StampingNics,
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_report::Report;
use latpath_stats::SegmentFigures;
use latpath_testkit::waits::{listens, until};
use latpath_traffic::document::{PublishDocument, SentNicTimes, SubscribeDocument};
use latpath_traffic::WireCounts;
use std::{fs, path::Path, time::Duration};

pub const TEST: Test = Test { name: "nic_times", smoke: false, only_whole: false, seconds: 240, run };

const WIRE_NS: i64 = 20_000;
/// All points except tx-done, at which the route would end for packets sent by this host.
const POINTS: &str = "--points host/tx@*,host/nic-*,host/app-read@*";
/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(60);
const SENT: &str = "host/nic-hw-tx@lpn0";
const ARRIVED: &str = "host/nic-hw-rx@lpn1";
const DRIVER: &str = "host/nic-rx@lpn1";

fn run(scale: &Scale) -> Outcome {
    let nics = StampingNics::load(&format!("wire_ns={WIRE_NS}"))?;
    let frames = scale.frames(2_000, 20_000);
    let recorded = Recorded::of(&nics, frames, "")?;
    recorded.expect_count(ARRIVED, DRIVER, frames)?;
    // A NIC time is requested for each frame, unless that of the previous frame is still pending.
    let SentNicTimes { requested, skipped, .. } = recorded.sent;
    ensure!(requested + skipped == frames && requested * 10 >= frames * 9, "{:?}", recorded.sent);
    recorded.expect_count(SENT, ARRIVED, requested)?;
    recorded.expect_count("host/tx@lpn0", SENT, requested)?;
    let wire = recorded.segment(SENT, ARRIVED)?;
    for ns in [wire.times.min_ns, wire.times.max_ns] {
        ensure!((ns - WIRE_NS).abs() <= 1, "the wire took {ns} ns: {wire:?}");
    }
    recorded.expect_within_the_bound()?;
    let said = nics.run(1, "hwstamp_ctl -i lpn1")?;
    ensure!(said.contains("tx_type 0\nrx_filter 0"), "timestamping was left on: {said}");

    expect_of_a_cycle(&nics)?;

    // Every fourth frame that the NIC receives, of this stream or another, has no time.
    let recorded = Recorded::of(&nics, 400, "rx_lost")?;
    nics.set("rx_lost", "0,0")?;
    let count = recorded.segment(ARRIVED, DRIVER)?.times.count;
    ensure!((250..390).contains(&count), "{count} of 400 frames have a time; {}", recorded.notes);
    let journeys = recorded.report.summary.journeys;
    ensure!(journeys == 400, "frames without a time are missing: {journeys}");

    nics.set("frozen", "1,1")?;
    let recorded = Recorded::of(&nics, 400, "");
    nics.set("frozen", "0,0")?;
    let recorded = recorded?;
    ensure!(recorded.notes.contains("is not used: it stands still"), "no note on the clock: {}", recorded.notes);
    ensure!(recorded.segment(ARRIVED, DRIVER).is_err(), "times of a frozen clock are used");
    Ok(())
}

/// A talker's frames have NIC times, requested one at a time. A subscriber measures the time from the wire to the
/// driver, accounts for each frame, and restores the receive filter.
fn expect_of_a_cycle(nics: &StampingNics) -> Outcome {
    const FRAMES: u64 = 400;
    let mut reader = nics.start(1, "subscribe -i lpn1 -s svid:MU02 --stamps nic --json")?;
    listens(&mut reader).map_err(plain)?;
    let words = format!("publish -i lpn0 --svid MU02 --cycle 1ms --count {FRAMES} --stamps nic --json");
    let sent: PublishDocument = nics.latpath(0, &words, PATIENCE)?.json().map_err(plain)?;
    reader.interrupt();
    let read: SubscribeDocument = reader.finish(PATIENCE).map_err(plain)?.json().map_err(plain)?;
    let times = sent.nic_times.as_ref().context("no times of sent frames")?;
    let SentNicTimes { requested, received, skipped } = *times;
    ensure!(requested + skipped == FRAMES && requested >= 1 && received <= requested, "{sent:?}");
    ensure!(received * 10 >= requested * 9, "few times came: {sent:?}");
    let WireCounts { measured, unstamped, skipped, bound_ns } = read.nic_times.context("no times of read frames")?;
    ensure!(read.received == FRAMES && measured + unstamped + skipped == FRAMES, "{read:?}");
    ensure!(measured * 10 >= FRAMES * 9, "few frames have the NIC's time: {read:?}");
    let times = &read.streams.first().context("no stream")?.wire_to_driver;
    let least = times.min_ns().context("no figures")?;
    ensure!(times.count == measured && bound_ns > 0 && least >= -bound_ns, "{read:?}");
    let said = nics.run(1, "hwstamp_ctl -i lpn1")?;
    ensure!(said.contains("tx_type 0\nrx_filter 0"), "timestamping was left on: {said}");
    Ok(())
}

/// A recording of a stream from one NIC to the other.
struct Recorded {
    report: Report<'static>,
    notes: String,
    csv: String,
    /// The sender's counts of NIC times.
    sent: SentNicTimes,
}

impl Recorded {
    /// Records a stream. `lost` names the NIC parameter that removes the time of every fourth frame received.
    fn of(nics: &StampingNics, frames: u64, lost: &str) -> Result<Self> {
        let run = "/tmp/latpath-lab-nic-times";
        let _ = fs::remove_dir_all(run);
        let linked: &Linked = nics;
        let recording = linked.start(1, &format!("record -s svid:MU01 --stamps nic {POINTS} --no-flight -o {run}"))?;
        let begun = || Path::new(run).join("manifest.json").exists();
        until("the recording has begun", begun).map_err(plain)?;
        let mut reader = linked.start(1, "subscribe -i lpn1 -s svid:MU01 --json")?;
        listens(&mut reader).map_err(plain)?;
        if !lost.is_empty() {
            nics.set(lost, "0,4")?;
        }
        let words = format!("publish -i lpn0 --svid MU01 --rate 1000 --count {frames} --stamps nic --json");
        let sent: PublishDocument = linked.latpath(0, &words, PATIENCE)?.json().map_err(plain)?;
        let ended = [reader, recording].map(|process| {
            process.interrupt();
            process.finish(PATIENCE).map_err(plain)
        });
        let [read, ended] = ended;
        let read: SubscribeDocument = read?.json().map_err(plain)?;
        ensure!(read.received == frames, "the reader lacks frames");
        let ended = ended?;
        let report: Report = linked.latpath(1, &format!("report {run} --json"), PATIENCE)?.json().map_err(plain)?;
        let csv = linked.latpath(1, &format!("export csv {run} -o -"), PATIENCE)?.stdout;
        let notes = format!("{:?} {}", report.summary.notes, ended.stderr);
        Ok(Self { notes, report, csv, sent: sent.nic_times.context("no times of sent frames")? })
    }

    fn segment(&self, from: &str, to: &str) -> Result<&SegmentFigures> {
        let all = &self.report.summary.segments;
        let found = all.iter().find(|s| s.from == from && s.to == to);
        let ends = || all.iter().map(|s| format!("{}..{}", s.from, s.to)).collect::<Vec<_>>().join(", ");
        found.with_context(|| format!("no segment from {from} to {to}, but {}; {}", ends(), self.notes))
    }

    fn expect_count(&self, from: &str, to: &str, expected: u64) -> Outcome {
        let count = self.segment(from, to)?.times.count;
        ensure!(count == expected, "{count} journeys from {from} to {to}, not {expected}; {}", self.notes);
        Ok(())
    }

    /// The driver cannot get a frame before it arrives from the wire; a driver time that is earlier must be within the
    /// error bound.
    fn expect_within_the_bound(&self) -> Outcome {
        let segment = self.segment(ARRIVED, DRIVER)?;
        let (times, bound) = (&segment.times, segment.error_bound_ns);
        ensure!(times.count > 0 && bound > 0 && bound < 100_000 && times.min_ns >= -bound, "{segment:?}");
        ensure!(self.csv.lines().count() > 1, "nothing is exported");
        Ok(())
    }
}
