//! `latpath live`: figures of the moment, once a second, and why packets are late.

use super::following::{Absent, End, Flight, What};
use super::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_capture::RetentionLimits;
use latpath_follow::{Live, Options};
use latpath_linux::background::Background;
use latpath_report::{Lines, LiveExplainer};
use latpath_screen::{Action, Screen};
use latpath_stats::units::Letters;
use latpath_stats::Summary;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two summaries.
const SHOW: Duration = Duration::from_secs(1);
/// Between them what held late packets is shown as soon as it is known, but not sooner after what was shown before.
const SOON: Duration = Duration::from_millis(200);
/// Between two looks at the probes.
const ROUND: Duration = Duration::from_millis(20);

/// Watch streams while they run: how long each segment of the way takes, once a second.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    flight: Flight,
    /// Print one JSON object a second
    #[arg(long)]
    json: bool,
    /// Print lines, also on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

/// Where the summaries go.
enum Show {
    Screen(Box<Screen>),
    Lines(Lines),
    Json,
}

impl Show {
    fn new(args: &Args) -> Result<Self> {
        Ok(match () {
            () if args.json => Self::Json,
            () if args.plain || !std::io::stdout().is_terminal() => Self::Lines(Lines::new(Letters::from_env())),
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
            Self::Lines(lines) => {
                let text = lines.late_block(summary);
                print(&text)
            }
            Self::Json => self.show(summary),
        }
    }

    /// Waits a little; what the user did meanwhile, if it ends or changes the watching.
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

/// False if nobody reads any more.
fn print(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    let mut options = args.what.options()?;
    options.flight = args.flight.options(options.threshold, LiveExplainer::MAX_WAIT, RetentionLimits::default());
    let background = Background::new();
    let mut end = End::new(&args.what)?;
    let mut watch = Live::start(options.clone())?;
    let mut show = Show::new(&args)?;
    end.begin(&args.what);
    let mut explainer = options.flight.is_some().then(|| LiveExplainer::start(&options.streams)).transpose()?;
    watch.enter_background(background);
    let finished = follow(&mut watch, &mut explainer, &mut show, &end, &options);
    // The terminal is given back before anything else is said.
    let screen = matches!(show, Show::Screen(_));
    if finished.is_ok() && !screen {
        watch.stop();
        show.show(&summary(&mut watch, &mut explainer))?;
    }
    drop(show);
    finished?;
    Ok(Outcome::Done)
}

/// The figures, and what is known of late packets by now.
fn summary(watch: &mut Live, explainer: &mut Option<LiveExplainer>) -> Summary {
    let mut summary = watch.summary();
    let late = watch.follow().late().map_or(0, |counted| counted.late.iter().sum());
    summary.late = explainer.as_mut().map(|explainer| explainer.figures(late));
    summary
}

fn follow(
    watch: &mut Live,
    explainer: &mut Option<LiveExplainer>,
    show: &mut Show,
    end: &End,
    options: &Options,
) -> Result<()> {
    let quiet = matches!(show, Show::Screen(_));
    let mut absent = Absent::new(&options.streams);
    let mut due = Instant::now() + SHOW;
    let (mut packets, mut shown) = (0, Instant::now());
    loop {
        match show.wait()? {
            Some(Action::Quit) => return Ok(()),
            Some(Action::Reset) => {
                watch.reset();
                explainer.iter_mut().for_each(LiveExplainer::reset);
            }
            Some(Action::Pause(_)) | None => {}
        }
        watch.step();
        while let Some(frozen) = watch.next_capture() {
            if let Some(explainer) = explainer {
                let (points, layout) = (watch.follow().points().to_vec(), watch.follow().layout().clone());
                explainer.take(frozen, points, layout.route, layout.segments);
            }
        }
        if end.is_due(packets) {
            return Ok(());
        }
        let is_due = Instant::now() >= due;
        let has_news = shown.elapsed() >= SOON && explainer.as_ref().is_some_and(LiveExplainer::has_news);
        if !is_due && !has_news {
            continue;
        }
        let summary = summary(watch, explainer);
        packets = summary.journeys;
        shown = Instant::now();
        if !(if is_due { show.show(&summary)? } else { show.show_late(&summary)? }) {
            return Ok(());
        }
        if !is_due {
            continue;
        }
        due += SHOW;
        if !quiet {
            let seen = watch.seen();
            absent.look(|i| seen[i]);
        }
    }
}
