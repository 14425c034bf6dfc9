//! The order of GOOSE messages (IEC 61850-8-1, 18.1): stNum counts states, sqNum counts the messages of one state.
//!
//! A key consists of the low 16 bits of stNum and of sqNum. sqNum increments within a state. A new state starts at
//! sqNum 0; some senders start at 1, so a missing 0 is counted only if the sender has been seen to send 0. Counters
//! that roll over skip 0. Messages of a state after the last one seen are unknown and not counted; a state without any
//! message counts as one lost message.

use super::{Epoch, Offset};
use crate::Ns;

/// Number of ended states whose late messages can still be placed.
const ENDED_STATES: usize = 4;
/// Maximum time by which a message with an older number may follow the newest message, ns; after it, the sender has
/// restarted.
const MAX_LATENESS: Ns = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct States {
    /// Position in the epoch at which the current state begins.
    from: i64,
    ended: [Option<Ended>; ENDED_STATES],
    starts_at_zero: bool,
}

/// An ended state: key and position of its newest message, and the position at which the state begins.
#[derive(Clone, Copy, Debug)]
struct Ended {
    key: u32,
    at: i64,
    from: i64,
}

fn halves(key: u32) -> (u16, u16) {
    ((key >> 16) as u16, key as u16)
}

/// Number of steps from one value of a 16-bit counter to another; negative if backward. The successor of 65535 is 0, or
/// 1 if the whole counter rolled over.
fn steps(from: u16, to: u16) -> i64 {
    let steps = i64::from(to.wrapping_sub(from) as i16);
    if steps > 1 && to < from {
        steps - 1
    } else {
        steps
    }
}

impl Default for States {
    fn default() -> Self {
        Self { from: i64::MIN, ended: [None; ENDED_STATES], starts_at_zero: false }
    }
}

impl States {
    /// Returns the position of a message that arrives at `t`.
    pub fn offset(epoch: &Epoch, key: u32, t: Ns) -> Offset {
        let (states, (st, sq), (its_st, its_sq)) = (&epoch.states, halves(epoch.high_key as u32), halves(key));
        let behind =
            |at: i64, from: i64| if at < from { Offset::Uncounted } else { Offset::Behind(at.abs_diff(epoch.high)) };
        let late = t.saturating_sub(epoch.high_t) <= MAX_LATENESS;
        match (steps(st, its_st), steps(sq, its_sq)) {
            (0, ahead @ 1..) => Offset::Ahead(ahead as u64, 0),
            (1.., _) => Offset::Ahead((steps(st, its_st) + states.first(its_sq) - 1) as u64, 0),
            (0, back) if back < 0 && late => behind(epoch.high.saturating_add(back), states.from),
            (_, _) if !late || st == its_st => Offset::Outside,
            _ => match states.ended.iter().flatten().find(|e| halves(e.key).0 == its_st) {
                Some(e) if steps(halves(e.key).1, its_sq) > 0 => Offset::Uncounted,
                Some(e) => behind(e.at.saturating_add(steps(halves(e.key).1, its_sq)), e.from),
                // The state was skipped, or it is older than all known states.
                None if states.ended.iter().flatten().any(|e| steps(halves(e.key).0, its_st) > 0) => Offset::Behind(1),
                None => Offset::Outside,
            },
        }
    }

    /// Lower bound of the number of messages of a state up to this one.
    fn first(&self, sq: u16) -> i64 {
        let start = u16::from(!self.starts_at_zero);
        i64::from(sq.saturating_sub(start)) + 1
    }

    /// Number of messages from one key forward to another of the same state.
    pub fn distance(from: u32, to: u32) -> Option<u64> {
        let ((st, sq), (its_st, its_sq)) = (halves(from), halves(to));
        u64::try_from(steps(sq, its_sq)).ok().filter(|_| st == its_st)
    }

