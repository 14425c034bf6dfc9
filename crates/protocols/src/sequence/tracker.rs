//! Counts lost, duplicate and late packets of one stream at one point.

use super::{Sequence, REACH};
use crate::{KeyRule, Ns};
use std::collections::VecDeque;

/// Time for which packets are remembered to recognise duplicates, ns: an equal number after this time is a new packet.
const RETAIN: Ns = 3_000_000_000;

/// Counts of one stream at one point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of packets received, including duplicates.
    pub received: u64,
    /// Lower bound of the number of lost packets; a late packet reduces it again.
    pub lost: u64,
    /// Number of gaps in the sequence.
    pub gaps: u64,
    /// Number of duplicate packets.
    pub duplicates: u64,
    /// Number of packets that arrived after a later one (RFC 4737, reordered).
    pub out_of_order: u64,
    /// Number of restarts of the publisher.
    pub restarts: u64,
}

/// Counts the packets of one stream at one point, with the same rules as the joiner.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    sequence: Sequence,
    /// The latest packets, without duplicates.
    recent: VecDeque<(u32, Ns)>,
    received: u64,
    duplicates: u64,
    out_of_order: u64,
}

impl Tracker {
    /// Creates a tracker for streams with this rule; `None` for hashes, which have no order.
    pub fn new(rule: KeyRule) -> Option<Self> {
        Some(Self { sequence: Sequence::new(rule, REACH)?, ..Self::default() })
    }

    /// Sets the number at which the sequence wraps, if known; ignores numbers outside the field's range.
    pub fn with_wrap(mut self, wrap: Option<u32>) -> Self {
        self.sequence.wrap = wrap.map(u64::from).filter(|w| (1..=self.sequence.range).contains(w));
        self
    }

    /// Number at which the sequence wraps, once learned.
    pub fn wrap(&self) -> Option<u64> {
        self.sequence.wrap()
    }

    /// The counts so far.
    pub fn totals(&self) -> Totals {
        Totals {
            received: self.received,
            lost: self.sequence.never_seen(),
            gaps: self.sequence.gaps(),
            duplicates: self.duplicates,
            out_of_order: self.out_of_order,
            restarts: self.sequence.restarts(),
        }
    }

