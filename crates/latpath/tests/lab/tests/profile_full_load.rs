//! A guest without idle time: loops of normal priority on every vCPU, and one of real-time priority. The agent still
//! delivers its samples, which show each loop's share of the guest's time.

use super::profile::{first_numbers, has_function, in_guests, in_short, of_process, pids_of, schedstats, watch};
use crate::{
    stage::{Reach, Stage, GUEST},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
use latpath_linux::proc::{Root, Stat};
use latpath_model::Observation;
use latpath_observe::profile::ProfileFigures;
use latpath_testkit::busy;
use latpath_vms::Role;
use std::path::Path;

pub const TEST: Test = Test { name: "profile_full_load", smoke: false, only_whole: false, seconds: 900, run };

const BUSY: &str = "busy";
/// Name of a loop's process, and its vCPU.
const LOOPS: [(&str, usize); 3] = [("busy100", 0), ("busy99", 1), ("busy50", 1)];

fn run(scale: &Scale) -> Outcome {
    let seconds = scale.frames(20, 40);
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.cpus = 2;
    stage.boot_guest_with(Reach::Serial, vec![(std::env::current_exe()?, format!("/bin/{BUSY}"))])?;
    let guest = stage.guest()?;
    let lasts = seconds as u32 + 600;
    let on = LOOPS.map(|(_, vcpu)| format!("taskset {:x} {BUSY}", 1 << vcpu));
    let loops =
        [busy::script(&on[0], 100, lasts), busy::script(&on[1], 99, lasts), busy::realtime_script(&on[2], 50, lasts)];
    // All loops are started together, since the guest's shell is slow once they run.
    guest.start("loops", &format!("sh -c '{} & wait'", loops.join(" & ")), false, &|| false)?;
    let socket = guest.agent_socket().display().to_string();
    let pids = pids_of(&mut stage, &LOOPS.map(|(name, _)| name))?;
    let words = format!("profile --duration {seconds}s --machine {GUEST}=unix:{socket} -o /out/profile");
    let (seen, [before, after]) = watch(&mut stage, &words, seconds, |stage| ran(stage, &pids))?;
    check(&seen, &before, &after).with_context(|| in_short(&seen))
}

/// CPU time of the loops according to the guest's scheduler, the guest's uptime, and the vCPUs' time in the guest
/// according to the host's kernel.
struct Ran {
    loops: [f64; LOOPS.len()],
    uptime: f64,
    vcpus: [f64; 2],
}

fn ran(stage: &mut Stage, pids: &[String]) -> anyhow::Result<Ran> {
    let numbers = first_numbers(stage, &format!("/proc/uptime {}", schedstats(pids)))?;
    let [uptime, loops @ ..] = &numbers[..] else { anyhow::bail!("no uptime") };
    let mut vcpus = [0.0; 2];
    let pid = stage.guest()?.pid();
    let vm = latpath_vms::find()?.vms.into_iter().find(|vm| vm.pid == pid).context("the guest's VM")?;
    for thread in vm.threads.iter().filter(|thread| thread.role == Role::Vcpu) {
        let stat = Stat::read(&Root::of(Path::new("/")), &format!("proc/{pid}/task/{}", thread.tid));
        vcpus[thread.vcpu.context("a vCPU's number")? as usize] = stat.context("a vCPU's thread")?.guest_ticks as f64;
    }
    let loops = loops.try_into().with_context(|| format!("{} loops: {loops:?}", LOOPS.len()))?;
    Ok(Ran { loops, uptime: uptime * 1e9, vcpus })
}

fn check(seen: &Observation<ProfileFigures>, before: &Ran, after: &Ran) -> Outcome {
    let guest = in_guests(seen)?;
    let vcpus = [0, 1].map(|vcpu| after.vcpus[vcpu] - before.vcpus[vcpu]);
    let passed = after.uptime - before.uptime;
    for (at, (name, vcpu)) in LOOPS.iter().enumerate() {
        let truth = (after.loops[at] - before.loops[at]) / passed * vcpus[*vcpu] * 100.0 / (vcpus[0] + vcpus[1]);
        let part = of_process(&seen.figures, name) * 100.0 / guest;
        eprintln!("{name} on vCPU {vcpu}: {part:.2} % of the guest's time, truly {truth:.2} %");
        ensure!((part - truth).abs() <= 2.0, "{name} has {part} % of the guest's time, truly {truth} %");
    }
    let named = has_function(&seen.figures, "busy_always") && has_function(&seen.figures, "busy_fifty");
    ensure!(named, "the loops have no names");
    Ok(())
}
