//! Causes of late packets when the CPU of the reader, or the CPU to which packets are steered, is slow to leave an idle
//! state; and the effect of the fix that latpath advises.

use crate::{
    blame,
    fault::Injection,
    faults::{all, listen_here, record_during, stream},
    linked,
    module::Module,
    stage::{plain, Stage, RELAY},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, ensure, Context, Result};
use latpath_lab::{OwnModule, Switch, APPLICATION};
use latpath_model::Ns;
use latpath_report::{explanation::CauseOfAll, ExplanationDocument};
use latpath_testkit::waits::listens;
use latpath_testkit::{Finished, Started};
use nix::{
    sched::{sched_setaffinity, CpuSet},
    unistd::Pid,
};
use std::{fs, process::Command, time::Duration};

pub const TEST: Test = Test { name: "cause_idle", smoke: false, only_whole: true, seconds: 400, run };

/// CPU of the application; all other processes run elsewhere.
const CPU: usize = 1;
const OTHERS_CPU: usize = 0;
/// Exit latency of the slow state.
const EXIT: Duration = Duration::from_millis(40);
const THRESHOLD: Duration = Duration::from_millis(20);
/// Number of rounds in which the slow state is enabled. The CPU leaves it once or twice in each.
const ROUNDS: usize = 30;
const ROUND: Duration = Duration::from_millis(30);
const PAUSE: Duration = Duration::from_millis(800);
/// Duration for which slow exits are counted, before and after the fix.
const WATCHED: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(30);

fn run(_: &Scale) -> Outcome {
    // Applies to every process started from here on, latpath included.
    let mut set = CpuSet::new();
    set.set(OTHERS_CPU)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    let mut stage = Stage::lay_without_guest(Switch::LinuxBridge)?;
    let states = States::load()?;
    let mut reader = listen_here(&stage, CPU)?;
    listens(&mut reader).map_err(plain)?;
    let mut outcomes = Vec::new();
    // An exit delays the reader's thread or, if frames are steered to this CPU, their softirq.
    for steered in [false, true] {
        if steered {
            if !may_steer()? {
                eprintln!("frames are not steered: this kernel warns of the softirq that its own steering raises");
                break;
            }
            steer(&stage)?;
        }
        let (seen, truth) = record_during(&mut stage, THRESHOLD, |_| (0..ROUNDS).map(|_| states.round()).collect())?;
        let text = stage.latpath(&format!("explain {}", seen.run.display()))?;
        eprintln!("{text}");
        outcomes.push(seen.expect(&truth, &blame::IDLE));
        let json = stage.latpath(&format!("explain {} --json", seen.run.display()))?;
        let explained: ExplanationDocument = serde_json::from_str(&json)?;
        let first = explained.causes.first().context("no causes")?;
        let share = &first.share;
        let is_named =
            text.contains(&format!("idle state {SLOW_NAME}")) && share.idle_state.as_deref() == Some(SLOW_NAME);
        let is_reported = is_named && share.number == Some(SLOW as u64);
        ensure!(is_reported, "the state is not reported: {first:?}");
        let name = share.actor.as_ref().map_or("", |actor| &actor.name);
        ensure!((name == RELAY) != steered, "{name} waited; steered: {steered}");
        if !steered {
            outcomes.push(is_fixed_by(&stage, &states, &advised(first)?).map_err(|e| format!("{e:#}").into()));
        }
    }
    reader.interrupt();
    done(reader)?;
    all(outcomes)
}

/// Applies the advised fix while the fault continues, and expects no more slow exits.
fn is_fixed_by(stage: &Stage, states: &States, advised: &str) -> Outcome {
    let publishing = stage.start_publishing(&stream())?;
    states.slow(true)?;
    let before = states.exits_in(WATCHED)?;
    let fix = Command::new("sh").args(["-c", advised]).output().context("run a shell")?;
    // The CPU may still be in the idle state that it entered before the fix, so wait until it has left it.
    latpath_testkit::waits::fault_for(2 * EXIT);
    let after = states.exits_in(WATCHED)?;
    publishing.interrupt();
    done(publishing)?;
    eprintln!("slow exits: {}, and {} after {advised:?}", before.len(), after.len());
    ensure!(fix.status.success(), "{advised}: {}", String::from_utf8_lossy(&fix.stderr).trim());
    ensure!(!before.is_empty(), "nothing is shown: without the fix the CPU was not slow either");
    ensure!(after.is_empty(), "{advised}: the CPU was slow {} times more", after.len());
    Ok(())
}

