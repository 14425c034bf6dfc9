//! Restarts of the sender: its numbers continue from an unrelated value.

use super::epoch::Epoch;
use super::place::Offset;
use super::states::States;
use super::Sequence;
use crate::Ns;

/// Number of packets after which a restart is certain; until then the stream may return to its previous numbers.
const RESTART_SURE: u64 = 8;

impl Sequence {
    pub(super) fn begin(&mut self, key: u64, t: Ns) {
        self.epoch = Some(Epoch::start(key, t));
        (self.has_zero, self.has_one) = (key == 0 && self.first == 0, key == 1);
        self.silence = None;
    }

    pub(super) fn restart(&mut self, key: u64, t: Ns) {
        self.forget_previous();
        self.previous = self.epoch;
        self.restarts += 1;
        self.begin(key, t);
    }

    pub(super) fn forget_previous(&mut self) {
        self.missing += self.previous.take().map_or(0, |previous| previous.missing(self.step));
    }

    /// Undoes a restart if the stream continues its previous numbers: a single packet was very late.
    pub(super) fn resume(&mut self, key: u64, t: Ns) {
        let (Some(previous), Some(epoch)) = (self.previous, self.epoch) else { return };
        if epoch.count > RESTART_SURE {
            return self.forget_previous();
        }
        let reach = self.span(self.reach);
        let goes_on = |from: &Epoch| match self.in_states {
            true => matches!(States::offset(from, key as u32, t), Offset::Ahead(n, _) if n <= reach),
            false => self.forward(from.high_key, key).is_some_and(|n| (1..=reach).contains(&n)),
        };
        let sure = epoch.count == 1 || !self.is_straggler(&epoch, key);
        if sure && goes_on(&previous) && !goes_on(&epoch) && !self.is_behind(&epoch, key, t) {
            self.unplaced += epoch.count as i64;
            self.restarts = self.restarts.saturating_sub(1);
            (self.epoch, self.previous) = (Some(previous), None);
        }
    }
}
