//! `latpath ladder`: one transfer between a guest and its host, step by step.

use super::interrupt::stop_flag;
use super::window::{Measured, Shown, Window};
use super::{style, Outcome};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_ladder::{trace_text, Device, Ladder, LadderReport, Live};
use latpath_report::ladder_text;
use latpath_vms::{exit_reason::Names, Vm};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Show where the time of a transfer between guest and host goes, step by step: kick, worker, tap, interrupt, guest's
/// handler.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Read this file instead: the text that trace-cmd report or perf script has printed
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["vms", "duration", "cost", "command"])]
    read: Option<PathBuf>,
    /// Let the kernel measure what watching costs (which costs a little more)
    #[arg(long)]
    cost: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let measured = match &args.read {
        Some(path) => (imported(path)?, Ok(Outcome::Done)),
        None => {
            let stop = args.window.prepare()?;
            measure(&args.window, &stop, args.cost, args.json)?
        }
    };
    Shown { json: args.json, text: &|report| ladder_text(report, style()), notes: &|_| Vec::new() }.print(measured)
}

fn imported(path: &Path) -> Result<LadderReport> {
    let stop = stop_flag()?;
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let imported =
        trace_text::import(&mut BufReader::new(file), &stop).with_context(|| format!("{}", path.display()))?;
    if imported.no_events > 0 {
        eprintln!(
            "latpath: {}: lines that are no events: {} of {}",
            path.display(),
            imported.no_events,
            imported.lines
        );
    }
    Ok(imported.report)
}

pub(super) fn measure(window: &Window, stop: &AtomicBool, cost: bool, quiet: bool) -> Measured<LadderReport> {
    let vms = window.vms()?;
    let (processes, taps) = match window.vms.is_empty() {
        true => Default::default(),
        false => (vms.iter().map(|vm| vm.pid).collect(), vms.iter().flat_map(taps).map(|(tap, _)| tap).collect()),
    };
    let names = Names::of_kernel();
    let name_reason = Box::new(move |isa, reason| names.get(isa, reason).into_owned());
    let mut live = Live::start(name_reason, processes, taps, cost)?;
    name(live.ladder(), &vms);
    let passed = window.pass(stop, quiet, || live.step())?;
    let outcome = passed.outcome();
    name(live.ladder(), &window.vms_now(vms));
    Ok((live.finish(), outcome))
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
