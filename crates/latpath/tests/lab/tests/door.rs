//! The guest's door (`--door`). With an agent in the guest, each packet to the guest is first read by vhost, then
//! announced, then a vCPU runs in the guest, and finally the guest sees the packet, unless it polls while the interrupt
//! arrives. A packet from the guest is sent before its kick, and vhost takes it after the kick. Without an agent,
//! faults that delay packets on their way into the guest are found.

use crate::{
    blame,
    fault::Injection,
    faults::{all, on_host, pin, record_during, vm, THRESHOLD},
    group::Group,
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_lab::{NicService, Switch, GUEST_DEVICE, NIC, TAP};
use latpath_linux::monotonic;
use latpath_model::{Ns, PointId};
use latpath_run::{Run, Select};
use latpath_testkit::waits::fault_for;
use latpath_vms::Role;
use std::{path::Path, time::Duration};

/// A test of the guest's door on one path.
const fn way(name: &'static str, run: fn(&Scale) -> Outcome) -> Test {
    Test { name, smoke: false, only_whole: false, seconds: 300, run }
}

pub const MACVTAP: Test = way("door_macvtap", |scale| served(scale, Switch::Macvtap, NicService::Default));
pub const MACVTAP_QEMU: Test = way("door_macvtap_qemu", |scale| served(scale, Switch::Macvtap, NicService::Qemu));
pub const VHOST: Test = way("door_tap", |scale| served(scale, Switch::LinuxBridge, NicService::Default));
pub const RELAYED: Test = way("door_tap_relayed", |scale| served(scale, Switch::LinuxBridge, NicService::Relayed));
pub const QEMU: Test = way("door_tap_qemu", |scale| served(scale, Switch::LinuxBridge, NicService::Qemu));
pub const FAULTS: Test = Test { name: "door_faults", smoke: false, only_whole: true, seconds: 900, run: faults };

/// Number of times that the guest halts while packets wait.
const HALTS: u32 = 32;
/// Maximum number of packets that may lack a time at the door because no interrupt of their queue has been seen yet.
const FIRST: u64 = 50;

/// Frames per second that an emulated guest can receive continuously.
fn rate(service: NicService) -> u64 {
    match service {
        NicService::Qemu => 400,
        _ => 1_000,
    }
}

fn served(scale: &Scale, switch: Switch, service: NicService) -> Outcome {
    let mut stage = Stage::lay(switch)?;
    stage.service = service;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", scale.frames(4_000, 40_000)).rate(rate(service));
    stage.subscribe(&stream)?;
    let recording = stage.record(&stream, "--door")?;
    stage.publish(&stream)?;
    stage.wait_for_quiet()?;
    let run = recording.run().clone();
    let report = recording.end(&stage)?;
    stage.unsubscribe()?;
    eprintln!("{switch:?}, {service:?}: {}", report.in_short());
    eprintln!("{:?}", report.figures().notes.iter().filter(|note| note.starts_with("--door")).collect::<Vec<_>>());
    report.expect_no_sighting_lost()?;
    ensure!(report.lost() == 0, "packets were lost: {}", report.in_short());
    let door = ["host/vm-read@", "host/door-signal@", "host/door-enter@"].map(|place| format!("{place}{TAP}"));
    report.expect_route(&[
        &format!("host/nic-rx@{NIC}"),
        &door[0],
        &door[2],
        &format!("guest0/nic-rx@{GUEST_DEVICE}"),
        "guest0/app-read@relay",
    ])?;
    let Counts { packets, signalled, entered, shared, polled } = expect_order(&run, &door)?;
    eprintln!(
        "{packets} packets: {signalled} with an interrupt, {shared} of them shared, {entered} in the guest; {polled} seen \
         before it had the interrupt"
    );
    ensure!(polled * 50 <= packets, "{polled} of {packets} were seen before the guest had the interrupt");
    ensure!(packets == stream.frames && entered + FIRST >= packets, "{entered} of {packets} in the guest");
    ensure!(signalled * 10 >= packets, "{signalled} of {packets} with an interrupt");
    from_guest(&mut stage, scale, switch, service)
}

/// A stream that the guest sends.
fn from_guest(stage: &mut Stage, scale: &Scale, switch: Switch, service: NicService) -> Outcome {
    let stream = Stream::sv("OUT", scale.frames(2_000, 20_000)).rate(rate(service));
    let recording = stage.record(&stream, "--door")?;
    let (rate, frames) = (stream.rate, stream.frames);
    let words = format!("latpath publish -i {GUEST_DEVICE} --svid OUT --rate {rate} --count {frames}");
    stage.guest()?.run(&words, Duration::from_secs(120 + 3 * frames / rate), &|| false)?;
    stage.wait_for_quiet()?;
    let run = recording.run().clone();
    let report = recording.end(stage)?;
    eprintln!("{switch:?}, {service:?}, from the guest: {}", report.in_short());
    let places = ["guest0/tx@", "host/door-kick@", "host/vm-write@"].map(|kind| match kind.starts_with("guest0") {
        true => format!("{kind}{GUEST_DEVICE}"),
        false => format!("{kind}{TAP}"),
    });
    report.expect_route(&[&places[0], &places[2], &format!("host/tx@{NIC}")])?;
    report.expect_no_sighting_lost()?;
    let never_seen: u64 = report.figures().streams.iter().map(|stream| stream.never_seen).sum();
    ensure!(report.lost() == 0 && never_seen == 0, "{never_seen} never seen: {}", report.in_short());
    let run = Run::open(&run)?;
    let bound = bound_of(&run);
    let [sent, kick, write] = [0, 1, 2].map(|at: usize| point(&run, &places[at]));
    let (sent, write) = (sent?, write?);
    if service == NicService::Qemu {
        ensure!(kick.is_err(), "kicks are joined to packets of vhost only");
        return Ok(());
    }
    let (kick, mut kicked, mut wrong) = (kick?, 0, Vec::new());
    run.for_each(&Select::default(), |j| {
        kicked += u64::from(j.at(kick).is_some());
        let steps = [j.at(sent).map(|t| t - bound), j.at(kick), j.at(write)];
        if !steps.iter().flatten().is_sorted() {
            wrong.push((j.number, steps));
        }
        true
    });
    eprintln!("{kicked} of {frames} packets by their own kick");
    ensure!(wrong.is_empty(), "{} packets out of order, the first: {:?}", wrong.len(), wrong[0]);
    ensure!(kicked * 20 >= frames, "{kicked} of {frames} with a kick");
    Ok(())
}

fn point(run: &Run, name: &str) -> Result<PointId> {
    let at = run.points().iter().position(|info| info.point.to_string() == name);
    at.map(|at| at as PointId).with_context(|| format!("no point {name}"))
}

/// The error bound of the guest's clock, ns.
fn bound_of(run: &Run) -> Ns {
    run.manifest().machines.iter().map(|m| m.clock.error_bound_ns).max().unwrap_or(0)
}

#[derive(Default)]
struct Counts {
    packets: u64,
    signalled: u64,
    entered: u64,
    shared: u64,
    /// Number of packets that the guest saw before their interrupt: when a guest stops polling, it checks its queue
    /// again.
    polled: u64,
}

/// Expects each packet's times to be in the order of its route, within the error bound of the guest's clock.
fn expect_order(run: &Path, door: &[String; 3]) -> Result<Counts> {
    let run = Run::open(run)?;
    let [read, signal, enter] = [point(&run, &door[0])?, point(&run, &door[1])?, point(&run, &door[2])?];
    let guest = point(&run, &format!("guest0/nic-rx@{GUEST_DEVICE}"))?;
    let bound = bound_of(&run);
    let (mut counts, mut wrong, mut last) = (Counts::default(), Vec::new(), [None; 2]);
    run.for_each(&Select::default(), |j| {
        let at = |point| j.at(point);
        let (signalled, entered) = (at(signal), at(enter));
        counts.packets += 1;
        counts.signalled += u64::from(signalled.is_some());
        counts.shared += u64::from(signalled.is_some() && signalled == last[0]);
        counts.entered += u64::from(entered.is_some());
        if signalled.is_some() {
            last = [signalled, entered];
        }
        let seen = at(guest).map(|t| t + bound);
        let steps: [Option<Ns>; 4] = [at(read), signalled, entered, seen];
        // The packet has its own interrupt, or an earlier one that was still pending.
        let has_interrupt = signalled.is_some() || entered.is_some() && entered == last[1];
        counts.polled += u64::from(has_interrupt && seen < entered);
        let is_wrong = seen < at(read) || !has_interrupt && seen < entered;
        if is_wrong || !steps[..3].iter().flatten().is_sorted() {
            wrong.push((j.number, steps));
        }
        true
    });
    ensure!(wrong.is_empty(), "{} of {} packets out of order, the first: {:?}", wrong.len(), counts.packets, wrong[0]);
    Ok(counts)
}

/// Three faults: the guest's threads are not allowed to run; the guest halts while packets wait that it polls for
/// later; QEMU, which relays the interrupts, gets no CPU. (A hog on the vCPU's CPU crashes an emulated guest.)
fn faults(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest()?;
    stage.without_agent = true;
    let guest = vm()?;
    let mut outcomes = Vec::new();
    let (seen, truth) =
        record_during(&mut stage, THRESHOLD, |stage| on_host(stage, &format!("stop pid={}", guest.pid)))?;
    outcomes.push(seen.expect(&truth, &blame::STOP));
    let (seen, truth) = record_during(&mut stage, THRESHOLD, halts)?;
    outcomes.push(seen.expect(&truth, &blame::HALT));
    let group = Group::new()?;
    group.take(guest.pid as i32)?;
    let words = format!("throttle group={}", group.path().display());
    let (seen, truth) = record_during(&mut stage, THRESHOLD, |stage| on_host(stage, &words))?;
    outcomes.push(seen.expect(&truth, &blame::THROTTLE));
    drop((group, stage));

    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.service = NicService::Relayed;
    stage.boot_guest()?;
    stage.without_agent = true;
    let guest = vm()?;
    pin(&guest, Role::Vcpu, 0)?;
    pin(&guest, Role::MainLoop, 1)?;
    let (seen, truth) = record_during(&mut stage, THRESHOLD, |stage| on_host(stage, "hog cpu=1 fifo=50"))?;
    outcomes.push(seen.expect(&truth, &blame::HOG));
    all(outcomes)
}

/// Makes the guest's driver poll its queue by a timer instead of using interrupts, so that the guest halts in between.
fn halts(stage: &mut Stage) -> Result<Vec<Injection>> {
    let device = format!("/sys/class/net/{GUEST_DEVICE}");
    let defer = |polls: u32, timeout: u32| {
        format!("echo {timeout} > {device}/gro_flush_timeout; echo {polls} > {device}/napi_defer_hard_irqs")
    };
    let words = format!("{}; sleep 1; {}", defer(1_000, 150_000_000), defer(0, 0));
    let mut injections = Vec::new();
    for _ in 0..HALTS {
        fault_for(Duration::from_millis(300));
        let begin = monotonic();
        stage.guest()?.run(&words, Duration::from_secs(60), &|| false)?;
        injections.push(Injection::whole(begin, monotonic()));
    }
    Ok(injections)
}
