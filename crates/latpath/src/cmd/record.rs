//! `latpath record`: records every journey on disk, and the events of all machines around late packets.

mod spikes;

use super::following::{handle_events, Flight, FollowArgs};
use super::interrupt::stop_flag;
use super::limits::{self, Limits};
use super::on_spike::SpikeCommand;
use super::progress::Progress;
use super::report::print;
use super::sync::SyncArgs;
use super::{quoted, Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_analysis::{summarise, SummaryOptions};
use latpath_linux::background::Background;
use latpath_model::text::printable;
use latpath_run::Run;
use latpath_session::{RecordOptions, RecordProgress, RecordSession, Session, TraceOptions};
use latpath_stats::units::{bytes, count, number_of};
use latpath_stats::utc_steps;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Interval between reads of the probes' ring buffers, which hold many times what arrives in this time.
const ROUND: Duration = Duration::from_millis(5);

/// Record every packet's journey into a directory, for report and other tools.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    what: FollowArgs,
    #[command(flatten)]
    flight: Flight,
    #[command(flatten)]
    spikes: spikes::Args,
    /// Stop when the recording has this size on disk, e.g. 20GiB; packets in progress are still written
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    #[command(flatten)]
    sync: SyncArgs,
    #[command(flatten)]
    limits: Limits,
    /// Directory to create for the recording
    #[arg(short, long, value_name = "RUN")]
    output: PathBuf,
    /// Print JSON instead of text: the run's manifest, at the end
    #[arg(long)]
    json: bool,
    /// Replace existing files: an earlier run, once this one begins
    #[arg(long)]
    force: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// Parses a size into bytes: `20GiB`, `20G` and `20480M` are the same; `20GB` is smaller.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?}: write a size, e.g. 500MiB or 20GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (letter, rest) = unit.split_at(unit.chars().next().map_or(0, char::len_utf8));
    let power = "KMGT".find(letter).filter(|_| !letter.is_empty()).ok_or_else(wrong)? as u32 + 1;
    let base = match rest {
        "" | "iB" => 1024,
        "B" => 1000_u64,
        _ => return Err(wrong()),
    };
    let bytes = number.parse().ok().and_then(|n: u64| n.checked_mul(base.pow(power)));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

pub fn run(mut args: Args) -> Result<Outcome> {
    let background = Background::begin();
    let mut limits = args.limits.all(false)?;
    args.what.add_segments(args.limits.segments()?);
    limits::of_streams(&args.what.all_segments()).refuse_others(&mut limits)?;
    let mut options = args.options()?;
    let stop = stop_flag()?;
    let clocks = Arc::new(args.sync.monitor());
    if !args.sync.wait(&clocks, &stop)? {
        return Ok(Outcome::Done);
    }
    options.clocks = Some(Arc::clone(&clocks));
    let command = args.flight.on_spike.begin(false, None)?;
    let mut session = RecordSession::start(options, Some(background))?;
    let mut progress = Progress::begin(args.quiet);
    session.run_until(&stop, ROUND, |session| {
        handle_events(session, true, command.as_ref(), Some(&args.output));
        // Showing the progress cannot fail.
        let _ = progress.show(|_| Ok::<_, Infallible>(line(&session.progress())));
        ControlFlow::Continue(())
    });
    let recorded = session.stop();
    progress.end();
    handle_events(&mut session, true, command.as_ref(), Some(&args.output));
    command.map(SpikeCommand::end);
    let manifest = recorded?;
    let path = args.output.display();
    if args.json {
        print(&(serde_json::to_string(&manifest)? + "\n"))?;
    } else if !args.quiet {
        if let Some(note) = utc_steps(&manifest) {
            eprintln!("latpath: {note}");
        }
        let n = number_of(manifest.journeys, "journey");
        let run = quoted(&args.output);
        eprintln!("recorded {n} in {}; read them with: latpath report {run}", printable(&path.to_string()));
        if let Some(line) = manifest.spikes.as_ref().and_then(spikes::described) {
            eprintln!("{line}: latpath explain {run}");
        }
    }
    let synchronised = args.sync.outcome(Some(&clocks), Outcome::Done);
    if limits.is_empty() {
        return Ok(synchronised);
    }
    let options = SummaryOptions { row_limits: limits::row_limits(&limits), ..SummaryOptions::default() };
    let summary = summarise(&Run::open(&args.output)?, &options).map_err(Usage)?;
    let verdicts = limits::check(&limits, &summary);
    Ok(args.limits.announce(&path.to_string(), &verdicts, false)?.or(synchronised))
}

impl Args {
    fn options(&self) -> Result<RecordOptions> {
        let mut follow = self.what.options(self.quiet)?;
        let retention = self.spikes.retention(self.flight.per_minute());
        follow.flight = self.flight.options(follow.threshold, self.spikes.max_wait(), retention);
        let events = || super::ping::EVENTS.split(',').map(str::to_string).collect();
        let trace = self.spikes.trace_instance.clone().map(|name| TraceOptions { name, events: events() });
        Ok(RecordOptions {
            follow,
            named_segments: self.what.segments().to_vec(),
            output: self.output.clone(),
            replace: self.force,
            stop_after: self.what.stop_after(),
            max_size: self.max_size,
            stop_on_spike: self.spikes.stop,
            trace,
            clocks: None,
        })
    }
}

fn line(progress: &RecordProgress) -> String {
    let dropped = progress.sightings_dropped;
    let lost = if dropped > 0 { format!(", {} SIGHTINGS DROPPED", count(dropped)) } else { String::new() };
    let spikes = progress.spikes.as_ref().and_then(spikes::described).map_or(String::new(), |s| format!(", {s}"));
    let (seconds, journeys) = (progress.elapsed_ns / 1_000_000_000, count(progress.journeys));
    format!("{seconds:>5} s  {journeys} journeys, {} written{spikes}{lost}", bytes(progress.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_are_not_nothing() {
        let sizes = ["1K", "20GiB", "20G", "5MB"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [1 << 10, 20 << 30, 20 << 30, 5_000_000]);
        for text in ["", "20", "GiB", "0K", "1.5GiB", "20 GiB", "1€", "1Gib", "99999999999T", "-1K"] {
            assert!(size(text).unwrap_err().contains("20GiB"), "{text}");
        }
    }
}
