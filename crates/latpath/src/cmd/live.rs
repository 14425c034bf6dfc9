//! `latpath live`: figures of the moment, once a second, and why packets are late; of streams or of a recorded run.

use super::following::{Absent, End, Flight, What};
use super::limits::{self, Limits, Measures};
use super::report::print;
use super::{style, Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_analysis::{layout_of, possible_segments, Limit, LiveExplainer};
use latpath_capture::RetentionLimits;
use latpath_follow::Live;
use latpath_linux::background::Background;
use latpath_model::{Ns, StreamSpec};
use latpath_report::{Lines, Replay};
use latpath_run::Run;
use latpath_screen::{Action, Screen};
use latpath_stats::Summary;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of summaries.
const SHOW: Duration = Duration::from_secs(1);
/// Minimum time from anything shown to causes of late packets shown between two summaries.
const SOON: Duration = Duration::from_millis(50);
/// Interval of reading the probes.
const ROUND: Duration = Duration::from_millis(20);
/// Maximum wait for the causes of the last late packets, before the final report.
const LAST_CAUSES: Duration = Duration::from_secs(3);

/// Watch streams while they run: how long each segment of the route takes, once a second.
#[derive(ClapArgs)]
#[command(mut_arg("threshold", |arg| arg.help(THRESHOLD_HELP)))]
pub struct Args {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    flight: Flight,
    /// Show a recorded run as it was, instead of streams
    #[arg(long, value_name = "RUN", conflicts_with_all = ["no_flight", "worst", "top"])]
    replay: Option<PathBuf>,
    /// Seconds of the run that pass in one second; max: as fast as it can be read
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed, requires = "replay")]
    speed: f64,
    #[command(flatten)]
    limits: Limits,
    /// Print JSON instead of text: an object each second
    #[arg(long)]
    json: bool,
    /// Print lines, also on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

const THRESHOLD_HELP: &str =
    "Times over this are late, as 200us [default: 200us; with --replay what the run was recorded with]";

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

    /// Shows a summary. False if nobody reads any more.
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

    /// Shows what held late packets, between two summaries. False if nobody reads any more.
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

    /// Waits a little; returns what the user did, if it ends or changes the watching.
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

/// How many seconds of a run pass in one second.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        _ if text == "max" => Ok(f64::INFINITY),
        Ok(factor) if (0.001..=1e6).contains(&factor) => Ok(factor),
        _ => Err("write a factor from 0.001 to 1000000, or max".into()),
    }
}

enum Source {
    Live(Box<Live>),
    Replay(Box<Replay>),
}

impl Source {
    fn step(&mut self) {
        match self {
            Self::Live(live) => live.step(),
            Self::Replay(replay) => replay.step(),
        }
    }

    fn reset(&mut self) {
        match self {
            Self::Live(live) => live.reset(),
            Self::Replay(replay) => replay.reset(),
        }
    }

    fn seen(&self) -> &[u64] {
        match self {
            Self::Live(live) => live.seen(),
            Self::Replay(replay) => replay.seen(),
        }
    }

    /// Hands a capture over to be explained. False if there is none.
    fn explain_next(&mut self, explainer: &mut LiveExplainer) -> bool {
        match self {
            Self::Live(live) => {
                let next = live.follow.next_capture();
                let time_of_day = live.time_of_day();
                next.map(|capture| explainer.take(capture, live.follow.points(), live.follow.layout(), time_of_day))
            }
            Self::Replay(replay) => {
                let next = replay.next_capture();
                let (run, layout) = (replay.run(), replay.layout());
                next.map(|capture| explainer.take(capture, run.points(), layout, run.manifest().time_of_day()))
            }
        }
        .is_some()
    }

    /// The figures, and what is known of late packets by now.
    fn summary(&mut self, explainer: &mut Option<LiveExplainer>, at_the_end: bool) -> Summary {
        let (mut summary, late) = match self {
            Self::Live(live) => {
                let summary = if at_the_end { live.final_summary() } else { live.summary() };
                (summary, live.follow.late().map_or(0, |counted| counted.late.iter().sum()))
            }
            Self::Replay(replay) => (replay.summary(), replay.late()),
        };
        summary.late = explainer.as_mut().map(|explainer| explainer.figures(late));
        summary
    }
}

