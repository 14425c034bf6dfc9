//! The times at which samples were taken: senders of Sampled Values count samples from the whole second of UTC while
//! they report global synchronisation (IEC 61850-9-2, smpSynch 2). docs/clocks.md describes the limits of this.

use crate::{journey::MAX_POINTS, Joiner, Journey};
use latpath_model::{Ns, Point, PointId, PointInfo, PointKind, StreamId, StreamSpec, SynchChange, MERGING_UNIT};
use latpath_protocols::sequence::Sequence;
use std::collections::VecDeque;

const SECOND: Ns = 1_000_000_000;
/// Maximum apparent time by which a packet may precede its sample because of clock errors, ns. An even earlier packet
/// counts as a late packet of the previous second.
const MAX_EARLY: Ns = 100_000_000;
/// Maximum number of changes of smpSynch of one stream during a packet's transit.
const CHANGES: usize = 16;
/// Maximum number of changes that are reported individually: a sender that changes smpSynch with each packet must not
/// fill a disk.
const MAX_REPORTED: usize = 100;

/// Computes the times at which samples were taken.
#[derive(Default)]
pub struct Sampling {
    point: Option<PointId>,
    senders: Vec<Sender>,
    /// Number of reported changes of smpSynch.
    reported: usize,
}

#[derive(Default)]
struct Sender {
    /// Number of samples per second, at which smpCnt wraps, once known.
    per_second: Option<u64>,
    /// The smpCnt of the first sample of a second, once known: 0, or 1 if the sender counts from 1.
    first: Option<u64>,
    changes: VecDeque<SynchChange>,
    counting: Option<Counting>,
    /// Number of changes of smpSynch.
    changed: u64,
}

/// Evidence that a sender's count restarts with each second.
#[derive(Clone, Copy)]
struct Counting {
    per_second: u64,
    /// A reference packet: its key and its first sighting.
    since: (u32, Ns),
    is_by_second: bool,
    /// Number of packets since then that did not fit.
    unfit: u64,
}

impl Sampling {
    /// The sampling point, if it was added.
    pub fn point(&self) -> Option<PointId> {
        self.point
    }

    /// Adds the point of the sampling if there is room: from then on, packets have the times of their samples.
    pub fn add_point(&mut self, points: &mut Vec<PointInfo>) {
        if self.point.is_none() && points.len() < MAX_POINTS {
            let point = Point { machine: MERGING_UNIT.into(), kind: PointKind::Sampled, device: "smpCnt".into() };
            self.point = Some(points.len() as PointId);
            points.push(PointInfo { clock: "smpCnt".into(), ..point.into() });
        }
    }

    /// Records the clock states that senders report. Returns the new changes, each with the previous state; the first
    /// state of a stream is no change.
    pub fn take(&mut self, said: Vec<SynchChange>) -> Vec<(u8, SynchChange)> {
        let mut news = Vec::new();
        for change in said {
            let sender = self.sender(change.stream);
            if let Some(before) = sender.changes.back() {
                sender.changed += 1;
                news.push((before.synch, change));
            }
            sender.changes.push_back(change);
            if sender.changes.len() > CHANGES {
                sender.changes.pop_front();
            }
        }
        news.truncate(MAX_REPORTED - self.reported);
        self.reported += news.len();
        news
    }

    /// Learns from the joiner where the senders' counts wrap.
    pub fn learn(&mut self, joiner: &Joiner) {
        for (stream, sender) in self.senders.iter_mut().enumerate().filter(|_| self.point.is_some()) {
            let sequence = joiner.sequence(stream as StreamId);
            sender.per_second = sequence.and_then(Sequence::wrap);
            sender.first = sequence.and_then(Sequence::first);
        }
    }

    /// Passes a journey to `call`, with the time of its sample if known. `offset`: the timeline minus UTC, ns.
    #[inline]
    pub fn with_sample(&mut self, j: &Journey, offset: Option<Ns>, call: impl FnOnce(&Journey)) {
        let known = self.point.zip(offset).zip(j.first());
        let sampled = known.and_then(|((point, offset), first)| Some((point, self.sampled(j, first, offset)?)));
        let Some((point, sampled)) = sampled else { return call(j) };
        with_computed(j, point, sampled, call);
    }

    /// Time of the sample of a packet that reached its first point at `first`, on the same timeline.
    fn sampled(&mut self, j: &Journey, first: Ns, offset: Ns) -> Option<Ns> {
        let sender = self.senders.get_mut(usize::from(j.stream))?;
        let (per_second, number) = (sender.per_second?, sender.first?);
        let is_by_second = sender.counts_by_second(j.key, first, per_second);
        if !is_by_second || sender.synch_of(j.key, first, per_second) != Some(SynchChange::GLOBAL) {
            return None;
        }
        let sample = (u64::from(j.key) + per_second - number.min(per_second)) % per_second;
        let in_second = (u128::from(sample) * SECOND as u128 / u128::from(per_second)) as Ns;
        let latest = first.checked_sub(offset)?.checked_add(MAX_EARLY)?.checked_sub(in_second)?;
        latest.div_euclid(SECOND).checked_mul(SECOND)?.checked_add(in_second)?.checked_add(offset)
    }

