//! Captures of late packets, which are caused by stopping an application.

use crate::live::shows;
use crate::{equal, own, subscribe, until, Recorder, LIMIT, LONG_WRAP, PATIENT};
use latpath_capture::{CaptureKind, LatenessRule, RankedCapture, RetentionLimits};
use latpath_follow::{FlightOptions, Live, Options};
use latpath_lab::PUBLISHER;
use latpath_model::{text::quoted, Point, PointKind};
use latpath_run::{Condition, Run, Select, SpikeFile};
use latpath_stats::{ShownAfter, Summary};
use latpath_testkit::waits::{has_read, sent};
use latpath_testkit::{bench, latpath, trial, Bench, Lack, Started};
use latpath_testkit::{Failed, Trial};
use latpath_tracefs::Tracefs;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("a_stall_is_kept_with_its_packets_and_what_the_cpus_did", needs, stall),
        trial("of_many_spikes_the_worst_are_kept_and_the_rest_counted", needs, bounds),
        trial("kill_9_keeps_the_spikes_so_far", needs, killed),
        trial("without_the_recorder_there_are_none", needs, no_flight),
        trial("the_first_spike_stops_the_recording_and_the_kernels_trace", needs, stop_on_spike),
        trial("a_command_of_the_user_runs_for_a_late_packet", needs, on_spike),
        trial("what_a_killed_recording_leaves_in_tracefs_any_other_command_removes", needs, killed_while_tracing),
        trial("the_worst_of_a_minute_need_no_threshold", needs, worst),
        trial("live_shows_what_held_late_packets_and_how_soon", needs, explained_live),
        trial("live_freezes_spikes_too_with_the_cpus_and_threads_of_their_packets", needs, live),
    ]
}

/// Latency that the tests' late packets exceed, and that a busy machine rarely causes by itself.
const THRESHOLD: &str = "--threshold 20ms";
/// A buffer large enough for the activity of all CPUs if the recorder does not run for seconds before it takes a
/// snapshot.
const ROOM: &str = "--flight-buffer 64";

/// A publisher that runs until it is stopped, and an application that can be stopped.
struct Stage {
    bench: Bench,
    svid: String,
    application: Started,
    publisher: Started,
}

impl Stage {
    fn new(name: &str) -> Result<Self, Failed> {
        let bench = bench()?;
        let svid = own(name);
        let application = subscribe(&bench, &svid)?;
        let words = format!("publish -i {PUBLISHER} --svid {svid} --rate 1000 --duration 600s {LONG_WRAP}");
        let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
        Ok(Self { bench, svid, application, publisher })
    }

    /// Starts a recorder, and waits until the route is known.
    fn record(&self, words: &str) -> Result<Recorder, Failed> {
        let words = format!("--stream svid:{} {PATIENT} {words}", self.svid);
        // A name with a character that a shell would interpret.
        let mut recorder = Recorder::start(&self.bench, "one's", &words)?;
        let is_reader = |point: &Point| point.kind == PointKind::AppRead;
        let knows = |run: Run| run.manifest().route.last().is_some_and(is_reader);
        // A recorder that ends by itself may already have ended.
        until("the route is known", || Run::open(&recorder.run).is_ok_and(knows) || !recorder.process.runs())?;
        Ok(recorder)
    }

    fn sent(&self) -> u64 {
        sent(self.publisher.pid(), PUBLISHER)
    }

    /// Stops the application for at least `ms`, so that all packets of that time except those of the last 25 ms are
    /// late; returns the beginning and the end. Afterwards it reads 300 packets in time, so that the next late packets
    /// are another spike.
    fn stall(&self, ms: u64) -> Result<(i64, i64), Failed> {
        let times = self.stop_for(ms)?;
        has_read(&self.application)?;
        let before = self.sent();
        until("the publisher goes on", || self.sent() >= before + 300)?;
        has_read(&self.application)?;
        Ok(times)
    }

