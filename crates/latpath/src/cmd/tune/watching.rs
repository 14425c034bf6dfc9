//! Watches live streams while settings change.

use super::super::following::{event_line, machine};
use super::super::values::{some_time, time};
use super::super::{ns, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_agent::Address;
use latpath_follow::{Options, PointFilter};
use latpath_linux::background::Background;
use latpath_model::{Ns, SegmentKind, StreamSpec};
use latpath_session::{LiveOptions, LiveSession, Session, State};
use latpath_stats::figures::{never_seen, packets};
use latpath_stats::Summary;
use latpath_tune::{Baseline, Effect, Exact, Observed, Planned, Watch};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between reads of the probes.
const ROUND: Duration = Duration::from_millis(10);
/// Maximum wait for the first packet at the end of the route.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is watched while settings change.
#[derive(ClapArgs, Debug)]
pub struct Watching {
    /// Stream to follow, e.g. svid:MU01; a step after which one of its packets is lost or late is reverted; can be
    /// repeated
    #[arg(short, long = "stream", value_name = "STREAM")]
    streams: Vec<StreamSpec>,
    /// Change settings without watching a stream
    #[arg(long, conflicts_with = "streams")]
    no_watch: bool,
    /// Also watch this machine, where an agent runs, e.g. guest0=ssh:root@guest; can be repeated
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS", value_parser = machine, requires = "streams")]
    machines: Vec<(String, Address)>,
    /// Only use points that match this pattern, e.g. host/nic-rx@eth0; can be repeated [default: all that see the
    /// stream]
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', requires = "streams")]
    points: Vec<String>,
    /// Packets are late if they take longer than this [default: 3 times the p99.9 before the first step, or twice the
    /// maximum]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "streams")]
    threshold: Option<Duration>,
    /// Time for which the stream is measured before the first step
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = some_time)]
    baseline: Duration,
    /// Wait this long after each step while watching the stream
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = some_time)]
    settle: Duration,
    /// Packets that take longer than this count as lost
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = some_time)]
    window: Duration,
}

impl Watching {
    /// Whether a stream is watched.
    ///
    /// # Errors
    /// If the user neither names a stream nor requests that nothing be watched.
    pub fn is_on(&self) -> Result<bool, Usage> {
        match (self.streams.is_empty(), self.no_watch) {
            (false, _) => Ok(true),
            (true, true) => Ok(false),
            (true, false) => Err(Usage(
                "name the stream that must not suffer, as --stream svid:MU01 (latpath streams lists them), or \
                 --no-watch if there is none"
                    .into(),
            )),
        }
    }

    /// Attaches to the streams.
    ///
    /// # Errors
    /// If a machine cannot be reached, or the programs cannot be attached.
    pub fn start(&self, stop: Arc<AtomicBool>) -> Result<LiveWatch> {
        let mut follow = Options::new(self.streams.clone());
        follow.machines = self.machines.clone();
        follow.points = PointFilter::new(self.points.clone());
        follow.window = ns(self.window);
        let session = LiveSession::follow(LiveOptions::new(follow), Some(Background::begin()))?;
        Ok(LiveWatch {
            session,
            stop,
            baseline: Baseline::default(),
            threshold: self.threshold.map(ns),
            before: self.baseline,
            settle: self.settle + self.window,
        })
    }
}

/// A live view of streams during changes. It counts from the end of one step's observation to the end of the next, so
/// that the change itself is included.
pub struct LiveWatch {
    session: LiveSession,
    stop: Arc<AtomicBool>,
    baseline: Baseline,
    threshold: Option<Ns>,
    before: Duration,
    settle: Duration,
}

impl LiveWatch {
    /// Follows the streams for this time, or until the user stops it.
    fn follow(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
            if let State::Over(why) = self.session.step() {
                return Err(format!("the view of the stream ended ({why:?})"));
            }
            while let Some(event) = self.session.next_event() {
                event_line(&event).into_iter().for_each(|line| eprintln!("latpath: {line}"));
            }
            std::thread::sleep(ROUND);
        }
        Ok(())
    }

    fn observed(&mut self) -> Observed {
        let summary = self.session.summary();
        self.session.reset();
        observed(&summary)
    }
}

/// The reason why nothing can be watched: no packet was seen, or none at the end of the route.
fn none_complete(summary: &Summary) -> String {
    let seconds = PATIENCE.as_secs();
    match (summary.journeys, summary.points.last()) {
        (1.., Some(end)) => {
            format!(
                "none of {} packets of the stream came to {end}, the end of its route, within {seconds} s",
                summary.journeys
            )
        }
        _ => format!(
            "no packet of the stream was seen within {seconds} s; latpath streams lists the streams of this machine"
        ),
    }
}

/// The figures of a summary, from the first point of the route to the last.
fn observed(summary: &Summary) -> Observed {
    let total = summary.segments.iter().find(|segment| segment.kind == SegmentKind::Total);
    let buckets = total.map_or(&[][..], |total| &total.histogram);
    let longest = total.map_or(0, |total| total.times.max_ns);
    Observed {
        elapsed_ns: summary.elapsed_ns,
        packets: summary.journeys,
        lost: packets(&summary.lost).saturating_add(never_seen(summary)),
        exact: total.filter(|total| total.times.count > 0).map(|total| Exact {
            p50: total.times.p50_ns,
            p99: total.times.p99_ns,
            p99_9: total.times.p99_9_ns,
            max: total.times.max_ns,
        }),
        latencies: buckets.iter().map(|one| (one.from_ns, one.to_ns.min(longest), one.count)).collect(),
    }
}

impl Watch for LiveWatch {
    fn begin(&mut self) -> Result<(), String> {
        let limit = Instant::now() + PATIENCE;
        loop {
            let summary = self.session.summary();
            if summary.complete > 0 {
                break;
            }
            if Instant::now() >= limit {
                return Err(none_complete(&summary));
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err("stopped by the user".into());
            }
            self.follow(ROUND * 10)?;
        }
        self.session.reset();
        self.follow(self.before)?;
        self.baseline = Baseline::of(self.observed(), self.threshold)?;
        Ok(())
    }

    fn settle(&mut self, _: &Planned) -> Result<Option<Effect>, String> {
        self.follow(self.settle)?;
        let after = self.observed();
        Ok(Some(self.baseline.judge(&after)))
    }
}
