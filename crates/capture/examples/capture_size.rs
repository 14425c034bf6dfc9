//! Prints what a typical capture takes: bytes, and the time to encode and to decode it. Two machines of four CPUs, 100 ms, 13
//! events per packet and CPU, 400 packets of six sightings.

use latpath_capture::{Capture, CaptureKind, MachineRecord, Packet, PacketSighting, RankedCapture};
use latpath_flight::{Class, CpuRecord, Event, Left, Sleep, Snapshot, Thread, What, Window};
use latpath_model::Ns;
use std::{hint::black_box, time::Instant};

const MS: Ns = 1_000_000;
const PERIOD: Ns = MS / 4;
const ROUNDS: usize = 50;

/// A generator that always gives the same numbers.
struct Noise(u64);

impl Noise {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn cpu(cpu: u32, noise: &mut Noise) -> CpuRecord {
    let class = Class { prio: 120, policy: 0 };
    let mut events = Vec::new();
    for packet in 0..400 {
        let mut t = packet * PERIOD + noise.below(5_000) as Ns;
        let pid = 1_000 + noise.below(6) as u32;
        let switch =
            |next| What::Switch { next, left: Left::Asleep(Sleep::Interruptible), prev: class, next_class: class };
        let wakeup = What::Wakeup { pid, cpu, class, throttled: false };
        let timer = What::HrtimerEntry(0xffff_ffff_8110_0000 + noise.below(4) * 0x340);
        let all = [
            (0, What::Idle(None)),
            (0, What::IrqEntry(40 + cpu)),
            (0, What::SoftirqRaise(3)),
            (0, What::IrqExit(40 + cpu)),
            (0, What::SoftirqEntry(3)),
            (0, What::Waking { pid, cpu, class }),
            (0, wakeup),
            (0, What::SoftirqExit(3)),
            (0, switch(pid)),
            (pid, timer),
            (pid, What::HrtimerExit),
            (pid, switch(0)),
            (0, What::Idle(Some(2))),
        ];
        for (pid, what) in all {
            t += 200 + noise.below(3_000) as Ns;
            events.push(Event { t, pid, what });
        }
    }
    CpuRecord { cpu, events, since: 0, overwritten: 0, unfinished: 0 }
}

fn machine(name: &str, noise: &mut Noise) -> MachineRecord {
    let cpus = (0..4).map(|n| cpu(n, noise)).collect();
    let thread = |pid: u32| (pid, Thread { name: format!("vhost-{pid}"), tgid: pid });
    let snapshot = Snapshot {
        window: Window { from: 0, to: 100 * MS, cpus },
        threads: (1_000..1_040).map(thread).collect(),
        irqs: (40..44).map(|n| (n, format!("virtio{n}-input.0"))).collect(),
        functions: (0..4).map(|n| (0xffff_ffff_8110_0000 + n * 0x340, format!("tick_nohz_handler_{n}"))).collect(),
        ..Snapshot::default()
    };
    MachineRecord { machine: name.into(), offset_ns: 1_234_567, error_bound_ns: 80, record: Ok(snapshot) }
}

fn main() {
    let mut noise = Noise(1);
    let machines = vec![machine("host", &mut noise), machine("guest0", &mut noise)];
    let mut packet = |number: u64| {
        let mut t = number as Ns * PERIOD;
        let sighting = |point| {
            t += 2_000 + noise.below(9_000) as Ns;
            PacketSighting { point, t, cpu: point % 4, tid: 1_000 + u32::from(point) }
        };
        let sightings = (0..6).map(sighting).collect();
        Packet { stream: 0, key: number as u32 % 4_000, number, late: number.is_multiple_of(40), sightings }
    };
    let packets = (0..400).map(&mut packet).collect();
    let capture =
        Capture { number: 1, kind: CaptureKind::Spike, from: 0, to: 100 * MS, machines, packets, more_late: 0 };
    let events: usize = capture
        .machines
        .iter()
        .filter_map(|m| m.record.as_ref().ok())
        .flat_map(|snapshot| &snapshot.window.cpus)
        .map(|cpu| cpu.events.len())
        .sum();
    let capture = RankedCapture { capture, worst: MS, late: vec![10] };
    let bytes = capture.encode();
    let encode = median(|| drop(black_box(capture.encode())));
    let decode = median(|| drop(black_box(RankedCapture::decode(&bytes))));
    println!("{events} events, 400 packets: {} bytes, encoded in {encode} us, decoded in {decode} us", bytes.len());
}

/// Microseconds.
fn median(mut work: impl FnMut()) -> u128 {
    let mut times = [0; ROUNDS];
    for time in &mut times {
        let began = Instant::now();
        work();
        *time = began.elapsed().as_micros();
    }
    times.sort_unstable();
    times[ROUNDS / 2]
}
