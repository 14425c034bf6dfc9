//! A guest without any idle time: loops of normal priority on every vCPU, and one of real-time priority beside them. Its agent's samples
//! come all the same, and say which loop had what part of the guest's time.

use super::profile::{has_function, in_guests, of_process};
use crate::{
    stage::{plain, Reach, Stage, GUEST},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
use latpath_linux::proc::{Root, Stat};
use latpath_testkit::{busy, waits};
use latpath_vms::Role;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

pub const TEST: Test = Test { name: "profile_full_load", smoke: false, only_whole: false, seconds: 900, run };

const BUSY: &str = "busy";
/// More than it takes to name the last samples of so slow a guest.
const PATIENCE: Duration = Duration::from_secs(240);

/// A loop: its process, and its vCPU.
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
    // All at once: once they run, the guest's shell is slow.
    guest.start("loops", &format!("sh -c '{} & wait'", loops.join(" & ")), false, &|| false)?;
    let names = LOOPS.map(|(name, _)| name).join(" ");
    let find = format!("for l in {names}; do until grep -lx $l /proc/[0-9]*/comm; do :; done; done");
    let found = guest.run(&find, PATIENCE, &|| false)?.text;
    let pids: Vec<String> = found.lines().filter_map(|line| line.split('/').nth(2)).map(str::to_owned).collect();
    ensure!(pids.len() == LOOPS.len(), "{found:?}");
    let socket = guest.agent_socket().display().to_string();
    let words = format!("profile --duration {seconds}s --machine {GUEST}=unix:{socket} --json --out /out/profile");
    let space = stage.path().hypervisor.clone();
    let mut watching = stage.start(&space, &words)?;
    waits::until_within(PATIENCE, "the profile begins", || {
        watching.said().contains("sampling CPUs") || !watching.runs()
    })
    .map_err(plain)?;
    ensure!(watching.runs(), "it ended: {}", watching.said());
    let (begun, before) = (Instant::now(), ran(&mut stage, &pids)?);
    let window = Duration::from_secs(seconds);
    waits::until_within(PATIENCE, "the window ends", || begun.elapsed() >= window || !watching.runs())
        .map_err(plain)?;
    // Behind it the agent has less to do.
    let after = ran(&mut stage, &pids)?;
    let finished = watching.finish(PATIENCE).map_err(plain)?;
    eprintln!("{}", finished.stderr.trim());
    let seen: Value = serde_json::from_str(&finished.stdout).context("the profile's JSON")?;
    check(&seen, &before, &after).with_context(|| format!("{} {} {}", seen["modes"], seen["kernel"], seen["processes"]))
}

/// How long the loops have run, by the guest's scheduler, and how long the guest has been up; and how long the vCPUs have run their guest, by
/// the host's kernel.
struct Ran {
    loops: [f64; LOOPS.len()],
    uptime: f64,
    vcpus: [f64; 2],
}

fn ran(stage: &mut Stage, pids: &[String]) -> anyhow::Result<Ran> {
    // At once: each program that is started takes its time there.
    let script = format!("cat /proc/uptime $(for n in {}; do echo /proc/$n/schedstat; done)", pids.join(" "));
    let output = stage.guest()?.run(&script, PATIENCE, &|| false)?.text;
    let numbers: Vec<f64> = output.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    let [uptime, loops @ ..] = &numbers[..] else { anyhow::bail!("no uptime: {output:?}") };
    let mut vcpus = [0.0; 2];
    let pid = stage.guest()?.pid();
    let vm = latpath_vms::find()?.vms.into_iter().find(|vm| vm.pid == pid).context("the guest's VM")?;
    for thread in vm.threads.iter().filter(|thread| thread.role == Role::Vcpu) {
        let stat = Stat::read(&Root::of(Path::new("/")), &format!("proc/{pid}/task/{}", thread.tid));
        vcpus[thread.vcpu.context("a vCPU's number")? as usize] = stat.context("a vCPU's thread")?.guest_ticks as f64;
    }
    let loops = loops.try_into().with_context(|| format!("{} loops: {output:?}", LOOPS.len()))?;
    Ok(Ran { loops, uptime: uptime * 1e9, vcpus })
}

fn check(seen: &Value, before: &Ran, after: &Ran) -> Outcome {
    let guest = in_guests(seen)?;
    let vcpus = [0, 1].map(|vcpu| after.vcpus[vcpu] - before.vcpus[vcpu]);
    let passed = after.uptime - before.uptime;
    for (at, (name, vcpu)) in LOOPS.iter().enumerate() {
        let truth = (after.loops[at] - before.loops[at]) / passed * vcpus[*vcpu] * 100.0 / (vcpus[0] + vcpus[1]);
        let part = of_process(seen, name) * 100.0 / guest;
        eprintln!("{name} on vCPU {vcpu}: {part:.2} % of the guest's time, truly {truth:.2} %");
        ensure!((part - truth).abs() <= 2.0, "{name} has {part} % of the guest's time, truly {truth} %");
    }
    let named = has_function(seen, "busy_always") && has_function(seen, "busy_fifty");
    ensure!(named, "the loops have no names");
    Ok(())
}
