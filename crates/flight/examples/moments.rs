//! Shows what all CPUs did in the last moments: `cargo run --release -p latpath-flight --example moments [MS]`.

use latpath_flight::{Recorder, Timeline};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ms: i64 = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
    for missing in recorder.missing() {
        eprintln!("{missing}");
    }
    std::thread::sleep(std::time::Duration::from_millis(ms as u64 + 10));
    let to = latpath_linux::monotonic();
    let mut snapshot = recorder.snapshot_of_threads(to - ms * 1_000_000, to);
    eprintln!("read in {} µs", (latpath_linux::monotonic() - to) / 1000);
    snapshot.add_names();
    let (names, window) = (snapshot.names(), &snapshot.window);
    let timeline = Timeline::of(window);
    for (record, row) in window.cpus.iter().zip(&timeline.cpus) {
        println!(
            "CPU {}: {} events, {} overwritten, {} unfinished, {} garbled, {} switches missed",
            row.cpu,
            record.events.len(),
            record.overwritten,
            record.unfinished,
            row.garbled,
            row.missed_switches
        );
        for tile in row.between(window.from, window.to) {
            let class = match tile.doing {
                latpath_flight::Doing::Thread(r) => r.class.map_or(String::new(), |c| format!("  {c}")),
                _ => String::new(),
            };
            println!("{:>12} {:>9} ns  {}{class}", tile.from - window.from, tile.to - tile.from, names.of(&tile.doing));
        }
    }
    Ok(())
}