    fn stop_for(&self, ms: u64) -> Result<(i64, i64), Failed> {
        let application = Pid::from_raw(self.application.pid() as i32);
        let from = latpath_linux::monotonic();
        kill(application, Signal::SIGSTOP)?;
        // While the publisher does not run, no packet can be late.
        let before = self.sent();
        let waited = until("the publisher sends", || self.sent() > before).and_then(|()| {
            latpath_testkit::waits::fault_for(Duration::from_millis(ms));
            until("the publisher goes on", || self.sent() > before + (ms - 25) * 3 / 4)
        });
        kill(application, Signal::SIGCONT)?;
        waited.map(|()| (from, latpath_linux::monotonic()))
    }
}

/// The worst spike in this interval.
fn spike_of(run: &Run, (from, to): (i64, i64)) -> Option<SpikeFile> {
    let of_it = |f: &SpikeFile| f.head.kind() == CaptureKind::Spike && f.head.from < to && f.head.to > from;
    run.spikes().files.into_iter().filter(of_it).max_by_key(|f| f.head.worst)
}

/// Waits for the spike of a stall.
fn is_kept(recorder: &Recorder, times: (i64, i64)) -> Result<(), Failed> {
    until("the spike is on the disk", || Run::open(&recorder.run).is_ok_and(|run| spike_of(&run, times).is_some()))
}

fn stall() -> Result<(), Failed> {
    let stage = Stage::new("stall")?;
    let recorder = stage.record(&format!("{THRESHOLD} {ROOM}"))?;
    let times = stage.stall(60)?;
    is_kept(&recorder, times)?;
    let has_baseline = |run: Run| run.spikes().files.iter().any(|f| f.head.kind() == CaptureKind::Baseline);
    until("a baseline is kept too", || Run::open(&recorder.run).is_ok_and(has_baseline))?;
    let run = Run::open(&recorder.end()?)?;
    equal("what cannot be read", run.spikes().notes.len(), 0)?;
    let file = spike_of(&run, times).ok_or("no spike is of the stall")?;
    let ranked = run.capture(file.head.number)?;
    let capture = &ranked.capture;
    let machine = capture.machines.first().ok_or("no machine")?;
    equal("machine", machine.machine.as_str(), "host")?;
    let snapshot = machine.record.as_ref().map_err(Clone::clone)?;
    equal("the rings had all of it", snapshot.window.is_complete(), true)?;
    let pid = stage.application.pid();
    equal("the application is named", snapshot.threads.get(&pid).map(|t| t.name.as_str()), Some("subscribe"))?;
    // About 60 packets arrived in 60 ms; those of the last 25 ms need not be late.
    let late: Vec<_> = capture.packets.iter().filter(|p| p.late).collect();
    equal(&format!("{} late packets are enough", late.len()), late.len() >= 20, true)?;
    equal("packets in time", capture.packets.len() > late.len(), true)?;
    // Each packet equals its journey in the run.
    let mut journeys = BTreeMap::new();
    run.for_each(&Select { cpus_and_threads: true, ..Select::default() }, |j| {
        let at = |p: u16| Some((j.at(p)?, p, Some(j.cpu[usize::from(p)]), Some(j.tid[usize::from(p)])));
        let points = (0..j.t.len() as u16).filter_map(at);
        let mut seen: Vec<_> = points.collect();
        seen.sort_unstable();
        journeys.insert(j.number, seen);
        true
    });
    for packet in &capture.packets {
        let seen: Vec<_> = packet.sightings.iter().map(|s| (s.t, s.point, s.cpu, s.tid)).collect();
        equal(&format!("packet {}", packet.number), Some(&seen), journeys.get(&packet.number))?;
    }
    let counts = run.manifest().spikes.clone().unwrap_or_default();
    equal("late packets are counted", counts.late[0] >= late.len() as u64 && counts.captures >= 1, true)?;
    let flight = run.manifest().machines[0].flight.clone().ok_or("the recorder is not reported")?;
    equal("events", flight.figures.events > 1000 && flight.fault.is_none(), true)
}

