//! The sequence numbers of one stream: by how much they step, where they wrap, which of them no point ever saw.
//!
//! Neither step nor wrap is known beforehand: a frame of n ASDUs steps smpCnt by n, and smpCnt wraps at the samples per
//! second for most senders and at 65536 for some. Rules:
//!
//! - The step is the difference that most neighbouring packets have (majority vote, 8 ahead to be believed).
//! - A wrap is believed at once where the number before it plus the step minus the number after it is a wrap in use
//!   (samples a second of some profile, or the full range of the field). Otherwise, for packets may be lost across it, the wrap after
//!   decides: both must give the same number, or be within reach of the same wrap in use. A number beyond the believed
//!   wrap refutes it.
//! - Numbers are laid out on one line from wrap to wrap. On it, `expected - seen = never seen`; so the order in which
//!   packets were first seen does not matter.
//! - A jump of more than `reach` packets counts as a gap only if the time that passed explains at least half of it;
//!   otherwise the sender has restarted: a new line begins, and nothing is counted for the jump. An outage of a whole
//!   lap or more counts modulo the lap. So `never_seen` is a lower bound.

use latpath_model::{KeyRule, Ns};
use latpath_protocols::sv::SAMPLE_RATES;

/// Votes that a step must be ahead by to be believed.
const STEP_VOTES: u32 = 8;
/// Votes that another step must be ahead by to replace the one believed.
const STEP_REFUTED: u32 = 64;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// 256, 65536 or 2^32: the range of the field.
    range: u64,
    reach: u64,
    wrap: Option<u64>,
    /// 0 until believed.
    step: u64,
    candidate: u64,
    votes: u32,
    wrap_seen: Option<Wrap>,
    /// Packets out of order or seen by followers since then may lie before or after that wrap.
    unsure: bool,
    line: Option<Line>,
    /// Never seen on finished lines.
    missing: i64,
    /// Packets seen that no line has a place for.
    unplaced: i64,
    restarts: u64,
}

/// A wrap that was not understood.
#[derive(Clone, Copy, Debug)]
struct Wrap {
    /// The numbers before and after it.
    before: u64,
    after: u64,
    /// The greatest before and the least after it, counting packets that came out of order.
    top: u64,
    bottom: u64,
}

/// Numbers laid out without wraps, relative to the first.
#[derive(Clone, Copy, Debug)]
struct Line {
    low: i64,
    high: i64,
    high_key: u64,
    count: u64,
    first_t: Ns,
    high_t: Ns,
}

/// Where a number stands, as seen from the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may well be the next one.
    Next,
    /// So many packets behind.
    Behind(u64),
    /// Far behind: before a wrap that is not understood yet.
    BeforeWrap,
    /// The step is not known yet.
    Unknown,
}

impl Line {
    fn start(key: u64, t: Ns) -> Self {
        Self { low: 0, high: 0, high_key: key, count: 1, first_t: t, high_t: t }
    }

    /// May be negative: a packet that belongs to the next line can have been counted on this one.
    fn missing(&self, step: u64) -> i64 {
        match step {
            0 => 0,
            step => (self.high.abs_diff(self.low) / step + 1) as i64 - self.count as i64,
        }
    }

    fn advance(&mut self, by: u64, key: u64, t: Ns) {
        self.high = self.high.saturating_add_unsigned(by);
        self.high_key = key;
        self.high_t = t;
        self.count += 1;
    }
}

impl Sequence {
    /// For a stream with this rule; `None` where keys have no order. `reach`: packets by which order may differ.
    pub fn new(rule: KeyRule, reach: u64) -> Option<Self> {
        Some(Self {
            range: rule.range()?,
            reach,
            wrap: None,
            step: 0,
            candidate: 0,
            votes: 0,
            wrap_seen: None,
            unsure: false,
            line: None,
            missing: 0,
            unplaced: 0,
            restarts: 0,
        })
    }

    /// A packet that was first seen at time `t`, at the head of the stream.
    pub fn lead(&mut self, key: u32, t: Ns) {
        let key = u64::from(key);
        let Some(line) = self.line else {
            self.line = Some(Line::start(key, t));
            return;
        };
        self.refute(key);
        if self.is_behind(&line, key) {
            return self.fill(key);
        }
        let forward = match self.wrap {
            Some(wrap) => (key + wrap - line.high_key) % wrap,
            None if key > line.high_key => key - line.high_key,
            None => self.learn_wrap(line.high_key, key).map_or(0, |wrap| wrap - line.high_key + key),
        };
        if forward > 0 && self.plausible(&line, forward, t) {
            self.vote(forward);
            if let Some(line) = &mut self.line {
                line.advance(forward, key, t);
            }
        } else if self.is_straggler(&line, key) {
            self.unplaced += 1;
            self.unsure = true;
            self.wrap_seen = self.wrap_seen.map(|w| Wrap { top: w.top.max(key), ..w });
        } else {
            self.vote(forward);
            self.restart(key, t);
        }
    }

