//! What is kept of late packets: an application that is stopped on purpose makes them.

use crate::support::{bench, latpath, trial, Bench, Lack, Started};
use crate::{equal, own, subscribe, until, Recorder, LIMIT};
use latpath_follow::{FlightOptions, Options, PointFilter, Watch};
use latpath_lab::PUBLISHER;
use latpath_run::{Condition, Run, Select};
use latpath_spike::{Frozen, Kind, Rule};
use libtest_mimic::{Failed, Trial};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("a_stall_is_kept_with_its_packets_and_what_the_cpus_did", needs, stall),
        trial("of_many_spikes_the_worst_are_kept_and_the_rest_counted", needs, bounds),
        trial("kill_9_keeps_the_spikes_so_far", needs, killed),
        trial("without_the_recorder_there_are_none", needs, no_flight),
        trial("the_first_spike_stops_the_recording_and_the_kernels_trace", needs, stop_on_spike),
        trial("the_worst_of_a_minute_need_no_threshold", needs, worst),
        trial("live_tells_what_held_late_packets_and_how_soon", needs, told),
        trial("live_freezes_spikes_too_with_the_cpus_and_threads_of_their_packets", needs, live),
    ]
}

/// A threshold that a busy machine breaks less often than these tests.
const THRESHOLD: &str = "--threshold 20ms";

/// A publisher that goes on, and an application that can be stopped.
struct Stage {
    bench: Bench,
    svid: String,
    application: Started,
}

impl Stage {
    fn new(name: &str) -> Result<Self, Failed> {
        let bench = bench()?;
        let svid = own(name);
        let application = subscribe(&bench, &svid)?;
        Ok(Self { bench, svid, application })
    }

    fn record(&self, words: &str) -> Result<Recorder, Failed> {
        Recorder::start(&self.bench, "run", &format!("--stream svid:{} {words}", self.svid))
    }

    fn publish(&self) -> Result<Started, Failed> {
        let words = format!("publish -i {PUBLISHER} --svid {} --rate 1000 --duration 50s", self.svid);
        let publisher = self.bench.start(&self.bench.path.publisher, latpath(&words))?;
        // The way is known after a second.
        std::thread::sleep(Duration::from_millis(2500));
        Ok(publisher)
    }

    /// The application does not run for a while; when that was.
    fn stall(&self, ms: u64) -> Result<(i64, i64), Failed> {
        let times = self.stop_for(ms)?;
        std::thread::sleep(Duration::from_millis(300));
        Ok(times)
    }

    fn stop_for(&self, ms: u64) -> Result<(i64, i64), Failed> {
        let application = Pid::from_raw(self.application.pid() as i32);
        let from = latpath_probe::monotonic();
        kill(application, Signal::SIGSTOP)?;
        std::thread::sleep(Duration::from_millis(ms));
        kill(application, Signal::SIGCONT)?;
        Ok((from, latpath_probe::monotonic()))
    }
}

fn end(publisher: Started) -> Result<(), Failed> {
    publisher.interrupt();
    publisher.finish(LIMIT).map(drop)
}

fn stall() -> Result<(), Failed> {
    let stage = Stage::new("stall")?;
    let recorder = stage.record(THRESHOLD)?;
    let publisher = stage.publish()?;
    let (from, to) = stage.stall(60)?;
    end(publisher)?;
    let run = Run::open(&recorder.end()?)?;
    let spikes = run.spikes();
    equal("what cannot be read", spikes.notes.len(), 0)?;
    equal("a usual time is kept too", spikes.files.iter().any(|f| f.head.kind == Kind::OnTime), true)?;
    let holds = |f: &&latpath_run::SpikeFile| f.head.kind == Kind::Spike && f.head.from < to && f.head.to > from;
    let file = spikes.files.iter().find(holds).ok_or("no spike is of the stall")?;
    let frozen = run.spike(file.head.number)?;
    let scene = &frozen.scene;
    let machine = scene.machines.first().ok_or("no machine")?;
    equal("machine", machine.machine.as_str(), "host")?;
    let snapshot = machine.record.as_ref().map_err(Clone::clone)?;
    equal("the rings had all of it", snapshot.window.is_complete(), true)?;
    let pid = stage.application.pid();
    equal("the application is named", snapshot.threads.get(&pid).map(|t| t.name.as_str()), Some("subscribe"))?;
    // Some 60 packets came in 60 ms; those of the last 20 ms are not late.
    let late: Vec<_> = scene.packets.iter().filter(|p| p.late).collect();
    equal(&format!("{} late packets are enough", late.len()), late.len() >= 20, true)?;
    equal("packets in time", scene.packets.len() > late.len(), true)?;
    // Each packet is as the run has it.
    let mut journeys = BTreeMap::new();
    run.for_each(&Select { cpus_and_threads: true, ..Select::default() }, |j| {
        let points =
            (0..j.t.len() as u16).filter_map(|p| Some((j.at(p)?, p, j.cpu[usize::from(p)], j.tid[usize::from(p)])));
        let mut seen: Vec<_> = points.collect();
        seen.sort_unstable();
        journeys.insert(j.number, seen);
        true
    });
    for packet in &scene.packets {
        let seen: Vec<_> = packet.sightings.iter().map(|s| (s.t, s.point, s.cpu, s.tid)).collect();
        equal(&format!("packet {}", packet.number), Some(&seen), journeys.get(&packet.number))?;
    }
    let told = run.manifest().spikes.clone().unwrap_or_default();
    equal("late packets are counted", told.late[0] >= late.len() as u64 && told.scenes >= 1, true)?;
    let flight = run.manifest().machines[0].flight.clone().ok_or("the recorder is not told")?;
    equal("events", flight.events > 1000 && flight.fault.is_none(), true)
}

