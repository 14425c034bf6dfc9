//! `latpath mark`: adds a note at a time of a run.

use super::{Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_analysis::{instant, When};
use latpath_linux::{monotonic, proc::boot_id};
use latpath_model::text::printable;
use latpath_run::{Condition, Mark, Run};
use latpath_stats::units::elapsed;
use std::path::PathBuf;

/// Mark the current time in a run, e.g. "iperf on"; reports show the mark, and --from and --to accept it as '@iperf
/// on'.
#[derive(ClapArgs)]
pub struct Args {
    /// The run: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Text of the mark
    #[arg(value_name = "TEXT")]
    text: String,
    /// Time of the event, if not now: time since the run's start (90s), or UTC (2026-01-02T03:04:05Z)
    #[arg(long, value_name = "TIME")]
    at: Option<When>,
}

pub fn run(args: Args) -> Result<Outcome> {
    let run = Run::open(&args.run)?;
    let manifest = run.manifest();
    if args.text.trim().is_empty() {
        bail!(Usage("TEXT is empty: say what happens".into()));
    }
    let t_ns = match &args.at {
        Some(at) => instant(at, manifest, run.marks()).map_err(Usage)?,
        None if *run.condition() == Condition::Recording && manifest.host.boot_id == boot_id() => monotonic(),
        None => bail!(Usage(format!(
            "{}: is not being recorded on this machine now; say when it happened with --at",
            args.run.display()
        ))),
    };
    let mark = Mark::new(t_ns, args.text.trim());
    mark.add(&args.run)?;
    let since = elapsed(t_ns.saturating_sub(manifest.start.monotonic_ns));
    eprintln!(
        "latpath: marked at {since} of {}: {}",
        printable(&args.run.display().to_string()),
        printable(&mark.text)
    );
    Ok(Outcome::Done)
}