    /// Advances by `by` positions from the newest message `old`, which is at position `at`, to the message `new`.
    pub fn advance(&mut self, old: u32, new: u32, at: i64, by: u64) {
        let (st, sq) = halves(new);
        if halves(old).0 == st {
            return;
        }
        self.ended.rotate_right(1);
        self.ended[0] = Some(Ended { key: old, at, from: self.from });
        self.from = at.saturating_add_unsigned(by) - (self.first(sq) - 1);
        self.starts_at_zero |= sq == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Totals, Tracker};
    use crate::goose::key;
    use crate::{KeyRule, Ns, ProtocolId};

    /// The totals after these messages, `(stNum, sqNum)`, 10 ms apart.
    fn totals(messages: &[(u32, u32)]) -> Totals {
        let mut tracker = Tracker::new(KeyRule::Own(ProtocolId::Goose)).unwrap();
        for (n, (st_num, sq_num)) in messages.iter().enumerate() {
            tracker.note(n as Ns * 10_000_000, key(*st_num, *sq_num), 0);
        }
        tracker.totals()
    }

    fn lost(messages: &[(u32, u32)]) -> (u64, u64, u64, u64) {
        let t = totals(messages);
        (t.lost, t.duplicates, t.out_of_order, t.restarts)
    }

    #[test]
    fn an_event_may_begin_at_0_or_1_without_loss() {
        assert_eq!(lost(&[(1, 7), (1, 8), (2, 0), (2, 1), (3, 0)]), (0, 0, 0, 0));
        assert_eq!(lost(&[(1, 7), (1, 8), (2, 1), (2, 2), (3, 1)]), (0, 0, 0, 0));
        assert_eq!(lost(&[(1, 7), (2, 0), (3, 1)]), (1, 0, 0, 0), "this sender starts at 0");
    }

    #[test]
    fn losses_within_before_and_between_events_are_counted() {
        assert_eq!(lost(&[(1, 7), (1, 10)]), (2, 0, 0, 0));
        assert_eq!(lost(&[(1, 7), (2, 0), (3, 3)]), (3, 0, 0, 0));
        assert_eq!(lost(&[(1, 7), (5, 1)]), (3, 0, 0, 0), "one of each event, at least");
    }

    #[test]
    fn late_and_duplicated_packets_are_no_losses() {
        assert_eq!(lost(&[(1, 7), (1, 9), (1, 8)]), (0, 0, 1, 0));
        assert_eq!(lost(&[(1, 7), (1, 9), (2, 0), (1, 8), (2, 1), (2, 1)]), (0, 1, 1, 0));
        assert_eq!(lost(&[(1, 7), (2, 0), (1, 8), (2, 2)]), (1, 0, 1, 0), "the last one of an event was not missed");
    }

    #[test]
    fn counters_roll_over_to_1_and_low_halves_to_0() {
        assert_eq!(lost(&[(9, u32::MAX - 1), (9, u32::MAX), (9, 1), (9, 2)]), (0, 0, 0, 0));
        assert_eq!(lost(&[(9, 65_534), (9, 65_535), (9, 65_536), (9, 65_537)]), (0, 0, 0, 0));
        assert_eq!(lost(&[(u32::MAX, 3), (1, 0), (1, 1)]), (0, 0, 0, 0));
        assert_eq!(lost(&[(65_535, 3), (65_536, 0), (65_537, 0)]), (0, 0, 0, 0));
    }

    #[test]
    fn a_restarted_device_has_no_losses() {
        assert_eq!(lost(&[(900, 7), (900, 8), (1, 1), (1, 2), (2, 0)]), (0, 0, 0, 1));
        let mut tracker = Tracker::new(KeyRule::Own(ProtocolId::Goose)).unwrap();
        for (t, sq_num) in [(0, 1), (1, 2), (2, 3), (60, 1), (61, 2)] {
            tracker.note(t * 1_000_000_000, key(1, sq_num), 0);
        }
        assert_eq!((tracker.totals().lost, tracker.totals().duplicates, tracker.totals().restarts), (0, 0, 1));
    }
}
