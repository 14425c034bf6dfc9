//! Learns the step and the wrap of a stream from its numbers.

use super::Sequence;
use crate::sv::SAMPLE_RATES;

/// Lead in votes at which a step is accepted.
pub(super) const STEP_VOTES: u32 = 8;
/// Lead in votes at which another step replaces the accepted one.
pub(super) const STEP_REFUTED: u32 = 64;

/// A wrap whose position is not yet understood: the largest number before it and the smallest after it, including
/// reordered packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrap {
    pub(super) top: u64,
    pub(super) bottom: u64,
}

/// An assumed wrap. `exact`: the wrap if no packet was lost across it; `missing`: number of packets that are missing if
/// the assumed wrap is right; `again`: whether the same numbers (`top` and `bottom`) occurred at a second wrap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guess {
    pub(super) exact: u64,
    /// The numbers before (`top`) and after (`bottom`) the wrap.
    pub(super) top: u64,
    pub(super) bottom: u64,
    pub(super) missing: i64,
    pub(super) again: bool,
}

impl Sequence {
    pub(super) fn vote(&mut self, forward: u64) {
        if forward == 0 || forward > self.range / 2 || self.in_states {
            return;
        }
        if forward == self.candidate {
            self.votes = (self.votes + 1).min(STEP_REFUTED);
        } else if self.votes == 0 {
            (self.candidate, self.votes) = (forward, 1);
        } else {
            self.votes -= 1;
        }
        let needed = if self.step == 0 { STEP_VOTES } else { STEP_REFUTED };
        if self.votes >= needed {
            self.step = self.candidate;
        }
    }

    pub(super) fn known_wraps(&self) -> impl Iterator<Item = u64> {
        SAMPLE_RATES.into_iter().map(u64::from).chain([1 << 16, self.range])
    }

    pub(super) fn is_known(&self, wrap: &u64) -> bool {
        self.known_wraps().any(|known| known == *wrap)
    }

    /// Whether a sequence with this wrap can wrap between these two numbers: the first is below the wrap, or is the
    /// wrap itself if the sender counts from 1.
    pub(super) fn can_wrap(&self, wrap: u64, before: u64, after: u64) -> bool {
        wrap > after && (wrap > before || wrap == before && after > 0 && !self.has_zero)
    }

    /// Returns the common wrap that may lie between these numbers.
    pub(super) fn wrap_near(&self, before: u64, after: u64) -> Option<u64> {
        let fits =
            |w: &u64| self.step > 0 && self.can_wrap(*w, before, after) && w - before + after <= self.span(self.reach);
        self.known_wraps().find(fits)
    }

    pub(super) fn learn_wrap(&mut self, before: u64, after: u64) -> Option<u64> {
        // A common wrap also proves the step.
        let step = self.step().unwrap_or(self.candidate);
        let exact = |before: u64, after: u64| {
            (before + step).checked_sub(after).filter(|wrap| self.can_wrap(*wrap, before, after))
        };
        let now = exact(before, after);
        let twice = || now.filter(|_| self.wrap_seen.and_then(|w| exact(w.top, w.bottom)) == now);
        if let Some(wrap) = now.filter(|w| self.is_known(w)).or_else(twice) {
            self.believe(Some(wrap));
            // The previous wrap was not understood, so it was counted as a restart. It was a wrap at the same number.
            if let Some(seen) = self.wrap_seen.take().filter(|seen| seen.top < wrap + self.first) {
                let forward = wrap - seen.top + seen.bottom;
                if forward <= self.span(self.reach + 1) {
                    self.missing += (forward / step).saturating_sub(1) as i64;
                    self.restarts = self.restarts.saturating_sub(1);
                    // The stream cannot return to the numbers before that wrap either.
                    self.forget_previous();
                }
            }
        } else if let Some(wrap) = self.wrap_near(before, after) {
            self.believe(Some(wrap));
            let missing = ((wrap - before + after) / step).saturating_sub(1) as i64;
            let guess = |exact| Guess { exact, top: before, bottom: after, missing, again: false };
            self.guess = now.filter(|_| after <= u64::from(!self.has_zero)).map(guess);
        } else {
            self.wrap_seen = Some(Wrap { top: before, bottom: after });
        }
        self.wrap
    }

    /// Learns a wrap; the newest number was the last one before it, or near it.
    pub(super) fn believe(&mut self, wrap: Option<u64>) {
        self.wrap = wrap;
        if let Some(epoch) = self.epoch.as_mut().filter(|epoch| wrap == Some(epoch.high_key)) {
            (self.first, epoch.high_key) = (1, 0);
        }
    }

    /// Discards the wrap if a number exceeds it, so that the newest number is always below the wrap.
    pub(super) fn refute(&mut self, key: u64) {
        match key {
            0 => (self.has_zero, self.first) = (true, 0),
            1 => self.has_one = true,
            _ => {}
        }
        if self.wrap == Some(key) && !self.has_zero {
            self.first = 1;
            return;
        }
        if self.wrap.is_none_or(|wrap| key < wrap) {
            self.guess = self.guess.filter(|guess| key < guess.exact.max(guess.top + 1));
            return;
        }
        (self.refuted, self.first) = (self.wrap.take(), 0);
        if let Some(guess) = self.guess.take().filter(|guess| !guess.again) {
            // The assumed wrap was a restart close to a common wrap.
            self.missing -= guess.missing;
            self.gaps = self.gaps.saturating_sub(1);
            self.restarts += 1;
        }
    }

    /// Replaces the assumed wrap with the exact one, which occurred twice without a loss or a late number beyond it.
    pub(super) fn settle_guess(&mut self, key: u64) {
        let reach = self.span(self.reach);
        if let Some(guess) = self.guess.filter(|guess| guess.again && (reach..guess.exact).contains(&key)) {
            self.guess = None;
            self.wrap = Some(guess.exact);
            self.first = u64::from(guess.top == guess.exact);
            self.missing -= 2 * guess.missing;
            self.gaps = self.gaps.saturating_sub(2);
        }
    }
}
