//! The table of pending transactions: matches answers to probes, and detects lost, duplicate, late and reordered ones.

use crate::transaction::{Stamp, Stamps, Transaction};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counts of a session's probes and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Number of probes accepted by the kernel.
    pub sent: u64,
    /// Number of probes that the kernel refused because a queue was full; not included in `sent`.
    pub refused: u64,
    /// Number of probes answered in time.
    pub answered: u64,
    /// Number of probes not answered in time.
    pub lost: u64,
    /// Number of answers received after their probe had counted as lost.
    pub late: u64,
    /// Number of duplicate answers.
    pub duplicates: u64,
    /// Number of answers received after the answer to a later probe.
    pub reordered: u64,
    /// Number of messages that are not answers to this session's probes.
    pub foreign: u64,
    /// Number of answered transactions that lack an expected stamp.
    pub incomplete: u64,
}

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer arrived in time.
    Answered,
    /// No answer arrived in time.
    Lost,
}

/// Relation of a received answer to the sent probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchResult {
    /// The first answer to a pending probe.
    Expected,
    /// A further answer to the same probe.
    Duplicate,
    /// The first answer to a probe that had already counted as lost.
    Late,
    /// An answer to a probe that was never sent, or is no longer in the table.
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Waiting,
    Answered,
    /// No answer arrived in time.
    Lost,
    Closed,
}

#[derive(Clone, Copy)]
struct Entry {
    sequence: u64,
    state: State,
    stamps: Stamps,
}

/// The latest probes, in a table of fixed size.
pub struct Table {
    entries: Vec<Entry>,
    /// Sequence number of the next probe.
    pub next: u64,
    /// Sequence number of the oldest open probe.
    oldest: u64,
    /// Highest answered sequence number + 1.
    answered_to: u64,
    /// Stamps expected in each transaction, as a mask ([`Stamp::bit`]).
    pub expected: u16,
    /// Counts so far; the caller adds the events that do not concern the table.
    pub counts: Counts,
}

impl Table {
    /// Creates a table for at least `room` probes in flight, rounded up to a power of two.
    pub fn new(room: usize, expected: u16) -> Self {
        let empty = Entry { sequence: 0, state: State::Empty, stamps: Stamps::default() };
        Self {
            entries: vec![empty; room.next_power_of_two()],
            next: 0,
            oldest: 0,
            answered_to: 0,
            expected,
            counts: Counts::default(),
        }
    }

    #[inline]
    fn slot(&self, sequence: u64) -> usize {
        sequence as usize & (self.entries.len() - 1)
    }

    /// Number of probes that are waiting for an answer or a stamp.
    pub fn open(&self) -> u64 {
        self.next - self.oldest
    }

