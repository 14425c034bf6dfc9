//! When samples were taken: Sampled Values count their samples from the whole second of UTC on, as long as their sender says that its
//! clock is globally synchronised (IEC 61850-9-2, smpSynch 2). docs/clocks.md says how far that can be trusted.

use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_journey::{journey::MAX_POINTS, Joiner, Journey};
use latpath_linux::utc_error;
use latpath_model::{Ns, Point, PointId, PointInfo, PointKind, StreamId, StreamSpec, SynchChange, MERGING_UNIT};
use latpath_protocols::sequence::Sequence;
use latpath_run::{MachineFigures, MachineRecord};
use std::collections::VecDeque;

/// smpSynch of a sender whose clock keeps UTC.
const GLOBAL: u8 = 2;
const SECOND: Ns = 1_000_000_000;
/// A packet that seems to come earlier than its sample was taken, by no more than this, shows a clock that is wrong; one that seems to
/// come earlier by more is taken to be as late as that is short of a second.
const MOST_EARLY: Ns = 100_000_000;
/// Changes of smpSynch of one stream that packets under way may stand between.
const CHANGES: usize = 16;
/// Most changes that are reported one by one: a sender that says another thing with each packet must not fill a disk.
const MOST_TOLD: usize = 100;

/// The times at which samples were taken.
pub struct Sampling {
    point: Option<PointId>,
    realtime: RealtimeWatch,
    /// How wrong this host's UTC can be, as the user says.
    stated: Option<Ns>,
    /// The greatest bound so far.
    bound: Ns,
    is_known: bool,
    is_missed: bool,
    senders: Vec<Sender>,
    /// Changes of smpSynch that were told.
    told: usize,
}

/// The sender of one stream.
#[derive(Default)]
struct Sender {
    /// Where smpCnt wraps, once that is known.
    per_second: Option<u64>,
    changes: VecDeque<SynchChange>,
    counting: Option<Counting>,
    /// How often it changed what it says.
    changed: u64,
}

/// Whether a sender's count starts again with each second.
#[derive(Clone, Copy)]
struct Counting {
    per_second: u64,
    /// A packet that was looked at: its key and its first sighting.
    since: (u32, Ns),
    is_by_second: bool,
    /// Packets since then that did not fit.
    unfit: u64,
}

impl Sampling {
    /// Of so many streams. `stated` is how wrong this host's UTC can be; without it, what the kernel says of it counts.
    pub fn new(streams: usize, stated: Option<Ns>) -> Self {
        let senders = (0..streams).map(|_| Sender::default()).collect();
        let realtime = RealtimeWatch::new(&ClockTie::read());
        let mut new =
            Self { point: None, realtime, stated, bound: 0, is_known: false, is_missed: false, senders, told: 0 };
        new.look_at_the_clock();
        new
    }

    /// Looks how far this host's clock can be trusted, and takes what senders say of theirs. Returns the changes that are news, with what
    /// was said before: not what a stream says first. `points` gets one for the sampling, once a sender's clock and this host's keep UTC.
    pub fn update(
        &mut self,
        said: Vec<SynchChange>,
        joiner: &Joiner,
        points: &mut Vec<PointInfo>,
    ) -> Vec<(u8, SynchChange)> {
        if self.point.is_none() && said.is_empty() {
            return Vec::new();
        }
        self.realtime.observe(&ClockTie::read());
        self.look_at_the_clock();
        let mut news = Vec::new();
        for change in said {
            let Some(sender) = self.senders.get_mut(usize::from(change.stream)) else { continue };
            if let Some(before) = sender.changes.back() {
                sender.changed += 1;
                news.push((before.synch, change));
            }
            sender.changes.push_back(change);
            if sender.changes.len() > CHANGES {
                sender.changes.pop_front();
            }
            if change.synch == GLOBAL {
                self.find_point(points);
            }
        }
        if self.point.is_some() {
            for (stream, sender) in self.senders.iter_mut().enumerate() {
                sender.per_second = joiner.sequence(stream as StreamId).and_then(Sequence::wrap);
            }
        }
        news.truncate(MOST_TOLD - self.told);
        self.told += news.len();
        news
    }