fn bounds() -> Result<(), Failed> {
    let stage = Stage::new("many")?;
    let recorder = stage.record(&format!("{THRESHOLD} --spikes 3"))?;
    let publisher = stage.publish()?;
    for ms in [40, 120, 40, 100, 40, 140, 40] {
        stage.stall(ms)?;
    }
    end(publisher)?;
    let run = Run::open(&recorder.end()?)?;
    let files = run.spikes().files;
    equal("scenes", files.len() <= 3, true)?;
    let worst: Vec<_> = files.iter().filter(|f| f.head.kind == Kind::Spike).map(|f| f.head.worst / 1_000_000).collect();
    let told = run.manifest().spikes.clone().unwrap_or_default();
    equal(&format!("only the worst are left: {worst:?}, {told:?}"), worst.iter().all(|ms| *ms >= 95), true)?;
    equal(&format!("the rest are counted: {told:?}"), told.scenes + told.scenes_not_kept >= 7, true)?;
    equal("late packets that are kept", told.late_kept[0] < told.late[0], true)
}

fn killed() -> Result<(), Failed> {
    let stage = Stage::new("spiked")?;
    let recorder = stage.record(THRESHOLD)?;
    let publisher = stage.publish()?;
    let (from, to) = stage.stall(60)?;
    let here = || {
        let files = Run::open(&recorder.run).map(|run| run.spikes().files).unwrap_or_default();
        files.iter().any(|f| f.head.kind == Kind::Spike && f.head.from < to && f.head.to > from)
    };
    until("the spike is on the disk", here)?;
    kill(Pid::from_raw(recorder.process.pid() as i32), Signal::SIGKILL)?;
    recorder.process.finish(LIMIT)?;
    end(publisher)?;
    let run = Run::open(&recorder.run)?;
    equal("condition", run.condition(), &Condition::Killed)?;
    for file in run.spikes().files {
        run.spike(file.head.number)?;
    }
    Ok(())
}

fn no_flight() -> Result<(), Failed> {
    let stage = Stage::new("none")?;
    let recorder = stage.record(&format!("{THRESHOLD} --no-flight"))?;
    let publisher = stage.publish()?;
    stage.stall(60)?;
    end(publisher)?;
    let path = recorder.end()?;
    let run = Run::open(&path)?;
    equal("told", (&run.manifest().spikes, &run.manifest().machines[0].flight), (&None, &None))?;
    equal("a folder", path.join("spikes").exists(), false)?;
    equal("journeys", run.journeys() > 1000, true)
}

fn stop_on_spike() -> Result<(), Failed> {
    let stage = Stage::new("first")?;
    let instance = format!("latpath-test-{}", std::process::id());
    let recorder = stage.record(&format!("{THRESHOLD} --stop-on-spike --trace-instance {instance}"))?;
    let publisher = stage.publish()?;
    stage.stall(60)?;
    let ended = recorder.process.finish(LIMIT)?;
    end(publisher)?;
    equal(&format!("exit code; it said: {}", ended.stderr), ended.code, Some(0))?;
    equal(
        &ended.stderr,
        ended.stderr.contains("spike kept: latpath explain") || ended.stderr.contains("spikes kept"),
        true,
    )?;
    let run = Run::open(&recorder.run)?;
    equal("a spike", run.spikes().files.iter().any(|f| f.head.kind == Kind::Spike), true)?;
    let mut trace = std::fs::read_to_string(recorder.run.join("trace.txt"))?;
    trace += &std::fs::read_to_string(recorder.run.join("trace.txt.snapshot")).unwrap_or_default();
    equal("the mark", trace.contains("latpath spike 1: packet") || trace.contains("latpath spike "), true)?;
    equal("events", trace.contains("sched_switch"), true)?;
    let stays = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(|t| format!("{t}/instances/{instance}"));
    equal("an instance stays", stays.iter().any(|path| std::path::Path::new(path).exists()), false)
}