    /// Notes for the user on senders that gained or lost synchronisation.
    pub fn notes(&self, streams: &[StreamSpec]) -> Vec<String> {
        let changed = self.senders.iter().zip(streams).filter(|(sender, _)| sender.changed > 0);
        let note = |(sender, stream): (&Sender, &StreamSpec)| {
            let last = sender.changes.back().map_or(0, |change| change.synch);
            let times = if sender.changed == 1 { "once".into() } else { format!("{} times", sender.changed) };
            format!("{}: smpSynch changed {times}, at last to {last}", stream.short())
        };
        changed.map(note).collect()
    }

    fn sender(&mut self, stream: StreamId) -> &mut Sender {
        let at = usize::from(stream);
        if at >= self.senders.len() {
            self.senders.resize_with(at + 1, Sender::default);
        }
        &mut self.senders[at]
    }
}

impl Sender {
    /// Whether the count was seen to restart with each second: over a second or more it fits the elapsed time within 1
    /// %. Packets that do not fit are late, unless a second's worth of them does not fit.
    fn counts_by_second(&mut self, key: u32, t: Ns, per_second: u64) -> bool {
        let new = Counting { per_second, since: (key, t), is_by_second: false, unfit: 0 };
        let known = self.counting.filter(|counting| counting.per_second == per_second);
        let counting = self.counting.insert(known.unwrap_or(new));
        let elapsed = t.saturating_sub(counting.since.1);
        if elapsed >= SECOND {
            let round = i128::from(per_second);
            let expected = i128::from(elapsed) * round / i128::from(SECOND);
            let ahead = i128::from(key) - i128::from(counting.since.0) - expected;
            let off = (ahead + round / 2).rem_euclid(round) - round / 2;
            if off.abs() <= (expected / 100).min(round / 20) {
                *counting = Counting { is_by_second: per_second < 1 << 16, ..new };
            } else {
                counting.unfit += 1;
                if counting.unfit >= per_second {
                    *counting = new;
                }
            }
        }
        counting.is_by_second
    }

    /// The clock state reported by the packet with this key.
    fn synch_of(&self, key: u32, t: Ns, per_second: u64) -> Option<u8> {
        let is_after = |change: &&SynchChange| {
            let ahead = (u64::from(key) + per_second - u64::from(change.key) % per_second) % per_second;
            match t.saturating_sub(change.t) {
                // Within this time, a packet and a change are ordered by their keys instead of their times.
                apart if apart.abs() < SECOND * 2 / 5 => ahead < per_second / 2,
                apart => apart > 0,
            }
        };
        self.changes.iter().rev().find(is_after).map(|change| change.synch)
    }
}

/// Passes a journey to `call`, with a computed time at this point.
pub(crate) fn with_computed(j: &Journey, point: PointId, time: Ns, call: impl FnOnce(&Journey)) {
    let point = usize::from(point);
    let mut t = widened(j.t);
    t[point] = time;
    let (cpu, tid) = (widened(j.cpu), widened(j.tid));
    let points = j.t.len().max(point + 1);
    let computed = 1 << point;
    let all = Journey { t: &t[..points], cpu: &cpu[..points], tid: &tid[..points], ..*j };
    call(&Journey { seen: j.seen | computed, samples: j.samples | computed, ..all });
}

