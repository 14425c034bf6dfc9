//! Attaches the kernel programs for some seconds and prints what they saw: the library alone, without latpath's commands.
//!
//! `sightings live|record SECONDS STREAM...`, for instance `sightings record 5 svid:MU01`.

use latpath_model::{PointId, PointKind, Source, StreamSpec};
use latpath_probe::{HeldUp, Mode, Options, Probe};
use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mode, seconds, streams @ ..] = &words[..] else {
        return Err("give a mode (live or record), seconds, and streams".into());
    };
    let mode = if mode == "live" { Mode::Live } else { Mode::Record };
    let streams = streams.iter().map(|s| s.parse()).collect::<Result<Vec<StreamSpec>, _>>()?;
    let mut probe = Probe::attach(Options::new("here", streams, mode))?;
    println!("attached");
    let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    let (mut sightings, mut at_point, mut segments) = (Vec::new(), Vec::<u64>::new(), Vec::new());
    loop {
        let over = Instant::now() >= end;
        if over {
            probe.detach();
        }
        probe.drain(&mut sightings)?;
        for s in sightings.drain(..) {
            let at = usize::from(s.point);
            at_point.resize(at_point.len().max(at + 1), 0);
            at_point[at] += 1;
        }
        if over {
            break;
        }
        let points = probe.points()?;
        let line: Vec<_> =
            (0..points.len()).filter(|i| points[*i].point.kind != PointKind::Drop).map(|i| i as PointId).collect();
        if mode == Mode::Live && line.len() > segments.len() + 1 {
            segments = line.windows(2).map(|w| (w[0], w[1])).collect();
            probe.set_segments(&segments, 0);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let points = probe.points()?;
    for (i, p) in points.iter().enumerate() {
        println!("{}: {}", p.point, at_point.get(i).copied().unwrap_or(0));
    }
    for (i, (from, to)) in segments.iter().enumerate() {
        let Some(h) = probe.histogram(0, i, HeldUp::No) else { continue };
        let mean = h.sum.checked_div(h.count).unwrap_or(0);
        let ends = [from, to].map(|p| points[usize::from(*p)].point.to_string());
        println!("{} .. {}: {} times, mean {mean} ns, max {} ns", ends[0], ends[1], h.count, h.max);
    }
    for (i, s) in probe.live_streams().iter().enumerate().filter(|_| mode == Mode::Live) {
        println!("stream {i}: {} journeys, {} twice, {} late", s.journeys, s.duplicates, s.late);
    }
    println!("{:?}", probe.counters()?);
    Ok(())
}