    /// Counts a packet with this key that arrived at `t` (any monotonic clock). `step`: how many numbers it spans
    /// according to its frame (samples); 0 if unknown.
    pub fn note(&mut self, t: Ns, key: u32, step: u16) {
        self.received += 1;
        if self.sequence.step == 0 {
            self.sequence.step = step.into();
        }
        let near = self.sequence.cycle().map_or(REACH, |cycle| REACH.min(cycle / 2)) as usize;
        let same = |(k, at): &(u32, Ns)| *k == key && t.saturating_sub(*at) <= RETAIN;
        if !self.sequence.is_next(key) && self.recent.iter().rev().take(near).any(same) {
            self.duplicates += 1;
            return;
        }
        if self.recent.len() == REACH as usize {
            self.recent.pop_front();
        }
        self.recent.push_back((key, t));
        self.out_of_order += u64::from(!self.sequence.lead(key, t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const STEP: Ns = 250_000;

    fn sv(wrap: Option<u32>) -> Tracker {
        Tracker::new(KeyRule::SMP_CNT).unwrap().with_wrap(wrap)
    }

    /// The totals after each packet.
    fn run(tracker: &mut Tracker, counts: impl IntoIterator<Item = u16>) -> Vec<Totals> {
        let mut note = |(i, count): (usize, u16)| {
            tracker.note(i as Ns * STEP, count.into(), 1);
            tracker.totals()
        };
        counts.into_iter().enumerate().map(&mut note).collect()
    }

    #[test]
    fn a_full_stream_has_no_losses_and_shows_its_wrap() {
        let mut t = sv(None);
        assert!(run(&mut t, (0..12_001u32).map(|n| (n % 4000) as u16))
            .iter()
            .all(|t| t.lost + t.duplicates + t.out_of_order == 0));
        assert_eq!(t.wrap(), Some(4000));
        assert_eq!(t.totals(), Totals { received: 12_001, ..Totals::default() });
    }

    #[test]
    fn loss_across_the_wrap_is_counted() {
        let mut t = sv(None);
        let counts = (0..20_000u32).filter(|n| !(3_990..4_020).contains(n)).map(|n| (n % 4000) as u16);
        let after = run(&mut t, counts);
        assert_eq!((after[3_989].lost, after[3_990].lost), (0, 30));
        assert_eq!((t.wrap(), t.totals().lost, t.totals().gaps), (Some(4000), 30, 1));
    }

    #[test]
    fn learning_an_unusual_wrap_reverts_its_apparent_losses() {
        for wrap in [1000u32, 3998, 65535, 65536] {
            let mut t = sv(None);
            run(&mut t, (0..4 * wrap).map(|n| (n % wrap) as u16));
            assert_eq!((t.wrap(), t.totals().lost, t.totals().gaps), (Some(wrap.into()), 0, 0), "{wrap}");
        }
    }

    #[test]
    fn a_sender_that_counts_from_1_has_no_loss_at_its_wrap() {
        // Samples per frame, the wrap, and the sender's first number.
        for (samples, wrap, first) in
            [(1, 4000, 1), (1, 4800, 2345), (2, 4800, 1), (2, 4800, 2), (6, 14_400, 6), (1, 1000, 1), (1, 3998, 1)]
        {
            let number = |n: u32| (first - 1 + n * samples) % wrap + 1;
            let mut t = sv(None);
            for n in 0..6 * wrap / samples {
                t.note(Ns::from(n) * STEP, number(n), samples as u16);
            }
            let totals = Totals { received: u64::from(6 * wrap / samples), ..Totals::default() };
            assert_eq!((t.wrap(), t.totals()), (Some(wrap.into()), totals), "{samples} {wrap} {first}");
            assert_eq!(t.sequence.first(), Some(1), "{samples} {wrap} {first}");
        }
    }

    #[test]
    fn losses_of_a_sender_that_counts_from_1_are_exact_at_its_wrap() {
        // Losses around the first wrap, around the second, at both, and of the very first and last number.
        for gone in
            [&[3999, 4000, 4001][..], &[4000], &[4001], &[7999, 8000], &[3999, 8000, 8001, 8002], &[4000, 8001, 12_000]]
        {
            let mut t = sv(None);
            for n in (1..=20_000i64).filter(|n| !gone.contains(n)) {
                t.note(n * STEP, ((n - 1) % 4000 + 1) as u32, 1);
            }
            let totals = t.totals();
            assert_eq!((t.wrap(), totals.lost, totals.restarts), (Some(4000), gone.len() as u64, 0), "{gone:?}");
        }
    }

    #[test]
    fn a_sender_from_0_after_one_from_1_keeps_its_wrap() {
        let mut t = sv(None);
        run(&mut t, (0..9000u32).map(|n| (n % 4000 + 1) as u16).chain((0..9000u32).map(|n| (n % 4000) as u16)));
        assert_eq!((t.wrap(), t.totals().lost, t.totals().restarts), (Some(4000), 0, 1));
    }

    #[test]
    fn a_silence_of_many_wraps_is_measured_by_time() {
        let mut t = sv(Some(4000));
        for n in 0..1000i64 {
            t.note(n * STEP, n as u32, 1);
        }
        let back = 1000 + 3 * 4000 + 1234;
        t.note(back * STEP + 20_000, (back % 4000) as u32, 1);
        assert_eq!(t.totals().lost, back as u64 - 1000);
        // Packets that continue in real time after the jump were not delayed, so they do not catch up.
        for n in back + 1..back + 30_000 {
            t.note(n * STEP, (n % 4000) as u32, 1);
        }
        assert_eq!((t.totals().lost, t.totals().gaps), (back as u64 - 1000, 1));
    }

    #[test]
    fn a_burst_after_a_stall_has_no_losses() {
        // A pause of the publisher or of this machine: 12,000 samples late, then a burst, then on time. In the second
        // stream, five packets are lost in the silence.
        for gone in [0, 5] {
            let mut t = sv(Some(4000));
            let due = |n: i64| if n < 1000 { n * STEP } else { (n * STEP).max(13_000 * STEP + (n - 1000) * 5_000) };
            let mut most = 0;
            for n in (0..20_000i64).filter(|n| !(1000..1000 + gone).contains(n)) {
                t.note(due(n), (n % 4000) as u32, 1);
                most = most.max(t.totals().lost);
            }
            let expected = Totals { received: 20_000 - gone as u64, lost: gone as u64, ..Totals::default() };
            assert_eq!(Totals { gaps: 0, ..t.totals() }, expected);
            assert_eq!((t.totals().gaps, most), (u64::from(gone > 0), 12_000 + gone as u64), "until it has caught up");
        }
        // Two pauses, the second before the stream has caught up.
        let mut t = sv(Some(4000));
        for n in 0..30_000i64 {
            let held = [(1000, 13_000), (3000, 22_000)].into_iter().filter(|(from, _)| n >= *from);
            let due = held.map(|(from, until)| until * STEP + (n - from) * 5_000).chain([n * STEP]).max();
            t.note(due.unwrap_or(0), (n % 4000) as u32, 1);
        }
        assert_eq!(t.totals(), Totals { received: 30_000, ..Totals::default() });
    }

    #[test]
    fn a_restarted_publisher_sends_no_duplicates() {
        let mut t = sv(Some(4000));
        run(&mut t, (0..1500u16).chain(0..1000));
        assert_eq!((t.totals().restarts, t.totals().duplicates, t.totals().lost), (1, 0, 0));
    }

    #[test]
    fn six_samples_a_frame_count_as_one_packet() {
        let mut t = sv(None);
        for n in 0..7200i64 {
            if n != 2401 && n != 100 {
                t.note(n * STEP, (n * 6 % 14400) as u32, 6);
            }
        }
        assert_eq!((t.wrap(), t.totals().lost, t.totals().gaps), (Some(14400), 2, 2));
    }

    #[test]
    fn a_late_packet_before_a_wrap_with_a_loss_is_no_gap() {
        let mut t = sv(None);
        let mut counts: Vec<u16> = (0..12_000u32).filter(|n| *n != 3999).map(|n| (n % 4000) as u16).collect();
        counts.swap(7998, 7999);
        run(&mut t, counts);
        assert_eq!((t.wrap(), t.totals().lost, t.totals().out_of_order), (Some(4000), 1, 1));
    }

    /// Reference implementation: counts from the true numbers, with sets.
    fn slow(numbers: &[i64], samples: i64) -> Totals {
        let (mut seen, mut newest, first) = (HashSet::new(), numbers[0], numbers[0]);
        let mut totals = Totals { received: numbers.len() as u64, ..Totals::default() };
        for n in numbers {
            if !seen.insert(*n) {
                totals.duplicates += 1;
            } else if *n < newest {
                totals.out_of_order += 1;
            }
            newest = newest.max(*n);
        }
        let came = seen.iter().filter(|n| **n >= first).count() as i64;
        totals.lost = ((newest - first) / samples + 1 - came) as u64;
        totals
    }

    proptest! {
        #[test]
        fn losses_duplicates_and_order_are_exact_across_wraps(
            wrap in prop::sample::select(vec![4000u32, 4800, 14400, 65536]),
            samples in prop::sample::select(vec![1i64, 2, 6]),
            start in 0i64..70_000,
            // For each packet: whether it is lost, whether it is duplicated, and by how many positions it is delayed.
            fates in prop::collection::vec((0u8..20, 0u8..20, 0usize..40), 2..4000),
        ) {
            let mut order = Vec::new();
            for (i, (loss, twice, delay)) in fates.iter().enumerate() {
                let number = (start / samples + i as i64) * samples;
                let late = |chance: u8| if chance == 1 { *delay } else { 0 };
                if *loss > 0 {
                    order.push((i + late(*loss), number));
                }
                if *twice == 0 {
                    order.push((i + delay, number));
                }
            }
            order.sort_by_key(|(place, _)| *place);
            prop_assume!(!order.is_empty());
            let numbers: Vec<i64> = order.iter().map(|(_, n)| *n).collect();
            let mut tracker = sv(Some(wrap));
            for (place, n) in &order {
                tracker.note(*place as Ns * STEP, (n % i64::from(wrap)) as u32, samples as u16);
            }
            let got = tracker.totals();
            prop_assert_eq!(Totals { gaps: 0, ..got }, slow(&numbers, samples));
        }

        #[test]
        fn no_stream_makes_it_panic(packets in prop::collection::vec(any::<(i64, u16, u16)>(), 0..400),
                                    wrap in prop::option::of(any::<u32>())) {
            let mut tracker = sv(wrap);
            for (t, count, samples) in &packets {
                tracker.note(*t, (*count).into(), *samples);
            }
            prop_assert_eq!(tracker.totals().received, packets.len() as u64);
        }
    }
}
