//! Restarts of the sender: its numbers go on elsewhere.

use super::place::Offset;
use super::states::States;
use super::stretch::Stretch;
use super::Sequence;
use crate::Ns;

/// Packets after which a restart of the sender is certain: until then the stream may return to where it was.
const RESTART_SURE: u64 = 8;

impl Sequence {
    pub(super) fn begin(&mut self, key: u64, t: Ns) {
        self.stretch = Some(Stretch::start(key, t));
        (self.has_zero, self.has_one) = (key == 0 && self.first == 0, key == 1);
        self.silence = None;
    }

    pub(super) fn restart(&mut self, key: u64, t: Ns) {
        self.forget_left();
        self.left = self.stretch;
        self.restarts += 1;
        self.begin(key, t);
    }

    pub(super) fn forget_left(&mut self) {
        self.missing += self.left.take().map_or(0, |left| left.missing(self.step));
    }

    /// A packet that came far too late looks like a restart, until the stream goes on where it was.
    pub(super) fn resume(&mut self, key: u64, t: Ns) {
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
