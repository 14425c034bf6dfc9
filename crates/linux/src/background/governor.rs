//! Decides when the main loop may run as `SCHED_IDLE`. It has no threads, so that tests can drive it.

use super::priority::Priority;
use std::time::{Duration, Instant};

/// Time since the previous round beyond which a round counts as delayed by a busy CPU.
pub(super) const STARVED: Duration = Duration::from_millis(200);
/// The priority is raised if the rings would fill faster than this: a `SCHED_IDLE` thread may wait a second for a busy
/// CPU.
const RING_LASTS: Duration = Duration::from_secs(4);
/// Share of the rings filled within one round beyond which sightings are about to be lost, and the priority becomes
/// normal.
const DANGER: f64 = 0.25;
/// Initial duration of a raised priority. It doubles each time that the CPU is busy again.
const RAISED_FOR: Duration = Duration::from_secs(2);
/// Maximum duration of a raised priority.
const RAISED_AT_MOST: Duration = Duration::from_secs(64);

#[derive(Debug)]
pub(super) struct Governor {
    now: Priority,
    /// End of the raised priority.
    until: Instant,
    keep: Duration,
    last: Option<Instant>,
}

impl Governor {
    pub fn new(now: Instant) -> Self {
        Self { now: Priority::Idle, until: now, keep: RAISED_FOR, last: None }
    }

    /// Records that the watchdog raised the threads to [`Priority::Low`], as a late round does.
    pub fn was_raised(&mut self, now: Instant) {
        if self.now == Priority::Idle {
            // Whether this raise follows shortly after the previous one.
            let again = now < self.until + RAISED_AT_MOST;
            self.keep = if again { (self.keep * 2).min(RAISED_AT_MOST) } else { RAISED_FOR };
            (self.now, self.until) = (Priority::Low, now + self.keep);
        }
    }

    /// Records a round that begins at `now` and finds the share `filled` (0 to 1) of the rings filled. Returns the new
    /// priority.
    pub fn round(&mut self, now: Instant, filled: f64) -> Priority {
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = Some(now);
        let fills = filled * RING_LASTS.as_secs_f64() > since.as_secs_f64().max(0.001);
        if filled > DANGER {
            (self.now, self.until) = (Priority::Normal, self.until.max(now + RAISED_FOR));
        } else if since > STARVED && self.now == Priority::Idle {
            self.was_raised(now);
        } else if fills {
            (self.now, self.until) = (self.now.max(Priority::Low), self.until.max(now + RAISED_FOR));
        } else if now >= self.until {
            self.now = Priority::Idle;
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(20);

    /// The rounds (counted from 1) at which the priority changes, with the new priority. Input: ms since the previous
    /// round, and the share of the rings that is filled.
    fn changes(rounds: impl IntoIterator<Item = (u64, f64)>) -> Vec<(usize, Priority)> {
        let mut now = Instant::now();
        let mut governor = Governor::new(now);
        governor.round(now, 0.0);
        let mut before = Priority::Idle;
        let mut found = Vec::new();
        for (at, (ms, filled)) in rounds.into_iter().enumerate() {
            now += Duration::from_millis(ms);
            let priority = governor.round(now, filled);
            if std::mem::replace(&mut before, priority) != priority {
                found.push((at + 1, priority));
            }
        }
        found
    }

    #[test]
    fn threads_stay_in_the_background_while_rounds_are_in_time_and_the_ring_lasts() {
        assert_eq!(changes((0..1000).map(|_| (20, 0.0001))), []);
    }

    #[test]
    fn a_round_that_waited_for_its_cpu_makes_priority_low_for_a_while() {
        let rounds = std::iter::once((500, 0.0)).chain((0..150).map(|_| (20, 0.0)));
        let back = 1 + (RAISED_FOR.as_millis() / ROUND.as_millis()) as usize * 2;
        assert_eq!(changes(rounds.take(99)), [(1, Priority::Low)]);
        let rounds = std::iter::once((500, 0.0)).chain((0..300).map(|_| (20, 0.0)));
        assert_eq!(changes(rounds), [(1, Priority::Low), (back, Priority::Idle)]);
    }

    #[test]
    fn a_busy_machine_is_tried_less_and_less_often() {
        let mut rounds = Vec::new();
        for _ in 0..3 {
            rounds.push((500, 0.0));
            rounds.extend((0..1000).map(|_| (20, 0.0)));
        }
        let found = changes(rounds);
        let lengths: Vec<usize> = found.chunks(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(lengths.is_sorted_by(|a, b| a * 2 == *b), "{lengths:?}");
    }

    #[test]
    fn a_ring_that_fills_fast_is_emptied_at_low_priority() {
        // 1 % of the ring is filled in 20 ms, so it would be full after 2 s.
        assert_eq!(changes((0..10).map(|_| (20, 0.01))), [(1, Priority::Low)]);
        let then_calm = (0..10).map(|_| (20, 0.01)).chain((0..200).map(|_| (20, 0.0)));
        assert_eq!(changes(then_calm).len(), 2);
    }

    #[test]
    fn only_a_ring_that_is_about_to_overflow_is_emptied_at_normal_priority() {
        let rounds = [(20, 0.01), (100, 0.05), (300, 0.3), (20, 0.01)];
        assert_eq!(changes(rounds), [(1, Priority::Low), (3, Priority::Normal)]);
    }

    #[test]
    fn threads_raised_by_the_watchdog_return_to_the_background() {
        let now = Instant::now();
        let mut governor = Governor::new(now);
        governor.was_raised(now);
        let later = |ms| now + Duration::from_millis(ms);
        assert_eq!(governor.round(later(10), 0.0), Priority::Low);
        assert_eq!(governor.round(later(20), 0.0), Priority::Low);
        for n in 1..=1000 {
            governor.round(later(20 + 20 * n), 0.0);
        }
        assert_eq!(governor.round(later(20_040), 0.0), Priority::Idle);
    }
}
