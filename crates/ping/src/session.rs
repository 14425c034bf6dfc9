//! State of the reflector for one emitter: received probes, and stamps of sent answers.

use crate::transaction::Stamp;
use crate::wire::{LateStamps, ReflectorCounters, LATE_STAMPS};
use latpath_model::Ns;
use latpath_stats::Histogram;
use std::collections::VecDeque;

/// Maximum number of answers with pending stamps.
const LEAVING: usize = 1024;
/// Maximum number of stamped answers waiting to be reported.
const WAITING: usize = 4096;
/// Size of the window of latest probes for which duplicates are detected.
const KNOWN: u64 = 1 << 16;

/// State of one session.
pub struct Session {
    /// Session number, chosen by the emitter.
    pub number: u32,
    /// Stamps of a complete answer.
    requested: u16,
    /// Highest received sequence number + 1.
    next: u64,
    /// A bit per probe of the last [`KNOWN`]: whether it was received.
    came: Vec<u64>,
    /// Counts of the session.
    pub seen: ReflectorCounters,
    leaving: Vec<LateStamps>,
    /// T3 app of each.
    left_at: Vec<Ns>,
    /// Sequence number of the oldest answer not yet checked for completeness.
    unseen: u64,
    waiting: VecDeque<LateStamps>,
    /// From T2 app to T3 app, ns of `CLOCK_MONOTONIC`.
    pub turnaround: Histogram,
    /// From T2 nic to T3 nic, ns of the PHC.
    pub nic_turnaround: Histogram,
    /// T2 nic of answers without a T3 nic yet.
    arrived: Vec<(u64, Ns)>,
    /// Breaches that the emitter reported.
    pub breaches: u64,
    /// Start of the session, `CLOCK_MONOTONIC` ns.
    pub begun: Ns,
    /// Time of the last message, `CLOCK_MONOTONIC` ns.
    pub last_heard: Ns,
}

/// Time after sending an answer at which its missing stamps are overdue, ns.
const OVERDUE_NS: Ns = 20_000_000;
/// Marks a free slot.
const NONE: u64 = u64::MAX;

impl Session {
    /// Creates a session with answers that get the stamps `taken`.
    pub fn new(number: u32, taken: u16, now: Ns) -> Self {
        Self {
            number,
            requested: LATE_STAMPS.iter().fold(0, |mask, s| mask | s.bit()) & taken,
            next: 0,
            came: vec![0; (KNOWN / 64) as usize],
            seen: ReflectorCounters::default(),
            leaving: vec![LateStamps { sequence: NONE, stamps: [None; 3] }; LEAVING],
            left_at: vec![0; LEAVING],
            unseen: 0,
            waiting: VecDeque::new(),
            turnaround: Histogram::new(),
            nic_turnaround: Histogram::new(),
            arrived: vec![(NONE, 0); LEAVING],
            breaches: 0,
            begun: now,
            last_heard: now,
        }
    }

    /// Records a probe and its answer.
    #[inline]
    pub fn answered(&mut self, sequence: u64, t2: Ns, t3: Ns, nic: Option<Ns>, taken: bool) {
        self.last_heard = t3;
        self.count(sequence);
        self.turnaround.record(t3 - t2);
        if !taken {
            self.seen.refused += 1;
        } else if self.requested != 0 {
            let slot = sequence as usize % LEAVING;
            // The slot's previous answer received no further stamps during `LEAVING` answers: reports those it has.
            let before = std::mem::replace(&mut self.leaving[slot], LateStamps { sequence, stamps: [None; 3] });
            if before.stamps.iter().any(Option::is_some) {
                self.report(before);
            }
            self.arrived[slot] = nic.map_or((NONE, 0), |nic| (sequence, nic));
            self.left_at[slot] = t3;
            self.report_overdue(sequence, t3 - OVERDUE_NS);
        }
    }

