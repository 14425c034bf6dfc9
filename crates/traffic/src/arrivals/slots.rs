//! The slots of a schedule, and how many frames arrive in them.

use latpath_model::Ns;
use std::collections::BTreeMap;

/// Number of cycles from which on late frames are counted together.
pub const MAX_CYCLES: u64 = 1000;

/// The slot of each frame: it repeats every cycle, from `from` to `to` (exclusive) after the frame's send time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRule {
    /// Length of a cycle, ns, above 0.
    pub cycle: Ns,
    /// Start of the slot after the send time, ns.
    pub from: Ns,
    /// End of the slot after the send time, ns; at most a cycle after its start.
    pub to: Ns,
}

/// Where a frame arrived relative to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotClass {
    /// Before its slot.
    Early,
    /// In its slot.
    InSlot,
    /// After its slot, by this many whole cycles: 0 after its slot but before that of the next cycle.
    Late(u64),
}

impl SlotRule {
    /// How far outside its slot a frame arrived, ns: 0 in the slot, negative before it, positive from its end on.
    pub fn error(&self, latency: Ns) -> Ns {
        match self.class(latency) {
            SlotClass::InSlot => 0,
            SlotClass::Early => latency.saturating_sub(self.from),
            SlotClass::Late(_) => latency.saturating_sub(self.to).saturating_add(1),
        }
    }

    /// Classifies a frame that arrived this long after its send time.
    pub fn class(&self, latency: Ns) -> SlotClass {
        let since = latency.saturating_sub(self.from);
        if since < 0 {
            SlotClass::Early
        } else if since < self.to - self.from {
            SlotClass::InSlot
        } else {
            SlotClass::Late((since / self.cycle).unsigned_abs())
        }
    }
}

/// Number of frames by their arrival relative to the slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Frames in their slot.
    pub in_slot: u64,
    /// Frames before their slot.
    pub early: u64,
    /// Frames after their slot, by whole cycles; those late by [`MAX_CYCLES`] or more are counted together.
    pub late: BTreeMap<u64, u64>,
    /// Frames whose class could differ because of the clock error.
    pub uncertain: u64,
}

impl SlotCounts {
    /// Adds a frame that arrived this long after its send time, by clocks that differ by at most `bound`.
    pub fn note(&mut self, rule: &SlotRule, latency: Ns, bound: Ns) {
        let class = rule.class(latency);
        match class {
            SlotClass::InSlot => self.in_slot += 1,
            SlotClass::Early => self.early += 1,
            SlotClass::Late(cycles) => *self.late.entry(cycles.min(MAX_CYCLES)).or_default() += 1,
        }
        let [first, last] = [latency.saturating_sub(bound), latency.saturating_add(bound)].map(|t| rule.class(t));
        self.uncertain += u64::from(bound > 0 && (first != class || last != class));
    }

    /// Number of late frames.
    pub fn late(&self) -> u64 {
        self.late.values().sum()
    }

    /// Number of all frames.
    pub fn total(&self) -> u64 {
        self.in_slot + self.early + self.late()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ends_of_a_slot_are_exact() {
        let rule = SlotRule { cycle: 1000, from: 50, to: 150 };
        let classes = [-10_000, 49, 50, 149, 150, 1049, 1050, 2049, 2050, Ns::MAX, Ns::MIN].map(|t| rule.class(t));
        use SlotClass::{Early, InSlot, Late};
        let forever = Late((Ns::MAX as u64 - 50) / 1000);
        let errors = [49, 50, 149, 150, 1049].map(|t| rule.error(t));
        assert_eq!(errors, [-1, 0, 0, 1, 900]);
        assert_eq!(
            classes,
            [Early, Early, InSlot, InSlot, Late(0), Late(0), Late(1), Late(1), Late(2), forever, Early]
        );
    }

    #[test]
    fn a_frame_near_an_end_of_its_slot_is_uncertain_within_the_clocks_bound() {
        let rule = SlotRule { cycle: 1000, from: 0, to: 100 };
        let mut counts = SlotCounts::default();
        for latency in [-11, -10, -5, 0, 9, 10, 89, 90, 99, 100, 109, 110, 989, 990, 1009, 1010] {
            counts.note(&rule, latency, 10);
        }
        // Uncertain: -10, -5, 0, 9; 90, 99, 100, 109; 990, 1009.
        assert_eq!(counts.uncertain, 10);
        assert_eq!(counts.total(), 16);
    }

    /// Classifies 10^6 frames whose slots are known: some in each class, with timestamps spread over it.
    #[test]
    fn the_classes_of_a_million_frames_are_the_true_ones() {
        let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut any = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for (cycle, from, to) in [(500_000, 0, 500_000), (1_000_000, 20_000, 93_001), (999_983, -7, 12_345), (10, 3, 4)]
        {
            let (rule, mut counts, mut truth) =
                (SlotRule { cycle, from, to }, SlotCounts::default(), SlotCounts::default());
            let (slot, between) = ((to - from) as u64, (cycle - (to - from)) as u64);
            for _ in 0..250_000 {
                let latency = match any(4) {
                    0 => {
                        truth.early += 1;
                        from - 1 - any(5_000_000) as Ns
                    }
                    1 if between > 0 => {
                        *truth.late.entry(0).or_default() += 1;
                        to + any(between) as Ns
                    }
                    2 => {
                        let cycles = 1 + any(1100);
                        *truth.late.entry(cycles.min(MAX_CYCLES)).or_default() += 1;
                        from + cycles as Ns * cycle + any(cycle as u64) as Ns
                    }
                    _ => {
                        truth.in_slot += 1;
                        from + any(slot) as Ns
                    }
                };
                counts.note(&rule, latency, 0);
            }
            assert_eq!(counts, truth, "{rule:?}");
            assert_eq!(counts.total(), 250_000);
        }
    }

    proptest! {
        #[test]
        fn a_cycle_later_is_late_by_one_more(
            cycle in 1..1_000_000_i64, from in -1_000_000..1_000_000_i64, share in 0.0..=1.0_f64, latency in any::<i32>(),
        ) {
            let to = from + ((cycle as f64 * share) as Ns).max(1).min(cycle);
            let (rule, latency) = (SlotRule { cycle, from, to }, Ns::from(latency));
            match (rule.class(latency), rule.class(latency + cycle)) {
                (SlotClass::Late(n), later) => prop_assert_eq!(later, SlotClass::Late(n + 1)),
                (SlotClass::InSlot, later) => prop_assert_eq!(later, SlotClass::Late(1)),
                (SlotClass::Early, later) => prop_assert!(later <= SlotClass::Late(0)),
            }
        }
    }
}
