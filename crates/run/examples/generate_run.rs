//! Writes a run of synthetic journeys with latpath's own writer, for benchmarks of the writer and of `latpath report`.
//!
//! ```text
//! cargo run --release -p latpath-run --example generate_run -- DIR [JOURNEYS [STREAMS [POINTS [RATE [HOST [SEED]]]]]]
//! ```
//! By default, each stream has 4000 packets per second over 5 points: NIC, tap, VM, guest's NIC, application. The
//! segments' times are log-normal, with medians of 8 to 120 µs and tens of µs of jitter. There are occasional spikes of
//! up to 11 ms, and one of 14 ms in the middle. The publisher has 8 µs of jitter; one packet in 100 000 is lost at the
//! tap. RATE (journeys per second) sets the pace; with 0, the writer runs as fast as possible, and the start of the
//! recording is moved back by the time that it covers.
//!
//! HOST is `pinned` (a host configured for such streams: each step has its own CPU, the VM's threads rarely move, and
//! one softirq in 16 interrupts a thread) or `busy` (nothing is pinned: a step moves to one of 8 CPUs with every fourth
//! packet, and every second softirq interrupts one of 64 threads). A SEED other than 0 yields different noise.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

use latpath_journey::{segments::classic, Journey, Route};
use latpath_model::{Link, Ns, Point, PointInfo, StreamSpec, HOST};
use latpath_run::{MachineFigures, MachineRecord, Manifest, NamedSegment, Run, Writer};
use latpath_testkit::Noise;
use std::{
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

const POINTS: [(&str, Link); 5] = [
    ("host/nic-rx@enp7s0", Link::Nic),
    ("host/tx@vnet0", Link::Tap),
    ("host/vm-read@vnet0", Link::Tap),
    ("guest0/nic-rx@eth1", Link::Nic),
    ("guest0/app-read@relay", Link::Socket),
];
/// Median, ns, and standard deviation of the natural logarithm of the segment that ends at each point; the first entry
/// is the publisher's jitter.
const SEGMENTS: [(f64, f64); 5] = [(8_000.0, 0.8), (8_000.0, 0.3), (40_000.0, 0.5), (120_000.0, 0.35), (60_000.0, 0.4)];

/// Returns quantiles of a log-normal distribution, to be interpolated.
fn quantiles(noise: &mut Noise, median: f64, width: f64) -> Vec<f64> {
    let mut normal = || (0..12).map(|_| noise.unit()).sum::<f64>() - 6.0;
    let mut all: Vec<f64> = (0..4097).map(|_| median * (width * normal()).exp()).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Creates the manifest that a recorder would write.
fn manifest(streams: u64, points: usize) -> Result<Manifest, Box<dyn std::error::Error>> {
    let mut manifest = Manifest::begin();
    manifest.threshold_ns = 500_000;
    manifest.streams = (1..=streams).map(|n| StreamSpec::svid(&format!("MU{n:02}"))).collect();
    for (n, (name, link)) in POINTS.iter().take(points).enumerate() {
        let point: Point = name.parse()?;
        manifest.route.push(point.clone());
        let clock = "CLOCK_MONOTONIC".into();
        manifest.points.push(PointInfo {
            point,
            link: *link,
            netns: 4_026_531_840,
            ifindex: n as u32 + 2,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock,
        });
    }
    let route = Route::from_points(&manifest.route, &[], &manifest.points);
    for s in classic(route, &manifest.points).segments {
        let point = |id: u16| manifest.points[usize::from(id)].point.clone();
        manifest.segments.push(NamedSegment { kind: s.kind, name: s.name, from: point(s.from), to: point(s.to) });
    }
    let machine = |machine: &str, method: &str, error_bound_ns| MachineRecord {
        clock: MachineFigures {
            machine: machine.into(),
            method: method.into(),
            error_bound_ns,
            ..MachineFigures::default()
        },
        ..MachineRecord::default()
    };
    manifest.machines = vec![machine(HOST, "same clock", 0), machine("guest0", "timed exchanges", 1_870)];
    Ok(manifest)
}

/// Moves the start of the recording back by this time.
fn date_back(manifest: &mut Manifest, by: Ns) {
    let start = &mut manifest.start;
    (start.utc_ns, start.tai_ns, start.monotonic_ns) = (start.utc_ns - by, start.tai_ns - by, start.monotonic_ns - by);
    let utc = SystemTime::UNIX_EPOCH + Duration::from_nanos(start.utc_ns.unsigned_abs());
    start.utc = humantime::format_rfc3339_nanos(utc).to_string();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |a| a.replace('_', "").parse());
    let usage = "usage: generate_run DIR [JOURNEYS [STREAMS [POINTS [RATE [pinned|busy [SEED]]]]]]";
    let path = PathBuf::from(args.first().ok_or(usage)?);
    let (journeys, streams, points, rate) =
        (number(1, 1_000_000)?, number(2, 1)?, number(3, 5)? as usize, number(4, 0)?);
    let busy = match args.get(5).map(String::as_str) {
        None | Some("pinned") => false,
        Some("busy") => true,
        Some(_) => return Err(usage.into()),
    };

    let mut manifest = manifest(streams, points)?;
    if rate == 0 {
        date_back(&mut manifest, (journeys / streams * 250_000) as Ns);
    }
    manifest.counters.sightings = journeys * points as u64;
    let start = manifest.start.monotonic_ns;
    let mut writer = Writer::create(&path, manifest)?;

    let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ number(6, 0)?);
    let tables: Vec<_> = SEGMENTS.iter().map(|(median, width)| quantiles(&mut noise, *median, *width)).collect();
    let (mut t, mut cpu, mut tid) = ([0_i64; 5], [2_u16, 2, 3, 0, 1], [0_u32, 0, 4711, 0, 815]);
    let began = Instant::now();
    for i in 0..journeys {
        let (stream, number) = ((i % streams) as u16, i / streams);
        let mut at = start + (number * 250_000 + u64::from(stream) * 7_000) as i64;
        for p in 0..points {
            let r = noise.draw();
            let (index, part) = ((r & 4095) as usize, (r >> 12 & 0xffff) as f64 / 65536.0);
            let table = &tables[p];
            at += (table[index] + (table[index + 1] - table[index]) * part) as i64;
            if r >> 32 & 0xfff == 7 {
                at += ((r >> 48) as f64).powi(2) as i64 / 400;
            }
            if i == journeys / 2 && p == 3 {
                at += 14_000_000;
            }
            t[p] = at;
            let softirq = matches!(p, 0 | 1 | 3);
            let other = noise.draw();
            if busy {
                if other & 3 == 0 {
                    cpu[p] = (other >> 2 & 7) as u16;
                }
                if softirq {
                    tid[p] = if other >> 5 & 1 == 0 { 0 } else { 900 + (other >> 6 & 63) as u32 };
                }
            } else {
                if softirq {
                    tid[p] = if other & 15 == 0 { 900 + (other >> 4 & 7) as u32 } else { 0 };
                }
                if p == 2 && other >> 8 & 511 == 0 {
                    cpu[p] = 3 + (other >> 17 & 3) as u16;
                }
            }
        }
        let all = (1_u64 << points) - 1;
        let lost = noise.draw() < u64::MAX / 100_000;
        writer.push(&Journey {
            stream,
            key: (number % 4000) as u32,
            number,
            seen: if lost { all & 0b11 } else { all },
            t: &t[..points],
            cpu: &cpu[..points],
            tid: &tid[..points],
            ..Journey::default()
        })?;
        if rate > 0 && i % 64 == 0 {
            let due = Duration::from_nanos(i * 1_000_000_000 / rate);
            if let Some(wait) = due.checked_sub(began.elapsed()) {
                std::thread::sleep(wait);
            }
        }
    }
    let pushed = began.elapsed().as_secs_f64();
    let manifest = writer.finish()?;
    let closed = began.elapsed().as_secs_f64();
    let run = Run::open(&path)?;
    let (files, bytes) = run.size();
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    println!(
        "{} journeys x {points} points in {pushed:.2} s ({:.0}/s), closed after {closed:.2} s; waits {}; {files} files, {bytes} bytes, {:.2} bytes a journey; max RSS {} MiB",
        run.journeys(),
        journeys as f64 / pushed,
        manifest.writer_waits,
        bytes as f64 / journeys as f64,
        usage.max_rss() / 1024,
    );
    Ok(())
}
