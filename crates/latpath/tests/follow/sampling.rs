//! Tmu: the time from a sample to its packet's first point, by a publisher whose samples and delay are known.

use crate::{latpath, number, publish, report, Recorder, LIMIT};
use latpath_lab::NIC;
use latpath_model::Ns;
use latpath_run::{Run, Select};
use latpath_testkit::names::own;
use latpath_testkit::waits::until;
use latpath_testkit::{bench, equal, need_tool, trial, Failed, Lack, Trial};
use pcap_file::pcap::PcapReader;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const SECOND: Ns = 1_000_000_000;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("each_sample_has_its_time", &[needs, &[need_tool("tcpdump")]].concat(), each_sample),
        trial("a_publisher_that_is_not_synchronised_has_no_tmu", needs, not_synchronised),
    ]
}

/// tcpdump's times of day say which second each packet's sample belongs to, and the publisher sends no packet before its time.
fn each_sample() -> Result<(), Failed> {
    const DELAY: Ns = 2_000_000;
    let bench = bench()?;
    let svid = own("tmu");
    let file = bench.lab.folder().join("samples.pcap");
    let mut command = Command::new("tcpdump");
    let words = "-s 512 -B 32768 -Q in --immediate-mode -Z root --time-stamp-precision nano";
    command.args(["-i", NIC]).args(words.split(' ')).arg("-w").arg(&file).args(["ether", "proto", "0x88ba"]);
    let tcpdump = bench.start(&bench.path.hypervisor, command)?;
    until("tcpdump listens", || tcpdump.said().contains("listening on"))?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --clock-error 1us"))?;
    let sent = publish(&bench, &format!("--svid {svid} --delay 2ms --count 20000"))?;
    recorder.has(number(&sent, "frames_sent")?)?;
    let path = recorder.end()?;
    tcpdump.interrupt();
    tcpdump.finish(LIMIT)?;

    let run = Run::open(&path)?;
    let time_of_day = run.manifest().time_of_day();
    let point = |name: &str| {
        let at = run.points().iter().position(|p| p.point.to_string() == name);
        at.map(|p| p as u16).ok_or_else(|| Failed::from(format!("no point {name}")))
    };
    let (sampled, first) = (point("MU/sampled@smpCnt")?, point("host/tx@lp-pub")?);
    let mut journeys = Vec::new();
    run.for_each(&Select::default(), |j| {
        journeys.push((j.key, j.at(sampled), j.at(first)));
        true
    });
    let mut reader = PcapReader::new(std::fs::File::open(&file)?).map_err(|e| e.to_string())?;
    let mut dated = 0;
    for (key, sampled, first) in journeys {
        let packet = reader.next_packet().ok_or("tcpdump has too few frames")?.map_err(|e| e.to_string())?;
        let frame = latpath_protocols::sv::Frame::parse(&packet.data).map_err(|e| e.to_string())?;
        equal("smpCnt", frame.asdus().next().map(|asdu| u32::from(asdu.smp_cnt)), Some(key))?;
        let Some((sampled, first)) = sampled.zip(first) else { continue };
        dated += 1;
        // The nearest moment before the packet that has this count.
        let (at, in_second) = (packet.timestamp.as_nanos() as Ns, Ns::from(key) * SECOND / 4000);
        let truth = (at - in_second).div_euclid(SECOND) * SECOND + in_second;
        let (off, tmu) = (time_of_day.utc(sampled) - truth, first - sampled);
        // The recording's own tie of the clocks is as good as some µs.
        if off.abs() > 20_000 {
            return Err(format!("smpCnt {key}: said to be sampled {off} ns off").into());
        }
        if !(DELAY - 20_000..at - truth + 20_000).contains(&tmu) {
            return Err(format!("smpCnt {key}: Tmu {tmu} ns, tcpdump saw it {} ns after its sample", at - truth).into());
        }
    }
    // It takes a second to see that smpCnt wraps, and another to see that this is a second.
    equal("most packets are dated", (20_000 - 9_000..20_000).contains(&dated), true)?;
    let figures = report(&path, "")?;
    let segment = figures["segments"].as_array().and_then(|all| all.iter().find(|s| s["name"] == "Tmu"));
    let segment = segment.ok_or_else(|| Failed::from(format!("no Tmu in {figures}")))?;
    equal("count", segment["count"].as_u64(), Some(dated))?;
    equal("bound", segment["error_bound_ns"].as_i64().is_some_and(|bound| (1_000..100_000).contains(&bound)), true)?;
    imported(&run, &file)
}

/// The capture of the same packets, imported by itself, says the same of each sample as the recording.
fn imported(recorded: &Run, file: &Path) -> Result<(), Failed> {
    let path = file.with_extension("run");
    let words = format!("import host/nic-rx@{NIC}={} --clock-error 1us --json -o {}", file.display(), path.display());
    let output = latpath(&words).output()?;
    equal("exit code", output.status.code(), Some(0))?;
    let run = Run::open(&path)?;
    let time_of_day = recorded.manifest().time_of_day();
    let mut samples: [Vec<(u32, Option<Ns>)>; 2] = Default::default();
    for (run, samples) in [recorded, &run].into_iter().zip(&mut samples) {
        run.for_each(&Select::default(), |j| {
            let sampled = (j.samples != 0).then(|| j.at(j.samples.trailing_zeros() as u16)).flatten();
            samples.push((j.key, sampled));
            true
        });
    }
    let [recorded, imported] = samples;
    equal("packets", imported.len(), recorded.len())?;
    let mut both = 0;
    for ((key, sampled), (imported_key, imported)) in recorded.into_iter().zip(imported) {
        equal("smpCnt", imported_key, key)?;
        let Some((sampled, imported)) = sampled.zip(imported) else { continue };
        both += 1;
        let off = time_of_day.utc(sampled) - imported;
        equal(&format!("smpCnt {key}: {off} ns is the tie of the clocks"), off.abs() <= 20_000, true)?;
    }
    equal("most packets are dated in both", both > 20_000 - 10_000, true)?;
    let figures = report(&path, "")?;
    let names: Vec<_> = figures["segments"].as_array().into_iter().flatten().map(|s| s["name"].clone()).collect();
    equal("segments", names, vec!["Tmu".into()])?;
    equal("bound", figures["segments"][0]["error_bound_ns"].as_i64(), Some(1_000))
}

/// It says so; and where it says another thing from some packet on, the run has a mark there.
fn not_synchronised() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("local");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --clock-error 1us"))?;
    let first = publish(&bench, &format!("--svid {svid} --count 9000"))?;
    let then = publish(&bench, &format!("--svid {svid} --count 500 --smp-synch 0"))?;
    recorder.has(number(&first, "frames_sent")? + number(&then, "frames_sent")?)?;
    let path = recorder.end()?;
    let figures = report(&path, "")?;
    let is_tmu = |segment: &Value| segment["name"] == "Tmu";
    equal("Tmu", figures["segments"].as_array().is_some_and(|all| all.iter().any(is_tmu)), false)?;
    let run = Run::open(&path)?;
    let marks: Vec<&str> = run.marks().iter().map(|mark| mark.text.as_str()).collect();
    equal("marks", marks, vec![format!("{svid}: smpSynch 1 -> 0").as_str()])
}
