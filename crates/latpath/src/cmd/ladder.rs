//! `latpath ladder`: one transfer between a guest and its host, step by step.

use super::interrupt::stop_flag;
use super::report::print;
use super::{style, Outcome};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_ladder::{trace_text, LadderReport};
use latpath_report::ladder_text;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Show where the time of a transfer between guest and host goes, step by step: kick, worker, tap, interrupt, guest's handler.
#[derive(ClapArgs)]
pub struct Args {
    /// Read the text that trace-cmd report or perf script has printed
    #[arg(long, value_name = "FILE", required = true)]
    import: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let report = imported(&args.import)?;
    print(&match args.json {
        true => format!("{}\n", serde_json::to_string(&report)?),
        false => ladder_text(&report, style()),
    })?;
    Ok(Outcome::Done)
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
