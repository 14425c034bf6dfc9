//! `latpath live`: shows current figures once a second, and causes of late packets, of streams or of a recorded run.

use super::following::{handle_events, Flight, FollowArgs};
use super::interrupt::stop_flag;
use super::limits::{self, Limits, Measures};
use super::on_spike::SpikeCommand;
use super::report::print;
use super::sync::SyncArgs;
use super::{style, Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_analysis::Limit;
use latpath_capture::RetentionLimits;
use latpath_linux::background::Background;
use latpath_report::Lines;
use latpath_run::Run;
use latpath_screen::{Action, Screen};
use latpath_session::{EndReason, LiveError, LiveOptions, LiveSession, ReplayOptions, Session, State};
use latpath_stats::Summary;
use latpath_timesync::Monitor;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between summaries.
const SHOW: Duration = Duration::from_secs(1);
/// Minimum time from the last output to causes of late packets that are shown between two summaries.
const SOON: Duration = Duration::from_millis(50);
/// Interval between reads of the probes.
const ROUND: Duration = Duration::from_millis(20);
/// Maximum wait for the causes of the last late packets, before the final report.
const LAST_CAUSES: Duration = Duration::from_secs(3);

/// Watch streams while they run: how long each segment of the route takes, once a second.
#[derive(ClapArgs)]
#[command(mut_arg("threshold", |arg| arg.help(THRESHOLD_HELP)))]
pub struct Args {
    #[command(flatten)]
    what: FollowArgs,
    #[command(flatten)]
    flight: Flight,
    /// Replay a recorded run instead of following streams
    #[arg(long, value_name = "RUN", conflicts_with_all = ["no_flight", "worst", "top", "on_spike"])]
    replay: Option<PathBuf>,
    /// Replay speed: seconds of the run per second, or max
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed, requires = "replay")]
    speed: f64,
    #[command(flatten)]
    sync: SyncArgs,
    #[command(flatten)]
    limits: Limits,
    /// Print JSON instead of text: an object each second
    #[arg(long)]
    json: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
    /// Print lines even on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

const THRESHOLD_HELP: &str =
    "Packets are late if they take longer than this, e.g. 200us [default: 200us; with --replay, that of the run]";

enum Show {
    Screen(Box<Screen>),
    Lines(Lines),
    Json,
}

impl Show {
    fn new(args: &Args) -> Result<Self> {
        Ok(match () {
            () if args.json => Self::Json,
            () if args.plain || !std::io::stdout().is_terminal() => Self::Lines(Lines::new(style())),
            () => Self::Screen(Box::new(Screen::start()?)),
        })
    }

    /// Shows a summary. Returns false if the reader is gone.
    fn show(&mut self, summary: &Summary) -> Result<bool> {
        let text = match self {
            Self::Screen(screen) => {
                screen.show(summary)?;
                return Ok(true);
            }
            Self::Lines(lines) => lines.block(summary),
            Self::Json => serde_json::to_string(summary)? + "\n",
        };
        print(&text)
    }

    /// Shows causes of late packets between two summaries. Returns false if the reader is gone.
    fn show_late(&mut self, summary: &Summary) -> Result<bool> {
        match self {
            Self::Screen(screen) => {
                summary.late.iter().try_for_each(|late| screen.show_late(late))?;
                Ok(true)
            }
            Self::Lines(lines) => print(&lines.late_block(summary)),
            Self::Json => self.show(summary),
        }
    }

    /// Waits up to [`ROUND`]; returns the user's action, if any.
    fn wait(&mut self) -> Result<Option<Action>> {
        match self {
            Self::Screen(screen) => Ok(screen.next_event(ROUND)?),
            _ => {
                std::thread::sleep(ROUND);
                Ok(None)
            }
        }
    }
}

/// Parses a speed: seconds of the run per second.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        _ if text == "max" => Ok(f64::INFINITY),
        Ok(factor) if (0.001..=1e6).contains(&factor) => Ok(factor),
        _ => Err("write a factor from 0.001 to 1000000, or max".into()),
    }
}

