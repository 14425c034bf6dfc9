//! The sequence numbers of one stream: their step, where they wrap, which of them were never seen. Everything that counts losses
//! uses this: the joiner, and through [`Tracker`] the commands that look at one device.
//!
//! Neither step nor wrap is known beforehand: a frame of n ASDUs steps smpCnt by n, and smpCnt wraps at the samples per
//! second for most senders and at 65536 for some. Rules:
//!
//! - The step is the difference that most neighbouring packets have (majority vote, 8 ahead to be believed).
//! - A wrap is believed at once where the number before it plus the step minus the number after it is a wrap in use (samples a
//!   second of some profile, or the full range of the field), or where such a wrap is within reach, for packets may be lost across
//!   it. Any other wrap must be seen twice. A number beyond the believed wrap refutes it.
//! - A sender that counts from 1 never sends 0, and sends the wrap itself: that number takes the place of 0.
//! - Numbers are laid out from wrap to wrap in one stretch. In it, `expected - seen = never seen`; so the order in which packets
//!   were first seen does not matter.
//! - Between two numbers lie less than half a wrap, forward or backward, as long as the time between them does not say otherwise:
//!   after a silence of half a wrap or more the time says how many whole wraps are missing. If the stream then catches up with the
//!   time, the sender or the observer stood still, and nothing was lost.
//! - A jump back by more than `reach` packets is a restart of the sender; so is a jump forward by 65536 or more that the
//!   time does not explain. A new stretch begins, and nothing is counted for the jump.
//! - GOOSE counts states and retransmissions of each: `states` has its rules.
//!
//! Where the numbers leave a choice, the lower count is taken: `never_seen` is a lower bound.

mod learn;
mod place;
mod restart;
mod silence;
mod states;
mod stretch;
#[cfg(test)]
mod tests;
mod tracker;

pub use place::Standing;
pub use tracker::{Totals, Tracker};

use crate::protocol::Order;
use crate::{KeyRule, Ns};
use learn::{Guess, Wrap, STEP_REFUTED, STEP_VOTES};
use place::Offset;
use silence::Silence;
use states::States;
use stretch::Stretch;

/// Packets by which order may differ, unless something else is requested.
pub const REACH: u64 = 256;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// 256, 65536 or 2^32: the range of the field.
    range: u64,
    reach: u64,
    /// Keys are a state and a count.
    in_states: bool,
    wrap: Option<u64>,
    /// The number behind the wrap: 0, or 1 of senders that count from 1.
    first: u64,
    /// The numbers 0 and 1 came, since the sender started.
    has_zero: bool,
    has_one: bool,
    /// 0 until believed.
    step: u64,
    candidate: u64,
    votes: u32,
    wrap_seen: Option<Wrap>,
    /// The last wrap that was believed, and that a number beyond it refuted.
    refuted: Option<u64>,
    /// The wrap is believed because it is near.
    guess: Option<Guess>,
    stretch: Option<Stretch>,
    /// The stretch before, as long as a restart is not certain.
    left: Option<Stretch>,
    /// Never seen in finished stretches.
    missing: i64,
    /// Packets seen that no stretch has a place for.
    unplaced: i64,
    gaps: u64,
    restarts: u64,
    /// Time and numbers of packets that followed each other, for the time between numbers.
    steady: (Ns, i64),
    silence: Option<Silence>,
}

impl Sequence {
    /// For a stream with this rule; `None` where keys have no order. `reach`: packets by which order may differ.
    pub fn new(rule: KeyRule, reach: u64) -> Option<Self> {
        Some(match rule.order()? {
            Order::Counter { range } => Self { range, reach, ..Self::default() },
            Order::States => Self { range: 1 << 32, reach, in_states: true, step: 1, ..Self::default() },
        })
    }

    /// Takes over the step and the wrap of the same stream, as another place that sees more of it has learned them.
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

