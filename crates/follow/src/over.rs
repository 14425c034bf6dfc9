//! Journeys out of the kernel's table, each once when it is over: what flies by there is lent to those who look at every packet.

use latpath_journey::Journey;
use latpath_model::{Ns, StreamId};
use latpath_probe::{LiveSightings, Probe};
use std::collections::VecDeque;

/// A journey that has all points of its way stays open this long for those beside it, as the joiner's do.
const LINGER: Ns = 50_000_000;
/// What is being written just now is not looked for.
const NOW: Ns = 1_000_000;
/// Journeys of one stream that may wait for their last points.
const WAITING: usize = 1 << 14;

/// See the module's text.
pub(crate) struct Over {
    streams: Vec<Stream>,
    found: LiveSightings,
}

#[derive(Default)]
struct Stream {
    /// Numbers up to this have been looked at.
    looked_at: u32,
    /// Those that were not over then, and when they began.
    waiting: VecDeque<(u32, Ns)>,
}

/// When a journey is over.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub now: Ns,
    pub window: Ns,
    /// Points that count.
    pub wanted: u64,
}

impl Over {
    pub fn new(streams: usize) -> Self {
        Self { streams: (0..streams).map(|_| Stream::default()).collect(), found: LiveSightings::default() }
    }

    /// Hands over what is over by now. `lines` are the points of each stream's way. Returns the time up to which all journeys
    /// that began before have been handed over.
    pub fn take(&mut self, probe: &mut Probe, ends: Ends, lines: &[u64], sink: &mut dyn FnMut(&Journey)) -> Ns {
        let Self { streams, found } = self;
        let mut reached = ends.now - NOW;
        for (id, stream) in streams.iter_mut().enumerate() {
            let line = lines.get(id).copied().unwrap_or(0);
            reached = reached.min(stream.take(id as StreamId, probe, found, ends, line, sink));
        }
        reached
    }
}

impl Stream {
    fn take(
        &mut self,
        id: StreamId,
        probe: &mut Probe,
        found: &mut LiveSightings,
        ends: Ends,
        line: u64,
        sink: &mut dyn FnMut(&Journey),
    ) -> Ns {
        let mut hand_over = |number: u32, found: &LiveSightings| {
            let is_over = is_over(found, line, ends);
            if is_over {
                sink(&journey(id, number, found, ends.wanted));
            }
            is_over
        };
        self.waiting.retain(|(number, _)| probe.live_journey(id, *number, found) && !hand_over(*number, found));
        let last = probe.live_last(id);
        let mut young = None;
        while self.looked_at != last {
            let number = self.looked_at.wrapping_add(1);
            // One that is gone again, or not there yet: the next ones tell what time it is.
            if probe.live_journey(id, number, found) {
                if ends.now - found.first < LINGER {
                    young = Some(found.first);
                    break;
                }
                if !hand_over(number, found) {
                    if self.waiting.len() == WAITING {
                        self.waiting.pop_front();
                    }
                    self.waiting.push_back((number, found.first));
                }
            }
            self.looked_at = number;
        }
        let waiting = self.waiting.front().map(|(_, first)| *first);
        waiting.into_iter().chain(young).min().unwrap_or(ends.now - NOW)
    }
}

fn is_over(found: &LiveSightings, line: u64, ends: Ends) -> bool {
    if ends.now - found.first > ends.window {
        return true;
    }
    let mut left = found.seen;
    let mut last = found.first;
    while left != 0 {
        last = last.max(found.t[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    line != 0 && found.seen & line == line && ends.now - last >= LINGER
}

fn journey(stream: StreamId, number: u32, found: &LiveSightings, wanted: u64) -> Journey<'_> {
    Journey {
        stream,
        key: found.key,
        number: number.into(),
        seen: found.seen & wanted,
        t: &found.t,
        cpu: &found.cpu,
        tid: &found.tid,
        duplicates: 0,
        out_of_order: false,
        drop_note: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journey_is_over_when_its_way_is_whole_and_quiet_or_its_time_is_up() {
        let mut found = LiveSightings { first: 1_000, seen: 0b101, ..LiveSightings::default() };
        (found.t[0], found.t[2]) = (1_000, 2_000);
        let over = |now, line| is_over(&found, line, Ends { now, window: 10 * LINGER, wanted: u64::MAX });
        assert!(!over(1_000 + LINGER, 0b101), "its last sighting is too young");
        assert!(over(2_000 + LINGER, 0b101) && !over(2_000 + LINGER, 0b111), "the second lacks a point");
        assert!(!over(2_000 + LINGER, 0), "the way is not known");
        assert!(over(1_001 + 10 * LINGER, 0b111));
    }
}
