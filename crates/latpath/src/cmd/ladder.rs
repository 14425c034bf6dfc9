//! `latpath ladder`: shows transfers between a guest and its host, step by step.

use super::interrupt::stop_flag;
use super::window::{run as watch, show, Window};
use super::{style, Outcome};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_ladder::{trace_text, LadderFigures};
use latpath_model::Observation;
use latpath_observe::{Ladder, LadderOptions};
use latpath_report::ladder_text;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Show where the time of a transfer between guest and host goes, step by step: kick, worker, tap, interrupt, guest's
/// handler.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Read this file instead: the output of trace-cmd report or perf script
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["vms", "duration", "cost", "command"])]
    read: Option<PathBuf>,
    /// Measure the cost of the eBPF programs (which increases it slightly)
    #[arg(long)]
    cost: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let text = |seen: &Observation<LadderFigures>| ladder_text(seen, style());
    match &args.read {
        Some(path) => show((imported(path)?, Ok(Outcome::Done)), args.json, text),
        None => watch::<Ladder>(&args.window, LadderOptions { cost: args.cost }, args.json, text),
    }
}

fn imported(path: &Path) -> Result<Observation<LadderFigures>> {
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
