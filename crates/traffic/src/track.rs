//! Follows the smpCnt of one stream: what is missing, what came twice or late, where it wraps.

use latpath_model::Ns;
use latpath_protocols::sv::SAMPLE_RATES;

/// A packet counts as late, not as far ahead, if it is at most half a wrap behind; the largest wrap is 65536.
const WINDOW: i64 = 32768;
/// Packets that one may be behind before the wrap is known; further behind means that the count has wrapped.
const LATE_UNLEARNED: i64 = 256;
/// So many duplicates in a row, each following the one before, are a publisher that has started again.
const RESTART: u32 = 64;

/// What one packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first of the stream, or the one that was expected.
    InOrder,
    /// Ahead of the one expected: so many packets are missing before it.
    Gap(u64),
    /// Behind one that came earlier, and not seen yet (RFC 4737, reordered).
    OutOfOrder,
    /// Seen already.
    Duplicate,
    /// The publisher has started again with this packet.
    Restart,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets, duplicates included.
    pub received: u64,
    /// Packets missing so far; one that arrives late is taken off again.
    pub lost: u64,
    /// Places where packets were missing.
    pub gaps: u64,
    /// Packets that came once more.
    pub duplicates: u64,
    /// Packets that came behind a later one.
    pub out_of_order: u64,
    /// Times that the publisher started again.
    pub restarts: u64,
}

/// The stream's state after its first packet.
#[derive(Clone, Debug)]
struct Head {
    /// Samples since the first packet, of the newest one. Never wraps.
    number: i64,
    /// smpCnt of the newest packet.
    count: u16,
    /// Samples in the newest packet.
    samples: u16,
    /// When it came.
    t: Ns,
}

/// A silence in which whole wraps are taken to be missing, by the time that it took. Where the publisher or this machine stood still
/// instead, all comes at once then, and catches up with the time.
#[derive(Clone, Debug)]
struct Silence {
    /// When the packet before it came, and its number.
    since: Ns,
    number: i64,
    /// Samples of the wraps taken to be missing; packets and gaps that were counted for them.
    samples: i64,
    lost: u64,
    gaps: u64,
    /// The time between samples, as it was before.
    steady: (Ns, i64),
    /// What has not caught up by then is missing.
    until: Ns,
}

