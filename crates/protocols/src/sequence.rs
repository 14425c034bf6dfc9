//! The sequence numbers of one stream: their step, their wrap, and the missing ones. All counts of losses use this:
//! those of the joiner, and through [`Tracker`] those of the commands for a single device.
//!
//! Step and wrap must be learned: a frame of n ASDUs increments smpCnt by n, and smpCnt wraps at the number of samples
//! per second with most senders and at 65536 with some. Rules:
//!
//! - The step is the most common difference between neighbouring packets (majority vote, accepted with a lead of 8).
//! - A wrap is accepted at once if the number before it plus the step minus the number after it is a common wrap
//!   (samples per second of a profile, or the full range of the field), or if such a wrap is within reach, because
//!   packets may be lost across it. Any other wrap must be seen twice. A number beyond the accepted wrap refutes it.
//! - A sender that counts from 1 never sends 0, and sends the wrap itself: that number replaces 0.
//! - An epoch consists of the numbers between two restarts, unwrapped. Within it, `expected - seen = never seen`, so
//!   that the order in which packets were first seen does not matter.
//! - Two consecutive numbers differ by less than half a wrap, forward or backward, unless the time between them proves
//!   more: after a silence of half a wrap or more the time determines the number of missing wraps. If the stream then
//!   catches up with the time, the sender or the observer had paused, and nothing was lost.
//! - A jump back by more than `reach` packets is a restart of the sender; so is a jump forward by 65536 or more that
//!   the time does not explain. A new epoch begins, and the jump itself counts as no loss.
//! - GOOSE counts states and the retransmissions of each state: `states` has its rules.
//!
//! In ambiguous cases the lower count is used: `never_seen` is a lower bound.

mod epoch;
mod learn;
mod place;
mod restart;
mod silence;
mod states;
#[cfg(test)]
mod tests;
mod tracker;

pub use place::Placement;
pub use tracker::{Totals, Tracker};

use crate::protocol::Order;
use crate::{KeyRule, Ns};
use epoch::Epoch;
use learn::{Guess, Wrap, STEP_REFUTED, STEP_VOTES};
use place::Offset;
use silence::Silence;
use states::States;

/// Default maximum reordering, packets.
pub const REACH: u64 = 256;

/// Follows the sequence numbers of one stream. The module documentation has the rules.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// Range of the field: 256, 65536 or 2^32.
    range: u64,
    reach: u64,
    /// Whether a key consists of a state and a count.
    in_states: bool,
    wrap: Option<u64>,
    /// The number after the wrap: 0, or 1 for senders that count from 1.
    first: u64,
    /// Whether the numbers 0 and 1 (`has_one`) have been seen since the sender started.
    has_zero: bool,
    has_one: bool,
    /// Difference between consecutive packets' numbers; 0 until learned.
    step: u64,
    candidate: u64,
    votes: u32,
    wrap_seen: Option<Wrap>,
    /// The last learned wrap, if a number beyond it has refuted it.
    refuted: Option<u64>,
    /// Set if the wrap is only assumed: the last number before it was close to a common wrap, but a restart is also
    /// possible.
    guess: Option<Guess>,
    epoch: Option<Epoch>,
    /// The previous epoch, until a restart is certain.
    previous: Option<Epoch>,
    /// Number of missing packets in finished epochs.
    missing: i64,
    /// Number of packets that belong to no epoch.
    unplaced: i64,
    gaps: u64,
    restarts: u64,
    /// Time that consecutive packets without a gap took, ns, and the difference of their numbers; they yield the time
    /// per number.
    steady: (Ns, i64),
    silence: Option<Silence>,
}

impl Sequence {
    /// Creates a sequence for streams with this rule; `None` if keys have no order. `reach`: maximum reordering,
    /// packets.
    pub fn new(rule: KeyRule, reach: u64) -> Option<Self> {
        Some(match rule.order()? {
            Order::Counter { range } => Self { range, reach, ..Self::default() },
            Order::States => Self { range: 1 << 32, reach, in_states: true, step: 1, ..Self::default() },
        })
    }

