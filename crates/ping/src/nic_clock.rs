//! The offset of a NIC clock at any moment of a run, interpolated from the readings before and after.

use crate::wire::NicReading;
use latpath_clock::phc::SWING_PPB;
use latpath_model::Ns;
use std::collections::VecDeque;

/// Number of readings kept: as many as welcomes carry in several minutes.
const KEPT: usize = 1024;
/// Number of readings considered on each side of a moment.
const AROUND: usize = 6;
/// Rounding error of divisions, ns.
const ROUNDING: i128 = 2;

/// Readings of one clock in order, and the intervals in which its offset is unknown.
#[derive(Clone, Debug, Default)]
pub struct NicTrack {
    readings: VecDeque<NicReading>,
    /// Intervals in which the clock was set.
    dark: VecDeque<(Ns, Ns)>,
}

/// PHC − `CLOCK_MONOTONIC` at a moment, ± `bound`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    pub ns: Ns,
    /// Error bound, ns.
    pub bound: Ns,
}

impl NicTrack {
    /// Adds a reading; ignores one that is not later than the last.
    pub fn add(&mut self, clock: NicReading) {
        if self.readings.back().is_some_and(|last| clock.at <= last.at) {
            return;
        }
        self.readings.push_back(clock);
        if self.readings.len() > KEPT {
            self.readings.pop_front();
        }
    }

    /// Marks an interval in which the clock was set, so that its offset is unknown.
    pub fn darken(&mut self, from: Ns, to: Ns) {
        self.dark.push_back((from, to));
        if self.dark.len() > KEPT {
            self.dark.pop_front();
        }
    }

    /// Latest reading.
    pub fn last(&self) -> Option<&NicReading> {
        self.readings.back()
    }

    /// Time of the reading that is `back` readings before the latest one.
    pub fn read_at(&self, back: usize) -> Option<Ns> {
        let i = self.readings.len().checked_sub(back + 1)?;
        Some(self.readings[i].at)
    }

    /// The offset at a moment, by linear interpolation between two readings. An undisturbed clock deviates from the
    /// line by at most a quarter of the interval times the change of its rate. Of the readings around the moment, the
    /// pair with the smallest bound is used, because delayed readings are imprecise. The bound includes the drift
    /// during `span` after the moment. `None` if the clock was set around the moment, or if there is no reading before
    /// or after it.
    pub fn at(&self, moment: Ns, span: Ns) -> Option<Offset> {
        let after = self.readings.partition_point(|r| r.at <= moment);
        let is_dark = |from: Ns, to: Ns| self.dark.iter().any(|(a, b)| from < *b && *a < to);
        let bent = |from: Ns, to: Ns| (i128::from(to) - i128::from(from)) * i128::from(SWING_PPB) / 4_000_000_000;
        let bound = |r: &NicReading| i128::from(r.bound.max(0));
        let before = self.readings.range(..after).rev().take(AROUND).filter(|r| !is_dark(r.at, moment));
        let a = before.min_by_key(|r| bound(r) + bent(r.at, moment))?;
        let later = self.readings.range(after..).take(AROUND).filter(|r| !is_dark(moment, r.at));
        let b = later.min_by_key(|r| bound(r) + bent(moment, r.at))?;
        let (whole, part) = (i128::from(b.at) - i128::from(a.at), i128::from(moment) - i128::from(a.at));
        let rise = i128::from(b.offset) - i128::from(a.offset);
        let moved = rise * part / whole.max(1);
        let drifted = rise.abs() * i128::from(span.max(0)) / whole.max(1);
        let bound = bound(a).max(bound(b)) + bent(a.at, b.at) + drifted + ROUNDING;
        Some(Offset { ns: narrow(i128::from(a.offset) + moved), bound: narrow(bound) })
    }

    /// The offset at a moment, interpolated as by [`Self::at`] if possible, otherwise extrapolated from the latest
    /// reading by its drift. The bound of an extrapolated offset is that of the reading alone.
    pub fn guess(&self, moment: Ns) -> Option<Offset> {
        self.at(moment, 0).or_else(|| {
            let last = self.readings.back()?;
            let since = i128::from(moment) - i128::from(last.at);
            let moved = since * i128::from(last.drift_ppb) / 1_000_000_000;
            Some(Offset { ns: narrow(i128::from(last.offset) + moved), bound: last.bound.max(0) })
        })
    }
}

fn narrow(ns: i128) -> Ns {
    Ns::try_from(ns).unwrap_or(if ns < 0 { Ns::MIN / 4 } else { Ns::MAX / 4 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(at: Ns, offset: Ns) -> NicReading {
        NicReading { index: 0, at, offset, bound: 100, drift_ppb: 0 }
    }

    #[test]
    fn between_two_readings_a_drifting_clock_is_where_it_is() {
        let mut track = NicTrack::default();
        (0..5).for_each(|i| track.add(reading(i * 1_000_000, 7_000 + i * 30)));
        let at = track.at(2_500_000, 1_000_000).unwrap();
        assert_eq!((at.ns, at.bound), (7_075, 132), "30 ppm: 75 ns after 2.5 ms, and 30 ns more in 1 ms");
        assert_eq!(track.at(4_000_000, 0), None, "nothing was read after it");
        assert_eq!(track.at(-1, 0), None);
        assert_eq!(track.guess(4_000_000).map(|o| o.ns), Some(7_120));
    }

    #[test]
    fn around_a_setting_of_the_clock_nothing_is_known() {
        let mut track = NicTrack::default();
        for (at, offset) in [(0, 0), (10, 0), (20, 5_000), (30, 5_000)] {
            track.add(reading(at, offset));
        }
        track.darken(10, 20);
        assert_eq!(track.at(5, 0).map(|o| o.ns), Some(0));
        assert_eq!(track.at(15, 0), None);
        assert_eq!(track.at(25, 0).map(|o| o.ns), Some(5_000));
    }

    #[test]
    fn a_delayed_reading_is_skipped() {
        let mut track = NicTrack::default();
        for i in 0..6 {
            let bound = if i == 2 { 200_000 } else { 100 };
            track.add(NicReading { bound, ..reading(i * 50_000_000, 7_000) });
        }
        let at = track.at(110_000_000, 0).unwrap();
        assert!(at.ns == 7_000 && at.bound < 200, "{at:?}");
    }

    proptest! {
        #[test]
        fn invented_readings_of_a_peer_are_handled(
            all in prop::collection::vec((any::<Ns>(), any::<Ns>(), any::<Ns>(), any::<i64>()), 0..20), moment: Ns
        ) {
            let mut track = NicTrack::default();
            for (at, offset, bound, drift_ppb) in all {
                track.add(NicReading { index: 0, at, offset, bound, drift_ppb });
            }
            track.darken(moment, moment.saturating_add(5));
            let _ = (track.at(moment, moment), track.guess(moment), track.read_at(2));
        }
    }
}
