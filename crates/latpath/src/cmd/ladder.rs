//! `latpath ladder`: one transfer between a guest and its host, step by step.

use super::command::Workload;
use super::exits::chosen;
use super::interrupt::stop_flag;
use super::progress::Progress;
use super::report::print;
use super::{style, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_ladder::{trace_text, Device, Ladder, LadderReport, Live};
use latpath_report::ladder_text;
use latpath_vms::{exit_reason::Names, Vm};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often events are read, and it is looked whether the window is over.
const STEP: Duration = Duration::from_millis(50);

/// Show where the time of a transfer between guest and host goes, step by step: kick, worker, tap, interrupt, guest's handler.
#[derive(ClapArgs)]
pub struct Args {
    /// Follow this VM alone (a name or process of latpath vms); several are allowed [default: all VMs]
    #[arg(long = "vm", value_name = "NAME")]
    vms: Vec<String>,
    /// Stop after this time (10s, 1m 30s) [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Read the text that trace-cmd report or perf script has printed, instead of following what happens now
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vms", "duration", "cost", "command"])]
    import: Option<PathBuf>,
    /// Let the kernel measure what recording costs (which costs a little more)
    #[arg(long)]
    cost: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Run this command, and follow for as long as it runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Result<Outcome> {
    let (report, outcome) = match &args.import {
        Some(path) => (imported(path)?, Ok(Outcome::Done)),
        None => live(&args)?,
    };
    print(&match args.json {
        true => format!("{}\n", serde_json::to_string(&report)?),
        false => ladder_text(&report, style()),
    })?;
    outcome
}

fn imported(path: &Path) -> Result<LadderReport> {
    let stop = stop_flag()?;
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let imported =
        trace_text::import(&mut BufReader::new(file), &stop).with_context(|| format!("{}", path.display()))?;
    if imported.no_events > 0 {
        eprintln!("latpath: {}: {} of {} lines are no events", path.display(), imported.no_events, imported.lines);
    }
    Ok(imported.report)
}

/// The figures of what happens now, and what the command's end makes of ours.
fn live(args: &Args) -> Result<(LadderReport, Result<Outcome>)> {
    if args.duration == Some(Duration::ZERO) {
        bail!(Usage("--duration 0s leaves nothing to follow".into()));
    }
    let vms = chosen(latpath_vms::find()?.vms, &args.vms)?;
    let (processes, taps) = match args.vms.is_empty() {
        true => Default::default(),
        false => (vms.iter().map(|vm| vm.pid).collect(), vms.iter().flat_map(taps).map(|(tap, _)| tap).collect()),
    };
    let stop = stop_flag()?;
    let names = Names::of_kernel();
    let name_reason = Box::new(move |isa, reason| names.get(isa, reason).into_owned());
    let mut live = Live::start(name_reason, processes, taps, args.cost)?;
    name(live.ladder(), &vms);
    let mut workload = Workload::start(&args.command)?;
    let (began, mut progress) = (Instant::now(), Progress::begin(args.json && !args.command.is_empty()));
    let mut ended = None;
    while !stop.load(Ordering::SeqCst) && args.duration.is_none_or(|time| began.elapsed() < time) {
        ended = workload.as_mut().map(Workload::ended).transpose()?.flatten();
        if ended.is_some() {
            break;
        }
        progress.show(|elapsed| anyhow::Ok(format!("following for {} s", elapsed.as_secs())))?;
        let left = args.duration.map_or(STEP, |time| time.saturating_sub(began.elapsed()));
        std::thread::sleep(left.min(STEP));
        live.step();
    }
    progress.end();
    if let Some(workload) = &mut workload {
        workload.end();
    }
    // Some VMs may have started since.
    name(live.ladder(), &latpath_vms::find().map_or(Vec::new(), |found| found.vms));
    Ok((live.finish(), Workload::verdict(ended)))
}

/// A VM's taps, with their names.
fn taps(vm: &Vm) -> impl Iterator<Item = (Device, &str)> {
    let device = |tap: &latpath_vms::Tap| Some(Device { ifindex: tap.ifindex?, netns: tap.netns? });
    vm.taps.iter().filter_map(move |tap| Some((device(tap)?, tap.device.as_str())))
}

fn name(ladder: &mut Ladder, vms: &[Vm]) {
    for vm in vms {
        ladder.name_vm(vm.pid, &vm.name);
        for (tap, name) in taps(vm) {
            ladder.name_device(tap, name);
            ladder.tap_of(tap, vm.pid);
        }
    }
}
