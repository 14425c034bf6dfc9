//! Segment times over the course of a run, in bounded memory.

use crate::aggregate::Setup;
use crate::batch::Batch;
use crate::times::are_within;
use latpath_model::Ns;

/// Maximum number of slots per segment, and of all segments together (`ALL_SLOTS`).
const SLOTS: usize = 1 << 14;
const ALL_SLOTS: usize = 1 << 17;
/// Minimum number of slots per segment.
const MIN: usize = 64;

/// The times of one segment in one slot, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Minimum.
    pub min: Ns,
    /// Maximum.
    pub max: Ns,
    /// Number of times.
    pub count: u64,
    sum: Ns,
}

impl Default for Slot {
    fn default() -> Self {
        Self { min: Ns::MAX, max: Ns::MIN, count: 0, sum: 0 }
    }
}

impl Slot {
    #[inline]
    fn add(&mut self, time: Ns) {
        (self.min, self.max) = (self.min.min(time), self.max.max(time));
        self.count += 1;
        // Saturates only if a faulty clock yields times near the end of the range.
        self.sum = self.sum.saturating_add(time);
    }

    /// Adds several times whose minimum and maximum are known.
    fn add_all(&mut self, times: &[Ns], (min, max): (Ns, Ns)) {
        // The sum of up to `PIECE` times below this cannot overflow.
        const LARGE: Ns = 1 << 48;
        if min <= -LARGE || max >= LARGE {
            return times.iter().for_each(|time| self.add(*time));
        }
        (self.min, self.max) = (self.min.min(min), self.max.max(max));
        self.count += times.len() as u64;
        self.sum = self.sum.saturating_add(times.iter().fold(0, |sum: Ns, time| sum.wrapping_add(*time)));
    }

    fn merge(&mut self, other: &Self) {
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Arithmetic mean; `None` without packets.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

/// Minimum, mean and maximum time of each segment, in slots of equal length over a run. A packet belongs to the slot in
/// which it passed the segment's first point. Merging several objects with the same setup yields the figures of all
/// their packets.
#[derive(Clone, Debug)]
pub struct OverTime {
    streams: usize,
    /// The charted segments: index in the setup, and index of the point at which the segment starts.
    charted: Vec<(usize, usize)>,
    begin: Ns,
    slot_ns: Ns,
    slots: usize,
    segments: Vec<Vec<Slot>>,
    /// Buffer: times at which the packets of the batch being added entered a segment.
    when: Vec<Ns>,
}

impl OverTime {
    /// Empty figures for these segments of the setup, over the interval from `begin` to `end` on the run's timeline.
    /// Journeys of streams beyond the setup are ignored.
    pub fn new(setup: &Setup, charted: &[usize], begin: Ns, end: Ns) -> Self {
        let slots = (ALL_SLOTS / charted.len().max(1)).clamp(MIN, SLOTS);
        let span = end.saturating_sub(begin).saturating_add(1).max(1);
        let slot_ns = span / slots as Ns + Ns::from(span % slots as Ns > 0);
        Self {
            streams: setup.streams,
            charted: charted.iter().map(|segment| (*segment, setup.segments[*segment].from.into())).collect(),
            begin,
            slot_ns,
            slots,
            segments: vec![vec![Slot::default(); slots]; charted.len()],
            when: Vec::new(),
        }
    }

    /// Adds a batch.
    pub fn add(&mut self, batch: &Batch) {
        if usize::from(batch.stream) >= self.streams {
            return;
        }
        let (begin, slot_ns, last) = (self.begin, self.slot_ns, self.slots - 1);
        for ((segment, from), slots) in self.charted.iter().zip(&mut self.segments) {
            let crossings = batch.crossings(*segment);
            let when = crossings.when(&batch.rows.t[*from], &mut self.when);
            // Most packets are in the same slot as the previous packet.
            let (mut at, mut first, mut behind) = (0, Ns::MAX, Ns::MIN);
            for (places, extremes) in crossings.pieces() {
                let (when, times) = (&when[places.clone()], &crossings.times[places]);
                if are_within(when, first, behind) {
                    slots[at].add_all(times, extremes);
                    continue;
                }
                for (t, time) in when.iter().zip(times) {
                    if *t < first || *t >= behind {
                        at = ((t.saturating_sub(begin).max(0) / slot_ns) as usize).min(last);
                        first = begin.saturating_add((at as Ns).saturating_mul(slot_ns));
                        behind = first.saturating_add(slot_ns);
                    }
                    slots[at].add(*time);
                }
            }
        }
    }

    /// Adds the times of another object with the same setup.
    pub fn merge(&mut self, other: &Self) {
        for (own, others) in self.segments.iter_mut().zip(&other.segments) {
            own.iter_mut().zip(others).for_each(|(own, others)| own.merge(others));
        }
    }

    /// Start of the first slot, on the run's timeline, ns.
    pub fn begin(&self) -> Ns {
        self.begin
    }

    /// Length of a slot, ns.
    pub fn slot_ns(&self) -> Ns {
        self.slot_ns
    }

    /// The slots of each segment.
    pub fn segments(&self) -> &[Vec<Slot>] {
        &self.segments
    }
}
