//! Histograms of late packets by their first cause in a segment, so that each mode of a histogram has a cause.

use super::ExplainedPacket;
use crate::charts::CHARTED;
use latpath_cause::Baseline;
use latpath_journey::segments::Segment;
use latpath_model::{PointId, SegmentKind};
use latpath_stats::{Bucket, Histogram};
use std::collections::BTreeMap;

/// Histograms of each charted segment's times, by the ID of the packets' first cause in the segment.
#[derive(Debug, Default)]
pub(super) struct FirstCauses(BTreeMap<&'static str, Vec<Histogram>>);

impl FirstCauses {
    /// Adds a late packet's time in each segment that it crossed, by its first cause there. Times that do not exceed
    /// the baseline have no cause and are not added.
    pub fn add(&mut self, packet: &ExplainedPacket, segments: &[Segment], route: &[PointId], baseline: &Baseline) {
        let charted = segments.len().min(CHARTED);
        let at = |point: PointId| packet.explained.seen.iter().find(|s| s.point == point).map(|s| s.t);
        for (place, segment) in segments.iter().take(charted).enumerate() {
            let Some((from, to)) = at(segment.from).zip(at(segment.to)) else { continue };
            let first = match segment.kind {
                // For the total, the same cause as in the tables.
                SegmentKind::Total => packet.attribution.first().map(|share| share.cause),
                _ => packet.explained.first_cause_between((from, to), route, baseline),
            };
            if let Some(cause) = first {
                let of_cause = self.0.entry(cause.id()).or_default();
                of_cause.resize_with(charted.max(of_cause.len()), Histogram::new);
                of_cause[place].record(to.saturating_sub(from));
            }
        }
    }

    /// Times of one segment, by cause.
    pub fn buckets(&self, segment: usize) -> Vec<(&'static str, Vec<Bucket>)> {
        let of = |(cause, of_cause): (&&'static str, &Vec<Histogram>)| {
            let buckets = of_cause.get(segment)?.fine_buckets();
            (!buckets.is_empty()).then_some((*cause, buckets))
        };
        self.0.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_cause::{Attribution, Cause, CauseInterval, Hop, PacketTimeline, RunContext};
    use latpath_model::{Ns, PacketSighting};

    /// A packet that passes three points, with a cause and its duration in ns for each hop.
    fn packet(hops: [(Cause, Ns); 2]) -> PacketTimeline {
        let mut t = 0;
        let mut seen = vec![PacketSighting { point: 0, t, cpu: Some(0), tid: Some(0) }];
        let mut all = Vec::new();
        for (point, (cause, ns)) in (0..).zip(hops) {
            let interval = CauseInterval {
                from: t,
                to: t + ns,
                cause,
                actor: None,
                by: None,
                machine: 0,
                cpu: None,
                number: None,
                state: None,
                waiter: None,
                notes: Vec::new(),
            };
            all.push(Hop { from: point, to: point + 1, begin: t, end: t + ns, intervals: vec![interval] });
            t += ns;
            seen.push(PacketSighting { point: point + 1, t, cpu: Some(0), tid: Some(0) });
        }
        let machines = vec!["host".into()];
        PacketTimeline {
            stream: 0,
            key: 1,
            number: 1,
            late: true,
            capture: 1,
            machines,
            seen,
            hops: all,
            visits: Vec::new(),
        }
    }

    #[test]
    fn a_segment_is_coloured_by_what_held_packets_in_it_and_not_by_what_held_them_elsewhere() {
        let segment = |kind, from, to| Segment { kind, name: String::new(), from, to };
        let segments =
            [segment(SegmentKind::Tnet, 0, 1), segment(SegmentKind::Thyp, 1, 2), segment(SegmentKind::Total, 0, 2)];
        let route = [0, 1, 2];
        let mut baseline = Baseline::default();
        baseline.add(&packet([(Cause::Work, 1_000), (Cause::Work, 2_000)]));
        let mut causes = FirstCauses::default();
        let mut add = |hops| {
            let explained = packet(hops);
            let attribution = Attribution::of(&explained, &route, &baseline, &RunContext::default());
            let packet = ExplainedPacket { explained, attribution, advice: Vec::new() };
            causes.add(&packet, &segments, &route, &baseline);
        };
        add([(Cause::Work, 1_000), (Cause::QueuedBehind, 5_000_000)]);
        add([(Cause::IdleExit, 40_000), (Cause::QueuedBehind, 5_000_000)]);
        let of = |place: usize| causes.buckets(place).into_iter().map(|(cause, _)| cause).collect::<Vec<_>>();
        assert_eq!(of(0), [Cause::IdleExit.id()], "the other packet was on time there");
        assert_eq!((of(1), of(2)), (vec![Cause::QueuedBehind.id()], vec![Cause::QueuedBehind.id()]));
    }
}