    fn look_at_the_clock(&mut self) {
        let tie = self.realtime.to_monotonic(0).1;
        let error = self.stated.or_else(utc_error);
        self.is_known = error.is_some();
        self.bound = self.bound.max(error.map_or(0, |error| error.saturating_add(tie)));
    }

    fn find_point(&mut self, points: &mut Vec<PointInfo>) {
        self.is_missed = !self.is_known;
        if self.point.is_none() && self.is_known && points.len() < MAX_POINTS {
            let point = Point { machine: MERGING_UNIT.into(), kind: PointKind::Sampled, device: "smpCnt".into() };
            self.point = Some(points.len() as PointId);
            points.push(PointInfo { clock: "smpCnt".into(), ..point.into() });
        }
    }

    /// Hands a journey on, with the time at which its sample was taken where that is known.
    pub fn with_sample(&mut self, j: &Journey, call: impl FnOnce(&Journey)) {
        let found = self.point.zip(j.first()).and_then(|(point, first)| {
            let sampled = self.sampled(j.stream, j.key, first)?;
            Some((usize::from(point), sampled))
        });
        let Some((point, sampled)) = found else { return call(j) };
        let mut t = widened(j.t);
        t[point] = sampled;
        let (cpu, tid) = (widened(j.cpu), widened(j.tid));
        let points = j.t.len().max(point + 1);
        let samples = 1 << point;
        let all = Journey { t: &t[..points], cpu: &cpu[..points], tid: &tid[..points], ..*j };
        call(&Journey { seen: j.seen | samples, samples, ..all });
    }

    /// When the sample with this count was taken that came to the first point at `first`, `CLOCK_MONOTONIC`.
    fn sampled(&mut self, stream: StreamId, key: u32, first: Ns) -> Option<Ns> {
        let sender = self.senders.get_mut(usize::from(stream))?;
        let per_second = sender.per_second?;
        let is_by_second = sender.counts_by_second(key, first, per_second);
        if !is_by_second || !self.is_known || sender.synch_of(key, first, per_second) != Some(GLOBAL) {
            return None;
        }
        let in_second = (u128::from(key) * SECOND as u128 / u128::from(per_second)) as Ns;
        // CLOCK_MONOTONIC minus UTC.
        let offset = self.realtime.to_monotonic(0).0;
        let latest = first.checked_sub(offset)?.checked_add(MOST_EARLY)?.checked_sub(in_second)?;
        latest.div_euclid(SECOND).checked_mul(SECOND)?.checked_add(in_second)?.checked_add(offset)
    }

    /// What a run says of the sampling's clock.
    pub fn record(&self) -> Option<MachineRecord> {
        let method = if self.stated.is_some() { "UTC as stated" } else { "UTC by the kernel" };
        let (machine, method, error_bound_ns) = (MERGING_UNIT.into(), method.into(), self.bound);
        let fault = (!self.is_known).then(|| "this host's clock is not synchronised any more".into());
        let clock = MachineFigures { machine, method, error_bound_ns, fault, ..MachineFigures::default() };
        self.point.map(|_| MachineRecord { clock, ..MachineRecord::default() })
    }

    /// What the user must know: that a sender's clock came or went, and why nothing is known of the sampling where something could be.
    pub fn notes(&self, streams: &[StreamSpec]) -> Vec<String> {
        let changes =
            self.senders.iter().zip(streams).filter(|(sender, _)| sender.changed > 0).map(|(sender, stream)| {
                let last = sender.changes.back().map_or(0, |change| change.synch);
                let times = if sender.changed == 1 { "once".into() } else { format!("{} times", sender.changed) };
                format!("{}: smpSynch changed {times}, at last to {last}", stream.short())
            });
        let missed = self.is_missed.then(|| {
            "Tmu: the samples are taken by UTC (smpSynch is 2), but this host's clock is not synchronised, as the kernel says; \
             if it is all the same, --clock-error says how far it can be off"
                .into()
        });
        changes.chain(missed).collect()
    }
}

