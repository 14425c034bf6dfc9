//! Watches a stream through an agent, nothing else: `watch ADDRESS STREAM SECONDS`. For whoever works on the protocol.

use latpath_agent::{Machine, StartRequest, Timeouts};
use latpath_model::Source;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, address, stream, seconds] = &args[..] else { return Err("watch ADDRESS STREAM SECONDS".into()) };
    let mut machine = Machine::connect("there", &address.parse()?, Timeouts::default())?;
    println!("{:?}", machine.facts());
    machine.start(&StartRequest { streams: vec![stream.parse()?], options: vec![] })?;
    let mut sightings = Vec::new();
    let mut by_point = vec![0u64; 64];
    let mut take = |machine: &mut Machine| {
        sightings.clear();
        let watermark = machine.drain(&mut sightings);
        sightings.iter().for_each(|s| by_point[usize::from(s.point)] += 1);
        watermark
    };
    for _ in 0..seconds.parse()? {
        std::thread::sleep(Duration::from_secs(1));
        let behind = latpath_linux::monotonic() - take(&mut machine)?;
        println!("watermark {:.1} ms behind; {:?}", behind as f64 / 1e6, machine.clock());
    }
    machine.stop()?;
    take(&mut machine)?;
    println!("{:?}", machine.counters()?);
    for (i, info) in machine.points()?.iter().enumerate() {
        println!("{}: {} sightings", info.point, by_point[i]);
    }
    match machine.fault() {
        Some(fault) => Err(fault.into()),
        None => Ok(()),
    }
}
