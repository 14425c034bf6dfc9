//! State of the reflector for one emitter: received probes, and stamps of sent answers.

use crate::transaction::{Source, Stamp};
use crate::turnaround::{kernel_ends, AllTurnarounds, Turnaround, Turnarounds};
use crate::wire::{LateStamps, ReflectorCounters, LATE_STAMPS};
use latpath_model::Ns;
use std::collections::VecDeque;

/// Maximum number of answers whose stamps are pending.
const LEAVING: usize = 1024;
/// Maximum number of stamped answers that wait to be reported.
const WAITING: usize = 4096;
/// Number of most recent probes among which duplicates are detected.
const KNOWN: u64 = 1 << 16;

/// State of one session.
pub struct Session {
    /// Session number, chosen by the emitter.
    pub number: u32,
    /// The stamps, as bits, that an answer has once it is complete.
    requested: u16,
    /// Highest received sequence number + 1.
    next: u64,
    /// Bitmap of the last [`KNOWN`] probes: whether each was received.
    came: Vec<u64>,
    /// Counts of the session.
    pub seen: ReflectorCounters,
    leaving: Vec<LateStamps>,
    /// T3 app of each answer in `leaving`, ns.
    left_at: Vec<Ns>,
    /// Sequence number of the oldest answer not yet checked for completeness.
    unseen: u64,
    waiting: VecDeque<LateStamps>,
    /// The reflector's times of this session's probes.
    pub times: Turnarounds,
    /// The stamp of an answer at which its kernel turnaround ends.
    kernel_end: Option<Stamp>,
    /// Time of a probe at the reflector above which there is a breach, ns.
    threshold: Option<Ns>,
    /// For each answer in `leaving`: the arrival of its probe, and whether a breach was found.
    arrived: Vec<(Arrival, bool)>,
    /// Number of breaches that the emitter reported.
    pub breaches: u64,
    /// Start of the session, `CLOCK_MONOTONIC` ns.
    pub begun: Ns,
    /// Time of the last message, `CLOCK_MONOTONIC` ns.
    pub last_heard: Ns,
}

/// Time after sending an answer at which its missing stamps are overdue, ns.
const OVERDUE_NS: Ns = 20_000_000;
/// Sequence number that marks a free slot.
const NONE: u64 = u64::MAX;

/// Stamps of a probe's arrival.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Sequence number of the probe.
    pub sequence: u64,
    /// T2 nic, in the PHC's time, ns.
    pub nic: Option<Ns>,
    /// T2 kernel, `CLOCK_MONOTONIC`, ns.
    pub kernel: Option<Ns>,
    /// T2 app, `CLOCK_MONOTONIC`, ns.
    pub app: Ns,
}

impl Arrival {
    const NONE: Self = Self { sequence: NONE, nic: None, kernel: None, app: 0 };
}

impl Session {
    /// Creates a session whose answers get the stamps `taken`, and in which times over `threshold` are breaches.
    pub fn new(number: u32, taken: u16, threshold: Option<Ns>, now: Ns) -> Self {
        Self {
            number,
            requested: LATE_STAMPS.iter().fold(0, |mask, s| mask | s.bit()) & taken,
            next: 0,
            came: vec![0; (KNOWN / 64) as usize],
            seen: ReflectorCounters::default(),
            leaving: vec![LateStamps { sequence: NONE, stamps: [None; 3] }; LEAVING],
            left_at: vec![0; LEAVING],
            unseen: 0,
            waiting: VecDeque::new(),
            times: Turnarounds::default(),
            kernel_end: kernel_ends(taken).map(|(_, end)| end),
            threshold,
            arrived: vec![(Arrival::NONE, false); LEAVING],
            breaches: 0,
            begun: now,
            last_heard: now,
        }
    }

    /// Records a probe and its answer, sent at `t3`, here and in `all`. Returns the probe's time so far if that exceeds
    /// the threshold: measured from the kernel's stamp to T3 app, which are of the same clock, or else from T2 app.
    #[inline]
    pub fn answered(&mut self, probe: Arrival, t3: Ns, taken: bool, all: &mut AllTurnarounds) -> Option<Turnaround> {
        let (sequence, before) = (probe.sequence, self.seen);
        self.last_heard = t3;
        self.count(sequence);
        all.received += self.seen.received - before.received;
        all.duplicates += self.seen.duplicates - before.duplicates;
        all.reordered += self.seen.reordered - before.reordered;
        self.record(Source::App, sequence, t3 - probe.app, all);
        if let (Some(t2), Some(Stamp::T3App)) = (probe.kernel, self.kernel_end) {
            self.record(Source::Kernel, sequence, t3.saturating_sub(t2), all);
        }
        let (from, begin) = probe.kernel.map_or((Stamp::T2App, probe.app), |t2| (Stamp::T2Kernel, t2));
        let breach =
            self.judge(Turnaround { sequence, from, to: Stamp::T3App, time_ns: t3.saturating_sub(begin) }, all);
        if !taken {
            self.seen.refused += 1;
        } else if self.requested != 0 {
            let slot = sequence as usize % LEAVING;
            // The previous answer in this slot got no further stamps while `LEAVING` more answers were sent, so report
            // it with the stamps that it has.
            let before = std::mem::replace(&mut self.leaving[slot], LateStamps { sequence, stamps: [None; 3] });
            if before.stamps.iter().any(Option::is_some) {
                self.report(before);
            }
            self.arrived[slot] = (probe, breach.is_some());
            self.left_at[slot] = t3;
            self.report_overdue(sequence, t3 - OVERDUE_NS);
        }
        breach
    }

