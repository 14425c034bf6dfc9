//! Times a bare scan of a run: what reading alone costs `latpath report`.
//!
//! ```text
//! cargo run --release -p latpath-run --example scan_run -- DIR [WORKERS [details]]
//! ```

use latpath_run::{Run, Select};
use std::{path::Path, time::Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let began = Instant::now();
    let run = Run::open(Path::new(args.first().ok_or("usage: scan_run DIR [WORKERS [details]]")?))?;
    let opened = began.elapsed();
    let workers = args.get(1).map_or(Ok(2), |w| w.parse())?;
    let select = Select { cpus_and_threads: args.get(2).is_some(), ..Select::default() };
    let last = run.points().len().saturating_sub(1);
    let scan = run.scan(
        &select,
        workers,
        || (0_u64, 0_i64),
        |(journeys, sum), j| {
            *journeys += 1;
            *sum += j.between(0, last as u16).unwrap_or(0);
        },
    );
    let (journeys, sum) = scan.gathered.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    println!(
        "{journeys} journeys, mean {} ns; opened in {opened:.1?}, read in {:.2?}; max RSS {} MiB; damaged: {:?}",
        sum / journeys.max(1) as i64,
        began.elapsed(),
        usage.max_rss() / 1024,
        scan.damaged
    );
    Ok(())
}
