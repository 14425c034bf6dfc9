//! Measures how often a comparison reports a difference that does not exist, and how often it finds one that does
//! (scripts/bench compare).
//!
//! ```text
//! cargo run --release -p latpath-compare --example simulate_compare -- [COMPARISONS [RECORDINGS [COMPARISONS OF ONE FIGURE]]]
//! ```

mod noise;
mod trials;

use noise::Variation;
use trials::{named_by_chance, trials};

fn main() {
    let number = |i: usize, default| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (comparisons, recordings, of_one_figure) = (number(1, 200), number(2, 5), number(3, 10_000));
    for (n, m) in [(1, 2), (1, 3), (1, 4), (1, 5), (2, 2), (3, 3), (5, 5)] {
        let named = 100.0 * named_by_chance(0x51ed_270b + (16 * n + m) as u64, of_one_figure, (n, m));
        println!(
            "one figure, {n} against {m}: of {of_one_figure} comparisons of the same {named:.2} % name a difference"
        );
    }
    let same = Variation::TEN_MINUTES;
    let wider = |between| Variation { between, ..same };
    let shifted = |like: Variation, shift| Variation { shift, ..like };
    let cases = [
        ("same", same, same),
        ("same, A varies 3 times as much", wider(0.021), same),
        ("p99 +5 %", shifted(same, 1.05), same),
        ("p99 +5 %, recordings vary by 1 %", shifted(wider(0.01), 1.05), wider(0.01)),
        ("p99 +10 %, recordings vary by 2 %", shifted(wider(0.02), 1.10), wider(0.02)),
    ];
    let all: Vec<_> = std::thread::scope(|scope| {
        let run =
            |(n, (name, a, b))| (name, scope.spawn(move || trials(0x9e37_79b9 + n, comparisons, recordings, a, b)));
        let started: Vec<_> = (1_u64..).zip(cases).map(run).collect();
        started.into_iter().map(|(name, thread)| (name, thread.join().expect("no trial fails"))).collect()
    });
    for (name, named) in all {
        let percent = |n: usize| 100.0 * n as f64 / comparisons.max(1) as f64;
        println!(
            "{name}: of {comparisons} comparisons of {recordings} + {recordings} recordings {:.1} % name any difference, {:.1} % one in a \
             segment that was not shifted, {:.1} % the p99; a plain two-level bootstrap {:.1} %",
            percent(named.any),
            percent(named.elsewhere),
            percent(named.p99),
            percent(named.resampled),
        );
    }
}
