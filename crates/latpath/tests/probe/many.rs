//! A bridge with as many taps as a host of 200 VMs has, which floods each frame to all of them: what docs/points.md says of the table of
//! points.

use crate::live::options;
use crate::*;
use latpath_follow::{Live, PointFilter};
use latpath_stats::Summary;
use latpath_testkit::{bench, equal, trial, Lack};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("each_of_200_taps_counts_and_keeps_its_point_when_it_is_made_again", needs, all_count),
        trial("packets_at_points_beyond_the_kernels_255_are_counted", needs, beyond),
        trial("a_run_has_64_points_of_200_taps_or_those_that_are_chosen", needs, in_a_run),
    ]
}

const VMS: usize = 200;
/// Places beside the line's and the taps': the bridge drops its own copy of each frame, and nobody reads at the end of the line.
const DROPS: [&str; 3] = ["host/nic-rx@br0", "host/drop@br0", "host/drop@lp-app"];
/// Places in the kernel's table.
const IN_KERNEL: usize = 255;
/// Places in a run.
const IN_RUN: usize = 64;

fn tap(n: usize) -> String {
    format!("host/tx@vnet{n}")
}

/// Has `ip` do as much as a file says, in the namespace of the bridge.
fn ip(bench: &Bench, lines: &str) -> Result<(), Failed> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), lines)?;
    let done = Command::new("ip").args(["-n", bench.path.hypervisor.name(), "-batch"]).arg(file.path()).output()?;
    equal(&String::from_utf8_lossy(&done.stderr), done.status.success(), true)
}

/// Taps of so many VMs, as QEMU has them: each goes with its file.
fn start_vms(bench: &Bench, vms: usize) -> Result<Vec<fs::File>, Failed> {
    let tap = |n: usize| taps::open(Path::new("/dev/net/tun"), &format!("vnet{n}"));
    let taps = bench.path.hypervisor.inside(|| (0..vms).map(tap).collect::<Result<Vec<_>, Failed>>())??;
    let mut lines = String::new();
    (0..vms).try_for_each(|n| writeln!(lines, "link set vnet{n} master br0 up"))?;
    ip(bench, &lines)?;
    Ok(taps)
}

fn all_count() -> Result<(), Failed> {
    const FRAMES: u16 = 20;
    let bench = bench()?;
    let vms = start_vms(&bench, VMS)?;
    let stream = own("each");
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    send(&bench, &(0..FRAMES).map(|n| bytes(&frame(&stream, n))).collect::<Vec<_>>())?;
    let mut seen = Vec::new();
    until("the last tap has seen the last frame", || {
        probe.drain(&mut seen);
        seen.len() >= usize::from(FRAMES) * (VMS + LINE.len())
    })?;
    let expected: Vec<u32> = (0..FRAMES.into()).collect();
    let points = probe.points();
    let keys = |points: &[PointInfo], seen: &[Sighting], name: &str| -> Vec<u32> {
        let is = |s: &&Sighting| points[usize::from(s.point)].point.to_string() == name;
        seen.iter().filter(is).map(|s| s.key).collect()
    };
    for name in (0..VMS).map(tap).chain(LINE.map(String::from)) {
        equal(&name, keys(&points, &seen, &name), expected.clone())?;
    }
    equal("packets at no point", probe.counters().points_overflow, 0)?;

    // All VMs start again. The old devices' places come free some at a time, and the new devices get them.
    drop(vms);
    let _vms = start_vms(&bench, VMS)?;
    let (mut n, mut last) = (FRAMES, Vec::new());
    until("each tap sees a frame again", || {
        let sent = send(&bench, &[bytes(&frame(&stream, n))]);
        n += 1;
        probe.drain(&mut last);
        let taps: std::collections::BTreeSet<u16> = last.iter().map(|s| s.point).collect();
        std::thread::sleep(Duration::from_millis(50));
        sent.is_ok() && taps.len() >= VMS + LINE.len()
    })?;
    let again = probe.points();
    // What lay in the old taps was dropped with them.
    let is_passed = |p: &&PointInfo| p.point.kind != latpath_model::PointKind::Drop;
    let names = |points: &[PointInfo]| points.iter().filter(is_passed).map(|p| p.point.to_string()).collect::<Vec<_>>();
    equal("the points are the same", names(&again), names(&points))
}

fn beyond() -> Result<(), Failed> {
    const FRAMES: u16 = 10;
    let bench = bench()?;
    let vms = IN_KERNEL + 25;
    let _vms = start_vms(&bench, vms)?;
    let stream = own("beyond");
    let probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    send(&bench, &(0..FRAMES).map(|n| bytes(&frame(&stream, n))).collect::<Vec<_>>())?;
    let seen = seen(&bench, probe, |seen| seen.sightings.len() >= IN_KERNEL * usize::from(FRAMES))?;
    let keys = seen.keys();
    equal("points that saw frames", keys.len(), IN_KERNEL)?;
    equal(
        "of these, all saw all frames",
        keys.values().filter(|of| of.len() == usize::from(FRAMES)).count(),
        IN_KERNEL,
    )?;
    let without = (vms + LINE.len() + DROPS.len() - IN_KERNEL) as u64;
    equal("packets at points without a place", seen.counters.points_overflow, without * u64::from(FRAMES))
}

/// The figures of some frames that were flooded.
fn follow(bench: &Bench, chosen: &[&str]) -> Result<Summary, Failed> {
    let stream = own("run");
    let mut options = options(&stream);
    options.points = PointFilter::new(chosen.iter().map(ToString::to_string).collect());
    let mut live = Live::start(options)?;
    until("packets count", || latpath_linux::monotonic() > live.follow.begin())?;
    send(bench, &(0..100).map(|n| bytes(&frame(&stream, n))).collect::<Vec<_>>())?;
    until("all packets are counted", || {
        live.step();
        live.seen()[0] >= 100
    })?;
    live.stop();
    Ok(live.final_summary())
}

fn in_a_run() -> Result<(), Failed> {
    let bench = bench()?;
    let _vms = start_vms(&bench, VMS)?;
    let of = |summary: &Summary| summary.points.iter().chain(&summary.off_route).map(ToString::to_string).collect();
    let note = |summary: &Summary| {
        let is = |note: &&String| note.contains("points beyond the 64 that a run can have were left out");
        summary.notes.iter().find(is).cloned()
    };
    let all = follow(&bench, &[])?;
    let points: Vec<String> = of(&all);
    equal("points", points.len(), IN_RUN)?;
    let left_out = VMS + LINE.len() + DROPS.len() - IN_RUN;
    let said = note(&all).ok_or("no note of the others")?;
    equal(&said, said.starts_with(&format!("{left_out} points ")) && said.contains("--points"), true)?;

    let chosen = [LINE[1], "host/tx@vnet199", "host/tx@vnet7"];
    let some = follow(&bench, &chosen)?;
    let mut points: Vec<String> = of(&some);
    // Drops count always: they say where packets are lost.
    points.retain(|point| !DROPS.contains(&point.as_str()));
    points.sort_unstable();
    equal("points", points, chosen.map(String::from).to_vec())?;
    equal("journeys", (some.journeys, note(&some)), (100, None))?;
    let counts: Vec<u64> = some.segments.iter().map(|segment| segment.times.count).collect();
    equal("each is seen at all of them", counts.iter().all(|count| *count == 100) && !counts.is_empty(), true)?;
    let without = some.notes.iter().filter(|note| note.contains("no room in the kernel's table")).count();
    equal("a note of packets at no point", without, 0)
}
