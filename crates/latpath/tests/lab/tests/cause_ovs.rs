//! Causes of late packets on the host alone: packets pass through ovs-vswitchd because no flow exists, the daemon gets
//! no CPU, or a taprio gate is closed.
//!
//! There is no guest, since an emulated guest takes longer for a packet than an upcall.

use crate::{
    blame,
    fault::Injection,
    faults::{all, listen_here, on_host, record_during, THRESHOLD},
    stage::Stage,
    Outcome, Scale, Test,
};
use anyhow::{anyhow, ensure};
use latpath_lab::{Switch, VETH};
use latpath_linux::monotonic;
use latpath_model::Ns;
use nix::{
    sched::{sched_setaffinity, CpuSet},
    unistd::Pid,
};
use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

pub const TEST: Test = Test { name: "cause_ovs", smoke: false, only_whole: true, seconds: 500, run };

/// Threshold that upcalls exceed here and the fast path does not.
const SHORT: Duration = Duration::from_millis(1);
/// Time for which the gate is open at the beginning of each cycle, ns; it is closed for the rest of the cycle.
const OPEN: Ns = 700_000_000;
const CYCLE: Ns = 850_000_000;

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay_without_guest(Switch::OpenVswitch)?;
    let application = listen_here(&stage, 0)?;
    let mut outcomes = Vec::new();

    let (seen, truth) = record_during(&mut stage, SHORT, |stage| {
        let mut injections = Vec::new();
        for _ in 0..75 {
            latpath_testkit::waits::fault_for(Duration::from_millis(400));
            let begin = monotonic();
            stage.open_vswitch()?.forget_flows()?;
            latpath_testkit::waits::fault_for(Duration::from_millis(50));
            injections.push(Injection::whole(begin, monotonic()));
        }
        Ok(injections)
    })?;
    outcomes.push(seen.expect_upcalls(&truth));

    let (seen, truth) = record_during(&mut stage, THRESHOLD, |stage| {
        shut_at_times(stage)?;
        let begin = monotonic();
        latpath_testkit::waits::fault_for(Duration::from_secs(22));
        let shut = (begin / CYCLE..monotonic() / CYCLE).map(|n| Injection::whole(n * CYCLE + OPEN, (n + 1) * CYCLE));
        tool(stage, &format!("tc qdisc del dev {VETH} root"))?;
        Ok(shut.filter(|i| i.bounds().0 > begin).collect())
    })?;
    outcomes.push(seen.expect(&truth, &blame::GATE));

    // All of the daemon's threads are pinned to one CPU, which another thread occupies at times. Flows are removed
    // repeatedly, so that packets need the daemon also at those times.
    let mut set = CpuSet::new();
    set.set(1)?;
    for thread in fs::read_dir(format!("/proc/{}/task", stage.open_vswitch()?.daemon()))?.flatten() {
        sched_setaffinity(Pid::from_raw(thread.file_name().to_string_lossy().parse()?), &set)?;
    }
    let (seen, truth) = record_during(&mut stage, THRESHOLD, |stage| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let forgetful = scope.spawn(|| -> Outcome {
                while !over.load(Ordering::Relaxed) {
                    latpath_testkit::waits::fault_for(Duration::from_millis(110));
                    tool(stage, "ovs-dpctl del-flows")?;
                }
                Ok(())
            });
            let truth = on_host(stage, "hog cpu=1 fifo=50");
            over.store(true, Ordering::Relaxed);
            forgetful.join().map_err(|_| anyhow!("flows were not forgotten"))??;
            truth
        })
    })?;
    outcomes.push(seen.expect(&truth, &blame::SWITCH_STARVED));
    drop(application);
    all(outcomes)
}

/// Closes the gate to the application periodically (taprio).
fn shut_at_times(stage: &Stage) -> Outcome {
    tool(stage, &format!("ethtool -L {VETH} tx 2"))?;
    let shut = CYCLE - OPEN;
    tool(
        stage,
        &format!(
            "tc qdisc replace dev {VETH} parent root handle 100 taprio num_tc 2 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 \
             queues 1@0 1@1 base-time 0 sched-entry S 3 {OPEN} sched-entry S 2 {shut} clockid CLOCK_MONOTONIC"
        ),
    )
}

/// Runs a tool in the hypervisor's namespace.
fn tool(stage: &Stage, words: &str) -> Outcome {
    let space = stage.path().hypervisor.name();
    let ended = Command::new("ip").args(["netns", "exec", space]).args(words.split_whitespace()).output()?;
    ensure!(ended.status.success(), "{words}: {}", String::from_utf8_lossy(&ended.stderr).trim());
    Ok(())
}
