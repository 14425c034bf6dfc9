//! Journeys that are whole though earlier ones are not: behind a lost packet, which is waited for, a late one is told at once.

use latpath_journey::{Joiner, Journey};
use latpath_model::{Ns, StreamId};
use std::collections::VecDeque;

/// A journey this young is looked at later: in the usual case it is handed out in its turn by then.
const YOUNG: Ns = 50_000_000;
/// Journeys of one stream that may lack something and be looked at again. Where there are more, those behind them wait.
const WAITING: usize = 4096;

/// See the module's text. Each journey is told once: here, or, if [`Self::was_told`] says no, when it is handed out.
pub(crate) struct Ahead {
    streams: Vec<Stream>,
}

#[derive(Default)]
struct Stream {
    /// Numbers below this have been told, but for those in `waiting`.
    upto: u64,
    /// Ascending.
    waiting: VecDeque<u64>,
}

impl Ahead {
    pub fn new(streams: usize) -> Self {
        Self { streams: (0..streams).map(|_| Stream::default()).collect() }
    }

    /// Whether this journey, which is handed out now, was told before.
    pub fn was_told(&self, journey: &Journey) -> bool {
        let stream = self.streams.get(usize::from(journey.stream));
        stream.is_some_and(|s| journey.number < s.upto && s.waiting.binary_search(&journey.number).is_err())
    }

    /// Tells what is whole by now.
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
        let mut tell = |number: u64| {
            let whole = joiner.whole(id, number);
            whole.iter().for_each(&mut *sink);
            whole.is_some()
        };
        self.waiting.retain(|number| !tell(*number));
        while self.upto < open.end && self.waiting.len() < WAITING {
            let old = joiner.began(id, self.upto).is_some_and(|first| now.saturating_sub(first) >= YOUNG);
            if !old {
                break;
            }
            if !tell(self.upto) {
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

    /// A stream of packets each 10 ms, seen at two points; the second of them only once, and `late` at `late_at`.
    fn told(late: u32, late_at: Ns) -> Vec<(Ns, u64)> {
        let mut joiner = Joiner::new([KeyRule::SMP_CNT], Options::default());
        joiner.set_expected(0b11);
        let mut ahead = Ahead::new(1);
        let mut told = Vec::new();
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
                if !ahead.was_told(j) {
                    told.push((now, j.number));
                }
            };
            while let Some(s) = seen.next_if(|s| s.t < now) {
                joiner.push(&s, &mut done);
            }
            joiner.advance(now, &mut done);
            ahead.take(&joiner, now, &mut |j| told.push((now, j.number)));
        }
        told
    }

    #[test]
    fn each_journey_is_told_once_and_a_late_one_behind_a_lost_one_at_once() {
        let told = told(5, 200 * MS);
        let mut numbers: Vec<u64> = told.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..40).collect::<Vec<_>>());
        let when = |n: u64| told.iter().find(|(_, number)| *number == n).map_or(0, |(now, _)| *now);
        assert_eq!(when(5), 250 * MS, "when it has been quiet for 50 ms");
        assert_eq!(when(6), 115 * MS, "the next one does not wait for it");
        assert!(when(1) > 1_000 * MS, "the lost one is waited for");
    }
}
