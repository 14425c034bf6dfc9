//! The reflector's own times: shown while it runs, judged by limits, and reported as its result.

use crate::cmd::limits::{check, Measures};
use crate::cmd::ping::times;
use crate::cmd::progress::Progress;
use crate::cmd::Usage;
use latpath_analysis::{Limit, LimitVerdict};
use latpath_ping::sequenced::{SequencedFigures, SequencedHistogram};
use latpath_ping::turnaround::{kernel_ends, outermost, AllTurnarounds, Turnarounds};
use latpath_ping::{Source, Stamp};
use latpath_stats::units::{count, duration, number_of};
use latpath_stats::{MachineFigures, SegmentFigures, Summary};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Names of the times in limits and JSON, the nearest to the wire first.
const NAMES: [&str; 3] = ["nic_turnaround", "kernel_turnaround", "turnaround"];
/// Counters of a limit that a reflector does not measure.
const NOT_MEASURED: [&str; 7] =
    ["lost", "consecutive", "incomplete", "malformed", "never_seen", "sightings_dropped", "pacing"];

/// Name of a clock's times in tables.
fn title(source: Source) -> &'static str {
    match source {
        Source::Nic => "NIC's turnaround",
        Source::Kernel => "kernel's turnaround",
        Source::App => "turnaround",
    }
}

/// Refuses limits on figures that a reflector does not have, before it begins.
pub fn refuse_others(limits: &mut [Limit], has_threshold: bool) -> Result<(), Usage> {
    let over = (!has_threshold).then_some("over");
    let not: Vec<&str> = NOT_MEASURED.into_iter().chain(over).collect();
    Measures { segments: NAMES.map(Into::into).into(), steps: None, not: &not }.refuse_others(limits)
}

/// The verdicts on the times of all sessions.
pub fn verdicts(all: &AllTurnarounds, limits: &[Limit]) -> Vec<LimitVerdict> {
    const REFLECTOR: &str = "reflector";
    let row = |(source, name, times): (Source, &str, &SequencedHistogram)| {
        Some(SegmentFigures {
            name: name.into(),
            from: REFLECTOR.into(),
            to: REFLECTOR.into(),
            times: times.some_figures()?.times,
            // The threshold applies to the time by the clock nearest to the wire.
            over_threshold: if source == outermost(all.taken) { all.times.over } else { 0 },
            ..SegmentFigures::default()
        })
    };
    let summary = Summary {
        journeys: all.received,
        segments: all.times.all().into_iter().filter_map(row).collect(),
        machines: vec![MachineFigures { machine: REFLECTOR.into(), ..MachineFigures::default() }],
        duplicates: all.duplicates,
        out_of_order: all.reordered,
        ..Summary::default()
    };
    check(limits, &summary)
}

/// The times as a table; if all are from one session, also the probes with the extreme times. Empty without times.
pub fn table(all: &Turnarounds, is_one_session: bool) -> Vec<String> {
    let figures = all.all().map(|(source, _, times)| (title(source), times.some_figures()));
    let rows: Vec<(&str, &SequencedFigures)> =
        figures.iter().filter_map(|(name, figures)| Some((*name, figures.as_ref()?))).collect();
    if rows.is_empty() {
        Vec::new()
    } else {
        times::table(&rows, is_one_session)
    }
}

/// The times of all sessions as text: a table, and the histogram if one is drawn.
pub fn text(all: &AllTurnarounds, is_one_session: bool) -> String {
    let table = table(&all.times, is_one_session);
    if table.is_empty() {
        return String::new();
    }
    let mut lines = vec![String::new()];
    lines.extend(table);
    lines.push(ends(all.taken));
    if let Some(drawn) = &all.drawn {
        let beyond = drawn.overflow();
        let beyond = beyond.iter().map(|one| (one.time_ns, one.sequence));
        lines.push(String::new());
        lines.extend(times::histogram(
            title(outermost(all.taken)),
            &drawn.buckets(),
            (Some(drawn.end()), drawn.overflown()),
            beyond,
        ));
    }
    lines.join("\n") + "\n"
}