    /// Reports the stamps of answers with overdue ones.
    #[inline]
    fn report_overdue(&mut self, newest: u64, before: Ns) {
        self.unseen = self.unseen.max(newest.saturating_sub(LEAVING as u64 - 1));
        while self.unseen < newest {
            let slot = self.unseen as usize % LEAVING;
            let answer = self.leaving[slot];
            if answer.sequence == self.unseen {
                if self.left_at[slot] > before {
                    return;
                }
                // The entry stays: if the missing stamps arrive, all are reported again.
                if answer.stamps.iter().any(Option::is_some) {
                    self.report(answer);
                }
            }
            self.unseen += 1;
        }
    }

    fn count(&mut self, sequence: u64) {
        if sequence >= self.next {
            // Clears the bits of the skipped numbers.
            self.forget(self.next.max(sequence.saturating_sub(KNOWN - 1)), sequence);
            self.next = sequence.saturating_add(1);
        } else if self.next - sequence > KNOWN {
            // Too old to distinguish a late probe from a duplicate.
            self.seen.reordered += 1;
            self.seen.received += 1;
            return;
        } else if self.came[(sequence / 64 % (KNOWN / 64)) as usize] >> (sequence % 64) & 1 == 1 {
            self.seen.duplicates += 1;
            return;
        } else {
            self.seen.reordered += 1;
        }
        self.came[(sequence / 64 % (KNOWN / 64)) as usize] |= 1 << (sequence % 64);
        self.seen.received += 1;
    }

    /// Clears the bits of these numbers, at most [`KNOWN`]. Returns the number of steps, which is bounded even if every
    /// probe jumps.
    fn forget(&mut self, from: u64, to: u64) -> usize {
        let (mut at, mut steps) = (from, 0);
        while at < to {
            let (first, length) = (at % 64, (64 - at % 64).min(to - at));
            self.came[(at / 64 % (KNOWN / 64)) as usize] &= !(u64::MAX >> (64 - length) << first);
            at += length;
            steps += 1;
        }
        steps
    }

    /// Records a stamp of an answer.
    #[inline]
    pub fn left(&mut self, sequence: u64, stamp: Stamp, time: Ns) {
        let slot = sequence as usize % LEAVING;
        let answer = &mut self.leaving[slot];
        let Some(i) = LATE_STAMPS.iter().position(|s| *s == stamp).filter(|_| answer.sequence == sequence) else {
            return;
        };
        // With stacked devices, an answer passes several queueing disciplines; the first one counts.
        answer.stamps[i].get_or_insert(time);
        if stamp == Stamp::T3Nic && self.arrived[slot].0 == sequence {
            self.nic_turnaround.record(time.saturating_sub(self.arrived[slot].1));
        }
        let has = LATE_STAMPS.iter().zip(answer.stamps).filter(|(_, t)| t.is_some()).fold(0, |m, (s, _)| m | s.bit());
        if has & self.requested == self.requested {
            let whole = std::mem::replace(answer, LateStamps { sequence: NONE, stamps: [None; 3] });
            self.report(whole);
        }
    }