fn bounds() -> Result<(), Failed> {
    let stage = Stage::new("many")?;
    let recorder = stage.record(&format!("{THRESHOLD} --spikes 3"))?;
    for ms in [40, 120, 40, 100, 40, 140, 40] {
        stage.stall(ms)?;
    }
    let counts = |run: &Run| run.manifest().spikes.clone().unwrap_or_default();
    let counted = |run: Run| counts(&run).captures + counts(&run).captures_not_kept >= 7;
    until("all seven are counted", || Run::open(&recorder.run).is_ok_and(counted))?;
    let run = Run::open(&recorder.end()?)?;
    let files = run.spikes().files;
    equal("captures", files.len() <= 3, true)?;
    let worst: Vec<_> =
        files.iter().filter(|f| f.head.kind() == CaptureKind::Spike).map(|f| f.head.worst / 1_000_000).collect();
    let counts = counts(&run);
    equal(&format!("only the worst are left: {worst:?}, {counts:?}"), worst.iter().all(|ms| *ms >= 95), true)?;
    equal("late packets that are kept", counts.late_kept[0] < counts.late[0], true)
}

fn killed() -> Result<(), Failed> {
    let stage = Stage::new("spiked")?;
    let recorder = stage.record(THRESHOLD)?;
    let times = stage.stall(60)?;
    is_kept(&recorder, times)?;
    kill(Pid::from_raw(recorder.process.pid() as i32), Signal::SIGKILL)?;
    recorder.process.finish(LIMIT)?;
    let run = Run::open(&recorder.run)?;
    equal("condition", run.condition(), &Condition::Killed)?;
    for file in run.spikes().files {
        run.capture(file.head.number)?;
    }
    Ok(())
}

fn no_flight() -> Result<(), Failed> {
    let stage = Stage::new("none")?;
    let recorder = stage.record(&format!("{THRESHOLD} --no-flight"))?;
    stage.stall(60)?;
    recorder.has(1001)?;
    let path = recorder.end()?;
    let run = Run::open(&path)?;
    equal("what is reported", (&run.manifest().spikes, &run.manifest().machines[0].flight), (&None, &None))?;
    equal("a folder", path.join("spikes").exists(), false)
}

fn stop_on_spike() -> Result<(), Failed> {
    let stage = Stage::new("first")?;
    let instance = format!("latpath-test-{}", std::process::id());
    let recorder = stage.record(&format!("{THRESHOLD} --stop-on-spike --trace-instance {instance}"))?;
    stage.stall(60)?;
    let ended = recorder.process.finish(LIMIT)?;
    equal(&format!("exit code; it said: {}", ended.stderr), ended.code, Some(0))?;
    let run = quoted(&recorder.run.to_string_lossy());
    for command in [format!("read them with: latpath report {run}\n"), format!(" kept: latpath explain {run}\n")] {
        equal(&format!("{command:?} in {}", ended.stderr), ended.stderr.contains(&command), true)?;
    }
    let run = Run::open(&recorder.run)?;
    equal("a spike", run.spikes().files.iter().any(|f| f.head.kind() == CaptureKind::Spike), true)?;
    let mut trace = std::fs::read_to_string(recorder.run.join("trace.txt"))?;
    trace += &std::fs::read_to_string(recorder.run.join("trace.txt.snapshot")).unwrap_or_default();
    equal("the mark", trace.contains("latpath spike 1: packet") || trace.contains("latpath spike "), true)?;
    equal("events", trace.contains("sched_switch"), true)?;
    let tracefs = Tracefs::open()?;
    equal("an instance stays", tracefs.path().join("instances").join(&instance).exists(), false)
}

