//! A stream from a virtual machine on one hypervisor over the wire to a virtual machine on another, where both the
//! hypervisor and the guest have agents: every packet's journey is joined, and the clocks' error bounds hold.
//!
//! ```text
//!  guest0 ── vhost ── vnet0 ── br0 ── nic0 ──wire── nic1 ── br0 ── vnet1 ── vhost ── guest1: subscribe
//!  └──────────── host: record ────────────┘         └──────────── b: agent ───────────────────┘
//! ```
//!
//! Both hypervisors are namespaces of one kernel, so the true difference between their `CLOCK_MONOTONIC` is zero; b's
//! agent has another boot ID. The clock of b's guest is related to b's by ptp_kvm. Each recorder sees the devices of
//! both hypervisors, which therefore have different names.

use crate::{
    expect::Report,
    faults::pin,
    stage::{agent_of_another_machine, keep, plain, Reach, Stage, Stream, PORT, RELAY},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_lab::{Switch, BRIDGE, GUEST_DEVICE, NIC, TAP};
use latpath_model::Ns;
use latpath_run::{Run, Select};
use latpath_testkit::{
    latpath,
    waits::{fault_for, until_within},
};
use latpath_vms::Role;
use std::{path::Path, time::Duration};

pub const TEST: Test = Test { name: "two_hypervisors", smoke: false, only_whole: false, seconds: 1500, run };

const PATIENCE: Duration = Duration::from_secs(120);
const NEVER: &dyn Fn() -> bool = &|| false;
/// Name and vsock context ID of b's guest.
const FAR_GUEST: (&str, u32) = ("guest1", 43);
/// b's NIC and tap.
const FAR_NIC: &str = "nic1";
const FAR_TAP: &str = "vnet1";

fn run(scale: &Scale) -> Outcome {
    let mut near = Stage::lay(Switch::LinuxBridge)?;
    let mut far = Stage::lay(Switch::LinuxBridge)?;
    far.identity = FAR_GUEST;
    connect(&near, &far)?;
    near.boot_guest_reached_by(Reach::Vsock)?;
    far.boot_guest_reached_by(Reach::Vsock)?;
    let space = &far.path().hypervisor;
    // Before Linux 6.2, a device has to be down to be renamed.
    for words in [format!("{TAP} down"), format!("{TAP} name {FAR_TAP}"), format!("{FAR_TAP} up")] {
        space.ip(&format!("link set {words}"))?;
    }
    // Each guest has a CPU to itself.
    for (cpu, vm) in latpath_vms::find()?.vms.iter().enumerate() {
        pin(vm, Role::Vcpu, cpu)?;
    }
    // Ten minutes at full length.
    let stream = Stream::sv("MU01", scale.frames(4_000, 60_000)).rate(100);
    far.subscribe(&stream)?;

    let run = Path::new("/tmp/latpath-lab-two-hypervisors");
    let _ = std::fs::remove_dir_all(run);
    let mut record = latpath("record --no-flight --window 3s");
    record.args(["--stream", &stream.spec(), "--points"]);
    record.arg(format!("host/*@{TAP},host/*@{NIC},b/*@{FAR_TAP},b/*@{FAR_NIC},guest0/*,guest1/*"));
    for machine in machines(&near, &far)? {
        record.args(["--machine", &machine]);
    }
    record.arg("-o").arg(run);
    let mut recording = near.start_command(&near.path().hypervisor, record)?;
    until_within(PATIENCE, "the recording has begun", || Run::open(run).is_ok() || !recording.runs()).map_err(plain)?;
    ensure!(recording.runs(), "the recording ended: {}", recording.said());

    let (rate, frames) = (stream.rate, stream.frames);
    let words = format!("latpath publish -i {GUEST_DEVICE} --svid MU01 --rate {rate} --count {frames}");
    near.guest()?.run(&words, PATIENCE + Duration::from_secs(3 * frames / rate), NEVER)?;
    far.wait_for_quiet()?;
    fault_for(Duration::from_secs(3));
    recording.interrupt();
    let ended = recording.finish(PATIENCE).map_err(plain)?;
    eprintln!("{}", ended.stderr.trim());
    ensure!(ended.code == Some(0), "the recording: {}", ended.stderr);
    let received = far.unsubscribe()?;
    keep(run)?;

    let report = Report::parse(&near.latpath(&format!("report {} --json", run.display()))?)?;
    eprintln!("received {}, {}", received.received, report.in_short());
    let machines = &report.figures().machines;
    for machine in machines {
        eprintln!("{machine:?}");
        ensure!(machine.fault.is_none(), "a clock has a fault: {machine:?}");
        ensure!(machine.causality_violations == 0, "a time contradicts causality: {machine:?}");
    }
    let far = machines.iter().find(|machine| machine.machine == FAR_GUEST.0).context("no clock of b's guest")?;
    ensure!(far.hypervisor.as_deref() == Some("b"), "guest of {:?}", far.hypervisor);
    report.expect_all_complete(frames)?;
    report.expect_no_sighting_lost()?;
    let route = route();
    report.expect_route(&route.iter().map(String::as_str).collect::<Vec<_>>())?;
    expect_bounds(run, &route)
}

/// Replaces the cables to the publishers with one between the two hypervisors.
fn connect(near: &Stage, far: &Stage) -> Outcome {
    let ends = [(near, NIC), (far, FAR_NIC)].map(|(stage, nic)| (&stage.path().hypervisor, nic));
    for (space, _) in ends {
        space.ip(&format!("link delete {NIC}"))?;
    }
    let [(space, _), (other, _)] = ends;
    space.ip(&format!("link add {NIC} type veth peer name {FAR_NIC} netns {}", other.name()))?;
    for (space, nic) in ends {
        space.ip(&format!("link set {nic} master {BRIDGE} up"))?;
    }
    Ok(())
}

/// The machines of the recording: the near guest, the other hypervisor, and its guest.
fn machines(near: &Stage, far: &Stage) -> Result<[String; 3]> {
    let agent = agent_of_another_machine(&far.path().hypervisor, "")?;
    let [near, far] = [near, far].map(|stage| stage.identity);
    Ok([
        format!("{}=vsock:{}:{PORT}", near.0, near.1),
        format!("b={agent}"),
        format!("{}@b=vsock:{}:{PORT}", far.0, far.1),
    ])
}

fn route() -> [String; 8] {
    [
        format!("guest0/tx@{GUEST_DEVICE}"),
        format!("host/vm-write@{TAP}"),
        format!("host/tx@{NIC}"),
        format!("b/nic-rx@{FAR_NIC}"),
        format!("b/tx@{FAR_TAP}"),
        format!("b/vm-read@{FAR_TAP}"),
        format!("guest1/nic-rx@{GUEST_DEVICE}"),
        format!("guest1/app-read@{RELAY}"),
    ]
}

/// Expects that no packet arrives before it was sent, by more than the clocks' bounds, and that the offset of b's
/// clock, which is truly zero, is always within its bound.
fn expect_bounds(run: &Path, route: &[String]) -> Outcome {
    let run = Run::open(run)?;
    let manifest = run.manifest();
    let at = |name: &String| run.points().iter().position(|info| info.point.to_string() == *name);
    let points: Vec<u16> = route.iter().filter_map(at).map(|at| at as u16).collect();
    ensure!(points.len() == route.len(), "points: {:?}", run.points());
    let bound = |point: u16| -> Ns {
        let machine = &run.points()[usize::from(point)].point.machine;
        let clock = manifest.machines.iter().map(|machine| &machine.clock).find(|clock| clock.machine == *machine);
        clock.map_or(0, |clock| clock.error_bound_ns)
    };
    let (mut journeys, mut wrong, mut least) = (0_u64, Vec::new(), Ns::MAX);
    run.for_each(&Select::default(), |journey| {
        journeys += 1;
        let times: Vec<Option<Ns>> = points.iter().map(|point| journey.at(*point)).collect();
        for (step, pair) in times.windows(2).enumerate() {
            let Some(time) = pair[1].zip(pair[0]).map(|(to, from)| to - from) else {
                wrong.push((journey.number, step, None));
                continue;
            };
            least = least.min(time);
            if time < -(bound(points[step]) + bound(points[step + 1])) {
                wrong.push((journey.number, step, Some(time)));
            }
        }
        true
    });
    let (mut samples, mut beyond, mut widest) = (0_u64, 0_u64, 0);
    run.for_each_clock_sample(|sample| {
        if sample.clock == "b" {
            samples += 1;
            widest = widest.max(sample.error_bound_ns);
            beyond += u64::from(sample.offset_ns.abs() > sample.error_bound_ns);
        }
    })?;
    eprintln!(
        "{journeys} journeys, shortest step {least} ns; {beyond} of {samples} offsets of b beyond their bounds ({widest} ns at most)"
    );
    ensure!(wrong.is_empty(), "{} steps are out of order, the first: {:?}", wrong.len(), wrong[0]);
    ensure!(samples > 0 && beyond == 0, "{beyond} of {samples} offsets of b beyond their bounds");
    Ok(())
}
