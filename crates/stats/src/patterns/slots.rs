//! How a recording is cut into equal slots.

use latpath_model::Ns;

const SECOND: Ns = 1_000_000_000;
/// Maximum slots of a recording.
const MOST: Ns = 1 << 14;
/// Slots of a recording with fewer seconds than this; none is shorter than [`LEAST`].
const FEW: Ns = 60;
const LEAST: Ns = 20_000_000;

/// Slots of one second each; longer ones in a recording of more than 16,384 seconds, shorter ones in one of less than a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    begin: Ns,
    length: Ns,
    count: usize,
}

impl Slots {
    /// Slots for a recording from one instant to another.
    pub fn of(first: Ns, last: Ns) -> Self {
        let span = last.saturating_sub(first).max(0).saturating_add(1);
        let length = match span / SECOND {
            0..FEW => (span / FEW).max(LEAST),
            seconds => (seconds / MOST + 1).saturating_mul(SECOND),
        };
        Self { begin: first, length, count: (span / length + 1) as usize }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn length(&self) -> Ns {
        self.length
    }

    /// The slot of an instant.
    #[inline]
    pub fn at(&self, t: Ns) -> usize {
        ((t.saturating_sub(self.begin).max(0) / self.length) as usize).min(self.count - 1)
    }

    pub fn begin(&self, slot: usize) -> Ns {
        self.begin.saturating_add((slot as Ns).saturating_mul(self.length))
    }
}
