//! Sweeps: the same measurement for several sizes and rates, in rounds, as one table.

use super::super::times::{cell as time, table_lines};
use super::one::Done;
use super::{in_threads, verdicts, Args, Reactions};
use crate::cmd::limits::Measures;
use crate::cmd::report::print_as;
use crate::cmd::values::whole;
use crate::cmd::{Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_analysis::Limit;
use latpath_model::Ns;
use latpath_ping::document::{SweepCell, SweepDocument, VERSION};
use latpath_ping::sequenced::SequencedHistogram;
use latpath_ping::table::Counts;
use latpath_stats::text::Table;
use latpath_stats::units::{count, rate};
use latpath_stats::{Percentile, TimeFigures};
use latpath_wire::Pace;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of cells.
const MAX_CELLS: usize = 1000;
/// Percentiles of the table.
const SHOWN: [&str; 4] = ["p50", "p95", "p99", "p99.9"];
/// Counters in limits that a sweep does not measure.
const NOT_MEASURED: [&str; 8] =
    ["consecutive", "incomplete", "malformed", "negative", "never_seen", "over", "pacing", "sightings_dropped"];

/// Flags of a sweep.
#[derive(ClapArgs, Debug)]
pub struct Sweep {
    /// Measure each of these message sizes in turn, bytes, e.g. 64,128,512; --count or --duration applies to each size
    /// and rate of a round
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = super::size, conflicts_with_all = ["size", "log", "threshold", "bucket", "detail"])]
    sweep_size: Vec<usize>,
    /// Measure each of these rates in turn, packets per second, e.g. 1k,4k
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["rate", "flood", "log", "threshold", "bucket", "detail"])]
    sweep_rate: Vec<Pace>,
    /// Measure all sizes and rates of a sweep N times, each time in a different order
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u16>(1..=1000))]
    sweep_rounds: u16,
}

impl Sweep {
    /// Whether several sizes or rates are measured.
    pub fn is_requested(&self) -> bool {
        !(self.sweep_size.is_empty() && self.sweep_rate.is_empty())
    }
}

/// One size and rate, with the figures of all rounds.
struct Cell {
    size: usize,
    rate: Option<Pace>,
    rounds: u16,
    elapsed: Ns,
    counts: Counts,
    times: SequencedHistogram,
}

impl Cell {
    fn add(&mut self, done: &Done) {
        let (sum, new) = (&mut self.counts, &done.report.counts);
        let pairs = [
            (&mut sum.sent, new.sent),
            (&mut sum.refused, new.refused),
            (&mut sum.answered, new.answered),
            (&mut sum.lost, new.lost),
            (&mut sum.late, new.late),
            (&mut sum.duplicates, new.duplicates),
            (&mut sum.reordered, new.reordered),
            (&mut sum.foreign, new.foreign),
            (&mut sum.incomplete, new.incomplete),
        ];
        pairs.into_iter().for_each(|(sum, new)| *sum += new);
        self.rounds += 1;
        self.elapsed += done.report.elapsed_ns;
        self.times.merge(&done.times);
    }

    /// Number of probes sent per second.
    fn sent_hz(&self) -> f64 {
        if self.elapsed > 0 {
            self.counts.sent as f64 * 1e9 / self.elapsed as f64
        } else {
            0.0
        }
    }

    fn name(&self) -> String {
        format!("{} bytes, {}", self.size, self.rate_text())
    }

    fn rate_text(&self) -> String {
        self.rate.map_or("one by one".into(), |pace| format!("{}/s", rate(pace.hz())))
    }

    fn document(&self) -> SweepCell {
        SweepCell {
            size_bytes: self.size,
            rate_hz: self.rate.map(|pace| pace.hz()),
            rounds: self.rounds,
            elapsed_ns: self.elapsed,
            sent_hz: self.sent_hz(),
            counts: self.counts,
            round_trip: TimeFigures::of(self.times.times()),
        }
    }
}