    #[inline]
    fn record(&mut self, source: Source, sequence: u64, time: Ns, all: &mut AllTurnarounds) {
        self.times.record(source, sequence, time);
        all.record(source, sequence, time);
    }

    /// Returns the time if it exceeds the threshold, and counts it as over the threshold.
    #[inline]
    fn judge(&mut self, time: Turnaround, all: &mut AllTurnarounds) -> Option<Turnaround> {
        let breach = self.threshold.is_some_and(|most| time.time_ns > most).then_some(time)?;
        self.times.over += 1;
        all.times.over += 1;
        Some(breach)
    }

    /// Reports the stamps of those answers whose other stamps are overdue.
    #[inline]
    fn report_overdue(&mut self, newest: u64, before: Ns) {
        self.unseen = self.unseen.max(newest.saturating_sub(LEAVING as u64 - 1));
        while self.unseen < newest {
            let slot = self.unseen as usize % LEAVING;
            let answer = self.leaving[slot];
            if answer.sequence == self.unseen {
                if self.left_at[slot] > before {
                    return;
                }
                // The entry is kept: if the missing stamps arrive, all of its stamps are reported again.
                if answer.stamps.iter().any(Option::is_some) {
                    self.report(answer);
                }
            }
            self.unseen += 1;
        }
    }

    fn count(&mut self, sequence: u64) {
        if sequence >= self.next {
            // Clear the bits of the skipped sequence numbers.
            self.forget(self.next.max(sequence.saturating_sub(KNOWN - 1)), sequence);
            self.next = sequence.saturating_add(1);
        } else if self.next - sequence > KNOWN {
            // The probe is too old to tell whether it is late or a duplicate.
            self.seen.reordered += 1;
            self.seen.received += 1;
            return;
        } else if self.came[(sequence / 64 % (KNOWN / 64)) as usize] >> (sequence % 64) & 1 == 1 {
            self.seen.duplicates += 1;
            return;
        } else {
            self.seen.reordered += 1;
        }
        self.came[(sequence / 64 % (KNOWN / 64)) as usize] |= 1 << (sequence % 64);
        self.seen.received += 1;
    }

    /// Clears the bits of these sequence numbers, at most [`KNOWN`]. Returns the number of steps, which is bounded even
    /// if every probe skips numbers.
    fn forget(&mut self, from: u64, to: u64) -> usize {
        let (mut at, mut steps) = (from, 0);
        while at < to {
            let (first, length) = (at % 64, (64 - at % 64).min(to - at));
            self.came[(at / 64 % (KNOWN / 64)) as usize] &= !(u64::MAX >> (64 - length) << first);
            at += length;
            steps += 1;
        }
        steps
    }

    /// Records a stamp of an answer. Returns the turnaround that it completes if that exceeds the threshold, unless an
    /// earlier stamp of the same answer has already shown the breach.
    #[inline]
    pub fn left(&mut self, sequence: u64, stamp: Stamp, time: Ns, all: &mut AllTurnarounds) -> Option<Turnaround> {
        let slot = sequence as usize % LEAVING;
        let answer = &mut self.leaving[slot];
        let i = LATE_STAMPS.iter().position(|s| *s == stamp).filter(|_| answer.sequence == sequence)?;
        // With stacked devices, an answer passes several queueing disciplines; the first one counts.
        let is_first = answer.stamps[i].is_none();
        answer.stamps[i].get_or_insert(time);
        self.report_if_whole(slot);
        is_first.then(|| self.ended(slot, stamp, time, all)).flatten()
    }

    /// Records the turnaround that this stamp of an answer completes.
    #[inline]
    fn ended(&mut self, slot: usize, to: Stamp, time: Ns, all: &mut AllTurnarounds) -> Option<Turnaround> {
        let (probe, is_known) = self.arrived[slot];
        let (from, begin) = match to {
            Stamp::T3Nic => (Stamp::T2Nic, probe.nic?),
            _ if Some(to) == self.kernel_end => (Stamp::T2Kernel, probe.kernel?),
            _ => return None,
        };
        let time_ns = time.saturating_sub(begin);
        self.record(from.source(), probe.sequence, time_ns, all);
        if is_known {
            return None;
        }
        let breach = self.judge(Turnaround { sequence: probe.sequence, from, to, time_ns }, all);
        self.arrived[slot].1 = breach.is_some();
        breach
    }

