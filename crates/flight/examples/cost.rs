//! Measures the cost of recording an event, while two threads wake each other as fast as possible: `scripts/bench
//! flight-cost`. The argument is the number of turns.

use latpath_bpf::{floor, measure};
use latpath_flight::Recorder;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Number of turns. Each measures rounds without programs, with programs that do nothing or only read the clock, and
/// with the recorder. Disturbances only add time, so the minimum is used.
const TURNS: usize = 25;
/// Number of slices per measurement; the fastest is used.
const SLICES: usize = 15;
const SLICE: Duration = Duration::from_millis(10);
/// The tracepoints that a round passes through.
const PLACES: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup"];

/// Lets two threads wake each other in turn. Returns the number of rounds of two wakeups each, and the minimum time of
/// a round, ns.
fn rounds() -> std::io::Result<(u64, f64)> {
    let (mut here, mut there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        let (mut byte, mut rounds, mut best) = ([7], 0, f64::INFINITY);
        for _ in 0..SLICES {
            let (began, mut n) = (Instant::now(), 0);
            while began.elapsed() < SLICE {
                here.write_all(&byte)?;
                here.read_exact(&mut byte)?;
                n += 1;
            }
            best = best.min(began.elapsed().as_nanos() as f64 / n as f64);
            rounds += n;
        }
        drop(here);
        Ok((rounds, best))
    })
}

/// Time of a round, ns, with programs at its tracepoints that do nothing or, if `reads_clock`, read the clock once.
fn with_floor(reads_clock: bool) -> std::io::Result<f64> {
    let _attached = PLACES.map(|place| floor::attach(place, reads_clock)).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(rounds()?.1)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let turns: usize = std::env::args().nth(1).map_or(Ok(TURNS), |text| text.parse())?;
    let (mut alone, mut empty, mut clock, mut recorded, mut events) = (f64::MAX, f64::MAX, f64::MAX, f64::MAX, 0.0);
    for _ in 0..turns {
        alone = alone.min(rounds()?.1);
        empty = empty.min(with_floor(false)?);
        clock = clock.min(with_floor(true)?);
        let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
        let before = recorder.figures().events;
        let (n, ns) = rounds()?;
        if ns < recorded {
            (recorded, events) = (ns, (recorder.figures().events - before) as f64 / n as f64);
        }
    }
    // The minimal programs run once for each switch, waking and wakeup of a round, and a round has two of each.
    let floor_events = 2.0 * PLACES.len() as f64;
    println!("minima of {turns} turns: a round takes {alone:.0} ns without, {recorded:.0} ns with {events:.1} events");
    println!("an event: {:.0} ns", (recorded - alone) / events);
    println!("programs that read the clock once: {:.0} ns", (clock - alone) / floor_events);
    println!("programs that do nothing: {:.0} ns", (empty - alone) / floor_events);
    let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
    let ping_pong = std::thread::spawn(|| rounds().map(drop));
    let measuring = measure()?;
    ping_pong.join().map_err(|_| "a panic")??;
    drop(measuring);
    println!("by its own measure, without entry and return: {} ns", recorder.figures().ns_per_event.unwrap_or(0));
    println!("by the kernel's measure, which adds to it:");
    for program in recorder.programs().iter().filter(|p| p.runs > 1000) {
        println!("  {:28} {:>9} runs, {:>5} ns each", program.name, program.runs, program.ns / program.runs);
    }
    Ok(())
}
