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

mod states;
mod tracker;

pub use tracker::{Totals, Tracker};

use crate::protocol::Order;
use crate::sv::SAMPLE_RATES;
use crate::{KeyRule, Ns};
use states::States;

/// Packets by which order may differ, unless something else is requested.
pub const REACH: u64 = 256;
/// Votes that a step must be ahead by to be believed.
const STEP_VOTES: u32 = 8;
/// Votes that another step must be ahead by to replace the one believed.
const STEP_REFUTED: u32 = 64;
/// Packets after which a restart of the sender is certain: until then the stream may return to where it was.
const RESTART_SURE: u64 = 8;
/// A jump forward by this much or more must be explained by time; the numbers of most senders have 16 bits.
const WIDE_JUMP: u64 = 1 << 16;

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

/// A wrap that was not understood: the greatest number before and the least after it, counting packets that came out of order.
#[derive(Clone, Copy, Debug)]
struct Wrap {
    top: u64,
    bottom: u64,
}

/// The wrap that a sender has if nothing was lost across the last one, and what the believed wrap made lost there; whether that
/// came again.
#[derive(Clone, Copy, Debug)]
struct Guess {
    exact: u64,
    /// The numbers before and behind it.
    top: u64,
    bottom: u64,
    missing: i64,
    again: bool,
}

/// Numbers laid out without wraps, relative to the first.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    low: i64,
    high: i64,
    high_key: u64,
    count: u64,
    high_t: Ns,
    states: States,
}

/// A silence in which whole wraps are taken to be missing, by the time that it took.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// Time and place of the packet before it.
    since: Ns,
    high: i64,
    /// Numbers of the wraps taken to be missing; packets and gaps that were counted for them.
    numbers: i64,
    lost: i64,
    gaps: u64,
    /// [`Sequence::steady`] before it.
    steady: (Ns, i64),
    /// What has not caught up by then is missing.
    until: Ns,
}

/// A packet's place, seen from the newest one. In numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offset {
    /// So far ahead; the second number of it are whole wraps, by the time.
    Ahead(u64, u64),
    /// So far behind.
    Behind(u64),
    /// Behind, where no number was known to be missing.
    Uncounted,
    /// Not in this stretch.
    Elsewhere,
}

/// Where a number stands, as seen from the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may well be the next one.
    Next,
    /// So many packets behind.
    Behind(u64),
    /// Far behind: before a wrap that is not understood yet.
    BeforeWrap,
    /// The step is not known yet.
    Unknown,
}

impl Stretch {
    fn start(key: u64, t: Ns) -> Self {
        Self { low: 0, high: 0, high_key: key, count: 1, high_t: t, states: States::default() }
    }

    /// May be negative: a packet that belongs to the next stretch can have been counted here.
    fn missing(&self, step: u64) -> i64 {
        match step {
            0 => 0,
            1 => (self.high.abs_diff(self.low) + 1) as i64 - self.count as i64,
            step => (self.high.abs_diff(self.low) / step + 1) as i64 - self.count as i64,
        }
    }

    fn advance(&mut self, by: u64, key: u64, t: Ns) {
        self.states.advance(self.high_key as u32, key as u32, self.high, by);
        self.high = self.high.saturating_add_unsigned(by);
        self.high_key = key;
        self.high_t = t;
        self.count += 1;
    }
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

    /// From one number forward to another, across at most one wrap.
    fn forward(&self, from: u64, to: u64) -> Option<u64> {
        match self.wrap {
            Some(wrap) if from < wrap && to < wrap => Some(if to < from { to + wrap - from } else { to - from }),
            _ => to.checked_sub(from),
        }
    }