/// Follows one stream.
#[derive(Clone, Debug)]
pub struct Tracker {
    head: Option<Head>,
    wrap: Option<u32>,
    /// The last count before a wrap that was taken for more than it was, plus its samples; and the packets it made lost.
    edge: Option<(u32, u64)>,
    /// One bit for each of the last [`WINDOW`] samples: a packet that starts with it was seen.
    seen: Box<[u64]>,
    /// Time and samples of packets that followed each other, for the time between samples.
    steady: (Ns, i64),
    /// The last silence whose length may turn out to be none of the stream's.
    silence: Option<Silence>,
    /// Duplicates in a row, and the count that would follow.
    again: (u32, u16),
    totals: Totals,
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Tracker {
    /// A tracker of a stream that wraps at `wrap` (1 to 65536), or learns where it does.
    pub fn new(wrap: Option<u32>) -> Self {
        Self {
            head: None,
            wrap: wrap.filter(|w| (1..=65536).contains(w)),
            edge: None,
            seen: vec![0; WINDOW as usize / 64].into(),
            steady: (0, 0),
            silence: None,
            again: (0, 0),
            totals: Totals::default(),
        }
    }

    /// Where the count wraps, once that was seen.
    pub fn wrap(&self) -> Option<u32> {
        self.wrap
    }

    /// What was counted.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Takes a packet that came at `t` (any monotonic clock), with `samples` samples of the stream (at least 1), the first of
    /// which has the smpCnt `count`.
    pub fn note(&mut self, t: Ns, count: u16, samples: u16) -> Verdict {
        let samples = samples.max(1);
        self.totals.received += 1;
        let Some(head) = self.head.clone() else {
            self.mark(0);
            self.head = Some(Head { number: 0, count, samples, t });
            return Verdict::InOrder;
        };
        let (ahead, rounds) = self.ahead(&head, t, count);
        if ahead <= 0 {
            return self.behind(&head, head.number + ahead, t, count, samples);
        }
        self.again.0 = 0;
        let packets = |ahead: i64| ((ahead - 1) / i64::from(head.samples)) as u64;
        let missing = packets(ahead);
        if rounds > 0 {
            let counted = packets((ahead - rounds).max(1));
            // Another while it catches up is part of the same.
            let before = self.silence.take().filter(|s| head.t <= s.until);
            let none = Silence {
                since: head.t,
                number: head.number,
                samples: 0,
                lost: 0,
                gaps: 0,
                steady: self.steady,
                until: 0,
            };
            let s = self.silence.insert(before.unwrap_or(none));
            s.samples += rounds;
            s.lost += missing - counted;
            s.gaps += u64::from(counted == 0);
            s.until = t.saturating_add(t.saturating_sub(s.since));
        }
        if missing == 0 {
            self.steady.0 = self.steady.0.saturating_add(t.saturating_sub(head.t).max(0));
            self.steady.1 += ahead;
        }
        self.advance(head.number, ahead);
        self.head = Some(Head { number: head.number + ahead, count, samples, t });
        if missing == 0 {
            self.catch_up(head.number + ahead, t);
            return Verdict::InOrder;
        }
        self.totals.lost += missing;
        self.totals.gaps += 1;
        Verdict::Gap(missing)
    }

    /// Takes back what a silence was taken to have lost, once the stream without that is where the time says that it should be.
    fn catch_up(&mut self, number: i64, t: Ns) {
        let Some(s) = self.silence.as_ref() else { return };
        if t > s.until {
            self.silence = None;
            return;
        }
        let came = number - s.number - s.samples;
        if came + i64::from(self.wrap.unwrap_or(65536)) / 2 > samples_in(t.saturating_sub(s.since), s.steady) {
            self.totals.lost = self.totals.lost.saturating_sub(s.lost);
            self.totals.gaps = self.totals.gaps.saturating_sub(s.gaps);
            self.silence = None;
        }
    }

    /// Samples from the newest packet to this one; 0 or negative if it is not newer. And how many of them are whole wraps, by the time.
    fn ahead(&mut self, head: &Head, t: Ns, count: u16) -> (i64, i64) {
        let straight = i64::from(count) - i64::from(head.count);
        if self.wrap.is_some_and(|w| u32::from(count) >= w) {
            // It goes on past where it was thought to wrap.
            self.wrap = None;
            self.edge = None;
        }
        let Some(wrap) = self.wrap else {
            if straight > -LATE_UNLEARNED * i64::from(head.samples) {
                return (straight, 0);
            }
            let (wrap, guessed) = learn_wrap(u32::from(head.count) + u32::from(head.samples), u32::from(count));
            let ahead = straight + i64::from(wrap);
            let missing = (ahead - 1) / i64::from(head.samples);
            self.edge = guessed.map(|exact| (exact, missing as u64));
            self.wrap = Some(wrap);
            return (ahead, 0);
        };
        let wrap = i64::from(wrap);
        let (mut ahead, mut rounds) = (straight.rem_euclid(wrap), 0);
        if ahead > wrap / 2 {
            ahead -= wrap;
        }
        // A silence longer than half a wrap: the count alone does not say how long it was, the time does.
        let expected = samples_in(t.saturating_sub(head.t), self.steady);
        if expected > wrap / 2 {
            rounds = (expected - ahead + wrap / 2).div_euclid(wrap).max(0) * wrap;
            ahead += rounds;
        }
        // The same edge twice, with nothing missing after it: the stream really wraps there.
        if let Some((exact, missing)) = self.edge.filter(|_| straight < 0 && ahead > 0) {
            self.edge = None;
            if count == 0 && u32::from(head.count) + u32::from(head.samples) == exact {
                self.wrap = Some(exact);
                self.totals.lost = self.totals.lost.saturating_sub(missing);
                self.totals.gaps = self.totals.gaps.saturating_sub(1);
                return (i64::from(head.samples), 0);
            }
        }
        (ahead, rounds)
    }

    /// A packet that is not newer than the newest one.
    fn behind(&mut self, head: &Head, number: i64, t: Ns, count: u16, samples: u16) -> Verdict {
        if !self.is_marked(number) {
            self.mark(number);
            self.again.0 = 0;
            self.totals.out_of_order += 1;
            // What came before the first packet was never missed.
            if number >= 0 {
                self.totals.lost = self.totals.lost.saturating_sub(1);
            }
            return Verdict::OutOfOrder;
        }
        self.totals.duplicates += 1;
        let follows = self.again.0 > 0 && self.again.1 == count && number != head.number;
        let wrap = self.wrap.unwrap_or(65536);
        self.again =
            (if follows { self.again.0 + 1 } else { 1 }, ((u32::from(count) + u32::from(samples)) % wrap) as u16);
        if self.again.0 < RESTART {
            return Verdict::Duplicate;
        }
        self.totals.duplicates -= u64::from(RESTART);
        self.totals.restarts += 1;
        self.again.0 = 0;
        self.seen.fill(0);
        self.mark(0);
        self.silence = None;
        self.head = Some(Head { number: 0, count, samples, t });
        Verdict::Restart
    }

    fn bit(number: i64) -> (usize, u64) {
        let i = number.rem_euclid(WINDOW) as usize;
        (i / 64, 1 << (i % 64))
    }

    fn is_marked(&self, number: i64) -> bool {
        let (word, bit) = Self::bit(number);
        self.seen[word] & bit != 0
    }

    fn mark(&mut self, number: i64) {
        let (word, bit) = Self::bit(number);
        self.seen[word] |= bit;
    }

    /// Forgets the bits between the newest packet and the one `ahead` samples later, and marks that one.
    fn advance(&mut self, number: i64, ahead: i64) {
        if ahead >= WINDOW {
            self.seen.fill(0);
        } else {
            for n in number + 1..number + ahead {
                let (word, bit) = Self::bit(n);
                self.seen[word] &= !bit;
            }
        }
        self.mark(number + ahead);
    }
}

/// Samples of a time, by how long some took; 0 as long as none are known.
fn samples_in(time: Ns, (took, samples): (Ns, i64)) -> i64 {
    if took <= 0 || samples <= 0 {
        return 0;
    }
    (i128::from(time.max(0)) * i128::from(samples) / i128::from(took)).min(1 << 40) as i64
}

/// Where a count wraps that would have gone on with `next` and came back as `count`; and `next` again where that is a guess.
fn learn_wrap(next: u32, count: u32) -> (u32, Option<u32>) {
    let next = next.min(65536);
    // Up to an eighth of a second may be missing around the wrap.
    let near = |w: &u32| *w >= next && *w - next + count <= *w / 8;
    match SAMPLE_RATES.into_iter().chain([65536]).find(near) {
        Some(w) if w == next => (next, None),
        Some(w) => (w, Some(next)),
        None => (next, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const STEP: Ns = 250_000;

    fn run(tracker: &mut Tracker, counts: impl IntoIterator<Item = u16>) -> Vec<Verdict> {
        counts.into_iter().enumerate().map(|(i, c)| tracker.note(i as Ns * STEP, c, 1)).collect()
    }

    #[test]
    fn a_full_stream_has_no_losses_and_shows_its_wrap() {
        let mut t = Tracker::default();
        assert!(run(&mut t, (0..12_001u32).map(|n| (n % 4000) as u16)).iter().all(|v| *v == Verdict::InOrder));
        assert_eq!(t.wrap(), Some(4000));
        assert_eq!(t.totals(), Totals { received: 12_001, ..Totals::default() });
    }

    #[test]
    fn loss_across_the_wrap_is_counted() {
        let mut t = Tracker::default();
        let counts = (0..20_000u32).filter(|n| !(3_990..4_020).contains(n)).map(|n| (n % 4000) as u16);
        let verdicts = run(&mut t, counts);
        assert_eq!(verdicts[3_990], Verdict::Gap(30));
        assert_eq!((t.wrap(), t.totals().lost, t.totals().gaps), (Some(4000), 30, 1));
    }

    #[test]
    fn an_unusual_wrap_is_learned_and_what_it_seemed_to_lose_is_taken_back() {
        for wrap in [1000u32, 3998, 65535, 65536] {
            let mut t = Tracker::default();
            run(&mut t, (0..4 * wrap).map(|n| (n % wrap) as u16));
            assert_eq!((t.wrap(), t.totals().lost, t.totals().gaps), (Some(wrap), 0, 0), "{wrap}");
        }
    }

    #[test]
    fn a_silence_of_many_wraps_is_measured_by_time() {
        let mut t = Tracker::new(Some(4000));
        for n in 0..1000i64 {
            t.note(n * STEP, n as u16, 1);
        }
        let back = 1000 + 3 * 4000 + 1234;
        assert_eq!(t.note(back * STEP + 20_000, (back % 4000) as u16, 1), Verdict::Gap(back as u64 - 1000));
        assert_eq!(t.totals().lost, back as u64 - 1000);
        // What goes on at its pace has not been held up.
        for n in back + 1..back + 30_000 {
            t.note(n * STEP, (n % 4000) as u16, 1);
        }
        assert_eq!((t.totals().lost, t.totals().gaps), (back as u64 - 1000, 1));
    }

    #[test]
    fn after_a_stall_all_comes_at_once_and_nothing_was_lost() {
        // Where the publisher stood still, or this machine: 12,000 samples late, then as fast as they come, then on time again. Of the
        // second such stream five are missing in the silence.
        for gone in [0, 5] {
            let mut t = Tracker::new(Some(4000));
            let due = |n: i64| if n < 1000 { n * STEP } else { (n * STEP).max(13_000 * STEP + (n - 1000) * 5_000) };
            let mut most = 0;
            for n in (0..20_000i64).filter(|n| !(1000..1000 + gone).contains(n)) {
                t.note(due(n), (n % 4000) as u16, 1);
                most = most.max(t.totals().lost);
            }
            let expected = Totals { received: 20_000 - gone as u64, lost: gone as u64, ..Totals::default() };
            assert_eq!(Totals { gaps: 0, ..t.totals() }, expected);
            assert_eq!((t.totals().gaps, most), (u64::from(gone > 0), 12_000 + gone as u64), "until it has caught up");
        }
        // Twice, the second time before it has caught up.
        let mut t = Tracker::new(Some(4000));
        for n in 0..30_000i64 {
            let held = [(1000, 13_000), (3000, 22_000)].into_iter().filter(|(from, _)| n >= *from);
            let due = held.map(|(from, until)| until * STEP + (n - from) * 5_000).chain([n * STEP]).max();
            t.note(due.unwrap_or(0), (n % 4000) as u16, 1);
        }
        assert_eq!(t.totals(), Totals { received: 30_000, ..Totals::default() });
    }

    #[test]
    fn a_publisher_that_starts_again_is_no_flood_of_duplicates() {
        let mut t = Tracker::new(Some(4000));
        let verdicts = run(&mut t, (0..1500u16).chain(0..1000));
        assert_eq!(verdicts.iter().filter(|v| **v == Verdict::Restart).count(), 1);
        assert_eq!((t.totals().restarts, t.totals().duplicates, t.totals().lost), (1, 0, 0));
    }

    #[test]
    fn six_samples_a_frame_count_as_one_packet() {
        let mut t = Tracker::default();
        for n in 0..7200i64 {
            if n != 2401 && n != 100 {
                t.note(n * STEP, (n * 6 % 14400) as u16, 6);
            }
        }
        assert_eq!((t.wrap(), t.totals().lost, t.totals().gaps), (Some(14400), 2, 2));
    }

    /// The obviously right count: from true numbers, with sets.
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
            // Of each packet: lost, sent twice, places that it is late.
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
            let mut tracker = Tracker::new(Some(wrap));
            for (place, n) in &order {
                tracker.note(*place as Ns * STEP, (n % i64::from(wrap)) as u16, samples as u16);
            }
            let got = tracker.totals();
            prop_assert_eq!(Totals { gaps: 0, ..got }, slow(&numbers, samples));
        }

        #[test]
        fn no_stream_makes_it_panic(packets in prop::collection::vec(any::<(i64, u16, u16)>(), 0..400),
                                    wrap in prop::option::of(any::<u32>())) {
            let mut tracker = Tracker::new(wrap);
            for (t, count, samples) in &packets {
                tracker.note(*t, *count, *samples);
            }
            prop_assert_eq!(tracker.totals().received, packets.len() as u64);
        }
    }
}
