//! Excursions: consecutive packets of a stream that took much longer than was usual in the same second.

use super::levels::Quartiles;
use latpath_model::{Ns, StreamId};
use std::cmp::Reverse;

/// Distance above the median, as a multiple of the spread, beyond which a time is an outlier.
const BEYOND: Ns = 8;
/// Minimum number of packets in the release of a queue.
const MIN_RELEASED: u32 = 4;
/// Significance of a release: the probability that it occurs by chance is at most 10 to the power of minus this.
const RELEASE_EXPONENT: f64 = 7.0;

/// Consecutive packets with outlying times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excursion {
    /// Times at which the first and the last packet entered the segment.
    pub from: Ns,
    pub to: Ns,
    /// Times of first sighting of these two packets.
    pub seen: (Ns, Ns),
    /// Longest time that one of these packets took through the segment, ns.
    pub peak: Ns,
    pub packets: u32,
    pub stream: StreamId,
}

impl Excursion {
    fn rank(&self) -> (Reverse<Ns>, Ns, StreamId) {
        (Reverse(self.peak), self.from, self.stream)
    }
}

/// Time above which a packet's time is an outlier, ns.
pub fn bound(usual: Quartiles) -> Ns {
    usual.middle.saturating_add(usual.scale().saturating_mul(BEYOND))
}

/// An excursion under construction.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    excursion: Excursion,
    /// Times of the earliest and the latest arrival at the segment's end.
    arrived: (Ns, Ns),
    /// Number of the packet with the maximum time, counted from 1.
    peak_at: u32,
}

impl Open {
    pub fn of(stream: StreamId, from: Ns, time: Ns, seen: Ns) -> Self {
        let excursion = Excursion { from, to: from, seen: (seen, seen), peak: time, packets: 1, stream };
        let arrived = from.saturating_add(time);
        Self { excursion, arrived: (arrived, arrived), peak_at: 1 }
    }

    #[inline]
    pub fn add(&mut self, from: Ns, time: Ns) {
        let arrived = from.saturating_add(time);
        self.excursion.packets += 1;
        self.excursion.to = self.excursion.to.max(from);
        self.arrived = (self.arrived.0.min(arrived), self.arrived.1.max(arrived));
        if time > self.excursion.peak {
            (self.excursion.peak, self.peak_at) = (time, self.excursion.packets);
        }
    }

    /// Whether the packets were sent one after another but arrived at the same time, so that later packets took less
    /// time.
    fn is_release(&self) -> bool {
        let Excursion { from, to, packets, .. } = self.excursion;
        let sent = to.saturating_sub(from) as f64;
        let arrived = (self.arrived.1.saturating_sub(self.arrived.0) as f64).max(1.0);
        let at_once = f64::from(packets - 1) * (sent / arrived).log10();
        packets >= MIN_RELEASED
            && self.peak_at <= 1 + packets / 8
            && arrived <= 0.15 * sent
            && at_once >= RELEASE_EXPONENT
    }
}

/// The excursions with the greatest peaks, and those among releases of a queue.
#[derive(Clone, Debug)]
pub struct Excursions {
    pub all: Top,
    pub released: Top,
}

impl Excursions {
    /// Keeps at most `most` excursions of each kind.
    pub fn new(most: usize) -> Self {
        Self { all: Top::new(most), released: Top::new(most) }
    }

    /// An empty object with the same limit.
    pub fn emptied(&self) -> Self {
        Self::new(self.all.most)
    }

    pub fn close(&mut self, open: Open, last_seen: Ns) {
        let mut excursion = open.excursion;
        excursion.seen.1 = excursion.seen.1.max(last_seen);
        self.all.push(excursion);
        if open.is_release() {
            self.released.push(excursion);
        }
    }

    pub fn merge(&mut self, other: Self) {
        other.all.found.into_iter().for_each(|one| self.all.push(one));
        other.released.found.into_iter().for_each(|one| self.released.push(one));
    }
}

/// The excursions with the greatest peaks, regardless of the order in which they are added.
#[derive(Clone, Debug)]
pub struct Top {
    found: Vec<Excursion>,
    most: usize,
    /// Peak below which excursions are ignored, ns.
    floor: Ns,
}

impl Top {
    fn new(most: usize) -> Self {
        Self { found: Vec::new(), most, floor: Ns::MIN }
    }

    fn push(&mut self, one: Excursion) {
        if one.peak < self.floor {
            return;
        }
        self.found.push(one);
        if self.found.len() >= 2 * self.most {
            self.prune();
        }
    }

    fn prune(&mut self) {
        if self.found.len() > self.most {
            let last = self.found.select_nth_unstable_by_key(self.most - 1, Excursion::rank).1;
            self.floor = last.peak;
            self.found.truncate(self.most);
        }
    }

    /// The excursions sorted by peak, the greatest first.
    pub fn sorted(mut self) -> Vec<Excursion> {
        self.prune();
        self.found.sort_unstable_by_key(Excursion::rank);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(packets: &[(Ns, Ns)]) -> Open {
        let mut open = Open::of(0, packets[0].0, packets[0].1, packets[0].0);
        packets.iter().skip(1).for_each(|(from, time)| open.add(*from, *time));
        open
    }

    #[test]
    fn simultaneous_packets_are_a_release_and_successive_ones_are_not() {
        let held: Vec<(Ns, Ns)> = (0..40).map(|n| (n * 250_000, 10_000_000 - n * 250_000 + n * 8_000)).collect();
        assert!(run(&held).is_release());
        let slow: Vec<(Ns, Ns)> = (0..40).map(|n| (n * 250_000, 10_000_000 - n * 1_000)).collect();
        assert!(!run(&slow).is_release());
        assert!(!run(&held[..3]).is_release(), "three may be chance");
    }

    proptest! {
        #[test]
        fn the_greatest_are_kept_for_any_order(
            peaks in prop::collection::vec(0..50_i64, 1..200),
            most in 1..20_usize,
            turn in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let one = |(at, peak): (usize, &Ns)| {
                let at = at as Ns;
                Excursion { from: at, to: at, seen: (at, at), peak: *peak, packets: 1, stream: 0 }
            };
            let mut all: Vec<Excursion> = peaks.iter().enumerate().map(one).collect();
            let mut expected = all.clone();
            expected.sort_by_key(Excursion::rank);
            expected.truncate(most);
            let turn = turn.index(all.len());
            all.rotate_left(turn);
            let (begin, end) = all.split_at(cut.index(all.len()));
            let top = |part: &[Excursion]| {
                let mut top = Top::new(most);
                part.iter().for_each(|one| top.push(*one));
                top
            };
            let mut merged = top(begin);
            top(end).found.into_iter().for_each(|one| merged.push(one));
            prop_assert_eq!(merged.sorted(), expected);
        }
    }
}
