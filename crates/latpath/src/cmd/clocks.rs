//! `latpath clocks`: which programs keep this machine's clocks synchronised, and how well.

use super::interrupt::stop_flag;
use super::report::print;
use super::sync::SyncArgs;
use super::{style, Outcome};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_report::clocks_text;
use latpath_timesync::{ClockReport, ClocksDocument, Monitor, Survey, SyncEvent, SyncRecord};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between two views of `--watch`.
const EVERY: Duration = Duration::from_secs(1);
/// Interval between checks whether to stop.
const POLL: Duration = Duration::from_millis(50);
/// Maximum number of events that a view shows.
const MAX_EVENTS: usize = 20;

/// Show which clock follows which (ptp4l, phc2sys, chronyd, the kernel), their offsets, and how wrong the system clock
/// can be.
#[derive(ClapArgs)]
pub struct Args {
    /// Show the clocks once per second, and what happens to them, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Stop after this time (10s, 1h 30m)
    #[arg(long, value_name = "TIME", requires = "watch", value_parser = super::values::some_time)]
    duration: Option<Duration>,
    #[command(flatten)]
    sync: SyncArgs,
    /// Print JSON instead of text; with --watch, a line per second
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let stop = stop_flag()?;
    if args.watch || args.sync.required().is_some() {
        let monitor = args.sync.monitor();
        if !args.sync.wait(&monitor, &stop)? {
            return Ok(Outcome::Done);
        }
        if args.watch {
            watch(&args, &monitor, &stop)?;
        } else if let Some(report) = monitor.latest() {
            show(&args, report, &[])?;
        }
        return Ok(args.sync.outcome(Some(&monitor), Outcome::Done));
    }
    show(&args, Survey::new(args.sync.survey()).read(), &[])?;
    Ok(Outcome::Done)
}

/// Prints a view. Returns false if the reader is gone.
fn show(args: &Args, clocks: ClockReport, events: &[SyncEvent]) -> Result<bool> {
    if args.json {
        return print(&(serde_json::to_string(&ClocksDocument { clocks, events: events.to_vec() })? + "\n"));
    }
    let text = clocks_text(&clocks, events, style());
    match args.watch && std::io::stdout().is_terminal() {
        // Clears the screen first.
        true => {
            use std::io::Write;
            let mut out = std::io::stdout().lock();
            let cleared = out.write_all(b"\x1b[H\x1b[2J").and_then(|()| out.flush());
            drop(out);
            Ok(cleared.is_ok() && print(&text)?)
        }
        false => print(&(text + if args.watch { "\n" } else { "" })),
    }
}

fn watch(args: &Args, monitor: &Monitor, stop: &AtomicBool) -> Result<()> {
    let begun = Instant::now();
    let mut events: Vec<SyncEvent> = Vec::new();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) && args.duration.is_none_or(|most| begun.elapsed() < most) {
        let ready = monitor.latest().filter(|_| Instant::now() >= due);
        let Some(report) = ready else {
            std::thread::sleep(POLL);
            continue;
        };
        due += EVERY;
        let new = monitor.take().into_iter().filter_map(|record| match record {
            SyncRecord::Event(event) => Some(event),
            SyncRecord::Sample(_) => None,
        });
        if args.json {
            events = new.collect();
        } else {
            // The report at an event's end replaces that of its beginning.
            for event in new {
                events.retain(|earlier| earlier.number != event.number);
                events.push(event);
            }
            let many = events.len().saturating_sub(MAX_EVENTS);
            events.drain(..many);
        }
        if !show(args, report, &events)? {
            return Ok(());
        }
    }
    Ok(())
}
