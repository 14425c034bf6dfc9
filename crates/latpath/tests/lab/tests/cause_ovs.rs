//! Why packets are late that go by way of ovs-vswitchd: no flow is there, or the daemon is kept from its CPU.

use crate::{
    blame,
    fault::Injection,
    faults::{all, on_host, play, THRESHOLD},
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use latpath_lab::Switch;
use latpath_traffic::kernel::monotonic;
use nix::{
    sched::{sched_setaffinity, CpuSet},
    unistd::Pid,
};
use std::{fs, thread, time::Duration};

pub const TEST: Test = Test { name: "cause_ovs", only_whole: true, seconds: 500, run };

/// An upcall takes longer here, the fast path does not.
const SHORT: Duration = Duration::from_millis(4);

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest()?;
    stage.subscribe(&Stream::sv("MU01", 1))?;
    let mut outcomes = Vec::new();

    let (seen, truth) = play(&mut stage, SHORT, |stage| {
        let mut told = Vec::new();
        for _ in 0..25 {
            thread::sleep(Duration::from_millis(600));
            let begin = monotonic();
            stage.open_vswitch()?.forget_flows()?;
            thread::sleep(Duration::from_millis(50));
            told.push(Injection::whole(begin, monotonic()));
        }
        Ok(told)
    })?;
    outcomes.push(seen.by_upcall().expect(&truth, &blame::UPCALL));

    // The daemon decides about each packet itself, and all its threads are on one CPU.
    stage.open_vswitch()?.ofctl("add-flow", "dl_type=0x88ba,actions=controller(max_len=0),normal")?;
    let mut set = CpuSet::new();
    set.set(1)?;
    for thread in fs::read_dir(format!("/proc/{}/task", stage.open_vswitch()?.daemon()))?.flatten() {
        sched_setaffinity(Pid::from_raw(thread.file_name().to_string_lossy().parse()?), &set)?;
    }
    let (seen, truth) = play(&mut stage, THRESHOLD, |stage| on_host(stage, "hog cpu=1 fifo=50"))?;
    outcomes.push(seen.expect(&truth, &blame::SWITCH_STARVED));
    stage.unsubscribe()?;
    all(outcomes)
}
