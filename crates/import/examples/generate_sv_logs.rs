//! Writes two logs in the format of `sv_timestamp_logger`, one of a publisher and one of a subscriber, for benchmarks
//! and comparisons.
//!
//! ```text
//! cargo run --release -p latpath-import --example generate_sv_logs -- DIR [PACKETS [LOST [STREAMS [SEED]]]]
//! ```
//! Each stream has 4,000 packets per second, with smpCnt from 0 to 3999. The subscriber sees them 30 µs to 2 ms later,
//! in the order in which they were sent; one in LOST packets is lost (none if 0).

use latpath_testkit::Noise;
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |a| a.replace('_', "").parse());
    let folder = PathBuf::from(args.first().ok_or("usage: generate_sv_logs DIR [PACKETS [LOST [STREAMS [SEED]]]]")?);
    let (packets, lost, streams, seed) = (number(1, 1_000_000)?, number(2, 0)?, number(3, 1)?.max(1), number(4, 0)?);
    std::fs::create_dir_all(&folder)?;
    let file = |name: &str| File::create(folder.join(name)).map(|file| BufWriter::with_capacity(1 << 20, file));
    let (mut publisher, mut subscriber) = (file("pub.txt")?, file("sub.txt")?);
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ seed);
    // 2026-01-01 00:00:00 UTC, in µs.
    let (begin, mut arrived) = (1_767_225_600_000_000, 0);
    for packet in 0..packets {
        let (stream, number) = (packet % streams, packet / streams);
        let (cycle, smp_cnt) = (number / 4000, number % 4000);
        let sent = begin + number * 250 + stream * 7 + noise.draw() % 5;
        writeln!(publisher, "{cycle}:svID{stream:04}:{smp_cnt}:{sent}")?;
        let draw = noise.draw();
        if lost > 0 && noise.draw().is_multiple_of(lost) {
            continue;
        }
        let slow = if draw.is_multiple_of(4096) { (draw >> 32) % 2000 } else { 0 };
        arrived = (sent + 30 + (draw >> 16) % 40 + slow).max(arrived + 1);
        writeln!(subscriber, "{cycle}:svID{stream:04}:{smp_cnt}:{arrived}")?;
    }
    publisher.flush()?;
    subscriber.flush()?;
    Ok(())
}
