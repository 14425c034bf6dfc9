//! What an event costs while two threads wake each other as fast as they can, on the CPU that this is run on:
//! `scripts/bench flight-cost`. Ends with 3 where an event costs more than the nanoseconds that are named.

use latpath_flight::{Options, Recorder};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// With and without the recorder in turns, so that what else the machine does hits both.
const TURNS: usize = 25;
const TURN: Duration = Duration::from_millis(200);

/// Rounds of two wake-ups; ns for each.
fn rounds() -> std::io::Result<(u64, f64)> {
    let (mut here, mut there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        let (mut byte, mut rounds) = ([7], 0);
        let began = Instant::now();
        while began.elapsed() < TURN {
            here.write_all(&byte)?;
            here.read_exact(&mut byte)?;
            rounds += 1;
        }
        drop(here);
        Ok((rounds, began.elapsed().as_nanos() as f64 / rounds as f64))
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let bar: f64 = std::env::args().nth(1).map_or(Ok(f64::INFINITY), |text| text.parse())?;
    let (mut without, mut with, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        without.push(rounds()?.1);
        let recorder = Recorder::start(&Options::default())?;
        let before = recorder.cost().events;
        let (rounds, ns) = rounds()?;
        with.push(ns);
        events.push((recorder.cost().events - before) as f64 / rounds as f64);
    }
    let (without, with, events) = (median(without), median(with), median(events));
    let each = (with - without) / events;
    println!("medians of {TURNS}: a round takes {without:.0} ns without, {with:.0} ns with the recorder");
    println!("{events:.1} events a round: {each:.0} ns each");
    let recorder = Recorder::start(&Options { measured: true, ..Options::default() })?;
    rounds()?;
    let cost = recorder.cost();
    println!("by the kernel's own measure, which adds to it: {} ns each", cost.ns_per_event().unwrap_or(0));
    for program in cost.programs.iter().filter(|p| p.runs > 1000) {
        println!("  {:28} {:>9} runs, {:>5} ns each", program.name, program.runs, program.ns / program.runs);
    }
    Ok(if each > bar { ExitCode::from(3) } else { ExitCode::SUCCESS })
}
