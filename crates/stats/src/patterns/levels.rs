//! The level of a segment's times in each slot of a recording: quartiles of a sample of the packets.

use latpath_model::Ns;

/// One of this many packets is sampled.
const ONE_IN: usize = 16;
/// Minimum and maximum number of packets in a sample.
const SAMPLE: (usize, usize) = (64, 256);

/// Quartiles of times, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quartiles {
    pub low: Ns,
    pub middle: Ns,
    pub high: Ns,
}

impl Quartiles {
    /// The quartiles of a sample: every 16th time, within the limits of `SAMPLE`. `buffer` is reused.
    pub fn of(times: &[Ns], buffer: &mut Vec<Ns>) -> Option<Self> {
        let n = (times.len() / ONE_IN).clamp(SAMPLE.0, SAMPLE.1).min(times.len());
        buffer.clear();
        buffer.extend((0..n).map(|i| times[i * times.len() / n]));
        if n == 0 {
            return None;
        }
        let (below, middle, above) = buffer.select_nth_unstable(n / 2);
        let middle = *middle;
        let low = if below.is_empty() { middle } else { *below.select_nth_unstable(n / 4).1 };
        let at = (3 * n / 4).saturating_sub(n / 2 + 1).min(above.len().saturating_sub(1));
        let high = if above.is_empty() { middle } else { *above.select_nth_unstable(at).1 };
        Some(Self { low, middle, high })
    }

    /// Spread of the times, ns: about the standard deviation of a normal distribution with these quartiles, with a
    /// minimum of 500 ns and of 1/64 of the median.
    pub fn scale(&self) -> Ns {
        let half = self.high.saturating_sub(self.middle).max(self.middle.saturating_sub(self.low));
        let least = (self.middle.saturating_abs() / 64).max(500);
        half.saturating_mul(3).saturating_div(2).max(least)
    }
}

/// The quartiles of a slot, as sums weighted by the number of packets that they represent. The sums saturate only if a
/// faulty clock yields times near the end of the range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub packets: u64,
    low: Ns,
    middle: Ns,
    high: Ns,
}

impl Level {
    pub fn add(&mut self, packets: usize, quartiles: Quartiles) {
        let weighted = |t: Ns| t.saturating_mul(packets as Ns);
        self.packets += packets as u64;
        self.low = self.low.saturating_add(weighted(quartiles.low));
        self.middle = self.middle.saturating_add(weighted(quartiles.middle));
        self.high = self.high.saturating_add(weighted(quartiles.high));
    }

    /// The combined levels of several slots.
    pub fn together(levels: &[Self]) -> Self {
        let mut all = Self::default();
        levels.iter().for_each(|level| all.merge(level));
        all
    }

    pub fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.low = self.low.saturating_add(other.low);
        self.middle = self.middle.saturating_add(other.middle);
        self.high = self.high.saturating_add(other.high);
    }

    /// The quartiles, ns; `None` without packets.
    pub fn quartiles(&self) -> Option<[f64; 3]> {
        let mean = |sum: Ns| sum as f64 / self.packets as f64;
        (self.packets > 0).then(|| [mean(self.low), mean(self.middle), mean(self.high)])
    }
}
