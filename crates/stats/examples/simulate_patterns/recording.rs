//! Simulated recordings of three streams: two into a guest, one out of it.

use latpath_journey::{Journey, Segment};
use latpath_model::{Link, Ns, PointInfo, SegmentKind};
use latpath_run::Rows;
use latpath_stats::{Batches, DetectedPattern, Patterns, Setup};
use latpath_testkit::Noise;

pub const SECOND: Ns = 1_000_000_000;
pub const START: Ns = 1000 * SECOND;
const POINTS: [&str; 10] = [
    "host/nic-rx@nic0",
    "host/tx@vnet0",
    "host/vm-read@vnet0",
    "guest0/nic-rx@eth0",
    "guest0/app-read@relay",
    "guest0/tx@eth0",
    "host/vm-write@vnet0",
    "host/tx@nic0",
    "host/ovs-upcall@nic0",
    "host/ovs-return@nic0",
];
/// Routes into (`IN`) and out of (`OUT`) the guest, and the points of the Open vSwitch daemon as bits (`DAEMON`).
const IN: [u16; 5] = [0, 1, 2, 3, 4];
const OUT: [u16; 3] = [5, 6, 7];
const DAEMON: u64 = 1 << 8 | 1 << 9;
const STREAMS: [&[u16]; 3] = [&IN, &IN, &OUT];
/// The median of the segment that ends at each point of a route, ns.
const MEDIANS: [f64; 5] = [0.0, 12_000.0, 40_000.0, 120_000.0, 60_000.0];
/// Rows per batch, as in the parts of a run.
const BATCH: usize = 16_384;

/// The injected pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Injected {
    Nothing,
    /// The VM stops reading for this long, ns.
    Held(Ns),
    /// Spikes in the guest: period, height, both in ns.
    Spikes(Ns, Ns),
    /// The guest's clock error is a sine: peak-to-peak size, period, both in ns.
    Swing(f64, Ns),
    /// The guest's application becomes slower by this factor.
    Step(f64),
    /// No packet to the guest passes for this long, ns: the tap accepts none (`true`), or the network delivers none
    /// (`false`).
    Flap(Ns, bool),
    /// Share of packets that pass through the Open vSwitch daemon.
    Path(f64),
}

/// Duration of a recording in seconds, and rate of each stream in packets per second.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub seconds: u64,
    pub rate: u64,
}

/// A normally distributed random number (Box-Muller).
fn normal(noise: &mut Noise) -> f64 {
    (-2.0 * noise.unit().ln()).sqrt() * (std::f64::consts::TAU * noise.unit()).cos()
}

fn setup() -> Setup {
    let info = |(n, name): (usize, &&str)| PointInfo {
        point: name.parse().expect("a point"),
        link: Link::Nic,
        netns: 1,
        ifindex: if name.ends_with("nic0") { 2 } else { 3 + n as u32 },
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: String::new(),
    };
    let step = |two: &[u16]| Segment {
        kind: SegmentKind::Step,
        name: format!("{}→{}", POINTS[usize::from(two[0])], POINTS[usize::from(two[1])]),
        from: two[0],
        to: two[1],
    };
    let mut segments: Vec<Segment> = IN.windows(2).chain(OUT.windows(2)).map(step).collect();
    segments.push(Segment { kind: SegmentKind::Thyp, name: "Thyp".into(), from: 0, to: 3 });
    segments.push(Segment { kind: SegmentKind::Total, name: "total".into(), from: 0, to: 4 });
    Setup {
        streams: STREAMS.len(),
        points: POINTS.iter().enumerate().map(info).collect(),
        routes: STREAMS.iter().map(|route| route.to_vec()).collect(),
        segments,
        threshold: 3_000_000,
        row_limits: Vec::new(),
        band: None,
        worst: 0,
        reactions: Vec::new(),
    }
}

/// A recording under construction, into which a pattern is injected from `begin` on.
struct Recording {
    noise: Noise,
    size: Size,
    injected: Injected,
    begin: Ns,
    /// `levels`: logarithm of each segment's level in this second. `phase`: phase of the slow drift over the recording.
    levels: [f64; 5],
    phase: f64,
    /// End of the current burst, and start of the next.
    burst: (Ns, Ns),
}

/// Simulates a recording and finds its patterns; also returns the start of the injected pattern.
pub fn patterns(seed: u64, size: Size, injected: Injected) -> (Vec<DetectedPattern>, Ns) {
    let mut noise = Noise(seed);
    let begin = START + ((0.3 + 0.4 * noise.unit()) * (size.seconds as Ns * SECOND) as f64) as Ns;
    let levels = std::array::from_fn(|_| normal(&mut noise) * 0.02);
    let phase = noise.unit() * std::f64::consts::TAU;
    let mut recording = Recording { noise, size, injected, begin, levels, phase, burst: (0, 0) };
    let setup = setup();
    let end = START + size.seconds as Ns * SECOND;
    let (mut batches, mut gathered) = (Batches::new(&setup), Patterns::new(&setup, START, end));
    let mut rows: Vec<Rows> = STREAMS.iter().map(|_| Rows::new(POINTS.len())).collect();
    let mut missing = [0_u32; STREAMS.len()];
    for number in 0..size.seconds * size.rate {
        if number % size.rate == 0 {
            recording.turn();
        }
        for (stream, route) in STREAMS.iter().enumerate() {
            recording.packet(&mut rows[stream], &mut missing[stream], stream as u16, route, number);
            if rows[stream].len() == BATCH {
                batches.each(&rows[stream], |batch| gathered.add(batch));
                rows[stream].clear(POINTS.len());
            }
        }
    }
    rows.iter().for_each(|rows| batches.each(rows, |batch| gathered.add(batch)));
    let streams = ["MU01", "MU02", "TRIP"].map(String::from);
    (gathered.find(&setup, START, &streams), begin)
}

