//! The worst late round trips of a log as captures, so that they are explained and exported like those of a run. A log
//! has no record of the machines' activity.

use super::THRESHOLD;
use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet, RankedCapture};
use latpath_journey::Journey;
use latpath_model::round_trip::{EMITTER, REFLECTOR};
use latpath_model::{Ns, PacketSighting, PointId};
use latpath_run::SpikesRecord;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of late round trips that are kept.
const MAX_LATE: usize = 1000;
/// Maximum number of round trips from which the baseline is learnt.
const BASELINE: usize = 128;
const NO_RECORD: &str = "a log of round trips has no record of what its machines did";

/// A round trip: duration, sequence number, and time at each point. Sorted by duration, then by number.
type Trip = (Ns, u64, Vec<(PointId, Ns)>);

/// Collects the worst round trips, and some that are on time.
#[derive(Default)]
pub(super) struct Late {
    /// The worst round trips; the smallest of them is on top.
    worst: BinaryHeap<Reverse<Trip>>,
    late: u64,
    on_time: Vec<Trip>,
    /// Of the round trips on time, one in this many is kept.
    every: u64,
    seen: u64,
}

impl Late {
    pub fn add(&mut self, journey: &Journey) {
        let last = journey.t.len().saturating_sub(1) as PointId;
        let Some(time) = journey.at(0).zip(journey.at(last)).map(|(from, to)| to.saturating_sub(from)) else { return };
        let at = |point: PointId| journey.at(point).map(|t| (point, t));
        let trip = || (time, journey.number, (0..=last).filter_map(at).collect());
        if time <= THRESHOLD {
            if self.seen.is_multiple_of(self.every.max(1)) {
                self.on_time.push(trip());
            }
            self.seen += 1;
            if self.on_time.len() >= 2 * BASELINE {
                let mut is_kept = false;
                self.on_time.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
                self.every = 2 * self.every.max(1);
            }
            return;
        }
        self.late += 1;
        let is_worse = |least: &Reverse<Trip>| least.0 .0 < time;
        if self.worst.len() < MAX_LATE || self.worst.peek().is_some_and(is_worse) {
            self.worst.push(Reverse(trip()));
            if self.worst.len() > MAX_LATE {
                self.worst.pop();
            }
        }
    }

    /// Creates the captures: one of round trips on time, and one for each interval in which round trips were late.
    pub fn captures(self) -> (Vec<RankedCapture>, SpikesRecord) {
        let mut late: Vec<(Packet, Ns)> = self.worst.into_iter().map(|Reverse(trip)| packet(trip, true)).collect();
        late.sort_by_key(|(packet, _)| (begin(packet), packet.number));
        let kept = late.len() as u64;
        let mut all: Vec<RankedCapture> = Vec::new();
        for (packet, time) in late {
            let (from, to) = (begin(&packet), end(&packet));
            match all.last_mut().filter(|ranked| ranked.capture.to >= from) {
                Some(ranked) => {
                    ranked.capture.to = ranked.capture.to.max(to);
                    ranked.capture.packets.push(packet);
                    ranked.worst = ranked.worst.max(time);
                    ranked.late = vec![ranked.capture.packets.len() as u64];
                }
                None => all.push(ranked(all.len(), CaptureKind::Spike, vec![packet], time)),
            }
        }
        let captures = all.len() as u64;
        let mut on_time: Vec<Packet> =
            self.on_time.into_iter().take(BASELINE).map(|trip| packet(trip, false).0).collect();
        on_time.sort_by_key(|packet| (begin(packet), packet.number));
        let baselines = u64::from(!on_time.is_empty());
        if baselines > 0 {
            all.push(ranked(all.len(), CaptureKind::Baseline, on_time, 0));
        }
        let record = SpikesRecord {
            late: vec![self.late],
            late_kept: vec![kept],
            captures,
            baselines,
            ..SpikesRecord::default()
        };
        (all, record)
    }
}

fn packet((time, number, times): Trip, late: bool) -> (Packet, Ns) {
    let mut sightings: Vec<PacketSighting> =
        times.into_iter().map(|(point, t)| PacketSighting { point, t, cpu: None, tid: None }).collect();
    sightings.sort_by_key(|s| (s.t, s.point));
    (Packet { stream: 0, key: number as u32, number, late, sightings }, time)
}

fn begin(packet: &Packet) -> Ns {
    packet.sightings.first().map_or(0, |s| s.t)
}

fn end(packet: &Packet) -> Ns {
    packet.sightings.last().map_or(0, |s| s.t)
}

fn ranked(before: usize, kind: CaptureKind, packets: Vec<Packet>, worst: Ns) -> RankedCapture {
    let machine = |name: &str| MachineSnapshot {
        machine: name.into(),
        offset_ns: 0,
        error_bound_ns: 0,
        record: Err(NO_RECORD.into()),
    };
    let (from, to) = (packets.iter().map(begin).min(), packets.iter().map(end).max());
    let late = vec![packets.iter().filter(|packet| packet.late).count() as u64];
    let capture = Capture {
        number: before as u32 + 1,
        kind,
        from: from.unwrap_or(0),
        to: to.unwrap_or(0),
        machines: [EMITTER, REFLECTOR].map(machine).into(),
        packets,
        more_late: 0,
    };
    RankedCapture { capture, worst, late }
}