    /// A packet that was first seen at a point that follows: it lies far behind the head, or was seen there a little early.
    pub fn follow(&mut self, key: u32, t: Ns) {
        let key = u64::from(key);
        let Some(line) = self.line else { return };
        self.refute(key);
        if self.wrap.is_none() && key < line.high_key && !self.is_behind(&line, key) {
            // Behind, or across the first wrap? Only the exact successor says.
            let exact = (line.high_key + self.step).checked_sub(key);
            self.wrap = exact.filter(|w| self.step > 0 && *w > line.high_key && self.is_known(w));
            self.unsure |= self.wrap.is_none();
        }
        let forward = match self.wrap {
            Some(wrap) => (key + wrap - line.high_key) % wrap,
            None => key.saturating_sub(line.high_key),
        };
        if self.is_behind(&line, key) || forward == 0 || forward > self.span(self.reach) {
            self.fill(key);
        } else if let Some(line) = &mut self.line {
            line.advance(forward, key, t);
        }
    }

    /// A packet that was first seen where it was dropped.
    pub fn dropped(&mut self, key: u32, t: Ns) {
        let Some(line) = self.line else {
            self.line = Some(Line::start(u64::from(key), t));
            return;
        };
        if self.step == 0 {
            // Where other points only follow, drops alone tell the step.
            self.vote(u64::from(key).saturating_sub(line.high_key));
        } else if self.wrap.is_none() {
            self.wrap = self.wrap_near(line.high_key, u64::from(key));
        }
        self.follow(key, t);
    }

    /// Counts a packet that lies behind the newest.
    fn fill(&mut self, key: u64) {
        let reach = self.span(self.reach) as i64;
        let at = self.line.and_then(|line| Some(line.high.saturating_sub_unsigned(self.back(&line, key)?)));
        match (&mut self.line, at) {
            (Some(line), Some(at)) if at >= line.low => line.count += 1,
            // Before the first: a point that follows still saw what had passed the others before the start.
            (Some(line), Some(at)) if at >= line.low - reach && line.high - line.low <= 4 * reach => {
                let lower = line.low.abs_diff(at);
                self.unsure = true;
                self.wrap_seen = self.wrap_seen.map(|w| Wrap { bottom: w.bottom.saturating_sub(lower), ..w });
                line.low = at;
                line.count += 1;
            }
            _ => self.unplaced += 1,
        }
    }

