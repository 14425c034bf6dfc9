//! `latpath demo` as a newcomer runs it: every frame has a journey, counts equal the kernel's, segments add up, and
//! nothing remains afterwards.

use latpath_lab::PUBLISHER;
use latpath_report::{demo::DemoDocument, Report};
use latpath_stats::SegmentFigures;
use latpath_testkit::waits::{until, until_within};
use latpath_testkit::Failed;
use latpath_testkit::{latpath, need_btf, need_guest, need_lab, trial};
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Child, ExitCode, Stdio},
    time::Duration,
};

fn main() -> ExitCode {
    let host = [need_lab(), need_btf()];
    let guest = [need_lab(), need_btf(), need_guest()];
    latpath_testkit::main(vec![
        trial("without_a_guest_every_frame_has_a_complete_journey", &host, without_guest).side_by_side(),
        trial("several_streams_are_followed_at_once", &host, several_streams).side_by_side(),
        trial("two_demos_at_once_do_not_see_each_other", &host, two_at_once).side_by_side(),
        trial("after_an_interrupt_the_results_so_far_are_shown_and_nothing_is_left", &host, interrupted).side_by_side(),
        trial("what_a_killed_demo_leaves_the_next_one_removes", &host, killed),
        trial("every_frame_is_followed_into_the_guest", &guest, into_the_guest).in_lab(),
        trial("a_guest_that_dies_leaves_a_run_that_says_so", &guest, guest_dies).in_lab(),
    ])
}

/// Waits for the demo, makes the checks that hold for every demo, and returns its output.
fn shown(child: Child) -> Result<DemoDocument, Failed> {
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let stdout = String::from_utf8_lossy(&output.stdout);
        return Err(format!("{}: {said}\n{stdout}", output.status).into());
    }
    let printed: Value = serde_json::from_slice(&output.stdout)?;
    let shown: DemoDocument = serde_json::from_slice(&output.stdout)?;
    assert_eq!(serde_json::to_value(&shown)?, printed, "read and printed again");
    assert!(!shown.demo.checks.is_empty());
    for check in &shown.demo.checks {
        assert_eq!(Some(check.kernel), check.latpath, "{check:?}");
    }
    let summary = &shown.report.summary;
    assert_eq!((summary.tool.sightings_dropped, summary.malformed), (0, 0));
    Ok(shown)
}

/// A window longer than the time for which a busy machine keeps a process from running, and a frame rate at which
/// smpCnt does not wrap within it.
const PATIENT: &str = "--window 4s --rate 900";

