//! An epoch: the numbers between two restarts of the sender, unwrapped.

use super::states::States;
use crate::Ns;

/// Unwrapped numbers between two restarts, relative to the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    pub(super) low: i64,
    pub(super) high: i64,
    pub(super) high_key: u64,
    pub(super) count: u64,
    pub(super) high_t: Ns,
    pub(super) states: States,
}

impl Epoch {
    pub(super) fn start(key: u64, t: Ns) -> Self {
        Self { low: 0, high: 0, high_key: key, count: 1, high_t: t, states: States::default() }
    }

    /// Number of missing packets. Negative if packets of the next epoch were counted here.
    pub(super) fn missing(&self, step: u64) -> i64 {
        match step {
            0 => 0,
            1 => (self.high.abs_diff(self.low) + 1) as i64 - self.count as i64,
            step => (self.high.abs_diff(self.low) / step + 1) as i64 - self.count as i64,
        }
    }

    pub(super) fn advance(&mut self, by: u64, key: u64, t: Ns) {
        self.states.advance(self.high_key as u32, key as u32, self.high, by);
        self.high = self.high.saturating_add_unsigned(by);
        self.high_key = key;
        self.high_t = t;
        self.count += 1;
    }
}
