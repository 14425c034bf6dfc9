//! Attaches the kernel programs for some seconds and prints the numbers of sightings: the library alone, without
//! latpath's commands.
//!
//! `sightings SECONDS STREAM...`, for instance `sightings 5 svid:MU01`.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

use latpath_model::{Source, StreamSpec};
use latpath_probe::{Options, Probe};
use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, streams @ ..] = &words[..] else {
        return Err("give seconds and streams".into());
    };
    let streams = streams.iter().map(|s| s.parse()).collect::<Result<Vec<StreamSpec>, _>>()?;
    let mut probe = Probe::attach(Options::new("here", streams))?;
    println!("attached");
    let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    let (mut sightings, mut at_point) = (Vec::new(), Vec::<u64>::new());
    loop {
        let over = Instant::now() >= end;
        if over {
            probe.detach();
        }
        probe.drain(&mut sightings);
        for s in sightings.drain(..) {
            let at = usize::from(s.point);
            at_point.resize(at_point.len().max(at + 1), 0);
            at_point[at] += 1;
        }
        if over {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let points = probe.points();
    for (i, p) in points.iter().enumerate() {
        println!("{}: {}", p.point, at_point.get(i).copied().unwrap_or(0));
    }
    println!("{:?}", probe.counters());
    probe.remarks().iter().for_each(|remark| println!("{remark:?}"));
    probe.notes().iter().for_each(|note| println!("{note}"));
    Ok(())
}
