//! Faults on purpose in the hypervisor and in its guest, and whether latpath blames the right one: as in `causes`, with
//! longer times, since all of this is emulated.

use crate::{
    fault::{self, Injection},
    stage::{keep, plain, Stage, Stream},
    verdict::Seen,
};
use anyhow::{anyhow, bail, Context, Result};
use latpath_lab::{APPLICATION, GUEST_DEVICE, NIC};
use latpath_testkit::waits::until_within;
use latpath_testkit::{Finished, Started};
use latpath_vms::{Role, Vm};
use nix::{
    sched::{sched_setaffinity, CpuSet},
    unistd::Pid,
};
use std::{env, process::Command, time::Duration};

/// How often, for how long and in what distances. The emulated CPUs themselves stand still for a ms or two at times.
pub const ROUNDS: &str = "times=32 busy=150000 every=600000 gap=5000";
/// What takes longer is late.
pub const THRESHOLD: Duration = Duration::from_millis(60);
/// Longer than all rounds.
const LIMIT: Duration = Duration::from_secs(120);
/// This program in the guest.
pub const IN_GUEST: &str = "/bin/faults";

/// The stream that is followed during the fault.
pub fn stream() -> Stream {
    Stream::sv("MU01", 400_000).rate(500).publish("--cpu 0")
}

/// This program.
pub fn myself() -> Result<std::path::PathBuf> {
    env::current_exe().context("where this program is")
}

/// Records while a fault is done.
pub fn record_during(
    stage: &mut Stage,
    threshold: Duration,
    fault: impl FnOnce(&mut Stage) -> Result<Vec<Injection>>,
) -> Result<(Seen, Vec<Injection>)> {
    record_stream_during(stage, &stream(), threshold, fault)
}

/// The same with another stream.
pub fn record_stream_during(
    stage: &mut Stage,
    stream: &Stream,
    threshold: Duration,
    fault: impl FnOnce(&mut Stage) -> Result<Vec<Injection>>,
) -> Result<(Seen, Vec<Injection>)> {
    stage.in_memory = true;
    let recording = stage.record(stream, &format!("--threshold {}us", threshold.as_micros()))?;
    let publishing = stage.start_publishing(stream)?;
    // The route and the baseline are known by then.
    recording.has(2 * stream.rate)?;
    let truth = fault(stage)?;
    goes_on(stage, stream.rate)?;
    publishing.interrupt();
    publishing.finish(LIMIT).map_err(|e| anyhow!("{e:?}"))?;
    stage.wait_for_quiet()?;
    let run = recording.run().clone();
    eprintln!("{}", recording.end(stage)?.in_short());
    keep(&run)?;
    Ok((Seen::read(&run).map_err(|e| anyhow!("{e:?}"))?, truth))
}

/// Waits until so many more packets have come.
pub fn goes_on(stage: &Stage, packets: u64) -> Result<()> {
    let before = stage.counters(NIC)?.rx_packets;
    let come = || stage.counters(NIC).is_ok_and(|now| now.rx_packets >= before + packets);
    until_within(LIMIT, &format!("{packets} more packets come"), come).map_err(plain)
}

/// Does a fault in the hypervisor's namespace, in all rounds.
pub fn on_host(stage: &Stage, words: &str) -> Result<Vec<Injection>> {
    let mut command = Command::new(myself()?);
    command.arg(fault::WORD).args(words.split(' ')).args(ROUNDS.split(' '));
    let done = stage.start_command(&stage.path().hypervisor, command)?.finish(LIMIT);
    match done.map_err(|e| anyhow!("{e:?}"))? {
        Finished { code: Some(0), stdout, .. } => fault::parse(&stdout).map_err(|e| anyhow!(e)),
        Finished { code, stderr, .. } => bail!("{words}: {code:?}, {stderr}"),
    }
}

/// The same in the guest; times are the guest's.
pub fn in_guest(stage: &mut Stage, words: &str) -> Result<Vec<Injection>> {
    let script = format!("{IN_GUEST} {} {words} {ROUNDS}", fault::WORD);
    let output = stage.guest()?.run(&script, LIMIT, &|| false)?;
    match output.status {
        0 => fault::parse(&output.text).map_err(|e| anyhow!(e)),
        status => bail!("{words} in the guest: status {status}, {}", output.text.trim()),
    }
}

/// Starts the application in its namespace, on this CPU and in real time, where there is no guest.
pub fn listen_here(stage: &Stage, cpu: usize) -> Result<Started> {
    let mut command = Command::new(myself()?);
    let words =
        format!("application device={APPLICATION} cpu={cpu} fifo=70 nice=0 work=0 times=0 busy=0 every=0 after=1");
    command.arg(fault::WORD).args(words.split(' '));
    stage.start_command(stage.application(), command)
}

/// Starts the application in the guest: one of ours, with these words.
pub fn listen(stage: &mut Stage, words: &str) -> Result<()> {
    let words = format!("application device={GUEST_DEVICE} cpu=0 {words}");
    Ok(stage.guest()?.start("relay", &format!("{IN_GUEST} {} {words}", fault::WORD), false, &|| false)?)
}

/// Ends it, and says when it slept.
pub fn listen_no_more(stage: &mut Stage) -> Result<Vec<Injection>> {
    let output = stage.guest()?.end("relay", LIMIT, &|| false)?;
    fault::parse(&output.text).map_err(|e| anyhow!(e))
}

/// The guest as the host sees it.
pub fn vm() -> Result<Vm> {
    latpath_vms::find()?.vms.into_iter().next().context("no virtual machine is found")
}

/// Puts those of the guest's threads that do this on one CPU.
pub fn pin(vm: &Vm, role: Role, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    let threads: Vec<_> = vm.threads.iter().filter(|t| t.role == role).collect();
    if threads.is_empty() {
        bail!("{} has no thread of the kind {role:?}: {:?}", vm.name, vm.threads);
    }
    for thread in threads {
        sched_setaffinity(Pid::from_raw(thread.tid as i32), &set).with_context(|| thread.comm.clone())?;
    }
    Ok(())
}

/// Several verdicts as one.
pub fn all(outcomes: Vec<Result<(), latpath_testkit::Failed>>) -> Result<()> {
    let failed: Vec<String> =
        outcomes.into_iter().filter_map(|o| o.err()).map(|e| e.message().unwrap_or("failed").to_owned()).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("{}", failed.join("\n")),
    }
}
