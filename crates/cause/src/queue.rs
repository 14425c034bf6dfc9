//! Queues between two points, and the packets that were ahead in a queue.

use latpath_capture::{Capture, Packet};
use latpath_model::{Ns, PointId, PointInfo, StreamId};
use std::collections::HashMap;

/// Whether there is a queue between two points of a machine. Between two machines, there always is.
pub(crate) fn lies_between(a: &PointInfo, b: &PointInfo) -> bool {
    // Without a queue, one executor carries the packet from one point to the other without interruption.
    a.point.machine != b.point.machine || a.point.kind.info().queue_behind || b.point.kind.info().queue_before
}

/// All sightings of the capture's packets, by point.
pub(crate) struct SightingsByPoint(HashMap<PointId, Vec<Served>>);

#[derive(Clone, Copy)]
struct Served {
    t: Ns,
    cpu: Option<u16>,
    tid: Option<u32>,
    packet: usize,
}

/// Packets that were served before this one, in order of time: index in the capture, and time of service.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketsAhead(Vec<(usize, Ns)>);

impl SightingsByPoint {
    pub fn of(capture: &Capture) -> Self {
        let mut points: HashMap<PointId, Vec<Served>> = HashMap::new();
        for (packet, of) in capture.packets.iter().enumerate() {
            for seen in &of.sightings {
                let served = Served { t: seen.t, cpu: seen.cpu, tid: seen.tid, packet };
                points.entry(seen.point).or_default().push(served);
            }
        }
        points.values_mut().for_each(|served| served.sort_by_key(|s| s.t));
        Self(points)
    }

    /// The other packets that were seen at a point between two times, by this thread or in interrupt context on this
    /// CPU.
    pub fn between(&self, point: PointId, from: Ns, to: Ns, by: By) -> PacketsAhead {
        let Some(served) = self.0.get(&point) else { return PacketsAhead::default() };
        let first = served.partition_point(|s| s.t <= from);
        let mut times: Vec<(usize, Ns)> = served[first..]
            .iter()
            .take_while(|s| s.t < to)
            .filter(|s| match by {
                By::Thread(tid) => s.tid == Some(tid),
                By::Cpu(cpu) => cpu.is_some() && s.cpu == cpu,
            })
            .map(|s| (s.packet, s.t))
            .collect();
        // Consecutive sightings of the same packet count once.
        times.dedup_by_key(|(packet, _)| *packet);
        PacketsAhead(times)
    }
}

/// What serves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Thread(u32),
    /// Interrupt context on a CPU. If it is unknown (`None`), no packets are found.
    Cpu(Option<u16>),
}

impl PacketsAhead {
    /// Time at which the last of these packets within the interval was served, and the number served in it.
    pub fn since(&self, from: Ns, to: Ns) -> (Ns, u64) {
        let (first, end) = (self.0.partition_point(|(_, t)| *t <= from), self.0.partition_point(|(_, t)| *t < to));
        match self.0.get(first..end) {
            Some(served @ [.., (_, last)]) => (*last, served.len() as u64),
            _ => (Ns::MIN, 0),
        }
    }

    /// Number of packets.
    pub fn count(&self) -> Ns {
        self.0.len() as Ns
    }

    /// The packet that was served first, as its index in the capture, and the time of service.
    pub fn first(&self) -> Option<(usize, Ns)> {
        self.0.first().copied()
    }

    /// How much closer together than usual for their streams these packets and `own` (which waited behind them for
    /// `waited`) arrived at a point, ns: the queue accounts for at most this part of the wait. `None` if unknown.
    pub fn came_early_by(
        &self,
        capture: &Capture,
        spacing: &Spacing,
        point: PointId,
        own: &Packet,
        waited: Ns,
    ) -> Option<Ns> {
        let mut streams: HashMap<StreamId, (Ns, Ns, Ns)> = HashMap::new();
        let ahead = self.0.iter().filter_map(|(place, _)| capture.packets.get(*place));
        for (packet, t) in ahead.chain([own]).filter_map(|packet| Some((packet, arrival(packet, point)?))) {
            let (first, last, count) = streams.entry(packet.stream).or_insert((t, t, -1));
            (*first, *last, *count) = ((*first).min(t), (*last).max(t), *count + 1);
        }
        let of_own = streams.get(&own.stream).map_or(0, |(_, _, count)| *count);
        let mut early: Ns = 0;
        for (stream, (first, last, count)) in streams {
            let (usual, seen_for) = *spacing.0.get(&(point, stream))?;
            // If a stream has many more packets than `own`'s, it is a burst, however long it lasts.
            if count > 0 && seen_for < waited || count > 2 * of_own + 2 {
                return None;
            }
            early = early.saturating_add(usual.saturating_mul(count).saturating_sub(last.saturating_sub(first)).max(0));
        }
        Some(early)
    }
}

fn arrival(packet: &Packet, point: PointId) -> Option<Ns> {
    packet.sightings.iter().find(|seen| seen.point == point).map(|seen| seen.t)
}

/// By point and stream: the usual time between packets with consecutive indexes, and the time over which it was
/// observed, ns.
pub(crate) struct Spacing(HashMap<(PointId, StreamId), (Ns, Ns)>);

impl Spacing {
    pub fn of(capture: &Capture) -> Self {
        let mut seen: HashMap<(PointId, StreamId), Vec<(u64, Ns)>> = HashMap::new();
        for packet in &capture.packets {
            for one in &packet.sightings {
                seen.entry((one.point, packet.stream)).or_default().push((packet.number, one.t));
            }
        }
        let usual = |mut seen: Vec<(u64, Ns)>| {
            seen.sort_unstable();
            let pairs = seen.windows(2).filter(|pair| pair[1].0 > pair[0].0);
            let mut gaps: Vec<(Ns, Ns)> = pairs
                .map(|pair| {
                    let gap = pair[1].1.saturating_sub(pair[0].1).max(0);
                    (gap / Ns::try_from(pair[1].0 - pair[0].0).unwrap_or(Ns::MAX), gap)
                })
                .collect();
            gaps.sort_unstable();
            // A median weighted by time, so that a burst of many packets has little weight.
            let all = gaps.iter().fold(0, |sum: Ns, (_, gap)| sum.saturating_add(*gap));
            let mut sum: Ns = 0;
            let median = gaps.iter().find(|(_, gap)| {
                sum = sum.saturating_add(*gap);
                sum >= all / 2
            });
            (median.map_or(0, |(spacing, _)| *spacing), all)
        };
        Self(seen.into_iter().map(|(key, seen)| (key, usual(seen))).collect())
    }
}
