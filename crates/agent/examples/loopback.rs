//! Measures the cost of the protocol: an agent sends a million sightings to its host over a socket pair in one process.
//! Prints bytes per sighting and the CPU time of both ends.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

use latpath_agent::{serve, Machine, ServeOptions, StartRequest, Stream, Timeouts};
use latpath_linux::monotonic;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, Sighting, Source};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const MILLION: i64 = 1_000_000;

struct Invented {
    next: i64,
    began: Ns,
    at_once: i64,
}

impl Source for Invented {
    fn points(&mut self) -> Vec<PointInfo> {
        let point = |kind| PointInfo {
            point: Point { machine: "self".into(), kind, device: "eth1".into() },
            link: Link::Nic,
            netns: 1,
            ifindex: 2,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: "monotonic".into(),
        };
        vec![point(PointKind::NicRx), point(PointKind::Tx), point(PointKind::AppRead)]
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        vec![]
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let until = (self.next + self.at_once).min(MILLION);
        for i in self.next..until {
            let (packet, point) = (i / 3, i % 3);
            // Packets every 250 µs with jitter. The application is a single thread; at the other points, interrupts hit
            // five different threads.
            let t = self.began + packet * 250_000 + point * 20_000 + packet * 7919 % 50_000;
            out.push(Sighting {
                t,
                key: (packet % 4000) as u32,
                tid: if point == 2 { 4711 } else { 100 + (packet * 31 % 5) as u32 },
                point: point as u16,
                cpu: (packet % 2) as u16,
                ..Sighting::default()
            });
        }
        self.next = until;
        out.last().map_or(monotonic(), |s| s.t)
    }

    fn counters(&mut self) -> Counters {
        Counters { sightings: self.next as u64, ..Counters::default() }
    }
}

/// Total CPU time of this process's threads with these names, ns (first number of `/proc/PID/task/TID/schedstat`).
fn cpu_ns(names: &[&str]) -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let of_task = |task: std::fs::DirEntry| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let mine = names.contains(&read("comm").trim());
        mine.then(|| read("schedstat").split(' ').next()?.parse::<u64>().ok()).flatten()
    };
    tasks.flatten().filter_map(of_task).sum()
}

/// Measures twice: with 120 sightings per drain (10 ms at 4,000 packets per second and three points), then with 2,000.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    [120, 2000].into_iter().try_for_each(million)
}

fn million(at_once: i64) -> Result<(), Box<dyn std::error::Error>> {
    let (host, guest) = UnixStream::pair()?;
    // Two forwarding threads count the bytes.
    let counted = Arc::new(AtomicU64::new(0));
    let (near, far) = UnixStream::pair()?;
    for (mut from, mut to, counter) in [(far.try_clone()?, host.try_clone()?, None), (host, far, Some(counted.clone()))]
    {
        std::thread::Builder::new().name("counting".into()).spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                if let Some(counter) = &counter {
                    counter.fetch_add(n as u64, Ordering::Relaxed);
                }
                if to.write_all(&buffer[..n]).is_err() {
                    return;
                }
            }
        })?;
    }
    let agent = std::thread::Builder::new().name("agent".into()).spawn(move || {
        let every = std::time::Duration::from_micros(50);
        let mut options = ServeOptions { every, ..ServeOptions::default() };
        let make = move |_: &StartRequest| {
            Ok::<_, String>(Invented { next: 0, began: monotonic() - 90_000_000_000, at_once }.into())
        };
        serve(&mut Stream::new(guest)?, &mut options, None, make).map_err(|e| std::io::Error::other(e.to_string()))
    })?;
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(near)?, Timeouts::default())?;
    let (bytes, cpu, began) =
        (counted.load(Ordering::Relaxed), [cpu_ns(&["agent"]), cpu_ns(&["lp-guest0"])], monotonic());
    machine.start(&StartRequest { streams: vec!["svid:MU01".parse()?], options: Default::default() })?;
    let (mut got, mut sightings) = (0, Vec::new());
    while got < MILLION as usize {
        sightings.clear();
        machine.drain(&mut sightings);
        got += sightings.len();
        if let Some(fault) = machine.fault() {
            return Err(fault.into());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let bytes = counted.load(Ordering::Relaxed) - bytes;
    let ms = |names: &[&str], before| (cpu_ns(names) - before) as f64 / 1e6;
    println!("a million sightings, {at_once} at a time: {:.2} bytes each on the wire", bytes as f64 / MILLION as f64);
    println!("  CPU: agent {:.0} ms, host {:.0} ms", ms(&["agent"], cpu[0]), ms(&["lp-guest0"], cpu[1]));
    println!("  {:.1} s", (monotonic() - began) as f64 / 1e9);
    let clock = machine.clock();
    println!("  clock: {} ns ± {} ns after {} exchanges", clock.offset_ns, clock.error_bound_ns, clock.exchanges);
    machine.stop()?;
    agent.join().expect("the agent does not panic")?;
    Ok(())
}
