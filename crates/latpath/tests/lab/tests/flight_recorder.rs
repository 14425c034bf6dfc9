//! The flight recorder agrees with the kernel's own trace of the same interval: the same events with the same fields
//! and times, in the same order on each CPU. The tracepoints that the recorder reports as missing do not exist in this
//! kernel.

use crate::{
    kernel_trace::{of_recorder, of_trace, Differ, LoggedEvent, EVENTS},
    stage::{plain, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, ensure, Context};
use latpath_flight::{Doing, EventKind, Recorder, Timeline, Window};
use latpath_lab::Switch;
use latpath_linux::Directory;
use latpath_testkit::waits::until;
use latpath_tracefs::{Instance, Options as Traced};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::Path,
    time::Duration,
};

pub const TEST: Test = Test { name: "flight_recorder", smoke: false, only_whole: true, seconds: 400, run };

const MIB: u64 = 1 << 20;

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", 1_000).rate(200);
    stage.subscribe(&stream)?;

    let recorder = Recorder::start(64 << 20)?;
    what_is_missing_is_not_there(&recorder)?;
    let there: Vec<String> = EVENTS.iter().filter(|e| is_there(e)).map(|e| e.replace('/', ":")).collect();
    let traced = Traced { events: there, buffer_kb: Some(48 << 10), ..Traced::default() };
    let instance = Instance::open_or_make("latpath-flight-test", &traced)?;

    let from = latpath_linux::monotonic();
    let mut publishing = stage.start_publishing(&stream)?;
    while publishing.runs() {
        stage.open_vswitch()?.forget_flows()?;
        latpath_testkit::waits::fault_for(Duration::from_millis(500));
    }
    let to = latpath_linux::monotonic();
    let later = || {
        let window = recorder.window(to, latpath_linux::monotonic());
        window.cpus.iter().all(|cpu| cpu.events.iter().any(|event| event.t > to))
    };
    until("each CPU has recorded something later", later).map_err(plain)?;
    let mut snapshot = recorder.snapshot_of_threads(from, to);
    instance.stop()?;

    let kept = Path::new("/out/kernel.trace");
    let saved = instance.save((&Directory::open(Path::new("/out"))?, OsStr::new("kernel.trace")), 1024 * MIB)?;
    ensure!(saved.lost.is_empty(), "the kernel's trace has lost events: {:?}", saved.lost);
    snapshot.add_names();
    let (names, window) = (snapshot.names(), snapshot.window);
    ensure!(window.is_complete(), "the recorder's window is not complete");
    let missed = recorder.figures().missed as usize;
    let theirs = of_trace(&fs::read_to_string(kept)?, from, to)?;
    let ours = of_recorder(&window, &names, from, to);
    fs::write("/out/recorder.txt", lines(&ours))?;

    let (mut counts, mut apart) = (BTreeMap::new(), Vec::new());
    for (cpu, theirs) in &theirs {
        let none = Vec::new();
        let differ = Differ { ours: ours.get(cpu).unwrap_or(&none), theirs };
        apart.extend(differ.as_a_whole().map_err(|why| anyhow!("CPU {cpu}: {why}"))?);
        for kind in theirs.iter().map(|said| said.kind()).collect::<BTreeSet<_>>() {
            let same = match differ.of_kind(kind) {
                // A timer interrupt may occur while the program of a timer event runs. Then the two records differ in
                // order, or one event is missing, since a program cannot be nested in itself.
                Err(_) if kind.starts_with("hrtimer") => differ.count_but(kind, missed),
                same => same,
            };
            *counts.entry(kind).or_default() += same.map_err(|why| anyhow!("CPU {cpu}, {kind}: {why}"))?;
        }
    }
    ensure!(ours.len() == theirs.len(), "{} CPUs reported something, not {}", ours.len(), theirs.len());
    eprintln!("the same in both: {counts:?}");
    exits_have_their_reasons(&ours, &theirs)?;
    eprintln!("{missed} were missed");
    let expected =
        "switch waking wakeup irq irq-exit raise softirq softirq-exit vector vector-exit idle hrtimer hrtimer-exit \
                    timer timer-exit work work-end kvm-entry kvm-exit napi upcall";
    for kind in expected.split(' ') {
        ensure!(counts.get(kind).is_some_and(|n: &usize| *n > 0), "no {kind} at all");
    }
    // The recorder and the kernel's tracer read the clock one after the other at the same tracepoint.
    apart.sort_unstable();
    let (median, most) = (apart[apart.len() / 2], apart[apart.len() - 1]);
    eprintln!("their times: {median} ns apart in the median, {most} ns at most, of {}", apart.len());
    rows_are_whole(&window, missed)?;
    the_vcpu_was_in_its_guest(&window, &names)?;
    interrupts_threads_have_names(&window, &names)
}