fn worst() -> Result<(), Failed> {
    let stage = Stage::new("worst")?;
    let recorder = stage.record("--threshold 10s --worst 3")?;
    let publisher = stage.publish()?;
    let (from, to) = stage.stall(150)?;
    end(publisher)?;
    let run = Run::open(&recorder.end()?)?;
    let files = run.spikes().files;
    let spikes: Vec<_> = files.iter().filter(|f| f.head.kind == Kind::Spike).collect();
    // A test that goes on over a minute's end has the worst of two.
    equal(&format!("{} spikes", spikes.len()), (1..=6).contains(&spikes.len()), true)?;
    equal("the stall is one of them", spikes.iter().any(|f| f.head.from < to && f.head.to > from), true)
}

/// A cause comes between two seconds, and with it how long that took.
fn told() -> Result<(), Failed> {
    let stage = Stage::new("told")?;
    let words = format!("live --json --stream svid:{} {THRESHOLD}", stage.svid);
    let live = stage.bench.start(&stage.bench.path.hypervisor, latpath(&words))?;
    let publisher = stage.publish()?;
    stage.stall(60)?;
    stage.stall(60)?;
    std::thread::sleep(Duration::from_millis(1500));
    end(publisher)?;
    live.interrupt();
    let ended = live.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))?;
    let objects: Vec<serde_json::Value> = ended.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let late = &objects.last().ok_or("live printed nothing")?["late"];
    let of = |key: &str| late["shown_after"][key].as_i64().ok_or_else(|| format!("no {key} in {late}"));
    let (spikes, latest, median, worst) = (of("spikes")?, of("latest_ns")?, of("median_ns")?, of("worst_ns")?);
    equal(&format!("spikes: {late}"), spikes >= 2, true)?;
    equal(&format!("times: {late}"), 0 < median && median <= worst && 0 < latest && latest <= worst, true)?;
    equal("a cause is named", late["causes"][0]["cause"].is_string(), true)?;
    let first = objects.iter().find(|o| o["late"]["shown_after"].is_object());
    let first = first.ok_or("no object tells how soon")?;
    equal("the first that tells how soon has explained packets", first["late"]["explained"].as_u64() > Some(0), true)
}

/// Where the kernel itself joins and counts, late packets come out of its table.
fn live() -> Result<(), Failed> {
    let stage = Stage::new("watched")?;
    let ms = 1_000_000;
    let flight = FlightOptions { bytes_per_cpu: 4 << 20, rule: Rule::Over(20 * ms), patience: 300 * ms };
    let mut watch = Watch::start(Options {
        streams: vec![format!("svid:{}", stage.svid).parse()?],
        machines: Vec::new(),
        points: PointFilter::default(),
        segments: Vec::new(),
        threshold: 20 * ms,
        window: 1_000 * ms,
        ring_bytes: 1 << 20,
        flight: Some(flight),
    })?;
    equal("the kernel joins", matches!(watch, Watch::Kernel(_)), true)?;
    let publisher = stage.publish()?;
    let (mut stalled, mut came) = (None, Vec::new());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        std::thread::sleep(Duration::from_millis(20));
        watch.step();
        came.extend(std::iter::from_fn(|| watch.next_scene()).map(|scene| (latpath_probe::monotonic(), scene)));
        if began.elapsed() > Duration::from_secs(3) && stalled.is_none() {
            stalled = Some(stage.stop_for(60)?);
        }
    }
    end(publisher)?;
    let (from, to) = stalled.ok_or("no stall was made")?;
    let of_stall = |f: &&(i64, Frozen)| f.1.scene.kind == Kind::Spike && f.1.scene.from < to && f.1.scene.to > from;
    let (at, frozen) = came.iter().find(of_stall).ok_or("no spike is of the stall")?;
    equal(&format!("it came {} ms after the stall", (at - to) / ms), at - to < 1_000 * ms, true)?;
    equal("a usual time", came.iter().any(|(_, f)| f.scene.kind == Kind::OnTime), true)?;
    let late: Vec<_> = frozen.scene.packets.iter().filter(|p| p.late).collect();
    equal(&format!("{} late packets are enough", late.len()), late.len() >= 20, true)?;
    equal("late packets are counted", watch.late().is_some_and(|late| late[0] >= 20), true)?;
    let points = watch.points();
    let read = points.iter().position(|p| p.point.kind == latpath_words::PointKind::AppRead).ok_or("no reader")?;
    for packet in late {
        let seen = packet.sightings.iter().find(|s| usize::from(s.point) == read).ok_or("it was not read")?;
        equal("the thread that read it", seen.tid, stage.application.pid())?;
        equal("points of the way", packet.sightings.len() >= 5, true)?;
    }
    Ok(())
}
