//! Divides a recording into equal slots.

use latpath_model::Ns;

const SECOND: Ns = 1_000_000_000;
/// Maximum number of slots of a recording.
const MAX: Ns = 1 << 14;
/// Number of slots in a shorter recording; each has at least [`MIN`] ns.
const FEW: Ns = 60;
const MIN: Ns = 20_000_000;

/// Maximum number of slots in a continuing recording: for slots shorter than a second, and for longer ones.
const GROWING: (Ns, Ns) = (300, 4096);

/// Divides a recording into slots of one second; longer ones if it exceeds 16,384 seconds, shorter ones if it is
/// shorter than a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    begin: Ns,
    length: Ns,
    count: usize,
}

impl Slots {
    /// Slots for a recording between these two times.
    pub fn of(first: Ns, last: Ns) -> Self {
        let span = last.saturating_sub(first).max(0).saturating_add(1);
        let length = match span / SECOND {
            0..FEW => (span / FEW).max(MIN),
            seconds => (seconds / MAX + 1).saturating_mul(SECOND),
        };
        Self { begin: first, length, count: (span / length + 1) as usize }
    }

    /// The first slot of a recording that starts at `first` and continues.
    pub fn growing(first: Ns) -> Self {
        Self { begin: first, length: MIN, count: 1 }
    }

    /// Maximum number of slots of a continuing recording.
    pub const MAX_GROWING: usize = GROWING.1 as usize;

    /// Adds slots up to a time. If there would be more than the maximum, slots become longer. Returns the number of old
    /// slots per new slot.
    pub fn grow(&mut self, t: Ns) -> usize {
        let span = t.saturating_sub(self.begin).max(0);
        let mut joined: usize = 1;
        while span / self.length >= if self.length < SECOND { GROWING.0 } else { GROWING.1 } {
            let factor = if self.length == SECOND / 10 || self.length >= SECOND { 2 } else { 5 };
            self.length = self.length.saturating_mul(factor);
            joined = joined.saturating_mul(factor as usize);
        }
        self.count = self.count.div_ceil(joined).max((span / self.length) as usize + 1);
        joined
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn length(&self) -> Ns {
        self.length
    }

    /// Index of the slot that contains a time.
    #[inline]
    pub fn at(&self, t: Ns) -> usize {
        ((t.saturating_sub(self.begin).max(0) / self.length) as usize).min(self.count - 1)
    }

    pub fn begin(&self, slot: usize) -> Ns {
        self.begin.saturating_add((slot as Ns).saturating_mul(self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_continuing_recording_are_joined_beyond_the_maximum() {
        let mut slots = Slots::growing(7);
        let mut lengths = Vec::new();
        for second in 0..100_000 {
            let before = slots;
            let joined = slots.grow(7 + second * SECOND);
            assert_eq!(slots.length(), before.length() * joined as Ns, "{second} s");
            assert!(slots.count() <= Slots::MAX_GROWING && slots.at(7 + second * SECOND) == slots.count() - 1);
            lengths.push(slots.length() / 1_000_000);
        }
        lengths.dedup();
        assert_eq!(lengths, [20, 100, 200, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]);
        slots.grow(Ns::MAX);
        assert!(slots.count() <= Slots::MAX_GROWING, "a broken clock takes no memory");
    }
}