    /// A packet that was first seen at time `t`, at the head of the stream. Returns whether it is newer than all before it.
    pub fn lead(&mut self, key: u32, t: Ns) -> bool {
        self.refute(key.into());
        let key = self.place(key);
        self.resume(key, t);
        let Some(stretch) = self.stretch else {
            self.begin(key, t);
            return true;
        };
        match self.offset(&stretch, key, t) {
            Offset::Behind(back) if back <= self.span(self.reach) => {
                self.fill(key, t);
                false
            }
            Offset::Uncounted => false,
            Offset::Ahead(forward, rounds) if self.is_plausible(&stretch, forward.saturating_sub(rounds), key, t) => {
                self.vote(forward);
                self.advance(&stretch, forward, rounds, key, t);
                self.settle_guess(key);
                true
            }
            _ if self.is_straggler(&stretch, key) => {
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

    /// A packet that was first seen at time `t`, at the head of the stream, if it is the next one without doubt, as nearly all are: it
    /// is taken as by [`Self::lead`], and step, wrap and what is missing stay. False where `lead` must take it.
    pub fn lead_next(&mut self, key: u32, t: Ns) -> bool {
        let (Some(wrap), Some(stretch)) = (self.wrap, &mut self.stretch) else { return false };
        let (step, key, is_open) = (self.step, u64::from(key), self.guess.is_some() || self.left.is_some());
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
        let next = stretch.high_key + step;
        if key >= wrap || key != (if next < wrap { next } else { next - wrap }) {
            return false;
        }
        // Half a wrap or more in this time is a silence, of which `offset` has the rules.
        let passed = t.saturating_sub(stretch.high_t).max(0);
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
        stretch.advance(step, key, t);
        self.steady = (took.saturating_add(passed), numbers.saturating_add_unsigned(step));
        true
    }

    /// A packet that was first seen at a point that follows: it lies far behind the head, or was seen there a little early.
    pub fn follow(&mut self, key: u32, t: Ns) {
        let Some(stretch) = self.stretch else { return };
        self.refute(key.into());
        let key = self.place(key);
        if self.in_states {
            match self.offset(&stretch, key, t) {
                Offset::Ahead(forward, _) if forward <= self.reach => self.advance(&stretch, forward, 0, key, t),
                Offset::Uncounted => {}
                _ => self.fill(key, t),
            }
            return;
        }
        if self.wrap.is_none() && key < stretch.high_key && !self.is_behind(&stretch, key, t) {
            // Behind, or across the first wrap? Only the exact successor says.
            let exact = (stretch.high_key + self.step).checked_sub(key);
            let is_wrap = |w: &u64| self.step > 0 && self.can_wrap(*w, stretch.high_key, key) && self.is_known(w);
            self.believe(exact.filter(is_wrap));
        }
        let forward = self.forward(stretch.high_key, key).unwrap_or(0);
        if self.is_behind(&stretch, key, t) || forward == 0 || forward > self.span(self.reach) {
            self.fill(key, t);
        } else if let Some(stretch) = &mut self.stretch {
            stretch.advance(forward, key, t);
        }
    }

    /// A packet that was first seen where it was dropped.
    pub fn dropped(&mut self, key: u32, t: Ns) {
        let Some(stretch) = self.stretch else {
            self.begin(u64::from(key), t);
            return;
        };
        if self.step == 0 {
            // Where other points only follow, drops alone show the step.
            self.vote(u64::from(key).saturating_sub(stretch.high_key));
        } else if self.wrap.is_none() && !self.in_states {
            self.believe(self.wrap_near(stretch.high_key, u64::from(key)));
        }
        self.follow(key, t);
    }

    /// Counts a packet that lies behind the newest.
    fn fill(&mut self, key: u64, t: Ns) {
        let reach = self.span(self.reach) as i64;
        let at = self.stretch.and_then(|s| Some(s.high.saturating_sub_unsigned(self.back(&s, key, t)?)));
        match (&mut self.stretch, at) {
            (Some(stretch), Some(at)) if at >= stretch.low => stretch.count += 1,
            // Before the first packet of all nothing was counted as missing.
            (Some(stretch), Some(at)) if stretch.high - at <= reach && self.restarts == 0 => {}
            _ => self.unplaced += 1,
        }
    }

    /// Numbers that no point saw, at least.
    pub fn never_seen(&self) -> u64 {
        let missing = |stretch: &Option<Stretch>| stretch.as_ref().map_or(0, |s| s.missing(self.step));
        (self.missing + missing(&self.stretch) + missing(&self.left) - self.unplaced).max(0) as u64
    }

    /// Places where numbers were missing, also such that packets have filled since.
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Times the numbers jumped by more than reordering, loss or a wrap explain.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Difference of neighbouring packets, once learned.
    pub fn step(&self) -> Option<u64> {
        (self.step > 0).then_some(self.step)
    }

    /// Where the numbers wrap, once learned.
    pub fn wrap(&self) -> Option<u64> {
        self.wrap
    }

    /// The number of the first sample behind the wrap: 0, or 1 of a sender that counts from 1; `None` until a number shows it.
    pub fn first(&self) -> Option<u64> {
        match self.step()? {
            _ if self.has_zero => Some(0),
            _ if self.first > 0 => Some(1),
            // 0 or the wrap itself is among the next numbers.
            1 => None,
            // Where each packet has several numbers, these two may never come.
            _ => Some(u64::from(self.has_one)),
        }
    }

    /// Packets from wrap to wrap, once learned: a cycle of the numbers.
    pub fn cycle(&self) -> Option<u64> {
        Some((self.wrap? / self.step()?).max(1))
    }

    /// Packets from one number forward to another, at most a cycle.
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

    /// What `packets` packets add to the number.
    fn span(&self, packets: u64) -> u64 {
        packets * self.step.max(1)
    }
}