    /// Takes over the step and wrap learned at another point that sees more of the same stream.
    pub fn adopt(&mut self, other: &Self) {
        if self.step != other.step && other.step != 0 {
            (self.step, self.candidate, self.votes) = (other.step, other.step, STEP_VOTES);
        }
        if other.wrap.is_some() {
            self.believe(other.wrap);
            self.has_zero |= other.has_zero;
            self.has_one |= other.has_one;
            self.first = if self.has_zero { 0 } else { self.first.max(other.first) };
        }
    }

    /// Adds a packet that was first seen at time `t` at the head of the stream. Returns whether it is newer than all
    /// previous ones.
    pub fn lead(&mut self, key: u32, t: Ns) -> bool {
        self.refute(key.into());
        let key = self.place(key);
        self.resume(key, t);
        let Some(epoch) = self.epoch else {
            self.begin(key, t);
            return true;
        };
        match self.offset(&epoch, key, t) {
            Offset::Behind(back) if back <= self.span(self.reach) => {
                self.fill(key, t);
                false
            }
            Offset::Uncounted => false,
            Offset::Ahead(forward, rounds) if self.is_plausible(&epoch, forward.saturating_sub(rounds), key, t) => {
                self.vote(forward);
                self.advance(&epoch, forward, rounds, key, t);
                self.settle_guess(key);
                true
            }
            _ if self.is_straggler(&epoch, key) => {
                self.unplaced += 1;
                self.wrap_seen = self.wrap_seen.map(|w| Wrap { top: w.top.max(key), ..w });
                false
            }
            _ => {
                self.restart(key, t);
                true
            }
        }
    }

    /// Adds a packet that was first seen at time `t` at the head of the stream, if it is certainly the next one, as
    /// nearly all packets are. The effect is that of [`Self::lead`], but step, wrap and losses cannot change. Returns
    /// false if the packet must be added by `lead`.
    pub fn lead_next(&mut self, key: u32, t: Ns) -> bool {
        let (Some(wrap), Some(epoch)) = (self.wrap, &mut self.epoch) else { return false };
        let (step, key, is_open) = (self.step, u64::from(key), self.guess.is_some() || self.previous.is_some());
        let (took, numbers) = self.steady;
        if self.in_states
            || step == 0
            || step > wrap.min(self.range) / 2
            || self.candidate != step
            || is_open
            || self.silence.is_some()
        {
            return false;
        }
        let next = epoch.high_key + step;
        if key >= wrap || key != (if next < wrap { next } else { next - wrap }) {
            return false;
        }
        // If half a wrap or more passes in this time, it is a silence, which `offset` handles.
        let passed = t.saturating_sub(epoch.high_t).max(0);
        let half = i64::try_from(wrap / 2).ok().and_then(|half| half.checked_mul(took));
        if passed.checked_mul(numbers).zip(half).is_none_or(|(passed, half)| passed >= half) {
            return false;
        }
        self.votes = (self.votes + 1).min(STEP_REFUTED);
        match key {
            0 => (self.has_zero, self.first) = (true, 0),
            1 => self.has_one = true,
            _ => {}
        }
        epoch.advance(step, key, t);
        self.steady = (took.saturating_add(passed), numbers.saturating_add_unsigned(step));
        true
    }