    /// Whether there is room for the next probe.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.open() < self.entries.len() as u64
    }

    /// Records that probe `next` was sent at `t1`. The caller ensures that there is room.
    #[inline]
    pub fn sent(&mut self, t1: Ns) {
        debug_assert!(self.has_room());
        let slot = self.slot(self.next);
        let mut stamps = Stamps::default();
        stamps.set(Stamp::T1App, t1);
        self.entries[slot] = Entry { sequence: self.next, state: State::Waiting, stamps };
        self.next += 1;
        self.counts.sent += 1;
    }

    #[inline]
    fn find(&mut self, sequence: u64) -> Option<&mut Entry> {
        let slot = self.slot(sequence);
        Some(&mut self.entries[slot]).filter(|e| e.state != State::Empty && e.sequence == sequence)
    }

    /// Records an answer with its stamps T2 to T4.
    #[inline]
    pub fn answer(&mut self, sequence: u64, came: &Stamps) -> MatchResult {
        let Some(entry) = self.find(sequence) else {
            self.counts.foreign += 1;
            return MatchResult::Foreign;
        };
        let result = match entry.state {
            State::Waiting => MatchResult::Expected,
            State::Lost => MatchResult::Late,
            _ => MatchResult::Duplicate,
        };
        match result {
            MatchResult::Expected => {
                entry.state = State::Answered;
                for stamp in Stamp::ALL {
                    entry.stamps.set_if(stamp, came.get(stamp));
                }
                self.counts.answered += 1;
                if sequence < self.answered_to {
                    self.counts.reordered += 1;
                }
                self.answered_to = self.answered_to.max(sequence + 1);
            }
            MatchResult::Late => {
                entry.state = State::Closed;
                self.counts.late += 1;
            }
            _ => self.counts.duplicates += 1,
        }
        result
    }

    /// Records a stamp of a sent probe, which becomes available only after sending.
    #[inline]
    pub fn stamp(&mut self, sequence: u64, stamp: Stamp, time: Ns) {
        if let Some(entry) = self.find(sequence) {
            // With stacked devices, a message passes several queueing disciplines; the first one counts.
            if entry.stamps.get(stamp).is_none() {
                entry.stamps.set(stamp, time);
            }
        }
    }

    /// The current state of a transaction.
    pub fn peek(&mut self, sequence: u64) -> Option<Transaction> {
        self.find(sequence).map(|e| Transaction { sequence, raw: e.stamps, ..Transaction::default() })
    }

    /// Closes transactions in order: those with all stamps, those sent before `given_up`, and those answered before
    /// `overdue`.
    #[inline]
    pub fn close(&mut self, given_up: Ns, overdue: Ns, mut each: impl FnMut(Transaction, End)) {
        while self.oldest < self.next {
            let slot = self.slot(self.oldest);
            let entry = &mut self.entries[slot];
            let end = if entry.state == State::Answered { End::Answered } else { End::Lost };
            let whole = end == End::Answered && entry.stamps.mask() & self.expected == self.expected;
            if !whole && entry.stamps.get(Stamp::T1App).is_some_and(|t1| t1 >= given_up) {
                let answered = entry.stamps.get(Stamp::T4App).filter(|_| end == End::Answered);
                if answered.is_none_or(|t4| t4 >= overdue) {
                    return;
                }
            }
            match end {
                End::Answered => {
                    self.counts.incomplete += u64::from(!whole);
                    entry.state = State::Closed;
                }
                End::Lost => {
                    self.counts.lost += 1;
                    entry.state = State::Lost;
                }
            }
            self.oldest += 1;
            each(Transaction { sequence: entry.sequence, raw: entry.stamps, ..Transaction::default() }, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(t4: Ns) -> Stamps {
        let mut stamps = Stamps::default();
        stamps.set(Stamp::T4App, t4);
        stamps
    }

    fn closed(table: &mut Table, given_up: Ns) -> Vec<(u64, End)> {
        closed_overdue(table, given_up, Ns::MIN)
    }

    fn closed_overdue(table: &mut Table, given_up: Ns, overdue: Ns) -> Vec<(u64, End)> {
        let mut all = Vec::new();
        table.close(given_up, overdue, |t, end| all.push((t.sequence, end)));
        all
    }

    #[test]
    fn answers_of_all_kinds_are_distinguished() {
        let mut table = Table::new(8, Stamp::T4App.bit());
        (0..4).for_each(|i| table.sent(i * 10));
        assert_eq!(table.answer(1, &answered(15)), MatchResult::Expected);
        assert_eq!(table.answer(0, &answered(16)), MatchResult::Expected);
        assert_eq!(table.answer(0, &answered(17)), MatchResult::Duplicate);
        assert_eq!(table.answer(9, &answered(18)), MatchResult::Foreign);
        assert_eq!(closed(&mut table, 25), [(0, End::Answered), (1, End::Answered), (2, End::Lost)]);
        assert_eq!(table.answer(2, &answered(99)), MatchResult::Late);
        assert_eq!(table.answer(2, &answered(99)), MatchResult::Duplicate);
        let c = table.counts;
        assert_eq!((c.sent, c.answered, c.lost, c.late), (4, 2, 1, 1));
        assert_eq!((c.duplicates, c.reordered, c.foreign), (2, 1, 1));
    }

    #[test]
    fn a_transaction_waits_for_its_stamps_and_is_closed_without_them_in_the_end() {
        let mut table = Table::new(8, Stamp::T4App.bit() | Stamp::T1Nic.bit());
        table.sent(0);
        table.sent(10);
        table.answer(0, &answered(5));
        table.answer(1, &answered(15));
        assert_eq!(closed(&mut table, 0), []);
        table.stamp(0, Stamp::T1Nic, 2);
        table.stamp(0, Stamp::T1Nic, 3);
        assert_eq!(table.peek(0).unwrap().raw.get(Stamp::T1Nic), Some(2));
        assert_eq!(closed(&mut table, 0), [(0, End::Answered)]);
        assert_eq!(closed(&mut table, 11), [(1, End::Answered)]);
        assert_eq!((table.counts.incomplete, table.counts.lost, table.open()), (1, 0, 0));
    }

    #[test]
    fn answered_transactions_wait_for_stamps_until_they_are_overdue() {
        let mut table = Table::new(8, Stamp::T4App.bit() | Stamp::T1Nic.bit());
        (0..4).for_each(|i| table.sent(i * 10));
        for (sequence, t4) in [(0, 5), (1, 50), (3, 35)] {
            assert_eq!(table.answer(sequence, &answered(t4)), MatchResult::Expected);
        }
        assert_eq!(closed_overdue(&mut table, 0, 5), []);
        assert_eq!(closed_overdue(&mut table, 0, 40), [(0, End::Answered)], "1 was answered after that");
        assert_eq!(closed_overdue(&mut table, 0, 60), [(1, End::Answered)], "2 waits for its answer, and 3 behind it");
        assert_eq!((table.counts.incomplete, table.counts.lost, table.open()), (2, 0, 2));
    }

    #[test]
    fn the_table_is_full_after_as_many_probes_as_it_has_room_for() {
        let mut table = Table::new(4, Stamp::T4App.bit());
        (0..4).for_each(|i| table.sent(i));
        assert!(!table.has_room());
        closed(&mut table, 1);
        assert!(table.has_room());
        table.sent(9);
        assert_eq!(table.answer(0, &answered(10)), MatchResult::Foreign, "its place was taken");
    }
}
