//! The host's profile shows a guest's call chains in place of its vCPUs' time: the guest's share agrees with the
//! kernel's, two loops with known shares of a CPU are found, and the guest's functions have names, for a stripped
//! program from debug information on the host.

use crate::{
    stage::{plain, Reach, Stage, GUEST},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
use latpath_model::Observation;
use latpath_observe::profile::{ProcessFigures, ProfileFigures};
use latpath_profile::GuestHeader;
use latpath_testkit::stripped::{Stripped, FUNCTION, NAME};
use latpath_testkit::{busy, waits, Started};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

pub const TEST: Test = Test { name: "profile", smoke: false, only_whole: false, seconds: 900, run };

/// Time limit for naming the guest's last samples, since the guest is slow.
const PATIENCE: Duration = Duration::from_secs(240);
const BUSY: &str = "busy";
/// QEMU's name of the guest.
pub const VM: &str = "latpath-guest0";

fn run(scale: &Scale) -> Outcome {
    let seconds = scale.frames(15, 30);
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    // A stripped program in the guest, with its debug information on the host.
    let folder = tempfile::tempdir()?;
    let stripped = Stripped::build(folder.path()).map_err(plain)?;
    let place = Path::new("/usr/lib/debug").join(stripped.place());
    fs::create_dir_all(place.parent().context("a folder")?)?;
    fs::copy(&stripped.debug_file, &place)?;
    let programs = [(std::env::current_exe()?, BUSY), (stripped.program, NAME)];
    let programs = programs.map(|(file, name)| (file, format!("/bin/{name}")));
    stage.boot_guest_with(Reach::Serial, programs.into())?;
    let without: Observation<ProfileFigures> = serde_json::from_str(&stage.latpath("profile --duration 3s --json")?)?;
    let modes = without.figures.modes;
    ensure!(modes.guest_sys_ns == 0 && modes.guest_usr_ns == 0, "no agent runs in it");
    let guest = stage.guest()?;
    for percent in [20, 50] {
        let loops = busy::script(BUSY, percent, seconds as u32 + 300);
        guest.start(&format!("loop{percent}"), &format!("sh -c '{loops}'"), false, &|| false)?;
    }
    guest.start(NAME, &format!("{NAME} 50000"), false, &|| false)?;
    let socket = guest.agent_socket().display().to_string();
    let words = format!("profile --duration {seconds}s --machine {GUEST}=unix:{socket} --syscalls");
    let files = "-o /out/profile --svg /out/profile.svg --firefox /out/profile.firefox.json";
    let pids = pids_of(&mut stage, &["busy20", "busy50"])?;
    let (seen, [before, after]) = watch(&mut stage, &format!("{words} {files}"), seconds, |stage| ran(stage, &pids))?;
    let page = stage.latpath(&format!("{words} --rows 6"))?;
    eprintln!("{page}");
    let truth = [0, 1].map(|at| after[at] - before[at]);
    check(&seen, truth[0] * 100.0 / (truth[0] + truth[1])).with_context(|| in_short(&seen))
}

/// CPU time of both loops, according to the guest's scheduler.
fn ran(stage: &mut Stage, pids: &[String]) -> anyhow::Result<[f64; 2]> {
    let numbers = first_numbers(stage, &schedstats(pids))?;
    numbers[..].try_into().with_context(|| format!("two loops: {numbers:?}"))
}

/// PIDs of these processes in the guest, once they run.
pub fn pids_of(stage: &mut Stage, processes: &[&str]) -> anyhow::Result<Vec<String>> {
    let find = "do until grep -lx $name /proc/[0-9]*/comm; do :; done; done";
    let script = format!("for name in {}; {find}", processes.join(" "));
    let found = stage.guest()?.run(&script, PATIENCE, &|| false)?.text;
    let pids: Vec<String> = found.lines().filter_map(|line| line.split('/').nth(2)).map(str::to_owned).collect();
    ensure!(pids.len() == processes.len(), "{found:?}");
    Ok(pids)
}

/// Files with the CPU time of processes.
pub fn schedstats(pids: &[String]) -> String {
    pids.iter().map(|pid| format!("/proc/{pid}/schedstat")).collect::<Vec<_>>().join(" ")
}

/// Reads the first number in each of these files in the guest, with a single command, since starting a program takes
/// long there.
pub fn first_numbers(stage: &mut Stage, files: &str) -> anyhow::Result<Vec<f64>> {
    let output = stage.guest()?.run(&format!("cat {files}"), PATIENCE, &|| false)?.text;
    output.lines().map(|line| Ok(line.split(' ').next().unwrap_or_default().parse()?)).collect()
}

/// Runs `latpath profile WORDS --json`; returns its output, and the results of `read` at the begin and the end of its
/// window.
pub fn watch<T>(
    stage: &mut Stage,
    words: &str,
    seconds: u64,
    mut read: impl FnMut(&mut Stage) -> anyhow::Result<T>,
) -> anyhow::Result<(Observation<ProfileFigures>, [T; 2])> {
    let space = stage.path().hypervisor.clone();
    let mut watching = stage.start(&space, &format!("{words} --json"))?;
    let begins = |watching: &mut Started| watching.said().contains("sampling CPUs") || !watching.runs();
    waits::until_within(PATIENCE, "the profile begins", || begins(&mut watching)).map_err(plain)?;
    ensure!(watching.runs(), "it ended: {}", watching.said());
    let (begun, before) = (Instant::now(), read(stage)?);
    let window = Duration::from_secs(seconds);
    waits::until_within(PATIENCE, "the window ends", || begun.elapsed() >= window || !watching.runs())
        .map_err(plain)?;
    // At the end of the window, before the agent's work that follows changes the figures.
    let after = read(stage)?;
    let finished = watching.finish(PATIENCE).map_err(plain)?;
    eprintln!("{}", finished.stderr.trim());
    Ok((serde_json::from_str(&finished.stdout).context("the profile's JSON")?, [before, after]))
}

/// Figures that help to explain a failure.
pub fn in_short(seen: &Observation<ProfileFigures>) -> String {
    let ProfileFigures { modes, kernel_account, processes, .. } = &seen.figures;
    format!("{modes:?} {kernel_account:?} {processes:?}")
}

/// Expects the times of all modes to add up to the time of all CPUs; returns it.
fn adds_up(seen: &Observation<ProfileFigures>) -> anyhow::Result<f64> {
    let sum = seen.figures.modes.total_ns() as f64;
    let all = seen.figures.cpu_count as f64 * seen.window_ns as f64;
    ensure!((sum - all).abs() <= all / 1000.0, "{sum} ns of {all}");
    Ok(all)
}

/// Time in guests: the sum of the times from each of KVM's entries to the next exit. Its share of the CPUs must equal
/// that in the kernel's tick-based account, unless ticks are missing, as on an overloaded emulated machine. The guest's
/// samples must cover nearly all of this time.
pub fn in_guests(seen: &Observation<ProfileFigures>) -> anyhow::Result<f64> {
    let (figures, all) = (&seen.figures, adds_up(seen)?);
    let guest = figures.modes.guest_ns() as f64;
    let kernel = figures.kernel_account.context("no account of the kernel")?;
    let counted = (kernel.user_ns + kernel.system_ns + kernel.idle_ns + kernel.steal_ns) as f64;
    let (share, kernels) = (guest * 100.0 / all, kernel.guest_ns as f64 * 100.0 / counted);
    eprintln!("guest: {share:.2} %, by the kernel's account {kernels:.2} % (of {:.2} %)", counted * 100.0 / all);
    ensure!(guest > 0.0, "no time in guests");
    let has_all_ticks = counted >= 0.99 * all;
    ensure!(
        !has_all_ticks || (share - kernels).abs() <= 1.0,
        "{share} % in guests, by the kernel's account {kernels} %"
    );
    ensure!(
        figures.modes.guest_unseen_ns as f64 <= guest / 20.0,
        "the guest's samples are not where its time is: {:?}",
        seen.notes
    );
    ensure!(figures.named_in_guests >= Some(0.95), "named: {:?}", figures.named_in_guests);
    in_their_guest(figures.header.guests.first().context("no guest")?)?;
    Ok(guest)
}

/// Expects at least half of the samples to have been checked against the times at which their vCPU was in the guest,
/// and none to be outside these.
fn in_their_guest(guest: &GuestHeader) -> Outcome {
    let (samples, causality) = (guest.samples, guest.causality.context("no causality")?);
    eprintln!("causality: {causality:?}, of {samples} samples, within {} ns", guest.clock_error_ns);
    ensure!(causality.violations == 0, "causality: {causality:?}");
    // The agent also samples before the window; these samples cannot be checked.
    ensure!(causality.checked * 2 >= samples, "{causality:?} of {samples}");
    Ok(())
}

/// Time of a process in the guest, ns.
pub fn of_process(figures: &ProfileFigures, name: &str) -> f64 {
    let is = |process: &&ProcessFigures| process.guest.as_deref() == Some(VM) && process.process == name;
    figures.processes.iter().filter(is).map(|process| process.total_ns as f64).sum()
}

/// Whether a function of the guest has a name that ends with `end`.
pub fn has_function(figures: &ProfileFigures, end: &str) -> bool {
    let mut theirs = figures.functions.iter().filter(|function| function.guest.as_deref() == Some(VM));
    theirs.any(|function| function.function.ends_with(end))
}

/// `truth`: the smaller loop's share of both loops' time, %.
fn check(seen: &Observation<ProfileFigures>, truth: f64) -> Outcome {
    in_guests(seen)?;
    let figures = &seen.figures;
    let (twenty, fifty) = (of_process(figures, "busy20"), of_process(figures, "busy50"));
    let part = twenty * 100.0 / (twenty + fifty);
    eprintln!("the smaller loop has {part:.2} % of both, truly {truth:.2} %; named: {:?}", figures.named_in_guests);
    ensure!((part - truth).abs() <= 2.0, "of both loops' time the smaller one has {part} %, truly {truth} %");
    let named = has_function(figures, "busy_twenty") && has_function(figures, "busy_fifty");
    ensure!(named, "the guest's own functions have no names");
    ensure!(has_function(figures, FUNCTION), "a stripped program's function has no name: {:?}", seen.notes);
    ensure!(figures.system_calls.iter().any(|call| call.call == "ppoll"), "the main loop's system calls are missing");
    Ok(())
}