pub fn run(mut args: Args) -> Result<Outcome> {
    let mut limits = args.limits.all(false)?;
    if args.replay.is_none() {
        args.what.add_segments(args.limits.segments()?);
    }
    let stop = stop_flag()?;
    let mut clocks_watch = None;
    let mut session = match &args.replay {
        Some(run) => replay(run, &args, &mut limits)?,
        None => {
            limits::of_streams(&args.what.all_segments()).refuse_others(&mut limits)?;
            let clocks = Arc::new(args.sync.monitor());
            if !args.sync.wait(&clocks, &stop)? {
                return Ok(Outcome::Done);
            }
            clocks_watch = Some(Arc::clone(&clocks));
            follow(&args, &limits, clocks)?
        }
    };
    let mut show = Show::new(&args)?;
    let screen = matches!(show, Show::Screen(_));
    let command = args.flight.on_spike.begin(screen, None)?;
    let watched = watch(&mut session, &mut show, command.as_ref(), &stop);
    if screen {
        // Restores the terminal before further output.
        show = Show::Lines(Lines::new(style()));
    }
    command.map(SpikeCommand::end);
    watched?;
    let summary = session.stop(LAST_CAUSES);
    if !screen {
        show.show(&summary)?;
    }
    let verdicts = limits::check(&limits, &summary);
    if !args.json {
        let options =
            latpath_report::Options { style: style(), histograms: Vec::new(), covers: None, limits: verdicts.clone() };
        print(&format!("\n{}", latpath_report::text(&summary, None, &options)))?;
    }
    let synchronised = args.sync.outcome(clocks_watch.as_deref(), Outcome::Done);
    Ok(args.limits.announce("latpath live", &verdicts, false)?.or(synchronised))
}

/// Follows streams of this host and other machines.
fn follow(args: &Args, limits: &[Limit], clocks: Arc<Monitor>) -> Result<LiveSession> {
    let background = Background::begin();
    let mut follow = args.what.options(args.quiet)?;
    follow.flight = args.flight.options(follow.threshold, LiveSession::MAX_WAIT, RetentionLimits::default());
    let options = LiveOptions {
        follow,
        named_segments: args.what.segments().to_vec(),
        row_limits: limits::row_limits(limits),
        stop_after: args.what.stop_after(),
        clocks: Some(clocks),
    };
    Ok(LiveSession::follow(options, Some(background))?)
}

fn replay(path: &Path, args: &Args, limits: &mut [Limit]) -> Result<LiveSession> {
    if args.what.names_any() {
        return Err(Usage("--replay shows all of a run: leave out --stream, --machine and --points".into()).into());
    }
    let run = Run::open(path)?;
    let options = ReplayOptions {
        segments: args.what.segments().to_vec(),
        possible_segments: args.limits.segments()?,
        threshold: args.what.threshold(),
        speed: args.speed,
        row_limits: limits::row_limits(limits),
        stop_after: args.what.stop_after(),
    };
    let session = LiveSession::replay(run, options).map_err(|error| match error {
        LiveError::Segment(text) => Usage(text).into(),
        other => anyhow::Error::from(other),
    })?;
    let names = session.layout().segments.iter().map(|s| s.name.clone()).collect();
    Measures { segments: names, steps: None, not: &[] }.refuse_others(limits)?;
    Ok(session)
}

fn watch(session: &mut LiveSession, show: &mut Show, command: Option<&SpikeCommand>, stop: &AtomicBool) -> Result<()> {
    let is_screen = matches!(show, Show::Screen(_));
    let mut due = Instant::now() + SHOW;
    let mut shown = Instant::now();
    loop {
        match show.wait()? {
            Some(Action::Quit) => return Ok(()),
            Some(Action::Reset) => session.reset(),
            Some(Action::Pause(_)) | None => {}
        }
        let is_over = match session.step() {
            // The screen stays at the end of a run until the user quits.
            State::Over(EndReason::EndOfRun) => !is_screen,
            state => matches!(state, State::Over(_)),
        };
        handle_events(session, !is_screen, command, None);
        if is_over || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let is_due = Instant::now() >= due;
        let has_news = shown.elapsed() >= SOON && session.has_news();
        if !is_due && !has_news {
            continue;
        }
        let summary = session.summary();
        shown = Instant::now();
        if !(if is_due { show.show(&summary)? } else { show.show_late(&summary)? }) {
            return Ok(());
        }
        if is_due {
            due += SHOW;
        }
    }
}