fn on_spike() -> Result<(), Failed> {
    let stage = Stage::new("command")?;
    let folder = tempfile::tempdir()?;
    let (script, kept) = (folder.path().join("script"), folder.path().join("kept"));
    std::fs::write(&script, format!("#!/bin/sh\ntest -e {0} || env > {0}\n", kept.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let recorder = stage.record(&format!("{THRESHOLD} {ROOM} --on-spike {}", script.display()))?;
    stage.stall(60)?;
    until("the command has run", || std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("LATPATH_TIME=")))?;
    let run = Run::open(&recorder.end()?)?;
    let text = std::fs::read_to_string(&kept)?;
    let get = |name: &str| text.lines().find_map(|line| line.strip_prefix(&format!("LATPATH_{name}=")));
    equal("what", get("EVENT"), Some("packet"))?;
    equal("stream", get("STREAM"), Some(format!("svid:{}", stage.svid).as_str()))?;
    equal("the run", get("RUN").map(std::path::Path::new), Some(run.path()))?;
    let number: u32 = get("CAPTURE").and_then(|number| number.parse().ok()).ok_or("no number of a capture")?;
    let capture = run.capture(number)?.capture;
    let packet: u64 = get("NUMBER").and_then(|number| number.parse().ok()).ok_or("no number of a packet")?;
    equal("its packet", capture.packets.iter().any(|p| p.late && p.number == packet), true)
}

fn killed_while_tracing() -> Result<(), Failed> {
    let stage = Stage::new("left")?;
    let instance = format!("latpath-left-{}", std::process::id());
    // No packet is this late. A recorder that stopped at a spike would already have removed the instance before it is
    // killed.
    let recorder = stage.record(&format!("--threshold 10s --stop-on-spike --trace-instance {instance}"))?;
    // Works even if tracefs is not mounted.
    let tracefs = Tracefs::open()?;
    let is_there = || tracefs.path().join("instances").join(&instance).exists();
    until("the instance is there", is_there)?;
    kill(Pid::from_raw(recorder.process.pid() as i32), Signal::SIGKILL)?;
    recorder.process.finish(LIMIT)?;
    let mut said = String::new();
    until("another command has removed it", || {
        let vms = latpath("vms").output();
        said += &vms.map(|out| String::from_utf8_lossy(&out.stderr).into_owned()).unwrap_or_default();
        !is_there()
    })?;
    // Another latpath on this machine may have removed it first, and reported it.
    equal(&said, said.is_empty() || said.contains(&format!("tracefs instance {instance}: undid")), true)
}

fn worst() -> Result<(), Failed> {
    let stage = Stage::new("worst")?;
    let recorder = stage.record("--threshold 10s --capture-worst 20")?;
    // Long enough to be among the worst: the machine's own stalls in the same minute are few, and rarely as long.
    let times = stage.stall(2000)?;
    is_kept(&recorder, times)?;
    let run = Run::open(&recorder.end()?)?;
    let spikes = run.spikes().files.iter().filter(|f| f.head.kind() == CaptureKind::Spike).count();
    // A test that runs across a minute boundary has the worst of two minutes.
    equal(&format!("{spikes} spikes"), (1..=40).contains(&spikes), true)?;
    equal("the stall is one of them", spike_of(&run, times).is_some(), true)
}

fn shown_after(figures: &Summary) -> Option<ShownAfter> {
    figures.late.as_ref()?.shown_after
}

/// `live` explains spikes while it runs, and reports how soon after each spike it did so.
fn explained_live() -> Result<(), Failed> {
    let stage = Stage::new("explained")?;
    let words = format!("live --json --stream svid:{} {PATIENT} {THRESHOLD}", stage.svid);
    let live = stage.bench.start(&stage.bench.path.hypervisor, latpath(&words))?;
    let is_reader = |point: &Point| point.to_string().contains("/app-read@");
    shows(&live, "the route is known", |f| f.points.last().is_some_and(is_reader))?;
    stage.stall(60)?;
    stage.stall(60)?;
    shows(&live, "both causes", |f| shown_after(f).is_some_and(|after| after.spikes >= 2))?;
    live.interrupt();
    let ended = live.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))?;
    let objects: Vec<Summary> = ended.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let last = objects.last().ok_or("live printed nothing")?;
    let ShownAfter { spikes, latest_ns, median_ns, worst_ns } =
        shown_after(last).ok_or("live does not say how soon")?;
    equal(&format!("{spikes} spikes"), spikes >= 2, true)?;
    let is_sorted = 0 < median_ns && median_ns <= worst_ns && 0 < latest_ns && latest_ns <= worst_ns;
    equal(&format!("times: {latest_ns}, {median_ns}, {worst_ns}"), is_sorted, true)?;
    equal("a cause is named", last.late.as_ref().is_some_and(|late| !late.causes.is_empty()), true)?;
    let first = objects.iter().find(|o| shown_after(o).is_some()).and_then(|o| o.late.as_ref());
    equal("the first that says how soon has explained packets", first.is_some_and(|late| late.explained > 0), true)
}