/// Measures all sizes and rates, and prints one table.
pub fn run(args: &mut Args, limits: &mut [Limit], unlocked: Option<String>, stop: &AtomicBool) -> Result<Outcome> {
    Measures { segments: vec!["round_trip".into()], steps: None, not: &NOT_MEASURED }.refuse_others(limits)?;
    let mut cells = cells(args)?;
    let (mut notes, mut failure): (Vec<String>, _) = (unlocked.into_iter().collect(), None);
    'rounds: for round in 1..=args.sweep.sweep_rounds {
        for at in shuffled(cells.len()) {
            (args.size, args.rate) = (cells[at].size, cells[at].rate);
            if !args.quiet {
                eprintln!("latpath: round {round} of {}: {}", args.sweep.sweep_rounds, cells[at].name());
            }
            for done in in_threads(args, &[], Reactions::default(), stop)? {
                cells[at].add(&done);
                notes.extend(done.notes.iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>());
                failure = failure.or(done.failure());
            }
            if failure.is_some() || stop.load(Ordering::Relaxed) {
                break 'rounds;
            }
        }
    }
    let target = args.targets[0].to_string();
    let document = || SweepDocument {
        version: VERSION,
        target: target.clone(),
        rounds: args.sweep.sweep_rounds,
        cells: cells.iter().map(Cell::document).collect(),
        error: failure.clone(),
        notes: notes.clone(),
    };
    print_as(args.json, document, || text(args, &target, &cells, &notes))?;
    if let Some(why) = failure {
        bail!("{why}");
    }
    let of_cell = |cell: &Cell| verdicts::of_cell(&cell.name(), &cell.counts, cell.times.times(), limits);
    let verdicts: Vec<_> = cells.iter().flat_map(of_cell).collect();
    args.limits.announce("latpath ping emit", &verdicts, false)
}

fn cells(args: &Args) -> Result<Vec<Cell>> {
    let of_each = args.stop_after.count.is_some() || args.stop_after.duration.is_some();
    if !of_each {
        return Err(Usage("a sweep needs --count or --duration: of each size and rate, in each round".into()).into());
    }
    if args.targets.len() > 1 {
        return Err(Usage("a sweep has one HOST: further ones would load the same machines".into()).into());
    }
    let sizes = if args.sweep.sweep_size.is_empty() { vec![args.size] } else { args.sweep.sweep_size.clone() };
    let rates: Vec<Option<Pace>> = match args.sweep.sweep_rate.is_empty() {
        true => vec![args.rate],
        false => args.sweep.sweep_rate.iter().copied().map(Some).collect(),
    };
    if sizes.len() * rates.len() > MAX_CELLS {
        return Err(Usage(format!("a sweep has at most {MAX_CELLS} sizes and rates")).into());
    }
    let cell = |size, rate| Cell {
        size,
        rate,
        rounds: 0,
        elapsed: 0,
        counts: Counts::default(),
        times: SequencedHistogram::default(),
    };
    let of_size = |size: &usize| rates.iter().map(|rate| cell(*size, *rate)).collect::<Vec<_>>();
    Ok(sizes.iter().flat_map(of_size).collect())
}

/// The numbers below `n` in random order, so that a change during the sweep affects all cells alike.
fn shuffled(n: usize) -> Vec<usize> {
    // The keys of `RandomState` are random.
    let keys = RandomState::new();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_cached_key(|at| keys.hash_one(at));
    order
}

fn text(args: &Args, target: &str, cells: &[Cell], notes: &[String]) -> String {
    let shown = || SHOWN.iter().filter_map(|name| Percentile::named(name));
    let heads = ["bytes", "rate", "sent/s", "answered", "min", "avg"].into_iter();
    let mut table = Table::new(&heads.chain(SHOWN).chain(["max", "lost"]).collect::<Vec<_>>());
    for cell in cells {
        let times = TimeFigures::of(cell.times.times());
        let known = |ns: Ns| (times.count > 0).then_some(ns);
        let figures = [known(times.min_ns), known(times.mean_ns)]
            .into_iter()
            .chain(shown().map(|p| times.percentile(p)))
            .chain([known(times.max_ns)]);
        let counts = [cell.size.to_string(), cell.rate_text(), rate(cell.sent_hz()), count(cell.counts.answered)];
        table.row(counts.into_iter().chain(figures.map(time)).chain([count(cell.counts.lost)]).collect());
    }
    let done = cells.iter().map(|cell| cell.rounds).min().unwrap_or(0);
    let head = match done {
        n if n == args.sweep.sweep_rounds => format!("{target}, round trips of {n} rounds in random order"),
        n => format!("{target}, round trips; stopped after {n} of {} rounds", args.sweep.sweep_rounds),
    };
    let notes = notes.iter().map(|note| format!("note      {note}"));
    [head].into_iter().chain(notes).chain([String::new()]).chain(table_lines(&table)).collect::<Vec<_>>().join("\n")
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_measures_each_cell_once() {
        for n in [0, 1, 7, 100] {
            let mut order = shuffled(n);
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
        }
        let orders: std::collections::HashSet<Vec<usize>> = (0..20).map(|_| shuffled(20)).collect();
        assert!(orders.len() > 1, "rounds have other orders");
    }
}
