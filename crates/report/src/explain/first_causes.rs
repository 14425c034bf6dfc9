//! How often each time occurs among late packets, by what held them first: so that a hump of a histogram has a name.

use super::ExplainedPacket;
use crate::charts::CHARTED;
use latpath_journey::segments::Segment;
use latpath_model::PointId;
use latpath_stats::{Bucket, Histogram};
use std::collections::BTreeMap;

/// Histograms of the segments that can have charts, by the first cause's name.
#[derive(Debug, Default)]
pub(super) struct FirstCauses(BTreeMap<&'static str, Vec<Histogram>>);

impl FirstCauses {
    /// Adds a late packet, to each segment that it crossed. One that took no longer than the baseline has no cause.
    pub fn add(&mut self, packet: &ExplainedPacket, segments: &[Segment]) {
        let Some(first) = packet.attribution.first() else { return };
        let of_cause = self.0.entry(first.cause.id()).or_default();
        let charted = segments.len().min(CHARTED);
        of_cause.resize_with(charted.max(of_cause.len()), Histogram::new);
        let at = |point: PointId| packet.explained.seen.iter().find(|s| s.point == point).map(|s| s.t);
        for (segment, histogram) in segments.iter().zip(of_cause) {
            if let (Some(from), Some(to)) = (at(segment.from), at(segment.to)) {
                histogram.record(to.saturating_sub(from));
            }
        }
    }

    /// The times of one segment, of each cause that has any.
    pub fn buckets(&self, segment: usize) -> Vec<(&'static str, Vec<Bucket>)> {
        let of = |(cause, of_cause): (&&'static str, &Vec<Histogram>)| {
            let buckets = of_cause.get(segment)?.fine_buckets();
            (!buckets.is_empty()).then_some((*cause, buckets))
        };
        self.0.iter().filter_map(of).collect()
    }
}
