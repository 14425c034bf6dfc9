//! A compact histogram, for when there are many of them, such as one per second of a recording.

use crate::layout;
use latpath_model::Ns;

/// Base-2 logarithm of the number of buckets per doubling: 64 buckets, whose edges are 1.6 % apart.
const BITS: u32 = 6;

/// Number of buckets for values of 0 and more; as many precede them for negative values.
const PLACES: usize = layout::index::<BITS>(u64::MAX) + 1;

/// Bucket index, ascending with the bucket's values.
pub type Place = i16;

/// Index of a value's bucket.
#[inline]
pub fn place_of(v: Ns) -> Place {
    match layout::index::<BITS>(v.unsigned_abs()) as Place {
        place if v < 0 => -1 - place,
        place => place,
    }
}

/// Counts of non-empty buckets, 6 bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compact {
    places: Vec<Place>,
    counts: Vec<u32>,
}

impl Compact {
    /// Number of values in buckets above `place`.
    pub fn count_above(&self, place: Place) -> u64 {
        let at = self.places.partition_point(|p| *p <= place);
        self.counts[at..].iter().map(|n| u64::from(*n)).sum()
    }

    /// Non-empty buckets with their counts, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (Place, u32)> + '_ {
        self.places.iter().copied().zip(self.counts.iter().copied())
    }
}

/// Counts values into one [`Compact`] after another.
#[derive(Clone, Debug)]
pub struct Counter {
    counts: Vec<u32>,
    /// Indexes of the first and last bucket that may be non-empty.
    hit: Option<(usize, usize)>,
}

impl Default for Counter {
    fn default() -> Self {
        Self { counts: vec![0; 2 * PLACES], hit: None }
    }
}

impl Counter {
    /// Adds a value.
    #[inline]
    pub fn record(&mut self, v: Ns) {
        self.add(place_of(v), 1);
    }

    /// Adds many values, all within `least..=greatest`: equivalent to recording each, but faster.
    pub fn record_all(&mut self, values: &[Ns], least: Ns, greatest: Ns) {
        if least < 0 {
            return values.iter().for_each(|v| self.record(*v));
        }
        self.add(place_of(least), 0);
        self.add(place_of(greatest), 0);
        let first = layout::index::<BITS>(least as u64);
        let counts = &mut self.counts[PLACES + first..=PLACES + layout::index::<BITS>(greatest as u64)];
        for v in values {
            let count = &mut counts[layout::index::<BITS>(*v as u64) - first];
            *count = count.saturating_add(1);
        }
    }

    #[inline]
    fn add(&mut self, place: Place, n: u32) {
        let at = (i32::from(place) + PLACES as i32) as usize;
        self.counts[at] = self.counts[at].saturating_add(n);
        self.hit = Some(self.hit.map_or((at, at), |(from, to)| (from.min(at), to.max(at))));
    }

    /// Adds the counts of a [`Compact`].
    pub fn add_all(&mut self, counted: &Compact) {
        counted.buckets().for_each(|(place, n)| self.add(place, n));
    }

    /// Returns the counts, and resets them.
    pub fn take(&mut self) -> Compact {
        let Some((from, to)) = self.hit.take() else { return Compact::default() };
        let mut all = Compact::default();
        for (at, count) in self.counts.iter_mut().enumerate().take(to + 1).skip(from).filter(|(_, n)| **n > 0) {
            all.places.push((at as i32 - PLACES as i32) as Place);
            all.counts.push(std::mem::take(count));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Ns> {
        (0_u32..64, any::<Ns>()).prop_map(|(bits, v)| v >> bits.min(63))
    }

    proptest! {
        #[test]
        fn a_greater_value_has_no_lesser_place(a in value(), b in value()) {
            prop_assert!(a > b || place_of(a) <= place_of(b));
        }

        #[test]
        fn values_above_a_place_are_counted(values in prop::collection::vec(value(), 0..60), at in value(), cut in any::<prop::sample::Index>()) {
            let mut counter = Counter::default();
            let (first, rest) = values.split_at(cut.index(values.len() + 1));
            first.iter().for_each(|v| counter.record(*v));
            let before = counter.take();
            prop_assert_eq!(counter.take(), Compact::default());
            if let (Some(least), Some(greatest)) = (rest.iter().min(), rest.iter().max()) {
                counter.record_all(rest, *least, *greatest);
            }
            counter.add_all(&before);
            let above = values.iter().filter(|v| place_of(**v) > place_of(at)).count();
            prop_assert_eq!(counter.take().count_above(place_of(at)), above as u64);
        }
    }
}