/// The values, padded to the maximum number of points.
fn widened<T: Copy + Default>(values: &[T]) -> [T; MAX_POINTS] {
    let mut all = [T::default(); MAX_POINTS];
    all[..values.len()].copy_from_slice(values);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Ns = 1_000_000;
    const GLOBAL: u8 = SynchChange::GLOBAL;
    /// The timeline minus UTC, ns.
    const OFFSET: Ns = -1_799_999_000_123_456_789;
    /// The beginning of a second of UTC, on the timeline, ns.
    const BEGIN: Ns = 1_800_000_000 * SECOND + OFFSET;

    /// One stream of `per_second` samples per second, whose sender has reported these clock states.
    fn sampling(per_second: u64, said: &[(u32, Ns, u8)]) -> Sampling {
        let mut sampling = Sampling::default();
        let change = |(key, t, synch): &(u32, Ns, u8)| SynchChange { stream: 0, key: *key, t: *t, synch: *synch };
        sampling.take(said.iter().map(change).collect());
        let mut points = Vec::new();
        sampling.add_point(&mut points);
        assert_eq!((points.len(), sampling.point()), (1, Some(0)));
        (sampling.senders[0].per_second, sampling.senders[0].first) = (Some(per_second), Some(0));
        sampling
    }

    fn sampled(sampling: &mut Sampling, key: u32, first: Ns) -> Option<Ns> {
        let mut found = None;
        let journey = Journey { key, seen: 2, t: &[0, first], cpu: &[0, 1], tid: &[0, 2], ..Journey::default() };
        sampling.with_sample(&journey, Some(OFFSET), |j| {
            found = j.at(0);
            assert_eq!((j.first(), j.samples, j.cpu[1], j.tid[1]), (Some(first), u64::from(found.is_some()), 1, 2));
        });
        found
    }

    /// Passes packets 0 to `end`, `per_second` per second, each `delay` after its sample; returns the true and the
    /// derived time of each sample.
    fn take(sampling: &mut Sampling, per_second: u64, end: u64, delay: impl Fn(u64) -> Ns) -> Vec<(Ns, Option<Ns>)> {
        let one = |n: u64| {
            let at = BEGIN + (u128::from(n) * SECOND as u128 / u128::from(per_second)) as Ns;
            (at, sampled(sampling, (n % per_second) as u32, at + delay(n)))
        };
        (0..end).map(one).collect()
    }

    proptest! {
        #[test]
        fn a_samples_time_does_not_depend_on_its_packets_delay(
            rate in prop::sample::select(vec![80_u64, 96, 4000, 4800, 14_400]),
            usual in -90 * MS..800 * MS,
            late in prop::collection::vec(0..90 * MS, 1..20),
        ) {
            let mut sampling = sampling(rate, &[(0, Ns::MIN, GLOBAL)]);
            // One packet in seven is late.
            let delay = |n: u64| usual + if n % 7 == 3 { late[n as usize % late.len()] } else { 0 };
            let taken = take(&mut sampling, rate, 3 * rate, delay);
            for (n, (sampled, said)) in taken.iter().enumerate() {
                prop_assert!(said.is_some() || n as u64 <= rate + 1, "{n}");
                prop_assert!(said.is_none_or(|said| (said - sampled).abs() <= 1), "{n}: {said:?} for {sampled}");
            }
        }

        #[test]
        fn a_sender_that_counts_from_1_took_sample_1_at_the_whole_second(usual in -90 * MS..800 * MS) {
            let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL)]);
            sampling.senders[0].first = Some(1);
            for n in 0..12_000 {
                let at = BEGIN + n * 250_000;
                let said = sampled(&mut sampling, (n % 4000 + 1) as u32, at + usual);
                prop_assert!(said.is_none_or(|said| said == at) && (said.is_some() || n <= 4001), "{n}: {said:?}");
            }
        }

        #[test]
        fn packets_before_and_after_a_change_of_smpsynch_have_their_own_values(lost in 6000..7000_u64, took in 0..300 * MS) {
            let at = BEGIN + (lost as Ns) * 250_000;
            let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL), ((lost % 4000) as u32, at + took, 0)]);
            let taken = take(&mut sampling, 4000, 8000, |_| took);
            let is_dated = |n: u64| taken[n as usize].1.is_some();
            prop_assert!((4001..lost).all(is_dated) && !(lost..8000).any(is_dated));
        }
    }

    #[test]
    fn a_count_that_does_not_start_at_the_second_gives_no_sample_times() {
        let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL)]);
        // The count wraps at 4000, but there are 4080 samples per second.
        let dated = (0..12_240).filter_map(|n| sampled(&mut sampling, n % 4000, BEGIN + Ns::from(n) * SECOND / 4080));
        assert_eq!(dated.count(), 0);
    }

    #[test]
    fn a_sender_that_changes_constantly_has_a_bounded_number_of_reports() {
        let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL)]);
        let said = (1..500_u32).map(|n| SynchChange { stream: 0, key: n, t: n.into(), synch: n as u8 & 1 }).collect();
        let reported = sampling.take(said);
        assert_eq!((reported.len(), reported[0].0, reported[0].1.synch), (MAX_REPORTED, GLOBAL, 1));
        assert_eq!(sampling.notes(&[StreamSpec::svid("MU01")]), ["MU01: smpSynch changed 499 times, at last to 1"]);
        assert!(sampling.senders[0].changes.len() <= CHANGES);
    }

    #[test]
    fn without_utc_no_packet_has_a_sample() {
        let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL)]);
        take(&mut sampling, 4000, 8000, |_| MS);
        let journey = Journey { seen: 2, t: &[0, BEGIN + 2 * SECOND], ..Journey::default() };
        let mut samples = Vec::new();
        for offset in [None, Some(OFFSET)] {
            sampling.with_sample(&journey, offset, |j| samples.push(j.samples));
        }
        assert_eq!(samples, [0, 1]);
    }
}
