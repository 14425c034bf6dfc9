//! `latpath tune apply`.

use super::super::interrupt::stop_flag;
use super::super::report::{print, print_as};
use super::super::values::some_time;
use super::watching::Watching;
use super::{guard, need_root, planned, show, ProfileArgs};
use super::{Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_tune::{Applied, ApplyOptions, Machine, NoWatch, Plan, Progress, StopCause, TuneDocument, Tuning, Watch};
use latpath_undo::Journal;
use std::io::{BufRead, IsTerminal, Write};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Make the changes of a plan while watching a stream
///
/// Watches the stream after each step. If a packet is then lost or late, the change ends and all steps are reverted. To
/// undo a completed change, use latpath tune undo.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath tune apply sv-hypervisor --isolated 2-7 --stream svid:MU01
  latpath tune apply sv-hypervisor --isolated 2-7 --stream svid:MU01 --yes --confirm 60s   # over ssh
  latpath tune confirm sv-hypervisor
  latpath tune apply tsn-host --interface eth0 --irq-cpu 1 --isolated 2-3 --no-watch")]
pub struct Apply {
    #[command(flatten)]
    what: ProfileArgs,
    #[command(flatten)]
    watching: Watching,
    /// Do not ask before the first change
    #[arg(short, long)]
    yes: bool,
    /// Continue after a step that disturbs the stream or fails
    #[arg(long)]
    force: bool,
    /// Revert everything after this time unless latpath tune confirm is called, even if this terminal is closed
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    confirm: Option<Duration>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Apply) -> Result<Outcome> {
    let is_watched = args.watching.is_on()?;
    let profile = args.what.profile()?;
    let variables = args.what.variables.variables();
    let machine = Machine::this(&variables.interfaces);
    let plan = planned(&profile, &variables, &machine)?;
    need_root("apply")?;
    if !args.json {
        print(&show::plan(&plan, false))?;
    }
    if plan.steps.is_empty() {
        if args.json {
            print_as(true, || TuneDocument::Applied(Box::new(nothing(&plan))), String::new)?;
        }
        return Ok(Outcome::Done);
    }
    if !args.yes && !asked(&plan)? {
        eprintln!("latpath: nothing was changed");
        return Ok(Outcome::Done);
    }
    let stop = stop_flag()?;
    let mut watch: Box<dyn Watch> = match is_watched {
        true => Box::new(args.watching.start(stop.clone())?),
        false => {
            eprintln!("latpath: no stream is watched: what the steps disturb is not seen");
            Box::new(NoWatch)
        }
    };
    let applied = make(&args, &machine, &plan, watch.as_mut(), &stop)?;
    let stopped = applied.stopped.clone();
    let text = show::applied(&applied);
    print_as(args.json, || TuneDocument::Applied(Box::new(applied)), || text)?;
    match &stopped {
        None => Ok(Outcome::Done),
        Some(stopped) if stopped.cause == StopCause::Traffic => Ok(Outcome::LimitBroken),
        Some(stopped) => bail!("{}: {}", stopped.step, stopped.why),
    }
}

fn make(args: &Apply, machine: &Machine, plan: &Plan, watch: &mut dyn Watch, stop: &AtomicBool) -> Result<Applied> {
    let tuning = Tuning::new(machine, Journal::of_this_machine());
    let options = ApplyOptions { force: args.force, unconfirmed: args.confirm.is_some() };
    let is_text = !args.json;
    let mut report = |progress: Progress| match progress {
        Progress::Baseline if args.watching.is_on().unwrap_or(false) => {
            eprintln!("latpath: measuring the traffic before the first step");
        }
        Progress::Baseline => {}
        Progress::Step(step) if is_text => drop(print(&show::step(step))),
        Progress::Step(_) => {}
        Progress::Again(changes) => {
            eprintln!("latpath: {changes} settings were reset by the steps; setting them again")
        }
        Progress::Reverting(stopped) => eprintln!("latpath: {}: {}; taking everything back", stopped.step, stopped.why),
    };
    let applied = tuning.apply(plan, watch, options, stop, &mut report)?;
    if let (Some(time), true) = (args.confirm, applied.unconfirmed) {
        if let Err(error) = guard::start(&applied.subject, time) {
            let messages = tuning.undo(&applied.subject)?;
            bail!("{error:#}; everything was taken back: {}", messages.join("; "));
        }
        tuning.hand_over(&applied.subject)?;
        eprintln!(
            "latpath: taken back in {} unless you enter: latpath tune confirm {}",
            humantime::format_duration(time),
            applied.subject
        );
    }
    Ok(applied)
}

/// The result of an apply that changes nothing.
fn nothing(plan: &Plan) -> Applied {
    Applied {
        profile: plan.profile.clone(),
        subject: plan.subject(),
        steps: Vec::new(),
        stopped: None,
        reverted: Vec::new(),
        not_reverted: Vec::new(),
        unconfirmed: false,
    }
}

/// Asks the user at a terminal.
fn asked(plan: &Plan) -> Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        bail!(Usage("not at a terminal: --yes makes the changes without asking; latpath tune plan shows them".into()));
    }
    let changes = latpath_stats::units::number_of(plan.changes() as u64, "change");
    eprint!("Make {changes}? [y/N] ");
    std::io::stderr().flush()?;
    let mut line = String::new();
    input.lock().read_line(&mut line)?;
    Ok(["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()))
}
