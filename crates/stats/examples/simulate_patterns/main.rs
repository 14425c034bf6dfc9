//! Measures how often injected patterns are found, and how often patterns are reported in recordings without one. Run
//! by `scripts/bench patterns`.
//!
//! ```text
//! cargo run --release -p latpath-stats --example simulate_patterns -- [CLEAN [EACH [SECONDS [RATE]]]]
//! ```

mod recording;

use latpath_model::Ns;
use latpath_stats::{DetectedPattern, Pattern, PatternKind};
use recording::{patterns, Injected, Size, SECOND};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

const MS: Ns = 1_000_000;

/// Each kind of pattern at several sizes.
fn cases(rate: u64) -> Vec<(PatternKind, Injected)> {
    let held = |packets: u64| Injected::Held((packets * 1000 / rate) as Ns * MS);
    let of = |kind: PatternKind| -> Vec<Injected> {
        match kind {
            PatternKind::QueueRelease => vec![held(12), held(32), Injected::Held(160 * MS), Injected::Held(900 * MS)],
            PatternKind::PeriodicSpikes => vec![
                Injected::Spikes(700 * MS, 3 * MS),
                Injected::Spikes(10 * SECOND, 6 * MS),
                Injected::Spikes(30 * SECOND, 6 * MS),
            ],
            PatternKind::ServoSwing => vec![Injected::Swing(1e5, 60 * SECOND), Injected::Swing(1e6, 150 * SECOND)],
            PatternKind::Step => [0.5, 1.5, 3.0, 30.0].map(Injected::Step).into(),
            PatternKind::LinkFlap => [(30, true), (30, false), (500, true), (2000, false)]
                .map(|(ms, tap)| Injected::Flap(ms * MS, tap))
                .into(),
            PatternKind::PathChange => [0.05, 0.3, 1.0].map(Injected::Path).into(),
        }
    };
    PatternKind::ALL.into_iter().flat_map(|kind| of(kind).into_iter().map(move |injected| (kind, injected))).collect()
}

/// Whether the properties of a detected pattern match the injected ones. Tolerances: 1 % for the period of spikes; 20 %
/// for the duration of a flap; 10 % for all other properties; one second for the start.
fn is_right(pattern: &Pattern, injected: Injected, begin: Ns) -> bool {
    let near =
        |found: Option<Ns>, expected: f64, part: f64| found.is_some_and(|v| (v as f64 / expected - 1.0).abs() <= part);
    let on_time = (pattern.from_ns - begin).abs() <= SECOND;
    match injected {
        Injected::Nothing => false,
        Injected::Held(held) => on_time && near(pattern.size_ns, held as f64, 0.1),
        Injected::Spikes(period, _) => near(pattern.period_ns, period as f64, 0.01),
        Injected::Swing(size, period) => {
            near(pattern.period_ns, period as f64, 0.1) && near(pattern.size_ns, size, 0.1)
        }
        Injected::Step(factor) => {
            let levels = pattern.levels_ns.unwrap_or_default();
            let height = (factor - 1.0) * levels[0] as f64;
            on_time && near(pattern.size_ns, height, 0.1)
        }
        Injected::Flap(long, _) => on_time && near(pattern.size_ns, long as f64, 0.2),
        Injected::Path(share) => {
            on_time && pattern.share_percent.is_some_and(|s| (s[1] / 100.0 - share).abs() < 0.1 * share)
        }
    }
}

/// Simulates `n` recordings with the same injected pattern. Returns three counts of recordings: those in which a
/// pattern of its kind is detected, those in which its properties are also correct, and those in which any other
/// pattern is detected that is not a consequence of it.
fn trials(n: u64, size: Size, kind: Option<PatternKind>, injected: Injected) -> [u64; 3] {
    let (next, counts) = (AtomicU64::new(0), Mutex::new([0; 3]));
    let work = || loop {
        let trial = next.fetch_add(1, Ordering::Relaxed);
        if trial >= n {
            return;
        }
        let seed = (trial + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ format!("{injected:?}").len() as u64;
        let (found, begin): (Vec<DetectedPattern>, Ns) = patterns(seed, size, injected);
        let of_kind = || found.iter().map(|f| &f.pattern).filter(|p| Some(p.kind) == kind);
        let others = found.iter().any(|f| Some(f.pattern.kind) != kind && !follows(kind, f.pattern.kind));
        let more = of_kind().count() > 1 && kind != Some(PatternKind::LinkFlap);
        if std::env::var_os("VERBOSE").is_some() {
            found.iter().for_each(|f| {
                println!(
                    "  {trial} {injected:?} {begin}: {} {:?} {}",
                    f.pattern.kind, f.pattern.segments, f.pattern.text
                )
            });
        }
        let mut counts = counts.lock().expect("no trial fails");
        counts[0] += u64::from(of_kind().next().is_some());
        counts[1] += u64::from(of_kind().any(|p| is_right(p, injected, begin)));
        counts[2] += u64::from(others || more);
    };
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        (0..workers).for_each(|_| drop(scope.spawn(work)));
    });
    counts.into_inner().expect("no trial fails")
}

/// Whether a pattern of the second kind is a consequence of the first: packets on another path take a different time.
fn follows(first: Option<PatternKind>, second: PatternKind) -> bool {
    first == Some(PatternKind::PathChange) && second == PatternKind::Step
}

fn main() {
    let number = |i: usize, default| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (clean, each) = (number(1, 200), number(2, 20));
    let size = Size { seconds: number(3, 600), rate: number(4, 400) };
    let percent = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
    let [.., any] = trials(clean, size, None, Injected::Nothing);
    println!(
        "clean: of {clean} recordings of {} s, 3 streams of {}/s each, {any} name a pattern",
        size.seconds, size.rate
    );
    for (kind, injected) in cases(size.rate) {
        let [named, right, others] = trials(each, size, Some(kind), injected);
        println!(
            "{kind}: {injected:?}: of {each} recordings {:.1} % name it, {:.1} % with time and size right, {:.1} % name another",
            percent(named, each),
            percent(right, each),
            percent(others, each)
        );
    }
}
