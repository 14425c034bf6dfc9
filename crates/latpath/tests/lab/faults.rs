//! Faults injected into the hypervisor and its guest, and the check that latpath blames the actual culprit. Like
//! `causes`, but with longer times, since everything here is emulated.

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

/// Number, duration and interval of the faults, and `gap`, which allows for emulated CPUs that at times stall for 1–2
/// ms; the times in µs.
pub const ROUNDS: &str = "times=32 busy=150000 every=600000 gap=5000";
/// Latency above which a packet is late.
pub const THRESHOLD: Duration = Duration::from_millis(60);
/// Maximum time for a step, longer than all rounds together.
const LIMIT: Duration = Duration::from_secs(120);
/// Path of this program in the guest.
pub const IN_GUEST: &str = "/bin/faults";

/// The stream recorded during the fault.
pub fn stream() -> Stream {
    Stream::sv("MU01", 400_000).rate(500).publish("--cpu 0")
}

/// Path of this program.
pub fn myself() -> Result<std::path::PathBuf> {
    env::current_exe().context("where this program is")
}

/// Records while `fault` runs; returns the recording and the times of the injections.
pub fn record_during(
    stage: &mut Stage,
    threshold: Duration,
    fault: impl FnOnce(&mut Stage) -> Result<Vec<Injection>>,
) -> Result<(Seen, Vec<Injection>)> {
    record_stream_during(stage, &stream(), threshold, fault)
}

/// Like [`record_during`], for any stream and threshold.
pub fn record_stream_during(
    stage: &mut Stage,
    stream: &Stream,
    threshold: Duration,
    fault: impl FnOnce(&mut Stage) -> Result<Vec<Injection>>,
) -> Result<(Seen, Vec<Injection>)> {
    stage.in_memory = true;
    let door = if stage.without_agent { " --door" } else { "" };
    // A larger budget, since recording an event takes microseconds on an emulated CPU.
    let words = format!("--flight-budget 50 --threshold {}us{door}", threshold.as_micros());
    let recording = stage.record(stream, &words)?;
    let publishing = stage.start_publishing(stream)?;
    // By then the route and the baseline are known.
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

/// Waits until `packets` more packets have arrived at the hypervisor's NIC.
pub fn goes_on(stage: &Stage, packets: u64) -> Result<()> {
    let before = stage.counters(NIC)?.rx_packets;
    let come = || stage.counters(NIC).is_ok_and(|now| now.rx_packets >= before + packets);
    until_within(LIMIT, &format!("{packets} more packets come"), come).map_err(plain)
}

/// Runs all rounds of a fault in the hypervisor's namespace.
pub fn on_host(stage: &Stage, words: &str) -> Result<Vec<Injection>> {
    let mut command = Command::new(myself()?);
    command.arg(fault::WORD).args(words.split(' ')).args(ROUNDS.split(' '));
    let done = stage.start_command(&stage.path().hypervisor, command)?.finish(LIMIT);
    match done.map_err(|e| anyhow!("{e:?}"))? {
        Finished { code: Some(0), stdout, .. } => fault::parse(&stdout).map_err(|e| anyhow!(e)),
        Finished { code, stderr, .. } => bail!("{words}: {code:?}, {stderr}"),
    }
}

/// Runs all rounds of a fault in the guest. The returned times are the guest's.
pub fn in_guest(stage: &mut Stage, words: &str) -> Result<Vec<Injection>> {
    let script = format!("{IN_GUEST} {} {words} {ROUNDS}", fault::WORD);
    let output = stage.guest()?.run(&script, LIMIT, &|| false)?;
    match output.status {
        0 => fault::parse(&output.text).map_err(|e| anyhow!(e)),
        status => bail!("{words} in the guest: status {status}, {}", output.text.trim()),
    }
}

/// Without a guest: starts the application in its namespace, on this CPU, with real-time priority.
pub fn listen_here(stage: &Stage, cpu: usize) -> Result<Started> {
    let mut command = Command::new(myself()?);
    let words =
        format!("application device={APPLICATION} cpu={cpu} fifo=70 nice=0 work=0 times=0 busy=0 every=0 after=1");
    command.arg(fault::WORD).args(words.split(' '));
    stage.start_command(stage.application(), command)
}

/// Starts this program's application in the guest, with these arguments.
pub fn listen(stage: &mut Stage, words: &str) -> Result<()> {
    let words = format!("application device={GUEST_DEVICE} cpu=0 {words}");
    Ok(stage.guest()?.start("relay", &format!("{IN_GUEST} {} {words}", fault::WORD), false, &|| false)?)
}

/// Stops the application; returns the intervals in which it slept.
pub fn listen_no_more(stage: &mut Stage) -> Result<Vec<Injection>> {
    let output = stage.guest()?.end("relay", LIMIT, &|| false)?;
    fault::parse(&output.text).map_err(|e| anyhow!(e))
}

/// The guest as seen from the host.
pub fn vm() -> Result<Vm> {
    latpath_vms::find()?.vms.into_iter().next().context("no virtual machine is found")
}

/// Pins the guest's threads of this role to one CPU.
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

/// Combines several outcomes into one.
pub fn all(outcomes: Vec<Result<(), latpath_testkit::Failed>>) -> Result<()> {
    let failed: Vec<String> =
        outcomes.into_iter().filter_map(|o| o.err()).map(|e| e.message().unwrap_or("failed").to_owned()).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("{}", failed.join("\n")),
    }
}