    /// Numbers that no point saw, at least.
    pub fn never_seen(&self) -> u64 {
        (self.missing + self.line.map_or(0, |line| line.missing(self.step)) - self.unplaced).max(0) as u64
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

    /// Packets from wrap to wrap, once learned.
    pub fn lap(&self) -> Option<u64> {
        Some((self.wrap? / self.step()?).max(1))
    }

    /// Packets from one number forward to another, at most a lap.
    pub(crate) fn distance(&self, from: u32, to: u32) -> Option<u64> {
        let (from, to, step) = (u64::from(from), u64::from(to), self.step()?);
        let forward = match self.wrap {
            Some(wrap) if from < wrap && to < wrap => (to + wrap - from) % wrap,
            _ => to.checked_sub(from)?,
        };
        (forward % step == 0).then_some(forward / step)
    }

    /// Where a number stands on the line.
    pub(crate) fn stands(&self, key: u32) -> Standing {
        let (Some(line), Some(step)) = (self.line, self.step()) else { return Standing::Unknown };
        let (newest, key) = (line.high_key, u64::from(key));
        // Another wrap where there was one before?
        let again = || {
            let wrap = self.wrap_seen.map(|w| w.before + step - w.after)?;
            (newest < wrap && key < wrap && wrap - newest + key <= self.span(self.reach)).then_some(wrap)
        };
        let (ahead, behind) = match self.wrap.or_else(|| self.wrap_near(newest, key)).or_else(again) {
            Some(wrap) if key < wrap && newest < wrap => ((key + wrap - newest) % wrap, (newest + wrap - key) % wrap),
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

    /// Whether a number is surely ahead of the newest, and not behind it by less than a lap.
    pub(crate) fn is_ahead(&self, key: u32) -> bool {
        self.lap().is_none_or(|lap| lap > 2 * self.reach) && self.stands(key) == Standing::Next
    }

    /// There is no number beyond the wrap. So the newest number is always below it.
    fn refute(&mut self, key: u64) {
        self.wrap = self.wrap.filter(|wrap| key < *wrap);
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

    fn back(&self, line: &Line, key: u64) -> Option<u64> {
        match self.wrap {
            Some(wrap) if key < wrap => Some((line.high_key + wrap - key) % wrap),
            _ => line.high_key.checked_sub(key),
        }
    }

    fn is_behind(&self, line: &Line, key: u64) -> bool {
        self.back(line, key).is_some_and(|back| back > 0 && back <= self.span(self.reach))
    }

    /// A packet from before a wrap that was not understood, overtaken by one from after it.
    fn is_straggler(&self, line: &Line, key: u64) -> bool {
        let near = |w: Wrap| w.before.abs_diff(key) <= self.span(self.reach);
        self.wrap.is_none() && line.count <= 2 * self.reach && self.wrap_seen.is_some_and(near) && key > line.high_key
    }

    fn plausible(&self, line: &Line, forward: u64, t: Ns) -> bool {
        if forward <= self.span(self.reach + 1) {
            return true;
        }
        let spread = line.high.abs_diff(line.low);
        let (so_far, since) = (line.high_t.saturating_sub(line.first_t), t.saturating_sub(line.high_t));
        // since / so_far >= forward / spread / 2, without dividing.
        so_far > 0
            && since > 0
            && line.count >= 8
            && i128::from(since).saturating_mul(2 * i128::from(spread)) >= i128::from(so_far) * i128::from(forward)
    }

    /// The wrap in use that may lie between these numbers.
    fn wrap_near(&self, before: u64, after: u64) -> Option<u64> {
        let fits = |w: &u64| *w > before && *w > after && w - before + after <= self.span(self.reach);
        self.known_wraps().find(fits)
    }

    fn learn_wrap(&mut self, before: u64, after: u64) -> Option<u64> {
        let exact =
            |before: u64, after: u64| (before + self.step).checked_sub(after).filter(|w| *w > before && *w > after);
        let near = |before: u64, after: u64| self.wrap_near(before, after);
        self.step()?;
        let now = (exact(before, after), near(before, after));
        let last = self.wrap_seen.map(|w| (exact(w.top, w.bottom), near(w.top, w.bottom)));
        let twice_exact = || now.0.filter(|w| last.and_then(|l| l.0) == Some(*w));
        let twice_near = || now.1.filter(|w| last.and_then(|l| l.1) == Some(*w));
        let wrap = now.0.filter(|w| self.is_known(w)).or_else(twice_exact).or_else(twice_near);
        let Some(wrap) = wrap else {
            (self.wrap_seen, self.unsure) = (Some(Wrap { before, after, top: before, bottom: after }), false);
            return None;
        };
        self.wrap = Some(wrap);
        // The wrap before was not understood, so a line ended there: what was lost across it can be said now.
        if let Some(seen) = self.wrap_seen.take().filter(|seen| seen.before < wrap && !self.unsure) {
            let forward = wrap - seen.before + seen.after;
            if forward <= self.span(self.reach + 1) {
                self.missing += (forward / self.step).saturating_sub(1) as i64;
                self.restarts = self.restarts.saturating_sub(1);
            }
        }
        Some(wrap)
    }

    fn vote(&mut self, forward: u64) {
        if forward == 0 || forward > self.range / 2 {
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

    fn restart(&mut self, key: u64, t: Ns) {
        self.missing += self.line.map_or(0, |line| line.missing(self.step));
        self.restarts += 1;
        self.line = Some(Line::start(key, t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(seq.lap(), Some(wrap / step));
        }
    }

    #[test]
    fn gaps_are_counted_within_a_lap_and_across_the_wrap() {
        let mut seq = sv();
        send(&mut seq, 0..9000, 1, 4000, &[5, 100, 101, 102, 3998, 3999, 4000, 8000]);
        assert_eq!(seq.never_seen(), 8);
        assert_eq!(seq.restarts(), 0);
    }

    #[test]
    fn a_gap_of_half_a_second_is_explained_by_time() {
        let mut seq = sv();
        send(&mut seq, 0..5000, 1, 4000, &[]);
        send(&mut seq, 7000..9000, 1, 4000, &[]);
        assert_eq!((seq.never_seen(), seq.restarts()), (2000, 0));
    }

    #[test]
    fn a_restart_of_the_sender_is_no_loss() {
        let mut seq = sv();
        send(&mut seq, 0..5000, 1, 4000, &[]);
        for n in 0..1000 {
            seq.lead(n + 3000, (5000 + Ns::from(n)) * MS);
        }
        assert_eq!((seq.never_seen(), seq.restarts()), (0, 1));
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
                    seq.lead(x >> (32 - 8 * len), t)
                } else {
                    seq.follow(x, t)
                }
            }
        }
    }
}
