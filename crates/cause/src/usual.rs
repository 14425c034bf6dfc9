//! What is usual: the time that packets which are on time spend by each cause, in each part of their way.

use crate::{Cause, Explained};
use latpath_model::{Ns, PointId};
use std::collections::HashMap;

/// Parts of ways that are kept apart. A run has 64 points at most; more parts than this come of garbled sightings.
const MOST_PARTS: usize = 4096;

/// Means over on-time packets.
#[derive(Clone, Debug, Default)]
pub struct Usual {
    packets: u64,
    parts: HashMap<(PointId, PointId), PartSums>,
}

#[derive(Clone, Debug, Default)]
struct PartSums {
    packets: u64,
    causes: HashMap<Cause, i128>,
}

/// What is usual in one part: mean times by cause.
pub type Means = HashMap<Cause, Ns>;

impl Usual {
    /// A packet that was on time.
    pub fn add(&mut self, packet: &Explained) {
        self.packets += 1;
        for part in &packet.parts {
            let ends = (part.from, part.to);
            if self.parts.len() >= MOST_PARTS && !self.parts.contains_key(&ends) {
                continue;
            }
            let sums = self.parts.entry(ends).or_default();
            sums.packets += 1;
            for piece in &part.pieces {
                *sums.causes.entry(piece.cause).or_default() += i128::from(piece.to.saturating_sub(piece.from));
            }
        }
    }

    /// Packets that it is known from.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// What is usual from one point to another: of packets that were seen at both and nowhere between; else that of the parts
    /// between neighbours on the way, together. None where nothing is known of one of them.
    pub fn of(&self, from: PointId, to: PointId, way: &[PointId]) -> Option<Means> {
        if let Some(sums) = self.parts.get(&(from, to)) {
            return Some(sums.means());
        }
        let place = |point| way.iter().position(|p| *p == point);
        let between = way.get(place(from)?..=place(to)?).filter(|between| between.len() > 2)?;
        let mut all = Means::new();
        for pair in between.windows(2) {
            for (cause, ns) in self.parts.get(&(pair[0], pair[1]))?.means() {
                crate::sums::plus(all.entry(cause).or_default(), ns);
            }
        }
        Some(all)
    }
}

impl PartSums {
    fn means(&self) -> Means {
        let packets = i128::from(self.packets.max(1));
        let mean = |sum: &i128| Ns::try_from((sum + packets / 2) / packets).unwrap_or(Ns::MAX);
        self.causes.iter().map(|(cause, sum)| (*cause, mean(sum))).collect()
    }
}