    fn report(&mut self, afterwards: LateStamps) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back(afterwards);
        }
    }

    /// Stamps for the next answer to carry back.
    #[inline]
    pub fn next_afterwards(&mut self) -> Option<LateStamps> {
        self.waiting.pop_front()
    }

    /// Stamps for what may be the last message: after all complete ones, also those of incomplete answers.
    pub fn any_afterwards(&mut self) -> Option<LateStamps> {
        self.waiting.pop_front().or_else(|| {
            let some = |a: &&mut LateStamps| a.stamps.iter().any(Option::is_some);
            let oldest = self.leaving.iter_mut().filter(some).min_by_key(|a| a.sequence)?;
            let incomplete = *oldest;
            // Further stamps may arrive and are then reported too.
            oldest.stamps = [None; 3];
            Some(incomplete)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(requested: &[Stamp]) -> Session {
        Session::new(7, requested.iter().fold(0, |m, s| m | s.bit()), 0)
    }

    #[test]
    fn probes_are_counted_once_with_order_and_repeats() {
        let mut s = session(&[]);
        for sequence in [0, 1, 3, 2, 2, 5, 100_000, 5, 99_999] {
            s.answered(sequence, 0, 10, None, true);
        }
        let seen = s.seen;
        assert_eq!(
            (seen.received, seen.duplicates, seen.reordered),
            (8, 1, 3),
            "5 is too old to be known the second time"
        );
        assert_eq!(s.turnaround.count(), 9);
    }

    #[test]
    fn skipped_numbers_are_forgotten_in_a_few_steps() {
        let mut s = session(&[]);
        for (from, to) in [(0, 0), (0, 1), (63, 65), (5, 64), (64, 128), (7, 300), (1_000, KNOWN + 800)] {
            s.came.fill(u64::MAX);
            let steps = s.forget(from, to);
            assert!(steps <= 1 + (KNOWN / 64) as usize, "{steps}");
            for n in from.saturating_sub(70)..to + 70 {
                let came = s.came[(n / 64 % (KNOWN / 64)) as usize] >> (n % 64) & 1 == 1;
                assert_eq!(came, !(from..to).contains(&n), "{n} of {from}..{to}");
            }
        }
    }

    #[test]
    fn numbers_at_the_end_of_the_range_are_handled() {
        let mut s = session(&[]);
        s.answered(u64::MAX, 0, 10, None, true);
        s.answered(u64::MAX - 1, 0, 10, None, true);
        assert_eq!(s.seen.received, 2);
    }

    #[test]
    fn stamps_are_returned_when_complete_and_at_the_end_also_incomplete() {
        let mut s = session(&[Stamp::T3Driver, Stamp::T3Nic]);
        s.answered(0, 0, 10, Some(1_000), true);
        s.answered(1, 20, 30, Some(2_000), true);
        s.left(0, Stamp::T3Driver, 11);
        assert_eq!(s.next_afterwards(), None);
        s.left(0, Stamp::T3Nic, 1_500);
        assert_eq!(s.next_afterwards(), Some(LateStamps { sequence: 0, stamps: [None, Some(11), Some(1_500)] }));
        assert_eq!((s.nic_turnaround.count(), s.nic_turnaround.max()), (1, 500));
        s.left(1, Stamp::T3Driver, 31);
        assert_eq!(s.any_afterwards(), Some(LateStamps { sequence: 1, stamps: [None, Some(31), None] }));
        assert_eq!(s.any_afterwards(), None);
        s.left(9, Stamp::T3Nic, 7);
        assert_eq!(s.any_afterwards(), None, "nothing is known of answer 9");
    }

    #[test]
    fn stamps_are_reported_when_the_nics_is_overdue_and_again_when_it_arrives() {
        let mut s = session(&[Stamp::T3Driver, Stamp::T3Nic]);
        s.answered(0, 0, 10, Some(1_000), true);
        s.left(0, Stamp::T3Driver, 11);
        s.answered(1, 20, 30, None, true);
        assert_eq!(s.next_afterwards(), None);
        s.answered(2, 0, 11 + OVERDUE_NS, None, true);
        assert_eq!(s.next_afterwards(), Some(LateStamps { sequence: 0, stamps: [None, Some(11), None] }));
        s.left(0, Stamp::T3Nic, 1_500);
        assert_eq!(s.next_afterwards(), Some(LateStamps { sequence: 0, stamps: [None, Some(11), Some(1_500)] }));
        assert_eq!(s.next_afterwards(), None);
    }

    #[test]
    fn unreturned_stamps_do_not_accumulate() {
        let mut s = session(&[Stamp::T3Driver]);
        for i in 0..100_000 {
            s.answered(i, 0, 1, None, true);
            s.left(i, Stamp::T3Driver, 2);
        }
        assert_eq!(s.waiting.len(), WAITING);
    }
}
