//! Queues between two points, and the packets that were ahead in them.

use latpath_capture::Capture;
use latpath_model::{Ns, PointId, PointInfo, PointKind};
use std::collections::HashMap;

/// Whether a packet lies in a queue between two points of one machine, or between two machines.
pub(crate) fn lies_between(a: &PointInfo, b: &PointInfo) -> bool {
    use PointKind::*;
    if a.point.machine != b.point.machine {
        return true;
    }
    match (a.point.kind, b.point.kind) {
        // In one go, by whoever has it.
        (
            NicRx | VmWrite | OvsExec | OvsReturn | XdpRedirect,
            Tx | NicRx | OvsExec | OvsUpcall | OvsSlow | XdpRedirect,
        ) => false,
        (NicRx, XskRx) => false,
        _ => true,
    }
}

/// All sightings of the capture's packets, by point.
pub(crate) struct SightingsByPoint(HashMap<PointId, Vec<Served>>);

#[derive(Clone, Copy)]
struct Served {
    t: Ns,
    cpu: u16,
    tid: u32,
    packet: usize,
}

/// Times at which packets were served before this one, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketsAhead(Vec<Ns>);

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

    /// Others that were seen at a point between two times: by this thread, or in an interrupt's context by this CPU.
    pub fn between(&self, point: PointId, from: Ns, to: Ns, by: By) -> PacketsAhead {
        let Some(served) = self.0.get(&point) else { return PacketsAhead::default() };
        let first = served.partition_point(|s| s.t <= from);
        let mut times: Vec<(usize, Ns)> = served[first..]
            .iter()
            .take_while(|s| s.t < to)
            .filter(|s| match by {
                By::Thread(tid) => s.tid == tid,
                By::Cpu(cpu) => s.cpu == cpu,
            })
            .map(|s| (s.packet, s.t))
            .collect();
        // A packet that is seen twice counts once.
        times.dedup_by_key(|(packet, _)| *packet);
        PacketsAhead(times.into_iter().map(|(_, t)| t).collect())
    }
}

/// What serves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Thread(u32),
    Cpu(u16),
}

impl PacketsAhead {
    /// When the last of them was served between two times, and how many were.
    pub fn since(&self, from: Ns, to: Ns) -> (Ns, u64) {
        let (first, end) = (self.0.partition_point(|t| *t <= from), self.0.partition_point(|t| *t < to));
        match self.0.get(first..end) {
            Some(served @ [.., last]) => (*last, served.len() as u64),
            _ => (Ns::MIN, 0),
        }
    }
}