/// The stamps at the ends of each time.
fn ends(taken: u16) -> String {
    let of = |(from, to): (Stamp, Stamp), source| format!("{}: {} → {}", title(source), from.name(), to.name());
    let nic = (outermost(taken) == Source::Nic).then(|| of((Stamp::T2Nic, Stamp::T3Nic), Source::Nic));
    let kernel = kernel_ends(taken).map(|ends| of(ends, Source::Kernel));
    let app = Some(of((Stamp::T2App, Stamp::T3App), Source::App));
    [nic, kernel, app].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// State shared by the reflector's thread and that of the progress line.
#[derive(Default)]
struct Progressing {
    /// The times for the next line.
    now: Mutex<Option<AllTurnarounds>>,
    /// Whether a line is due: the times are copied only then, because a copy delays the reflector by some µs.
    is_due: AtomicBool,
    over: AtomicBool,
}

/// The progress line, printed by a thread of its own, so that the reflector does not wait for a terminal.
pub struct ProgressLine {
    state: Arc<Progressing>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts the thread, unless `quiet`.
    pub fn begin(quiet: bool, limits: &[Limit]) -> Self {
        let state = Arc::new(Progressing::default());
        let (theirs, limits) = (Arc::clone(&state), limits.to_vec());
        let run = move || print_progress(&theirs, &limits);
        // If the thread cannot be started, there is no progress line.
        let thread = (!quiet).then(|| std::thread::Builder::new().name("ping-progress".into()).spawn(run).ok());
        Self { state, thread: thread.flatten() }
    }

    /// Passes on the times so far if a line is due.
    pub fn update(&self, all: &AllTurnarounds) {
        let Some(thread) = &self.thread else { return };
        if self.state.is_due.swap(false, Ordering::AcqRel) {
            if let Ok(mut now) = self.state.now.try_lock() {
                *now = Some(all.without_drawn());
            }
            thread.thread().unpark();
        }
    }

    /// Prints a line to stderr, in place of the progress line if a terminal shows one.
    pub fn print(&self, line: &str) {
        let clear = if self.thread.is_some() && std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
        eprintln!("{clear}latpath: {line}");
    }

    /// Ends the thread.
    pub fn end(mut self) {
        self.state.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn print_progress(state: &Progressing, limits: &[Limit]) {
    let (mut progress, mut shown) = (Progress::begin(false), 0);
    while !state.over.load(Ordering::Acquire) {
        let idle = progress.idle();
        if !idle.is_zero() {
            std::thread::park_timeout(idle);
            continue;
        }
        state.is_due.store(true, Ordering::Release);
        std::thread::park_timeout(Duration::from_secs(1));
        let Some(all) = state.now.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
        // Without new probes there is nothing new to show.
        if all.received != shown {
            shown = all.received;
            let _ = progress.show(|elapsed| Ok::<_, std::convert::Infallible>(line(elapsed, &all, limits)));
        } else {
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }
    progress.end();
}

/// The progress line of all sessions.
fn line(elapsed: Duration, all: &AllTurnarounds, limits: &[Limit]) -> String {
    let mut text = format!("{:>5} s  {} probes", elapsed.as_secs(), count(all.received));
    let outer = all.times.all().into_iter().find(|(source, ..)| *source == outermost(all.taken));
    if let Some((source, figures)) = outer.and_then(|(source, _, times)| Some((source, times.some_figures()?))) {
        let [p50, p99, max] = [figures.p50_ns, figures.p99_ns, figures.max_ns].map(duration);
        text += &format!(", {} p50 {p50}, p99 {p99}, max {max}", title(source));
    }
    if all.times.over > 0 {
        text += &format!(", {} over the threshold", count(all.times.over));
    }
    let broken = verdicts(all, limits).iter().filter(|verdict| verdict.why().is_some()).count();
    if broken > 0 {
        text += &format!(", {} not kept so far", number_of(broken as u64, "limit"));
    }
    text
}
