//! The baseline: the mean time that on-time packets spend on each cause, on each hop of their route.

use crate::{Cause, PacketTimeline};
use latpath_model::{Ns, PointId};
use std::collections::HashMap;

/// Maximum number of hops. A run has at most 64 points, so only damaged sightings can produce more hops than this.
const MAX_HOPS: usize = 4096;

/// Mean times over on-time packets.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    packets: u64,
    hops: HashMap<(PointId, PointId), HopSums>,
}

#[derive(Clone, Debug, Default)]
struct HopSums {
    packets: u64,
    causes: HashMap<Cause, i128>,
}

/// Mean time of each cause, ns.
pub type MeanTimes = HashMap<Cause, Ns>;

impl Baseline {
    /// Adds an on-time packet.
    pub fn add(&mut self, packet: &PacketTimeline) {
        self.packets += 1;
        for hop in &packet.hops {
            let ends = (hop.from, hop.to);
            if self.hops.len() >= MAX_HOPS && !self.hops.contains_key(&ends) {
                continue;
            }
            let sums = self.hops.entry(ends).or_default();
            sums.packets += 1;
            for interval in &hop.intervals {
                *sums.causes.entry(interval.cause).or_default() +=
                    i128::from(interval.to.saturating_sub(interval.from));
            }
        }
    }

    /// Number of packets added.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Mean times from one point to another: those of packets seen at both points and at none in between, or else the
    /// sum over the hops in between. `None` if a hop is unknown.
    pub fn of(&self, from: PointId, to: PointId, route: &[PointId]) -> Option<MeanTimes> {
        if let Some(sums) = self.hops.get(&(from, to)) {
            return Some(sums.means());
        }
        let place = |point| route.iter().position(|p| *p == point);
        let between = route.get(place(from)?..=place(to)?).filter(|between| between.len() > 2)?;
        let mut all = MeanTimes::new();
        for pair in between.windows(2) {
            for (cause, ns) in self.hops.get(&(pair[0], pair[1]))?.means() {
                crate::sums::plus(all.entry(cause).or_default(), ns);
            }
        }
        Some(all)
    }
}

impl HopSums {
    fn means(&self) -> MeanTimes {
        let packets = i128::from(self.packets.max(1));
        let mean = |sum: &i128| Ns::try_from((sum + packets / 2) / packets).unwrap_or(Ns::MAX);
        self.causes.iter().map(|(cause, sum)| (*cause, mean(sum))).collect()
    }
}