    /// Where a number stands in the stretch.
    pub fn stands(&self, key: u32) -> Standing {
        let (Some(stretch), Some(step)) = (self.stretch, self.step()) else { return Standing::Unknown };
        if self.in_states {
            return match States::offset(&stretch, key, stretch.high_t) {
                Offset::Ahead(..) => Standing::Next,
                Offset::Behind(back) => Standing::Behind(back),
                Offset::Uncounted => Standing::Behind(1),
                Offset::Elsewhere => Standing::BeforeWrap,
            };
        }
        let (newest, key) = (stretch.high_key, self.place(key));
        // Another wrap where there was one before?
        let again = || {
            let wrap = self.wrap_seen.map(|w| w.top + step - w.bottom)?;
            (self.can_wrap(wrap, newest, key) && wrap - newest + key <= self.span(self.reach)).then_some(wrap)
        };
        let (ahead, behind) = match self.wrap.or_else(|| self.wrap_near(newest, key)).or_else(again) {
            Some(wrap) if key < wrap && newest <= wrap => ((key + wrap - newest) % wrap, (newest + wrap - key) % wrap),
            _ => (key.saturating_sub(newest), newest.saturating_sub(key)),
        };
        if ahead > 0 && ahead <= self.span(self.reach) {
            Standing::Next
        } else if behind > 0 || ahead == 0 {
            Standing::Behind(behind / step)
        } else {
            Standing::BeforeWrap
        }
    }

    /// Whether a number is the one after the newest.
    fn is_next(&self, key: u32) -> bool {
        let next = |newest: u64| (newest + self.step) % self.wrap.unwrap_or(u64::MAX);
        self.step > 0 && self.stretch.is_some_and(|s| next(s.high_key) == self.place(key))
    }

    /// Whether a number is surely ahead of the newest, and not behind it by less than a cycle.
    pub fn is_ahead(&self, key: u32) -> bool {
        self.cycle().is_none_or(|cycle| cycle > 2 * self.reach) && self.stands(key) == Standing::Next
    }

    /// A number's place in the cycle: the wrap stands where 0 is missing.
    fn place(&self, key: u32) -> u64 {
        let key = u64::from(key);
        if self.first > 0 && self.wrap == Some(key) {
            0
        } else {
            key
        }
    }

    /// Whether numbers can wrap there between these two: below the wrap, or at it where the sender counts from 1.
    fn can_wrap(&self, wrap: u64, before: u64, after: u64) -> bool {
        wrap > after && (wrap > before || wrap == before && after > 0 && !self.has_zero)
    }

    /// The newest number was the last one before this wrap, or near it.
    fn believe(&mut self, wrap: Option<u64>) {
        self.wrap = wrap;
        if let Some(stretch) = self.stretch.as_mut().filter(|stretch| wrap == Some(stretch.high_key)) {
            (self.first, stretch.high_key) = (1, 0);
        }
    }