/// `live` receives the same late packets from the joiner as `record`.
fn live() -> Result<(), Failed> {
    let stage = Stage::new("watched")?;
    let ms = 1_000_000;
    let flight = FlightOptions {
        bytes_per_cpu: 64 << 20,
        budget: 1_000_000,
        rule: LatenessRule::Over(20 * ms),
        max_wait: 300 * ms,
        retention: RetentionLimits::default(),
    };
    let mut watch = Live::start(Options {
        threshold: 20 * ms,
        window: 4_000 * ms,
        ring_bytes: 1 << 20,
        flight: Some(flight),
        ..Options::new(vec![format!("svid:{}", stage.svid).parse()?])
    })?;
    let mut came = Vec::new();
    let step = |watch: &mut Live, came: &mut Vec<RankedCapture>| {
        watch.step();
        came.extend(std::iter::from_fn(|| watch.follow.next_capture()));
    };
    until("the route is known", || {
        step(&mut watch, &mut came);
        let (points, line) = (watch.follow.points(), &watch.follow.layout().route.points);
        line.last().is_some_and(|p| points[usize::from(*p)].point.kind == PointKind::AppRead)
    })?;
    let (from, to) = stage.stop_for(60)?;
    let mut found = None;
    let waited = until("a spike of the stall comes", || {
        step(&mut watch, &mut came);
        let of_stall = |ranked: &&RankedCapture| {
            let capture = &ranked.capture;
            capture.kind == CaptureKind::Spike && capture.from < to && capture.to > from
        };
        found = came.iter().filter(of_stall).max_by_key(|f| f.worst).cloned();
        found.is_some()
    });
    let ranked = waited.ok().and(found).ok_or_else(|| {
        let times = |f: &RankedCapture| (f.capture.kind, f.capture.from - from, f.capture.to - from);
        let came: Vec<_> = came.iter().map(times).collect();
        let late = watch.follow.late();
        format!("no spike is of the stall, of {} ns, but of those that came: {came:?}; late: {late:?}", to - from)
    })?;
    until("a baseline", || {
        step(&mut watch, &mut came);
        came.iter().any(|f| f.capture.kind == CaptureKind::Baseline)
    })?;
    let late: Vec<_> = ranked.capture.packets.iter().filter(|p| p.late).collect();
    equal(&format!("{} late packets are enough", late.len()), late.len() >= 20, true)?;
    equal("late packets are counted", watch.follow.late().is_some_and(|counted| counted.late[0] >= 20), true)?;
    let points = watch.follow.points();
    let read = points.iter().position(|p| p.point.kind == PointKind::AppRead).ok_or("no reader")?;
    for packet in late {
        let seen = packet.sightings.iter().find(|s| usize::from(s.point) == read).ok_or("it was not read")?;
        equal("the thread that read it", seen.tid, Some(stage.application.pid()))?;
        equal("points of the route", packet.sightings.len() >= 5, true)?;
    }
    Ok(())
}
