//! Places a number relative to the newest one.

use super::epoch::Epoch;
use super::learn::Guess;
use super::silence::numbers_in;
use super::states::States;
use super::Sequence;
use crate::Ns;

/// Jumps forward by at least this difference of numbers must be explained by time; most senders have 16-bit counters.
const WIDE_JUMP: u64 = 1 << 16;

/// The position of a number relative to the newest, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offset {
    /// Ahead: by how much in total, and how much of this consists of whole wraps, derived from the time.
    Ahead(u64, u64),
    /// Behind by this much.
    Behind(u64),
    /// Late, at a position where no packet was counted as missing: before the counted messages of its state, or after
    /// the last known message of an ended state.
    Uncounted,
    /// Outside this epoch.
    Outside,
}

/// The position of a number relative to the newest, in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Ahead of the newest; possibly the next one.
    Next,
    /// Behind by this many packets.
    Behind(u64),
    /// Far behind: before a wrap that is not understood yet.
    BeforeWrap,
    /// Unknown: the step has not been learned.
    Unknown,
}

impl Sequence {
    /// The position of a number in the current epoch.
    pub fn placement(&self, key: u32) -> Placement {
        let (Some(epoch), Some(step)) = (self.epoch, self.step()) else { return Placement::Unknown };
        if self.in_states {
            return match States::offset(&epoch, key, epoch.high_t) {
                Offset::Ahead(..) => Placement::Next,
                Offset::Behind(back) => Placement::Behind(back),
                Offset::Uncounted => Placement::Behind(1),
                Offset::Outside => Placement::BeforeWrap,
            };
        }
        let (newest, key) = (epoch.high_key, self.place(key));
        // Assumes another wrap at the same number as the previous one.
        let again = || {
            let wrap = self.wrap_seen.map(|w| w.top + step - w.bottom)?;
            (self.can_wrap(wrap, newest, key) && wrap - newest + key <= self.span(self.reach)).then_some(wrap)
        };
        let (ahead, behind) = match self.wrap.or_else(|| self.wrap_near(newest, key)).or_else(again) {
            Some(wrap) if key < wrap && newest <= wrap => ((key + wrap - newest) % wrap, (newest + wrap - key) % wrap),
            _ => (key.saturating_sub(newest), newest.saturating_sub(key)),
        };
        if ahead > 0 && ahead <= self.span(self.reach) {
            Placement::Next
        } else if behind > 0 || ahead == 0 {
            Placement::Behind(behind / step)
        } else {
            Placement::BeforeWrap
        }
    }

    /// Whether a number is the direct successor of the newest.
    pub(super) fn is_next(&self, key: u32) -> bool {
        let next = |newest: u64| (newest + self.step) % self.wrap.unwrap_or(u64::MAX);
        self.step > 0 && self.epoch.is_some_and(|s| next(s.high_key) == self.place(key))
    }

    /// Whether a number is certainly ahead of the newest, rather than late by less than a cycle.
    pub fn is_ahead(&self, key: u32) -> bool {
        self.cycle().is_none_or(|cycle| cycle > 2 * self.reach) && self.placement(key) == Placement::Next
    }

    /// Position of a number in the cycle; the wrap itself takes the place of a missing 0.
    pub(super) fn place(&self, key: u32) -> u64 {
        let key = u64::from(key);
        if self.first > 0 && self.wrap == Some(key) {
            0
        } else {
            key
        }
    }

    /// Distance from one number forward to another, across at most one wrap.
    pub(super) fn forward(&self, from: u64, to: u64) -> Option<u64> {
        match self.wrap {
            Some(wrap) if from < wrap && to < wrap => Some(if to < from { to + wrap - from } else { to - from }),
            _ => to.checked_sub(from),
        }
    }