    /// Reports an answer that has all requested stamps.
    #[inline]
    fn report_if_whole(&mut self, slot: usize) {
        let answer = &mut self.leaving[slot];
        let has = LATE_STAMPS.iter().zip(answer.stamps).filter(|(_, t)| t.is_some()).fold(0, |m, (s, _)| m | s.bit());
        if has & self.requested == self.requested {
            let whole = std::mem::replace(answer, LateStamps { sequence: NONE, stamps: [None; 3] });
            self.report(whole);
        }
    }

    fn report(&mut self, afterwards: LateStamps) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back(afterwards);
        }
    }

    /// Stamps for the next answer to carry back.
    #[inline]
    pub fn next_afterwards(&mut self) -> Option<LateStamps> {
        self.waiting.pop_front()
    }

    /// Stamps for a message that may be the last one: those of complete answers first, then also those of incomplete
    /// ones.
    pub fn any_afterwards(&mut self) -> Option<LateStamps> {
        self.waiting.pop_front().or_else(|| {
            let some = |a: &&mut LateStamps| a.stamps.iter().any(Option::is_some);
            let oldest = self.leaving.iter_mut().filter(some).min_by_key(|a| a.sequence)?;
            let incomplete = *oldest;
            // If further stamps arrive, they are reported too.
            oldest.stamps = [None; 3];
            Some(incomplete)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session and the times of all sessions, with a simpler interface for tests.
    struct SingleSession(Session, AllTurnarounds);

    impl SingleSession {
        fn answered(&mut self, sequence: u64, app: Ns, t3: Ns, nic: Option<Ns>) -> Option<Turnaround> {
            self.0.answered(Arrival { sequence, nic, kernel: None, app }, t3, true, &mut self.1)
        }

        fn left(&mut self, sequence: u64, stamp: Stamp, time: Ns) -> Option<Turnaround> {
            self.0.left(sequence, stamp, time, &mut self.1)
        }
    }

    impl std::ops::Deref for SingleSession {
        type Target = Session;

        fn deref(&self) -> &Session {
            &self.0
        }
    }

    impl std::ops::DerefMut for SingleSession {
        fn deref_mut(&mut self) -> &mut Session {
            &mut self.0
        }
    }

    fn session(requested: &[Stamp]) -> SingleSession {
        judged(requested, None)
    }

    fn judged(requested: &[Stamp], threshold: Option<Ns>) -> SingleSession {
        let taken = requested.iter().fold(0, |m, s| m | s.bit());
        SingleSession(Session::new(7, taken, threshold, 0), AllTurnarounds::new(taken, None))
    }

    #[test]
    fn probes_are_counted_once_with_order_and_repeats() {
        let mut s = session(&[]);
        for sequence in [0, 1, 3, 2, 2, 5, 100_000, 5, 99_999] {
            s.answered(sequence, 0, 10, None);
        }
        let seen = s.seen;
        assert_eq!(
            (seen.received, seen.duplicates, seen.reordered),
            (8, 1, 3),
            "5 is too old to be known the second time"
        );
        assert_eq!(s.times.app.times().count(), 9);
    }

    #[test]
    fn skipped_numbers_are_forgotten_in_a_few_steps() {
        let mut s = session(&[]);
        for (from, to) in [(0, 0), (0, 1), (63, 65), (5, 64), (64, 128), (7, 300), (1_000, KNOWN + 800)] {
            s.came.fill(u64::MAX);
            let steps = s.forget(from, to);
            assert!(steps <= 1 + (KNOWN / 64) as usize, "{steps}");
            for n in from.saturating_sub(70)..to + 70 {
                let came = s.came[(n / 64 % (KNOWN / 64)) as usize] >> (n % 64) & 1 == 1;
                assert_eq!(came, !(from..to).contains(&n), "{n} of {from}..{to}");
            }
        }
    }

    #[test]
    fn numbers_at_the_end_of_the_range_are_handled() {
        let mut s = session(&[]);
        s.answered(u64::MAX, 0, 10, None);
        s.answered(u64::MAX - 1, 0, 10, None);
        assert_eq!(s.seen.received, 2);
    }

    #[test]
    fn stamps_are_returned_when_complete_and_at_the_end_also_incomplete() {
        let mut s = session(&[Stamp::T3Driver, Stamp::T3Nic]);
        s.answered(0, 0, 10, Some(1_000));
        s.answered(1, 20, 30, Some(2_000));
        s.left(0, Stamp::T3Driver, 11);
        assert_eq!(s.next_afterwards(), None);
        s.left(0, Stamp::T3Nic, 1_500);
        assert_eq!(s.next_afterwards(), Some(LateStamps { sequence: 0, stamps: [None, Some(11), Some(1_500)] }));
        assert_eq!((s.times.nic.times().count(), s.times.nic.times().max()), (1, 500));
        s.left(1, Stamp::T3Driver, 31);
        assert_eq!(s.any_afterwards(), Some(LateStamps { sequence: 1, stamps: [None, Some(31), None] }));
        assert_eq!(s.any_afterwards(), None);
        s.left(9, Stamp::T3Nic, 7);
        assert_eq!(s.any_afterwards(), None, "nothing is known of answer 9");
    }

    #[test]
    fn stamps_are_reported_when_the_nics_is_overdue_and_again_when_it_arrives() {
        let mut s = session(&[Stamp::T3Driver, Stamp::T3Nic]);
        s.answered(0, 0, 10, Some(1_000));
        s.left(0, Stamp::T3Driver, 11);
        s.answered(1, 20, 30, None);
        assert_eq!(s.next_afterwards(), None);
        s.answered(2, 0, 11 + OVERDUE_NS, None);
        assert_eq!(s.next_afterwards(), Some(LateStamps { sequence: 0, stamps: [None, Some(11), None] }));
        s.left(0, Stamp::T3Nic, 1_500);
        assert_eq!(s.next_afterwards(), Some(LateStamps { sequence: 0, stamps: [None, Some(11), Some(1_500)] }));
        assert_eq!(s.next_afterwards(), None);
    }

    #[test]
    fn unreturned_stamps_do_not_accumulate() {
        let mut s = session(&[Stamp::T3Driver]);
        for i in 0..100_000 {
            s.answered(i, 0, 1, None);
            s.left(i, Stamp::T3Driver, 2);
        }
        assert_eq!(s.waiting.len(), WAITING);
    }

    #[test]
    fn a_time_is_judged_by_the_stamps_nearest_to_the_wire_once_per_probe() {
        let stamps = [Stamp::T2Nic, Stamp::T2Kernel, Stamp::T3Driver, Stamp::T3Nic];
        let mut s = judged(&stamps, Some(100));
        let probe = |sequence| Arrival { sequence, nic: Some(5_000), kernel: Some(1_000), app: 1_050 };
        let late = |from, to, time_ns, sequence| Some(Turnaround { sequence, from, to, time_ns });
        // 30 ns in the application, 80 ns from the kernel's stamp, 90 ns to the driver's, 400 ns measured by the NIC's
        // clock.
        assert_eq!(s.0.answered(probe(0), 1_080, true, &mut s.1), None);
        assert_eq!(s.left(0, Stamp::T3Driver, 1_090), None);
        assert_eq!(s.left(0, Stamp::T3Nic, 5_400), late(Stamp::T2Nic, Stamp::T3Nic, 400, 0));
        // Already late at the driver's stamp: the NIC's stamp is not a second breach.
        assert_eq!(s.0.answered(probe(1), 1_080, true, &mut s.1), None);
        assert_eq!(s.left(1, Stamp::T3Driver, 1_300), late(Stamp::T2Kernel, Stamp::T3Driver, 300, 1));
        assert_eq!(s.left(1, Stamp::T3Nic, 5_400), None);
        // Already late before the answer was sent.
        let early = s.0.answered(probe(2), 1_200, true, &mut s.1);
        assert_eq!(early, late(Stamp::T2Kernel, Stamp::T3App, 200, 2));
        assert_eq!(s.left(2, Stamp::T3Nic, 5_400), None);
        assert_eq!((s.times.over, s.1.times.over), (3, 3));
        let all = s.1.times.all().map(|(_, name, h)| (name, h.times().count(), h.figures().max_sequence));
        let numbers = [("nic_turnaround", 3, Some(0)), ("kernel_turnaround", 2, Some(1)), ("turnaround", 3, Some(2))];
        assert_eq!(all, numbers);
    }

    #[test]
    fn without_stamps_of_answers_the_kernels_time_ends_at_t3_app() {
        let mut s = judged(&[Stamp::T2Kernel], Some(100));
        let probe = Arrival { sequence: 9, nic: None, kernel: Some(1_000), app: 1_303 };
        let breach = s.0.answered(probe, 1_310, true, &mut s.1);
        assert_eq!(breach.map(|b| (b.from, b.to, b.time_ns)), Some((Stamp::T2Kernel, Stamp::T3App, 310)));
        assert_eq!((s.times.kernel.times().max(), s.times.app.times().max()), (310, 7));
        assert_eq!(s.1.received, 1);
    }
}