pub fn run(mut args: Args) -> Result<Outcome> {
    let mut limits = args.limits.all(false)?;
    if args.replay.is_none() {
        args.what.add_segments(args.limits.segments()?);
    }
    let mut end = End::new(&args.what)?;
    let (mut source, streams, mut explainer) = match &args.replay {
        Some(run) => replay(run, &args, &mut limits)?,
        None => {
            limits::of_streams(&args.what.all_segments(), NOT_MEASURED).refuse_others(&mut limits)?;
            follow(&args, limits::row_limits(&limits))?
        }
    };
    let mut show = Show::new(&args)?;
    end.begin(&args.what);
    let absent = Absent::new(&streams, &args.what);
    let watched = watch(&mut source, &mut explainer, &mut show, &end, absent);
    let screen = matches!(show, Show::Screen(_));
    if screen {
        // The terminal is given back before anything else is said.
        show = Show::Lines(Lines::new(style()));
    }
    watched?;
    if let Source::Live(live) = &mut source {
        live.stop();
    }
    if let Some(explainer) = &mut explainer {
        while source.explain_next(explainer) {}
        explainer.finish(LAST_CAUSES);
    }
    let summary = source.summary(&mut explainer, true);
    if !screen {
        show.show(&summary)?;
    }
    let verdicts = limits::check(&limits, &summary);
    if !args.json {
        let options =
            latpath_report::Options { style: style(), histograms: Vec::new(), covers: None, limits: verdicts.clone() };
        print(&format!("\n{}", latpath_report::text(&summary, None, &options)))?;
    }
    args.limits.announce("latpath live", &verdicts, false)
}

/// What only reports measure.
const NOT_MEASURED: &[&str] = &["pacing"];

type Watched = (Source, Vec<StreamSpec>, Option<LiveExplainer>);

/// Follows streams of this host and other machines.
fn follow(args: &Args, row_limits: Vec<Ns>) -> Result<Watched> {
    let background = Background::begin();
    let mut options = args.what.options(false)?;
    options.flight = args.flight.options(options.threshold, LiveExplainer::MAX_WAIT, RetentionLimits::default());
    let streams = options.streams.clone();
    let explains = options.flight.is_some();
    let mut live = Live::start(options)?;
    live.find_rows_over(row_limits);
    let explainer = explains.then(|| LiveExplainer::start(&streams, live.follow.qdiscs())).transpose()?;
    live.follow.keep_background(background);
    Ok((Source::Live(Box::new(live)), streams, explainer))
}

fn replay(path: &Path, args: &Args, limits: &mut [Limit]) -> Result<Watched> {
    if args.what.names_any() {
        return Err(Usage("--replay shows all of a run: leave out --stream, --machine and --points".into()).into());
    }
    let run = Run::open(path)?;
    let streams = run.manifest().streams.clone();
    let explainer = run.manifest().spikes.is_some().then(|| LiveExplainer::for_run(&run)).transpose()?;
    let of_profile = possible_segments(&run, args.what.segments(), args.limits.segments()?).map_err(Usage)?;
    let (segments, threshold) = (&[args.what.segments(), &of_profile].concat(), args.what.threshold());
    let layout = layout_of(&run, segments).map_err(Usage)?;
    let names = layout.segments.into_iter().map(|s| s.name).collect();
    Measures { segments: names, steps: None, not: NOT_MEASURED }.refuse_others(limits)?;
    let mut replay = Replay::start(run, segments, args.speed, threshold).map_err(Usage)?;
    replay.find_rows_over(limits::row_limits(limits));
    Ok((Source::Replay(Box::new(replay)), streams, explainer))
}

fn watch(
    source: &mut Source,
    explainer: &mut Option<LiveExplainer>,
    show: &mut Show,
    end: &End,
    mut absent: Absent,
) -> Result<()> {
    let quiet = matches!((&show, &source), (Show::Screen(_), _) | (_, Source::Replay(_)));
    let mut due = Instant::now() + SHOW;
    let mut shown = Instant::now();
    loop {
        match show.wait()? {
            Some(Action::Quit) => return Ok(()),
            Some(Action::Reset) => {
                source.reset();
                explainer.iter_mut().for_each(LiveExplainer::reset);
            }
            Some(Action::Pause(_)) | None => {}
        }
        source.step();
        if let Some(explainer) = explainer {
            while source.explain_next(explainer) {}
        }
        // On the screen a run's end stays until the user leaves it.
        let is_over =
            matches!((&source, &show), (Source::Replay(replay), Show::Lines(_) | Show::Json) if replay.is_over());
        if end.is_due(source.seen().iter().sum()) || is_over {
            return Ok(());
        }
        let is_due = Instant::now() >= due;
        let has_news = shown.elapsed() >= SOON && explainer.as_ref().is_some_and(LiveExplainer::has_news);
        if !is_due && !has_news {
            continue;
        }
        let summary = source.summary(explainer, false);
        shown = Instant::now();
        if !(if is_due { show.show(&summary)? } else { show.show_late(&summary)? }) {
            return Ok(());
        }
        if !is_due {
            continue;
        }
        due += SHOW;
        if !quiet {
            absent.check(|i| source.seen()[i]);
            if let Source::Live(live) = &*source {
                absent.check_points(&live.follow, false);
            }
        }
    }
}
