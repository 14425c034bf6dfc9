//! Advances to newest packets, and handles silences, whose duration determines whether whole wraps are missing.

use super::epoch::Epoch;
use super::Sequence;
use crate::Ns;

/// A silence in which whole wraps were counted as missing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Time of the packet before the silence, and its position in the epoch (`high`).
    pub(super) since: Ns,
    pub(super) high: i64,
    /// Numbers in the missing wraps, and the packets (`lost`) and gaps that were counted for them.
    pub(super) numbers: i64,
    pub(super) lost: i64,
    pub(super) gaps: u64,
    /// [`Sequence::steady`] before the silence.
    pub(super) steady: (Ns, i64),
    /// Deadline for the stream to catch up; after it, the packets count as lost.
    pub(super) until: Ns,
}

impl Sequence {
    /// Advances to a packet that is newer than all previous ones.
    pub(super) fn advance(&mut self, newest: &Epoch, forward: u64, rounds: u64, key: u64, t: Ns) {
        let packets = |numbers: u64| numbers.saturating_sub(1).checked_div(self.step).unwrap_or(0);
        let missing = packets(forward);
        let passed = t.saturating_sub(newest.high_t).max(0);
        if rounds > 0 {
            let counted = packets(forward.saturating_sub(rounds).max(1));
            // A second silence while the stream catches up extends the first.
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
        if let Some(epoch) = &mut self.epoch {
            epoch.advance(forward, key, t);
        }
        if missing == 0 && !self.in_states {
            self.steady = (self.steady.0.saturating_add(passed), self.steady.1.saturating_add_unsigned(forward));
            self.catch_up(newest.high.saturating_add_unsigned(forward), t);
        }
    }

    /// Reverts the losses of a silence if the stream's number, without the wraps that were counted as missing, is less
    /// than half a wrap behind the number that the time predicts.
    pub(super) fn catch_up(&mut self, high: i64, t: Ns) {
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
}

/// How many numbers are sent in `time`, if `numbers` numbers took the time `took`; 0 if unknown.
pub(super) fn numbers_in(time: Ns, (took, numbers): (Ns, i64)) -> i64 {
    if took <= 0 || numbers <= 0 {
        return 0;
    }
    let time = time.max(0);
    // The 64-bit division is much faster and nearly always suffices.
    let counted = time.checked_mul(numbers).map(|product| product / took);
    let exact = || (i128::from(time) * i128::from(numbers) / i128::from(took)).min(1 << 40) as i64;
    counted.unwrap_or_else(exact).min(1 << 40)
}