    /// Adds a packet first seen at a later point: it is far behind the head, or was seen there slightly before the
    /// head.
    pub fn follow(&mut self, key: u32, t: Ns) {
        let Some(epoch) = self.epoch else { return };
        self.refute(key.into());
        let key = self.place(key);
        if self.in_states {
            match self.offset(&epoch, key, t) {
                Offset::Ahead(forward, _) if forward <= self.reach => self.advance(&epoch, forward, 0, key, t),
                Offset::Uncounted => {}
                _ => self.fill(key, t),
            }
            return;
        }
        if self.wrap.is_none() && key < epoch.high_key && !self.is_behind(&epoch, key, t) {
            // The number is either behind the newest, or after the first wrap; only the exact successor proves the
            // wrap.
            let exact = (epoch.high_key + self.step).checked_sub(key);
            let is_wrap = |w: &u64| self.step > 0 && self.can_wrap(*w, epoch.high_key, key) && self.is_known(w);
            self.believe(exact.filter(is_wrap));
        }
        let forward = self.forward(epoch.high_key, key).unwrap_or(0);
        if self.is_behind(&epoch, key, t) || forward == 0 || forward > self.span(self.reach) {
            self.fill(key, t);
        } else if let Some(epoch) = &mut self.epoch {
            epoch.advance(forward, key, t);
        }
    }

    /// Adds a packet that was first seen when it was dropped.
    pub fn dropped(&mut self, key: u32, t: Ns) {
        let Some(epoch) = self.epoch else {
            self.begin(u64::from(key), t);
            return;
        };
        if self.step == 0 {
            // If packets are first seen only at later points, drops alone show the step.
            self.vote(u64::from(key).saturating_sub(epoch.high_key));
        } else if self.wrap.is_none() && !self.in_states {
            self.believe(self.wrap_near(epoch.high_key, u64::from(key)));
        }
        self.follow(key, t);
    }

    /// Counts a packet behind the newest one.
    fn fill(&mut self, key: u64, t: Ns) {
        let reach = self.span(self.reach) as i64;
        let at = self.epoch.and_then(|s| Some(s.high.saturating_sub_unsigned(self.back(&s, key, t)?)));
        match (&mut self.epoch, at) {
            (Some(epoch), Some(at)) if at >= epoch.low => epoch.count += 1,
            // Numbers before the very first packet were not counted as missing.
            (Some(epoch), Some(at)) if epoch.high - at <= reach && self.restarts == 0 => {}
            _ => self.unplaced += 1,
        }
    }

    /// Lower bound of the number of packets that no point saw.
    pub fn never_seen(&self) -> u64 {
        let missing = |epoch: &Option<Epoch>| epoch.as_ref().map_or(0, |s| s.missing(self.step));
        (self.missing + missing(&self.epoch) + missing(&self.previous) - self.unplaced).max(0) as u64
    }

    /// Number of gaps, including those filled since.
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Number of jumps that neither reordering nor loss nor a wrap explains.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Difference between the numbers of consecutive packets, once learned.
    pub fn step(&self) -> Option<u64> {
        (self.step > 0).then_some(self.step)
    }

    /// Number at which the sequence wraps, once learned.
    pub fn wrap(&self) -> Option<u64> {
        self.wrap
    }

    /// Number of the first sample after the wrap: 0, or 1 for senders that count from 1; `None` if still unknown.
    pub fn first(&self) -> Option<u64> {
        match self.step()? {
            _ if self.has_zero => Some(0),
            _ if self.first > 0 => Some(1),
            // Either 0 or the wrap itself will soon appear.
            1 => None,
            // If each packet spans several numbers, neither 0 nor the wrap may ever appear.
            _ => Some(u64::from(self.has_one)),
        }
    }

    /// Number of packets per cycle (from wrap to wrap), once learned.
    pub fn cycle(&self) -> Option<u64> {
        Some((self.wrap? / self.step()?).max(1))
    }

    /// Number of packets from one number forward to another, at most one cycle.
    pub fn distance(&self, from: u32, to: u32) -> Option<u64> {
        if self.in_states {
            return States::distance(from, to);
        }
        let (forward, step) = (self.forward(self.place(from), self.place(to))?, self.step()?);
        if step == 1 {
            return Some(forward);
        }
        forward.is_multiple_of(step).then_some(forward / step)
    }

    /// Difference between the numbers of two packets that are `packets` packets apart.
    fn span(&self, packets: u64) -> u64 {
        packets * self.step.max(1)
    }
}