impl Recording {
    /// Advances by one second. The levels are an AR(1) process with coefficient 0.9.
    fn turn(&mut self) {
        for level in &mut self.levels {
            *level = 0.9 * *level + normal(&mut self.noise) * 0.02 * (1.0_f64 - 0.81).sqrt();
        }
    }

    fn packet(&mut self, rows: &mut Rows, missing: &mut u32, stream: u16, route: &[u16], number: u64) {
        let interval = SECOND / self.size.rate as Ns;
        let sent = START + number as Ns * interval + Ns::from(stream) * 7_000 + (self.noise.unit() * 8_000.0) as Ns;
        let (mut t, mut seen, mut at) = ([0; POINTS.len()], 0_u64, sent);
        for (place, point) in route.iter().enumerate() {
            at += self.time(route[0] == 0, place, at);
            if self.is_lost(route, place, sent) {
                break;
            }
            t[usize::from(*point)] =
                at + if POINTS[usize::from(*point)].starts_with("guest") { self.offset(at) } else { 0 };
            seen |= 1 << point;
            if *point == 0 && self.is_by_daemon(sent) {
                (t[8], t[9]) = (at + 3_000, at + 90_000);
                seen |= DAEMON;
                at += 93_000;
            }
        }
        if seen == 0 {
            *missing += 1;
            return;
        }
        rows.push(&Journey {
            stream,
            key: (number % 4000) as u32,
            number,
            seen,
            t: &t,
            missing_before: std::mem::take(missing),
            ..Journey::default()
        });
    }

    /// Time that a packet takes from the previous point of its route to the one at index `place`; it was at the
    /// previous point at time `at`.
    fn time(&mut self, goes_in: bool, place: usize, at: Ns) -> Ns {
        let noise = &mut self.noise;
        if place == 0 {
            return 0;
        }
        let part = (at - START) as f64 / (self.size.seconds as Ns * SECOND) as f64;
        let drift = 0.15 * (part * std::f64::consts::TAU + self.phase).sin();
        let mut time = MEDIANS[place] * (self.levels[place] + drift + 0.3 * normal(noise)).exp();
        if place == 3 && at > self.burst.1 {
            // Two bursts per minute on average, each 10 to 60 ms long.
            self.burst = (at + ((0.01 + 0.05 * noise.unit()) * 1e9) as Ns, at + (-30e9 * noise.unit().ln()) as Ns);
        }
        if place == 3 && at < self.burst.0 {
            time -= 1e6 * noise.unit().ln();
        }
        // Occasional spikes that affect a single packet.
        if noise.one_in(100_000) {
            time += 11e6 * noise.unit();
        }
        let since = at - self.begin;
        time += match self.injected {
            Injected::Held(held) if goes_in && place == 2 && (0..held).contains(&since) => {
                (held - since) as f64 + 2_000.0 * noise.unit()
            }
            Injected::Spikes(period, height) if place == 4 => {
                let off = (noise.unit() - 0.5) * 0.002 * period as f64;
                let phase = (at - START) as f64 + off;
                let is_there = phase.rem_euclid(period as f64) < 3e9 / self.size.rate as f64;
                if is_there {
                    height as f64 * (0.7 + 0.6 * noise.unit())
                } else {
                    0.0
                }
            }
            Injected::Step(factor) if place == 4 && since >= 0 => time * (factor - 1.0),
            _ => 0.0,
        };
        time as Ns
    }

    fn is_lost(&mut self, route: &[u16], place: usize, sent: Ns) -> bool {
        let by_flap = match self.injected {
            Injected::Flap(long, at_tap) => {
                let is_down = (0..long).contains(&(sent - self.begin));
                is_down && place == usize::from(at_tap) && route[0] == 0
            }
            _ => false,
        };
        by_flap || (place == 2 && self.noise.one_in(50_000))
    }

    /// Error of the guest's clock at this time, ns.
    fn offset(&self, at: Ns) -> Ns {
        match self.injected {
            Injected::Swing(size, period) => {
                (size / 2.0 * ((at - START) as f64 / period as f64 * std::f64::consts::TAU).sin()) as Ns
            }
            _ => 0,
        }
    }

    fn is_by_daemon(&mut self, sent: Ns) -> bool {
        // Without the pattern, a small share: flows expire occasionally.
        let share = match self.injected {
            Injected::Path(share) if sent >= self.begin => share,
            _ => 0.0005,
        };
        self.noise.unit() < share
    }
}
