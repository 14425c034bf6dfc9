//! A bridge with as many taps as a host of 200 VMs has, which floods each frame to all of them: the behaviour of the
//! point table as documented in docs/points.md.

use crate::live::options;
use crate::*;
use latpath_follow::{Live, PointFilter};
use latpath_stats::Summary;
use latpath_testkit::{bench, equal, trial, Lack};
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("each_of_200_taps_counts_and_keeps_its_point_when_it_is_made_again", needs, all_count),
        trial("packets_at_points_beyond_the_kernels_255_are_counted", needs, beyond),
        trial("points_that_two_cpus_announce_at_once_take_one_place_each", needs, at_once),
        trial("a_run_has_64_points_of_200_taps_or_those_that_are_chosen", needs, in_a_run),
    ]
}

const VMS: usize = 200;
/// Points besides those of the route and the taps: the bridge drops its own copy of each frame, and the frame has no
/// reader at the end of the route.
const DROPS: [&str; 3] = ["host/nic-rx@br0", "host/drop@br0", "host/drop@lp-app"];
/// Entries of the kernel's point table.
const IN_KERNEL: usize = 255;
/// Maximum number of points of a run.
const IN_RUN: usize = 64;

fn tap(n: usize) -> String {
    format!("host/tx@vnet{n}")
}

/// Runs `ip` commands, one per line, in the bridge's namespace.
fn ip(bench: &Bench, lines: &str) -> Result<(), Failed> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), lines)?;
    let done = Command::new("ip").args(["-n", bench.path.hypervisor.name(), "-batch"]).arg(file.path()).output()?;
    equal(&String::from_utf8_lossy(&done.stderr), done.status.success(), true)
}

/// Creates the taps of `vms` VMs, like QEMU: closing a tap's file removes the tap.
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

    // All VMs restart. The old devices' entries are released gradually, and the new devices get them.
    drop(vms);
    let _vms = start_vms(&bench, VMS)?;
    let (mut n, mut last) = (FRAMES, Vec::new());
    until("each tap sees a frame again", || {
        let sent = send(&bench, &[bytes(&frame(&stream, n))]);
        n += 1;
        probe.drain(&mut last);
        let taps: std::collections::BTreeSet<u16> = last.iter().map(|s| s.point).collect();
        latpath_testkit::waits::pace(Duration::from_millis(50));
        sent.is_ok() && taps.len() >= VMS + LINE.len()
    })?;
    let again = probe.points();
    // Frames queued in the old taps were dropped with them.
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

/// Sends two frames at the same moment, each from its own CPU.
fn send_at_once(bench: &Bench, frames: [Vec<u8>; 2]) -> Result<(), Failed> {
    let ready = AtomicUsize::new(0);
    let send = |cpu: usize, frame: &[u8]| -> Result<bool, String> {
        let mut set = CpuSet::new();
        // Fails with a single CPU, on which there is no race anyway.
        let _ = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
        let socket = PacketSocket::open(PUBLISHER, Listen::No).map_err(|e| e.to_string());
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < 2 {
            std::hint::spin_loop();
        }
        socket?.send(&[IoSlice::new(frame)]).map(|sent| sent.taken == 1).map_err(|e| e.to_string())
    };
    let (send, frames) = (&send, &frames);
    let sent = bench.path.publisher.inside(|| {
        std::thread::scope(|scope| {
            let [one, other] = [0, 1].map(|cpu| scope.spawn(move || send(cpu, &frames[cpu])));
            [one, other].map(|thread| thread.join().expect("no panic"))
        })
    })?;
    sent.into_iter().try_for_each(|sent| equal("a frame is sent", sent?, true))
}

fn at_once() -> Result<(), Failed> {
    // Each veth pair has a point at each end, and a drop point. Unlike a tap, it has a queue on every CPU.
    const PAIRS: usize = 110;
    let bench = bench()?;
    let mut lines = String::new();
    (0..PAIRS).try_for_each(|n| {
        writeln!(
            lines,
            "link add near{n} type veth peer name far{n}\nlink set far{n} up\nlink set near{n} master br0 up"
        )
    })?;
    ip(&bench, &lines)?;
    let far: Vec<String> = (0..PAIRS).map(|n| format!("far{n}")).collect();
    let has_come = |device: &String| bench.path.hypervisor.counters_of(device).is_ok_and(|c| c.rx_packets > 0);
    until("frames come to each end", || {
        send(&bench, &[bytes(&frame(&own("before"), 0))]).is_ok() && far.iter().all(has_come)
    })?;
    let stream = own("once");
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    send_at_once(&bench, [0, 1].map(|n| bytes(&frame(&stream, n))))?;
    let (mut n, mut seen) = (2, Vec::new());
    until("each place has a point", || {
        let sent = send(&bench, &[bytes(&frame(&stream, n))]);
        n += 1;
        probe.drain(&mut seen);
        let points: std::collections::BTreeSet<u16> = seen.iter().map(|s| s.point).collect();
        sent.is_ok() && points.len() == IN_KERNEL
    })
}

/// Follows some flooded frames at the chosen points; returns their figures.
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
    Ok(live.summary())
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
    // Drops always count, since they show where packets are lost.
    points.retain(|point| !DROPS.contains(&point.as_str()));
    points.sort_unstable();
    equal("points", points, chosen.map(String::from).to_vec())?;
    equal("journeys", (some.journeys, note(&some)), (100, None))?;
    let counts: Vec<u64> = some.segments.iter().map(|segment| segment.times.count).collect();
    equal("each is seen at all of them", counts.iter().all(|count| *count == 100) && !counts.is_empty(), true)?;
    let without = some.notes.iter().filter(|note| note.contains("no room in the kernel's table")).count();
    equal("a note of packets at no point", without, 0)
}