    /// There is no number beyond the wrap. So the newest number is always below it.
    fn refute(&mut self, key: u64) {
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
            // So it was a restart, close to where others wrap.
            self.missing -= guess.missing;
            self.gaps = self.gaps.saturating_sub(1);
            self.restarts += 1;
        }
    }

    fn known_wraps(&self) -> impl Iterator<Item = u64> {
        SAMPLE_RATES.into_iter().map(u64::from).chain([1 << 16, self.range])
    }

    fn is_known(&self, wrap: &u64) -> bool {
        self.known_wraps().any(|known| known == *wrap)
    }

    /// What `packets` packets add to the number.
    fn span(&self, packets: u64) -> u64 {
        packets * self.step.max(1)
    }

    fn offset(&mut self, stretch: &Stretch, key: u64, t: Ns) -> Offset {
        /// By this much the first packet after a silence may be late.
        const SILENCE_TOLERANCE: Ns = 20_000_000;
        if self.in_states {
            return States::offset(stretch, key as u32, t);
        }
        let (newest, reach) = (stretch.high_key, self.span(self.reach));
        let Some(wrap) = self.wrap else {
            return match key.checked_sub(newest) {
                None if newest - key > reach => match self.learn_wrap(newest, key) {
                    Some(wrap) => Offset::Ahead(wrap - newest + key, 0),
                    None => Offset::Elsewhere,
                },
                None => Offset::Behind(newest - key),
                Some(0) => Offset::Elsewhere,
                Some(forward) => Offset::Ahead(forward, 0),
            };
        };
        let wrap = wrap as i64;
        let forward = match key as i64 - newest as i64 {
            ahead if (0..wrap).contains(&ahead) => ahead,
            apart => apart.rem_euclid(wrap),
        };
        let nearest = if forward > wrap / 2 { forward - wrap } else { forward };
        // In a silence of half a wrap or more, the number alone does not say how many wraps are missing; the time does.
        let expected = numbers_in(t.saturating_sub(stretch.high_t), self.steady);
        let mut rounds =
            if expected > wrap / 2 { (expected - nearest + wrap / 2).div_euclid(wrap).max(0) * wrap } else { 0 };
        // A sender that counted on all the time comes back with the number of that time. Another one was silent itself.
        let tolerance = || numbers_in(SILENCE_TOLERANCE, self.steady) + expected / 1_000;
        if rounds > 0 && (expected - nearest - rounds).abs() > tolerance() {
            rounds = 0;
            if nearest < 0 {
                return Offset::Elsewhere;
            }
        }
        if nearest + rounds > 0 && key < newest {
            let same = |guess: &Guess| rounds == 0 && (key, newest) == (guess.bottom, guess.top);
            self.guess = self.guess.filter(same).map(|guess| Guess { again: true, ..guess });
        }
        match nearest + rounds {
            0 => Offset::Elsewhere,
            forward @ 1.. => Offset::Ahead(forward as u64, rounds as u64),
            back => Offset::Behind(back.unsigned_abs()),
        }
    }

    fn back(&self, stretch: &Stretch, key: u64, t: Ns) -> Option<u64> {
        if !self.in_states {
            return self.forward(key, stretch.high_key);
        }
        match States::offset(stretch, key as u32, t) {
            Offset::Behind(back) => Some(back),
            _ => None,
        }
    }

    fn is_behind(&self, stretch: &Stretch, key: u64, t: Ns) -> bool {
        self.back(stretch, key, t).is_some_and(|back| back > 0 && back <= self.span(self.reach))
    }

    /// A packet from before a wrap that was not understood, overtaken by one from after it.
    fn is_straggler(&self, stretch: &Stretch, key: u64) -> bool {
        let (newest, reach) = (stretch.high_key, self.span(self.reach));
        if self.wrap.is_some() || key <= newest + reach {
            return false;
        }
        let after_seen =
            stretch.count <= 2 * self.reach && self.wrap_seen.is_some_and(|w| w.top.abs_diff(key) <= reach);
        let after_refuted = newest <= reach && self.refuted.is_some_and(|wrap| key + reach >= wrap);
        after_seen || after_refuted || self.wrap_near(key, newest).is_some()
    }

    fn is_plausible(&self, stretch: &Stretch, forward: u64, key: u64, t: Ns) -> bool {
        if self.in_states || forward <= self.span(self.reach + 1) {
            return true;
        }
        if forward < WIDE_JUMP {
            return !self.is_straggler(stretch, key);
        }
        let expected = numbers_in(t.saturating_sub(stretch.high_t), self.steady);
        stretch.count >= 8 && expected.saturating_mul(2).unsigned_abs() >= forward
    }

    /// The wrap in use that may lie between these numbers.
    fn wrap_near(&self, before: u64, after: u64) -> Option<u64> {
        let fits =
            |w: &u64| self.step > 0 && self.can_wrap(*w, before, after) && w - before + after <= self.span(self.reach);
        self.known_wraps().find(fits)
    }

    fn learn_wrap(&mut self, before: u64, after: u64) -> Option<u64> {
        // A wrap in use also shows what the step is.
        let step = self.step().unwrap_or(self.candidate);
        let exact = |before: u64, after: u64| {
            (before + step).checked_sub(after).filter(|wrap| self.can_wrap(*wrap, before, after))
        };
        let now = exact(before, after);
        let twice = || now.filter(|_| self.wrap_seen.and_then(|w| exact(w.top, w.bottom)) == now);
        if let Some(wrap) = now.filter(|w| self.is_known(w)).or_else(twice) {
            self.believe(Some(wrap));
            // The wrap before was not understood, so a stretch ended there.
            if let Some(seen) = self.wrap_seen.take().filter(|seen| seen.top < wrap + self.first) {
                let forward = wrap - seen.top + seen.bottom;
                if forward <= self.span(self.reach + 1) {
                    self.missing += (forward / step).saturating_sub(1) as i64;
                    self.restarts = self.restarts.saturating_sub(1);
                    // Nor can the stream return to before it.
                    self.forget_left();
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

    fn vote(&mut self, forward: u64) {
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

    /// The same wrap twice, with nothing missing and nothing late from beyond it: the sender really wraps there.
    fn settle_guess(&mut self, key: u64) {
        let reach = self.span(self.reach);
        if let Some(guess) = self.guess.filter(|guess| guess.again && (reach..guess.exact).contains(&key)) {
            self.guess = None;
            self.wrap = Some(guess.exact);
            self.first = u64::from(guess.top == guess.exact);
            self.missing -= 2 * guess.missing;
            self.gaps = self.gaps.saturating_sub(2);
        }
    }

    /// A packet that is newer than the newest so far.
    fn advance(&mut self, newest: &Stretch, forward: u64, rounds: u64, key: u64, t: Ns) {
        let packets = |numbers: u64| numbers.saturating_sub(1).checked_div(self.step).unwrap_or(0);
        let missing = packets(forward);
        let passed = t.saturating_sub(newest.high_t).max(0);
        if rounds > 0 {
            let counted = packets(forward.saturating_sub(rounds).max(1));
            // Another one while the stream catches up is part of the same.
            let before = self.silence.filter(|s| newest.high_t <= s.until);
            let (since, high, steady) = (newest.high_t, newest.high, self.steady);
            let mut silence = before.unwrap_or(Silence { since, high, steady, ..Silence::default() });
            silence.numbers += rounds as i64;
            silence.lost += (missing - counted) as i64;
            silence.gaps += u64::from(counted == 0);
            silence.until = t.saturating_add(t.saturating_sub(silence.since));
            self.silence = Some(silence);
        }
        self.gaps += u64::from(missing > 0);
        if let Some(stretch) = &mut self.stretch {
            stretch.advance(forward, key, t);
        }
        if missing == 0 && !self.in_states {
            self.steady = (self.steady.0.saturating_add(passed), self.steady.1.saturating_add_unsigned(forward));
            self.catch_up(newest.high.saturating_add_unsigned(forward), t);
        }
    }

    /// Takes back what a silence was taken to have lost, once the stream without that is where the time says that it should be.
    fn catch_up(&mut self, high: i64, t: Ns) {
        let Some(s) = self.silence else { return };
        if t > s.until {
            self.silence = None;
            return;
        }
        let came = high - s.high - s.numbers;
        if came + (self.wrap.unwrap_or(0) / 2) as i64 > numbers_in(t.saturating_sub(s.since), s.steady) {
            self.missing -= s.lost;
            self.gaps = self.gaps.saturating_sub(s.gaps);
            self.silence = None;
        }
    }

    fn begin(&mut self, key: u64, t: Ns) {
        self.stretch = Some(Stretch::start(key, t));
        (self.has_zero, self.has_one) = (key == 0 && self.first == 0, key == 1);
        self.silence = None;
    }

    fn restart(&mut self, key: u64, t: Ns) {
        self.forget_left();
        self.left = self.stretch;
        self.restarts += 1;
        self.begin(key, t);
    }

    fn forget_left(&mut self) {
        self.missing += self.left.take().map_or(0, |left| left.missing(self.step));
    }

    /// A packet that came far too late looks like a restart, until the stream goes on where it was.
    fn resume(&mut self, key: u64, t: Ns) {
        let (Some(left), Some(stretch)) = (self.left, self.stretch) else { return };
        if stretch.count > RESTART_SURE {
            return self.forget_left();
        }
        let reach = self.span(self.reach);
        let goes_on = |from: &Stretch| match self.in_states {
            true => matches!(States::offset(from, key as u32, t), Offset::Ahead(n, _) if n <= reach),
            false => self.forward(from.high_key, key).is_some_and(|n| (1..=reach).contains(&n)),
        };
        let sure = stretch.count == 1 || !self.is_straggler(&stretch, key);
        if sure && goes_on(&left) && !goes_on(&stretch) && !self.is_behind(&stretch, key, t) {
            self.unplaced += stretch.count as i64;
            self.restarts = self.restarts.saturating_sub(1);
            (self.stretch, self.left) = (Some(left), None);
        }
    }
}

/// Numbers that a time takes, by how long some took; 0 as long as none are known.
fn numbers_in(time: Ns, (took, numbers): (Ns, i64)) -> i64 {
    if took <= 0 || numbers <= 0 {
        return 0;
    }
    let time = time.max(0);
    // Nearly always the short division, which is much quicker, suffices.
    let counted = time.checked_mul(numbers).map(|product| product / took);
    let exact = || (i128::from(time) * i128::from(numbers) / i128::from(took)).min(1 << 40) as i64;
    counted.unwrap_or_else(exact).min(1 << 40)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Ns = 1_000_000;

    fn sv() -> Sequence {
        Sequence::new(KeyRule::SMP_CNT, 256).unwrap()
    }

    /// Packets `range` of a sender with this step and wrap, one a ms, without those in `skip`.
    fn send(seq: &mut Sequence, range: std::ops::Range<u64>, step: u64, wrap: u64, skip: &[u64]) {
        for n in range.filter(|n| !skip.contains(n)) {
            seq.lead((n * step % wrap) as u32, n as Ns * MS);
        }
    }

    #[test]
    fn step_and_wrap_are_learned_for_every_profile() {
        for (step, wrap) in [(1, 4000), (1, 4800), (8, 12800), (8, 15360), (2, 4800), (6, 14400), (1, 65536)] {
            let mut seq = sv();
            send(&mut seq, 0..2 * wrap / step + 10, step, wrap, &[]);
            assert_eq!((seq.step(), seq.wrap(), seq.never_seen()), (Some(step), Some(wrap), 0), "{step} {wrap}");
            assert_eq!(seq.cycle(), Some(wrap / step));
        }
    }

    #[test]
    fn a_gap_of_half_a_second_is_explained_by_time() {
        let mut seq = sv();
        send(&mut seq, 0..5000, 1, 4000, &[]);
        send(&mut seq, 7000..9000, 1, 4000, &[]);
        assert_eq!((seq.never_seen(), seq.restarts()), (2000, 0));
    }

    #[test]
    fn a_wrap_of_its_own_is_believed_when_seen_twice() {
        let mut seq = sv();
        send(&mut seq, 0..1001, 1, 1000, &[]);
        assert_eq!(seq.wrap(), None);
        send(&mut seq, 1001..2500, 1, 1000, &[1500]);
        assert_eq!((seq.wrap(), seq.never_seen(), seq.restarts()), (Some(1000), 1, 0));
    }

    #[test]
    fn a_number_beyond_the_wrap_refutes_it() {
        let mut seq = sv();
        send(&mut seq, 0..4000, 1, 65536, &[]);
        send(&mut seq, 0..70000, 1, 65536, &[]); // restarted where another sender would wrap
        assert_eq!(seq.wrap(), Some(65536));
        assert_eq!(seq.never_seen(), 0);
    }

    #[test]
    fn a_late_number_beyond_a_wrap_that_was_wrongly_believed_is_no_gap() {
        let mut seq = sv();
        // The last number of the first two rounds is lost, so they seem to wrap at 698; that of the third comes late.
        send(&mut seq, 0..1049, 2, 700, &[349, 699]);
        assert_eq!(seq.wrap(), Some(698));
        seq.lead(0, 1050 * MS);
        seq.lead(698, 1051 * MS);
        send(&mut seq, 1051..1500, 2, 700, &[]);
        assert!(seq.never_seen() <= 2, "{}", seq.never_seen());
    }

    #[test]
    fn a_number_beyond_the_wrap_refutes_it_wherever_it_is_seen_first() {
        let mut seq = sv();
        send(&mut seq, 0..9000, 1, 4000, &[]);
        for n in 0..300 {
            seq.follow(4000 + n, 9000 * MS);
        }
        assert_eq!(seq.wrap(), None);
        seq.lead(1001, 9001 * MS);
        assert_eq!(seq.never_seen(), 0);
    }

    #[test]
    fn a_packet_first_seen_late_fills_its_gap() {
        let mut seq = sv();
        send(&mut seq, 0..100, 1, 4000, &[50, 60]);
        seq.lead(50, 100 * MS);
        assert_eq!(seq.never_seen(), 1);
        seq.follow(60, 100 * MS);
        assert_eq!(seq.never_seen(), 0);
    }

    #[test]
    fn once_the_wrap_is_known_all_packets_of_a_stream_without_losses_are_the_next() {
        let mut seq = sv();
        send(&mut seq, 0..4010, 1, 4000, &[]);
        assert!((4010..20_000).all(|n| seq.lead_next((n % 4000) as u32, n * MS)));
        assert_eq!((seq.never_seen(), seq.gaps(), seq.restarts()), (0, 0, 0));
    }

    proptest! {
        /// A stream of some step and wrap that loses, repeats and reorders packets, is silent and starts again.
        #[test]
        fn the_next_packet_is_taken_as_any_other(
            (step, wrap) in prop::sample::select(vec![(1_u64, 4000_u64), (2, 4800), (8, 12800), (1, 700), (1, 65536), (3, 10)]),
            events in prop::collection::vec((0..60_u8, 0..400_i64), 1..3000),
        ) {
            let (mut any, mut quick) = (sv(), sv());
            let (mut n, mut t) = ((wrap / step).saturating_sub(20), 0);
            for (event, time) in events {
                t += 250_000;
                match event {
                    0 => n += time as u64 % 5,
                    1 => n -= (time as u64 % 3).min(n),
                    2 => t += time * 10_000_000,
                    3 if time < 10 => n = time as u64,
                    4 => (n, t) = (n + 40 * time as u64, t + 10_000_000 * time),
                    _ => n += 1,
                }
                let key = (n * step % wrap) as u32;
                if event == 5 {
                    any.follow(key, t);
                    quick.follow(key, t);
                    continue;
                }
                let (is_newer, known) = (any.lead(key, t), (quick.never_seen(), quick.cycle()));
                if quick.lead_next(key, t) {
                    prop_assert_eq!((is_newer, known), (true, (quick.never_seen(), quick.cycle())));
                } else {
                    prop_assert_eq!(is_newer, quick.lead(key, t));
                }
                let all = |s: &Sequence| {
                    (s.never_seen(), s.gaps(), s.restarts(), s.step(), s.wrap(), s.votes, s.steady, s.stands(key + 1))
                };
                prop_assert_eq!(all(&any), all(&quick));
            }
        }
    }

    #[test]
    fn hashes_have_no_sequence() {
        assert!(Sequence::new(KeyRule::Hash { offset: 0, len: 32 }, 256).is_none());
    }

    #[test]
    fn no_numbers_make_it_panic() {
        for len in [1, 2, 4] {
            let mut seq = Sequence::new(KeyRule::Seq { offset: 0, len }, 256).unwrap();
            let mut x = 1_u32;
            for n in 0..100_000_i64 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let t = if n % 7 == 0 { Ns::MAX - n } else { Ns::MIN + n };
                if x & 0x40000 == 0 {
                    seq.lead(x >> (32 - 8 * len), t);
                } else {
                    seq.follow(x, t);
                }
            }
        }
    }
}