fn start(words: &str) -> Result<Child, Failed> {
    Ok(latpath(&format!("demo --json {PATIENT} {words}")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

fn sent(shown: &DemoDocument) -> u64 {
    shown.demo.published["frames_sent"].as_u64().unwrap_or(0)
}

/// The number of frames sent, which equals the number due unless the publisher reports that it fell behind.
fn all_sent(shown: &DemoDocument, due: u64) -> u64 {
    let (sent, gave_up) = (sent(shown), &shown.demo.published["gave_up"]);
    assert!(sent == due || *gave_up == true && 0 < sent && sent < due, "{sent} of {due} frames");
    sent
}

fn lost(shown: &DemoDocument) -> u64 {
    shown.report.summary.lost.iter().map(|lost| lost.count).sum()
}

fn without_guest() -> Result<(), Failed> {
    let shown = shown(start("--no-guest --duration 3s")?)?;
    let sent = all_sent(&shown, 2_700);
    let summary = &shown.report.summary;
    assert_eq!((summary.journeys, summary.complete, lost(&shown)), (sent, sent, 0));
    adds_up(&summary.segments)
}

/// Checks that the segments are contiguous, that each has the total's count, and that their means add up to the
/// total's.
fn adds_up(segments: &[SegmentFigures]) -> Result<(), Failed> {
    let total = segments.iter().find(|s| s.name == "total").ok_or("no total")?;
    let (mut at, mut mean) = (&total.from, 0);
    let parts: Vec<&SegmentFigures> = segments.iter().filter(|s| s.name != "total").collect();
    while *at != total.to {
        let next = parts.iter().find(|s| s.from == *at).ok_or_else(|| format!("no segment goes on from {at}"))?;
        assert_eq!(next.times.count, total.times.count, "{}", next.name);
        mean += next.times.mean_ns;
        at = &next.to;
    }
    // Each mean is rounded to 1 ns.
    let off = (mean - total.times.mean_ns).unsigned_abs();
    assert!(off <= parts.len() as u64, "the means differ by {off} ns from the total's");
    Ok(())
}

fn several_streams() -> Result<(), Failed> {
    let shown = shown(start("--no-guest --duration 2s --streams 3")?)?;
    let sent = all_sent(&shown, 5_400);
    let summary = &shown.report.summary;
    assert_eq!(summary.complete, sent);
    let streams = &summary.streams;
    assert!(streams.len() == 3 && streams.iter().all(|s| s.complete == sent / 3), "{streams:#?}");
    Ok(())
}

fn two_at_once() -> Result<(), Failed> {
    let both = [start("--no-guest --duration 2s")?, start("--no-guest --duration 2s")?];
    for child in both {
        let shown = shown(child)?;
        let sent = all_sent(&shown, 1_800);
        let summary = &shown.report.summary;
        assert_eq!((summary.journeys, summary.complete), (sent, sent));
    }
    Ok(())
}

fn interrupted() -> Result<(), Failed> {
    let demo = start("--no-guest --duration 1000s")?;
    let (pid, namespaces) = (demo.id(), namespaces_of(demo.id()));
    until("frames", || sends(pid))?;
    assert!(namespaces() > 0);
    kill(Pid::from_raw(pid as i32), Signal::SIGINT)?;
    let shown = shown(demo)?;
    assert!(sent(&shown) > 0 && shown.report.summary.complete == sent(&shown));
    assert_eq!((namespaces(), folders(pid)), (0, 0));
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let mut demo = start("--no-guest --duration 1000s")?;
    let (pid, namespaces) = (demo.id(), namespaces_of(demo.id()));
    until("frames", || sends(pid))?;
    let children = children(pid);
    demo.kill()?;
    demo.wait()?;
    assert!(namespaces() > 0 && folders(pid) > 0, "there is nothing to clean up");
    until("the end of its processes", || children.iter().all(|c| !Path::new("/proc").join(c).exists()))?;
    shown(start("--no-guest --duration 1s")?)?;
    assert_eq!((namespaces(), folders(pid)), (0, 0));
    Ok(())
}

fn into_the_guest() -> Result<(), Failed> {
    let shown = shown(start("--duration 5s")?)?;
    let sent = all_sent(&shown, 4_500);
    let summary = &shown.report.summary;
    assert_eq!(summary.journeys, sent);
    // An emulated guest may lose frames at its tap. Each must be reported as lost; none may merely lack a sighting.
    assert_eq!(summary.complete + lost(&shown), sent);
    let guest = summary.machines.iter().find(|m| m.machine == "guest0");
    assert!(guest.is_some_and(|m| m.error_bound_ns > 0), "{guest:?}");
    adds_up(&summary.segments)
}

fn guest_dies() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = folder.path().join("run");
    let mut demo = start(&format!("--duration 1000s -o {}", run.display()))?;
    let pid = demo.id();
    // Maximum wait, for a guest emulated on a busy machine.
    let patience = Duration::from_secs(300);
    let waited = until_within(patience, "the guest is there", || sends(pid) || !matches!(demo.try_wait(), Ok(None)));
    let report = || -> Option<Report> {
        let output = latpath(&format!("report {} --json", run.display())).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    };
    let arrive = || {
        // Checks infrequently, since the guest needs the CPUs.
        latpath_testkit::waits::pace(Duration::from_millis(500));
        report().is_some_and(|shown| shown.summary.complete > 1000)
    };
    let ended = |demo: &mut Child| !matches!(demo.try_wait(), Ok(None));
    let waited = waited.and_then(|()| until_within(patience, "packets arrive", || arrive() || ended(&mut demo)));
    if waited.is_err() || ended(&mut demo) {
        demo.kill()?;
        let said = demo.wait_with_output()?.stderr;
        return Err(format!("{waited:?}: {}", String::from_utf8_lossy(&said)).into());
    }
    let is_qemu = |child: &&String| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.starts_with("qemu-system"))
    };
    let children = children(pid);
    let qemu = children.iter().find(is_qemu).ok_or("no QEMU among the demo's processes")?;
    kill(Pid::from_raw(qemu.parse()?), Signal::SIGKILL)?;
    let output = demo.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("guest0 ended while frames were on their way") && said.contains("signal: 9"), "{said}");
    let shown = report().ok_or("no report")?;
    assert_eq!(shown.run.state, "finished");
    assert!(shown.summary.complete > 1000, "{}", shown.summary.complete);
    let guest = shown.summary.machines.iter().find(|m| m.machine == "guest0");
    assert!(guest.is_some_and(|m| m.fault.is_some()), "the report says that guest0 went: {guest:?}");
    Ok(())
}

/// Counts the network namespaces created by a demo.
fn namespaces_of(pid: u32) -> impl Fn() -> usize {
    move || named(Path::new("/run/netns"), pid)
}

fn folders(pid: u32) -> usize {
    named(Path::new("/run/latpath"), pid)
}

fn named(folder: &Path, pid: u32) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with(&format!("latpath-{pid}-"))).count()
}

fn children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    lists.flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Whether the demo's publisher has sent some frames.
fn sends(pid: u32) -> bool {
    let line = |child: &String| fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
    let children = children(pid);
    let publisher = children.iter().find(|c| line(c).split('\0').nth(1) == Some("publish"));
    publisher.and_then(|p| p.parse().ok()).is_some_and(|p| latpath_testkit::waits::sent(p, PUBLISHER) > 100)
}
