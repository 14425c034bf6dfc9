//! The send times that talkers put into their packets (`latpath publish --cycle`), as a computed point of each journey.

use crate::{journey::MAX_POINTS, sampling::with_computed, Journey};
use latpath_model::{Ns, PlannedSend, Point, PointId, PointInfo, PointKind, StreamId, TALKER};
use std::collections::{HashMap, VecDeque};

/// Time for which a send time is kept after its packet's sighting, ns; the journey must be handed over by then.
const KEPT: Ns = 5_000_000_000;
/// Maximum number of packets whose send times are kept: as many as the joiner's open journeys.
const MAX_KEPT: usize = 1 << 17;

/// Send times of packets whose journeys are open.
#[derive(Default)]
pub struct SendPlan {
    point: Option<PointId>,
    times: HashMap<(StreamId, u32), PlannedSend>,
    /// The same packets, in the order of their sightings.
    order: VecDeque<(StreamId, u32, Ns)>,
}

impl SendPlan {
    /// The point of the planned send times, if it was added.
    pub fn point(&self) -> Option<PointId> {
        self.point
    }

    /// Adds the point of the planned send times if there is room.
    pub fn add_point(&mut self, points: &mut Vec<PointInfo>) {
        if self.point.is_none() && points.len() < MAX_POINTS {
            let point = Point { machine: TALKER.into(), kind: PointKind::Planned, device: "send-time".into() };
            self.point = Some(points.len() as PointId);
            points.push(PointInfo { clock: "send-time".into(), ..point.into() });
        }
    }

    /// Adds the send times of packets, in the order of their sightings.
    pub fn take(&mut self, sends: impl IntoIterator<Item = PlannedSend>) {
        for send in sends {
            let PlannedSend { stream, key, t, .. } = send;
            self.times.insert((stream, key), send);
            self.order.push_back((stream, key, t));
            let is_old = |(_, _, old): &(StreamId, u32, Ns)| t.saturating_sub(*old) > KEPT;
            while self.order.len() > MAX_KEPT || self.order.front().is_some_and(is_old) {
                let Some((stream, key, t)) = self.order.pop_front() else { break };
                // A later packet with the same key may have replaced the entry, which is then kept.
                if self.times.get(&(stream, key)).is_some_and(|send| send.t == t) {
                    self.times.remove(&(stream, key));
                }
            }
        }
    }

    /// Passes a journey to `call`, with its packet's planned send time if known.
    #[inline]
    pub fn with_send_time(&self, j: &Journey, call: impl FnOnce(&Journey)) {
        let known = self.point.filter(|_| !self.times.is_empty()).and_then(|point| {
            let send = self.times.get(&(j.stream, j.key))?;
            // The sighting must belong to this journey, not to an earlier packet with the same key.
            let is_same = |p: &usize| (j.seen & !j.samples) >> p & 1 == 1 && j.t[*p] == send.t;
            (0..j.t.len()).any(|p| is_same(&p)).then_some((point, send.planned))
        });
        match known {
            Some((point, planned)) => with_computed(j, point, planned, call),
            None => call(j),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sends: impl IntoIterator<Item = PlannedSend>) -> SendPlan {
        let mut plan = SendPlan::default();
        let mut points = Vec::new();
        plan.add_point(&mut points);
        plan.add_point(&mut points);
        assert_eq!((points[0].point.to_string().as_str(), points.len()), ("talker/planned@send-time", 1));
        plan.take(sends);
        plan
    }

    fn planned(plan: &SendPlan, stream: StreamId, key: u32, seen_at: Ns) -> Option<Ns> {
        let journey =
            Journey { stream, key, seen: 2, t: &[0, seen_at], cpu: &[0, 1], tid: &[0, 2], ..Journey::default() };
        let mut found = None;
        plan.with_send_time(&journey, |j| {
            found = j.at(0);
            assert_eq!((j.first(), j.samples, j.cpu[1]), (Some(seen_at), u64::from(found.is_some()), 1));
        });
        found
    }

    #[test]
    fn a_journey_has_its_own_packets_send_time() {
        let send = |key, t, planned| PlannedSend { stream: 3, key, t, planned, is_own_clock: false };
        let plan = plan([send(7, 1_000, 900), send(8, 2_000, 2_100)]);
        assert_eq!(planned(&plan, 3, 7, 1_000), Some(900));
        assert_eq!(planned(&plan, 3, 8, 2_000), Some(2_100), "sent before its time");
        assert_eq!(planned(&plan, 3, 7, 1_001), None, "another packet with this key");
        assert_eq!(planned(&plan, 2, 7, 1_000), None, "another stream");
    }

    #[test]
    fn memory_is_bounded_by_time_and_number_and_a_repeated_key_has_the_newest_time() {
        let send = |n: usize, every: Ns| {
            let (key, t) = (n as u32 % 65_536, n as Ns * every);
            PlannedSend { stream: 0, key, t, planned: 1, is_own_clock: true }
        };
        let by_number = plan((0..3 * MAX_KEPT).map(|n| send(n, 1)));
        assert_eq!((by_number.order.len(), by_number.times.len()), (MAX_KEPT, 65_536));
        let by_time = plan((0..10_000).map(|n| send(n, KEPT / 100)));
        assert_eq!((by_time.order.len(), by_time.times.len()), (101, 101));
        let last = 3 * MAX_KEPT - 1;
        assert_eq!(planned(&by_number, 0, last as u32 % 65_536, last as Ns), Some(1));
    }
}
