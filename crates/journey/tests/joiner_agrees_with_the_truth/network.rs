//! A simulated network that knows the packet of every sighting.

use latpath_model::{Link, Ns, Point, PointInfo, Sighting};

pub const HOPS: usize = 6;
pub const DROP: u16 = 6;
/// First point in the guest, whose clock is wrong by `clock_error`.
const GUEST: usize = 4;
const US: Ns = 1000;

/// Deterministic random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

#[derive(Clone, Debug)]
pub struct Stall {
    pub hop: usize,
    pub from: Ns,
    pub length: Ns,
    /// Maximum number of queued packets; the rest is dropped.
    pub queue: usize,
}

#[derive(Clone, Debug)]
pub struct Network {
    pub seed: u64,
    pub packets: usize,
    pub interval: Ns,
    pub step: u64,
    pub wrap: u64,
    /// Losses per thousand packets at each hop.
    pub loss: u32,
    pub sighting_loss: u32,
    pub duplicates: u32,
    pub reorder: u32,
    /// Maximum number of packets that overtake a packet.
    pub reorder_span: u64,
    pub clock_error: Ns,
    pub disorder: Ns,
    pub stalls: Vec<Stall>,
    /// Every packet has a clone that is dropped, as at a bridge: at this hop, this long after the packet's sighting
    /// there.
    pub clones: Option<(usize, Ns)>,
    /// First hop that is observed.
    pub watched_from: usize,
}

/// A sighting and its packet.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub s: Sighting,
    pub packet: usize,
    pub arrives: Ns,
}

pub fn points() -> Vec<PointInfo> {
    ["host/tx@p", "host/nic-rx@e", "host/tx@tap", "host/vm-read@tap", "g/nic-rx@e", "g/app-read@a", "host/drop@tap"]
        .map(|text| PointInfo {
            point: text.parse::<Point>().unwrap(),
            link: Link::Nic,
            netns: 1,
            ifindex: 1,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: "monotonic".into(),
        })
        .to_vec()
}

impl Network {
    /// All sightings in the order in which they reach the joiner.
    pub fn run(&self, stream: u16, start: Ns) -> Vec<Known> {
        let mut r = Random(self.seed ^ u64::from(stream) << 48);
        let mut out = Vec::new();
        let mut see = |r: &mut Random, packet: usize, point: u16, at: Ns, note: u16| {
            if r.chance(self.sighting_loss) || usize::from(point) < self.watched_from {
                return;
            }
            let guest = (GUEST..HOPS).contains(&usize::from(point));
            let t = at + if guest { self.clock_error } else { 0 };
            let key = (7 + packet as u64) * self.step % self.wrap;
            // A guest's sightings keep their order but arrive late, in chunks.
            let arrives = if guest { (t / (self.disorder + 1) + 1) * (self.disorder + 1) } else { t };
            let (cpu, tid) = (r.below(8) as u16, r.below(1000) as u32);
            out.push(Known { s: Sighting { t, key: key as u32, tid, stream, point, cpu, note }, packet, arrives });
        };
        let mut queue: Vec<(Ns, usize)> =
            (0..self.packets).map(|n| (start + n as Ns * self.interval + r.below(20_000) as Ns, n)).collect();
        for hop in 0..HOPS {
            queue.sort();
            let mut next = Vec::with_capacity(queue.len());
            let (mut free, mut waiting, mut last) = (0, 0, 0);
            for (n, &(arrival, packet)) in queue.iter().enumerate() {
                let mut at = arrival;
                // While a queue drains, packets follow each other so closely that a small delay would let many
                // overtake: none are reordered then.
                let following = queue.get(n + 1).map_or(Ns::MAX, |next| next.0);
                let apart = (arrival - last).min(following - arrival) > self.interval / 3;
                last = arrival;
                let stall = self
                    .stalls
                    .iter()
                    .find(|s| s.hop == hop && (start + s.from..start + s.from + s.length).contains(&at));
                if let Some(stall) = stall {
                    waiting += 1;
                    at = start + stall.from + stall.length;
                    if waiting > stall.queue {
                        see(&mut r, packet, DROP, arrival, 2);
                        continue;
                    }
                } else {
                    waiting = 0;
                }
                if r.chance(self.loss) {
                    continue;
                }
                if r.chance(self.reorder) && stall.is_none() && apart && at > free {
                    at += r.below(self.reorder_span * self.interval as u64) as Ns;
                } else {
                    at = at.max(free + 2 * US);
                    free = at;
                }
                see(&mut r, packet, hop as u16, at, 0);
                let delay = 5 * US + r.below(10_000) as Ns;
                next.push((at + delay, packet));
                if let Some((_, after)) = self.clones.filter(|(at, _)| *at == hop) {
                    see(&mut r, packet, DROP, at + after, 1);
                }
                if r.chance(self.duplicates) {
                    let later =
                        if apart && arrival == at { self.reorder_span * self.interval as u64 / 2 } else { 3000 };
                    next.push((at + delay + r.below(later) as Ns, packet));
                }
            }
            queue = next;
        }
        out.sort_by_key(|known| (known.arrives, known.s.t));
        out
    }
}
