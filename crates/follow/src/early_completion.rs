//! Reports late packets as soon as their journeys are complete. Journeys are handed over in order, so a lost packet
//! would delay those after it.

use latpath_journey::{Joiner, Journey};
use latpath_model::{Ns, StreamId};
use std::collections::VecDeque;

/// Minimum age of a journey to be checked, ns; normally it has been handed over in order by then.
const YOUNG: Ns = 50_000_000;
/// Maximum number of a stream's incomplete journeys that are checked repeatedly; beyond that, later ones are not yet
/// checked.
const WAITING: usize = 4096;

/// Makes sure that each journey is reported once: early by this type, or else (unless [`Self::was_reported`]) when it
/// is handed over.
pub(crate) struct EarlyCompletion {
    streams: Vec<Stream>,
}

#[derive(Default)]
struct Stream {
    /// Number below which all journeys were reported, except those in `waiting`.
    upto: u64,
    /// Numbers of the incomplete journeys, ascending.
    waiting: VecDeque<u64>,
}

impl EarlyCompletion {
    pub fn new(streams: usize) -> Self {
        Self { streams: (0..streams).map(|_| Stream::default()).collect() }
    }

    /// Whether this journey, which is now handed over in order, was reported earlier.
    pub fn was_reported(&self, journey: &Journey) -> bool {
        let stream = self.streams.get(usize::from(journey.stream));
        stream.is_some_and(|s| journey.number < s.upto && s.waiting.binary_search(&journey.number).is_err())
    }

    /// Reports the journeys that have become complete.
    pub fn take(&mut self, joiner: &Joiner, now: Ns, sink: &mut impl FnMut(&Journey)) {
        for (id, stream) in self.streams.iter_mut().enumerate() {
            stream.take(joiner, id as StreamId, now, sink);
        }
    }
}

impl Stream {
    fn take(&mut self, joiner: &Joiner, id: StreamId, now: Ns, sink: &mut impl FnMut(&Journey)) {
        let open = joiner.open_of(id);
        self.waiting.drain(..self.waiting.partition_point(|number| *number < open.start));
        self.upto = self.upto.max(open.start);
        let mut report = |number: u64| {
            let whole = joiner.whole(id, number);
            whole.iter().for_each(&mut *sink);
            whole.is_some()
        };
        self.waiting.retain(|number| !report(*number));
        while self.upto < open.end && self.waiting.len() < WAITING {
            let old = joiner.began(id, self.upto).is_some_and(|first| now.saturating_sub(first) >= YOUNG);
            if !old {
                break;
            }
            if !report(self.upto) {
                self.waiting.push_back(self.upto);
            }
            self.upto += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_journey::Options;
    use latpath_model::{KeyRule, Sighting};

    const MS: Ns = 1_000_000;

    fn sighting(key: u32, point: u16, t: Ns) -> Sighting {
        Sighting { t, key, point, ..Sighting::default() }
    }

    /// Simulates a stream with a packet every 10 ms and two points. The second packet is not seen at the second point;
    /// packet `late` is seen there at `late_at`. Returns when each journey was reported, and its number.
    fn reported(late: u32, late_at: Ns) -> Vec<(Ns, u64)> {
        let mut joiner = Joiner::new([KeyRule::SMP_CNT], Options::default());
        joiner.set_expected(0, 0b11);
        let mut early = EarlyCompletion::new(1);
        let mut reported = Vec::new();
        let mut seen: Vec<Sighting> = (0..40)
            .flat_map(|n| {
                let t = Ns::from(n) * 10 * MS;
                let arrived = if n == late { late_at } else { t + MS };
                [Some(sighting(n, 0, t)), (n != 1).then(|| sighting(n, 1, arrived))]
            })
            .flatten()
            .collect();
        seen.sort_by_key(|s| s.t);
        let mut seen = seen.into_iter().peekable();
        for now in (0..3_000).map(|n| n * 5 * MS) {
            let mut done = |j: &Journey| {
                if !early.was_reported(j) {
                    reported.push((now, j.number));
                }
            };
            while let Some(s) = seen.next_if(|s| s.t < now) {
                joiner.push(&s, &mut done);
            }
            joiner.advance(now, &mut done);
            early.take(&joiner, now, &mut |j| reported.push((now, j.number)));
        }
        reported
    }

    #[test]
    fn each_journey_is_reported_once_and_a_late_one_does_not_wait_for_a_lost_one() {
        let reported = reported(5, 200 * MS);
        let mut numbers: Vec<u64> = reported.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..40).collect::<Vec<_>>());
        let when = |n: u64| reported.iter().find(|(_, number)| *number == n).map_or(0, |(now, _)| *now);
        assert_eq!(when(5), 250 * MS, "when it has been quiet for 50 ms");
        assert_eq!(when(6), 115 * MS, "the next one does not wait for it");
        assert!(when(1) > 1_000 * MS, "the lost one is waited for");
    }
}