impl Sender {
    /// Whether the count has been seen to start again with each second: it fits the time that passed, a second and more, to within 1 %.
    /// Packets that do not fit are late, unless a second's worth of them does not.
    fn counts_by_second(&mut self, key: u32, t: Ns, per_second: u64) -> bool {
        let new = Counting { per_second, since: (key, t), is_by_second: false, unfit: 0 };
        let known = self.counting.filter(|counting| counting.per_second == per_second);
        let counting = self.counting.insert(known.unwrap_or(new));
        let elapsed = t - counting.since.1;
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

    /// What the packet with this key says of its sender's clock.
    fn synch_of(&self, key: u32, t: Ns, per_second: u64) -> Option<u8> {
        let is_after = |change: &&SynchChange| {
            let ahead = (u64::from(key) + per_second - u64::from(change.key) % per_second) % per_second;
            match t.saturating_sub(change.t) {
                // As many packets as come in so little time can be told by their keys.
                apart if apart.abs() < SECOND * 2 / 5 => ahead < per_second / 2,
                apart => apart > 0,
            }
        };
        self.changes.iter().rev().find(is_after).map(|change| change.synch)
    }
}

/// As many values as points can be.
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

    /// One stream of so many samples a second, whose sender has said what it says.
    fn sampling(per_second: u64, said: &[(u32, Ns, u8)]) -> Sampling {
        let mut sampling = Sampling::new(1, Some(1_000));
        let mut points = Vec::new();
        let change = |(key, t, synch): &(u32, Ns, u8)| SynchChange { stream: 0, key: *key, t: *t, synch: *synch };
        sampling.update(said.iter().map(change).collect(), &Joiner::new([], Default::default()), &mut points);
        assert_eq!(points.len(), 1);
        sampling.senders[0].per_second = Some(per_second);
        sampling
    }

    /// When a second of UTC begins, on the host's timeline.
    fn second(sampling: &Sampling, n: Ns) -> Ns {
        n * SECOND + sampling.realtime.to_monotonic(0).0
    }

    /// Takes packets 0 to `end`, so many a second, each this long after its sample; returns when each was sampled, and when it is said
    /// to have been.
    fn take(sampling: &mut Sampling, per_second: u64, end: u64, delay: impl Fn(u64) -> Ns) -> Vec<(Ns, Option<Ns>)> {
        let begin = second(sampling, 1_800_000_000);
        let one = |n: u64| {
            let sampled = begin + (u128::from(n) * SECOND as u128 / u128::from(per_second)) as Ns;
            (sampled, sampling.sampled(0, (n % per_second) as u32, sampled + delay(n)))
        };
        (0..end).map(one).collect()
    }

    proptest! {
        #[test]
        fn a_sample_has_its_time_whatever_its_packet_took(
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
        fn packets_before_and_behind_a_change_of_smpsynch_have_their_own(lost in 6000..7000_u64, took in 0..300 * MS) {
            let at = second(&Sampling::new(1, Some(1_000)), 1_800_000_000) + (lost as Ns) * 250_000;
            let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL), ((lost % 4000) as u32, at + took, 0)]);
            let taken = take(&mut sampling, 4000, 8000, |_| took);
            let is_dated = |n: u64| taken[n as usize].1.is_some();
            prop_assert!((4001..lost).all(is_dated) && !(lost..8000).any(is_dated));
        }
    }

    #[test]
    fn a_count_that_does_not_begin_with_the_second_dates_nothing() {
        let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL)]);
        // It wraps at 4000 and counts 4080 a second.
        let begin = second(&sampling, 1_800_000_000);
        let dated = (0..12_240_u32).filter_map(|n| sampling.sampled(0, n % 4000, begin + Ns::from(n) * SECOND / 4080));
        assert_eq!(dated.count(), 0);
    }

    #[test]
    fn a_sender_that_changes_its_mind_all_the_time_is_told_of_some_times() {
        let mut sampling = sampling(4000, &[(0, Ns::MIN, GLOBAL)]);
        let said = (1..500_u32).map(|n| SynchChange { stream: 0, key: n, t: n.into(), synch: n as u8 & 1 }).collect();
        let told = sampling.update(said, &Joiner::new([], Default::default()), &mut Vec::new());
        assert_eq!((told.len(), told[0].0, told[0].1.synch), (MOST_TOLD, GLOBAL, 1));
        assert_eq!(sampling.notes(&[StreamSpec::svid("MU01")]), ["MU01: smpSynch changed 499 times, at last to 1"]);
        assert!(sampling.senders[0].changes.len() <= CHANGES);
    }
}