    pub(super) fn offset(&mut self, epoch: &Epoch, key: u64, t: Ns) -> Offset {
        /// Maximum lateness of the first packet after a silence, ns.
        const SILENCE_TOLERANCE: Ns = 20_000_000;
        if self.in_states {
            return States::offset(epoch, key as u32, t);
        }
        let (newest, reach) = (epoch.high_key, self.span(self.reach));
        let Some(wrap) = self.wrap else {
            return match key.checked_sub(newest) {
                None if newest - key > reach => match self.learn_wrap(newest, key) {
                    Some(wrap) => Offset::Ahead(wrap - newest + key, 0),
                    None => Offset::Outside,
                },
                None => Offset::Behind(newest - key),
                Some(0) => Offset::Outside,
                Some(forward) => Offset::Ahead(forward, 0),
            };
        };
        let wrap = wrap as i64;
        let forward = match key as i64 - newest as i64 {
            ahead if (0..wrap).contains(&ahead) => ahead,
            apart => apart.rem_euclid(wrap),
        };
        let nearest = if forward > wrap / 2 { forward - wrap } else { forward };
        // If half a wrap or more should have been sent meanwhile, the time determines the number of whole missing
        // wraps.
        let expected = numbers_in(t.saturating_sub(epoch.high_t), self.steady);
        let mut rounds =
            if expected > wrap / 2 { (expected - nearest + wrap / 2).div_euclid(wrap).max(0) * wrap } else { 0 };
        // A sender that kept counting returns with the number that the time predicts; one that paused does not.
        let tolerance = || numbers_in(SILENCE_TOLERANCE, self.steady) + expected / 1_000;
        if rounds > 0 && (expected - nearest - rounds).abs() > tolerance() {
            rounds = 0;
            if nearest < 0 {
                return Offset::Outside;
            }
        }
        if nearest + rounds > 0 && key < newest {
            let same = |guess: &Guess| rounds == 0 && (key, newest) == (guess.bottom, guess.top);
            self.guess = self.guess.filter(same).map(|guess| Guess { again: true, ..guess });
        }
        match nearest + rounds {
            0 => Offset::Outside,
            forward @ 1.. => Offset::Ahead(forward as u64, rounds as u64),
            back => Offset::Behind(back.unsigned_abs()),
        }
    }

    pub(super) fn back(&self, epoch: &Epoch, key: u64, t: Ns) -> Option<u64> {
        if !self.in_states {
            return self.forward(key, epoch.high_key);
        }
        match States::offset(epoch, key as u32, t) {
            Offset::Behind(back) => Some(back),
            _ => None,
        }
    }

    pub(super) fn is_behind(&self, epoch: &Epoch, key: u64, t: Ns) -> bool {
        self.back(epoch, key, t).is_some_and(|back| back > 0 && back <= self.span(self.reach))
    }

    /// Whether the packet was sent before a wrap that is not yet understood, and was overtaken by a packet after the
    /// wrap.
    pub(super) fn is_straggler(&self, epoch: &Epoch, key: u64) -> bool {
        let (newest, reach) = (epoch.high_key, self.span(self.reach));
        if self.wrap.is_some() || key <= newest + reach {
            return false;
        }
        let after_seen = epoch.count <= 2 * self.reach && self.wrap_seen.is_some_and(|w| w.top.abs_diff(key) <= reach);
        let after_refuted = newest <= reach && self.refuted.is_some_and(|wrap| key + reach >= wrap);
        after_seen || after_refuted || self.wrap_near(key, newest).is_some()
    }

    pub(super) fn is_plausible(&self, epoch: &Epoch, forward: u64, key: u64, t: Ns) -> bool {
        if self.in_states || forward <= self.span(self.reach + 1) {
            return true;
        }
        if forward < WIDE_JUMP {
            return !self.is_straggler(epoch, key);
        }
        let expected = numbers_in(t.saturating_sub(epoch.high_t), self.steady);
        epoch.count >= 8 && expected.saturating_mul(2).unsigned_abs() >= forward
    }
}