/// Whether this kernel can steer packets. RPS raises a softirq from a function call on another CPU. PREEMPT_RT kernels
/// before 6.10 report that as a fault; later ones use a thread instead.
fn may_steer() -> Result<bool> {
    let real_time = fs::read_to_string("/proc/version")?.contains("PREEMPT_RT");
    let threads = fs::read_dir("/proc")?.flatten().filter_map(|e| fs::read_to_string(e.path().join("comm")).ok());
    Ok(!real_time || threads.into_iter().any(|name| name.starts_with("backlog_napi")))
}

/// Steers frames that arrive at the application's device to its CPU.
fn steer(stage: &Stage) -> Outcome {
    let script = format!("echo {:x} > /sys/class/net/{APPLICATION}/queues/rx-0/rps_cpus", 1 << CPU);
    let space = stage.application().name();
    linked::run(Command::new("ip").args(["netns", "exec", space, "sh", "-c", &script])).map(drop)
}

fn done(started: Started) -> Outcome {
    let Finished { code, stderr, .. } = started.finish(LIMIT).map_err(|e| anyhow!("{e:?}"))?;
    ensure!(code == Some(0), "ended with {code:?}: {}", stderr.trim());
    Ok(())
}

/// Returns the first command advised for a cause.
fn advised(cause: &CauseOfAll) -> Result<String> {
    let command = cause.advice.first().and_then(|fix| fix.commands.first());
    Ok(command.with_context(|| format!("nothing is advised: {cause:?}"))?.to_owned())
}

/// Indexes of the ordinary and the slow state in the driver.
const HALT: usize = 0;
const SLOW: usize = 1;
/// Name of the slow state.
const SLOW_NAME: &str = "LP-SLOW";

/// The lab's idle states (crates/lab/module/slow_idle.c). Dropping it removes them.
struct States(Module);

impl States {
    fn load() -> Result<Self> {
        let states = Self(Module::load(OwnModule::SlowIdle, &format!("exit_us={}", EXIT.as_micros()))?);
        let driver = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver")?;
        ensure!(driver.trim() == "slow_idle", "the idle states are those of {driver:?}");
        Ok(states)
    }

    /// Sets whether the application's CPU uses the slow state when it is idle.
    fn slow(&self, slow: bool) -> Outcome {
        let (on, off) = if slow { (SLOW, HALT) } else { (HALT, SLOW) };
        for (state, disable) in [(on, "0"), (off, "1")] {
            fs::write(format!("/sys/devices/system/cpu/cpu{CPU}/cpuidle/state{state}/disable"), disable)
                .with_context(|| format!("switch idle state {state} of CPU {CPU}"))?;
        }
        Ok(())
    }

    /// Exits from the slow state during `time`: when the CPU was woken, and when it had left the state, ns.
    fn exits_in(&self, time: Duration) -> Result<Vec<(Ns, Ns)>> {
        self.0.set("exits", "0")?;
        latpath_testkit::waits::fault_for(time);
        self.exits()
    }

    fn exits(&self) -> Result<Vec<(Ns, Ns)>> {
        let text = self.0.get("exits")?;
        let mut exits = Vec::new();
        for line in text.lines() {
            let numbers: Vec<Ns> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [cpu, woken, left] = numbers[..] else { anyhow::bail!("{line:?} is no exit") };
            ensure!(cpu == CPU as Ns, "CPU {cpu} was in the slow state");
            exits.push((woken, left));
        }
        exits.sort_unstable();
        Ok(exits)
    }

    /// Enables the slow state for one round; returns all exits from it.
    fn round(&self) -> Result<Injection> {
        latpath_testkit::waits::fault_for(PAUSE);
        self.slow(true)?;
        self.exits_in(ROUND)?;
        self.slow(false)?;
        latpath_testkit::waits::fault_for(2 * EXIT);
        Ok(Injection::in_pieces(self.exits()?))
    }
}