fn is_there(event: &str) -> bool {
    Path::new("/sys/kernel/tracing/events").join(event).is_dir()
}

fn what_is_missing_is_not_there(recorder: &Recorder) -> Outcome {
    for missing in recorder.missing() {
        eprintln!("missing: {missing}");
    }
    for event in EVENTS {
        let name = event.rsplit('/').next().unwrap_or(event);
        let missing = recorder.missing().iter().any(|missing| missing.tracepoint == name);
        ensure!(missing != is_there(event), "{event}: {missing} said to be missing, and there: {}", is_there(event));
    }
    Ok(())
}

fn lines(said: &BTreeMap<u32, Vec<LoggedEvent>>) -> String {
    let lines =
        said.iter().flat_map(|(cpu, all)| all.iter().map(move |s| format!("{cpu} {} {} {}\n", s.t, s.pid, s.text)));
    lines.collect()
}

/// Expects each exit code to correspond to exactly one of the kernel's names.
fn exits_have_their_reasons(
    ours: &BTreeMap<u32, Vec<LoggedEvent>>,
    theirs: &BTreeMap<u32, Vec<LoggedEvent>>,
) -> Outcome {
    let mut words: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (cpu, ours) in ours {
        let exits = |all: &[LoggedEvent]| all.iter().filter(|s| s.kind() == "kvm-exit").cloned().collect::<Vec<_>>();
        let (a, b) = (exits(ours), exits(theirs.get(cpu).context("a CPU without a trace")?));
        let differ = Differ { ours: &a, theirs: &b };
        for (ours, theirs) in differ.pairs().map_err(|why| anyhow!("kvm-exit: {why}"))? {
            words.entry(ours.more.clone()).or_default().insert(theirs.more.clone());
        }
    }
    eprintln!("why guests were left: {words:?}");
    for (code, known) in [("0x60", "interrupt"), ("0x78", "hlt"), ("0x7b", "io"), ("0x7c", "msr"), ("0x400", "npf")] {
        if let Some(words) = words.get(code) {
            ensure!(words.iter().eq([known]), "{code} is {words:?}, not {known}");
        }
    }
    let all: BTreeSet<&String> = words.values().flatten().collect();
    ensure!(all.len() == words.len(), "codes and words do not go together: {words:?}");
    ensure!(words.contains_key("0x400") || words.contains_key("0x7b"), "the guest did nothing");
    Ok(())
}

fn rows_are_whole(window: &Window, missed: usize) -> Outcome {
    let timeline = Timeline::of(window);
    for cpu in &timeline.cpus {
        ensure!(
            cpu.garbled <= missed as u64 && cpu.missed_switches == 0,
            "{} garbled, {} missed",
            cpu.garbled,
            cpu.missed_switches
        );
        let tiles = cpu.between(window.from, window.to);
        let unknown = tiles.iter().filter(|tile| tile.doing == Doing::Unknown).count();
        ensure!(unknown == 0, "CPU {}: {unknown} times nobody knows", cpu.cpu);
    }
    Ok(())
}

fn the_vcpu_was_in_its_guest(window: &Window, names: &latpath_flight::Names) -> Outcome {
    let timeline = Timeline::of(window);
    let tiles = timeline.cpus.iter().flat_map(|cpu| cpu.between(window.from, window.to));
    let guests: BTreeSet<u32> = tiles
        .filter_map(|tile| match tile.doing {
            Doing::Thread(running) if running.guest => Some(running.pid),
            _ => None,
        })
        .collect();
    let called: Vec<String> = guests.iter().map(|pid| names.of_thread(*pid)).collect();
    let is_vcpu = |name: &String| name.starts_with("CPU 0/KVM (");
    ensure!(!called.is_empty() && called.iter().all(is_vcpu), "in a guest were {called:?}");
    Ok(())
}

/// On PREEMPT_RT interrupts are threads, woken by a minimal handler.
fn interrupts_threads_have_names(window: &Window, names: &latpath_flight::Names) -> Outcome {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let ran = window.cpus.iter().flat_map(|cpu| &cpu.events).filter_map(|event| match event.what {
        EventKind::Switch { next, .. } if next != 0 => Some(next),
        _ => None,
    });
    let ran: BTreeSet<String> = ran.map(|pid| names.of_thread(pid)).collect();
    let nameless: Vec<&String> = ran.iter().filter(|name| name.starts_with("thread ")).collect();
    ensure!(nameless.is_empty(), "threads without a name: {nameless:?}");
    let threaded: Vec<&String> = ran.iter().filter(|name| name.starts_with("irq/")).collect();
    eprintln!("{} threads ran, of interrupts: {threaded:?}", ran.len());
    ensure!(!release.contains("-rt-") || !threaded.is_empty(), "no interrupt has a thread: {ran:?}");
    Ok(())
}
