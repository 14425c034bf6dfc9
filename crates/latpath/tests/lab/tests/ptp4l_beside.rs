//! ptp4l on the NICs that a stream of 4,000 frames/s uses, which is published and recorded with the NICs' times: ptp4l
//! keeps its timestamps and reports no fault.

use crate::{
    linked::plain,
    stamping::{StampingNics, NICS},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_report::Report;
use latpath_testkit::{
    waits::{until, until_within},
    Started,
};
use latpath_traffic::document::PublishDocument;
use std::{fs, path::Path, process::Command, time::Duration};

pub const TEST: Test = Test { name: "ptp4l_beside", smoke: false, only_whole: false, seconds: 300, run };

const PATIENCE: Duration = Duration::from_secs(90);
const RATE: u64 = 4_000;
const FOLDER: &str = "/tmp/latpath-lab-ptp4l";
/// ptp4l's messages about a missing timestamp, and about its consequences.
const FAULTS: [&str; 4] =
    ["timed out while polling for tx timestamp", "FAULT", "send sync failed", "send delay request failed"];

fn run(scale: &Scale) -> Outcome {
    let nics = StampingNics::load("wire_ns=20000 phcs=2 offset_ns=0,3000000")?;
    let _ = fs::remove_dir_all(FOLDER);
    fs::create_dir_all(FOLDER)?;
    let daemons = [ptp4l(&nics, 0, "")?, ptp4l(&nics, 1, "-s")?];
    let follows = until_within(PATIENCE, "ptp4l follows its master", || said(1).contains("UNCALIBRATED to SLAVE"));
    follows.map_err(plain).with_context(|| format!("master: {}\nslave: {}", said(0), said(1)))?;

    let run = format!("{FOLDER}/run");
    let points = "--points host/tx@*,host/nic-*";
    let recording = nics.start(1, &format!("record -s svid:MU01 --stamps nic {points} --no-flight -o {run}"))?;
    until("the recording has begun", || Path::new(&run).join("manifest.json").exists()).map_err(plain)?;
    let frames = RATE * if scale.whole { 60 } else { 10 };
    let words = format!("publish -i lpn0 --svid MU01 --rate {RATE} --count {frames} --stamps nic --json");
    let published = nics.latpath(0, &words, PATIENCE + Duration::from_secs(60))?;
    let sent: PublishDocument = published.json().map_err(plain)?;
    recording.interrupt();
    let recorded = recording.finish(PATIENCE).map_err(plain)?;
    ensure!(recorded.code == Some(0), "the recording failed: {}", recorded.stderr);
    for (at, daemon) in daemons.into_iter().enumerate() {
        daemon.interrupt();
        daemon.finish(PATIENCE).map_err(plain)?;
        let said = said(at);
        let faults: Vec<&str> = said.lines().filter(|line| FAULTS.iter().any(|fault| line.contains(fault))).collect();
        ensure!(faults.is_empty(), "{}: {faults:#?}", NICS[at]);
    }
    ensure!(sent.frames_sent == frames, "{sent:?}");
    let report: Report = nics.latpath(1, &format!("report {run} --json"), PATIENCE)?.json().map_err(plain)?;
    let figures = report.summary;
    let arrived = figures.segments.iter().find(|one| one.from == "host/nic-hw-rx@lpn1");
    let count = arrived.context("no times of the NIC")?.times.count;
    eprintln!("{frames} frames at {RATE}/s, {count} with the NIC's time of arrival; no fault of ptp4l");
    ensure!(count * 10 >= frames * 9, "{count} of {frames} frames have the NIC's time: {:?}", figures.notes);
    Ok(())
}

fn ptp4l(nics: &StampingNics, at: usize, role: &str) -> Result<Started> {
    let (name, log) = (NICS[at], log(at));
    let config = format!("{FOLDER}/{name}.cfg");
    fs::write(
        &config,
        format!(
            "[global]\nnetwork_transport L2\ndelay_mechanism E2E\nlogSyncInterval -3\nlogAnnounceInterval 0\n\
             logMinDelayReqInterval -3\ntx_timestamp_timeout 50\nuds_address {FOLDER}/{name}.sock\n"
        ),
    )?;
    // ptp4l prints to stdout.
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec ptp4l -f {config} -i {name} -m -q -l 6 {role} > {log} 2>&1")]);
    nics.start_command(at, command)
}

fn log(at: usize) -> String {
    format!("{FOLDER}/{}.log", NICS[at])
}

/// A daemon's output so far.
fn said(at: usize) -> String {
    fs::read_to_string(log(at)).unwrap_or_default()
}
