//! The interval in which packets count.

use crate::{Journey, Route};
use latpath_model::Ns;

/// The interval in which packets are followed at all points, by probes or in captures.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Start of the interval.
    pub begin: Ns,
    /// End of the interval; later packets do not count, because points may be detached.
    pub end: Ns,
    /// Time by which every packet that was under way when the first point was attached has arrived or is lost.
    settled: Ns,
}

impl Span {
    /// An interval without an end: all points are attached from `begin` on; packets sent earlier have arrived by
    /// `settled`.
    pub fn new(begin: Ns, settled: Ns) -> Self {
        Self { begin, end: Ns::MAX, settled }
    }

    /// Whether a packet counts. Packets that were under way at the start were first seen in the middle of their route;
    /// those sent after the end may be seen by some points only.
    pub fn counts(&self, j: &Journey, route: &Route) -> bool {
        self.contains(j) && !self.was_under_way(j, route)
    }

    /// Whether a packet in the interval does not count because it may have been under way at the start: it was first
    /// seen before all such packets had arrived, and not where its route begins.
    pub fn was_under_way(&self, j: &Journey, route: &Route) -> bool {
        let lacks_head = || route.head_of_stream(j.stream).is_some_and(|head| j.at(head).is_none());
        self.contains(j) && j.first().is_some_and(|t| t < self.settled) && lacks_head()
    }

    fn contains(&self, j: &Journey) -> bool {
        j.first().is_some_and(|t| (self.begin..self.end).contains(&t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Ns = 1_000_000_000;
    const SETTLE: Ns = S / 10;

    #[test]
    fn packets_sent_before_or_after_do_not_count() {
        let mut span = Span::new(10 * S + SETTLE, 11 * S);
        span.end = 20 * S;
        let route = Route { points: vec![1, 0, 2], ..Route::default() };
        let counts = |seen: u64, first: Ns| {
            let t = [first, first - i64::from(seen >> 1 & 1 == 1), first + 5];
            span.counts(&Journey { seen, t: &t, ..Journey::default() }, &route)
        };
        assert!(!counts(0b111, 10 * S + SETTLE / 2), "too soon");
        assert!(counts(0b111, 10 * S + 2 * SETTLE));
        assert!(counts(0b010, 10 * S + 2 * SETTLE), "lost on its route");
        assert!(!counts(0b101, 11 * S - 1), "under way before");
        let under_way = |seen: u64, first: Ns| {
            let t = [first, 0, first + 5];
            span.was_under_way(&Journey { seen, t: &t, ..Journey::default() }, &route)
        };
        let cases = [(0b101, 10 * S + 2 * SETTLE), (0b101, 10 * S + SETTLE / 2), (0b101, 11 * S), (0, 15 * S)];
        assert_eq!(cases.map(|(seen, first)| under_way(seen, first)), [true, false, false, false]);
        assert!(counts(0b101, 11 * S), "it lacks a point");
        // A stream's first packets reveal its route. Until then it has no known start, even if another stream's route
        // is known.
        let of_two = Route { by_stream: vec![vec![1, 0, 2], Vec::new()], ..route.clone() };
        let journey = |stream| Journey {
            stream,
            seen: 0b101,
            t: &[10 * S + 2 * SETTLE, 0, 10 * S + 3 * SETTLE],
            ..Journey::default()
        };
        assert_eq!([0, 1].map(|stream| span.was_under_way(&journey(stream), &of_two)), [true, false]);
        assert!(!counts(0, 15 * S));
        assert!(counts(0b111, 20 * S - 1));
        assert!(!counts(0b111, 20 * S + 1), "too late");
    }
}
