//! Tsend: the time from the send time in a talker's packet to its first point.

use crate::{publish, report, Recorder};
use latpath_cause::Cause;
use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_model::{Ns, SegmentKind};
use latpath_report::explanation::{CauseDocument, SegmentTime};
use latpath_report::ExplanationDocument;
use latpath_run::{Run, Select};
use latpath_testkit::names::own;
use latpath_testkit::{bench, busy, equal, latpath, trial, Failed, Lack, Trial};
use nix::sched::{sched_getaffinity, CpuSet};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

const MS: Ns = 1_000_000;
/// Maximum difference between the clock ties used to convert send times, even if the reading process is preempted, ns.
const TIE: Ns = 50_000;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let each: Vec<Trial> = [("tai", 0), ("realtime", 0), ("tai", 300_000)]
        .into_iter()
        .map(|(clock, advance)| {
            let name = format!("each_packet_of_a_talker_has_its_send_time_by_{clock}_advanced_{advance}_ns");
            trial(&name, needs, move || each_packet(clock, advance))
        })
        .collect();
    let others = vec![
        trial("a_packet_without_a_send_time_has_no_tsend", needs, no_send_time),
        trial("no_send_time_counts_while_the_clock_is_not_synchronised", needs, unsynchronised),
        trial("send_times_by_the_monotonic_clock_are_recognised_and_a_late_talker_is_explained", needs, held),
    ];
    each.into_iter().chain(others).collect()
}

fn each_packet(clock: &str, advance: Ns) -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own(&format!("{clock}{advance}"));
    let mut realtime = RealtimeWatch::new(&ClockTie::read());
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --clock-error 0s"))?;
    let words =
        format!("--svid {svid} --cycle 1ms --send-offset 400us --advance {advance}ns --clock {clock} --count 2000");
    let sent = publish(&bench, &words)?;
    recorder.has(sent.frames_sent)?;
    let path = recorder.end()?;
    let tie = ClockTie::read();
    if realtime.observe(&tie).is_some() {
        return Err("the time of day was set while this was tested".into());
    }
    let first = sent.streams.ok_or("no schedule")?[0].first_send_time_ns;
    let now = if clock == "tai" { tie.tai_ns } else { tie.realtime_ns };
    let first = first - (now - tie.monotonic_ns);

    let run = Run::open(&path)?;
    let planned = point(&run, "talker/planned@send-time")?;
    let driver = point(&run, "host/tx@lp-pub")?;
    let mut times = HashMap::new();
    run.for_each(&Select::default(), |j| {
        times.insert(j.key, j.at(planned).zip(j.at(driver)));
        true
    });
    equal("packets", times.len(), 2000)?;
    let (mut least, mut greatest) = (Ns::MAX, Ns::MIN);
    for (key, times) in times {
        let (planned, driver) = times.ok_or_else(|| format!("smpCnt {key} has no send time"))?;
        let off = planned - (first + Ns::from(key) * MS);
        equal(&format!("smpCnt {key}: its send time is off by {off} ns"), off.abs() < TIE, true)?;
        (least, greatest) = (least.min(driver - planned), greatest.max(driver - planned));
    }
    // A packet cannot reach the driver before the talker has handed it over.
    equal(&format!("{least} ns, handed over {advance} ns before"), least + advance > -TIE, true)?;
    let figures = report(&path, "")?.summary;
    let segment = figures.segments.iter().find(|s| s.kind == SegmentKind::Tsend).ok_or("no Tsend")?;
    equal("ends", [segment.from.as_str(), segment.to.as_str()], ["talker/planned@send-time", "host/tx@lp-pub"])?;
    equal("packets with a Tsend", segment.times.count, 2000)?;
    equal("shortest and longest", [segment.times.min_ns, segment.times.max_ns], [least, greatest])?;
    let bound = segment.error_bound_ns;
    equal(&format!("bound {bound}"), (0..TIE).contains(&bound), true)
}

fn point(run: &Run, name: &str) -> Result<u16, Failed> {
    let at = run.points().iter().position(|info| info.point.to_string() == name);
    at.map(|at| at as u16).ok_or_else(|| Failed::from(format!("no point {name}")))
}

/// Records a stream with this name; returns the segment kinds and the notes of the recording.
fn recorded(name: &str, more: &str, publishes: &str) -> Result<(Vec<SegmentKind>, Vec<String>), Failed> {
    let bench = bench()?;
    let svid = own(name);
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {more}"))?;
    let sent = publish(&bench, &format!("--svid {svid} --count 500 {publishes}"))?;
    recorder.has(sent.frames_sent)?;
    let path: &Path = &recorder.end()?;
    let figures = report(path, "")?.summary;
    Ok((figures.segments.iter().map(|segment| segment.kind).collect(), figures.notes.clone()))
}

fn no_send_time() -> Result<(), Failed> {
    let (kinds, _) = recorded("no-time", "--clock-error 0s", "")?;
    equal("Tsend", kinds.contains(&SegmentKind::Tsend), false)
}

/// A real-time process takes the talker's CPU for 4 ms in every 20 ms.
fn held() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("held");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --threshold 1ms"))?;
    let cpus = sched_getaffinity(Pid::from_raw(0))?;
    let cpu = (0..CpuSet::count()).find(|cpu| cpus.is_set(*cpu) == Ok(true)).ok_or("no CPU")?.to_string();
    let this = std::env::current_exe()?;
    let script = busy::realtime_script(&format!("exec {}", this.display()), 20, 60);
    let mut hog = Command::new("taskset").args(["-c", &cpu, "sh", "-c", &script]).spawn()?;
    let sent = publish(&bench, &format!("--svid {svid} --cycle 2ms --clock monotonic --count 1500 --cpu {cpu}"));
    hog.kill()?;
    hog.wait()?;
    recorder.has(sent?.frames_sent)?;
    let path = recorder.end()?;
    let figures = report(&path, "")?.summary;
    let segment = figures.segments.iter().find(|s| s.kind == SegmentKind::Tsend).ok_or("no Tsend")?;
    equal(&format!("{} packets with a Tsend", segment.times.count), segment.times.count >= 1400, true)?;
    equal("bound", segment.error_bound_ns, 0)?;
    let explained = latpath(&format!("explain {} --json", path.display())).output()?;
    let explained: ExplanationDocument = serde_json::from_slice(&explained.stdout)?;
    let is_planned = |segment: &SegmentTime| segment.from.contains("planned");
    let waited = |share: &&CauseDocument| share.cause == Cause::WaitingForCpu && share.segments.iter().any(is_planned);
    let row = explained.causes.iter().map(|row| &row.share).find(waited);
    let row = row.ok_or_else(|| format!("no talker waited for its CPU: {:#?}", explained.causes))?;
    let culprits: Vec<&str> = row.by.iter().map(|by| by.actor.name.as_str()).collect();
    equal(&format!("{culprits:?}"), culprits.contains(&"busy20"), true)
}

fn unsynchronised() -> Result<(), Failed> {
    let (kinds, notes) = recorded("no-clock", "", "--cycle 1ms")?;
    let is_noted = notes.iter().any(|note| note.contains("Tsend: packets have their send times"));
    // Tsend is shown only if this machine's kernel reports that its clock is synchronised.
    let is_known = latpath_linux::utc_error().is_some();
    equal("Tsend", kinds.contains(&SegmentKind::Tsend), is_known)?;
    equal(&format!("noted: {notes:?}"), is_noted, !is_known)
}
