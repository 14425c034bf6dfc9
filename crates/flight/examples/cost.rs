//! What an event costs while two threads wake each other as fast as they can: `cargo run --release -p latpath-flight --example
//! cost`.

use latpath_flight::{Options, Recorder};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Rounds of two wake-ups in a second.
fn rounds() -> std::io::Result<u64> {
    let (mut here, mut there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        let (mut byte, mut rounds) = ([7], 0);
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            here.write_all(&byte)?;
            here.read_exact(&mut byte)?;
            rounds += 1;
        }
        drop(here);
        Ok(rounds)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..3 {
        let without = rounds()?;
        let recorder = Recorder::start(&Options::default())?;
        let with = rounds()?;
        let events = recorder.cost().events;
        drop(recorder);
        let each = (1e9 / with as f64 - 1e9 / without as f64) * with as f64 / events as f64;
        println!(
            "{without} rounds/s without, {with} with: {:.1} events a round, {each:.0} ns each",
            events as f64 / with as f64
        );
    }
    let began = Instant::now();
    let recorder = Recorder::start(&Options { measured: true, ..Options::default() })?;
    println!("started within {:?}", began.elapsed());
    rounds()?;
    let cost = recorder.cost();
    println!("by the kernel's own measure, which adds to it: {} ns each", cost.ns_per_event().unwrap_or(0));
    for program in cost.programs.iter().filter(|p| p.runs > 100) {
        println!("  {:28} {:>9} runs, {:>5} ns each", program.name, program.runs, program.ns / program.runs);
    }
    Ok(())
}
